"""Rows out of a database that may be damaged, page by page.

Tables are trees of pages; their rows stand in the leaves.  A leaf is found from its root as long as
the pages between are whole, and otherwise by the pointer map, which knows each page's parent.  So a
damaged page costs what stands in it, and nothing else.

What is found by neither may be a page that was given back: its rows may have been deleted long ago.
They are told apart as uncertain.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from storage.database_file import (
    FIRST_OVERFLOW,
    FREE,
    LATER_OVERFLOW,
    ROOT,
    TREE,
    DatabaseFile,
)
from storage.options import PAGE_BYTES

Value = int | float | str | bytes | None

_INTERIOR_INDEX, _INTERIOR_TABLE, _LEAF_INDEX, _LEAF_TABLE = 2, 5, 10, 13
_HEADER_BYTES = 100  # of the first page
_SCHEMA_ROOT = 1
_CELLS_MAX = PAGE_BYTES // 4

# 1.6, B-tree Pages: how much of a long row stands in its leaf.
_LOCAL_MAX = PAGE_BYTES - 35
_LOCAL_MAX_INDEX = (PAGE_BYTES - 12) * 64 // 255 - 23
_LOCAL_MIN = (PAGE_BYTES - 12) * 32 // 255 - 23


class FoundRow(NamedTuple):
    table: str
    rowid: int
    values: tuple[Value, ...]  # in the order of the columns; the rowid's own is None
    certain: bool


class Fault(NamedTuple):
    """Something that could not be read: what it was, and what is wrong with it."""

    table: str | None
    page: int
    sentence: str


class _Unreadable(Exception):
    pass


def salvage(file: DatabaseFile) -> Iterator[FoundRow | Fault]:
    """All rows of all tables, and all that stood in their way."""
    return _Salvage(file).run()


class _Salvage:
    def __init__(self, file: DatabaseFile) -> None:
        self._file = file
        self._tables: dict[int, str] = {_SCHEMA_ROOT: "sqlite_schema"}
        self._leaves: dict[int, str] = {}
        self._faults: list[Fault] = []
        self._free = file.free_pages()

    def run(self) -> Iterator[FoundRow | Fault]:
        self._walk(_SCHEMA_ROOT, "sqlite_schema")
        for page in sorted(self._leaves):
            for found in self._rows(page, "sqlite_schema", certain=True):
                if isinstance(found, FoundRow):
                    self._add_table(found.values)
                else:
                    yield found
        for root, table in list(self._tables.items()):
            self._walk(root, table)
        yield from self._faults
        for number in range(1, self._file.page_count + 1):
            if self._file.is_content(number):
                yield from self._page(number)

    def _add_table(self, row: tuple[Value, ...]) -> None:
        """A row of the schema: type, name, table, root page, SQL."""
        if len(row) == 5 and row[0] == "table" and isinstance(row[3], int):
            self._tables[row[3]] = str(row[1])

    def _walk(self, root: int, table: str) -> None:
        """Find the leaves below `root`, as far as the way is whole."""
        waiting, seen = [root], set[int]()
        while waiting:
            number = waiting.pop()
            if number in seen or not 1 <= number <= self._file.page_count:
                self._fault(table, number, "is referred to where it cannot be")
                continue
            seen.add(number)
            data = self._file.page(number)
            start = _HEADER_BYTES if number == _SCHEMA_ROOT else 0
            kind = data[start] if len(data) == PAGE_BYTES else -1
            if kind in (_LEAF_TABLE, _LEAF_INDEX):
                self._leaves[number] = table
            elif kind == _INTERIOR_TABLE:
                waiting += self._children(data, start)
            elif kind != _INTERIOR_INDEX:
                self._fault(table, number, "is not what it should be")

    def _children(self, data: bytes, start: int) -> Iterator[int]:
        (count,) = struct.unpack_from(">H", data, start + 3)
        yield struct.unpack_from(">I", data, start + 8)[0]
        for index in range(min(count, _CELLS_MAX)):
            (offset,) = struct.unpack_from(">H", data, start + 12 + 2 * index)
            if offset + 4 <= PAGE_BYTES:
                yield struct.unpack_from(">I", data, offset)[0]

    def _page(self, number: int) -> Iterator[FoundRow | Fault]:
        table = self._leaves.get(number)
        if table is not None:
            if table != "sqlite_schema":
                yield from self._rows(number, table, certain=True)
            return
        kind, _ = self._file.pointer(number)
        if number in self._free or kind in (FREE, FIRST_OVERFLOW, LATER_OVERFLOW):
            return
        data = self._file.page(number)
        page_kind = data[0] if len(data) == PAGE_BYTES else -1
        table = self._table_above(number)
        if table is None:
            if page_kind == _LEAF_TABLE:
                yield from self._rows(number, "", certain=False)
        elif page_kind in (_LEAF_TABLE, _LEAF_INDEX):
            yield from self._rows(number, table, certain=True)
        elif page_kind not in (_INTERIOR_TABLE, _INTERIOR_INDEX):
            yield Fault(table, number, f"page {number} is not what it should be")

    def _table_above(self, number: int) -> str | None:
        """By the pointer map, up to the root."""
        seen: set[int] = set()
        while number not in seen:
            seen.add(number)
            kind, parent = self._file.pointer(number)
            if kind == ROOT:
                return self._tables.get(number)
            if kind != TREE:
                return None
            number = parent
        return None

    def _rows(self, number: int, table: str, *, certain: bool) -> Iterator[FoundRow | Fault]:
        data = self._file.page(number)
        start = _HEADER_BYTES if number == _SCHEMA_ROOT else 0
        is_index = data[start] == _LEAF_INDEX
        (count,) = struct.unpack_from(">H", data, start + 3)
        if count > _CELLS_MAX:
            yield Fault(table, number, f"page {number} says that it has {count} rows")
            return
        for index in range(count):
            try:
                (offset,) = struct.unpack_from(">H", data, start + 8 + 2 * index)
                rowid, payload = self._cell(data, offset, is_index=is_index)
                yield FoundRow(table, rowid, _record(payload), certain)
            except (_Unreadable, struct.error, IndexError) as error:
                if certain:
                    yield Fault(table, number, f"row {index} of page {number}: {error}")

    def _cell(self, data: bytes, offset: int, *, is_index: bool) -> tuple[int, bytes]:
        """The rowid and the whole record of a row."""
        size, offset = _varint(data, offset)
        rowid = 0
        if not is_index:
            rowid, offset = _varint(data, offset)
            rowid -= (rowid >> 63) << 64
        if size > self._file.page_count * PAGE_BYTES:
            raise _Unreadable(f"it says that it has {size} bytes")
        local = _local_bytes(size, _LOCAL_MAX_INDEX if is_index else _LOCAL_MAX)
        if offset + local > PAGE_BYTES:
            raise _Unreadable("it is longer than its page")
        payload = bytearray(data[offset : offset + local])
        if local < size:
            (following,) = struct.unpack_from(">I", data, offset + local)
            self._overflow(payload, following, size)
        return rowid, bytes(payload)

    def _overflow(self, payload: bytearray, following: int, size: int) -> None:
        """1.6.1: the rest of a long row, in a chain of pages."""
        while len(payload) < size:
            data = self._file.page(following) if 1 < following <= self._file.page_count else b""
            if len(data) < PAGE_BYTES:
                raise _Unreadable(f"it goes on in page {following}, which is not there")
            (following,) = struct.unpack_from(">I", data)
            payload += data[4 : 4 + size - len(payload)]
        if following != 0:
            raise _Unreadable("it does not end where it should")

    def _fault(self, table: str, number: int, what: str) -> None:
        self._faults.append(Fault(table, number, f"page {number} {what}"))


def _local_bytes(size: int, local_max: int) -> int:
    if size <= local_max:
        return size
    surplus = _LOCAL_MIN + (size - _LOCAL_MIN) % (PAGE_BYTES - 4)
    return surplus if surplus <= local_max else _LOCAL_MIN


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    """2.1: seven bits a byte, the highest first; a ninth byte has eight.  And where it ends."""
    value = 0
    for position in range(offset, offset + 8):
        byte = data[position]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, position + 1
    return value << 8 | data[offset + 8], offset + 9


def _record(payload: bytes) -> tuple[Value, ...]:
    """2.1, Record Format: the types of all values, then the values."""
    header_bytes, position = _varint(payload, 0)
    end = header_bytes
    values: list[Value] = []
    while position < header_bytes:
        kind, position = _varint(payload, position)
        size = _value_bytes(kind)
        if end + size > len(payload):
            raise _Unreadable("a value is longer than the row")
        values.append(_value(kind, payload[end : end + size]))
        end += size
    if position != header_bytes or end != len(payload):
        raise _Unreadable("its values do not fill it")
    return tuple(values)


def _value_bytes(kind: int) -> int:
    if kind >= 12:
        return (kind - 12) // 2
    if kind in (10, 11):
        raise _Unreadable(f"a value is of type {kind}")
    return (0, 1, 2, 3, 4, 6, 8, 8, 0, 0)[kind]


def _value(kind: int, data: bytes) -> Value:
    if kind >= 12:
        if kind % 2 == 0:
            return data
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise _Unreadable("a text is not UTF-8") from error
    if kind == 0:
        return None
    if kind == 7:
        return float(struct.unpack(">d", data)[0])
    if kind in (8, 9):
        return kind - 8
    return int.from_bytes(data, "big", signed=True)
