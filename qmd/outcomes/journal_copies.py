"""Copies of received messages in the journals of their queues, in the batch that removes them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING

from qmd.control_protocol.messages import StoredMessage
from qmd.core.disposition import SYSTEM_CLASSES
from qmd.core.packet_fields import message_class_of
from qmd.events.header import EventHeader, Kind
from qmd.queues.put import put_all
from qmd.queues.quotas import more_for
from storage.tables.keys import TRANSACTIONAL_LEVEL

if TYPE_CHECKING:
    from qmd.events.recorder import Recorder
    from qmd.queues.local_queue import LocalQueue
    from qmd.runtime.services import Services

MANY = 16  # copies that are put into a journal together: one by one each takes 14 µs


class JournalCopies:
    """Keeper of copies in the journals of queues."""

    def __init__(self, services: Services, recorder: Recorder) -> None:
        self._services = services
        self._recorder = recorder

    def keep(self, queue: LocalQueue, messages: Sequence[StoredMessage]) -> None:
        """Copy received messages to the journal of their queue, in the batch that removes them.

        A subqueue uses the journal of its queue. Acknowledgments are not journaled
        ([MS-MQQB] <2>), nor are messages for which the journal or the disk has no room.
        """
        journal = queue.payer.own_journal
        if journal is None:
            return  # the queue is being deleted
        copied = [each.packet for each in messages if not _is_of_the_system(each.packet)]
        kept, places, not_kept = self._keep_copies(journal, copied)
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

    def _keep_copies(
        self, journal: LocalQueue, packets: list[bytes]
    ) -> tuple[list[bytes], list[int], list[bytes]]:
        """Keep copies of packets with the open batch, as many as there is room for.

        Returns those that are kept, their places, and the others.
        """
        wall_ms = int(self._services.environment.time() * 1000)
        now, room = self._services.loop.time(), self._services.storage.room
        size = sum(map(len, packets))
        if len(packets) >= MANY and journal.has_room(size) and room(now, size):
            # One by one takes 14 µs for each: a client may receive 65,536 messages at once.
            places = self._services.ids.next_lookup_ids(TRANSACTIONAL_LEVEL, len(packets))
            self._put(journal, places, packets, wall_ms)
            return packets, places, []
        kept: list[bytes] = []
        places, not_kept = [], []
        for packet in packets:
            if journal.has_room(len(packet)) and room(now, len(packet)):
                places += self._services.ids.next_lookup_ids(TRANSACTIONAL_LEVEL, 1)
                self._put(journal, places[-1:], [packet], wall_ms)
                kept.append(packet)
            else:
                not_kept.append(packet)
        return kept, places, not_kept

    def _put(
        self, journal: LocalQueue, places: list[int], packets: list[bytes], wall_ms: int
    ) -> None:
        """Put copies into a journal with the open batch; they are ready after the commit."""
        batch = self._services.storage.batch
        copies = list(map(StoredMessage, places, repeat(wall_ms, len(packets)), packets))
        put_all(journal, copies, batch)
        batch.when_durable(partial(journal.deliver, copies))


def _is_of_the_system(packet: bytes) -> bool:
    """Return whether a queue manager has sent the message, and no application."""
    return message_class_of(packet) in SYSTEM_CLASSES
