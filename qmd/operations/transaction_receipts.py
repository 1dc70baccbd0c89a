"""The messages that a transaction has received, at its commit: moved, rejected or removed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qmd.errors import Refusal
from qmd.operations.transaction import PreparedEnds, Transaction, by_queues, unanswered

if TYPE_CHECKING:
    from qmd.operations.move import Mover
    from qmd.operations.receive import MessageReceiver


def check_received(transaction: Transaction, mover: Mover, receiver: MessageReceiver) -> None:
    """Check that each message can get its end.  Raises Refusal."""
    for queue, mine in transaction.reader.taken.items():
        if mine and queue.deleted:
            raise Refusal(
                "no_such_queue",
                f"{queue.name} was deleted, with what the transaction had received from it",
                "Begin another transaction.",
            )
        receiver.check_numbers(transaction.reader, queue, list(mine))
    for (source, (target, _)), lookup_ids in by_queues(transaction.moves).items():
        mover.check(source, target, [source.taken[lookup_id] for lookup_id in lookup_ids])


def settle_received(
    transaction: Transaction, mover: Mover, receiver: MessageReceiver, ends: PreparedEnds
) -> None:
    """Give each message its end, in the batch of the commit; the rest of them is removed.

    `ends` are the acknowledgments that were made before.
    """
    reader = transaction.reader
    for (source, (target, why)), lookup_ids in by_queues(transaction.moves).items():
        mover.move_taken(reader, source, target, lookup_ids, transaction.id.hex(), why)
    for (queue, reason), lookup_ids in by_queues(transaction.rejections).items():
        receiver.reject(
            *(reader, queue, lookup_ids, reason, b"", unanswered),
            prepared=ends.rejections.get((queue, reason)),
        )
    for queue, mine in list(reader.taken.items()):
        if mine:
            receiver.remove(
                *(reader, queue, sorted(mine), b"", unanswered),
                transaction=transaction.id.hex(),
                prepared=ends.receipts.get(queue),
            )
