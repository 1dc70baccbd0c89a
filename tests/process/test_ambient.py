"""Operations inside `async with qm.transaction()` join the transaction, or are refused."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from qmd.client import (
    ClientError,
    NoSuchQueue,
    QueueManager,
    QueueManagerError,
    TransactionDoomed,
    blocking,
    chosen,
    new_message,
    no_transaction,
)
from qmd.control_protocol.bulk import Attempt
from tests.process.harness import Daemon, Hosts
from tests.process.test_client import with_client

NOT_PART = "not_part_of_a_transaction"


@pytest.fixture(scope="module")
def shared(shared_hosts: Hosts) -> Daemon:
    daemon = shared_hosts.daemon()
    daemon.create("plain", "prices", "replies")
    daemon.create("orders", "invoices", transactional=True)
    return daemon


class _Changed(Exception):
    """The application has decided to abort."""


async def waiting(qm: QueueManager, queue: str) -> list[bytes]:
    return [message.body async for message in qm.peek_each(queue)]


# A send that fails.


@with_client
async def test_after_a_failed_send_every_verb_and_the_commit_are_refused(qm: QueueManager) -> None:
    await qm.send("orders", b"an order")
    transaction = qm.transaction()
    await transaction.begin()
    (order,) = await transaction.receive_many("orders", 1)
    await transaction.send("invoices", b"1")
    with pytest.raises(NoSuchQueue) as first:
        await transaction.send("nowhere", b"2")

    further: list[Callable[[], Awaitable[object]]] = [
        lambda: transaction.send("invoices", b"3"),
        lambda: transaction.send_many([new_message("invoices", b"3")]),
        lambda: transaction.receive("orders"),
        lambda: transaction.receive_chosen("orders", chosen()),
        lambda: transaction.move("orders", [order.lookup_id], "orders;later"),
        lambda: transaction.reject("orders", [order.lookup_id]),
        transaction.commit,
    ]
    for verb in further:
        with pytest.raises(TransactionDoomed) as refused:
            await verb()
        assert refused.value.__cause__ is first.value
        assert first.value.text in refused.value.text
        assert refused.value.code == "transaction_doomed"

    assert await waiting(qm, "invoices") == []
    assert await waiting(qm, "orders") == [b"an order"]
    assert await qm.list_transactions() == []


@with_client
async def test_a_block_ends_with_the_error_of_its_failed_send(qm: QueueManager) -> None:
    async def work() -> None:
        async with qm.transaction() as transaction:
            await transaction.send("invoices", b"1")
            with contextlib.suppress(NoSuchQueue):
                await transaction.send("nowhere", b"2")

    with pytest.raises(TransactionDoomed) as refused:
        await work()
    assert isinstance(refused.value.__cause__, NoSuchQueue)
    assert await waiting(qm, "invoices") == []


@with_client
async def test_a_send_that_fails_in_the_client_dooms_its_transaction_too(
    qm: QueueManager,
) -> None:
    too_large = bytes(qm.message_bytes_max + 1)
    sends: list[Callable[[Any], Awaitable[object]]] = [
        lambda transaction: transaction.send("invoices", too_large),
        lambda transaction: transaction.send("invoices", b"", correlation_id="seventeen"),
        lambda transaction: transaction.send("invoices", 5),
        lambda transaction: transaction.send("DIRECT=NOTHING", b""),
    ]

    async def work(send: Callable[[Any], Awaitable[object]]) -> None:
        async with qm.transaction() as transaction:
            await transaction.send("invoices", b"1")
            with pytest.raises((ClientError, TypeError)):
                await send(transaction)

    for send in sends:
        with pytest.raises(TransactionDoomed):
            await work(send)
    assert await waiting(qm, "invoices") == []


@with_client
async def test_a_receive_that_fails_dooms_nothing(qm: QueueManager) -> None:
    async with qm.transaction() as transaction:
        with pytest.raises(NoSuchQueue):
            await transaction.receive("nowhere")
        await transaction.send("invoices", b"1")
    assert await waiting(qm, "invoices") == [b"1"]


# The enclosing transaction.


@with_client
async def test_sends_and_receives_inside_commit_or_abort_with_it(
    qm: QueueManager,
) -> None:
    await qm.send_many([new_message("orders", b"%d" % number) for number in range(6)])

    async def work() -> list[bytes]:
        first = await qm.receive("orders")
        assert first is not None
        found = [first, *await qm.receive_many("orders", 2)]
        places = chosen(lookup_ids=[(await qm.peek("orders", limit=9))[-1].lookup_id])
        found += await qm.receive_chosen("orders", places)
        async with qm.open("orders") as queue:
            found += [message for message in [await queue.receive()] if message]
            cursor = queue.cursor()
            found += [message for message in [await cursor.receive()] if message]
        await qm.send("invoices", b"a")
        await qm.send_many([new_message("invoices", b"b")])
        async with qm.open("invoices", "send") as queue:
            await queue.send(b"c")
        assert await waiting(qm, "invoices") == []
        return [message.body for message in found]

    with contextlib.suppress(_Changed):
        async with qm.transaction():
            assert sorted(await work()) == [b"0", b"1", b"2", b"3", b"4", b"5"]
            raise _Changed
    assert await waiting(qm, "invoices") == []
    assert await waiting(qm, "orders") == [b"%d" % number for number in range(6)]

    async with qm.transaction() as transaction:
        await work()
    assert await waiting(qm, "invoices") == [b"a", b"b", b"c"]
    assert await waiting(qm, "orders") == []
    assert len(transaction.sent) == 3


@with_client
async def test_an_answer_joins_and_a_failed_send_dooms(qm: QueueManager) -> None:
    await qm.send("orders", b"?", response_queue="invoices")
    with contextlib.suppress(_Changed):
        async with qm.transaction():
            question = await qm.receive("orders")
            assert question is not None
            await qm.reply(question, b"!")
            raise _Changed
    assert await waiting(qm, "orders") == [b"?"]
    assert await waiting(qm, "invoices") == []

    async def work() -> None:
        async with qm.transaction():
            await qm.receive("orders")
            with contextlib.suppress(QueueManagerError):
                await qm.send("nowhere", b"")

    with pytest.raises(TransactionDoomed):
        await work()
    assert await waiting(qm, "orders") == [b"?"]


@with_client
async def test_an_iteration_inside_receives_with_the_transaction(qm: QueueManager) -> None:
    await qm.send_many([new_message("orders", b"%d" % number) for number in range(5)])
    seen = []
    with contextlib.suppress(_Changed):
        async with qm.transaction():
            async for message in qm.receive_each("orders", timeout_s=0):
                seen.append(message.body)
            raise _Changed
    assert seen == [b"0", b"1", b"2", b"3", b"4"]
    assert len(await waiting(qm, "orders")) == 5

    async with qm.transaction():
        async for message in qm.receive_each("orders", timeout_s=0):
            if message.body == b"1":
                break
    assert await waiting(qm, "orders") == [b"2", b"3", b"4"], "none but those that were seen"
    assert qm.unread == []

    each = qm.receive_each("orders", timeout_s=0)
    first = await anext(each)
    assert first.body == b"2"
    async with qm.transaction():
        with pytest.raises(ClientError) as refused:
            await anext(each)
        assert refused.value.code == NOT_PART
    new = qm.receive_each("orders", timeout_s=0)
    async with qm.transaction():
        with pytest.raises(ClientError) as refused:
            await anext(new)
    assert refused.value.code == NOT_PART
    assert [message.body for message in qm.unread] == [b"3", b"4"]
    assert len(await qm.receive_many("orders", 9)) == 2


@with_client
async def test_verbs_that_cannot_join_are_refused_without_effect(qm: QueueManager) -> None:
    await qm.send("plain", b"x")
    pipeline = qm.pipeline

    async def with_sender() -> None:
        async with qm.sender("orders") as sender:
            await sender.send(b"y")

    cannot: list[Callable[[], Awaitable[object]]] = [
        with_sender,
        lambda: qm.send("orders", b"y", token=bytes(16)),
        lambda: qm.send_once("orders", b"y", deduplication_id="1"),
        lambda: qm.request("orders", b"y", response_queue="replies", timeout_s=0),
        lambda: qm.take("plain"),
        lambda: qm.move("plain", "prices"),
        lambda: qm.resend("plain", to="prices"),
        lambda: qm.import_messages("plain", []),
        lambda: qm.purge_queue("plain"),
        lambda: qm.delete_queue("plain"),
        lambda: qm.purge_outgoing("plain"),
        lambda: qm.give_up_awaiting("plain"),
        lambda: pipeline.open_reader("r", ["plain"]),
        lambda: pipeline.release_reader("r"),
        lambda: pipeline.stage(
            "q", 1, partition=0, attempt="a", messages=[new_message("orders", b"y")]
        ),
        lambda: pipeline.publish("q", 1, [Attempt(0, "a", 1)]),
        lambda: pipeline.discard_stages(),
    ]
    for verb in cannot:
        async with qm.transaction():
            with pytest.raises(ClientError) as refused:
                await verb()
        assert refused.value.code == NOT_PART
        assert refused.value.id
        assert "no_transaction" in refused.value.remedy
    assert await waiting(qm, "plain") == [b"x"]
    assert await waiting(qm, "orders") == []

    async with await qm.take("plain") as taken, qm.transaction():
        with pytest.raises(ClientError, match="transaction"):
            await taken.remove()
        with pytest.raises(ClientError, match="transaction"):
            await taken.reject()
    async with qm.sender("plain") as sender, qm.transaction():
        with pytest.raises(ClientError, match="transaction"):
            await sender.send(b"y")
    assert await waiting(qm, "plain") == [b"x"]

    async with qm.transaction():
        assert (await qm.move("plain", "prices", dry_run=True)).messages == 1
        assert await qm.purge_queue("plain", dry_run=True) == 1
        assert (await qm.status())["name"]


@with_client
async def test_verbs_outside_of_the_transaction_are_marked(qm: QueueManager) -> None:
    await qm.send("plain", b"x")
    with contextlib.suppress(_Changed):
        async with qm.transaction():
            await qm.send("orders", b"gone")
            with no_transaction():
                await qm.send("invoices", b"stays")
                assert (await qm.receive("plain")).body == b"x"  # type: ignore[union-attr]
            raise _Changed
    assert await waiting(qm, "orders") == []
    assert await waiting(qm, "invoices") == [b"stays"]
    assert await waiting(qm, "plain") == []


@with_client
async def test_the_innermost_transaction_of_each_client_is_joined(
    qm: QueueManager, other: QueueManager
) -> None:
    with contextlib.suppress(_Changed):
        async with qm.transaction():
            await qm.send("orders", b"outer")
            async with qm.transaction():
                await qm.send("orders", b"inner")
            await qm.send("orders", b"outer again")
            assert await waiting(qm, "orders") == [b"inner"]
            await other.send("orders", b"of another client")
            async with other.transaction():
                await qm.send("orders", b"outer still")
                await other.send("orders", b"the other's")
            raise _Changed
    assert await waiting(qm, "orders") == [b"inner", b"of another client", b"the other's"]


@with_client
async def test_blocks_may_end_in_any_order(qm: QueueManager) -> None:
    first, second = qm.transaction(), qm.transaction()
    await first.__aenter__()
    await second.__aenter__()
    await first.__aexit__(None, None, None)
    await qm.send("orders", b"second")
    assert await waiting(qm, "orders") == []
    await second.__aexit__(None, None, None)
    await qm.send("orders", b"none")
    assert await waiting(qm, "orders") == [b"second", b"none"]


@with_client
async def test_tasks_join_the_transaction_and_are_refused_after_its_end(
    qm: QueueManager,
) -> None:
    ended = asyncio.Event()

    async def late(verb: Callable[[], Awaitable[object]]) -> None:
        await ended.wait()
        with pytest.raises(ClientError, match="has ended") as refused:
            await verb()
        assert refused.value.code == "transaction_over"
        with no_transaction():
            await qm.send("invoices", b"on purpose")

    async def outside() -> None:
        await begun.wait()
        await qm.send("invoices", b"outside")

    begun = asyncio.Event()
    apart = asyncio.create_task(outside())
    with contextlib.suppress(_Changed):
        async with qm.transaction():
            begun.set()
            await apart
            await asyncio.gather(*(qm.send("orders", b"%d" % number) for number in range(3)))
            tasks = [
                asyncio.create_task(late(lambda: qm.send("orders", b"late"))),
                asyncio.create_task(late(lambda: qm.receive("orders"))),
                asyncio.create_task(late(lambda: qm.take("orders"))),
            ]
            raise _Changed
    ended.set()
    await asyncio.gather(*tasks)
    assert await waiting(qm, "orders") == []
    assert await waiting(qm, "invoices") == [b"outside", *[b"on purpose"] * 3]


@with_client
async def test_after_its_commit_a_block_has_no_effect(qm: QueueManager) -> None:
    async with qm.transaction() as transaction:
        await qm.send("orders", b"1")
        await transaction.commit()
        with pytest.raises(ClientError, match="has ended"):
            await qm.send("orders", b"2")
    await qm.send("orders", b"3")
    assert await waiting(qm, "orders") == [b"1", b"3"]


@with_client
async def test_an_abandoned_generator_of_the_application_has_no_effect(
    qm: QueueManager,
) -> None:
    async def orders() -> AsyncIterator[bytes]:
        while True:
            async with qm.transaction():
                message = await qm.receive("orders")
                if message is None:
                    return
                yield message.body

    await qm.send_many([new_message("orders", b"%d" % number) for number in range(3)])
    each = orders()
    assert await anext(each) == b"0"
    assert await anext(each) == b"1"
    await each.aclose()  # type: ignore[attr-defined]
    assert (await qm.receive("orders")).body == b"1"  # type: ignore[union-attr]


# Without `await`.


def test_the_blocking_client_behaves_the_same(daemon: Daemon) -> None:
    with blocking.connect(daemon.folder / "qmd.sock") as qm:

        def bodies(queue: str) -> list[bytes]:
            return [message.body for message in qm.peek_each(queue)]

        for queue in ("orders", "invoices", "plain"):
            qm.purge_queue(queue)
        qm.send_many([new_message("orders", b"%d" % number) for number in range(3)])
        elsewhere: list[bytes] = []

        def in_another_thread() -> None:
            qm.send("plain", b"another thread")
            elsewhere.extend(bodies("plain"))

        with contextlib.suppress(_Changed), qm.transaction():
            assert qm.receive("orders").body == b"0"
            assert [message.body for message in qm.receive_each("orders", timeout_s=0)] == [
                b"1",
                b"2",
            ]
            qm.send("invoices", b"gone")
            with no_transaction():
                qm.send("invoices", b"stays")
            thread = threading.Thread(target=in_another_thread)
            thread.start()
            thread.join()
            with qm.transaction():
                qm.send("invoices", b"inner")
            for verb in (lambda: qm.take("orders"), lambda: qm.sender("orders")):
                with pytest.raises(ClientError) as refused:
                    verb()
                assert refused.value.code == NOT_PART
            raise _Changed
        assert elsewhere == [b"another thread"]
        assert bodies("orders") == [b"0", b"1", b"2"]
        assert bodies("invoices") == [b"stays", b"inner"]

        def work() -> None:
            with qm.transaction():
                qm.send("invoices", b"doomed")
                with pytest.raises(NoSuchQueue) as first:
                    qm.send("nowhere", b"")
                with pytest.raises(TransactionDoomed) as again:
                    qm.receive("orders")
                assert again.value.__cause__ is first.value

        with pytest.raises(TransactionDoomed):
            work()
        qm.send("invoices", b"behind it")
        assert bodies("invoices") == [b"stays", b"inner", b"behind it"]
