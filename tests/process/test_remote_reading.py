"""Reading a queue of another host over TLS: what programs on Windows did by RPC."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from qmd.client import QueueManager, connect
from tests.patience import END_S
from tests.process.test_remote_control import Remote, pytestmark

__all__ = ["pytestmark"]


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    remote = Remote(tmp_path_factory.mktemp("remote"))
    remote.daemon.create("orders", "answers", transactional=True)
    remote.daemon.create("plain")
    yield remote
    remote.daemon.kill()


@pytest.fixture(scope="module")
def token(remote: Remote) -> Path:
    return remote.token("read", "write", queues=("private$\\*",))


@contextlib.asynccontextmanager
async def client(remote: Remote, token: Path) -> AsyncIterator[QueueManager]:
    address = f"tls://localhost:{remote.port}"
    async with connect(address, token_file=token, ca_file=remote.ca_file) as qm:
        yield qm


def fill(remote: Remote, *bodies: bytes, queue: str = "orders") -> None:
    kind = ["--transactional"] if queue == "orders" else []
    remote.daemon.send_all(queue, bodies, *kind)


def test_receive_peek_and_cursors(remote: Remote, token: Path):
    fill(remote, b"1", b"2", b"3", queue="plain")

    async def run() -> None:
        async with client(remote, token) as qm:
            assert [each.body async for each in qm.peek_each("plain")] == [b"1", b"2", b"3"]
            async with qm.open("plain", share="deny_receive") as queue:
                cursor = queue.cursor()
                first = await cursor.next()
                second = await cursor.next()
                assert first is not None
                assert second is not None
                assert (first.body, second.body) == (b"1", b"2")
                await cursor.receive()
            assert (await qm.receive("plain")).body == b"1"
            assert (await qm.receive("plain", timeout_s=1.0)).body == b"3"
            assert await qm.receive("plain", timeout_s=0.05) is None

    asyncio.run(run())


def test_a_transaction_receives_or_gives_back(remote: Remote, token: Path):
    fill(remote, b"1", b"2")

    async def run() -> None:
        async with client(remote, token) as qm:
            with contextlib.suppress(ZeroDivisionError):
                async with qm.transaction() as transaction:
                    assert (await transaction.receive("orders")).body == b"1"
                    raise ZeroDivisionError
            async with qm.transaction() as transaction:
                message = await transaction.receive("orders")
                assert (message.body, message.abort_count) == (b"1", 1)
                await transaction.send("answers", b"answer")
        async with client(remote, token) as qm, qm.transaction() as transaction:
            assert (await transaction.receive("orders")).body == b"2"
            assert (await qm.peek("answers"))[0].body == b"answer"

    asyncio.run(run())
    assert remote.daemon.count("orders") == 0
    assert remote.daemon.bodies("answers") == [b"answer"]


def test_a_connection_that_ends_gives_its_messages_back(remote: Remote, token: Path):
    fill(remote, b"1")

    async def run() -> None:
        async with client(remote, token) as qm:
            transaction = qm.transaction()
            await transaction.begin()
            assert (await transaction.receive("orders")).body == b"1"
        async with client(remote, token) as qm:
            assert (await qm.receive("orders", timeout_s=END_S)).body == b"1"

    asyncio.run(run())


@pytest.mark.parametrize("queue", ["plain", "orders"])
def test_a_cancelled_receive_loses_nothing(remote: Remote, token: Path, queue: str):
    async def run() -> None:
        async with client(remote, token) as qm:
            for number in range(20):
                waiting = asyncio.create_task(qm.receive(queue, timeout_s=None))
                await asyncio.sleep(0.002 * (number % 4))
                sent = asyncio.create_task(qm.send(queue, b"%d" % number))
                await asyncio.sleep(0.001 * (number % 5))
                waiting.cancel()
                found = None
                with contextlib.suppress(asyncio.CancelledError):
                    found = await waiting
                await sent
                if found is None:
                    found = await qm.receive(queue, timeout_s=END_S)
                assert found is not None
                assert found.body == b"%d" % number
            assert await qm.receive(queue) is None

    asyncio.run(run())
