"""The recorder of the event log: each change of a message's state is recorded in its commit.

    group     returns the event of the open batch with the given header, to add messages to; it is
              for the hot paths
    record    adds packets to such events, and makes the batch be written
    for_unit  returns a value that makes the events of a unit of work, which learns only in its
              commit what happens: `storage.tables.events.insert(db, events.of_packets(...))`

Messages with the same header share one event, if they are recorded within `MOMENT_S`.  Events that
change nothing on disk (a transmission, a duplicate) cause no commit: they wait for the next commit,
for at most `DELAY_S`.  A crash loses the waiting events and no others.

docs/events.md describes events for readers outside this program.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from qmd.events.header import IDENTITY, IDENTITY_OFFSET, EventHeader, Kind
from qmd.events.host_shares import HostShares
from qmd.events.unit_events import LABELLED, UnitEvents, label_of, new_event

if TYPE_CHECKING:
    from protocol import UserMessage
    from qmd.events.transmission import Sender, Transmission
    from qmd.runtime.services import Services
    from storage.engine.batch import Batch
    from storage.tables.events import Event

DELAY_S = 1.0  # after which events that change nothing on disk are written at the latest
MOMENT_S = 0.05  # the longest time that one event covers
#: Events per second of each kind that peers can cause at will: further ones are only counted.
FLOOD_MESSAGES = 1000

_RANK = {kind: rank for rank, kind in enumerate(Kind)}

#: The lists that an event has besides its numbers.  Messages with different lists cannot share an
#: event, because each list is empty or as long as the numbers.
_SIZES, _PLACES, _SIZES_AND_PLACES, _NONE, _COPIES, _COPIES_IN_SEQUENCES = range(1, 7)
NO_LISTS = _NONE
PLACES = _PLACES

_Key = tuple[EventHeader, bytes, int]  # header, source, lists


class Recorder:
    """The recorder: it makes events from packets and adds them to the open batch."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.enabled = services.settings.events.enabled
        self._batch: Batch | None = None  # the batch of the events in `_groups`
        self._groups: dict[_Key, Event] = {}
        self._groups_until_s = 0.0
        self._rank = 0  # the highest rank in `_groups`
        self._floods: dict[str, _Flood] = {}
        self.shares = HostShares(services.settings.events.size_bytes)

    def group(self, header: EventHeader, source: bytes, *, lists: int = 0) -> Event:
        """Return the event of the open batch with this header and source.

        The caller adds its messages to the lists of the event in the same turn of the loop.  The
        event causes no commit: it is written with the next one, or after `DELAY_S`.  Call this only
        if `enabled`.  Callers that add to different lists pass different values of `lists`.
        """
        batch = self._services.storage.batch
        now = self._services.loop.time()
        if batch is not self._batch or now > self._groups_until_s:
            self._batch = batch
            self._groups.clear()
            self._rank = 0
            self._groups_until_s = now + MOMENT_S
        key = (header, source, lists)
        event = self._groups.get(key)
        if event is None:
            event = self._begin(batch, key, now)
        return event

    def shared(
        self,
        host: str,
        header: EventHeader,
        source: bytes,
        *,
        lists: int = _SIZES,
        events: int = 1,
    ) -> EventHeader | None:
        """Return the header for an event that a host can cause at will; None: it is only counted.

        `events` is the number of events that its message causes. The reason of the returned header
        has the number of the events that were only counted before. docs/consequences.md
        """
        is_new = (header, source, lists) not in self._groups
        before = self.shares.take(
            host, header, self._services.loop.time(), is_new=is_new, events=events
        )
        return None if before is None else _after(header, before)

    def renew(self, kind: Kind) -> None:
        """Record further messages of this kind in new events, behind all present ones."""
        self._groups = {key: event for key, event in self._groups.items() if key[0].kind != kind}

    def record(
        self,
        header: EventHeader,
        packets: Sequence[bytes],
        *,
        batch: Batch | None = None,
        places: Sequence[int] = (),
        lazily: bool = False,
    ) -> None:
        """Record `packets` with the open batch; `places` are their lookup ids, or nothing.

        With `lazily` the batch is not made to be written: the caller does that, or `DELAY_S` pass.
        `batch` can only be the open one.
        """
        if not self.enabled or not packets:
            return
        assert batch is None or batch is self._services.storage.batch
        unpack = IDENTITY.unpack_from
        lists = _SIZES_AND_PLACES if places else _SIZES
        start = 0
        sources, numbers = zip(
            *[unpack(packet, IDENTITY_OFFSET) for packet in packets], strict=True
        )
        is_one_source = sources.count(sources[0]) == len(packets)
        while start < len(packets):  # for each run of messages of one source
            source, end = sources[start], len(packets) if is_one_source else start + 1
            while end < len(packets) and sources[end] == source:
                end += 1
            event, run = self.group(header, source, lists=lists), packets[start:end]
            event.numbers += numbers[start:end]
            event.sizes += map(len, run)
            event.places += places[start:end]
            if header.kind in LABELLED:
                event.labels += map(label_of, run)
            start = end
        if not lazily:
            self._services.storage.batch.write_soon()

    def record_messages(
        self,
        header: EventHeader,
        source: bytes,
        numbers: list[int],
        sizes: list[int],
        places: list[int],
    ) -> None:
        """Record messages of one source, given as parallel lists; the batch is not made to be
        written, as with `lazily` of `record`."""
        if self.enabled:
            event = self.group(header, source, lists=_SIZES_AND_PLACES)
            event.numbers += numbers
            event.sizes += sizes
            event.places += places

    def for_unit(self) -> UnitEvents:
        """Return a value with which a unit of work makes its events."""
        return UnitEvents(self.enabled, int(self._services.environment.time() * 1000))

    def one(self, header: EventHeader, message: UserMessage) -> None:
        """Record a message without a packet; the caller makes the batch be written."""
        if self.enabled:
            event = self.group(header, message.user.source_queue_manager, lists=_NONE)
            event.numbers.append(message.user.message_number)

    def transmitted(self, queue: Sender, done: Transmission) -> None:
        """Record messages that `queue` has handed to its session."""
        for handed, kind, reason in (
            (done.first, Kind.TRANSMITTED, ""),
            (done.again, Kind.RETRANSMITTED, queue.why_again),
        ):
            if not handed.numbers:
                continue
            if handed.sources and self.enabled:
                header = EventHeader(kind, queue=queue.destination, peer=queue.peer, reason=reason)
                for source, number, size in zip(
                    handed.sources, handed.numbers, handed.sizes, strict=True
                ):
                    event = self.group(header, source)
                    event.numbers.append(number)
                    event.sizes.append(size)
            elif self.enabled:
                is_transactional = any(handed.positions)
                header = EventHeader(
                    kind,
                    queue=queue.destination,
                    peer=queue.peer,
                    sequence_id=queue.sequence_id if is_transactional else 0,
                    reason=reason,
                )
                event = self.group(header, self._services.id)
                event.numbers += handed.numbers
                event.sizes += handed.sizes
                if is_transactional:
                    event.positions += handed.positions

    def provoked(
        self,
        header: EventHeader,
        source: bytes,
        number: int,
        *,
        place: int | None = None,
        host: str = "",
    ) -> None:
        """Record an event that peers can cause at will and that changes nothing on disk.

        It takes from the share of `host`, if another host causes it. At most `FLOOD_MESSAGES` of
        each kind are recorded per second; the first one of the next second has the number of the
        others in its reason.
        """
        if not self.enabled:
            return
        flood = self._floods.get(header.kind)
        now = self._services.loop.time()
        if flood is None or now > flood.until_s:
            left_out = 0 if flood is None else flood.left_out
            flood = self._floods[header.kind.value] = _Flood(now + 1.0)
            header = _after(header, left_out)
        elif flood.recorded >= FLOOD_MESSAGES:
            flood.left_out += 1
            return
        flood.recorded += 1
        if host:
            listed = self.shared(host, header, source, lists=_NONE if place is None else _PLACES)
            if listed is None:
                return
            header = listed
        event = self.group(header, source, lists=_NONE if place is None else _PLACES)
        event.numbers.append(number)
        if place is not None:
            event.places.append(place)

    def started(self, bytes_there: int, run: str) -> None:
        """Record the start of `run`, before all later events.

        `bytes_there` is the size of all queues.
        """
        if self.enabled:
            was_clean = self._services.storage.recovery.was_clean
            reason = "after a stop" if was_clean else "after a crash"
            event = self.group(
                EventHeader(Kind.STARTED, peer=run, reason=reason), self._services.id
            )
            event.bytes = bytes_there
            self._services.storage.batch.write_soon()

    def met(self, run: str, host: str) -> bool:
        """Record a session with `run` at the address `host`; False: its host has no share left."""
        if not self.enabled:
            return True
        header = EventHeader(Kind.MET, peer=run)
        listed = self.shared(host, header, self._services.id, lists=_NONE)
        if listed is not None:
            self.group(listed, self._services.id, lists=_NONE)
        return listed is not None

    def restored(self, at_ms: int) -> None:
        """Record, before all later events, that the folder was restored from a backup at `at_ms`.

        Events of the history that this one replaces have the same numbers of blocks as later ones.
        """
        if self.enabled:
            when = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")
            reason = f"a backup was restored at {when.removesuffix('+00:00')}Z"
            self.group(EventHeader(Kind.RESTORED, reason=reason), self._services.id)

    def stop(
        self,
        in_memory: Iterable[tuple[str, list[tuple[int, bytes]]]],
        outgoing: Iterable[tuple[str, list[bytes]]],
    ) -> None:
        """Record that express messages are lost, at a stop.

        `in_memory` has the names of local queues with the places and packets of their messages,
        `outgoing` the destinations of outgoing queues with the packets of theirs.
        """
        if not self.enabled:
            return
        reason = "it was an express message, and its queue manager stopped"
        for queue, messages in in_memory:
            self.record(
                EventHeader(Kind.LOST, queue=queue, reason=reason),
                [packet for _, packet in messages],
                places=[place for place, _ in messages],
            )
        for destination, packets in outgoing:
            self.record(EventHeader(Kind.LOST, queue=destination, reason=reason), packets)

    def of_copies(self, header: EventHeader, *, in_sequences: bool) -> Event:
        """Return the event of the open batch for copies of our messages to many queues.

        The caller also adds to its `queues` and `sequence_ids`, and to its `positions` if the
        copies are `in_sequences`.
        """
        lists = _COPIES_IN_SEQUENCES if in_sequences else _COPIES
        return self.group(header, self._services.id, lists=lists)

    def _begin(self, batch: Batch, key: _Key, now: float) -> Event:
        header, source, _ = key
        rank = _RANK[header.kind]
        if rank < self._rank:
            # Later events of these messages must stand behind this one in the log.
            self._groups = {
                other: event
                for other, event in self._groups.items()
                if _RANK[other[0].kind] <= rank
            }
        self._rank = rank
        at_ms = int(self._services.environment.time() * 1000)
        event = self._groups[key] = new_event(header, source, at_ms)
        batch.mention(event)
        if batch.load.is_empty:
            self._services.timers.at(now + DELAY_S, self, _write_now)
        return event

    def _write(self) -> None:
        batch = self._services.storage.batch
        if batch.mentions:
            batch.write_soon()


class _Flood:
    """The events of one kind within one second."""

    __slots__ = ("left_out", "recorded", "until_s")

    def __init__(self, until_s: float) -> None:
        self.until_s = until_s
        self.recorded = 0
        self.left_out = 0


def _after(header: EventHeader, left_out: int) -> EventHeader:
    """Return the header of an event after so many that are not listed."""
    if not left_out:
        return header
    reason = f"{header.reason} ({left_out} more before this one are not listed)".strip()
    return header._replace(reason=reason)


def add_correlation(event: Event, correlation: bytes, messages: int = 1) -> None:
    """Give the last `messages` messages of `event` this correlation id."""
    missing = len(event.numbers) - messages - len(event.correlations)
    event.correlations += [b""] * missing + [correlation] * messages


def add_trace(event: Event, trace: bytes, messages: int = 1) -> None:
    """Give the last `messages` messages of `event` this trace context."""
    missing = len(event.numbers) - messages - len(event.traces)
    event.traces += [b""] * missing + [trace] * messages


def _write_now(recorder: Recorder) -> None:
    recorder._write()
