"""Delivery of a message to its queue: express, recoverable or transactional.

Whether a queue is transactional is known for local queues, and for queues elsewhere if the
directory says it.  A message that its queue would refuse on arrival is refused here, while its
application can handle the error.  For a queue of unknown kind, the delivery `automatic` means
recoverable, or transactional in a transaction.
"""

from __future__ import annotations

from qmd.control_protocol.messages import AUTOMATIC, RECOVERABLE, TRANSACTIONAL
from qmd.errors import Refusal
from qmd.queues.local_queue import LocalQueue
from qmd.queues.outgoing_queue import OutgoingQueue

_DIRECTORY = ", as the directory says,"
_ANEW = " If the queue was created anew meanwhile: qmd directory reload."


def delivery_to(
    route: LocalQueue | OutgoingQueue,
    asked: int,
    *,
    in_transaction: bool,
    transactional: bool | None = None,
    name: str = "",
) -> int:
    """Return the delivery of a message to its only queue.

    `transactional` says whether the queue, `name`, is transactional according to the directory;
    None: the directory does not say.  It is not used for a local queue.  Raises Refusal
    if the queue does not take such a message.
    """
    if isinstance(route, LocalQueue):
        if not route.is_read_only:
            return _fitting(
                asked, route.transactional, f"queue {route.name}", in_transaction=in_transaction
            )
        raise Refusal(
            "queue_read_only",
            f"{route.name} is a queue of the queue manager itself"
            if route.is_system
            else f"{route.name} is a subqueue or journal",
            "Journals and dead-letter queues can be read, but not sent to; messages come to"
            " a subqueue by `qmd move`.",
        )
    if transactional is not None:
        queue = f"queue {name or route.destination}{_DIRECTORY}"
        return _fitting(asked, transactional, queue, in_transaction=in_transaction, advice=_ANEW)
    if asked == AUTOMATIC:
        return TRANSACTIONAL if in_transaction else RECOVERABLE
    return asked


def delivery_of_copy(
    route: LocalQueue | OutgoingQueue,
    asked: int,
    *,
    in_transaction: bool,
    transactional: bool | None,
    name: str,
) -> int:
    """Return the delivery of a copy to one of several queues, as `delivery_to`.

    Only some of the queues may be transactional: a transactional copy for another queue is refused
    when it arrives, not here.  Raises Refusal.
    """
    if in_transaction:
        asked = TRANSACTIONAL
    if asked == TRANSACTIONAL and not (isinstance(route, LocalQueue) and route.is_read_only):
        return asked
    return delivery_to(route, asked, in_transaction=False, transactional=transactional, name=name)


def _fitting(
    asked: int, transactional: bool, queue: str, *, in_transaction: bool, advice: str = ""
) -> int:
    if in_transaction and not transactional:
        raise Refusal(
            "not_transactional_queue",
            f"{queue} is not transactional, and the message is to be sent in a transaction",
            f"Send it outside the transaction, or create a transactional queue.{advice}",
        )
    if asked == AUTOMATIC:
        return TRANSACTIONAL if transactional else RECOVERABLE
    if transactional and asked != TRANSACTIONAL:
        raise Refusal(
            "needs_transactional",
            f"{queue} is transactional and accepts transactional messages only",
            f"Send it with --transactional.{advice}",
        )
    if not transactional and asked == TRANSACTIONAL:
        raise Refusal(
            "not_transactional",
            f"{queue} is not transactional and accepts no transactional messages",
            f"Send it with --recoverable or --express, or create a transactional queue.{advice}",
        )
    return asked
