"""Decisions about received messages: what becomes of each, as one value.

`Acceptance.decide` makes a decision, and `Incoming` carries it out.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from protocol.message_class import MessageClass
    from qmd.queues.incoming_stream import IncomingStream
    from qmd.queues.local_queue import LocalQueue


class Verdict(Enum):
    """The fates of a received message.

    The session acknowledgment of every verdict but NO_ROOM leaves after the commit that holds the
    decision.
    """

    #: Store the message in the queue of the decision.
    ACCEPTED = "accepted"
    #: The relay holds the message in an outgoing queue, or held it already.
    RELAYED = "relayed"
    #: An internal queue has handled the message; nothing of it is stored.
    HANDLED = "handled"
    #: The history of message ids holds the message: it was received before.
    KNOWN = "known"
    #: The position of the message in its sequence was accepted before.
    DUPLICATE = "duplicate"
    #: The message is not the next one of its sequence: a message before it is missing.
    OUT_OF_ORDER = "out of order"
    #: Another message was accepted at the position of this one: refuse it, as REFUSED does.
    CONTRADICTION = "contradiction"
    #: Refuse the message for good, with the message class of the decision.
    REFUSED = "refused"
    #: The message can be neither stored nor refused: the session ends, its sender sends it again.
    NO_ROOM = "no room"


class Decision(NamedTuple):
    """The decision about one received message."""

    verdict: Verdict
    #: The destination, where it is a queue of this computer.
    queue: LocalQueue | None = None
    #: The sequence of a transactional message; not where the message is refused before its position
    #: was looked at.
    stream: IncomingStream | None = None
    #: The reason of a refusal, as a negative acknowledgment states it.
    message_class: MessageClass | None = None
    #: More of the reason, for people: of REFUSED, CONTRADICTION and NO_ROOM.
    detail: str = ""
    #: The message was to be relayed: the source of a transactional one keeps it.
    for_others: bool = False
    #: The message is of another source than the peer, which is no relay: it leaves no trace in the
    #: history of its source.
    is_foreign: bool = False


RELAYED = Decision(Verdict.RELAYED)
HANDLED = Decision(Verdict.HANDLED)
KNOWN = Decision(Verdict.KNOWN)


def refused(
    message_class: MessageClass,
    queue: LocalQueue | None = None,
    *,
    detail: str = "",
    for_others: bool = False,
    is_foreign: bool = False,
) -> Decision:
    """Return the decision to refuse a message."""
    return Decision(Verdict.REFUSED, queue, None, message_class, detail, for_others, is_foreign)


def no_room(reason: str) -> Decision:
    """Return the decision to end the session, for a reason that the log states."""
    return Decision(Verdict.NO_ROOM, detail=reason)
