"""The pages of a database file, as the last commit left them, read without SQLite.

For files that SQLite refuses to read.  The format: https://sqlite.org/fileformat2.html; the
sections cited below are its own.  This module never writes.
"""

import os
import struct
from pathlib import Path
from typing import NamedTuple

from storage.engine import page_size
from storage.rescue.write_ahead_log import read_log

_HEADER_PAGES = struct.Struct(">28xI")  # 1.3.7, In-header database size
_HEADER_FREELIST = struct.Struct(">32x2I")  # the first trunk page, and the number of free pages
_CHANGE_COUNTERS = (24, 92)  # the size in the header is valid if these two are equal
_POINTER_ENTRY = struct.Struct(">BI")
_LOCK_BYTE = 0x4000_0000  # 1.2: its page is never used

# 1.8, Pointer Map or Ptrmap Pages.
ROOT, FREE, FIRST_OVERFLOW, LATER_OVERFLOW, TREE = range(1, 6)


class Freelist(NamedTuple):
    pages: frozenset[int]
    is_sound: bool  # the first page states this number, and no page occurs twice


class DatabaseFile:
    """A database file, without SQLite.

    Pages are numbered from 1 and have `page_bytes`.
    """

    def __init__(self, path: Path) -> None:
        """Open the file and its log.  Raises OSError."""
        self.page_bytes = page_size.of_database(path)
        #: Of one page of the pointer map, which precedes the pages that it maps.
        self._entries = self.page_bytes // _POINTER_ENTRY.size
        self._lock_page = _LOCK_BYTE // self.page_bytes + 1
        self._file = path.open("rb")
        self._log_file = None
        log = path.with_name(f"{path.name}-wal")
        if log.exists():
            self._log_file = log.open("rb")
        found = read_log(path, self.page_bytes)
        self._log = found.frames
        #: Pages with a damaged newest state: `page` returns an older one, with former rows.
        self.former = found.former
        #: Faults of the log and of the length of the file, as sentences.
        self.findings = list(found.findings)
        #: The log has lost commits, or parts of them.
        self.is_outdated = bool(found.findings)
        file_pages = path.stat().st_size // self.page_bytes
        self.page_count = found.page_count or self._page_count(file_pages)
        missing = sum(
            number not in self._log for number in range(file_pages + 1, self.page_count + 1)
        )
        if missing:
            pages = "1 page" if missing == 1 else f"{missing} pages"
            self.findings.append(f"{pages} of {self.page_count} at the end of the file are missing")
        self._maps: dict[int, bytes] = {}

    def __enter__(self) -> "DatabaseFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        if self._log_file is not None:
            self._log_file.close()

    def page(self, number: int) -> bytes:
        """Return a page; fewer bytes, or b"", at the end of the file or after a read error."""
        file, offset = self._file, (number - 1) * self.page_bytes
        if number in self._log:
            assert self._log_file is not None
            file, offset = self._log_file, self._log[number]
        try:
            return os.pread(file.fileno(), self.page_bytes, offset)
        except OSError:
            return b""

    def newest(self, number: int) -> bytes:
        """Return a page as `page` does, but b"" if its newest state is lost or the number is
        invalid.
        """
        if number in self.former or not 1 <= number <= self.page_count:
            return b""
        data = self.page(number)
        return data if len(data) == self.page_bytes else b""

    def pointer(self, number: int) -> tuple[int, int]:
        """Return the kind of the page by its pointer map, and its parent; (0, 0) if unknown."""
        if number < 3:
            return 0, 0
        map_page = (number - 2) // (self._entries + 1) * (self._entries + 1) + 2
        if map_page == self._lock_page:
            map_page += 1
        entry = _POINTER_ENTRY.size * (number - map_page - 1)
        if map_page not in self._maps:
            self._maps[map_page] = self.newest(map_page)
        data = self._maps[map_page]
        if entry < 0 or entry + _POINTER_ENTRY.size > len(data):
            return 0, 0
        kind, parent = _POINTER_ENTRY.unpack_from(data, entry)
        return (kind, parent) if ROOT <= kind <= TREE else (0, 0)

    def is_content(self, number: int) -> bool:
        """Return whether it is neither a page of the pointer map nor the unused lock page."""
        is_map = number >= 2 and (number - 2) % (self._entries + 1) == 0
        return not is_map and number != self._lock_page

    def freelist(self) -> Freelist:
        """Return the free pages, as far as the list can be read.  1.5, The Freelist."""
        found: list[int] = []
        header = self.newest(1)
        if not header:
            return Freelist(frozenset(), is_sound=False)
        trunk, count = _HEADER_FREELIST.unpack_from(header)
        trunks: set[int] = set()
        while 1 < trunk <= self.page_count and trunk not in trunks:
            trunks.add(trunk)
            found.append(trunk)
            data = self.newest(trunk)
            if not data:
                break
            trunk, leaves = struct.unpack_from(">2I", data)
            if leaves <= self.page_bytes // 4 - 2:
                found += struct.unpack_from(f">{leaves}I", data, 8)
        pages = frozenset(found)
        is_within = not pages or (min(pages) > 1 and max(pages) <= self.page_count)
        return Freelist(pages, is_within and trunk == 0 and len(found) == len(pages) == count)

    def _page_count(self, file_pages: int) -> int:
        """Return the page count of a database with a log without commits.

        A file may be longer than the database; the rest is unused.  If it is shorter it was cut,
        and the pages before its end are still valid.
        """
        header = self.page(1)
        if len(header) < self.page_bytes:
            return file_pages
        pages = int(_HEADER_PAGES.unpack_from(header)[0])
        changed, valid_for = (header[place : place + 4] for place in _CHANGE_COUNTERS)
        if pages == 0 or changed != valid_for:
            return file_pages
        if pages > file_pages:
            self.findings.append(
                f"the file states {pages} pages, and has {file_pages}: it was cut, or"
                " that number is damaged"
            )
        return min(pages, file_pages)
