"""The pages of a database file, as the last commit left them, without SQLite.

For files that SQLite will not read any more.  The format: https://sqlite.org/fileformat2.html; the
sections named below are its own.  Nothing here writes.
"""

import os
import struct
from pathlib import Path
from typing import NamedTuple

from storage.options import PAGE_BYTES
from storage.rescue.write_ahead_log import read_log

_HEADER_PAGES = struct.Struct(">28xI")  # 1.3.7, In-header database size
_HEADER_FREELIST = struct.Struct(">32x2I")  # the first trunk page, and how many pages are free
_CHANGE_COUNTERS = (24, 92)  # the size in the header is valid where these two are the same
_POINTER_ENTRY = struct.Struct(">BI")
_LOCK_PAGE = 0x4000_0000 // PAGE_BYTES + 1  # 1.2: never used

# 1.8, Pointer Map or Ptrmap Pages.
ROOT, FREE, FIRST_OVERFLOW, LATER_OVERFLOW, TREE = range(1, 6)
_ENTRIES = PAGE_BYTES // 5  # of one pointer map page; it stands before the pages that it maps


class Freelist(NamedTuple):
    pages: frozenset[int]
    is_sound: bool  # as many as the first page says, and each of them once


class DatabaseFile:
    """Pages are numbered from 1.  All of them have PAGE_BYTES: we make no other databases."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._file = path.open("rb")
        self._log_file = None
        log = path.with_name(f"{path.name}-wal")
        if log.exists():
            self._log_file = log.open("rb")
        found = read_log(path)
        self._log = found.frames
        #: Pages whose newest state is damaged: `page` gives an older one, with rows of its time.
        self.former = found.former
        #: What is wrong with the log and the length of the file, as sentences.
        self.findings = list(found.findings)
        #: The log has lost commits, or parts of them.
        self.is_outdated = bool(found.findings)
        file_pages = path.stat().st_size // PAGE_BYTES
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
        """Shorter, or nothing, where the file ends or the disk cannot read it."""
        file, offset = self._file, (number - 1) * PAGE_BYTES
        if number in self._log:
            assert self._log_file is not None
            file, offset = self._log_file, self._log[number]
        try:
            return os.pread(file.fileno(), PAGE_BYTES, offset)
        except OSError:
            return b""

    def newest(self, number: int) -> bytes:
        """As `page`; nothing where only a former state of the page is left, or where it cannot
        be."""
        if number in self.former or not 1 <= number <= self.page_count:
            return b""
        data = self.page(number)
        return data if len(data) == PAGE_BYTES else b""

    def pointer(self, number: int) -> tuple[int, int]:
        """What the page is by its pointer map, and its parent; (0, 0) where that is no help."""
        if number < 3:
            return 0, 0
        map_page = (number - 2) // (_ENTRIES + 1) * (_ENTRIES + 1) + 2
        if map_page == _LOCK_PAGE:
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
        """Neither a page of the pointer map nor the one that is never used."""
        is_map = number >= 2 and (number - 2) % (_ENTRIES + 1) == 0
        return not is_map and number != _LOCK_PAGE

    def freelist(self) -> Freelist:
        """As far as it can be read.  1.5, The Freelist."""
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
            if leaves <= PAGE_BYTES // 4 - 2:
                found += struct.unpack_from(f">{leaves}I", data, 8)
        pages = frozenset(found)
        is_within = not pages or (min(pages) > 1 and max(pages) <= self.page_count)
        return Freelist(pages, is_within and trunk == 0 and len(found) == len(pages) == count)

    def _page_count(self, file_pages: int) -> int:
        """Of a database whose log has no commit.

        A file may be longer than the database, and holds nothing there; where it is shorter it was
        cut, and pages in front of the end still are what they were.
        """
        header = self.page(1)
        if len(header) < PAGE_BYTES:
            return file_pages
        pages = int(_HEADER_PAGES.unpack_from(header)[0])
        changed, valid_for = (header[place : place + 4] for place in _CHANGE_COUNTERS)
        if pages == 0 or changed != valid_for:
            return file_pages
        if pages > file_pages:
            self.findings.append(
                f"the file says that it has {pages} pages, and has {file_pages}: it was cut, or"
                " that number is damaged"
            )
        return min(pages, file_pages)
