"""Records of messages: what applications sent, and where databases hold it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from tests.simulation.message_copies import CopyFound

_MARK = re.compile(rb"<message (\d+)>")


def mark(number: int) -> bytes:
    """Return the mark that the body of message `number` must contain."""
    return b"<message %d>" % number


def marked(body: bytes) -> int | None:
    """Return the number in the mark of a body or packet; None if it has no mark."""
    found = _MARK.search(body)
    return int(found[1]) if found else None


class Outcome(Enum):
    """How a message must end."""

    RECEIVED = "received"
    REFUSED = "refused by its destination"
    RECEIVED_OR_DEAD = "received, or a dead letter because it expired or its queue was full"
    ANY = "received at most once; lost if its queue is purged or deleted"


@dataclass(slots=True, eq=False)
class Sent:
    """A message that an application sent or tried to send."""

    number: int
    stream: str  # messages of one stream are received in the order of their numbers
    source: str
    target: str
    queue: str
    delivery: str
    outcome: Outcome
    wants_dead_letter: bool
    wants_journal: bool
    request: int
    lives: tuple[int, ...]  # of the daemons, when it was sent
    # The position in its stream; copies for one queue have the same one.  0: the message's number.
    rank: int = 0
    is_kept: bool = False  # the journal of its queue keeps a copy when it is received
    is_ordered: bool = True  # its stream is received in order
    is_awaited: bool = False  # its source keeps it until it learns that it was received
    requested_acks: int = 0  # the acknowledgments that it asked for, as flags
    lifetime_s: int | None = None  # to reach its queue, or to be received
    rejected_in: int | None = None  # the life of the target's disk in which it was rejected
    not_before_s: float = 0.0  # no reader may receive it before this time of the world
    confirmed: bool = False
    refused: bool = False  # the queue manager reported that it was not sent
    received: list[int | None] = field(default_factory=list)  # lives of the target's daemon
    removals_in_doubt: int = 0
    may_be_lost: bool = False


@dataclass(slots=True, eq=False)
class Transaction:
    """The numbers that an application received in a transaction, and the messages that it sent."""

    taken: list[int]
    sent: list[Sent]


class Place(NamedTuple):
    """Where a database holds a message: in a queue of `host`, or in an outgoing queue.

    "relayed" is an outgoing queue of a host that is neither source nor target.  "awaiting" is the
    copy that the source keeps until it learns how the message ended.  "journal" and "kept" are
    copies in the journal of the source, and in the journal of the destination queue.
    """

    host: str
    kind: str  # "queue", "dead", "journal", "kept", "outgoing", "relayed", "awaiting", "delayed"
    queue: str


class Totals(NamedTuple):
    """The number of messages of a queue, and their size."""

    messages: int
    bytes: int


class Found(NamedTuple):
    """The contents of one host's database."""

    places: dict[int, list[Place]]
    queues: dict[str, Totals]
    outgoing: dict[str, Totals]
    awaiting: dict[str, Totals]  # by destination
    contradictions: Sequence[str] = ()  # between the event log and the tables
    logged: Mapping[str, int] = {}  # kind of event -> number of messages in the event log
    aborts: Mapping[int, int] = {}  # message in a queue -> its abort count
    copies: Sequence[CopyFound] = ()  # of messages to several queues: not yet in `places`
