"""Clients of the HTTP server that send requests and do not read the responses."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import AsyncIterator

import pytest

pytest.importorskip("httptools", reason="the extra qmd-msmq[http] is not installed")

from qmd.doors.http.exchange import Request, Response
from qmd.doors.http.limits import Limits
from qmd.doors.http.server import HttpServer
from tests.patience import END_S

BODY = bytes(16 * 1024 * 1024)  # more than the buffers of the kernel hold
ROUND_TRIPS = 100  # of another client, during which a request of the greedy one would be answered


class Served:
    """A server in this process whose responses are large, except that of /small."""

    def __init__(self, unread_bytes: int) -> None:
        self.asked: Counter[str] = Counter()
        self.large = asyncio.Semaphore(0)  # released by each large response
        self.server = HttpServer(self._answer, Limits(unread_bytes=unread_bytes))
        self.port = 0

    async def _answer(self, request: Request) -> Response:
        (path,) = request.segments
        self.asked[path] += 1
        if path == "small":
            return Response(200, b"small")
        self.large.release()
        return Response(200, BODY)

    @property
    def unread_bytes(self) -> int:
        return sum(each.unread_bytes for each in self.server.registry.connections)

    async def connect(self, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect from an address of this computer, with a small buffer."""
        own = socket.socket()
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        own.setblocking(False)
        own.bind((address, 0))
        await asyncio.get_running_loop().sock_connect(own, ("127.0.0.1", self.port))
        return await asyncio.open_connection(sock=own, limit=65536)

    async def round_trips(self) -> None:
        """Make requests of a client that reads each response."""
        reader, writer = await self.connect("127.0.0.9")
        for _ in range(ROUND_TRIPS):
            writer.write(b"GET /small HTTP/1.1\r\nhost: x\r\n\r\n")
            await reader.readuntil(b"small")
        writer.close()


@contextlib.asynccontextmanager
async def served(unread_bytes: int) -> AsyncIterator[Served]:
    door = Served(unread_bytes)
    listening = socket.create_server(("127.0.0.1", 0))
    door.port = listening.getsockname()[1]
    await door.server.start([listening], None)
    try:
        async with asyncio.timeout(END_S):
            yield door
    finally:
        await door.server.stop(0)


def test_the_next_request_waits_until_the_client_reads() -> None:
    async def scenario() -> None:
        async with served(unread_bytes=1 << 40) as door:
            _, writer = await door.connect("127.0.0.2")
            writer.write(30 * b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
            await door.round_trips()

            assert door.asked["large"] == 1
            assert door.unread_bytes <= len(BODY) + 1024
            writer.close()

    asyncio.run(scenario())


def test_responses_that_are_not_read_have_a_limit_together() -> None:
    """The address with most of them makes room; a slow client of another one gets its response."""

    async def scenario() -> None:
        room = 3 * len(BODY)
        async with served(unread_bytes=room) as door:
            reader, slow = await door.connect("127.0.0.3")
            slow.write(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
            await door.large.acquire()
            await door.round_trips()
            greedy = []
            for _ in range(6):
                _, writer = await door.connect("127.0.0.2")
                writer.write(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
                greedy.append(writer)
                await door.large.acquire()
                await door.round_trips()
                assert door.unread_bytes <= room

            await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(len(BODY)) == BODY
            slow.close()
            for writer in greedy:
                writer.close()

    asyncio.run(scenario())
