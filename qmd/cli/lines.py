"""The lines of a file or pipe, read while the event loop goes on."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncIterator
from typing import IO

CHUNK_BYTES = 64 * 1024
LINE_BYTES_MAX = 4 * 1024 * 1024  # no message can be longer


async def lines(stream: IO[bytes]) -> AsyncIterator[bytes]:
    """Without their newlines; the last one need not have any.  Raises OSError if too long."""
    rest = b""
    async for chunk in _chunks(stream):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line
        if len(rest) > LINE_BYTES_MAX:
            raise OSError(f"a line has more than {LINE_BYTES_MAX} bytes; no message can hold it")
    if rest:
        yield rest


async def _chunks(stream: IO[bytes]) -> AsyncIterator[bytes]:
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
