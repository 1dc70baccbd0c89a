"""Incoming sequences: one stream for each origin of a source and each of its names for our queues.

The position of a stream is on disk (`storage/tables/sequences.py`) and survives a restart.

Any program can state the GUID of a source. The streams of one origin (docs/decisions/0031) are
therefore not those of another one: a new sequence from elsewhere begins a stream of its own, which
supersedes nothing. Only the exact id of the accepted sequence continues a stream from another
origin, because a host may change its address, and its messages may take another route:

    exact id of a stream ──────────► that stream, if the claim is good (stream_claims.py)
    else, a stream of this origin ─► that stream
    else, one without an origin ───► that stream, for the primary origin of the source
    else ──────────────────────────► a new stream, with its first message that is accepted
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from qmd.core.sequence import IncomingSequence, OrderAckSettings, is_plausible
from qmd.queues.incoming_stream import Beginning, IncomingStream, Place
from qmd.queues.stream_claims import Claim, StreamClaims
from qmd.queues.stream_names import NOT_KNOWN, Name, read_name, write_name
from qmd.runtime.shares import owner_of
from storage.tables.sequences import IncomingSequenceRow, NewSequence

if TYPE_CHECKING:
    from qmd.queues.local_queue import LocalQueue
    from qmd.queues.peer_session import PeerSession
    from qmd.runtime.services import Services

STREAMS_MAX = 100_000  # of all sources
FORGOTTEN_PART = 100  # this part of a full table is forgotten at once
RECENT_IN_ALL_MAX = 1_000_000
NAMES_MAX = 100  # of one queue, in use by one origin of a source
# `qmd session forget` ends sequences that are ahead of the clock by more. Senders with many queues
# are ahead by some hours (`OutgoingIds.next_sequence_id`).
FORGOTTEN_AHEAD_S = 86_400


class Origins(Protocol):
    """The origins of queue managers: `Origins` of qmd/peers."""

    def primary(self, guid: bytes) -> str | None: ...
    def is_proven(self, guid: bytes, origin: str) -> bool: ...
    def is_dialled(self, guid: bytes, origin: str) -> bool: ...


class Limit(NamedTuple):
    """A limit that is reached: the event to log, the limit, and the reason."""

    event: str
    allowed: int
    reason: str


class IncomingStreams:
    """The incoming streams of this queue manager.

    A full table forgets streams: those of the address with the most, the longest idle first. It
    keeps the streams of queue managers that this one has dialled, and all that relays have brought:
    of a stream that is forgotten, a message that comes again may be accepted twice. An address with
    made-up sources therefore displaces its own streams only.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        delivery = services.settings.delivery
        self._streams: dict[Place, IncomingStream] = {}
        self._all: dict[IncomingStream, None] = {}
        #: By the GUID of the source, the id of our queue, and the accepted sequence id.
        self._by_sequence: dict[tuple[bytes, int, int], list[IncomingStream]] = {}
        #: (source, queue id, origin) -> names in use
        self._names: dict[tuple[bytes, int, str], list[Name]] = {}
        self._by_host: dict[str, dict[IncomingStream, None]] = {}
        self._next_id = 1
        self._recent_count = 0
        self._claims = StreamClaims(services)
        self._sequence_settings = OrderAckSettings(
            timeout_s=delivery.order_ack_timeout_s,
            delay_max_s=delivery.order_ack_delay_max_s,
            at_once=delivery.acknowledge_at_once,
        )

    def connect(
        self,
        origins: Origins,
        is_relay: Callable[[str], bool],
        has_session: Callable[[bytes, str], bool],
    ) -> None:
        """Set the components that are made later.

        `is_relay` returns whether the host with an address is a relay, `has_session` whether a
        session with an origin of a queue manager is open.
        """
        self._origins = origins
        self._is_relay = is_relay
        self._claims.connect(origins, has_session)

    def all(self) -> list[IncomingStream]:
        """Return each stream once."""
        return list(self._all)

    def restore(self, row: IncomingSequenceRow, queue: LocalQueue) -> None:
        """Create the stream of a row; a sequence id that no clock can give is not kept."""
        self._next_id = max(self._next_id, row.id + 1)
        if not is_plausible(row.sequence_id, self._services.environment.time()):
            self._services.storage.batch.incoming.remove_sequences([row.id])
            return
        sequence = IncomingSequence(row.sequence_id, row.number, settings=self._sequence_settings)
        sequence.rejects = row.rejected
        name = read_name(row.name)
        stream = IncomingStream(
            row.id, row.source, queue, name, sequence, origin=row.origin, host=row.host
        )
        stream.seen_s = row.last_seen_s
        stream.contradictions, stream.last_message = row.contradictions, row.last_message
        stream.beginning = Beginning(row.first_number, row.first_message, row.first_digest)
        self._know(stream, name, row.origin)
        self._index(stream)

    def accepted(self, stream: IncomingStream, messages: Sequence[int], host: str) -> None:
        """Remember the numbers of messages just accepted in a row; old numbers are forgotten."""
        if stream.sequence_id != stream.sequence.accepted_id:
            self._index(stream)
        self._recent_count += stream.accepted(messages, host)
        if self._recent_count > RECENT_IN_ALL_MAX:
            for each in self._all:
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
        for stream in [each for each in self._all if each.queue is queue]:
            self._drop(stream)

    def forget_source(self, source: bytes) -> int:
        """Forget the blocked streams of a source, with the open batch; return how many.

        They are those that are ahead of the clock, and those of other origins than the primary one.
        The others stay: their messages may come again.
        """
        primary = self._origins.primary(source)
        now_s = self._services.environment.time()
        blocked = [
            each
            for each in self._all
            if each.source == source
            and (
                not is_plausible(each.sequence.accepted_id, now_s, ahead_s=FORGOTTEN_AHEAD_S)
                or (primary is not None and each.origin not in ("", primary))
            )
        ]
        self._forget(blocked)
        return len(blocked)

    def find(
        self,
        source: bytes,
        queue: LocalQueue,
        name: Name,
        origin: str,
        sequence_id: int,
        beginning: Beginning | None = None,
    ) -> IncomingStream | None:
        """Return the stream that a message belongs to; None: it would begin a new one.

        `beginning` is given for the first message of a sequence from a host without a key.
        """
        place = (source, queue.id, name, origin)
        stream = self._streams.get(place)
        if stream is not None and stream.sequence.accepted_id == sequence_id:
            return stream
        for each in self._alike(source, queue, sequence_id):
            if not each.origin and stream is not None and stream.sequence.accepted_id > sequence_id:
                continue  # its source has given that sequence up
            if beginning is not None and each.beginning.contradicts(beginning):
                continue  # another program has begun a sequence with that id before
            if self._claims.judge(source, each.origin, origin) is Claim.CONTINUES:
                if stream is None:  # another spelling of its name, or another origin
                    self._continue(each, name, origin)
                return each
        return self._of_unknown_origin(place, sequence_id) or stream

    def is_held(
        self,
        source: bytes,
        queue: LocalQueue,
        origin: str,
        sequence_id: int,
        beginning: Beginning | None = None,
    ) -> bool:
        """Return whether a sequence that this origin has not sent before may be that of another.

        Nothing of its message is accepted then, because it may have been accepted before.
        """
        self._claims.missed(source, origin)
        return any(
            self._claims.judge(source, each.origin, origin) is Claim.HELD
            for each in self._by_sequence.get((source, queue.id, sequence_id), ())
            if beginning is None or not each.beginning.contradicts(beginning)
        )

    def may_be_old(self, source: bytes, queue: LocalQueue, name: Name, sequence_id: int) -> bool:
        """Return whether a stream of an unknown origin of a source has a later sequence.

        The messages of an earlier one may have been accepted before.
        """
        return any(
            stream.sequence.accepted_id > sequence_id
            for known in (name, NOT_KNOWN)
            if (stream := self._streams.get((source, queue.id, known, ""))) is not None
        )

    def limit(self, source: bytes, queue: LocalQueue, origin: str) -> Limit | None:
        """Return the limit that prevents a further stream, or None; a full table makes room."""
        if len(self._names.get((source, queue.id, origin), ())) >= NAMES_MAX:
            reason = f"too many names of {queue.name} by one source"
            return Limit("too_many_names_of_a_queue", NAMES_MAX, reason)
        if len(self._all) >= STREAMS_MAX and not self._make_room():
            reason = "too many sources of transactional messages"
            return Limit("too_many_streams", STREAMS_MAX, reason)
        return None

    def begin(
        self, source: bytes, queue: LocalQueue, name: Name, origin: str, host: str
    ) -> IncomingStream:
        """Begin a stream, with its row in the open batch."""
        sequence = IncomingSequence(settings=self._sequence_settings)
        stream = IncomingStream(
            self._next_id, source, queue, name, sequence, origin=origin, host=host
        )
        self._next_id += 1
        self._know(stream, name, origin)
        self._services.storage.batch.incoming.add_sequence(
            NewSequence(
                stream.id,
                source,
                queue.id,
                write_name(name),
                int(self._services.environment.time()),
                origin,
                host,
            )
        )
        return stream

    # Within.

    def _alike(self, source: bytes, queue: LocalQueue, sequence_id: int) -> list[IncomingStream]:
        """Return the streams with a sequence id, that of the primary origin first: a program that
        has begun a stream with the id of another one does not get its messages."""
        found = self._by_sequence.get((source, queue.id, sequence_id), [])
        if len(found) > 1:
            primary = self._origins.primary(source)
            return sorted(found, key=lambda each: each.origin != primary)
        return found

    def _continue(self, stream: IncomingStream, name: Name, origin: str) -> None:
        """Let a stream be found by another spelling of its name, or for another origin.

        The row gets the name of a stream that had none, and the new origin: a later sequence of it
        continues the stream too.
        """
        if len(self._names.get((stream.source, stream.queue.id, origin), ())) >= NAMES_MAX:
            return
        self._know(stream, name, origin)
        stored_name = name if stream.name == NOT_KNOWN else stream.name
        stored_origin = origin or stream.origin
        if (stored_name, stored_origin) == (stream.name, stream.origin):
            return
        place = (stream.source, stream.queue.id, stored_name, stored_origin)
        if self._streams.get(place, stream) is not stream:
            return  # another row is there
        stream.name, stream.origin = stored_name, stored_origin
        self._know(stream, *place[2:])
        for former in [each for each in stream.places if not _is_as_definite(each, place)]:
            stream.places.remove(former)
            self._remove_place(former)
        self._services.storage.batch.incoming.set_place(
            stream.id, write_name(stored_name), stored_origin
        )

    def _of_unknown_origin(self, place: Place, sequence_id: int) -> IncomingStream | None:
        """Return the stream of a source before its origin was known; for the primary one only.

        An earlier sequence may be one that an older version accepted by another name, or for
        another origin. While that is open it does not begin a new stream, and is rejected.
        """
        source, queue_id, name, origin = place
        if origin not in ("", self._origins.primary(source)):
            return None
        own = self._streams.get(place)
        for known in (name, NOT_KNOWN):
            stream = self._streams.get((source, queue_id, known, ""))
            if stream is None or stream is own:
                continue
            accepted_id = stream.sequence.accepted_id
            if own is not None and own.sequence.accepted_id >= accepted_id:
                continue
            if own is None and accepted_id < sequence_id:
                self._continue(stream, name, origin)
            return stream
        return None

    def _know(self, stream: IncomingStream, name: Name, origin: str) -> None:
        place = (stream.source, stream.queue.id, name, origin)
        if place in self._streams:
            return
        self._streams[place] = stream
        stream.places.append(place)
        self._names.setdefault((stream.source, stream.queue.id, origin), []).append(name)
        if stream not in self._all:
            self._all[stream] = None
            self._by_host.setdefault(_owner(stream), {})[stream] = None

    def _index(self, stream: IncomingStream) -> None:
        """Let a stream be found by the sequence id that it has accepted."""
        self._unindex(stream)
        stream.sequence_id = stream.sequence.accepted_id
        if stream.sequence_id:
            at = (stream.source, stream.queue.id, stream.sequence_id)
            self._by_sequence.setdefault(at, []).append(stream)

    def _unindex(self, stream: IncomingStream) -> None:
        if stream.sequence_id:
            at = (stream.source, stream.queue.id, stream.sequence_id)
            of_sequence = self._by_sequence[at]
            of_sequence.remove(stream)
            if not of_sequence:
                del self._by_sequence[at]

    def _drop(self, stream: IncomingStream) -> None:
        """Remove a stream from memory."""
        self._unindex(stream)
        stream.sequence_id = 0
        for place in stream.places:
            self._remove_place(place)
        stream.places.clear()
        del self._all[stream]
        of_host = self._by_host[_owner(stream)]
        del of_host[stream]
        if not of_host:
            del self._by_host[_owner(stream)]

    def _remove_place(self, place: Place) -> None:
        del self._streams[place]
        source, queue_id, name, origin = place
        names = self._names[source, queue_id, origin]
        names.remove(name)
        if not names:
            del self._names[source, queue_id, origin]

    def _forget(self, streams: list[IncomingStream]) -> None:
        """Delete streams and their rows with the open batch."""
        for stream in streams:
            self._drop(stream)
            self._recent_count -= stream.forget_recent()
            stream.is_forgotten = True
            if stream.return_path is not None:
                stream.return_path.streams.pop(stream, None)
                stream.return_path.owed_order_acks.pop(stream, None)
                stream.return_path = None
        self._services.storage.batch.incoming.remove_sequences([each.id for each in streams])

    def _make_room(self) -> bool:
        """Forget idle streams of the address that has the most; return whether there were any."""
        # Streams of an older version have no host; they are forgotten if there are no others.
        hosts = sorted(self._by_host, key=lambda host: (host != "", len(self._by_host[host])))
        for host in reversed(hosts):
            idle = [each for each in self._by_host[host] if self._may_forget(each)]
            if idle:
                idle.sort(key=_idle_order)
                count = max(1, min(len(idle) // 2, STREAMS_MAX // FORGOTTEN_PART))
                self._forget(idle[:count])
                self._services.log_limited("streams_forgotten", host, address=host, count=count)
                return True
        return False

    def _may_forget(self, stream: IncomingStream) -> bool:
        """Return whether a stream is of no queue manager that is known, and not in use now."""
        sequence = stream.sequence
        return (
            (sequence.accepted_id, sequence.accepted_number) == sequence.durable
            and not self._origins.is_dialled(stream.source, stream.origin)
            and not self._is_relay(stream.host)
        )


def _idle_order(stream: IncomingStream) -> tuple[bool, float, int]:
    """Return the key by which the streams that were idle for the longest time come first."""
    seen = stream.sequence.last_seen
    return seen is not None, stream.seen_s if seen is None else seen, stream.id


def _is_as_definite(place: Place, of: Place) -> bool:
    """Return whether a place is as definite as another one: it has a name and an origin too."""
    return (place[2] != NOT_KNOWN or of[2] == NOT_KNOWN) and bool(place[3] or not of[3])


def _owner(stream: IncomingStream) -> str:
    """Return the owner of a stream in the full table: the address that it was begun from."""
    return str(owner_of(stream.host).name)
