"""The consumption of reserved messages: they leave their queue as if they had been received.

    read ──► (commit: removal, events, acknowledgments, journal; the position) ──► answer

Messages that a shared reader has consumed stay in their queue.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from qmd.bulk.reader import ReaderQueue
from qmd.control_protocol.messages import StoredMessage
from qmd.core.packet_fields import which_may_want_word
from qmd.events.header import EventHeader, Kind, runs_of_sources
from qmd.operations.receive import ACKNOWLEDGED_AT_ONCE
from storage.tables import reservations
from storage.tables.damaged import is_whole
from storage.tables.keys import LOOKUP_BITS, LOOKUP_MASK
from storage.tables.messages import MessageRow

if TYPE_CHECKING:
    import sqlite3

    from qmd.events.recorder import Recorder
    from qmd.operations.large_removals import LargeRemovals
    from qmd.outcomes.dead_letter import DeadLetters
    from qmd.queues.quarantine import Damage
    from qmd.runtime.services import Services

PIECE_MESSAGES = 8192  # in one commit, for which all other changes wait
PIECE_BYTES = 16 * 1024 * 1024


class Consumer:
    """The part that removes the consumed messages of readers."""

    def __init__(
        self,
        services: Services,
        recorder: Recorder,
        dead_letters: DeadLetters,
        damage: Damage,
        removals: LargeRemovals,
    ) -> None:
        self._removals = removals
        self._services = services
        self._recorder = recorder
        self._dead_letters = dead_letters
        self._damage = damage

    async def consume(self, held: ReaderQueue, end: int) -> tuple[int, int]:
        """Consume the next messages up to position `end` in one commit.

        Return their number and their bytes, which may be fewer than requested.
        """
        if held.shared:
            return await self._consume_shared(held, end)
        queue = held.queue
        page = await self._services.storage.read(
            partial(_held_page, reader_queue_id=held.id, after=held.position, until=end)
        )
        position = end if page.end is None else page.end
        prepared = None
        if len(page.requesting) > ACKNOWLEDGED_AT_ONCE and not queue.holds_ended:
            prepared = await self._removals.prepare(page.requesting)
        # Each message may need a number for an acknowledgment, a final ack and a copy.
        while not self._services.ids.suffice(3 * len(page.lookup_ids)):
            await self._services.storage.batch.barrier()
        lookup_ids, size = page.lookup_ids, page.size
        batch = self._services.storage.batch
        queue.reserved.begin_removal(lookup_ids)
        header = EventHeader(Kind.RECEIVED, queue=queue.name)
        for messages in page.recorded:
            self._recorder.record_messages(header, *messages)
        to_report = page.intact if queue.payer.journal else page.requesting
        if to_report:
            reported = [StoredMessage(lookup_id, 0, packet) for lookup_id, packet in to_report]
            self._dead_letters.received(queue, reported, prepared)
        base = queue.id << LOOKUP_BITS
        batch.delete_messages([base | lookup_id for lookup_id in lookup_ids])
        done = batch.run(
            partial(
                reservations.consumed,
                reader_queue_id=held.id,
                position=position,
                messages=len(lookup_ids),
                size=size,
            )
        )
        if page.broken:
            self._damage.whole_messages(queue, page.broken)
        await asyncio.shield(done)
        queue.reserved.end_removal(lookup_ids, size)
        broken = [row.key & LOOKUP_MASK for row in page.broken]
        queue.reserved.release([*broken, *page.gone], are_there=False)
        _add_consumed(held, position, len(lookup_ids), size)
        return len(lookup_ids), size

    async def _consume_shared(self, held: ReaderQueue, end: int) -> tuple[int, int]:
        """Advance the position of a shared reader; the messages stay in the queue."""
        keys, last = await self._services.storage.read(
            partial(
                reservations.held_keys,
                reader_queue_id=held.id,
                after=held.position,
                until=end,
                rows_max=PIECE_MESSAGES,
            )
        )
        position = last if len(keys) == PIECE_MESSAGES else end
        await self._services.storage.batch.run(
            partial(
                reservations.consumed,
                reader_queue_id=held.id,
                position=position,
                messages=len(keys),
                size=0,
            )
        )
        held.queue.reserved.release([key & LOOKUP_MASK for key in keys], are_there=True)
        _add_consumed(held, position, len(keys), 0)
        held.queue.wake_readers()
        return len(keys), 0


def _add_consumed(held: ReaderQueue, position: int, messages: int, size: int) -> None:
    held.position = position
    held.consumed_messages += messages
    held.consumed_bytes += size


class _Page(NamedTuple):
    """The next reservations of a range, sorted on the thread that reads the disk."""

    end: int | None  # the position of the last one; None: the range has no more
    lookup_ids: list[int]  # of the intact messages
    intact: list[tuple[int, bytes]]  # their lookup ids and packets
    size: int  # of their packets
    requesting: list[tuple[int, bytes]]  # those that may request an acknowledgment
    #: The intact messages for the event log: source, numbers, sizes, places.
    recorded: list[tuple[bytes, list[int], list[int], list[int]]]
    broken: list[MessageRow]
    gone: list[int]  # lookup ids of messages that the disk does not have


def _held_page(db: sqlite3.Connection, reader_queue_id: int, after: int, until: int) -> _Page:
    rows = reservations.held_page(
        db,
        reader_queue_id,
        after,
        until,
        rows_max=PIECE_MESSAGES,
        bytes_max=PIECE_BYTES,
    )
    if not rows:
        return _Page(None, [], [], 0, [], [], [], [])
    positions, keys, checksums, _, _, packets = zip(*rows, strict=True)
    lookup_ids = [key & LOOKUP_MASK for key in keys]
    broken: list[MessageRow] = []
    gone: list[int] = []
    if None not in packets and tuple(map(crc32, packets)) == checksums:
        intact = list(zip(lookup_ids, packets, strict=True))
    else:
        intact = []
        for lookup_id, row in zip(lookup_ids, rows, strict=True):
            _, key, checksum, _, _, packet = row
            if packet is None:
                gone.append(lookup_id)
            elif is_whole(packet, checksum):
                intact.append((lookup_id, packet))
            else:
                broken.append(
                    MessageRow(key, 0, None, None, 0, 0, None, checksum, None, None, packet)
                )
        lookup_ids = [lookup_id for lookup_id, _ in intact]
        packets = tuple([packet for _, packet in intact])
    sizes = list(map(len, packets))
    recorded = [
        (source, numbers, sizes[first:last], lookup_ids[first:last])
        for source, first, numbers in runs_of_sources(packets)
        for last in [first + len(numbers)]
    ]
    return _Page(
        None if positions[-1] == until else positions[-1],
        lookup_ids,
        intact,
        sum(sizes),
        [intact[index] for index in which_may_want_word(packets)],
        recorded,
        broken,
        gone,
    )
