"""The client library with a real daemon: opened queues, cursors, chosen messages, answers."""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from qmd.client import (
    AccessDenied,
    BadRequest,
    ClientError,
    NoSuchQueue,
    QueueManager,
    TransactionAborted,
    blocking,
    chosen,
    connect,
)
from tests.patience import END_S
from tests.process.harness import Daemon, Hosts

DOCS = Path(__file__).parents[2] / "docs"
Work = Callable[[QueueManager], Coroutine[Any, Any, None]]


@pytest.fixture(scope="module")
def shared(shared_hosts: Hosts) -> Daemon:
    daemon = shared_hosts.daemon()
    daemon.create("plain", "prices", "replies")
    daemon.create("orders", "invoices", transactional=True)
    return daemon


class _Changed(Exception):
    """The application has decided to abort."""


def with_client(work: Callable[..., Coroutine[Any, Any, None]]) -> Callable[[Daemon], None]:
    """Run the test as a coroutine with a client, and with a second one if it takes two."""

    def run(daemon: Daemon) -> None:
        async def main() -> None:
            path = daemon.folder / "qmd.sock"
            async with asyncio.timeout(END_S), connect(path) as qm, connect(path) as other:
                for queue in ("plain", "replies", "orders", "invoices"):
                    await qm.purge_queue(queue)
                await (work(qm, other) if work.__code__.co_argcount == 2 else work(qm))

        asyncio.run(main())

    run.__name__, run.__doc__ = work.__name__, work.__doc__
    return run


@with_client
async def test_a_message_is_received_at_its_position(qm: QueueManager) -> None:
    ids = [await qm.send("plain", b"%d" % number, label=f"no. {number}") for number in range(5)]
    third = (await qm.peek("plain", limit=5))[2]

    (found,) = await qm.receive_chosen("plain", chosen(lookup_ids=[third.lookup_id]))
    assert found.body == b"2"
    assert await qm.receive_chosen("plain", chosen(lookup_ids=[third.lookup_id])) == []
    (found,) = await qm.receive_chosen("plain", chosen(ids=[ids[4]]))
    assert found.body == b"4"
    (found,) = await qm.receive_chosen("plain", chosen(label="NO. 1"))
    assert found.body == b"1"
    assert [each.body for each in await qm.receive_many("plain", 9)] == [b"0", b"3"]


@with_client
async def test_a_waiting_receive_gets_the_message_when_it_arrives(
    qm: QueueManager, other: QueueManager
) -> None:
    await qm.send("plain", b"another", label="no")
    waiting = asyncio.ensure_future(qm.receive_chosen("plain", chosen(label="yes"), timeout_s=None))
    await asyncio.sleep(0.05)
    await other.send("plain", b"not this one", label="no")
    await other.send("plain", b"this one", label="yes")
    assert [each.body for each in await waiting] == [b"this one"]
    assert await qm.receive_chosen("plain", chosen(label="yes"), timeout_s=0.05) == []


@with_client
async def test_a_taken_message_is_not_received_by_another_client(
    qm: QueueManager, other: QueueManager
) -> None:
    await qm.send("plain", b"x")
    async with await qm.take("plain") as taken:
        place = taken.messages[0].lookup_id
        assert await other.receive_chosen("plain", chosen(lookup_ids=[place])) == []
        assert (await other.look("plain", "this", place)) is not None
    assert [each.body for each in await other.receive_chosen("plain", chosen())] == [b"x"]


@with_client
async def test_a_client_that_leaves_during_a_wait_takes_no_message(
    qm: QueueManager, other: QueueManager
) -> None:
    for _ in range(20):
        waiting = asyncio.ensure_future(
            qm.receive_chosen("plain", chosen(label="x"), timeout_s=None)
        )
        await asyncio.sleep(0)
        sending = asyncio.ensure_future(other.send("plain", b"x", label="x"))
        waiting.cancel()
        await asyncio.wait([waiting])
        await sending
        found = await other.receive_chosen("plain", chosen(label="x"), timeout_s=5)
        assert [each.body for each in found] == [b"x"]


@with_client
async def test_a_place_has_neighbours(qm: QueueManager) -> None:
    for number in range(3):
        await qm.send("plain", b"%d" % number)
    await qm.send("plain", b"express", delivery="express")
    first, second, *_, last = await qm.peek("plain", limit=9)
    assert last.body == b"express"

    async def at(which: Any, lookup_id: int = 0) -> bytes | None:
        message = await qm.look("plain", which, lookup_id)
        return None if message is None else message.body

    assert (await at("first"), await at("last")) == (b"0", b"express")
    assert await at("this", second.lookup_id) == b"1"
    assert await at("next", second.lookup_id) == b"2"
    assert await at("previous", second.lookup_id) == b"0"
    assert await at("previous", last.lookup_id) == b"2"
    assert await at("previous", first.lookup_id) is None
    assert await at("next", last.lookup_id) is None
    assert await at("this", second.lookup_id + 1_000) is None
    with pytest.raises(BadRequest, match="no place"):
        await at("somewhere")


@with_client
async def test_a_cursor_walks_and_receives_on_its_way(qm: QueueManager) -> None:
    for number in range(4):
        await qm.send("plain", b"%d" % number)
    async with qm.open("plain") as queue:
        cursor = queue.cursor()
        assert (await cursor.next()).body == b"0"  # type: ignore[union-attr]
        assert (await cursor.next()).body == b"1"  # type: ignore[union-attr]
        assert (await cursor.receive()).body == b"1"  # type: ignore[union-attr]
        assert await cursor.current() is None
        assert await cursor.receive() is None
        assert (await cursor.next()).body == b"2"  # type: ignore[union-attr]
        assert [message.body async for message in queue] == [b"0", b"2", b"3"]
        assert (await cursor.next()).body == b"3"  # type: ignore[union-attr]
        assert await cursor.next() is None


@with_client
async def test_a_queue_is_used_for_what_it_was_opened_for(qm: QueueManager) -> None:
    async with qm.open("plain", "send") as queue:
        await queue.send(b"x")
        with pytest.raises(AccessDenied, match="opened to send"):
            await queue.receive()
    async with qm.open("plain", "peek") as queue:
        assert (await queue.peek()).body == b"x"  # type: ignore[union-attr]
        with pytest.raises(AccessDenied):
            await queue.receive()
        with pytest.raises(AccessDenied):
            await queue.purge()
    async with qm.open("plain", "admin") as queue:
        assert await queue.purge() == 1
    with pytest.raises(NoSuchQueue):
        async with qm.open("nowhere"):
            pass
    with pytest.raises(ValueError, match="access"):
        qm.open("plain", "everything")  # type: ignore[arg-type]


@with_client
async def test_a_queue_that_is_not_shared_is_received_from_by_one_only(
    qm: QueueManager, other: QueueManager
) -> None:
    await qm.send("plain", b"x")
    async with qm.open("plain", share="deny_receive") as queue:
        with pytest.raises(AccessDenied, match="does not share"):
            await other.receive("plain")
        with pytest.raises(AccessDenied, match="does not share"):
            await other.receive_chosen("plain", chosen())
        with pytest.raises(AccessDenied, match="does not share"):
            async with other.open("plain", share="deny_receive"):
                pass
        async with other.transaction() as transaction:
            with pytest.raises(AccessDenied, match="does not share"):
                await transaction.receive("plain")
        await other.send("plain", b"y")
        assert len(await other.peek("plain", limit=9)) == 2, "to look is allowed"
        assert (await queue.receive()).body == b"x"  # type: ignore[union-attr]
    assert (await other.receive("plain")).body == b"y"  # type: ignore[union-attr]


@with_client
async def test_a_request_gets_its_own_answer(qm: QueueManager, other: QueueManager) -> None:
    async def answer() -> None:
        questions = [await other.receive("plain", timeout_s=None) for _ in range(2)]
        for question in reversed(questions):
            assert question is not None
            await other.reply(question, b"the answer to " + question.body)

    answering = asyncio.create_task(answer())
    first, second = await asyncio.gather(
        qm.request("plain", b"one", response_queue="replies"),
        qm.request("plain", b"two", response_queue="replies"),
    )
    await answering
    assert first is not None
    assert second is not None
    assert (first.body, second.body) == (b"the answer to one", b"the answer to two")
    assert await qm.request("plain", b"three", response_queue="replies", timeout_s=0.1) is None
    unanswered = await qm.receive("plain")
    assert unanswered is not None
    await qm.send("plain", b"no response queue")
    with pytest.raises(ValueError, match="names no response queue"):
        await qm.reply(await qm.receive("plain") or unanswered, b"")


@with_client
async def test_a_message_is_sent_once_for_its_id(qm: QueueManager, other: QueueManager) -> None:
    first = await qm.send_once("plain", b"x", deduplication_id="order 17")
    assert await other.send_once("plain", b"x", deduplication_id="order 17") == first
    assert await qm.send_once("plain", b"x", deduplication_id="order 18") != first
    assert len(await qm.receive_many("plain", 9)) == 2
    with pytest.raises(BadRequest):
        await qm.send_once("plain", b"x", deduplication_id="")


@with_client
async def test_a_mistake_of_the_application_is_an_error_of_the_client(qm: QueueManager) -> None:
    refused: list[tuple[Callable[[], Any], str]] = [
        (lambda: qm.receive_chosen("plain", chosen(ids=["seventeen"])), "not a valid message id"),
        (lambda: qm.send("plain", b"", correlation_id="seventeen"), "is not a valid message id"),
        (lambda: qm.send("plain", b"", body_type="VT_NONE"), "is not a valid body type"),
        (lambda: qm.send_once("plain", b"", deduplication_id=b"x" * 65), "at most 64 bytes"),
        (lambda: qm.send_once("plain", b"", deduplication_id=b""), "no id to recognize"),
    ]
    for ask, words in refused:
        with pytest.raises(ClientError, match=words) as raised:
            await ask()
        assert raised.value.id, "it can be explained"
    with pytest.raises(TypeError, match="bytes or text"):
        await qm.send("plain", 5)  # type: ignore[arg-type]
    assert await qm.peek("plain") == []


@with_client
async def test_journals_and_dead_letters_are_read_like_any_queue(qm: QueueManager) -> None:
    nowhere = "DIRECT=TCP:127.0.0.1:1\\private$\\x"
    await qm.send(nowhere, b"never", time_to_reach_queue_s=0)
    (dead,) = await qm.receive_chosen(
        r"DIRECT=OS:.\SYSTEM$;DEADLETTER", chosen(reason="did not reach"), timeout_s=30
    )
    assert dead.body == b"never"


@with_client
async def test_an_abort_is_counted(qm: QueueManager) -> None:
    await qm.send("orders", b"x")
    for aborts in range(1, 6):
        with contextlib.suppress(_Changed):
            async with qm.transaction() as transaction:
                assert await transaction.receive("orders") is not None
                raise _Changed
        (message,) = await qm.peek("orders")
        assert message.abort_count == aborts


@with_client
async def test_a_message_of_a_cancelled_receive_is_not_removed_by_a_commit(
    qm: QueueManager, other: QueueManager
) -> None:
    await qm.purge_queue("orders")
    transaction = qm.transaction()
    await transaction.begin()
    waiting = asyncio.ensure_future(transaction.receive("orders", timeout_s=None))
    await asyncio.sleep(0.05)
    waiting.cancel()
    await asyncio.wait([waiting])
    await other.send("orders", b"nobody has seen it")
    with pytest.raises(TransactionAborted, match="cancelled"):
        await transaction.commit()
    (message,) = await other.receive_many("orders", 9, timeout_s=5)
    assert message.body == b"nobody has seen it"


def test_the_codec_is_imported_while_a_receive_waits(daemon: Daemon) -> None:
    daemon.create("empty")
    program = f"""
import asyncio, sys
from qmd.client import connect

async def main():
    async with connect({str(daemon.folder / "qmd.sock")!r}) as qm:
        assert "protocol.packets" not in sys.modules
        assert not await qm.take("empty", 1, timeout_s=0.3)
        print("protocol.packets" in sys.modules)

asyncio.run(main())
"""
    done = subprocess.run(
        (sys.executable, "-c", program), capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_the_blocking_client_behaves_the_same(daemon: Daemon) -> None:
    with blocking.connect(daemon.folder / "qmd.sock") as qm:
        with qm.transaction() as transaction:
            transaction.send("orders", b"one")
            transaction.send("invoices", b"two")
        with qm.open("orders") as queue:
            assert [message.body for message in queue] == [b"one"]
            assert {"cursor", "peek", "name"} <= set(dir(queue)), "as a person at a prompt finds it"
            cursor = queue.cursor()
            assert cursor.next().body == b"one"
            assert cursor.receive().body == b"one"
        assert qm.receive("invoices").body == b"two"


def examples(document: str) -> list[str]:
    text = (DOCS / document).read_text()
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


EXAMPLES = [
    pytest.param(example, id=f"{document} {number}")
    for document in ("client.md", "services.md", "transactions.md")
    for number, example in enumerate(examples(document), 1)
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_of_the_manual_run(daemon: Daemon, example: str) -> None:
    program = example.replace("/run/qmd/qmd.sock", str(daemon.folder / "qmd.sock"))
    exec(compile(program, "example", "exec"), {"__name__": "example"})
    # The remains of one example must not affect the next.
    with blocking.connect(daemon.folder / "qmd.sock") as qm:
        for queue in ("orders", "invoices"):
            qm.purge_queue(queue)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 15
