"""The assignment of pages to tables: three sources, and whether they agree.

    the tree      the page above names it, and limits the rowids of its rows
    the map       holds the kind of each page, and the page above it
    the freelist  names the free pages

A present page appears consistently in all of them.  A page that was freed, or that the disk has put
in the place of another, may still look valid, although its rows were deleted long ago: so if
sources contradict each other, or only one of them is left, the rows are in doubt.
"""

from collections.abc import Iterator
from typing import NamedTuple

from storage.rescue.cells import (
    INTERIOR_TABLE,
    INTERIORS,
    KINDS,
    Page,
    Unreadable,
    read_page,
)
from storage.rescue.database_file import (
    FIRST_OVERFLOW,
    FREE,
    LATER_OVERFLOW,
    ROOT,
    TREE,
    DatabaseFile,
)

SCHEMA_ROOT = 1
SCHEMA = "sqlite_schema"
INDEX = ""  # used as table name: an index only repeats rows of tables


class Place(NamedTuple):
    """The position of a page in a tree.  Its rowids are above `low`, and `high` at most."""

    table: str
    parent: int  # 0: it is a root
    low: int | None = None
    high: int | None = None

    def has(self, rowid: int) -> bool:
        return (self.low is None or rowid > self.low) and (self.high is None or rowid <= self.high)


class Use(NamedTuple):
    """The assignment of a page with rows.  `table` is "" if it is not known."""

    table: str
    #: If no readable page names the page: the place of the nearest page above it that is named and
    #: cannot be read.  None: there is none.
    place: Place | None
    doubt: str | None
    is_named: bool


class Trees:
    """The trees of a database: call `walk` for each root, then `use` for pages."""

    def __init__(self, file: DatabaseFile) -> None:
        self._file = file
        self._places: dict[int, Place] = {}
        self._roots: dict[int, str] = {SCHEMA_ROOT: SCHEMA}
        self._broken: dict[int, Place] = {}  # pages that were named and cannot be read
        self._children: dict[int, frozenset[int]] = {}  # of readable interior pages
        self._free = file.freelist()
        #: Faults of the trees: table, page, sentence.
        self.faults: list[tuple[str, int, str]] = []
        if not self._free.is_sound and file.newest(1):
            self.faults.append((INDEX, 1, "the list of free pages is damaged"))

    def walk(self, root: int, table: str) -> None:
        """Find the pages below `root`, as far as the pages on the way are intact."""
        self._roots[root] = table
        waiting = [(root, Place(table, 0))]
        while waiting:
            number, place = waiting.pop()
            if not self._accepts(number, place):
                continue
            self._places[number] = place
            if self._free_by(number, self._file.pointer(number)[0]):
                self._fault(place, number, f"is free, and page {place.parent} names it")
            page = self._read(number, place)
            if page is None and number == SCHEMA_ROOT:
                waiting += [(child, Place(table, number)) for child in self._below(number)]
            elif page is not None and page.kind in INTERIORS:
                children = list(_children(page, place))
                self._children[number] = frozenset(child for child, _, _ in children)
                waiting += [
                    (child, Place(table, number, low, high)) for child, low, high in children
                ]

    def use(self, number: int) -> Use | None:
        """Return the assignment of a page; None if the page certainly has no present rows."""
        kind, parent = self._file.pointer(number)
        place = self._places.get(number)
        if number == SCHEMA_ROOT:
            return Use(SCHEMA, place, None, is_named=True)
        if free := self._free_by(number, kind):
            if place is None and (kind in (0, FREE) or not self._is_tree(kind)):
                return None
            if place is not None and len(free) == 2:
                return None
            return self._in_doubt(number, f"its page is free by {free[0]}")
        if number in self._file.former:
            return self._in_doubt(number, "its page is an older state: the newest is damaged")
        if place is not None:
            doubt = self._doubt_of_place(place, kind, parent)
            return Use(place.table, place, doubt, is_named=True)
        if kind in (FIRST_OVERFLOW, LATER_OVERFLOW):
            return None
        return self._unnamed(number, kind, parent)

    def names(self, number: int) -> bool:
        """Return whether a readable page names this one."""
        return number in self._places

    def _in_doubt(self, number: int, doubt: str) -> Use:
        place = self._places.get(number)
        table = self._table_above(number) if place is None else place.table
        return Use(table or "", place, doubt, is_named=place is not None)

    def _free_by(self, number: int, kind: int) -> list[str]:
        found = ["the list of free pages"] if number in self._free.pages else []
        return [*found, "the pointer map"] if kind == FREE else found

    def _is_tree(self, kind: int) -> bool:
        return kind in (ROOT, TREE)

    def _doubt_of_place(self, place: Place, kind: int, parent: int) -> str | None:
        """Return the doubt about a page that is named by the page above it and is not free."""
        agrees = (kind, parent) == (TREE, place.parent) if place.parent else kind == ROOT
        if agrees:
            return None
        if not self._free.is_sound:
            return "only one other page names its page, and that may be damaged"
        if kind == TREE and self._file.newest(parent) == b"":
            return "by the pointer map its page belongs below another, which cannot be read"
        return None  # the entry of the map is damaged

    def _unnamed(self, number: int, kind: int, parent: int) -> Use:
        """Return the assignment of a page that no readable page names and that is not free."""
        if self._table_above(number) is None:
            return self._in_doubt(number, "its page belongs to no table any more")
        if not self._free.is_sound:
            return self._in_doubt(number, "no other page names its page, and it may be free")
        if kind == TREE and parent in self._children and self._is_sound(parent):
            return self._in_doubt(number, "the page above its page does not name it")
        gap = self._gap_above(number)
        return Use(self._table_above(number) or "", gap, None, is_named=False)

    def _is_sound(self, interior: int) -> bool:
        """Return whether the map lists the page as the parent of all pages that it names."""
        return all(
            self._file.pointer(child) in ((TREE, interior), (0, 0))
            for child in self._children[interior]
        )

    def _gap_above(self, number: int) -> Place | None:
        """Return the place of the nearest page above it that is named and cannot be read."""
        seen: set[int] = set()
        while number not in seen:
            seen.add(number)
            if number in self._broken:
                return self._broken[number]
            kind, parent = self._file.pointer(number)
            if kind != TREE:
                return None
            number = parent
        return None

    def _table_above(self, number: int) -> str | None:
        """Return the table by the pointer map, up to the root; None if it is not known."""
        seen: set[int] = set()
        while number not in seen:
            seen.add(number)
            kind, parent = self._file.pointer(number)
            if kind == ROOT:
                return self._roots.get(number)
            if kind != TREE:
                return None
            number = parent
        return None

    def _accepts(self, number: int, place: Place) -> bool:
        """Return whether a page may be at the place where another page names it."""
        if not 1 <= number <= self._file.page_count or not self._file.is_content(number):
            self._fault(place, number, "is referred to, but cannot be part of a tree")
            return False
        kind, parent = self._file.pointer(number)
        known = self._places.get(number)
        is_mapped = kind == TREE and parent == place.parent
        if known is not None and (known.parent == parent or not is_mapped):
            self._fault(place, number, "is referred to twice")
            return False
        if kind == TREE and not is_mapped and number in self._named_by(parent):
            self._fault(
                place, number, f"is referred to by page {place.parent}, but does not belong to it"
            )
            return False
        return True

    def _named_by(self, interior: int) -> frozenset[int]:
        if interior in self._children:
            return self._children[interior]
        try:
            page = read_page(self._file.newest(interior), interior)
        except Unreadable:
            return frozenset()
        return frozenset(child for child, _, _ in _children(page, Place(INDEX, 0)))

    def _read(self, number: int, place: Place) -> Page | None:
        """Read a page that was named, and record its faults; those of a leaf come with its rows."""
        data = self._file.newest(number)
        if number == SCHEMA_ROOT and not data:
            self._fault(place, number, "has only an older state left, or none")
            data = self._file.page(number)  # the pages that it names hardly ever change
        try:
            page = read_page(data, number)
        except Unreadable as error:
            self._broken[number] = place
            if number in self._file.former:
                self._fault(place, number, "has only an older state left")
            elif data and data[0] in KINDS:
                self._fault(place, number, f"cannot be read: {error}")
            else:
                self._fault(place, number, "does not have the expected content")
            return None
        if page.kind in INTERIORS:
            for fault in page.faults:
                self._fault(place, number, fault, separator=": ")
        return page

    def _below(self, interior: int) -> Iterator[int]:
        """Yield the pages below an interior page, by the pointer map."""
        for number in range(3, self._file.page_count + 1):
            if self._file.is_content(number) and self._file.pointer(number) == (TREE, interior):
                yield number

    def _fault(self, place: Place, number: int, what: str, *, separator: str = " ") -> None:
        self.faults.append((place.table, number, f"page {number}{separator}{what}"))


def _children(page: Page, place: Place) -> Iterator[tuple[int, int | None, int | None]]:
    """Yield the pages below a page, each with the limits of its rowids."""
    is_table = page.kind == INTERIOR_TABLE
    low = place.low
    for cell in page.cells:
        if not is_table:
            yield cell.child, None, None
        elif cell.doubt is None and place.has(cell.rowid):
            yield cell.child, low, cell.rowid
            low = cell.rowid
        else:  # the limits of its rowids are not known
            yield cell.child, low, place.high
    yield page.last_child, low if is_table else None, place.high
