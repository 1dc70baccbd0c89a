"""Planned acknowledgments: built, and not sent yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from protocol.names.format_name import FormatName
    from qmd.core.acknowledgment import FinalAcks
    from qmd.queues.answer_limits import AskedFor
    from qmd.queues.outgoing_queue import OutgoingQueue


#: As many messages as a queue reads from the disk at once.  More are left on the disk.
IN_MEMORY_MAX = 512


class Aim(NamedTuple):
    """An administration queue, and the way to it."""

    name: FormatName
    asked: AskedFor | None  # the host that asks for the acknowledgment; None: an application here
    #: GUID of the queue manager with a session to the queue; None: the name, or `asked`, leads
    #: there.
    via: bytes | None


class Planned(NamedTuple):
    """The acknowledgments of the end of one message to its administration queues."""

    source: bytes  # the GUID of the queue manager that the message comes from
    number: int  # of the message
    message_class: int
    packets: list[tuple[Aim, bytes]]
    not_made: list[tuple[FormatName, str]]  # of a message of another host, with the reasons
    left_out: int  # the number of administration queues beyond the allowance of its host


class WayBack:
    """The outgoing queue and the form of final acks to one source."""

    __slots__ = ("acks", "host", "queue")

    def __init__(self, queue: OutgoingQueue, host: str, acks: FinalAcks) -> None:
        self.queue = queue
        self.host = host  # of the source; "": not known
        self.acks = acks


class PlannedFinalAcks:
    """The final acks of messages that end together, built and not sent yet."""

    __slots__ = ("by_way", "message_class", "without_way")

    def __init__(self, message_class: int) -> None:
        self.message_class = message_class
        #: The messages and their final acks, as parallel lists.
        self.by_way: dict[WayBack, tuple[list[bytes], list[bytes]]] = {}
        self.without_way: list[bytes] = []  # messages to whose source no queue leads

    def __len__(self) -> int:
        return sum([len(acks) for _, acks in self.by_way.values()])
