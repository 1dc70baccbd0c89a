"""Look-ups of names: lanes, one thread for each name, and remembered failures."""

import asyncio
import socket
from types import SimpleNamespace

import pytest

from qmd.peers.name_lookups import Lane, NameLookups


class Resolver:
    """A resolver of names that the test controls; silent names wait for `answer`."""

    def __init__(self):
        self.asked = []
        self.answer = asyncio.Event()

    async def look_up(self, host, port):
        self.asked.append(host)
        if host.startswith("silent"):
            await self.answer.wait()
        if host.startswith("unknown"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]


def run(test, *, timeout_s=30.0):
    async def whole():
        resolver = Resolver()
        services = SimpleNamespace(
            loop=asyncio.get_running_loop(),
            environment=resolver,
            settings=SimpleNamespace(delivery=SimpleNamespace(connect_timeout_s=timeout_s)),
        )
        async with asyncio.timeout(30):
            await test(resolver, NameLookups(services))
        resolver.answer.set()

    asyncio.run(whole())


async def until(condition):
    for _ in range(100_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError


def test_concurrent_look_ups_of_one_name_share_a_thread():
    async def test(resolver, lookups):
        found = await asyncio.gather(
            *(lookups.look_up("hosta", 1801, for_peers=False) for _ in range(9))
        )

        assert resolver.asked == ["hosta"]
        assert {each[0][4] for each in found} == {("127.0.0.1", 1801)}

    run(test)


def test_a_failure_is_remembered():
    async def test(resolver, lookups):
        for _ in range(3):
            with pytest.raises(socket.gaierror):
                await lookups.look_up("unknown", 1801, for_peers=True)

        assert resolver.asked == ["unknown"]

    run(test)


def test_silent_names_of_peers_do_not_hold_up_those_of_applications():
    async def test(resolver, lookups):
        waiting = [
            asyncio.create_task(lookups.look_up(f"silent{each}", 1801, for_peers=True))
            for each in range(100)
        ]
        await until(lambda: len(resolver.asked) == Lane.PEERS.value)

        await lookups.look_up("hosta", 1801, for_peers=False)

        assert len(resolver.asked) == Lane.PEERS.value + 1
        assert lookups.status()["peers"] == 100
        for task in waiting:
            task.cancel()

    run(test)


def test_a_name_that_took_too_long_is_looked_up_beside_the_others():
    async def test(resolver, lookups):
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await lookups.look_up("silent", 1801, for_peers=False)
        assert resolver.asked == ["silent"]  # its thread still waits
        resolver.answer.set()
        await until(lambda: not lookups.status()["quick"])

        assert await lookups.look_up("silent", 1801, for_peers=False)

    run(test, timeout_s=0.01)


def test_an_application_does_not_wait_for_the_look_up_of_a_peer():
    async def test(resolver, lookups):
        names = [*(f"silent{each}" for each in range(Lane.PEERS.value)), "hosta"]
        waiting = [
            asyncio.create_task(lookups.look_up(name, 1801, for_peers=True)) for name in names
        ]
        await until(lambda: len(resolver.asked) == Lane.PEERS.value)

        assert await lookups.look_up("hosta", 1801, for_peers=False)

        for task in waiting:
            task.cancel()

    run(test)
