"""Streams that come to our queues: a sequence each, and how far the disk holds it.

A stream is known by its source, its queue and the name by which the source knows that.  What is
remembered of it is on disk (`storage/tables/sequences.py`), and is there again after a start.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from qmd.core.sequence import IncomingSequence, OrderAckSettings
from storage.tables import sequences as sequence_rows
from storage.tables.sequences import IncomingSequenceRow

if TYPE_CHECKING:
    from qmd.queues.local_queue import LocalQueue
    from qmd.queues.peer_session import PeerSession
    from qmd.runtime.services import Services

STREAMS_MAX = 100_000  # (source, queue) whose sequences are remembered
RECENT_MAX = 64  # positions of a stream, and as many before them, whose messages are remembered
RECENT_IN_ALL_MAX = 1_000_000
NAMES_MAX = 100  # by which one source knows one queue

_PRIVATE = 3

#: By which a source knows our queue, as its packets say it: the type of the format name, and the
#: bytes of a direct name, a GUID, or the number of a private queue.
Name = tuple[int, bytes | int]
_NOT_KNOWN: Name = (0, b"")  # of a stream that an older version has begun


class IncomingStream:
    """A transactional sequence from one source to one of our queues, by one name of that.

    Whoever sends to a queue by two names has two outgoing queues for it, and a sequence for each:
    they know nothing of each other.  [MS-MQDMPR] 3.1.1.5  One sequence is one stream, however often
    its source spells the name anew.
    """

    __slots__ = (
        "_earlier",
        "_recent",
        "_recent_id",
        "by_direct_name",
        "contradictions",
        "id",
        "last_host",
        "last_message",
        "name",
        "queue",
        "return_path",
        "sequence",
        "source",
    )

    def __init__(
        self, id: int, source: bytes, queue: LocalQueue, name: Name, sequence: IncomingSequence
    ) -> None:
        self.id = id
        self.source = source
        self.queue = queue
        self.name = name
        self.sequence = sequence
        self.return_path: PeerSession | None = None  # where its last message came from
        self.contradictions = 0  # messages that bore the position of another one
        self.last_message = 0  # the number of the message that was accepted last; 0: not known
        self._recent_id = 0  # the sequence of those below
        self._recent: dict[int, int] = {}  # numbers of messages by their position
        self._earlier: dict[int, int] = {}
        self.last_host = ""  # and where that came from
        self.by_direct_name = True  # so order acks have one as well, [MS-MQQB] 3.1.7.17

    def accepted(self, message: int, host: str) -> int:
        """Remember the message at the position that was just accepted, and where it came from.

        Returns how many more are remembered than before, which may be a negative number.
        """
        self.last_message, self.last_host = message, host
        forgotten = 0
        if self._recent_id != self.sequence.accepted_id:
            self._recent_id = self.sequence.accepted_id
            forgotten = self.forget_recent()
        elif len(self._recent) >= RECENT_MAX:
            forgotten = len(self._earlier)
            self._earlier, self._recent = self._recent, {}
        self._recent[self.sequence.accepted_number] = message
        return 1 - forgotten

    def forget_recent(self) -> int:
        """Forget all but the last message; how many those were."""
        forgotten = len(self._recent) + len(self._earlier)
        self._recent, self._earlier = {}, {}
        return forgotten

    def contradicts(self, sequence_id: int, number: int, message: int) -> bool:
        """Whether another message than this one was accepted at the position.

        False where that is not known (any more): then it is a duplicate, as its position says.
        """
        sequence = self.sequence
        known = 0
        if (sequence_id, number) == (sequence.accepted_id, sequence.accepted_number):
            known = self.last_message
        elif sequence_id == self._recent_id:
            known = self._recent.get(number) or self._earlier.get(number, 0)
        return known not in (0, message)

    def state(self, at_s: int) -> tuple[int, int, int, int, int, int]:
        """As its row has it behind its id; what it has accepted is in the same commit."""
        sequence = self.sequence
        return (
            sequence.accepted_id,
            sequence.accepted_number,
            at_s,
            sequence.rejects,
            self.contradictions,
            self.last_message,
        )


class Limit(NamedTuple):
    """It is reached: the event of the log, how many there may be, and the reason for the peer's."""

    event: str
    allowed: int
    reason: str


class IncomingStreams:
    """All of them."""

    def __init__(self, services: Services) -> None:
        self._services = services
        delivery = services.settings.delivery
        self._streams: dict[tuple[bytes, int, Name], IncomingStream] = {}
        self._names: dict[tuple[bytes, int], list[Name]] = {}  # that a source has for a queue
        self._next_id = 1
        self._recent_count = 0
        self._sequence_settings = OrderAckSettings(
            timeout_s=delivery.order_ack_timeout_s,
            delay_max_s=delivery.order_ack_delay_max_s,
            at_once=delivery.acknowledge_at_once,
        )

    def all(self) -> list[IncomingStream]:
        return list(dict.fromkeys(self._streams.values()))

    def restore(self, row: IncomingSequenceRow, queue: LocalQueue) -> None:
        """A stream as the disk has it."""
        sequence = IncomingSequence(row.sequence_id, row.number, settings=self._sequence_settings)
        sequence.rejects = row.rejected
        name = _read_name(row.name)
        stream = IncomingStream(row.id, row.source, queue, name, sequence)
        stream.contradictions, stream.last_message = row.contradictions, row.last_message
        self._know(row.source, queue, name, stream)
        self._next_id = max(self._next_id, row.id + 1)

    def accepted(self, stream: IncomingStream, message: int, host: str) -> None:
        """The next message of a stream was accepted: its number is remembered for a while."""
        self._recent_count += stream.accepted(message, host)
        if self._recent_count > RECENT_IN_ALL_MAX:
            for each in self.all():
                each.forget_recent()
            self._recent_count = 0

    def reserve_id(self, id: int) -> None:
        """A stream to a queue that is no more: its row stays, and so does its id."""
        self._next_id = max(self._next_id, id + 1)

    def forget_connection(self, connection: PeerSession) -> None:
        """It has ended: acknowledgments find another way, and nothing keeps it in memory."""
        for stream in connection.streams:
            if stream.return_path is connection:
                stream.return_path = None

    def forget_queue(self, queue: LocalQueue) -> None:
        for key in [key for key in self._streams if key[1] == queue.id]:
            del self._streams[key]
        for source_and_queue in [key for key in self._names if key[1] == queue.id]:
            del self._names[source_and_queue]

    def find(self, source: bytes, queue: LocalQueue, name: Name) -> IncomingStream | None:
        return self._streams.get((source, queue.id, name))

    def limit(self, source: bytes, queue: LocalQueue) -> Limit | None:
        """What keeps a further stream from being remembered."""
        if len(self._names.get((source, queue.id), ())) >= NAMES_MAX:
            reason = f"too many names of {queue.name} by one source"
            return Limit("too_many_names_of_a_queue", NAMES_MAX, reason)
        if len(self._streams) >= STREAMS_MAX:
            reason = "too many sources of transactional messages"
            return Limit("too_many_streams", STREAMS_MAX, reason)
        return None

    def _know(self, source: bytes, queue: LocalQueue, name: Name, stream: IncomingStream) -> None:
        self._streams[source, queue.id, name] = stream
        self._names.setdefault((source, queue.id), []).append(name)

    def begin(
        self, source: bytes, queue: LocalQueue, name: Name, sequence_id: int
    ) -> IncomingStream:
        batch = self._services.storage.batch
        names = self._names.get((source, queue.id), ())
        others = list(dict.fromkeys(self._streams[source, queue.id, each] for each in names))
        nameless = next((each for each in others if each.name == _NOT_KNOWN), None)
        for stream in others:
            if stream.sequence.accepted_id == sequence_id:  # it is spelled anew
                self._know(source, queue, name, stream)
                if stream is nameless:
                    self._name(stream, name)
                return stream
        if nameless is not None:
            if nameless.sequence.accepted_id < sequence_id:
                self._know(source, queue, name, nameless)
                self._name(nameless, name)
            # An earlier sequence may be what an older version has taken under another name, before
            # this one: as long as that is open, it is no new one, and is rejected as then.
            return nameless
        sequence = IncomingSequence(settings=self._sequence_settings)
        stream = IncomingStream(self._next_id, source, queue, name, sequence)
        self._next_id += 1
        self._know(source, queue, name, stream)
        batch.incoming.add_sequence(
            stream.id,
            source,
            queue.id,
            _write_name(name),
            int(self._services.environment.time()),
        )
        return stream

    def _name(self, stream: IncomingStream, name: Name) -> None:
        """A stream that an older version has begun: now it is known by what its source knows it."""
        stream.name = name
        self._services.storage.batch.run(
            partial(sequence_rows.set_name, incoming_id=stream.id, name=_write_name(name))
        )


def _write_name(name: Name) -> bytes:
    """As it is stored: a byte with its type, and what follows."""
    kind, what = name
    return bytes([kind]) + (what if isinstance(what, bytes) else b"%d" % what)


def _read_name(stored: bytes) -> Name:
    if not stored:
        return _NOT_KNOWN
    kind, what = stored[0], stored[1:]
    return kind, int(what) if kind == _PRIVATE else what
