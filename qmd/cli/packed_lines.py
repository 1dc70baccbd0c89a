"""Lines of exported messages in a file that may be packed with gzip: by its name, or its bytes."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

SUFFIX = ".gz"
_MAGIC = b"\x1f\x8b"
_LEVEL = 3  # lines are much alike: more takes time and wins little
_OUT_BYTES = 256 * 1024  # unpacked at once, whatever it was packed from
_GZIP = 31  # for zlib: a stream with gzip's head


class BrokenPacking(ValueError):
    """A packed file is cut off or damaged."""

    def __init__(self) -> None:
        super().__init__("it is packed with gzip, and cut off or damaged")


@contextmanager
def written(output: IO[bytes], *, packed: bool) -> Iterator[IO[bytes]]:
    """What is written into it goes to `output`, packed or not."""
    if not packed:
        yield output
        return
    with gzip.GzipFile(fileobj=output, mode="wb", compresslevel=_LEVEL, mtime=0) as file:
        yield cast(IO[bytes], file)


def rows(file: Path) -> Iterator[bytes]:
    """All lines of a file.  Raises OSError, BrokenPacking."""
    with file.open("rb") as raw:
        is_packed = raw.read(len(_MAGIC)) == _MAGIC
        raw.seek(0)
        if not is_packed:
            yield from raw
            return
        try:
            with gzip.GzipFile(fileobj=raw) as unpacked:
                yield from unpacked
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise BrokenPacking from error


async def unpacked(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The bytes that were packed, or those that come, where they are not.  Raises BrokenPacking."""
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
                if unpack.eof:  # one packed file behind another
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
