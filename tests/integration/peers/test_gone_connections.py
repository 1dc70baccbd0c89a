"""A connection that is over goes at once, and does not wait for the collector.

Each has a buffer of 64 KB and more, and the collector looks at what is old almost never.
"""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import struct
import weakref
from collections.abc import Iterator

import pytest

from qmd.client import connect
from qmd.core.session import Session
from qmd.peers.connection import PeerConnection
from tests.integration.managers import Host, Hosts, hosted, until
from tests.integration.remote import dial, guid, listening, packet


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def watched(host: Host) -> list[weakref.ref[PeerConnection]]:
    """All connections with other queue managers that come from here on."""
    seen: list[weakref.ref[PeerConnection]] = []
    admit = host.peers.admit

    def watch(connection: PeerConnection) -> Session | None:
        seen.append(weakref.ref(connection))
        return admit(connection)

    host.peers.admit = watch  # type: ignore[method-assign]
    return seen


async def until_gone(seen: list[weakref.ref[PeerConnection]], count: int = 1) -> None:
    await until(lambda: len(seen) == count, "the connection")
    await until(lambda: not any(each() for each in seen), "its end")


@hosted
async def test_a_session_that_a_peer_has_opened(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    seen = watched(a)
    for number in range(1, 4):
        remote = await dial(a, guid(number))
        remote.send(packet(b"x" * 200_000, source=guid(number), number=1))
        await until(lambda: remote.acknowledged, "its acknowledgment")  # noqa: B023
        remote.close()

    await until_gone(seen, 3)


@hosted
async def test_a_session_that_ends_in_the_middle_of_a_large_packet(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    seen = watched(a)
    remote = await dial(a, guid(1))
    remote.transport.write(packet(bytes(1_000_000), source=guid(1), number=1)[:900_000])
    await until(lambda: a.services.memory.packets.used_bytes, "the buffer that grows")
    remote.transport.abort()

    await until_gone(seen)
    assert a.services.memory.packets.used_bytes == 0


@hosted
async def test_a_stranger_that_is_not_let_in(hosts: Hosts) -> None:
    a = await hosts.start(peers={"allow": (ipaddress.ip_network("10.0.0.0/8"),)})
    seen = watched(a)
    _, writer = await asyncio.open_connection("127.0.0.1", a.port)

    await until_gone(seen)
    writer.close()


@hosted
async def test_a_stranger_that_says_nothing(hosts: Hosts) -> None:
    a = await hosts.start()
    seen = watched(a)
    _, writer = await asyncio.open_connection("127.0.0.1", a.port)
    await until(lambda: a.peers.connections, "the connection")
    writer.close()

    await until_gone(seen)


@hosted
async def test_a_connection_without_a_handshake_leaves_nothing_behind(hosts: Hosts) -> None:
    a = await hosts.start()
    seen = watched(a)
    _, writer = await asyncio.open_connection("127.0.0.1", a.port)
    writer.write(b"no packet at all")

    await until_gone(seen)
    writer.close()


@hosted
async def test_a_session_that_we_have_opened(hosts: Hosts) -> None:
    a = await hosts.start()
    seen = watched(a)
    async with listening(guid(1)) as there:
        await a.send(f"DIRECT=TCP:127.0.0.1:{there.port}\\private$\\orders", b"x")
        await until(lambda: there.remotes and there.remotes[0].messages, "the message")
        there.remotes[0].close()
        await until(lambda: seen and seen[0]() is None, "its end")


@hosted
async def test_a_client_that_comes_and_goes(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    async with connect(a.socket) as qm:
        await qm.send("private$\\orders", b"x")
        (seen,) = map(weakref.ref, a.control.connections)

    await until(lambda: seen() is None, "its end")


@hosted
async def test_a_client_that_goes_in_the_middle_of_a_large_request(hosts: Hosts) -> None:
    a = await hosts.start()
    _, writer = await asyncio.open_unix_connection(a.socket)
    writer.write(struct.pack("<I", 2_000_000) + bytes(1_000_000))
    await until(lambda: a.services.memory.requests.used_bytes, "the request")
    (seen,) = map(weakref.ref, a.control.connections)
    writer.close()

    await until(lambda: seen() is None, "its end")
    assert a.services.memory.requests.used_bytes == 0
