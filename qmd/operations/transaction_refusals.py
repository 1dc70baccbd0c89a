"""Refusals of requests for transactions."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from qmd.errors import Refusal

if TYPE_CHECKING:
    from qmd.operations.transaction import Transaction
    from qmd.queues.local_queue import LocalQueue
    from qmd.runtime.budget import Budget


def not_taken(queue: LocalQueue, lookup_id: int, how: str) -> Refusal:
    """Return the refusal of a message that the transaction, or its connection, does not have."""
    return Refusal(
        "not_taken",
        f"message {lookup_id} of {queue.name} was not {how}",
        "Receive it first.",
    )


def doomed(transaction: Transaction) -> Refusal:
    """Return the refusal of a transaction in which a send has failed."""
    return Refusal(
        "transaction_doomed",
        f"a message could not be sent in this transaction: {transaction.doom}",
    )


def too_much(memory: Budget, owner: Hashable, more_bytes: int) -> Refusal:
    """Return the refusal of messages for which there is no memory left."""
    return Refusal(
        "transactions_full",
        f"the messages of all transactions under way take {memory.used_bytes} of"
        f" {memory.limit_bytes} bytes of memory, those of this connection {memory.of(owner)} of"
        f" {memory.share_bytes}, and {more_bytes} more are needed",
        "Commit or abort some, or set transactions in the section [memory] of the configuration"
        " higher.",
    )
