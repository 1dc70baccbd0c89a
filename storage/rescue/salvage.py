"""Extraction of rows from a database that may be damaged, page by page.

Tables are trees of pages.  Their rows are in the leaves; tables without rowids have rows in the
interior pages too.  A leaf is found from its root if the pages between are intact, and otherwise by
the pointer map, which holds each page's parent.  So a damaged page costs only its own rows.

Some rows may have been deleted long ago: those on a free page, or on a page about which its sources
disagree (trees.py); rows with an inconsistent extent in the page (cells.py); and rows that end in
pages that belong to others.  Such rows are yielded with the reason (`FoundRow.doubt`), after all
others.  A page that is an older state of itself, and contradicts nothing, cannot be detected: its
rows count as certain.
"""

import struct
from collections import Counter
from collections.abc import Callable, Container, Iterator
from typing import NamedTuple

from storage.rescue.cells import (
    INTERIOR_INDEX,
    INTERIOR_TABLE,
    KINDS,
    LEAF_INDEX,
    LEAF_TABLE,
    Cell,
    Unreadable,
    Value,
    read_page,
    record,
)
from storage.rescue.database_file import (
    FIRST_OVERFLOW,
    FREE,
    LATER_OVERFLOW,
    ROOT,
    TREE,
    DatabaseFile,
)
from storage.rescue.trees import INDEX, SCHEMA, SCHEMA_ROOT, Trees, Use

__all__ = ["INDEX", "UNKNOWN", "Fault", "FoundRow", "Layout", "Salvage", "Value", "salvage"]

#: By root: the table, or INDEX.
Layout = dict[int, str]
#: A table that lost its name, with present rows.
UNKNOWN = "?"

_ROWS = frozenset((INTERIOR_INDEX, LEAF_INDEX, LEAF_TABLE))  # kinds of pages with rows


class FoundRow(NamedTuple):
    table: str  # "": of no table; UNKNOWN: of an existing table that is not known
    rowid: int
    values: tuple[Value, ...]  # in the order of the columns; the rowid's own column is None
    doubt: str | None  # why it may have been deleted, or may never have existed

    @property
    def certain(self) -> bool:
        return self.doubt is None


class Fault(NamedTuple):
    """An unreadable part: its table, its page, and a sentence about the fault."""

    table: str | None
    page: int
    sentence: str


def salvage(file: DatabaseFile) -> Iterator[FoundRow | Fault]:
    """Yield all rows of all tables, and all faults."""
    return Salvage(file).run()


class Salvage:
    """The rows of one database file; each iteration yields them in the same order."""

    def __init__(self, file: DatabaseFile, layout: Callable[[int], Layout] = lambda _: {}) -> None:
        """Walk the trees; `layout` returns the roots of a new database, for a damaged schema."""
        self._file = file
        self._trees = Trees(file)
        self._free = file.freelist()
        self._trees.walk(SCHEMA_ROOT, SCHEMA)
        roots: dict[int, str] = {}
        has_all = not self._trees.faults
        for number, use in list(self._uses()):
            if use.table == SCHEMA and use.doubt is None:
                has_all &= self._add_roots(number, use, roots)
        if not has_all:
            roots |= self._lost_roots(roots, layout(file.page_bytes))
        for root, table in roots.items():
            self._trees.walk(root, table)
        self._named: list[int] = []
        self._unnamed: list[tuple[int, Use]] = []
        self._doubted: list[tuple[int, Use]] = []
        for number, use in self._uses():
            if use.doubt is not None:
                self._doubted.append((number, use))
            elif use.is_named:
                self._named.append(number)
            else:
                self._unnamed.append((number, use))
        self._twice = self._keys_of_two(number for number, _ in self._unnamed)

    def run(self) -> Iterator[FoundRow | Fault]:
        """Yield all rows of all tables, and all faults."""
        yield from self.faults()
        yield from self.rows()

    def faults(self) -> Iterator[Fault]:
        """Yield the faults of the trees: pages that contradict the pages above them."""
        yield from map(Fault._make, self._trees.faults)
        for number in range(1, self._file.page_count + 1):
            if self._is_lost(number):
                yield Fault(None, number, f"page {number} does not have the expected content")
        for number, use in self._doubted:
            yield Fault(use.table or None, number, f"page {number} is in doubt: {use.doubt}")

    def rows(self, tables: Container[str] | None = None) -> Iterator[FoundRow | Fault]:
        """Yield the rows of these tables (None: all), with the faults of their pages.

        Certain rows come first, and among them first those on which all sources agree.
        """
        for number in self._named:
            use = self._trees.use(number)
            assert use is not None
            if tables is not None and use.table not in tables:
                continue
            for found in self._rows(number, use):
                if use.table != SCHEMA or isinstance(found, Fault):
                    yield found
        for number, use in (*self._unnamed, *self._doubted):
            if tables is None or use.table in tables:
                yield from self._rows(number, use)

    def _uses(self) -> Iterator[tuple[int, Use]]:
        """Yield all pages that have, or had, rows of tables."""
        for number in range(1, self._file.page_count + 1):
            if not self._file.is_content(number):
                continue
            use = self._trees.use(number) if self._kind(number) in _ROWS else None
            if use is None or (use.is_named and use.table == INDEX and use.doubt is None):
                continue
            if use.table != INDEX:
                yield number, use
            elif self._kind(number) == LEAF_TABLE:  # rows of indexes are not needed
                yield number, use._replace(doubt=use.doubt or "its page belongs to no table")

    def _kind(self, number: int) -> int:
        data = self._file.page(number)
        start = 100 if number == SCHEMA_ROOT else 0
        return data[start] if len(data) == self._file.page_bytes else -1

    def _is_lost(self, number: int) -> bool:
        """Return whether the map assigns the page to a table, but its content does not fit."""
        return (
            self._file.is_content(number)
            and self._file.pointer(number)[0] == TREE
            and number not in self._free.pages
            and not self._trees.names(number)
            and self._kind(number) not in KINDS
        )

    def _add_roots(self, number: int, use: Use, roots: dict[int, str]) -> bool:
        """Add the roots of tables and indexes that one page of the schema names.

        Returns whether the page yields all its rows.  A row of the schema: type, name, table, root
        page, SQL.
        """
        is_whole = True
        for row in self._rows(number, use):
            if not isinstance(row, FoundRow) or not row.certain or len(row.values) != 5:
                is_whole = False
                continue
            kind, name, _, root, _ = row.values
            if kind in ("table", "index") and isinstance(root, int) and root > 0:
                roots[root] = str(name) if kind == "table" else INDEX
        return is_whole

    def _lost_roots(self, known: dict[int, str], layout: Layout) -> Layout:
        """Return roots that the map knows, and the rest of the schema does not.

        If the rest of the schema is as in a new database, the lost part is assumed to be the same.
        Otherwise the table must be derived from the rows.
        """
        is_as_new = all(layout.get(root) == table for root, table in known.items())
        found: Layout = {}
        for number in range(3, self._file.page_count + 1):
            if number in known or self._file.pointer(number)[0] != ROOT:
                continue
            if not self._file.is_content(number) or number in self._free.pages:
                continue
            is_table = self._kind(number) in (LEAF_TABLE, INTERIOR_TABLE)
            found[number] = layout.get(number, UNKNOWN) if is_as_new else UNKNOWN
            if found[number] == UNKNOWN and not is_table:
                found[number] = INDEX
        return found

    def _keys_of_two(self, numbers: Iterator[int]) -> set[int]:
        """Return rowids that occur on two pages which no page names: at most one of them is
        present.
        """
        counted: Counter[int] = Counter()
        for number in numbers:
            try:
                page = read_page(self._file.page(number), number)
            except Unreadable:
                continue
            if page.kind == LEAF_TABLE:
                counted.update({cell.rowid for cell in page.cells})
        return {rowid for rowid, count in counted.items() if count > 1}

    def _rows(self, number: int, use: Use) -> Iterator[FoundRow | Fault]:
        try:
            page = read_page(self._file.page(number), number)
        except Unreadable as error:
            if use.doubt is None:
                yield Fault(use.table, number, f"page {number} cannot be read: {error}")
            return
        if use.doubt is None:
            for fault in page.faults:
                yield Fault(use.table, number, f"page {number}: {fault}")
        for cell in page.cells:
            try:
                payload, doubt = self._payload(cell, number)
                values = record(payload)
            except (Unreadable, struct.error, IndexError) as error:
                if use.doubt is None:
                    yield Fault(use.table, number, f"page {number}: row {cell.at}: {error}")
                continue
            doubt = cell.doubt or doubt or self._doubt_of_key(cell, page.kind, use)
            if doubt and use.doubt is None:
                yield Fault(use.table, number, f"page {number}: row {cell.at}: {doubt}")
            yield FoundRow(use.table, cell.rowid, values, use.doubt or doubt)

    def _doubt_of_key(self, cell: Cell, kind: int, use: Use) -> str | None:
        if kind != LEAF_TABLE:
            return None
        if use.place is not None and not use.place.has(cell.rowid):
            return "the pages above it give it another place"
        if not use.is_named and cell.rowid in self._twice:
            return "another row has its key, and no page names either of them"
        return None

    def _payload(self, cell: Cell, number: int) -> tuple[bytes, str | None]:
        """Return the complete record, and a reason if its end may not be its own.

        1.6.1: the rest of a long row is in a chain of pages.  Raises Unreadable.
        """
        if cell.size > self._file.page_count * self._file.page_bytes:
            raise Unreadable(f"it states {cell.size} bytes")
        payload = bytearray(cell.local)
        following, before, kind = cell.overflow, number, FIRST_OVERFLOW
        doubt: str | None = None
        while len(payload) < cell.size:
            data = self._file.page(following) if following <= self._file.page_count else b""
            if following < 2 or len(data) < self._file.page_bytes:
                raise Unreadable(f"it continues in page {following}, which cannot be read")
            doubt = doubt or self._doubt_of_overflow(following, (kind, before))
            before, kind = following, LATER_OVERFLOW
            (following,) = struct.unpack_from(">I", data)
            payload += data[4 : 4 + cell.size - len(payload)]
        if cell.overflow and following != 0:
            doubt = doubt or "it ends at the wrong place"
        return bytes(payload), doubt

    def _doubt_of_overflow(self, number: int, expected: tuple[int, int]) -> str | None:
        if number in self._free.pages:
            return f"its end is in page {number}, which is free"
        if number in self._file.former:
            return f"its end is in page {number}, of which only an older state is left"
        found = self._file.pointer(number)
        if found in ((0, 0), expected) or (found[0] == FREE and self._free.is_sound):
            return None  # the page is not free, so that entry of the map is damaged
        return f"its end is in page {number}, which belongs to another row"
