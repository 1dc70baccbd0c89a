"""Lines of a file or pipe, read without blocking the event loop."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncIterator
from typing import IO

CHUNK_BYTES = 64 * 1024


async def read(stream: IO[bytes], bytes_max: int) -> bytes:
    """Return all bytes of a stream; more than `bytes_max` of them if it is longer."""
    found = bytearray()
    async for chunk in chunks(stream):
        found += chunk
        if len(found) > bytes_max:
            break
    return bytes(found)


async def lines(stream: IO[bytes], line_bytes_max: int) -> AsyncIterator[bytes]:
    """Iterate over lines without their newlines, which the last line may lack.

    Raises OSError if a line is too long.
    """
    async for line in split(chunks(stream), line_bytes_max):
        yield line


async def split(pieces: AsyncIterator[bytes], line_bytes_max: int) -> AsyncIterator[bytes]:
    """Split bytes that come in pieces into lines, like `lines`."""
    rest = b""
    async for chunk in pieces:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line
        if len(rest) > line_bytes_max:
            raise OSError(
                f"a line has more than {line_bytes_max} bytes, and does not fit into a message"
            )
    if rest:
        yield rest


async def chunks(stream: IO[bytes], size_bytes: int | None = None) -> AsyncIterator[bytes]:
    """Iterate over the bytes as they come, without blocking the event loop or delaying Ctrl-C.

    size_bytes: of a file, if later bytes are not to be read.  Raises OSError if it has fewer.
    """
    try:
        descriptor = stream.fileno()
    except io.UnsupportedOperation:  # a stream in memory
        yield stream.read()
        return
    may_block = True
    left_bytes = size_bytes
    while left_bytes != 0:
        if may_block:
            may_block = await _readable(descriptor)
        chunk = os.read(
            descriptor, CHUNK_BYTES if left_bytes is None else min(CHUNK_BYTES, left_bytes)
        )
        if not chunk:
            if left_bytes is not None:
                raise OSError(f"the file became {left_bytes} bytes shorter while it was read")
            return
        if left_bytes is not None:
            left_bytes -= len(chunk)
        yield chunk


async def _readable(descriptor: int) -> bool:
    """Wait until there is data to read; return False for files, which never block."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(descriptor, ready.set)
    except PermissionError:  # epoll(7) refuses regular files
        return False
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)
    return True
