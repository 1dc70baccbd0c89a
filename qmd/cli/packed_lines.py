"""Lines of exported messages in files that may be compressed with gzip.

The name of a file decides when it is written, its first bytes when it is read.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

SUFFIX = ".gz"
_MAGIC = b"\x1f\x8b"
_LEVEL = 3  # lines are similar: a higher level takes time and saves little
_OUT_BYTES = 256 * 1024  # decompressed at a time, however large the input
_GZIP = 31  # for zlib: a stream with the header of gzip


class BrokenPacking(ValueError):
    """A compressed file that is truncated or damaged."""

    def __init__(self) -> None:
        super().__init__("the gzip data is truncated or damaged")


@contextmanager
def written(output: IO[bytes], *, packed: bool) -> Iterator[IO[bytes]]:
    """Return a file that passes everything written to `output`, compressed or not."""
    if not packed:
        yield output
        return
    with gzip.GzipFile(fileobj=output, mode="wb", compresslevel=_LEVEL, mtime=0) as file:
        yield cast(IO[bytes], file)


class _Beginning(io.RawIOBase):
    """The first bytes of a file, which may become longer meanwhile."""

    def __init__(self, file: IO[bytes], size_bytes: int) -> None:
        self._file = file
        self._left_bytes = size_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._file.read(min(len(buffer), self._left_bytes))
        self._left_bytes -= len(piece)
        buffer[: len(piece)] = piece
        return len(piece)


def rows(file: Path, bytes_max: int, size_bytes: int | None = None) -> Iterator[bytes]:
    """Iterate over all lines of a file.  Raises OSError, BrokenPacking.

    size_bytes: of the file, if later bytes are not to be read.  A longer line than `bytes_max`
    comes in pieces: a small file can be unpacked to a line of gigabytes, which must not be read as
    a whole to be found broken.
    """
    with file.open("rb") as opened:
        raw = opened
        if size_bytes is not None:
            raw = io.BufferedReader(_Beginning(opened, size_bytes))
        if raw.peek(len(_MAGIC))[: len(_MAGIC)] != _MAGIC:
            yield from _pieces(raw, bytes_max)
            return
        try:
            with gzip.GzipFile(fileobj=raw) as unpacked:
                yield from _pieces(cast(IO[bytes], unpacked), bytes_max)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise BrokenPacking from error


def _pieces(lines: IO[bytes], bytes_max: int) -> Iterator[bytes]:
    while line := lines.readline(bytes_max + 1):
        yield line


async def unpacked(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Iterate over the bytes, decompressed if they are compressed.  Raises BrokenPacking."""
    begin = b""
    unpack: zlib._Decompress | None = None
    is_first = True
    async for chunk in chunks:
        if is_first:
            begin += chunk
            if len(begin) < len(_MAGIC):
                continue
            is_first, chunk = False, begin
            if begin.startswith(_MAGIC):
                unpack = zlib.decompressobj(_GZIP)
        if unpack is None:
            yield chunk
            continue
        try:
            while chunk:
                if unpack.eof:  # one compressed file after another
                    unpack = zlib.decompressobj(_GZIP)
                yield unpack.decompress(chunk, _OUT_BYTES)
                chunk = unpack.unconsumed_tail or unpack.unused_data
        except zlib.error as error:
            raise BrokenPacking from error
    if is_first and begin:
        yield begin
    if unpack is not None:
        if not unpack.eof:
            yield unpack.flush()
        if not unpack.eof:
            raise BrokenPacking
