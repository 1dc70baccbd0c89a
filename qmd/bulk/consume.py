"""The consumption of reserved messages: they leave their queue as if they had been received.

    read ──► (commit: removal, events, acknowledgments, journal; the position) ──► answer

Messages that a shared reader has consumed stay in their queue.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from qmd.bulk.read_notes import PIECE_BYTES, PIECE_MESSAGES, Note
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
from storage.tables.runs import Run as KeyRun
from storage.tables.runs import held_runs, runs_of

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from qmd.events.recorder import Recorder
    from qmd.operations.large_removals import LargeRemovals
    from qmd.outcomes.dead_letter import DeadLetters
    from qmd.queues.quarantine import Damage
    from qmd.runtime.services import Services


#: Runs of a note that are looked up one by one.
_RUNS_MAX = 64


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
                page = await self._consume_page(held, page)
            except BaseException:
                if following is not None:
                    following.cancel()
                raise
            messages, size = messages + len(page.lookup_ids), size + page.size
            if following is None:
                held.notes.drop_until(held.position)
                return messages, size
            page = await following

    async def _page(self, held: ReaderQueue, after: int, end: int, *, keep: bool = False) -> _Page:
        """Read the next messages, or what is noted about them.

        A journal needs their packets, which `keep` keeps.
        """
        notes = held.notes.take(after, end)
        if notes and not keep and not held.queue.payer.journal:
            noted = await self._services.storage.read(
                partial(_noted_page, base=held.queue.id << LOOKUP_BITS, notes=notes)
            )
            if noted is not None:
                return noted
        return await self._services.storage.read(
            partial(
                _held_page,
                reader_queue_id=held.id,
                after=after,
                until=end,
                keep=keep or bool(held.queue.payer.journal),
            )
        )

    async def _consume_page(self, held: ReaderQueue, page: _Page) -> _Page:
        """Consume the messages of a page; return them as they were consumed."""
        queue = held.queue
        prepared = None
        if len(page.requesting) > ACKNOWLEDGED_AT_ONCE and not queue.holds_ended:
            prepared = await self._removals.prepare(page.requesting)
        # Each message may need a number for an acknowledgment, a final ack and a copy.
        while not self._services.ids.suffice(3 * len(page.lookup_ids)):
            await self._services.storage.batch.barrier()
        while queue.payer.journal and page.packets is None:  # it has one since the read
            page = await self._page(held, held.position, page.end, keep=True)
        messages, size = len(page.lookup_ids), page.size
        runs = [(first, last) for first, last, _ in page.runs]
        batch = self._services.storage.batch
        queue.reserved.begin_removal(runs)
        header = EventHeader(Kind.RECEIVED, queue=queue.name)
        for of_source in page.recorded:
            self._recorder.record_messages(header, *of_source)
        to_report = page.requesting
        if queue.payer.journal and page.packets is not None:
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
        return page

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
    packets: list[bytes] | None  # theirs; None: they were not kept
    runs: list[tuple[int, int, int]]  # of their lookup ids, with the bytes of each run
    size: int  # of their packets
    requesting: list[tuple[int, bytes]]  # those that may request an acknowledgment
    #: The intact messages for the event log: source, numbers, sizes, places.
    recorded: list[tuple[bytes, list[int], list[int], list[int]]]
    broken: list[MessageRow]
    gone: list[Run]  # lookup ids of messages that the disk does not have


class _Notes:
    """The fields that are needed of consumed packets, which are seen some at a time."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.sources: list[tuple[bytes, list[int]]] = []  # adjacent messages: their numbers
        self.requesting: list[tuple[int, bytes]] = []  # by their index

    def add(self, packets: Sequence[bytes]) -> None:
        before = len(self.sizes)
        self.sizes += map(len, packets)
        for source, _, numbers in runs_of_sources(packets):
            if self.sources and self.sources[-1][0] == source:
                self.sources[-1][1].extend(numbers)
            else:
                self.sources.append((source, numbers))
        self.requesting += [
            (before + index, packets[index]) for index in which_may_want_word(packets)
        ]

    def page(
        self,
        found: reservations.HeldPage,
        lookup_ids: list[int],
        packets: list[bytes] | None,
        broken: list[MessageRow],
    ) -> _Page:
        sizes = self.sizes
        recorded: list[tuple[bytes, list[int], list[int], list[int]]] = []
        first = 0
        for source, numbers in self.sources:
            last = first + len(numbers)
            recorded.append((source, numbers, sizes[first:last], lookup_ids[first:last]))
            first = last
        return _Page(
            found.end,
            lookup_ids,
            packets,
            _runs_with_sizes(lookup_ids, sizes),
            sum(sizes),
            [(lookup_ids[index], packet) for index, packet in self.requesting],
            recorded,
            broken,
            [(run.first & LOOKUP_MASK, run.last & LOOKUP_MASK) for run in found.gone],
        )


def _noted_page(db: sqlite3.Connection, base: int, notes: list[Note]) -> _Page | None:
    """Return the page of successive notes; None if a message has vanished."""
    runs = [run for note in notes for run in note.runs]
    keys = [KeyRun(base | first, base | last) for first, last in runs]
    if len(runs) > _RUNS_MAX or not reservations.are_there(db, keys):
        return None
    lookup_ids = [each for first, last in runs for each in range(first, last + 1)]
    sizes: list[int] = []
    recorded: list[tuple[bytes, list[int], list[int], list[int]]] = []
    for note in notes:
        of_note = list(note.sizes)
        places = lookup_ids[len(sizes) : len(sizes) + len(of_note)]
        recorded.append((note.source, list(note.numbers), of_note, places))
        sizes += of_note
    of_runs = _runs_with_sizes(lookup_ids, sizes)
    return _Page(notes[-1].end, lookup_ids, None, of_runs, sum(sizes), [], recorded, [], [])


def _held_page(
    db: sqlite3.Connection, reader_queue_id: int, after: int, until: int, *, keep: bool
) -> _Page:
    """Return the next page; `keep`: with all packets."""
    limits = {"rows_max": PIECE_MESSAGES, "bytes_max": PIECE_BYTES}
    notes = _Notes()
    if not keep:
        noted = reservations.noted_page(db, reader_queue_id, after, until, note=notes.add, **limits)
        if noted is not None:
            return notes.page(noted, [key & LOOKUP_MASK for key in noted.keys], None, [])
        notes = _Notes()
    found = reservations.held_page(db, reader_queue_id, after, until, **limits)
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
    notes.add(packets)
    return notes.page(found, lookup_ids, packets, broken)


def _runs_with_sizes(lookup_ids: list[int], sizes: list[int]) -> list[tuple[int, int, int]]:
    """Return runs of lookup ids: the first, the last, and the bytes of the packets."""
    found: list[tuple[int, int, int]] = []
    at = 0
    for first, last in runs_of(lookup_ids):
        end = at + last - first + 1
        found.append((first, last, sum(sizes[at:end]) if end - at > 1 else sizes[at]))
        at = end
    return found
