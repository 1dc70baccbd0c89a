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
from qmd.core.number_set import Run
from qmd.core.packet_fields import which_may_want_word
from qmd.events.header import EventHeader, Kind, runs_of_sources
from qmd.operations.receive import ACKNOWLEDGED_AT_ONCE
from storage.engine.batch import FEW
from storage.tables import reservations
from storage.tables.damaged import is_whole
from storage.tables.keys import LOOKUP_BITS, LOOKUP_MASK
from storage.tables.messages import MessageRow
from storage.tables.runs import held_runs, runs_of

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
        """Consume the next messages up to position `end`; return their number and their bytes.

        Each commit has a piece of them.  Of a shared reader this is one piece: fewer messages than
        requested, if they are many.
        """
        if held.shared:
            return await self._consume_shared(held, end)
        messages = size = 0
        page = await self._page(held, held.position, end)
        while True:
            # The next piece is read while this one is committed: the two need other threads.
            following = (
                asyncio.ensure_future(self._page(held, page.end, end)) if page.end < end else None
            )
            try:
                await self._consume_page(held, page)
            except BaseException:
                if following is not None:
                    following.cancel()
                raise
            messages, size = messages + len(page.packets), size + page.size
            if following is None:
                return messages, size
            page = await following

    async def _page(self, held: ReaderQueue, after: int, end: int) -> _Page:
        return await self._services.storage.read(
            partial(_held_page, reader_queue_id=held.id, after=after, until=end)
        )

    async def _consume_page(self, held: ReaderQueue, page: _Page) -> None:
        queue = held.queue
        prepared = None
        if len(page.requesting) > ACKNOWLEDGED_AT_ONCE and not queue.holds_ended:
            prepared = await self._removals.prepare(page.requesting)
        # Each message may need a number for an acknowledgment, a final ack and a copy.
        while not self._services.ids.suffice(3 * len(page.packets)):
            await self._services.storage.batch.barrier()
        runs = [(first, last) for first, last, _ in page.runs]
        messages, size = len(page.packets), page.size
        batch = self._services.storage.batch
        queue.reserved.begin_removal(runs)
        header = EventHeader(Kind.RECEIVED, queue=queue.name)
        for of_source in page.recorded:
            self._recorder.record_messages(header, *of_source)
        to_report = page.requesting
        if queue.payer.journal:
            to_report = list(zip(page.lookup_ids, page.packets, strict=True))
        if to_report:
            reported = [StoredMessage(lookup_id, 0, packet) for lookup_id, packet in to_report]
            self._dead_letters.received(queue, reported, prepared)
        base = queue.id << LOOKUP_BITS
        if len(runs) * FEW > messages:
            batch.delete_messages([base | each for each in page.lookup_ids])
        else:
            batch.delete_messages(
                runs=[(base | first, base | last, of_run) for first, last, of_run in page.runs]
            )
        done = batch.run(
            partial(
                reservations.consumed,
                reader_queue_id=held.id,
                position=page.end,
                messages=messages,
                size=size,
            )
        )
        if page.broken:
            self._damage.whole_messages(queue, page.broken)
        await asyncio.shield(done)
        queue.reserved.end_removal(runs, size)
        broken = [row.key & LOOKUP_MASK for row in page.broken]
        queue.reserved.release([*runs_of(broken), *page.gone], are_there=False)
        _add_consumed(held, page.end, messages, size)

    async def _consume_shared(self, held: ReaderQueue, end: int) -> tuple[int, int]:
        """Advance the position of a shared reader; the messages stay in the queue."""
        runs = await self._services.storage.read(
            partial(
                held_runs,
                reader_queue_id=held.id,
                after=held.position,
                until=end,
                runs_max=PIECE_MESSAGES,
            )
        )
        position = runs[-1].end if len(runs) == PIECE_MESSAGES else end
        messages = sum(run.messages for run in runs)
        await self._services.storage.batch.run(
            partial(
                reservations.consumed,
                reader_queue_id=held.id,
                position=position,
                messages=messages,
                size=0,
            )
        )
        held.queue.reserved.release([run.places for run in runs], are_there=True)
        _add_consumed(held, position, messages, 0)
        held.queue.wake_readers()
        return messages, 0


def _add_consumed(held: ReaderQueue, position: int, messages: int, size: int) -> None:
    held.position = position
    held.consumed_messages += messages
    held.consumed_bytes += size


class _Page(NamedTuple):
    """The next messages of a range, sorted on the thread that reads the disk."""

    end: int  # the position of the last one, or of the range
    lookup_ids: list[int]  # of the intact messages
    packets: list[bytes]
    runs: list[tuple[int, int, int]]  # of their lookup ids, with the bytes of each run
    size: int  # of their packets
    requesting: list[tuple[int, bytes]]  # those that may request an acknowledgment
    #: The intact messages for the event log: source, numbers, sizes, places.
    recorded: list[tuple[bytes, list[int], list[int], list[int]]]
    broken: list[MessageRow]
    gone: list[Run]  # lookup ids of messages that the disk does not have


def _held_page(db: sqlite3.Connection, reader_queue_id: int, after: int, until: int) -> _Page:
    found = reservations.held_page(
        db,
        reader_queue_id,
        after,
        until,
        rows_max=PIECE_MESSAGES,
        bytes_max=PIECE_BYTES,
    )
    packets = found.packets
    lookup_ids = [key & LOOKUP_MASK for key in found.keys]
    broken: list[MessageRow] = []
    if list(map(crc32, packets)) != found.checksums:
        intact = [
            index
            for index, packet in enumerate(packets)
            if is_whole(packet, found.checksums[index])
        ]
        damaged = set(range(len(packets))).difference(intact)
        broken = [
            MessageRow(
                *(found.keys[index], 0, None, None, 0, 0, None),
                *(found.checksums[index], None, None, packets[index]),
            )
            for index in sorted(damaged)
        ]
        lookup_ids = [lookup_ids[index] for index in intact]
        packets = [packets[index] for index in intact]
    sizes = list(map(len, packets))
    recorded = [
        (source, numbers, sizes[first:last], lookup_ids[first:last])
        for source, first, numbers in runs_of_sources(packets)
        for last in [first + len(numbers)]
    ]
    return _Page(
        found.end,
        lookup_ids,
        packets,
        _runs_with_sizes(lookup_ids, sizes),
        sum(sizes),
        [(lookup_ids[index], packets[index]) for index in which_may_want_word(packets)],
        recorded,
        broken,
        [(run.first & LOOKUP_MASK, run.last & LOOKUP_MASK) for run in found.gone],
    )


def _runs_with_sizes(lookup_ids: list[int], sizes: list[int]) -> list[tuple[int, int, int]]:
    """Return runs of lookup ids: the first, the last, and the bytes of the packets."""
    found: list[tuple[int, int, int]] = []
    at = 0
    for first, last in runs_of(lookup_ids):
        end = at + last - first + 1
        found.append((first, last, sum(sizes[at:end]) if end - at > 1 else sizes[at]))
        at = end
    return found
