"""The pages of a database file, as the last commit left them, without SQLite.

For files that SQLite will not read any more.  The format: https://sqlite.org/fileformat2.html; the
sections named below are its own.  Nothing here writes.
"""

import os
import struct
from collections.abc import Iterator
from pathlib import Path

from storage.options import PAGE_BYTES

_FREELIST_TRUNK_OFFSET = 32
_WAL_HEADER = struct.Struct(">8I")
_FRAME_HEADER = struct.Struct(">6I")
_WAL_MAGIC = 0x377F0682  # with the last bit set, checksums are of big-endian words
_POINTER_ENTRY = struct.Struct(">BI")
_LOCK_PAGE = 0x4000_0000 // PAGE_BYTES + 1  # 1.2: never used

# 1.8, Pointer Map or Ptrmap Pages.
ROOT, FREE, FIRST_OVERFLOW, LATER_OVERFLOW, TREE = range(1, 6)
_ENTRIES = PAGE_BYTES // 5  # of one pointer map page; it stands before the pages that it maps


class DatabaseFile:
    """Pages are numbered from 1.  All of them have PAGE_BYTES: we make no other databases."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._file = path.open("rb")
        self._log: dict[int, int] = {}  # where a page's newest version is
        self._log_file = None
        log = path.with_name(f"{path.name}-wal")
        if log.exists():
            self._log_file = log.open("rb")
            self._log, self.page_count = _committed_pages(log)
        if not self._log:
            self.page_count = path.stat().st_size // PAGE_BYTES

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

    def pointer(self, number: int) -> tuple[int, int]:
        """What the page is by its pointer map, and its parent; (0, 0) where that is no help."""
        if number < 3:
            return 0, 0
        map_page = (number - 2) // (_ENTRIES + 1) * (_ENTRIES + 1) + 2
        if map_page == _LOCK_PAGE:
            map_page += 1
        entry = _POINTER_ENTRY.size * (number - map_page - 1)
        data = self.page(map_page)
        if entry < 0 or entry + _POINTER_ENTRY.size > len(data):
            return 0, 0
        kind, parent = _POINTER_ENTRY.unpack_from(data, entry)
        return (kind, parent) if ROOT <= kind <= TREE else (0, 0)

    def is_content(self, number: int) -> bool:
        """Neither a page of the pointer map nor the one that is never used."""
        is_map = number >= 2 and (number - 2) % (_ENTRIES + 1) == 0
        return not is_map and number != _LOCK_PAGE

    def free_pages(self) -> set[int]:
        """Those of the freelist, as far as it can be read.  1.5, The Freelist."""
        found: set[int] = set()
        header = self.page(1)
        if len(header) < PAGE_BYTES:
            return found
        (trunk,) = struct.unpack_from(">I", header, _FREELIST_TRUNK_OFFSET)
        while 1 < trunk <= self.page_count and trunk not in found:
            found.add(trunk)
            data = self.page(trunk)
            if len(data) < PAGE_BYTES:
                break
            trunk, count = struct.unpack_from(">2I", data)
            if count <= PAGE_BYTES // 4 - 2:
                found.update(struct.unpack_from(f">{count}I", data, 8))
        return found


def _committed_pages(log: Path) -> tuple[dict[int, int], int]:
    """Where the content of each page stands that the log has, and how many pages the database has.

    Each commit says that number, and the last one is right: a file that has more has pages that
    were given back, with rows that were removed.  (nothing, 0) for a log without a commit.
    """
    found: dict[int, int] = {}
    page_count = 0
    for page, content, size_after_commit in _committed_frames(log):
        found[page] = content
        page_count = size_after_commit or page_count
    return {page: content for page, content in found.items() if page <= page_count}, page_count


def _committed_frames(log: Path) -> Iterator[tuple[int, int, int]]:
    """(page, where its content stands, size in pages after a commit or 0) of the frames up to the
    last commit, in their order.

    4.1, WAL File Format: a frame counts when its salts are the header's and its checksum, which
    covers all before it, is right.
    """
    data = log.read_bytes()
    if len(data) < _WAL_HEADER.size:
        return
    magic, _, page_bytes, _, *salts, first, second = _WAL_HEADER.unpack_from(data)
    order = ">" if magic & 1 else "<"
    if magic & ~1 != _WAL_MAGIC or page_bytes != PAGE_BYTES:
        return
    sums = _checksum(data[:24], order, (0, 0))
    if sums != (first, second):
        return
    waiting: list[tuple[int, int, int]] = []
    frame_bytes = _FRAME_HEADER.size + PAGE_BYTES
    for offset in range(_WAL_HEADER.size, len(data) - frame_bytes + 1, frame_bytes):
        page, size_after_commit, *rest = _FRAME_HEADER.unpack_from(data, offset)
        content = offset + _FRAME_HEADER.size
        sums = _checksum(data[offset : offset + 8], order, sums)
        sums = _checksum(data[content : content + PAGE_BYTES], order, sums)
        if rest != [*salts, *sums]:
            return
        waiting.append((page, content, size_after_commit))
        if size_after_commit:
            yield from waiting
            waiting.clear()


def _checksum(data: bytes, order: str, sums: tuple[int, int]) -> tuple[int, int]:
    """4.2, Checksum Algorithm."""
    first, second = sums
    words = iter(struct.unpack(f"{order}{len(data) // 4}I", data))
    for even, odd in zip(words, words, strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second
