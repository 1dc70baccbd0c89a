"""Messages that will not be delivered: off their outgoing queue, with a reason, in one commit.

A message dies because its time is over or because its destination has refused it
for good.  While its removal is being committed nothing that follows it in its
sequence is sent, because that is linked around it; and an acknowledgment that
arrives meanwhile does not count it a second time.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import structlog

from protocol import parse_user_message, patch_class
from protocol.message_class import MessageClass
from qmd.control_protocol.messages import StoredMessage
from qmd.core.disposition import consequences, reason_text
from qmd.core.packet_fields import (
    has_admin_queue,
    is_kept_as_dead,
    is_transactional,
    wants_dead_letter,
    wants_final_ack,
)
from qmd.core.packet_fields import message_number as number_of
from qmd.events.recorder import Kind
from qmd.message.shared_packet import cut
from qmd.outcomes.dead_letter import UNWANTED
from qmd.queues.outgoing_queue import TRANSACTIONAL_FIRST, InFlight, OutgoingQueue
from storage.tables import awaiting as awaiting_rows
from storage.tables import events as event_rows
from storage.tables import messages as message_rows
from storage.tables import outgoing as outgoing_rows
from storage.tables import owed as owed_rows
from storage.tables.keys import (
    ARRIVAL_MAX,
    LOOKUP_BITS,
    OUTGOING_TRANSACTIONAL_LEVEL,
    TRANSACTIONAL_LEVEL,
)

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

    from qmd.events.recorder import Recorder
    from qmd.outcomes.acknowledgments import Acknowledgments
    from qmd.outcomes.dead_letter import DeadLetters
    from qmd.queues.outgoing_queues import OutgoingQueues
    from qmd.queues.peer_session import PeerSession
    from qmd.queues.quarantine import Damage
    from qmd.runtime.services import Services
    from storage.tables.events import Event

log = structlog.get_logger()

PURGE_ROWS = 512  # ended in one commit


class _Dying(NamedTuple):
    """A stored message whose end is being committed."""

    key: int
    place: int  # its lookup id in the dead-letter queue
    sent: InFlight | None  # how it was in flight


class _Found(NamedTuple):
    """What the disk held of it."""

    dying: _Dying
    packet: bytes | None  # None: nothing, it was released meanwhile
    is_meant: bool  # False: another message, which stays
    is_whole: bool = True  # False: not what was stored, and set aside
    is_kept: bool = False  # as a dead letter
    part_id: int | None = None  # of its packet, as of its row


class Undeliverable:
    """Ends messages of outgoing queues."""

    def __init__(
        self,
        services: Services,
        acknowledgments: Acknowledgments,
        damage: Damage,
        dead_letters: DeadLetters,
        outgoing: OutgoingQueues,
        recorder: Recorder,
    ) -> None:
        self._services = services
        self._acknowledgments = acknowledgments
        self._damage = damage
        self._dead_letters = dead_letters
        self._outgoing = outgoing
        self._recorder = recorder

    def connect(
        self, release: Callable[[], None], gone_for_others: Callable[[OutgoingQueue, bytes], None]
    ) -> None:
        """Name what is called before a look at the disk, and when a message of others is gone."""
        self._release = release
        self._gone_for_others = gone_for_others

    def expire(self, queue: OutgoingQueue, keys: list[int]) -> None:
        """Messages whose time to reach their queue is over."""
        self.kill(
            queue,
            keys,
            MessageClass.NACK_REACH_QUEUE_TIMEOUT,
            reason_text(
                MessageClass.NACK_REACH_QUEUE_TIMEOUT,
                queue=queue.destination,
                detail=_hindrance(queue),
            ),
        )

    def end_too_large(self, queue: OutgoingQueue, keys: list[int], connection: PeerSession) -> None:
        """Messages that the peer takes no packets for: the configuration has changed since they
        were sent, or the name in it leads to an address that it does not name."""
        reason = (
            f"The message for {queue.destination} is larger than {connection.packet_bytes_max}"
            f" bytes, and {connection.host} takes no larger ones. Name it in large_messages of the"
            " section [peers], if it runs qmd, or send the body in parts."
        )
        self.kill(queue, keys, MessageClass.NACK_DELETED, reason, kind=Kind.PURGED)

    async def purge(self, queue: OutgoingQueue) -> int:
        """All that waits for a destination, or for its acknowledgment, ends; how many those are.

        They become dead letters, of the class that says who ended them.
        """
        reason = reason_text(MessageClass.NACK_DELETED, queue=queue.destination)
        return await self.end_all(queue, MessageClass.NACK_DELETED, reason, Kind.PURGED)

    async def end_all(
        self, queue: OutgoingQueue, message_class: int, reason: str, kind: Kind
    ) -> int:
        """The same, for any reason."""
        storage, purged = self._services.storage, 0
        last = self._services.ids.next_lookup_id(OUTGOING_TRANSACTIONAL_LEVEL) & ARRIVAL_MAX
        newest = TRANSACTIONAL_FIRST | (queue.sequence.base + queue.sequence.next_number - 1)
        keys, start = list(queue.express), 0
        while True:
            purged += self.kill(queue, keys, message_class, reason, kind=kind)
            found = await storage.read(
                partial(
                    outgoing_rows.keys, outgoing_id=queue.id, from_lookup=start, rows_max=PURGE_ROWS
                )
            )
            if not found:
                await storage.batch.barrier()  # said when it is durable, and not before
                return purged
            start = found[-1] + 1
            keys = [
                key
                for key in found
                if (key <= newest if key >= TRANSACTIONAL_FIRST else key & ARRIVAL_MAX < last)
            ]

    def expire_express(self, now_s: int, messages_max: int) -> int:
        """End express messages that waited too long, at most so many; how many those are.

        The disk knows nothing of them.
        """
        ended = 0
        for queue in self._outgoing.queues:
            if over := queue.express.pop_expired(now_s, messages_max - ended):
                ended += len(over)
                self.expire(queue, over)
        return ended

    def kill(
        self,
        queue: OutgoingQueue,
        keys: list[int],
        message_class: int,
        reason: str,
        *,
        message_number: int | None = None,
        kind: Kind = Kind.EXPIRED,
    ) -> int:
        """The messages at `keys` end here; with `message_number`, only the one that bears it.

        A key whose message is gone, acknowledged or ending already is passed over.  Returns of how
        many the end has begun.
        """
        self._release()  # what was acknowledged is off the disk before we look there
        wall_ms = int(self._services.environment.time() * 1000)
        now_s = self._services.clock.now_s
        dying: list[_Dying] = []
        ended = 0
        for key in keys:
            packet = queue.forget_express(key)
            if packet is not None:
                ended += 1
                if _is_owed(packet, message_class, for_others=queue.for_others):
                    self._tell(packet, message_class, for_others=queue.for_others)
                self._recorder.record(
                    kind,
                    [packet],
                    queue=queue.destination,
                    message_class=message_class,
                    reason=reason,
                    lazily=True,
                )
                if wants_dead_letter(packet):
                    self._dead_letters.dead_letter(
                        packet, message_class, reason, wall_ms, queue.destination
                    )
                else:
                    self._recorder.record(
                        Kind.DISCARDED,
                        [packet],
                        queue=queue.destination,
                        message_class=message_class,
                        reason=UNWANTED,
                        lazily=True,
                    )
            elif queue.begin_removal(key):
                place = self._services.ids.next_lookup_id(TRANSACTIONAL_LEVEL)
                dying.append(_Dying(key, place, queue.forget_in_flight(key)))
        ended += len(dying)
        if not dying:
            return ended

        def bury(db: sqlite3.Connection) -> list[_Found]:
            found: list[_Found] = []
            for each in dying:
                row = outgoing_rows.find(db, queue.id << LOOKUP_BITS | each.key)
                if row is None:
                    found.append(_Found(each, None, True))
                elif not row.is_whole:
                    self._damage.put_aside(db, "outgoing", row.key, queue.destination)
                    found.append(_Found(each, row.packet, True, is_whole=False))
                else:
                    is_meant = message_number in (None, number_of(row.packet))
                    if queue.for_others:
                        # The source of a transactional one has it, and does what is to be done.
                        is_kept = wants_dead_letter(row.packet) and not is_transactional(row.packet)
                    else:
                        is_kept = is_kept_as_dead(row.packet, discard=row.discard)
                    found.append(
                        _Found(each, row.packet, is_meant, is_kept=is_kept, part_id=row.part_id)
                    )
            buried = [
                (each.dying, each.packet, each.is_kept)
                for each in found
                if each.packet and each.is_meant and each.is_whole
            ]
            # Before their rows go: with the last of those a part that they share would go as well.
            dead = [
                (
                    self._dead_letters.dead_letter_queue(each.packet).id << LOOKUP_BITS
                    | each.dying.place,
                    wall_ms,
                    None,
                    reason,
                    patch_class(each.packet, message_class),
                    each.part_id,
                )
                for each in found
                if each.packet and each.is_meant and each.is_whole and each.is_kept
            ]
            message_rows.insert(db, [row[:5] for row in dead if row[5] is None])
            message_rows.insert_copies(
                db,
                [
                    (*row[:4], *cut(row[4], row[5]))  # a copy, which stays one
                    for row in dead
                    if row[5] is not None
                ],
            )
            event_rows.insert(
                db,
                self._told(
                    queue, [each for each in found if each.is_whole], kind, message_class, reason
                ),
            )
            owed_rows.add(
                db,
                [
                    owed_rows.Owed(each.place, message_class, queue.for_others, packet)
                    for each, packet, _ in buried
                    if _is_owed(packet, message_class, for_others=queue.for_others)
                ],
            )
            outgoing_rows.delete(db, [queue.id << LOOKUP_BITS | each.key for each, *_ in buried])
            awaiting_rows.remember_unconfirmed(
                db,
                [
                    number_of(packet)
                    for _, packet, _ in buried
                    if wants_final_ack(packet) and not queue.for_others
                ],
                queue.id,
                now_s,
            )
            return found

        if any(each.key >= TRANSACTIONAL_FIRST for each in dying):
            self._outgoing.ids.unconfirmed.add(queue.id)
        done = self._services.storage.batch.run(bury)
        done.add_done_callback(partial(self._buried, queue, message_class, reason, wall_ms))
        return ended

    def _told(
        self,
        queue: OutgoingQueue,
        found: list[_Found],
        kind: Kind,
        message_class: int,
        reason: str,
    ) -> list[Event]:
        recorder = self._recorder
        dead = [
            (each.packet, each.dying.place, each.is_kept)
            for each in found
            if each.packet and each.is_meant
        ]
        told = recorder.events(
            kind,
            [packet for packet, *_ in dead],
            queue=queue.destination,
            message_class=message_class,
            reason=reason,
        )
        told += self._dead_letters.told_of_dead(
            dead, message_class, reason, queue=queue.destination
        )
        # Without its row it was acknowledged while it was dying, in this very batch.
        told += recorder.told(
            Kind.ORDER_ACKNOWLEDGED,
            (
                (self._services.id, each.dying.sent.message_number, -1, each.dying.sent.size)
                for each in found
                if each.packet is None and each.dying.sent is not None
            ),
            queue=queue.destination,
            peer=queue.link.peer,
        )
        return told

    def _buried(
        self,
        queue: OutgoingQueue,
        message_class: int,
        reason: str,
        wall_ms: int,
        done: asyncio.Future[list[_Found]],
    ) -> None:
        if done.cancelled() or done.exception() is not None:
            return  # the storage failed, and the daemon stops
        count = 0
        again = False
        told: list[int] = []
        for each, packet, is_meant, is_whole, is_kept, _ in done.result():
            queue.end_removal(each.key)
            if not is_meant:
                again = True  # it is in flight no more, and has to be sent after all
                continue
            self._count_out(queue, each, packet)
            if packet is None:
                continue
            if not is_whole:
                self._damage.name(queue.destination, [each.key])
                continue
            count += 1
            if queue.for_others:
                self._gone_for_others(queue, packet)
            if _is_owed(packet, message_class, for_others=queue.for_others):
                self._tell(packet, message_class, for_others=queue.for_others)
                told.append(each.place)
            if is_kept:
                copy = patch_class(packet, message_class)
                dead_letters = self._dead_letters.dead_letter_queue(packet)
                dead_letters.messages += 1
                dead_letters.grow(len(copy))
                dead_letters.deliver([StoredMessage(each.place, wall_ms, copy, reason)])
        if told:  # in this batch, which has the acknowledgments
            self._services.storage.batch.run(partial(owed_rows.remove, ids=told))
        if count:
            log.info(
                "messages_died",
                destination=queue.destination,
                count=count,
                reason=reason,
                code=MessageClass.name_of(message_class),
            )
        if again:
            queue.new_pass("another message was meant by its refusal", transactional_only=True)
        queue.link.wake()

    def _count_out(self, queue: OutgoingQueue, dying: _Dying, packet: bytes | None) -> None:
        if dying.key < TRANSACTIONAL_FIRST:
            if packet is not None:
                queue.others -= 1
                queue.shrink(len(packet))
            return
        if packet is None and dying.sent is None:
            return
        # Without its row it was acknowledged while it was dying; it was not counted then.
        queue.shrink(len(packet) if packet is not None else dying.sent.size if dying.sent else 0)
        if queue.sequence.remove(queue.number_of(dying.key)):
            queue.sequence.hasten(self._services.loop.time())
            self._outgoing.arm_resend(queue)

    async def tell_what_is_owed(self) -> None:
        """Of ends that were committed when the last process ended before it could tell of them."""
        for row, is_whole in await self._services.storage.read(owed_rows.list_all):
            await self._services.ids.ensure(0)  # each may have some queues to tell
            if is_whole:
                self._tell(row.packet, row.message_class, for_others=row.for_others)
            else:
                self._services.log_limited(
                    "acknowledgment_not_sent",
                    "owed",
                    count=1,
                    reason="it is not what was stored on the disk",
                )
            self._services.storage.batch.run(partial(owed_rows.remove, ids=[row.id]))

    def _tell(self, packet: bytes, message_class: int, *, for_others: bool) -> None:
        """Whom it is owed to, in the open batch, if it is to be told at all."""
        batch = self._services.storage.batch
        if for_others and is_transactional(packet):
            self._acknowledgments.send_final_acks([packet], message_class, batch)
            return
        original = parse_user_message(packet)
        result = consequences(
            original,
            message_class,
            at_source=True,
            insecure_nacks=self._services.settings.delivery.insecure_nacks,
        )
        if result.acknowledgment is not None:
            self._acknowledgments.to_application(original, result.acknowledgment, batch)


# Ends that this computer finds out; of others it hears from the destination, which tells of them.
_FOUND_HERE = frozenset({MessageClass.NACK_REACH_QUEUE_TIMEOUT, MessageClass.NACK_DELETED})


def _is_owed(packet: bytes, message_class: int, *, for_others: bool) -> bool:
    """Whether somebody may have to be told of this end, and nobody else does so."""
    if for_others and is_transactional(packet):
        # One that expires does so at its source as well, which needs nobody for that.
        return message_class != MessageClass.NACK_REACH_QUEUE_TIMEOUT
    return message_class in _FOUND_HERE and has_admin_queue(packet)


def _hindrance(queue: OutgoingQueue) -> str:
    """What kept the messages of a queue from being delivered, as far as we know."""
    if queue.paused:
        return "the outgoing queue was paused"
    history = queue.link.retry.history
    if queue.link.connection is None and history:
        return f"{queue.link.name}: {history[-1].result}"
    if queue.link.connection is None:
        return f"no session with {queue.link.name}"
    return f"{queue.link.name} did not acknowledge it"
