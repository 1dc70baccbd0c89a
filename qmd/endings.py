"""Where messages end that were not received: dead-letter queues and journals.

A message moves there in one commit: off its queue, into the other, with its
reason.  Senders that asked for it are told.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import structlog

from protocol import parse_user_message, patch_class
from protocol.message_class import MessageClass
from qmd.core.fate import consequences, reason_text
from qmd.core.stored_packet import is_transactional, wants_dead_letter
from qmd.frames import StoredMessage
from qmd.local_queue import LocalQueue, Reader
from qmd.quotas import more_for
from storage import messages as message_rows
from storage import queues as queue_rows
from storage.keys import LOOKUP_BITS, TRANSACTIONAL_LEVEL
from storage.messages import MessageRow

if TYPE_CHECKING:
    import sqlite3

    from qmd.manager import QueueManager

log = structlog.get_logger()


class Endings:
    """Puts messages where they can be found."""

    def __init__(self, manager: QueueManager) -> None:
        self._manager = manager

    def dead_letter_queue(self, packet: bytes) -> LocalQueue:
        """[MS-MQDMPR] 3.1.1.1: transactional messages have a dead-letter queue of their own."""
        if is_transactional(packet):
            return self._manager.queues_by_id[queue_rows.TRANSACTIONAL_DEAD_LETTER_ID]
        return self._manager.queues_by_id[queue_rows.DEAD_LETTER_ID]

    def dead_letter(self, packet: bytes, reason: str, wall_ms: int) -> None:
        """Keep a message that ends here, with its reason, in the open batch."""
        self._keep(self.dead_letter_queue(packet), packet, reason, wall_ms)

    def journal(self, packet: bytes) -> None:
        """Keep a copy of a message that was delivered."""
        queue = self._manager.queues_by_id[queue_rows.JOURNAL_ID]
        if not queue.has_room(len(packet)):
            self._manager.log_limited(
                "journal_full",
                "journal",
                bytes=queue.bytes,
                quota_bytes=queue.quota_bytes,
                remedy=more_for(queue),
            )
            return
        self._keep(queue, packet, None, int(self._manager.environment.time() * 1000))

    def _keep(self, queue: LocalQueue, packet: bytes, reason: str | None, wall_ms: int) -> None:
        stored = StoredMessage(
            self._manager.next_lookup_id(TRANSACTIONAL_LEVEL), wall_ms, packet, reason
        )
        queue.messages += 1
        queue.grow(len(packet))
        batch = self._manager.storage.batch
        batch.insert_message(
            queue.id << LOOKUP_BITS | stored.lookup_id, packet, wall_ms, None, reason
        )
        batch.when_durable(partial(self._manager.reading.arrived, queue, [stored]))

    def expire_received(self, queue: LocalQueue) -> None:
        """Messages that nobody received in time.  [MS-MQDMPR] 3.1.7.2.7"""
        messages, queue.expired = queue.expired, []
        self.end_unreceived(
            queue, [message.lookup_id for message in messages], MessageClass.NACK_RECEIVE_TIMEOUT
        )

    def end_unreceived(
        self, queue: LocalQueue, lookup_ids: list[int], message_class: MessageClass
    ) -> int:
        """Messages leave a queue without having been received, and their senders are told.

        Returns how many; what somebody has taken stays.
        """
        wall_ms = int(self._manager.environment.time() * 1000)
        reason = reason_text(message_class, queue=queue.format_name)
        expirer = Reader()
        held = [lookup_id for lookup_id in lookup_ids if queue.hold(expirer, lookup_id)]
        if not held:
            return 0
        batch = self._manager.storage.batch
        places = {
            lookup_id: self._manager.next_lookup_id(TRANSACTIONAL_LEVEL) for lookup_id in held
        }
        express = {
            lookup_id: queue.express[lookup_id].packet
            for lookup_id in held
            if lookup_id in queue.express
        }

        def bury(db: sqlite3.Connection) -> tuple[list[tuple[int, bytes]], list[MessageRow]]:
            """(lookup id, packet) of those that were stored, off the queue and kept as dead; and
            those that are not what was stored, set aside."""
            buried: list[tuple[int, bytes]] = []
            aside: list[MessageRow] = []
            for lookup_id in held:
                row = message_rows.find(db, queue.id << LOOKUP_BITS | lookup_id)
                if row is None:
                    continue
                if row.is_whole:
                    buried.append((lookup_id, row.packet))
                else:
                    self._manager.damage.put_aside(db, "message", row.key)
                    aside.append(row)
            message_rows.delete(
                db, [queue.id << LOOKUP_BITS | lookup_id for lookup_id, _ in buried]
            )
            message_rows.insert(
                db,
                [
                    (
                        self.dead_letter_queue(packet).id << LOOKUP_BITS | places[lookup_id],
                        wall_ms,
                        None,
                        reason,
                        patch_class(packet, message_class),
                    )
                    for lookup_id, packet in [*buried, *express.items()]
                    if wants_dead_letter(packet)
                ],
            )
            return buried, aside

        def buried(
            done: asyncio.Future[tuple[list[tuple[int, bytes]], list[MessageRow]]],
        ) -> None:
            if done.cancelled() or done.exception() is not None:
                return  # the storage failed, and the daemon stops
            stored, aside = done.result()
            ended = [*stored, *express.items()]
            queue.forget(held)
            queue.count_out(len(stored), sum(len(packet) for _, packet in stored))
            if aside:
                queue.count_out(len(aside), sum(len(row.packet) for row in aside))
                self._manager.damage.name(queue.name, [row.key for row in aside])
            for lookup_id, packet in ended:
                if wants_dead_letter(packet):
                    dead = self.dead_letter_queue(packet)
                    dead.messages += 1
                    dead.grow(len(packet))
                    copy = patch_class(packet, message_class)
                    self._manager.reading.arrived(
                        dead, [StoredMessage(places[lookup_id], wall_ms, copy, reason)]
                    )
                original = parse_user_message(packet)
                result = consequences(
                    original,
                    message_class,
                    at_source=False,
                    insecure_nacks=self._manager.settings.delivery.insecure_nacks,
                )
                if result.acknowledgment is not None:
                    self._manager.outgoing.acknowledge_to_application(
                        original, result.acknowledgment, self._manager.storage.batch
                    )
                if result.final_ack is not None:
                    self._manager.outgoing.send_final_ack(
                        original, result.final_ack, self._manager.storage.batch
                    )
            log.info("messages_expired", queue=queue.name, count=len(ended))

        batch.run(bury).add_done_callback(buried)
        return len(held)
