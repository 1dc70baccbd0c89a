"""Ranges of queues for data pipelines: no message is taken, and many messages share one frame.

The thread that reads the disk builds the answer in columns; `qmd.control_protocol.bulk.Rows`
describes them.
"""

from __future__ import annotations

import sys
from array import array
from functools import partial
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any
from zlib import crc32

from protocol import parse_user_message, properties_offset
from protocol.errors import ProtocolError
from qmd.bulk.read_notes import PIECE_BYTES, PIECE_MESSAGES, notes_of
from qmd.control_protocol.bulk import EVERYTHING, ROWS_MAX, Filter, Rows
from qmd.control_protocol.messages import StoredMessage
from qmd.errors import Refusal
from qmd.message.shared_packet import whole_message
from qmd.operations.receive import Matches
from qmd.operations.selection import filter_of
from qmd.queues.local_queue import LocalQueue
from storage.tables import ranges
from storage.tables.damaged import is_whole
from storage.tables.keys import ARRIVAL_MAX, LOOKUP_MASK, TRANSACTIONAL_LEVEL
from storage.tables.messages import MessageRow
from storage.tables.ranges import Plain, QuickPage, RangeRow, Scan

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Sequence

    from qmd.bulk.read_notes import Note
    from qmd.bulk.reader import ReaderQueue
    from qmd.queues.quarantine import Damage
    from qmd.runtime.services import Services

FRAME_BYTES = 32 * 1024 * 1024  # of packets in one answer at most, also if more are requested
#: The part of each packet that is read if bodies are not requested.  A longer extension is cut.
HEAD_BYTES = 8192
PARTS_MAX = 10_000
_PROPERTIES_BYTES = 56  # [MS-MQMQ] 2.2.19.3: label, extension and body follow
#: The lowest ratio of messages to arrival numbers at which equal ranges of numbers have about the
#: same number of messages.
_DENSE = 0.5
#: Messages behind a start that are counted exactly: beyond it, all of the queue count.
COUNTED_MAX = 100_000

_POSITION, _KEY, _EXPIRES, _CHECKSUM, _PACKET = 0, 1, 3, -4, -1  # indexes in a plain row


class Ranges:
    """The part that reads ranges, by arrival or by reserved position."""

    def __init__(self, services: Services, damage: Damage) -> None:
        self._services = services
        self._damage = damage

    async def frontier(self) -> int:
        """Return an arrival number below which no message will arrive any more.

        All messages that arrived below it are durable.
        """
        number = self._services.ids.next_lookup_id(TRANSACTIONAL_LEVEL) & ARRIVAL_MAX
        if self._services.storage.pressure:
            await self._services.storage.batch.barrier()
        return number

    async def read(
        self,
        queue: LocalQueue,
        after: int,
        until: int,
        *,
        limit: int,
        bytes_max: int,
        wanted: Filter,
        bodies: bool,
    ) -> Rows:
        """Return messages that arrived behind `after` up to `until` (0: up to now).

        Taken messages are included, expired ones are not.  `limit` and `bytes_max` limit the
        answer, `wanted` selects messages, and without `bodies` the packets end before their body.
        Raises Refusal.
        """
        until = min(until or await self.frontier(), ARRIVAL_MAX)
        _check_range(after, until)
        express = [
            (message.lookup_id & ARRIVAL_MAX, whole_message(message))
            for message in queue.express.values()
            if after < message.lookup_id & ARRIVAL_MAX <= until
        ]
        return await self._read(
            queue,
            partial(ranges.arrived, queue_id=queue.id, after=after, until=until),
            until,
            limit,
            bytes_max,
            wanted,
            bodies=bodies,
            express=express,
        )

    async def read_reserved(
        self,
        held: ReaderQueue,
        after: int,
        until: int,
        *,
        limit: int,
        bytes_max: int,
        wanted: Filter,
        bodies: bool,
    ) -> Rows:
        """Return reserved messages by position: the same ones each time, until they are consumed.

        The parameters are those of `read`, with positions instead of arrival numbers.
        """
        _check_range(after, until)
        notes: list[Note] = []
        rows = await self._read(
            held.queue,
            lambda db: ranges.reserved(held.id, after, until),
            until,
            limit,
            bytes_max,
            wanted,
            bodies=bodies,
            notes=None if held.shared else notes,
        )
        held.notes.add([note for note in notes if note.after >= held.position])
        return rows

    async def _read(
        self,
        queue: LocalQueue,
        scans_of: Callable[[sqlite3.Connection], list[Scan]],
        until: int,
        limit: int,
        bytes_max: int,
        wanted: Filter,
        *,
        bodies: bool,
        express: list[tuple[int, StoredMessage]] | None = None,
        notes: list[Note] | None = None,
    ) -> Rows:
        matches = None if wanted == EVERYTHING else _matches(wanted)
        is_read_fully = bodies or matches is not None  # a filter needs the body
        rows_max = min(max(limit, 1), ROWS_MAX)
        bytes_max = min(max(bytes_max, 1), FRAME_BYTES)
        now_s = self._services.clock.now_s if express is not None else None

        def look(db: sqlite3.Connection) -> tuple[Rows, list[MessageRow]]:
            """Read on the thread of the storage's reader, so that the event loop can go on."""
            scans = scans_of(db)
            if bodies and matches is None and not express:
                quick = ranges.quick_page(db, scans, rows_max=rows_max, bytes_max=bytes_max)
                if quick is not None:
                    if notes is not None:
                        notes.extend(notes_of(quick, PIECE_MESSAGES, PIECE_BYTES))
                    return _quick_columns(quick, until), []
            found, may_be_more = ranges.page(
                db,
                scans,
                rows_max=rows_max,
                bytes_max=bytes_max,
                prefix=None if is_read_fully else HEAD_BYTES,
            )
            end = found[-1][_POSITION] if may_be_more else None
            broken: list[MessageRow] = []
            if is_read_fully:
                broken = [
                    _message_row(RangeRow._make(row))
                    for row in found
                    if crc32(row[_PACKET]) != row[_CHECKSUM]
                    and not is_whole(row[_PACKET], row[_CHECKSUM])
                ]
                if broken:
                    keys = {row.key for row in broken}
                    found = [row for row in found if row[_KEY] not in keys]
            if now_s is not None:
                found = [row for row in found if row[_EXPIRES] is None or row[_EXPIRES] >= now_s]
            if express:
                within = until if end is None else end
                found += [
                    _express_row(at, message)
                    for at, message in express
                    if at <= within
                    and (message.expires_at_s is None or message.expires_at_s >= now_s)  # type: ignore[operator]
                ]
                found.sort(key=itemgetter(0))
            if matches is not None:
                found = [row for row in found if matches(_stored(RangeRow._make(row)))]
            if not bodies:
                found = [_without_body(RangeRow._make(row)) for row in found]
            return _columns(found, end, until), broken

        rows, broken = await self._services.storage.read(look)
        if broken:
            self._damage.whole_messages(queue, broken)
        return rows

    async def split(self, queue: LocalQueue, parts: int, after: int, until: int) -> dict[str, Any]:
        """Split a range of arrival numbers into `parts` of about the same number of messages.

        Return the answer to the request `SplitRange`, without the queue's id.  Raises Refusal.
        """
        if not 1 <= parts <= PARTS_MAX:
            raise Refusal(
                "bad_limit", f"{parts} parts cannot be requested", f"Request 1 to {PARTS_MAX}."
            )
        until = min(until or await self.frontier(), ARRIVAL_MAX)
        _check_range(after, until)
        queue_id, count = queue.id, max(queue.messages, 0)
        express = [each & ARRIVAL_MAX for each in queue.express]

        def look(db: sqlite3.Connection) -> list[tuple[int, int, int]]:
            nonlocal count
            found = ranges.bounds(db, queue_id, after, until)
            if found is None and not express:
                return []
            if after:
                there = ranges.count(db, queue_id, after, until, COUNTED_MAX)
                if there < COUNTED_MAX:
                    count = there + sum(after < each <= until for each in express)
            first, last = found or (min(express), max(express))
            width = last - first + 1
            if parts == 1:
                return [(after, until, count)]
            if count >= _DENSE * width:
                edges = [first - 1 + width * at // parts for at in range(parts + 1)]
            else:
                numbers = ranges.arrivals(db, queue_id, after, until)
                step = max(len(numbers), 1) / parts
                edges = sorted(
                    {first - 1, *(numbers[int(step * at)] for at in range(1, parts)), last}
                    if numbers
                    else {first - 1, last}
                )
            # Express messages and those that were moved in may be before or behind these edges.
            edges[0], edges[-1] = after, until
            pieces = len(edges) - 1
            return [(low, high, count // pieces) for low, high in pairwise(edges) if low < high]

        found = await self._services.storage.read(look)
        return {
            "until": until,
            "messages": count if found else 0,
            "bytes": queue.own_bytes,
            "ranges": found,
        }


def _check_range(after: int, until: int) -> None:
    if after > until:
        raise Refusal(
            "bad_range",
            f"the range after position {after} to {until} is not valid",
            "The end must not be before the beginning.",
        )


def _matches(wanted: Filter) -> Matches:
    chosen = filter_of(wanted.choice)
    lookup_ids = set(wanted.choice.lookup_ids)
    sequence_id, first, last = wanted.sequence_id, wanted.sequence_from, wanted.sequence_until
    of_sequence = sequence_id is not None or first is not None or last is not None

    def matches(message: StoredMessage) -> bool:
        if lookup_ids and message.lookup_id not in lookup_ids:
            return False
        if of_sequence:
            header = parse_user_message(message.packet).transaction
            if header is None:
                return False
            if sequence_id is not None and header.sequence_id != sequence_id:
                return False
            if first is not None and header.sequence_number < first:
                return False
            if last is not None and header.sequence_number > last:
                return False
        return chosen(message)

    return matches


def _columns(rows: Sequence[Plain], end: int | None, until: int) -> Rows:
    """Return the answer for plain rows, built in one pass for each column."""
    if not rows:
        none = b""
        return Rows(0, end, until, none, none, none, none, none, none, bytes(4), none)
    positions, keys, arrived, expires, reasons, aborts, moves, *_, packets = zip(*rows, strict=True)
    offsets = array("i", accumulate(map(len, packets), initial=0))
    never = all(each is None for each in expires)
    return Rows(
        len(rows),
        end,
        until,
        _longs(positions),
        _longs([key & LOOKUP_MASK for key in keys]),
        _longs(arrived),
        b"\xff" * (8 * len(rows))
        if never
        else _longs([-1 if each is None else each for each in expires]),
        _ints(aborts),
        _ints(moves),
        _little(offsets).tobytes(),
        b"".join(packets),
        list(reasons) if any(reasons) else None,
    )


def _quick_columns(page: QuickPage, until: int) -> Rows:
    """Return the answer for a page of messages with default values in most columns."""
    count = len(page.positions)
    zeros = bytes(4 * count)
    return Rows(
        count,
        page.positions[-1] if page.may_be_more else None,
        until,
        _little(page.positions).tobytes(),
        _little(page.lookup_ids).tobytes(),
        _little(page.arrived_at_ms).tobytes(),
        b"\xff" * (8 * count),
        zeros,
        zeros,
        _little(page.offsets).tobytes(),
        page.packets,
    )


def _longs(values: Any) -> bytes:
    return _little(array("q", values)).tobytes()


def _ints(values: Any) -> bytes:
    return _little(array("i", values)).tobytes()


def _little(values: array[int]) -> array[int]:
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _without_body(row: RangeRow) -> RangeRow:
    """Return the row with its packet up to the body, as far as that was read."""
    packet = row.packet
    try:
        at = properties_offset(packet)
    except (
        ProtocolError
    ):  # its head is longer, or it is damaged, which only the full packet could show
        return row
    label = packet[at + 1] * 2
    extension = int.from_bytes(packet[at + 52 : at + 56], "little")
    return row._replace(packet=packet[: at + _PROPERTIES_BYTES + label + extension])


def _stored(row: RangeRow) -> StoredMessage:
    return StoredMessage(
        row.key & LOOKUP_MASK,
        row.arrived_at_ms,
        row.packet,
        row.reason,
        row.abort_count,
        row.move_count,
        None,
        row.expires_at_s,
    )


def _message_row(row: RangeRow) -> MessageRow:
    return MessageRow(
        row.key,
        row.arrived_at_ms,
        row.expires_at_s,
        row.reason,
        row.abort_count,
        row.move_count,
        None,
        row.checksum,
        None,
        None,
        row.packet,
    )


def _express_row(position: int, message: StoredMessage) -> RangeRow:
    return RangeRow(
        position,
        message.lookup_id,
        message.arrived_at_ms,
        message.expires_at_s,
        message.reason,
        message.abort_count,
        message.move_count,
        None,
        None,
        None,
        message.packet,
    )
