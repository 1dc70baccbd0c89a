"""The stop and the control socket: no client is served after the stop has begun.

A stop records its losses near its end; a message that a client received behind that would have
two ends in the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

from qmd.control_protocol.messages import EXPRESS, Take, frame
from storage.tables import events
from tests.integration.managers import Host, Hosts, hosted
from tests.ledger import disagreements


@contextlib.contextmanager
def client_of(host: Host) -> Iterator[socket.socket]:
    """Connect to the control socket; the connection waits until the host accepts it."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(host.socket))
        client.setblocking(False)
        yield client


async def read_all(client: socket.socket) -> bytes:
    """Return what the host sends until it ends the connection."""
    loop, received = asyncio.get_running_loop(), bytearray()
    with contextlib.suppress(ConnectionResetError):
        while data := await loop.sock_recv(client, 1 << 20):
            received += data
    return bytes(received)


async def kinds(host: Host) -> list[str]:
    await host.settled()
    blocks = await host.storage.read(lambda db: events.page(db, 0, 100))
    return [event.kind for block in blocks for event in block.events]


@hosted
async def test_a_client_that_was_just_accepted_is_not_served_by_a_stop(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("news")
    await a.send("news", b"x", delivery=EXPRESS)
    before = a.control.connection_count
    with client_of(a) as client:
        client.send(frame(Take(number=1, queue="news")))
        while a.control.connection_count == before:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert not a.control.connections, "the test is too late"
        await hosts.stop(a)  # begins before the connection is made
        async with asyncio.timeout(5):
            assert await read_all(client) == b""

    a = await hosts.start()
    assert await kinds(a) == ["started", "sent", "lost", "started"]
    assert await a.storage.read(disagreements) == []
