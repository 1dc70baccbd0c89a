"""What a reader has consumed leaves its queue as if it had been received, or stays if it is shared.

read ──► (commit: off the queue, its events, acknowledgments, journal; the position) ──► answer
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from qmd.bulk.reader import ReaderQueue
from qmd.control_protocol.messages import StoredMessage
from qmd.core.packet_fields import may_want_word
from qmd.events.recorder import Kind, identity_of
from storage.tables import reservations
from storage.tables.damaged import is_whole
from storage.tables.keys import LOOKUP_BITS, LOOKUP_MASK
from storage.tables.messages import MessageRow
from storage.tables.reservations import HeldRow

if TYPE_CHECKING:
    import sqlite3

    from qmd.events.recorder import Recorder
    from qmd.outcomes.dead_letter import DeadLetters
    from qmd.queues.quarantine import Damage
    from qmd.runtime.services import Services

PIECE_MESSAGES = 8192  # in one commit, for which everybody waits
PIECE_BYTES = 16 * 1024 * 1024


class Consumer:
    """Removes what a reader has reserved and does not need any more."""

    def __init__(
        self,
        services: Services,
        recorder: Recorder,
        dead_letters: DeadLetters,
        damage: Damage,
    ) -> None:
        self._services = services
        self._recorder = recorder
        self._dead_letters = dead_letters
        self._damage = damage

    async def consume(self, held: ReaderQueue, end: int) -> tuple[int, int]:
        """In one commit; how many messages, and their bytes."""
        queue = held.queue
        page = await self._services.storage.read(
            partial(
                _held_page,
                reader_queue_id=held.id,
                after=held.position,
                until=end,
                with_packets=not held.shared,
            )
        )
        position = end if page.end is None else page.end
        if held.shared:
            return await self._let_go(held, position, page.rows)
        # An acknowledgment of each, and a final ack, and a copy.
        while not self._services.ids.suffice(3 * len(page.lookup_ids)):
            await self._services.storage.batch.barrier()
        lookup_ids, size = page.lookup_ids, page.size
        batch = self._services.storage.batch
        queue.reserved.begin_removal(lookup_ids)
        for run in page.told:
            self._recorder.record_told(Kind.RECEIVED, *run, queue=queue.name)
        wanted = page.whole if queue.payer.journal else page.wanting
        if wanted:
            self._dead_letters.received(
                queue, [StoredMessage(lookup_id, 0, packet) for lookup_id, packet in wanted]
            )
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
        _has_consumed(held, position, len(lookup_ids), size)
        return len(lookup_ids), size

    async def _let_go(
        self, held: ReaderQueue, position: int, rows: Sequence[HeldRow]
    ) -> tuple[int, int]:
        """A shared reader is done with messages, which stay."""
        await self._services.storage.batch.run(
            partial(
                reservations.consumed,
                reader_queue_id=held.id,
                position=position,
                messages=len(rows),
                size=0,
            )
        )
        held.queue.reserved.release((row.key & LOOKUP_MASK for row in rows), are_there=True)
        _has_consumed(held, position, len(rows), 0)
        held.queue.wake_readers()
        return len(rows), 0


def _has_consumed(held: ReaderQueue, position: int, messages: int, size: int) -> None:
    held.position = position
    held.consumed_messages += messages
    held.consumed_bytes += size


class _Page(NamedTuple):
    """The next reservations of a range, as the thread that reads the disk has sorted them."""

    end: int | None  # the position of the last one; None: the range has no more
    rows: list[HeldRow]
    lookup_ids: list[int]  # of those that are whole
    whole: list[tuple[int, bytes]]  # the same with their packets
    size: int  # bytes of these
    wanting: list[tuple[int, bytes]]  # those of them of which somebody may have to be told
    told: list[tuple[bytes, list[int], list[int], list[int]]]  # source, numbers, sizes, places
    broken: list[MessageRow]
    gone: list[int]  # lookup ids of those that are not there


def _held_page(
    db: sqlite3.Connection, reader_queue_id: int, after: int, until: int, *, with_packets: bool
) -> _Page:
    rows = reservations.held_page(
        db,
        reader_queue_id,
        after,
        until,
        rows_max=PIECE_MESSAGES,
        bytes_max=PIECE_BYTES,
        with_packets=with_packets,
    )
    end = None if not rows or rows[-1].position == until else rows[-1].position
    whole: list[tuple[int, bytes]] = []
    broken: list[MessageRow] = []
    gone: list[int] = []
    for _, key, checksum, _, packet in rows if with_packets else ():
        if packet is None:
            gone.append(key & LOOKUP_MASK)
        elif is_whole(packet, checksum):
            whole.append((key & LOOKUP_MASK, packet))
        else:
            broken.append(MessageRow(key, 0, None, None, 0, 0, None, checksum, None, packet))
    told: list[tuple[bytes, list[int], list[int], list[int]]] = []
    source: bytes | None = None
    for lookup_id, packet in whole:
        of, number = identity_of(packet)
        if of != source:
            source = of
            numbers, sizes, places = list[int](), list[int](), list[int]()
            told.append((of, numbers, sizes, places))
        numbers.append(number)
        sizes.append(len(packet))
        places.append(lookup_id)
    return _Page(
        end,
        rows,
        [lookup_id for lookup_id, _ in whole],
        whole,
        sum(sum(sizes) for _, _, sizes, _ in told),
        [each for each in whole if may_want_word(each[1])],
        told,
        broken,
        gone,
    )
