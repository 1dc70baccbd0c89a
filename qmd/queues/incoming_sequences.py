"""Incoming sequences: one stream for each source and each of its names for one of our queues.

The position of a stream is on disk (`storage/tables/sequences.py`) and survives a restart.
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

STREAMS_MAX = 100_000  # of all sources
# Message numbers of a stream that are remembered; up to as many older ones as well.
RECENT_MAX = 64
RECENT_IN_ALL_MAX = 1_000_000
NAMES_MAX = 100  # of one queue, in use by one source

_PRIVATE = 3

#: The name of our queue in the packets of a source: the type of the format name, and the bytes of a
#: direct name, a GUID, or the number of a private queue.
Name = tuple[int, bytes | int]
_NOT_KNOWN: Name = (0, b"")  # the name of a stream that an older version began


class IncomingStream:
    """A transactional sequence from one source to one of our queues, by one name of the queue.

    A source that uses two names for a queue has two outgoing queues for it, with independent
    sequences. [MS-MQDMPR] 3.1.1.5. One sequence is one stream, even if its source changes the
    spelling of the name.
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
        self.return_path: PeerSession | None = None  # the session of its last message
        self.contradictions = 0  # messages with the position of another message
        self.last_message = 0  # the number of the last accepted message; 0: not known
        self._recent_id = 0  # the sequence id of the positions in `_recent` and `_earlier`
        self._recent: dict[int, int] = {}  # position -> message number
        self._earlier: dict[int, int] = {}
        self.last_host = ""  # the address of the peer that sent the last accepted message
        # Whether order acks are addressed by a direct name, as the messages are. [MS-MQQB] 3.1.7.17
        self.by_direct_name = True

    def accepted(self, message: int, host: str) -> int:
        """Remember the message number and the peer's address of the position just accepted.

        Returns by how many the number of remembered messages has grown; it may be negative.
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
        """Forget all messages but the last one; return how many."""
        forgotten = len(self._recent) + len(self._earlier)
        self._recent, self._earlier = {}, {}
        return forgotten

    def contradicts(self, sequence_id: int, number: int, message: int) -> bool:
        """Return whether a different message was accepted at this position.

        If the accepted one is not known any more, the message counts as its duplicate: False.
        """
        sequence = self.sequence
        known = 0
        if (sequence_id, number) == (sequence.accepted_id, sequence.accepted_number):
            known = self.last_message
        elif sequence_id == self._recent_id:
            known = self._recent.get(number) or self._earlier.get(number, 0)
        return known not in (0, message)

    def state(self, at_s: int) -> tuple[int, int, int, int, int, int]:
        """Return the columns of its row after the id; the same commit stores the messages."""
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
    """A limit that is reached: the event to log, the limit, and the reason for the peer."""

    event: str
    allowed: int
    reason: str


class IncomingStreams:
    """The incoming streams of this queue manager."""

    def __init__(self, services: Services) -> None:
        self._services = services
        delivery = services.settings.delivery
        self._streams: dict[tuple[bytes, int, Name], IncomingStream] = {}
        self._names: dict[tuple[bytes, int], list[Name]] = {}  # (source, queue id) -> names in use
        self._next_id = 1
        self._recent_count = 0
        self._sequence_settings = OrderAckSettings(
            timeout_s=delivery.order_ack_timeout_s,
            delay_max_s=delivery.order_ack_delay_max_s,
            at_once=delivery.acknowledge_at_once,
        )

    def all(self) -> list[IncomingStream]:
        """Return each stream once."""
        return list(dict.fromkeys(self._streams.values()))

    def restore(self, row: IncomingSequenceRow, queue: LocalQueue) -> None:
        """Create the stream of a row."""
        sequence = IncomingSequence(row.sequence_id, row.number, settings=self._sequence_settings)
        sequence.rejects = row.rejected
        name = _read_name(row.name)
        stream = IncomingStream(row.id, row.source, queue, name, sequence)
        stream.contradictions, stream.last_message = row.contradictions, row.last_message
        self._know(row.source, queue, name, stream)
        self._next_id = max(self._next_id, row.id + 1)

    def accepted(self, stream: IncomingStream, message: int, host: str) -> None:
        """Remember the number of an accepted message; old numbers are forgotten."""
        self._recent_count += stream.accepted(message, host)
        if self._recent_count > RECENT_IN_ALL_MAX:
            for each in self.all():
                each.forget_recent()
            self._recent_count = 0

    def reserve_id(self, id: int) -> None:
        """Reserve the id of a stream to a deleted queue, because its row stays."""
        self._next_id = max(self._next_id, id + 1)

    def forget_connection(self, connection: PeerSession) -> None:
        """Drop all references to a connection that has ended."""
        for stream in connection.streams:
            if stream.return_path is connection:
                stream.return_path = None

    def forget_queue(self, queue: LocalQueue) -> None:
        """Forget the streams to a queue that is deleted."""
        for key in [key for key in self._streams if key[1] == queue.id]:
            del self._streams[key]
        for source_and_queue in [key for key in self._names if key[1] == queue.id]:
            del self._names[source_and_queue]

    def find(self, source: bytes, queue: LocalQueue, name: Name) -> IncomingStream | None:
        """Return the stream of a source to a queue by a name; None: it has not begun."""
        return self._streams.get((source, queue.id, name))

    def limit(self, source: bytes, queue: LocalQueue) -> Limit | None:
        """Return the limit that prevents a further stream, or None."""
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
        """Begin a stream, with its row in the open batch, or return the one that it continues.

        The same sequence id by a new name is the same stream.
        """
        batch = self._services.storage.batch
        names = self._names.get((source, queue.id), ())
        others = list(dict.fromkeys(self._streams[source, queue.id, each] for each in names))
        nameless = next((each for each in others if each.name == _NOT_KNOWN), None)
        for stream in others:
            if stream.sequence.accepted_id == sequence_id:  # a new spelling of its name
                self._know(source, queue, name, stream)
                if stream is nameless:
                    self._name(stream, name)
                return stream
        if nameless is not None:
            if nameless.sequence.accepted_id < sequence_id:
                self._know(source, queue, name, nameless)
                self._name(nameless, name)
            # An earlier sequence may be one that an older version accepted by another name. While
            # that is open it does not begin a new stream, and is rejected as by that version.
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
        """Store the name of a stream that an older version began."""
        stream.name = name
        self._services.storage.batch.run(
            partial(sequence_rows.set_name, incoming_id=stream.id, name=_write_name(name))
        )


def _write_name(name: Name) -> bytes:
    """Return the stored form of a name: one byte with its type, then its value."""
    kind, value = name
    return bytes([kind]) + (value if isinstance(value, bytes) else b"%d" % value)


def _read_name(stored: bytes) -> Name:
    """Return the name of a stored form; b"" is that of older versions, which stored none."""
    if not stored:
        return _NOT_KNOWN
    kind, value = stored[0], stored[1:]
    return kind, int(value) if kind == _PRIVATE else value
