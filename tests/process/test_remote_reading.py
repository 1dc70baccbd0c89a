"""Reading a queue of another host over TLS: what programs on Windows did by RPC."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from qmd.client import ClientError, NotConnected, QueueManager, connect
from tests.patience import END_S
from tests.process.proxy import Proxy
from tests.process.remote_daemon import Remote
from tests.process.test_remote_control import pytestmark

__all__ = ["pytestmark"]
NAMES = x509.SubjectAlternativeName


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


def test_two_receives_of_one_client_of_which_one_is_cancelled(remote: Remote, token: Path):
    """Whatever the cancelled one has removed goes to the one that waits, not to a later one."""

    async def run() -> None:
        async with client(remote, token) as qm:
            for number in range(30):
                first = asyncio.create_task(qm.receive("plain", timeout_s=None))
                await asyncio.sleep(0.001 * (number % 3))
                second = asyncio.create_task(qm.receive("plain", timeout_s=END_S))
                await asyncio.sleep(0.002)
                await qm.send("plain", b"%d" % number)
                await asyncio.sleep(0.001 * (number % 7))
                first.cancel()
                found = None
                with contextlib.suppress(asyncio.CancelledError):
                    found = await first
                if found is None:
                    found = await second
                else:
                    second.cancel()
                    await asyncio.wait([second])
                assert found is not None
                assert found.body == b"%d" % number
            assert await qm.receive("plain") is None

    asyncio.run(run())


def test_a_host_that_is_cut_off_and_a_server_that_is_killed(remote: Remote, token: Path):
    """A receive that waits goes on after both; what an open transaction held is received again."""

    async def run(proxy: Proxy) -> None:
        address = f"tls://localhost:{proxy.port}"
        options = {"token_file": token, "ca_file": remote.ca_file, "reconnect_s": END_S}
        async with connect(address, **options) as qm:  # type: ignore[arg-type]
            waiting = asyncio.create_task(qm.receive("orders", timeout_s=END_S))
            await asyncio.sleep(0.2)
            proxy.cut()
            fill(remote, b"after the cut")
            found = await waiting
            assert found is not None
            assert found.body == b"after the cut"

            fill(remote, b"1", b"2")
            transaction = qm.transaction()
            await transaction.begin()
            first = await transaction.receive("orders")
            assert first is not None
            proxy.cut()
            with pytest.raises(ClientError):
                await transaction.commit()
            remote.daemon.restart()
            bodies = [
                message.body
                for message in [await qm.receive("orders", timeout_s=END_S) for _ in range(2)]
                if message is not None
            ]
            assert bodies == [b"1", b"2"]
            assert await qm.receive("orders") is None

    proxy = Proxy(remote.port)
    try:
        asyncio.run(run(proxy))
    finally:
        proxy.close()


def test_an_expired_certificate_is_named(tmp_path: Path):
    """Clients refuse it with the reason; a new one counts after a restart."""
    other = Remote(tmp_path)
    try:
        other.daemon.create("orders", transactional=True)
        token = other.token("read", queues=("private$\\*",))
        folder = tmp_path / "qmd"
        valid = (folder / "remote.crt").read_bytes()
        authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
        authority_key = load_pem_private_key((folder / "ca.key").read_bytes(), None)
        old = x509.load_pem_x509_certificate(valid)
        now = datetime.now(UTC)
        expired = (
            x509.CertificateBuilder(old.issuer, old.subject, old.public_key(), 7)
            .not_valid_before(now - timedelta(days=3))
            .not_valid_after(now - timedelta(days=1))
            .add_extension(old.extensions.get_extension_for_class(NAMES).value, critical=False)
            .sign(authority_key, SHA256())  # type: ignore[arg-type]
        )
        assert expired.issuer == authority.subject
        (folder / "remote.crt").write_bytes(expired.public_bytes(Encoding.PEM))
        other.daemon.restart()

        async def read() -> None:
            async with client(other, token) as qm:
                await qm.peek("orders")

        with pytest.raises(NotConnected, match="expired") as refused:
            asyncio.run(read())
        assert refused.value.code == "remote_certificate_refused"
        (folder / "remote.crt").write_bytes(valid)
        other.daemon.restart()
        asyncio.run(read())
    finally:
        other.daemon.kill()


def timers(port: int) -> list[str]:
    """Return the timers of the kernel for both ends of connections to a port of this host."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [
        row[5].partition(":")[0]
        for row in rows
        if f":{port:04X}" in row[1] + row[2] and row[3] == "01"
    ]


def test_both_ends_notice_a_host_that_is_gone(remote: Remote, token: Path):
    """Timer 02 is that of keep-alive: without it, a host without power would hold its messages."""

    async def run() -> None:
        async with client(remote, token) as qm:
            await qm.peek("orders")
            assert await asyncio.to_thread(_quiet, remote.port) == {"02"}

    asyncio.run(run())


def _quiet(port: int) -> set[str]:
    """Return the timers as soon as nothing is under way."""
    deadline = time.monotonic() + END_S
    while (found := set(timers(port))) != {"02"} and time.monotonic() < deadline:
        time.sleep(0.05)
    return found
