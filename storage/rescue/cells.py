"""One page of a tree: its cells, and whether they can be part of its present content.

The format: https://sqlite.org/fileformat2.html 1.6 and 2.1.  A page keeps deleted rows until their
space is needed, so a damaged pointer may lead to a deleted row.  But the present rows and the free
blocks together fill the page without overlap: a cell that overlaps another extent, or lies outside
the content area, is not certain.
"""

import struct
from bisect import bisect_left
from itertools import pairwise
from typing import NamedTuple

Value = int | float | str | bytes | None

INTERIOR_INDEX, INTERIOR_TABLE, LEAF_INDEX, LEAF_TABLE = 2, 5, 10, 13
KINDS = frozenset((INTERIOR_INDEX, INTERIOR_TABLE, LEAF_INDEX, LEAF_TABLE))
INTERIORS = frozenset((INTERIOR_INDEX, INTERIOR_TABLE))

DATABASE_HEADER_BYTES = 100  # before the first page's own header
# kind, first free block, cells, start of the cells, fragmented bytes
_PAGE_HEADER = struct.Struct(">B3HB")
_FREE_BLOCK = struct.Struct(">2H")
_CELL_BYTES_MIN = 4


class Unreadable(Exception):
    """Bytes that do not form a row."""


class Cell(NamedTuple):
    at: int  # index in its page, from 0
    child: int  # of an interior page; otherwise 0
    rowid: int  # of a table; otherwise 0
    size: int  # of the complete record
    local: bytes  # the part of the record in this page
    overflow: int  # the page with the next part; 0: none
    doubt: str | None  # why it may not be a present row


class Page(NamedTuple):
    kind: int
    cells: list[Cell]
    last_child: int  # of an interior page; otherwise 0
    faults: list[str]


def read_page(data: bytes, number: int) -> Page:
    """Parse a page of a tree, all of its bytes.  Raises Unreadable if it is not one."""
    start = DATABASE_HEADER_BYTES if number == 1 else 0
    if len(data) <= start or data[start] not in KINDS:
        raise Unreadable("it is not a page of a tree")
    kind, free_block, count, cells_start, loose = _PAGE_HEADER.unpack_from(data, start)
    cells_start = cells_start or 65536
    is_interior = kind in INTERIORS
    pointers = start + (12 if is_interior else 8)
    pointers_end = pointers + 2 * count
    if pointers_end > len(data):
        raise Unreadable(f"it states {count} rows")
    last_child = struct.unpack_from(">I", data, start + 8)[0] if is_interior else 0
    faults: list[str] = []
    cells: list[Cell] = []
    extents: list[tuple[int, int, int]] = []  # start, end, index of the cell
    for index, offset in enumerate(struct.unpack_from(f">{count}H", data, pointers)):
        try:
            cell, end = _cell(data, offset, index, kind)
        except (Unreadable, struct.error, IndexError) as error:
            faults.append(f"row {index}: {error}")
            continue
        extents.append((offset, max(end, offset + _CELL_BYTES_MIN), len(cells)))
        cells.append(cell)
    blocks, are_sound = _free_blocks(data, free_block, max(pointers_end, cells_start))
    used = sum(end - begin for begin, end, _ in (*extents, *blocks))
    if not are_sound:
        faults.append("its free blocks contradict each other")
        cells = [cell._replace(doubt="the free blocks of its page are not known") for cell in cells]
    elif used + loose != len(data) - cells_start and not faults:
        faults.append("its rows and free blocks do not add up to its size")
    for which in _misplaced(extents, blocks, max(pointers_end, cells_start)):
        cell = cells[which]
        faults.append(f"row {cell.at}: it overlaps another extent or lies outside the content")
        cells[which] = cell._replace(doubt="its extent in its page is not its own")
    if kind in (LEAF_TABLE, INTERIOR_TABLE):
        for which in _out_of_order([cell.rowid for cell in cells]):
            cell = cells[which]
            faults.append(f"row {cell.at}: it is out of order")
            cells[which] = cell._replace(doubt="it is out of order in its page")
    return Page(kind, cells, last_child, faults)


def _cell(data: bytes, offset: int, index: int, kind: int) -> tuple[Cell, int]:
    """Return one cell and its end offset.  Raises Unreadable, struct.error, IndexError."""
    child = rowid = size = 0
    if kind in INTERIORS:
        (child,) = struct.unpack_from(">I", data, offset)
        offset += 4
    if kind != INTERIOR_TABLE:
        size, offset = varint(data, offset)
    if kind in (LEAF_TABLE, INTERIOR_TABLE):
        rowid, offset = varint(data, offset)
        rowid -= (rowid >> 63) << 64
    if kind == INTERIOR_TABLE:
        return Cell(index, child, rowid, 0, b"", 0, None), offset
    local = _local_bytes(size, len(data), in_table=kind == LEAF_TABLE)
    end = offset + local
    overflow = 0
    if local < size:
        (overflow,) = struct.unpack_from(">I", data, end)
    if end + 4 * (local < size) > len(data):
        raise Unreadable("it is longer than its page")
    cell = Cell(index, child, rowid, size, data[offset:end], overflow, None)
    return cell, end + 4 * (local < size)


def _local_bytes(size: int, page_bytes: int, *, in_table: bool) -> int:
    """Return how much of a record its page holds.  1.6, the bytes of the payload."""
    local_max = page_bytes - 35 if in_table else (page_bytes - 12) * 64 // 255 - 23
    if size <= local_max:
        return size
    local_min = (page_bytes - 12) * 32 // 255 - 23
    surplus = local_min + (size - local_min) % (page_bytes - 4)
    return surplus if surplus <= local_max else local_min


def _free_blocks(data: bytes, first: int, start: int) -> tuple[list[tuple[int, int, int]], bool]:
    """Return the free extents of the page in ascending order, and whether they are consistent."""
    found: list[tuple[int, int, int]] = []
    end = start
    while first:
        if first < end or first + _FREE_BLOCK.size > len(data):
            return found, False
        following, size = _FREE_BLOCK.unpack_from(data, first)
        end = first + size
        if size < _FREE_BLOCK.size or end > len(data):
            return found, False
        found.append((first, end, -1))
        first = following
    return found, True


def _misplaced(
    extents: list[tuple[int, int, int]], blocks: list[tuple[int, int, int]], start: int
) -> list[int]:
    """Return the cells that overlap another extent, or start before the content area."""
    found = {which for begin, _, which in extents if begin < start}
    last_end, last = 0, -1
    for begin, end, which in sorted((*extents, *blocks)):
        if begin < last_end:
            found |= {which, last}
        if end > last_end:
            last_end, last = end, which
    return sorted(found - {-1})


def _out_of_order(rowids: list[int]) -> list[int]:
    """Return the smallest set of positions without which the rest ascends."""
    if all(before < after for before, after in pairwise(rowids)):
        return []
    ends: list[int] = []  # the lowest rowid that ends an ascending sequence, by length
    lengths: list[int] = []
    for rowid in rowids:
        length = bisect_left(ends, rowid)
        if length == len(ends):
            ends.append(rowid)
        else:
            ends[length] = rowid
        lengths.append(length)
    kept: set[int] = set()
    wanted, above = len(ends) - 1, None
    for place in range(len(rowids) - 1, -1, -1):
        if lengths[place] == wanted and (above is None or rowids[place] < above):
            kept.add(place)
            wanted, above = wanted - 1, rowids[place]
    return [place for place in range(len(rowids)) if place not in kept]


def varint(data: bytes, offset: int) -> tuple[int, int]:
    """Return an integer and its end offset (2.1: seven bits per byte, the highest first).

    A ninth byte has eight bits.  Raises IndexError.
    """
    value = 0
    for position in range(offset, offset + 8):
        byte = data[position]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, position + 1
    return value << 8 | data[offset + 8], offset + 9


def record(payload: bytes) -> tuple[Value, ...]:
    """Parse a record (2.1, Record Format): the types of all values, then the values.

    Raises Unreadable, IndexError.
    """
    header_bytes, position = varint(payload, 0)
    end = header_bytes
    values: list[Value] = []
    while position < header_bytes:
        kind, position = varint(payload, position)
        size = _value_bytes(kind)
        if end + size > len(payload):
            raise Unreadable("a value is longer than the row")
        values.append(_value(kind, payload[end : end + size]))
        end += size
    if position != header_bytes or end != len(payload):
        raise Unreadable("its values are shorter than the row")
    return tuple(values)


def _value_bytes(kind: int) -> int:
    if kind >= 12:
        return (kind - 12) // 2
    if kind in (10, 11):
        raise Unreadable(f"a value is of type {kind}")
    return (0, 1, 2, 3, 4, 6, 8, 8, 0, 0)[kind]


def _value(kind: int, data: bytes) -> Value:
    if kind >= 12:
        if kind % 2 == 0:
            return data
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise Unreadable("a text is not UTF-8") from error
    if kind == 0:
        return None
    if kind == 7:
        return float(struct.unpack(">d", data)[0])
    if kind in (8, 9):
        return kind - 8
    return int.from_bytes(data, "big", signed=True)
