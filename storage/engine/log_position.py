"""The end of the write-ahead log according to SQLite, and checks of the frames behind that end.

After each commit SQLite records which frames of the log are valid, at the head of the log's index,
`queues.db-shm` (https://sqlite.org/walformat.html, 2.1, The WAL-Index Format).  Reading that does
not require reading the log.

A log ends at the first frame with a wrong checksum.  After a loss of power that is expected: some
frames of the last commit, the sync of which had not returned, may be missing.  But a commit begins
only when the previous one was synced.  So if two consecutive frames behind that end are intact, and
the first of them ends a commit, all frames before them were durable once: the log was damaged in
its middle, and SQLite ignores commits that had been acknowledged.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from storage.engine import page_size
from storage.options import PAGE_BYTES

INDEX_HEAD_BYTES = 48
# Version, 2 unused, initialized, order of checksums, page size, frames, pages, checksum, salts.
_INDEX_HEAD = struct.Struct("=I8xBxHI4x8s8s8x")
_INDEX_VERSION = 3_007_000

_HEADER_BYTES = 32
_FRAME_HEADER = struct.Struct(">4xI8s8s")  # pages after a commit or 0, salts, checksum
_FRAME_HEADER_BYTES = 24
_BIG_ENDIAN_MAGIC = 0x377F0683


class LogPosition(NamedTuple):
    """The end of the committed part of the log."""

    salts: bytes  # 8 bytes; new ones each time that the log restarts
    frames: int
    # 8 bytes; of the last frame and all before it, in the byte order of this computer
    checksum: bytes


NOWHERE = LogPosition(bytes(8), 0, bytes(8))


class Readable(Protocol):
    """An open file, such as `storage.engine.disk.LogFile`."""

    def read(self, offset: int, size: int) -> bytes: ...


def read_index(head: bytes) -> LogPosition:
    """Parse the head of the log's index; NOWHERE if it is not valid."""
    if len(head) < INDEX_HEAD_BYTES:
        return NOWHERE
    version, is_set_up, _, frames, checksum, salts = _INDEX_HEAD.unpack(head[:INDEX_HEAD_BYTES])
    if version != _INDEX_VERSION or not is_set_up:
        return NOWHERE
    return LogPosition(salts, frames, checksum)


def log_salts(log: Readable) -> bytes:
    """Return the salts in the log's own header; b"" if it has no header."""
    return log.read(16, 8)


def has_two_commits(log: Readable) -> bool:
    """Return whether the log has frames of two commits, so that the first one was synced."""
    commits = (number for number, pages, _ in _frames(log, 0) if pages)
    return next(commits, None) is not None and next(commits, None) is not None


def is_damaged_behind(log: Readable, frames: int) -> bool:
    """Return whether a synced commit follows the first `frames`, where SQLite stops.

    A frame's checksum continues that of the previous frame, which may be damaged: it is compared
    with the checksum in that frame's header.
    """
    before: tuple[int, int, bytes] | None = None
    for frame in _frames(log, frames):
        number, pages, checksum = frame
        if before is not None and before[1] and number == before[0] + 1:
            earlier = _stored_checksum(log, before[0] - 1)
            if (
                _checksum_after(log, before[0], earlier) == before[2]
                and _checksum_after(log, number, before[2]) == checksum
                # A copy would belong to the same commit.
                and _frame(log, number) != _frame(log, before[0])
            ):
                return True
        before = number, pages, checksum
    return False


def lacks_only_padding(log: Readable, end: LogPosition, wanted: LogPosition) -> bool:
    """Return whether the log ends at `end` and lacks only a copy of its last frame to be `wanted`.

    Where a disk may damage bytes next to a write, SQLite fills the last sector of a commit with
    copies of its last frame, and syncs up to the end of that sector: a loss of power may remove the
    last copy, and nothing else.  https://sqlite.org/psow.html
    """
    if end.frames + 1 != wanted.frames or not end.frames:
        return False
    last = end.frames - 1
    copied = _checksum_after(log, last, _stored_checksum(log, last))
    return bool(copied) and struct.unpack(">2I", copied) == struct.unpack("=2I", wanted.checksum)


def _frames(log: Readable, first: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield (number, pages after a commit or 0, checksum) of frames with the header's salts."""
    wanted = log_salts(log)
    number, page_bytes = first, _page_bytes(log)
    while len(header := log.read(_place(number, page_bytes), 24)) == 24:
        pages, salts, checksum = _FRAME_HEADER.unpack(header)
        if salts == wanted:
            yield number, pages, checksum
        number += 1


def _stored_checksum(log: Readable, number: int) -> bytes:
    """Return the checksum in a frame's header, or, for number -1, in the header of the log."""
    return log.read(_place(number, _page_bytes(log)) + 16 if number >= 0 else 24, 8)


def _frame(log: Readable, number: int) -> bytes:
    """Return the bytes that a frame's checksum covers: page number, commit size and the page."""
    page_bytes = _page_bytes(log)
    offset = _place(number, page_bytes)
    return log.read(offset, 8) + log.read(offset + _FRAME_HEADER_BYTES, page_bytes)


def _place(number: int, page_bytes: int) -> int:
    return _HEADER_BYTES + number * (_FRAME_HEADER_BYTES + page_bytes)


def _page_bytes(log: Readable) -> int:
    """Return the size of the pages; without a valid header no frame is valid for SQLite."""
    return page_size.in_log(log.read(0, 12)) or PAGE_BYTES


def _checksum_after(log: Readable, number: int, before: bytes) -> bytes:
    """Compute the checksum of a frame that continues `before`; b"" if there is no frame.

    See 4.2, Checksum Algorithm.
    """
    data = _frame(log, number)
    if len(data) < 8 + _page_bytes(log) or len(before) < 8:
        return b""
    order = ">" if log.read(0, 4) == _BIG_ENDIAN_MAGIC.to_bytes(4, "big") else "<"
    first, second = struct.unpack(">2I", before)
    words = iter(struct.unpack(f"{order}{len(data) // 4}I", data))
    for even, odd in zip(words, words, strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return struct.pack(">2I", first, second)
