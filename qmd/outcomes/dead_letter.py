"""Where messages end that were not received: dead-letter queues and journals.

A message moves there in one commit: off its queue, into the other, with its
reason.  Senders that asked for it are told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import structlog

from protocol import parse_user_message, patch_class
from protocol.message_class import MessageClass
from qmd.control_protocol.messages import StoredMessage
from qmd.core.disposition import SYSTEM_CLASSES, consequences, reason_text
from qmd.core.packet_fields import (
    has_admin_queue,
    is_transactional,
    may_want_word,
    message_class_of,
    source_of,
)
from qmd.events.header import EventHeader, Kind
from qmd.message.shared_packet import cut, whole
from qmd.queues.local_queue import LocalQueue, Reader
from qmd.queues.quotas import more_for
from storage.tables import messages as message_rows
from storage.tables import queues as queue_rows
from storage.tables.keys import LOOKUP_BITS, LOOKUP_MASK, TRANSACTIONAL_LEVEL
from storage.tables.messages import MessageRow
from storage.tables.pages import EMPTY, Totals

if TYPE_CHECKING:
    import sqlite3

    from qmd.events.recorder import Recorder
    from qmd.outcomes.acknowledgments import Acknowledgments
    from qmd.queues.named_dead_letter_queue import NamedDeadLetterQueues
    from qmd.queues.quarantine import Damage
    from qmd.queues.registry import LocalQueues
    from qmd.runtime.services import Services
    from storage.tables.events import Event

log = structlog.get_logger()

UNWANTED = "its application did not ask for a dead letter"


class DeadLetters:
    """Puts messages where they can be found."""

    def __init__(
        self,
        services: Services,
        acknowledgments: Acknowledgments,
        damage: Damage,
        own_dead_letters: NamedDeadLetterQueues,
        queues: LocalQueues,
        recorder: Recorder,
    ) -> None:
        self._services = services
        self._acknowledgments = acknowledgments
        self._damage = damage
        self._own_dead_letters = own_dead_letters
        self._queues = queues
        self._recorder = recorder
        self.under_way = 0  # so often messages are held for their end, which is not durable yet

    def dead_letter_queue(self, packet: bytes) -> LocalQueue:
        """Where a message that dies is kept: in the queue that its application has named, or in one
        of ours.  [MS-MQDMPR] 3.1.1.1: transactional messages have one of their own."""
        own = self._own_dead_letters.queue_of(packet)
        if own is not None:
            return own
        if is_transactional(packet):
            return self._queues.by_id[queue_rows.TRANSACTIONAL_DEAD_LETTER_ID]
        return self._queues.by_id[queue_rows.DEAD_LETTER_ID]

    def dead_letter(
        self,
        packet: bytes,
        message_class: int,
        reason: str,
        wall_ms: int,
        queue: str,
        part_id: int | None = None,
    ) -> None:
        """Keep a message that ends in `queue`, with its reason, in the open batch.

        `part_id`: of its packet, which a row has that leaves with the same batch.
        """
        to_queue = self.dead_letter_queue(packet)
        dead = patch_class(packet, message_class)
        place = self._keep(to_queue, dead, reason, wall_ms, part_id)
        self._recorder.record(
            EventHeader(
                Kind.DEAD_LETTERED,
                queue=queue,
                to_queue=to_queue.name,
                message_class=message_class,
                reason=reason,
            ),
            [packet],
            places=[place],
        )

    def journal(self, packet: bytes) -> None:
        """Keep a copy of a message that was delivered."""
        queue = self._queues.by_id[queue_rows.JOURNAL_ID]
        if not queue.has_room(len(packet)):
            self._services.log_limited(
                "journal_full",
                "journal",
                bytes=queue.bytes,
                quota_bytes=queue.quota_bytes,
                remedy=more_for(queue),
            )
            self._recorder.record(
                EventHeader(
                    Kind.JOURNAL_FULL,
                    to_queue=queue.name,
                    reason=f"{queue.bytes} of {queue.quota_bytes} bytes are used."
                    f" {more_for(queue)}",
                ),
                [packet],
                lazily=True,
            )
            return
        place = self._keep(queue, packet, None, int(self._services.environment.time() * 1000))
        self._recorder.record(
            EventHeader(Kind.JOURNALED, to_queue=queue.name), [packet], places=[place]
        )

    def _journal_received(self, queue: LocalQueue, messages: Sequence[StoredMessage]) -> None:
        """Keep copies in the journal of a queue, in the batch that removes them from it.

        What is received from a subqueue is received from its queue.  Acknowledgments are not
        journaled ([MS-MQQB] <2>), nor is what the journal or the disk has no room for.
        """
        journal = queue.payer.own_journal
        if journal is None:
            return  # it is about to be deleted
        wall_ms = int(self._services.environment.time() * 1000)
        kept: list[bytes] = []
        places: list[int] = []
        not_kept: list[bytes] = []
        for packet in (message.packet for message in messages):
            if message_class_of(packet) in SYSTEM_CLASSES:
                continue
            if journal.has_room(len(packet)) and self._services.storage.room(
                self._services.loop.time(), len(packet)
            ):
                kept.append(packet)
                places.append(self._keep(journal, packet, None, wall_ms))
            else:
                not_kept.append(packet)
        recorder = self._recorder
        if kept:
            recorder.record(
                EventHeader(Kind.JOURNALED, queue=queue.name, to_queue=journal.name),
                kept,
                places=places,
            )
        if not_kept:
            recorder.record(
                EventHeader(
                    Kind.JOURNAL_FULL,
                    queue=queue.name,
                    to_queue=journal.name,
                    reason=f"{journal.bytes} of {journal.quota_bytes} bytes are used. "
                    + more_for(journal),
                ),
                not_kept,
                lazily=True,
            )
            self._services.log_limited(
                "journal_full",
                journal.name,
                queue=journal.name,
                bytes=journal.bytes,
                quota_bytes=journal.quota_bytes,
                remedy=more_for(journal),
            )

    def _keep(
        self,
        queue: LocalQueue,
        packet: bytes,
        reason: str | None,
        wall_ms: int,
        part_id: int | None = None,
    ) -> int:
        """A message of a queue of our own, in the open batch; its lookup id."""
        stored = StoredMessage(
            self._services.ids.next_lookup_id(TRANSACTIONAL_LEVEL), wall_ms, packet, reason
        )
        queue.messages += 1
        queue.grow(len(packet))
        batch = self._services.storage.batch
        key = queue.id << LOOKUP_BITS | stored.lookup_id
        if part_id is None:
            batch.insert_message(key, packet, wall_ms, None, reason)
        else:
            head, part = cut(packet, part_id)
            batch.insert_message(key, head, wall_ms, None, reason, part=part)
        batch.when_durable(partial(queue.deliver, [stored]))
        return stored.lookup_id

    def received(self, queue: LocalQueue, messages: Sequence[StoredMessage]) -> None:
        """What follows, in the open batch, from messages that an application has received."""
        if queue.holds_ended:
            return  # copies: what they are copies of has met its end before
        if queue.payer.journal:
            self._journal_received(queue, messages)
        packets = [message.packet for message in messages]
        if wanting := [packet for packet in packets if may_want_word(packet)]:
            self._follow(queue, wanting, MessageClass.ACK_RECEIVE, "")

    def end(
        self,
        queue: LocalQueue,
        messages: Sequence[tuple[int, bytes]],
        message_class: MessageClass,
        *,
        detail: str = "",
    ) -> None:
        """What follows, in the open batch, from messages that leave `queue` without having been
        received: (lookup id, packet) of each.  Their rows are the caller's.

        `detail`: more about why.
        """
        packets = [packet for _, packet in messages]
        reason = reason_text(message_class, queue=queue.format_name, detail=detail)
        self._recorder.record(
            EventHeader(
                _KINDS[message_class], queue=queue.name, message_class=message_class, reason=reason
            ),
            packets,
            places=[lookup_id for lookup_id, _ in messages],
        )
        if not queue.holds_ended:
            self._follow(queue, packets, message_class, reason)

    def replaced(self, queue: LocalQueue, packets: Sequence[bytes]) -> None:
        """What follows, in the open batch, from messages that an operator has made others of: who
        waits to hear of them is told that they were removed, and they are kept nowhere."""
        if not queue.holds_ended:
            wanting = [packet for packet in packets if may_want_word(packet)]
            self._follow(queue, wanting, MessageClass.NACK_QUEUE_PURGED, "", keep=False)

    def _follow(
        self,
        queue: LocalQueue,
        packets: Sequence[bytes],
        message_class: MessageClass,
        reason: str,
        *,
        keep: bool = True,
    ) -> None:
        batch, recorder = self._services.storage.batch, self._recorder
        wall_ms = int(self._services.environment.time() * 1000)
        to_be_told: list[bytes] = []
        discarded: list[bytes] = []
        for packet in packets:
            is_local = source_of(packet) == self._services.id
            if (
                message_class == MessageClass.ACK_RECEIVE
                and not is_local
                and not has_admin_queue(packet)
            ):
                # The frequent case, and nothing but a final ack can follow.
                if message_class_of(packet) not in SYSTEM_CLASSES:
                    to_be_told.append(packet)
                continue
            original = parse_user_message(packet)
            result = consequences(
                original,
                message_class,
                at_source=False,
                insecure_nacks=self._services.settings.delivery.insecure_nacks,
                is_local=is_local,
            )
            if result.acknowledgment is not None:
                self._acknowledgments.to_application(original, result.acknowledgment, batch)
            if result.final_ack is not None:
                to_be_told.append(packet)
            if result.journal:
                self.journal(packet)
            if not keep:
                continue
            if result.dead_letter is not None:
                self.dead_letter(packet, message_class, reason, wall_ms, queue.name)
            elif result.final_ack is None and message_class != MessageClass.ACK_RECEIVE:
                discarded.append(packet)
        if to_be_told:
            self._acknowledgments.send_final_acks(to_be_told, message_class, batch)
        if discarded:
            recorder.record(
                EventHeader(
                    Kind.DISCARDED, queue=queue.name, message_class=message_class, reason=reason
                ),
                discarded,
            )

    def expire_received(self, queue: LocalQueue) -> None:
        """Messages that nobody received in time.  [MS-MQDMPR] 3.1.7.2.7"""
        messages, queue.expired = queue.expired, []
        self.end_unreceived(
            queue, [message.lookup_id for message in messages], MessageClass.NACK_RECEIVE_TIMEOUT
        )

    def end_unreceived(
        self, queue: LocalQueue, lookup_ids: list[int], message_class: MessageClass
    ) -> asyncio.Future[Totals]:
        """Messages leave a queue without having been received, and their senders are told.

        How many left is known when it is durable; what somebody has taken stays.
        """
        done: asyncio.Future[Totals] = self._services.loop.create_future()
        ender = Reader()
        held = [lookup_id for lookup_id in lookup_ids if queue.hold(ender, lookup_id)]
        if held:
            self.under_way += 1
            # Whatever is held, nobody else ends: it is there still when we have seen it.
            keys = [queue.id << LOOKUP_BITS | each for each in held if each not in queue.express]
            self._services.storage.batch.read_after(
                partial(message_rows.find_all, keys=keys),
                partial(self._end_held, queue, held, message_class, done),
            )
        else:
            done.set_result(EMPTY)
        return done

    def _end_held(
        self,
        queue: LocalQueue,
        held: list[int],
        message_class: MessageClass,
        done: asyncio.Future[Totals],
        rows: list[MessageRow],
    ) -> None:
        stored = [(row.key & LOOKUP_MASK, row.packet) for row in rows if row.is_whole]
        aside = [row for row in rows if not row.is_whole]
        express = [
            (each, whole(queue.express[each].packet)) for each in held if each in queue.express
        ]
        batch = self._services.storage.batch
        batch.delete_messages([queue.id << LOOKUP_BITS | lookup_id for lookup_id, _ in stored])
        self.end(queue, [*stored, *express], message_class)
        if aside:

            def put_aside(db: sqlite3.Connection) -> None:
                for row in aside:
                    self._damage.put_aside(db, "message", row.key, queue.name)

            batch.run(put_aside)

        def ended() -> None:
            self.under_way -= 1
            queue.forget(held)
            queue.count_out(len(rows), sum(len(row.packet) for row in rows))
            if aside:
                self._damage.name(queue.name, [row.key for row in aside])
            log.info(
                "messages_ended",
                queue=queue.name,
                count=len(stored) + len(express),
                reason=MessageClass.describe(message_class),
            )
            if not done.done():  # whoever waits for it may be gone
                packets = [packet for _, packet in (*stored, *express)]
                done.set_result(Totals(len(packets), sum(map(len, packets))))

        batch.when_durable(ended)

    def told_of_dead(
        self, dead: list[tuple[bytes, int, bool]], message_class: int, reason: str, queue: str = ""
    ) -> list[Event]:
        """Of messages that end: packet, lookup id in a dead-letter queue, and if it gets there."""
        recorder = self._recorder
        kept: dict[LocalQueue, list[tuple[bytes, int]]] = {}
        discarded: list[bytes] = []
        for packet, place, is_kept in dead:
            if is_kept:
                kept.setdefault(self.dead_letter_queue(packet), []).append((packet, place))
            else:
                discarded.append(packet)
        told = recorder.events(
            EventHeader(Kind.DISCARDED, queue=queue, message_class=message_class, reason=UNWANTED),
            discarded,
        )
        for target, messages in kept.items():
            told += recorder.events(
                EventHeader(
                    Kind.DEAD_LETTERED,
                    queue=queue,
                    to_queue=target.name,
                    message_class=message_class,
                    reason=reason,
                ),
                [packet for packet, _ in messages],
                places=[place for _, place in messages],
            )
        return told


_KINDS = {
    MessageClass.NACK_RECEIVE_TIMEOUT: Kind.EXPIRED,
    MessageClass.NACK_QUEUE_PURGED: Kind.PURGED,
    MessageClass.NACK_QUEUE_DELETED: Kind.QUEUE_DELETED,
    MessageClass.NACK_RECEIVE_REJECTED: Kind.REJECTED,
    MessageClass.NACK_NOT_TRANSACTIONAL_QUEUE: Kind.REFUSED,
}
