"""The flight recorder: whatever becomes of a message is told in the commit that makes it so.

    group     the event of the open batch that tells the same, to be added to: for the hot paths
    record    the same for packets, and it makes the batch be written
    events    the same as values, for a unit that learns only in its commit what happens:
              `storage.tables.events.insert(db, recorder.events(...))`

Events that tell the same of many messages are one, as long as they tell of one moment.  What
changes nothing on disk (a transmission, a duplicate) causes no commit: it waits for the next one,
or for a second at most.  A crash forgets what waited, and nothing else.

docs/events.md describes events for readers outside this program.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from protocol import parse_user_message
from protocol.errors import ProtocolError
from storage.tables.events import Event, mark_shipped, size_bytes
from storage.tables.events import trim as trim_events

if TYPE_CHECKING:
    import sqlite3

    from protocol import UserMessage
    from qmd.events.transmission import Sender, Transmission
    from qmd.runtime.services import Services
    from storage.engine.batch import Batch

DELAY_S = 1.0  # until what changes nothing on disk is written at the latest
MOMENT_S = 0.05  # that one event tells of
FLOOD_MESSAGES = 1000  # a second, of each kind that others can provoke at will, are told one by one
TRIMMED_BLOCKS = 256  # in one commit
SHORT_BYTES = 4 * 1024 * 1024  # of the log stay, however short the disk is of room

#: At a packet's 16th byte: SourceQueueManager, and MessageId behind TimeToBeReceived, SentTime and
#: QueueManagerAddress.  [MS-MQMQ] 2.2.19.2
_IDENTITY = struct.Struct("<16s24xI")
_IDENTITY_OFFSET = 16

#: By their numbers in frames.py.
DELIVERIES = ("express", "recoverable", "transactional")

#: Source, number, place, size: a message of which a unit tells.
Told = tuple[bytes, int, int, int]


class Kind(enum.StrEnum):
    """What can happen.  Names are part of the schema of events: they stay.

    In the order of a message's life: what is told of one message in one batch is told so.
    """

    STARTED = "started"  # the daemon: express messages from before are gone
    DISK_FULL = "disk_full"  # new messages are refused from now on
    DISK_HAS_ROOM = "disk_has_room"  # and are taken again; the reason says for how long it was full
    SENT = "sent"  # taken over from an application, into a queue here or an outgoing queue
    IMPORTED = "imported"
    STORED = "stored"  # an express message is on the disk now, because it is reserved
    TRANSMITTED = "transmitted"
    RETRANSMITTED = "retransmitted"
    OUT_OF_ORDER = "out_of_order"  # came too early, and will be sent again
    RELAYED = "relayed"  # from another computer, for a third one, into an outgoing queue here
    ACCEPTED = "accepted"  # from another computer, into a queue here
    DUPLICATE = "duplicate"  # came again, and was not kept again
    REFUSED = "refused"  # came, and is not kept in its queue; the class and the reason say why
    SESSION_ACKNOWLEDGED = "session_acknowledged"  # a plain one is the other computer's now
    ORDER_ACKNOWLEDGED = "order_acknowledged"  # a transactional one is
    AWAITING = "awaiting"  # and is kept until an application there has received it
    FINAL_ACK_RECEIVED = "final_ack_received"  # a negative one: it will not be received there
    CONFIRMED = "confirmed"  # an application elsewhere has received it
    UNCONFIRMED = "unconfirmed"  # nobody said so within the interval
    LATE_CONFIRMATION = "late_confirmation"  # somebody did after that
    ABORTED = "aborted"  # was to be received, and is back at its place
    MOVED = "moved"
    RECEIVED = "received"  # by an application: it has left its queue
    EXPIRED = "expired"  # its time was over
    UNROUTABLE = "unroutable"  # was to be passed on, and no way leads on
    PURGED = "purged"
    QUEUE_DELETED = "queue_deleted"
    REJECTED = "rejected"  # by its receiving application
    REQUEUED = "requeued"  # sent again as another message
    DAMAGED = "damaged"  # is not what was stored, and was set aside
    LOST = "lost"  # an express message whose process has ended
    JOURNALED = "journaled"  # a copy was kept in `to_queue`
    JOURNAL_FULL = "journal_full"  # no copy was kept: its quota is reached
    DEAD_LETTERED = "dead_lettered"  # is in `to_queue` now
    DISCARDED = "discarded"  # ended, and nobody wanted a dead letter
    FINAL_ACK_SENT = "final_ack_sent"
    ACKNOWLEDGED = "acknowledged"  # an acknowledgment message went to `to_queue`
    UNACKNOWLEDGED = "unacknowledged"  # one was asked for, and nobody takes it at `to_queue`
    REPORTED = "reported"  # a report message went to `to_queue`


#: Who looks into dead letters looks for what they were about; of others nobody asks so often that
#: each should be parsed for it.
_LABELLED = frozenset((Kind.DEAD_LETTERED, Kind.DISCARDED))

_RANK = {kind.value: rank for rank, kind in enumerate(Kind)}

_Key = tuple[str, bytes, str, str, int, int, str, str, str, str, int]
# Which lists an event has, beside its numbers.
_SIZES, _PLACES, _SIZES_AND_PLACES, _NONE, _COPIES, _COPIES_IN_SEQUENCES = range(1, 7)
NO_LISTS = _NONE


class Recorder:
    """Builds events from packets and gives them to the open batch."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.enabled = services.settings.events.enabled
        self.short_bytes = SHORT_BYTES
        self._batch: Batch | None = None  # whose events may be added to
        self._groups: dict[_Key, Event] = {}
        self._groups_until_s = 0.0
        self._rank = 0  # no group has a higher one
        self._floods: dict[str, _Flood] = {}

    def group(
        self,
        kind: Kind,
        source: bytes,
        *,
        queue: str = "",
        peer: str = "",
        sequence_id: int = 0,
        message_class: int = 0,
        reason: str = "",
        to_queue: str = "",
        transaction: str = "",
        delivery: str = "",
        lists: int = 0,
    ) -> Event:
        """The event of the open batch that tells this; add to its lists in this turn of the loop.

        It causes no commit: what it tells of does, or `DELAY_S` pass.  Only when `enabled`.
        Whoever adds to other lists of the same event than somebody else says so with `lists`.
        """
        batch = self._services.storage.batch
        now = self._services.loop.time()
        if batch is not self._batch or now > self._groups_until_s:
            self._batch = batch
            self._groups.clear()
            self._rank = 0
            self._groups_until_s = now + MOMENT_S
        key = (
            kind.value,
            source,
            queue,
            peer,
            sequence_id,
            message_class,
            reason,
            to_queue,
            transaction,
            delivery,
            lists,
        )
        event = self._groups.get(key)
        if event is None:
            event = self._begin(batch, key, now)
        return event

    def renew(self, kind: Kind) -> None:
        """What is told of this kind from here on stands behind all that was told until now."""
        self._groups = {key: event for key, event in self._groups.items() if key[0] != kind.value}

    def record(
        self,
        kind: Kind,
        packets: Sequence[bytes],
        *,
        batch: Batch | None = None,
        queue: str = "",
        peer: str = "",
        places: Sequence[int] = (),
        message_class: int = 0,
        reason: str = "",
        to_queue: str = "",
        transaction: str = "",
        lazily: bool = False,
    ) -> None:
        """Tell of `packets` with the open batch; `lazily` it waits for somebody else's act.

        `batch` can only be the open one.
        """
        if not self.enabled or not packets:
            return
        assert batch is None or batch is self._services.storage.batch
        unpack = _IDENTITY.unpack_from
        source, event = b"", None
        for index, packet in enumerate(packets):
            of, number = unpack(packet, _IDENTITY_OFFSET)
            if event is None or of != source:
                source = of
                event = self.group(
                    kind,
                    of,
                    queue=queue,
                    peer=peer,
                    message_class=message_class,
                    reason=reason,
                    to_queue=to_queue,
                    transaction=transaction,
                    lists=_SIZES_AND_PLACES if places else _SIZES,
                )
            event.numbers.append(number)
            event.sizes.append(len(packet))
            if places:
                event.places.append(places[index])
            if kind in _LABELLED:
                event.labels.append(_label_of(packet))
        if not lazily:
            self._services.storage.batch.write_soon()

    def record_told(
        self,
        kind: Kind,
        source: bytes,
        numbers: list[int],
        sizes: list[int],
        places: list[int],
        *,
        queue: str,
    ) -> None:
        """`record`, lazily, for many messages of one source that were looked at before."""
        if self.enabled:
            event = self.group(kind, source, queue=queue, lists=_SIZES_AND_PLACES)
            event.numbers += numbers
            event.sizes += sizes
            event.places += places

    def events(
        self,
        kind: Kind,
        packets: Sequence[bytes],
        *,
        queue: str = "",
        peer: str = "",
        places: Sequence[int] = (),
        message_class: int = 0,
        reason: str = "",
        to_queue: str = "",
        transaction: str = "",
    ) -> list[Event]:
        """One event for each source among `packets`; `places` are their lookup ids, or nothing."""
        told = self.told(
            kind,
            (
                (*identity_of(packet), places[index] if places else -1, len(packet))
                for index, packet in enumerate(packets)
            ),
            queue=queue,
            peer=peer,
            message_class=message_class,
            reason=reason,
            to_queue=to_queue,
            transaction=transaction,
        )
        if kind in _LABELLED:
            by_source = {event.source: event for event in told}
            for packet in packets if told else ():
                by_source[identity_of(packet)[0]].labels.append(_label_of(packet))
        return told

    def told(
        self,
        kind: Kind,
        messages: Iterable[Told],
        *,
        queue: str = "",
        peer: str = "",
        message_class: int = 0,
        reason: str = "",
        to_queue: str = "",
        transaction: str = "",
    ) -> list[Event]:
        """The same for messages that are known by source, number, place (or -1) and size."""
        if not self.enabled:
            return []
        at_ms = int(self._services.environment.time() * 1000)
        by_source: dict[bytes, Event] = {}
        for source, number, place, size in messages:
            event = by_source.get(source)
            if event is None:
                event = by_source[source] = Event(
                    kind=kind.value,
                    at_ms=at_ms,
                    source=source,
                    numbers=[],
                    queue=queue,
                    peer=peer,
                    message_class=message_class,
                    reason=reason,
                    to_queue=to_queue,
                    transaction=transaction,
                )
            event.numbers.append(number)
            event.sizes.append(size)
            if place >= 0:
                event.places.append(place)
        return list(by_source.values())

    def one(
        self,
        kind: Kind,
        message: UserMessage,
        *,
        peer: str = "",
        message_class: int = 0,
        to_queue: str = "",
        reason: str = "",
    ) -> None:
        """Tell of a message whose packet nobody has; the batch is written for another reason."""
        if self.enabled:
            event = self.group(
                kind,
                message.user.source_queue_manager,
                peer=peer,
                message_class=message_class,
                reason=reason,
                to_queue=to_queue,
                lists=_NONE,
            )
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
                for source, number, size in zip(
                    handed.sources, handed.numbers, handed.sizes, strict=True
                ):
                    event = self.group(
                        kind,
                        source,
                        queue=queue.destination,
                        peer=queue.peer,
                        reason=reason,
                    )
                    event.numbers.append(number)
                    event.sizes.append(size)
            elif self.enabled:
                is_transactional = any(handed.positions)
                event = self.group(
                    kind,
                    self._services.id,
                    queue=queue.destination,
                    peer=queue.peer,
                    sequence_id=queue.sequence_id if is_transactional else 0,
                    reason=reason,
                )
                event.numbers += handed.numbers
                event.sizes += handed.sizes
                if is_transactional:
                    event.positions += handed.positions

    def provoked(
        self,
        kind: Kind,
        source: bytes,
        number: int,
        *,
        queue: str = "",
        peer: str = "",
        place: int | None = None,
        reason: str = "",
    ) -> None:
        """Tell of something that others can do at will and that changes nothing on disk.

        So many a second, and how many more there were.
        """
        if not self.enabled:
            return
        flood = self._floods.get(kind.value)
        now = self._services.loop.time()
        if flood is None or now > flood.until_s:
            left_out = 0 if flood is None else flood.left_out
            flood = self._floods[kind.value] = _Flood(now + 1.0)
            if left_out:
                reason = f"{reason} ({left_out} more before this one are not listed)".strip()
        elif flood.told >= FLOOD_MESSAGES:
            flood.left_out += 1
            return
        flood.told += 1
        lists = _NONE if place is None else _PLACES
        event = self.group(kind, source, queue=queue, peer=peer, reason=reason, lists=lists)
        event.numbers.append(number)
        if place is not None:
            event.places.append(place)

    def started(self, bytes_there: int) -> None:
        """Record a start, before all that follows; `bytes_there` are in all queues."""
        if self.enabled:
            was_clean = self._services.storage.recovery.was_clean
            event = self.group(
                Kind.STARTED,
                self._services.id,
                reason="after a stop" if was_clean else "after a crash",
            )
            event.bytes = bytes_there
            self._services.storage.batch.write_soon()

    # The log is kept by size and age.

    async def forget_old(self) -> None:
        """Drop the oldest events, beyond what is to be kept: some at a time, everybody waits."""
        kept = self._services.settings.events
        # Whoever sets the wall clock to another year does not mean the history.
        now = min(self._services.environment.time(), self._services.clock.now)
        trim = partial(
            trim_events,
            size_max=kept.size_bytes,
            before_ms=int((now - kept.age_s) * 1000),
            blocks_max=TRIMMED_BLOCKS,
            shipped_only=kept.keep_unshipped,
        )
        while await self._services.storage.batch.run(trim, can_wait=True) == TRIMMED_BLOCKS:
            pass

    async def mark_shipped(self, block: int) -> int:
        """The log is kept elsewhere up to and with this block; the highest that ever was."""
        return await self._services.storage.batch.run(partial(mark_shipped, block=block))

    async def make_room(self) -> None:
        """One commit on a disk that is short of room: an eighth of the log goes, for messages.

        A commit is needed even if there is nothing to drop: it gives back what was freed.
        """

        def drop(db: sqlite3.Connection) -> None:
            size_max = max(size_bytes(db) * 7 // 8, self.short_bytes)
            trim_events(db, size_max=size_max, before_ms=0, blocks_max=TRIMMED_BLOCKS)

        await self._services.storage.batch.run(drop, can_wait=True)

    def stop(
        self,
        in_memory: Iterable[tuple[str, list[tuple[int, bytes]]]],
        on_the_way: Iterable[tuple[str, list[bytes]]],
    ) -> None:
        """Record that express messages are lost: of queues (place and packet of each), and those
        for destinations elsewhere (their packets)."""
        if not self.enabled:
            return
        reason = "it was an express message, and its queue manager stopped"
        for queue, messages in in_memory:
            self.record(
                Kind.LOST,
                [packet for _, packet in messages],
                queue=queue,
                places=[place for place, _ in messages],
                reason=reason,
            )
        for destination, packets in on_the_way:
            self.record(Kind.LOST, packets, queue=destination, reason=reason)

    def of_copies(
        self, kind: Kind, *, transaction: str, delivery: str, in_sequences: bool
    ) -> Event:
        """As `group`, for copies of messages in many queues: its `queues` and `sequence_ids` are to
        be added to as well, and its `positions`, if they are `in_sequences`."""
        return self.group(
            kind,
            self._services.id,
            transaction=transaction,
            delivery=delivery,
            lists=_COPIES_IN_SEQUENCES if in_sequences else _COPIES,
        )

    def _begin(self, batch: Batch, key: _Key, now: float) -> Event:
        kind = key[0]
        rank = _RANK[kind]
        if rank < self._rank:
            # Whatever happens to these messages later on must be told behind this.
            self._groups = {
                other: event for other, event in self._groups.items() if _RANK[other[0]] <= rank
            }
        self._rank = rank
        event = self._groups[key] = Event(
            kind=kind,
            at_ms=int(self._services.environment.time() * 1000),
            source=key[1],
            numbers=[],
            queue=key[2],
            peer=key[3],
            sequence_id=key[4],
            message_class=key[5],
            reason=key[6],
            to_queue=key[7],
            transaction=key[8],
            delivery=key[9],
        )
        batch.mention(event)
        if batch.load.is_empty:
            self._services.timers.at(now + DELAY_S, self, _write_now)
        return event

    def _write(self) -> None:
        batch = self._services.storage.batch
        if batch.mentions:
            batch.write_soon()


class _Flood:
    """What others do at will, in one second."""

    __slots__ = ("left_out", "told", "until_s")

    def __init__(self, until_s: float) -> None:
        self.until_s = until_s
        self.told = 0
        self.left_out = 0


def identity_of(packet: bytes) -> tuple[bytes, int]:
    """The queue manager that gave the message its number, and the number."""
    source, number = _IDENTITY.unpack_from(packet, _IDENTITY_OFFSET)
    return source, number


def bear_correlation(event: Event, correlation: bytes, messages: int = 1) -> None:
    """So many messages, those that `event` was given last, bear this correlation id."""
    missing = len(event.numbers) - messages - len(event.correlations)
    event.correlations += [b""] * missing + [correlation] * messages


def _label_of(packet: bytes) -> str:
    try:
        label = parse_user_message(packet).properties.label
    except ProtocolError:
        return ""
    return label.decode("utf-16-le", "replace").rstrip("\0")


def _write_now(recorder: Recorder) -> None:
    recorder._write()
