"""A transparent TCP proxy that delays, stalls and cuts a stream into odd pieces.

    python -m tests.netns.proxy PORT DELAY_S SEED

The firewall redirects connections to this proxy; the kernel keeps their original destination.
Every byte arrives, in order and late: the worst line that TCP permits.

"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import sys
from collections.abc import Iterator

SO_ORIGINAL_DST = 80  # linux/netfilter_ipv4.h
CHUNK_BYTES = 16 * 1024
CHUNKS_MAX = 64  # in transit, in each direction of a connection: 1 MiB
STALL_CHANCE = 0.01  # of a chunk
STALL_S = 3.0
# The largest piece of a chunk: a byte or two, a part of a header, a segment, the complete chunk.
PIECES = (2, 20, 200, 1460, CHUNK_BYTES)

Chunk = tuple[float, bytes]


class Proxy:
    def __init__(self, delay_s: float, seed: int) -> None:
        self._delay_s = delay_s
        self._chance = random.Random(seed)

    async def serve(self, near: asyncio.StreamReader, to_near: asyncio.StreamWriter) -> None:
        try:
            far, to_far = await asyncio.open_connection(*_original_destination(to_near))
        except OSError:
            to_near.transport.abort()  # the destination is closed: reset the caller
            return
        try:
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._carry(near, to_far))
                ways.create_task(self._carry(far, to_near))
        except* OSError:
            pass
        finally:
            for writer in (to_near, to_far):
                writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        on_its_way: asyncio.Queue[Chunk] = asyncio.Queue(CHUNKS_MAX)
        async with asyncio.TaskGroup() as both:
            both.create_task(self._take(reader, on_its_way))
            both.create_task(self._give(on_its_way, writer))

    async def _take(self, reader: asyncio.StreamReader, on_its_way: asyncio.Queue[Chunk]) -> None:
        loop = asyncio.get_running_loop()
        data = b"."
        while data:
            data = await reader.read(CHUNK_BYTES)
            await on_its_way.put((loop.time() + self._delay_s, data))

    async def _give(self, on_its_way: asyncio.Queue[Chunk], writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, data = await on_its_way.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            if self._chance.random() < STALL_CHANCE:
                await asyncio.sleep(self._chance.random() * STALL_S)
            if not data:
                raise ConnectionResetError  # the other end has closed: close this one too
            for piece in self._pieces(data):
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)

    def _pieces(self, data: bytes) -> Iterator[bytes]:
        most = self._chance.choice(PIECES)
        if most * 1000 < len(data):
            most = 1460  # thousands of segments would only load this machine
        while data:
            size = self._chance.randint(1, most)
            yield data[:size]
            data = data[size:]


def _original_destination(writer: asyncio.StreamWriter) -> tuple[str, int]:
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    raw = connection.getsockopt(socket.SOL_IP, SO_ORIGINAL_DST, 16)
    port, address = struct.unpack_from(">2xH4s", raw)
    return socket.inet_ntoa(address), port


async def main(port: int, delay_s: float, seed: int) -> None:
    server = await asyncio.start_server(Proxy(delay_s, seed).serve, "0.0.0.0", port)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])))
