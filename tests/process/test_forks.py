"""A client in a forked process: it reports the fork, and leaves the parent's client intact."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from qmd.client import ClientError, QueueManager, blocking, connect, new_message
from tests.patience import END_S
from tests.process.command_line import ROOT
from tests.process.harness import Daemon, Hosts
from tests.process.processes import stopped
from tests.process.test_client import with_client

FORKED = "client_forked"


@pytest.fixture(scope="module")
def shared(shared_hosts: Hosts) -> Daemon:
    daemon = shared_hosts.daemon()
    daemon.create("plain", "replies")
    daemon.create("orders", "invoices", transactional=True)
    return daemon


def tried(work: Callable[[], object]) -> str:
    """Return the outcome as one line."""
    try:
        return f"did {work()!r}"
    except ClientError as error:
        return error.code
    except BaseException as error:
        return repr(error)


def in_fork(*works: Callable[[], object]) -> list[str]:
    """Return the outcome of each act in a process that is forked now."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, "\n".join(map(tried, works)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    try:
        return read_all(reading).splitlines()
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def read_all(reading: int) -> str:
    found = b""
    while True:
        ready, _, _ = select.select([reading], [], [], END_S)
        assert ready, f"the forked process hangs, after {found!r}"
        data = os.read(reading, 65536)
        if not data:
            return found.decode()
        found += data


def emptied(qm: Any) -> Any:
    for queue in ("plain", "orders", "invoices"):
        qm.purge_queue(queue)
    return qm


def test_every_verb_of_a_blocking_client_reports_the_fork(daemon: Daemon) -> None:
    path = daemon.folder / "qmd.sock"
    with blocking.connect(path) as qm:
        emptied(qm).send_many([new_message("plain", b"%d" % number) for number in range(3)])
        each = qm.receive_each("plain", timeout_s=0)
        assert next(each).body == b"0"
        taken = qm.take("orders")
        sender = qm.sender("orders").__enter__()
        future = sender.send(b"x")
        future.result(END_S)

        def anew() -> str:
            with blocking.connect(path) as other:
                other.send("invoices", b"from the fork")
                return "sent"

        found = in_fork(
            lambda: qm.send("plain", b"twice"),
            lambda: qm.receive("plain"),
            lambda: qm.status(),
            lambda: qm.directory.lists(),
            lambda: qm.pipeline.list_stages(),
            lambda: next(each),
            lambda: taken.remove(),
            lambda: sender.send(b"y"),
            lambda: sender.__exit__(None, None, None),
            lambda: qm.transaction().__enter__(),
            lambda: qm.__enter__(),
            lambda: qm.name,
            lambda: qm.__exit__(None, None, None),
            anew,
        )

        assert found[:11] == [FORKED] * 11
        assert found[11:] == [f"did {qm.name!r}", "did None", "did 'sent'"]
        sender.__exit__(None, None, None)
        assert [message.body for message in each] == [b"1", b"2"], "neither lost nor doubled"
        assert [message.body for message in qm.peek_each("orders")] == [b"x"]
        assert [message.body for message in qm.peek_each("invoices")] == [b"from the fork"]
        assert qm.receive("plain") is None


def test_the_error_names_the_remedy(daemon: Daemon) -> None:
    with blocking.connect(daemon.folder / "qmd.sock") as qm:

        def error() -> str:
            with pytest.raises(ClientError) as raised:
                qm.send("plain", b"")
            return f"{raised.value.id} {raised.value}"

        (found,) = in_fork(error)
    assert "QM-" in found
    assert str(os.getpid()) in found
    assert "connect" in found


def test_the_wait_for_a_future_of_the_other_process_ends(daemon: Daemon) -> None:
    with blocking.connect(daemon.folder / "qmd.sock") as qm:
        emptied(qm)
        with qm.sender("plain") as sender:
            with stopped(daemon.pid):
                future = sender.send(b"x")
                found = in_fork(future.result, future.exception)
            assert found == [FORKED] * 2
            assert future.result(END_S)
        assert [message.body for message in qm.peek_each("plain")] == [b"x"]


def test_a_fork_with_waiting_threads(daemon: Daemon) -> None:
    with blocking.connect(daemon.folder / "qmd.sock") as qm:
        emptied(qm)
        bodies: list[bytes] = []
        threads = [
            threading.Thread(
                target=lambda: bodies.append(qm.receive("plain", timeout_s=END_S).body)
            )
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        assert in_fork(lambda: qm.receive("plain"), lambda: qm.send("plain", b"y")) == [FORKED] * 2
        for number in range(3):
            qm.send("plain", b"%d" % number)
        for thread in threads:
            thread.join(END_S)
        assert sorted(bodies) == [b"0", b"1", b"2"]


def test_a_transaction_stays_with_the_process_that_began_it(daemon: Daemon) -> None:
    with blocking.connect(daemon.folder / "qmd.sock") as qm:
        emptied(qm).send("orders", b"an order")
        with qm.transaction() as transaction:
            assert qm.receive("orders").body == b"an order"
            qm.send("invoices", b"1")

            def failing() -> None:
                assert transaction.__exit__(ValueError, ValueError("x"), None) is None

            found = in_fork(
                lambda: qm.send("invoices", b"2"),
                lambda: transaction.send("invoices", b"3"),
                lambda: transaction.commit(),
                lambda: transaction.__exit__(None, None, None),
                failing,
                lambda: transaction.abort(),
            )
            assert found[:4] == [FORKED] * 4
            assert found[4] == "did None"
        assert [message.body for message in qm.peek_each("invoices")] == [b"1"]
        assert qm.peek("orders") == []


def _in_process(qm: Any, results: Any) -> None:
    results.put(tried(lambda: qm.send("plain", b"y")))


def test_a_process_of_multiprocessing_reports_the_fork_too(daemon: Daemon) -> None:
    context = multiprocessing.get_context("fork")
    with blocking.connect(daemon.folder / "qmd.sock") as qm:
        emptied(qm)
        results = context.Queue()
        process = context.Process(target=_in_process, args=(qm, results))
        process.start()
        assert results.get(timeout=END_S) == FORKED
        process.join(END_S)
        assert process.exitcode == 0
        assert qm.peek("plain") == []


@with_client
async def test_an_async_client_reports_the_fork_too(qm: QueueManager) -> None:
    await qm.send_many([new_message("plain", b"%d" % number) for number in range(3)])
    each = qm.receive_each("plain", timeout_s=0)
    assert (await anext(each)).body == b"0"
    transaction = qm.transaction()
    await transaction.begin()
    await transaction.send("invoices", b"1")
    await qm.send("replies", b"a reply")
    taken = await qm.take("replies")
    held: list[Awaitable[object]] = []

    def step(make: Callable[[], Awaitable[object]]) -> Callable[[], object]:
        """Run the coroutine to its first wait, in this loop."""

        def run() -> object:
            work = make()
            held.append(work)
            try:
                work.__await__().send(None)  # type: ignore[attr-defined]
            except StopIteration as end:
                return end.value
            return "it waits"

        return run

    path = Path(str(qm._caller._path))

    def anew() -> str:
        async def main() -> str:
            async with connect(path) as other:
                return await other.send("plain", b"from the fork")

        asyncio._set_running_loop(None)
        return f"{len(asyncio.run(main())) > 0}"

    found = in_fork(
        *map(
            step,
            [
                lambda: qm.send("plain", b"y"),
                lambda: qm.receive("plain"),
                lambda: qm.status(),
                lambda: each.__anext__(),
                lambda: taken.remove(),
                lambda: transaction.commit(),
                lambda: transaction.send("invoices", b"2"),
                lambda: qm.__aenter__(),
                lambda: transaction.__aexit__(ValueError, ValueError(), None),
                lambda: taken.__aexit__(None, None, None),
                lambda: qm.__aexit__(None, None, None),
            ],
        ),
        anew,
    )
    assert found == [*[FORKED] * 8, *["did None"] * 3, "did 'True'"]

    await transaction.commit()
    await taken.remove()
    assert await qm.peek("replies") == []
    assert [message.body async for message in each] == [b"1", b"2", b"from the fork"]
    assert [message.body for message in await qm.peek("invoices", limit=9)] == [b"1"]


PARENT = """
import os, sys, time
from qmd.client import blocking
qm = blocking.connect(sys.argv[1]).__enter__()
taken = qm.take("plain")
assert len(taken) == 1
child = os.fork()
if child == 0:
    os.read(0, 1)  # until the test ends
    os._exit(0)
print(child, flush=True)
time.sleep(1000)
"""


def test_a_fork_does_not_keep_messages_taken_by_a_dead_process(daemon: Daemon) -> None:
    path = daemon.folder / "qmd.sock"
    with blocking.connect(path) as qm:
        emptied(qm).send("plain", b"x")
        parent = subprocess.Popen(
            [sys.executable, "-c", PARENT, str(path)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert parent.stdin is not None
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            assert qm.receive("plain") is None, "it is taken"
            parent.kill()
            parent.wait()
            received = qm.receive("plain", timeout_s=END_S)
            assert received is not None
            os.kill(child, 0)  # the message is still in the queue
        finally:
            parent.stdin.close()
            parent.stdout.close()
