"""The lines of a file or pipe, read while the event loop goes on."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncIterator
from typing import IO

CHUNK_BYTES = 64 * 1024


async def read(stream: IO[bytes], bytes_max: int) -> bytes:
    """All bytes of a stream; of a longer one `bytes_max` and at least one byte more."""
    found = bytearray()
    async for chunk in chunks(stream):
        found += chunk
        if len(found) > bytes_max:
            break
    return bytes(found)


async def lines(stream: IO[bytes], line_bytes_max: int) -> AsyncIterator[bytes]:
    """Without their newlines; the last one need not have any.  Raises OSError if too long."""
    async for line in split(chunks(stream), line_bytes_max):
        yield line


async def split(pieces: AsyncIterator[bytes], line_bytes_max: int) -> AsyncIterator[bytes]:
    """The same of bytes that come in pieces."""
    rest = b""
    async for chunk in pieces:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line
        if len(rest) > line_bytes_max:
            raise OSError(f"a line has more than {line_bytes_max} bytes; no message can hold it")
    if rest:
        yield rest


async def chunks(stream: IO[bytes]) -> AsyncIterator[bytes]:
    """Its bytes as they come.  The event loop goes on meanwhile, and so Ctrl-C is heard at once."""
    try:
        descriptor = stream.fileno()
    except io.UnsupportedOperation:  # a stream in memory
        yield stream.read()
        return
    may_block = True
    while True:
        if may_block:
            may_block = await _readable(descriptor)
        chunk = os.read(descriptor, CHUNK_BYTES)
        if not chunk:
            return
        yield chunk


async def _readable(descriptor: int) -> bool:
    """Wait until there is something to read; False for files, which never make one wait."""
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
