"""The log of a database file, read without SQLite: the newest state of each page in it.

The format: https://sqlite.org/fileformat2.html#walformat.  A frame is valid if it has the salts of
the header and its checksum, which covers all frames before it, is right; the valid part ends with
the last commit.

    header │ frame frame commit │ frame commit │ frame ...      │ frames of an older generation
           └──────── valid ────────────────────┘ torn: ignored    other salts: ignored

A bad frame usually marks a loss of power: the commit that it belongs to was not acknowledged. But a
commit is synced before the next one begins.  So if frames of another commit follow, the bad frame
was valid once, and its content is lost (`Log.findings`).  SQLite stops there without an error.
This module uses the frames behind it, because each is checked against the stored checksum of the
one before it; only pages with their newest state in a bad frame are unknown: `Log.former`.
"""

import struct
from pathlib import Path
from typing import NamedTuple

_HEADER = struct.Struct(">8I")
_FRAME_HEADER = struct.Struct(">6I")
_MAGIC = 0x377F0682  # with the last bit set, checksums are of big-endian words
_CHECKSUMMED_BYTES = 24  # of the header

# The log's index, which is in shared memory: https://sqlite.org/walformat.html 2.1.  Version,
# change, initialized and other flags, page size, frames, pages, checksum of the last frame; salts.
_INDEX = struct.Struct("=3I2BH4I")
_INDEX_SALTS = struct.Struct(">2I")
_INDEX_CHECKSUM = struct.Struct("=2I")
_INDEX_BYTES = _INDEX.size + _INDEX_SALTS.size + _INDEX_CHECKSUM.size
_INDEX_VERSION = 3007000

Sums = tuple[int, int]


class Log(NamedTuple):
    frames: dict[int, int]  # by page: the offset of its newest state in the log
    page_count: int  # of the database after the last commit; 0: the log has none
    former: frozenset[int]  # pages with the newest state in a bad frame; an older one is left
    findings: tuple[str, ...]  # acknowledged data that is damaged or missing, as sentences


class _Frame(NamedTuple):
    number: int  # from 1
    page: int
    size_after_commit: int  # in pages; 0: the frame does not end a commit
    salts: tuple[int, int]
    sums: Sums
    content: int  # the offset of the page


class Index(NamedTuple):
    """The index that a killed process left: the frames of synced commits."""

    salts: tuple[int, int]
    frames: int
    brought_back: int  # the frames that were checkpointed into the database
    pages: tuple[int, ...]  # of the frames


_NO_INDEX = Index((0, 0), 0, 0, ())
# The page numbers of frames are in blocks of the index, each followed by a hash table.
_BLOCK_BYTES, _BLOCK_PAGES_END, _BLOCKS_BEGIN = 32_768, 16_384, 136


def read_log(path: Path, page_bytes: int) -> Log:
    """Read the log of the database `path` with pages of this size; empty if there is none.

    Raises OSError.
    """
    log = path.with_name(f"{path.name}-wal")
    data = log.read_bytes() if log.exists() else b""
    index = read_index(path.with_name(f"{path.name}-shm"))
    return _Reader(data, index, page_bytes).read()


class _Reader:
    """The reader of one log, which is in memory: some tens of MiB."""

    def __init__(self, data: bytes, index: Index, page_bytes: int) -> None:
        self._data = data
        self._page_bytes = page_bytes
        self._frame_bytes = _FRAME_HEADER.size + page_bytes
        self._index = index
        self.count = max(0, len(data) - _HEADER.size) // self._frame_bytes
        self.salts = (0, 0)
        self.last_commit = 0  # the number of its frame
        self._order = "<"
        self._findings: list[str] = []

    def read(self) -> Log:
        first = self._begin()
        if self.salts == (0, 0):
            self._compare_with_index()
            return Log({}, 0, frozenset(), tuple(self._findings))
        good = self._good_from(first) if first is not None else []
        commits = [frame.number for frame in good if frame.size_after_commit]
        end = len(good)
        later = self._good_behind(end)
        if later:
            good += later
            commits += [frame.number for frame in later if frame.size_after_commit]
        self.last_commit = commits[-1] if commits else 0
        self._compare_with_index()
        if self._index.salts == self.salts and self._index.brought_back > self.last_commit:
            return Log({}, 0, frozenset(), tuple(self._findings))  # the database is newer
        good = [frame for frame in good if frame.number <= self.last_commit]
        frames = {frame.page: frame for frame in good}
        page_count = good[-1].size_after_commit if good else 0
        former = self._former(good, frames, page_count) if later else frozenset()
        kept = {page: frame.content for page, frame in frames.items() if page <= page_count}
        return Log(kept, page_count, former, tuple(self._findings))

    def _begin(self) -> Sums | None:
        """Return the checksum that the first frame continues, if known, and set `salts`.

        `salts` is set only if there are frames that belong together.
        """
        if len(self._data) < _HEADER.size:
            return None
        magic, _, page_bytes, _, *rest = _HEADER.unpack_from(self._data)
        salts, stored = (rest[0], rest[1]), (rest[2], rest[3])
        self._order = ">" if magic & 1 else "<"
        sums = self._checksum(0, _CHECKSUMMED_BYTES, (0, 0))
        if magic & ~1 == _MAGIC and page_bytes == self._page_bytes and sums == stored:
            self.salts = salts
            return sums
        return self._begin_without_header(stored)

    def _begin_without_header(self, stored: Sums) -> Sums | None:
        """Return the same for a log with a damaged header; SQLite ignores such a log and its
        commits.

        The header is synced before the first frame is written, so it was damaged later; the frames
        themselves show which of them belong together.
        """
        if not self.count:
            return None
        first = self._frame(1)
        begin: Sums | None = None
        for self._order in ("<", ">"):
            for sums in (stored, self._checksum(0, _CHECKSUMMED_BYTES, (0, 0))):
                if self._sums_of(first, sums) == first.sums:
                    begin = sums
                    break
            if begin is None and self.count > 1:
                second = self._frame(2)
                if second.salts == first.salts and self._sums_of(second, first.sums) == second.sums:
                    begin = self._seed_of(first)
            if begin is not None:
                break
        self._order = self._order if begin is not None else "<"
        known = first.salts if begin is not None else self._index.salts
        if begin is not None or any(
            self._frame(number).salts == known for number in range(2, self.count + 1)
        ):
            self.salts = known
            self._findings.append(
                "the header of the log is damaged: SQLite ignores its whole content"
            )
        return begin

    def _seed_of(self, frame: _Frame) -> Sums:
        """Return the checksum before a frame that is assumed valid, calculated backwards."""
        first, second = frame.sums
        place = frame.content - _FRAME_HEADER.size
        end = frame.content + self._page_bytes
        data = self._data[place : place + 8] + self._data[frame.content : end]
        words = struct.unpack(f"{self._order}{len(data) // 4}I", data)
        for index in range(len(words) - 2, -1, -2):
            second = (second - words[index + 1] - first) & 0xFFFFFFFF
            first = (first - words[index] - second) & 0xFFFFFFFF
        return first, second

    def _good_from(self, sums: Sums) -> list[_Frame]:
        """Return the frames from the first one on, up to the first bad one."""
        good: list[_Frame] = []
        for number in range(1, self.count + 1):
            frame = self._frame(number)
            if frame.salts != self.salts:
                break
            sums = self._sums_of(frame, sums)
            if frame.sums != sums:
                break
            good.append(frame)
        return good

    def _good_behind(self, end: int) -> list[_Frame]:
        """Return valid frames of this generation behind the bad frame that follows `end`.

        They are used only if the bad frame was valid once: a frame of a later commit continues one
        of them.
        """
        good: list[_Frame] = []
        unproven: list[_Frame] = []  # its seed is lost with the frame before it
        before = self._frame(end + 1) if end < self.count else None
        is_lost = self._index.salts == self.salts and self._index.frames > end
        for number in range(end + 2, self.count + 1):
            assert before is not None
            frame = self._frame(number)
            if frame.salts != self.salts:
                unproven.clear()
            elif self._follows(frame, before):
                good += [*unproven, frame]
                unproven.clear()
                is_lost |= before.salts == self.salts and before.size_after_commit > 0
            elif before.salts != self.salts:
                unproven = [frame]
            else:
                unproven.clear()
            before = frame
        if unproven and self._index.salts == self.salts:
            good += [frame for frame in unproven if frame.number <= self._index.frames]
        if not is_lost or not any(frame.size_after_commit for frame in good):
            return []
        bad = good[-1].number - end - len(good)
        frames = "1 frame" if bad == 1 else f"{bad} frames"
        self._findings.append(
            f"the log is damaged: {frames} from number {end + 1} on, before"
            f" {len(good)} intact ones; SQLite and a daemon would ignore them all"
        )
        return good

    def _follows(self, frame: _Frame, before: _Frame) -> bool:
        if self._sums_of(frame, before.sums) == frame.sums:
            return True
        if before.number == 1:
            return False
        # Only the stored checksum of the frame before may be damaged.
        sums = self._sums_of(before, self._frame(before.number - 1).sums)
        return self._sums_of(frame, sums) == frame.sums

    def _former(
        self, good: list[_Frame], frames: dict[int, _Frame], page_count: int
    ) -> frozenset[int]:
        """Return the pages that have, or may have, their newest state in a bad frame."""
        known = {frame.number for frame in good}
        former: set[int] = set()
        for number in range(1, self.last_commit):
            if number not in known:
                former.update(
                    page
                    for page in self._pages_of_bad(number, page_count)
                    if page not in frames or frames[page].number < number
                )
        return frozenset(former)

    def _pages_of_bad(self, number: int, page_count: int) -> range:
        """Return the pages that a bad frame may have had.

        The index gives the page, if there is one, and otherwise the frame's header, if it is
        readable. Otherwise the range follows from the order: a commit writes its pages in ascending
        order.
        """
        index = self._index
        if index.salts == self.salts and number <= len(index.pages):
            return range(index.pages[number - 1], index.pages[number - 1] + 1)
        frame = self._frame(number)
        if frame.salts == self.salts and 1 <= frame.page <= page_count:
            return range(frame.page, frame.page + 1)
        before = self._frame(number - 1) if number > 1 else None
        if before is None or before.salts != self.salts or before.size_after_commit:
            return range(1, page_count + 1)
        return range(before.page + 1, page_count + 1)

    def _compare_with_index(self) -> None:
        """Add findings if the index knows more frames than the log has.

        An index of another generation is ignored, unless the log is empty.
        """
        known = self._index
        if self.salts == (0, 0):
            if known.frames > known.brought_back:
                self._findings.append(
                    f"the log is missing: it had {known.frames} frames, and the database has"
                    f" {known.brought_back} of them"
                )
        elif known.salts == self.salts and known.frames > self.last_commit:
            lost = (
                "the database has them all, but a daemon would return to an older state"
                if known.brought_back == known.frames
                else "the last commits are lost"
            )
            self._findings.append(
                f"the end of the log is missing: it had {known.frames} frames, and"
                f" {self.last_commit} of them can be used; {lost}"
            )

    def _frame(self, number: int) -> _Frame:
        offset = _HEADER.size + (number - 1) * self._frame_bytes
        page, size, *rest = _FRAME_HEADER.unpack_from(self._data, offset)
        content = offset + _FRAME_HEADER.size
        return _Frame(number, page, size, (rest[0], rest[1]), (rest[2], rest[3]), content)

    def _sums_of(self, frame: _Frame, sums: Sums) -> Sums:
        header = frame.content - _FRAME_HEADER.size
        sums = self._checksum(header, header + 8, sums)
        return self._checksum(frame.content, frame.content + self._page_bytes, sums)

    def _checksum(self, start: int, end: int, sums: Sums) -> Sums:
        """Continue the checksum `sums` over these bytes.  4.2, Checksum Algorithm."""
        first, second = sums
        words = iter(struct.unpack(f"{self._order}{(end - start) // 4}I", self._data[start:end]))
        for even, odd in zip(words, words, strict=True):
            first = (first + even + second) & 0xFFFFFFFF
            second = (second + odd + first) & 0xFFFFFFFF
        return first, second


def read_index(path: Path) -> Index:
    """Read the index of a log; without frames if it is not readable.  Raises OSError."""
    whole = path.read_bytes() if path.exists() else b""
    data = whole[: 2 * _INDEX_BYTES + 4]
    if len(data) < 2 * _INDEX_BYTES + 4 or data[:_INDEX_BYTES] != data[_INDEX_BYTES:-4]:
        return _NO_INDEX
    version, _, _, is_ready, _, _, frames, *_ = _INDEX.unpack_from(data)
    salts = _INDEX_SALTS.unpack_from(data, _INDEX.size)
    words = struct.unpack_from(f"={(_INDEX_BYTES - _INDEX_CHECKSUM.size) // 4}I", data)
    stored = _INDEX_CHECKSUM.unpack_from(data, _INDEX.size + _INDEX_SALTS.size)
    if version != _INDEX_VERSION or not is_ready or _sum_words(words) != stored:
        return _NO_INDEX
    (brought_back,) = struct.unpack_from("=I", data, 2 * _INDEX_BYTES)
    pages: list[int] = []
    for start in range(0, len(whole) - _BLOCK_BYTES + 1, _BLOCK_BYTES):
        block = whole[start + (0 if start else _BLOCKS_BEGIN) : start + _BLOCK_PAGES_END]
        pages += struct.unpack(f"={len(block) // 4}I", block)
    return Index((salts[0], salts[1]), frames, brought_back, tuple(pages[:frames]))


def _sum_words(words: tuple[int, ...]) -> Sums:
    first = second = 0
    for index in range(0, len(words), 2):
        first = (first + words[index] + second) & 0xFFFFFFFF
        second = (second + words[index + 1] + first) & 0xFFFFFFFF
    return first, second
