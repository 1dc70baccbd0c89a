"""Messages to public queues: transactional or not, as the directory describes the queue."""

from __future__ import annotations

from typing import Any

import pytest
import structlog.testing

from qmd.client import (
    Acknowledge,
    Message,
    TransactionDoomed,
    WrongDelivery,
    connect,
    new_message,
)
from qmd.control_protocol.bulk import Attempt
from tests.integration.directory.test_public_queues import (
    _with_addresses,
    create_public,
    directory_of,
    start,
)
from tests.integration.managers import TRANSACTIONAL_DEAD_LETTERS, Host, Hosts, hosted, until


async def _two_kinds(hosts: Hosts) -> tuple[Host, Host]:
    """Start two hosts; the second has `orders` (transactional) and `notes` (not transactional)."""
    a, b = await start(hosts, "a"), await start(hosts, "b")
    await create_public(b, "orders", transactional=True)
    await create_public(b, "notes")
    text = _with_addresses(hosts, b)
    for host in (a, b):
        directory_of(hosts).write_text(text)
        await host.directory.reload()  # type: ignore[attr-defined]
    return a, b


async def _delivered(host: Host) -> None:
    await until(
        lambda: not any(each.messages for each in host.outgoing.queues), "the acknowledgments"
    )


@hosted
async def test_a_message_is_sent_as_the_kind_of_its_queue_in_the_directory(hosts: Hosts) -> None:
    a, b = await _two_kinds(hosts)

    async with connect(a.socket) as qm:
        sent = [await qm.send("b\\orders", b"1"), await qm.send("b\\notes", b"2")]
        async with qm.sender("b\\orders") as sender:
            await sender.send(b"3")
        await qm.send_once("b\\orders", b"4", deduplication_id="4")
    await until(lambda: b.queue(".\\orders").messages == 3, "the transactional messages")
    await until(lambda: b.queue(".\\notes").messages == 1, "the other one")

    await b.settled()
    assert all(sent)
    assert [Message(each).delivery for each in await b.peek(".\\orders")] == ["transactional"] * 3
    assert [Message(each).delivery for each in await b.peek(".\\notes")] == ["recoverable"]
    await _delivered(a)


@hosted
async def test_a_message_of_the_wrong_kind_is_refused_by_the_sender(hosts: Hosts) -> None:
    a, b = await _two_kinds(hosts)
    public = (await _queue_of(a, "b\\orders"))["format_name"]

    async with connect(a.socket) as qm:
        for name in ("b\\orders", public):
            for delivery in ("express", "recoverable"):
                with pytest.raises(WrongDelivery, match="directory") as refused:
                    await qm.send(name, b"", delivery=delivery)
                assert refused.value.code == "needs_transactional"
        with pytest.raises(WrongDelivery, match="directory") as refused:
            await qm.send("b\\notes", b"", delivery="transactional")
        assert refused.value.code == "not_transactional"
        transaction = qm.transaction()
        await transaction.begin()
        with pytest.raises(WrongDelivery, match="directory") as refused:
            await transaction.send("b\\notes", b"")
        assert refused.value.code == "not_transactional_queue"
        with pytest.raises(TransactionDoomed):
            await transaction.commit()
        await qm.send("b\\notes", b"express", delivery="express")
    await until(lambda: b.queue(".\\notes").messages == 1, "the express message")
    assert b.queue(".\\orders").messages == 0
    await _delivered(a)


async def _queue_of(host: Host, name: str) -> Any:
    async with connect(host.socket) as qm:
        return await qm.directory.lookup(name)


@hosted
async def test_each_of_several_queues_gets_a_copy_of_its_kind(hosts: Hosts) -> None:
    a, b = await _two_kinds(hosts)
    await a.create("here", transactional=True)

    async with connect(a.socket) as qm:
        await qm.directory.create_list("both", ["b\\orders", "b\\notes"])
        await qm.send("b\\orders,b\\notes,here", b"1")
        await qm.send("list:both", b"2" + bytes(2000))
        with pytest.raises(WrongDelivery, match=r"element 2 of 2.*directory"):
            await qm.send("b\\notes,b\\orders", b"3", delivery="recoverable")
        with pytest.raises(WrongDelivery, match=r"its member PUBLIC.*directory"):
            await qm.send("list:both", b"3", delivery="express")
    for name, kind in ((".\\orders", "transactional"), (".\\notes", "recoverable")):
        await until(lambda name=name: b.queue(name).messages == 2, f"those for {name}")
        await b.settled()
        stored = [Message(each) for each in await b.peek(name)]
        assert [each.body[:1] for each in stored] == [b"1", b"2"]
        assert [each.delivery for each in stored] == [kind] * 2
    assert [Message(each).delivery for each in await a.peek("here")] == ["transactional"]
    await _delivered(a)


@hosted
async def test_in_a_transaction_several_queues_may_be_of_both_kinds(hosts: Hosts) -> None:
    a, b = await _two_kinds(hosts)

    async with connect(a.socket) as qm, qm.transaction() as transaction:
        await transaction.send("b\\orders,b\\notes", b"1")
    await until(lambda: b.queue(".\\orders").messages == 1, "the copy that fits")
    await until(lambda: b.queue(TRANSACTIONAL_DEAD_LETTERS).messages == 1, "the one that does not")
    await _delivered(a)


@hosted
async def test_a_message_of_the_wrong_kind_is_resent_as_the_right_kind(hosts: Hosts) -> None:
    a, b = await _two_kinds(hosts)
    await a.create("kept", transactional=True)
    await a.create("noted")

    async with connect(a.socket) as qm:
        await qm.send("kept", b"transactional")
        await qm.send("noted", b"recoverable")
        assert (await qm.resend("kept", to="b\\notes")).messages == 1
        assert (await qm.resend("noted", to="b\\orders")).messages == 1
    await until(lambda: b.queue(".\\orders").messages == 1, "the transactional message")
    await until(lambda: b.queue(".\\notes").messages == 1, "the other one")
    await _delivered(a)


@hosted
async def test_a_stage_is_published_as_the_kind_in_the_directory(hosts: Hosts) -> None:
    a, b = await _two_kinds(hosts)

    async with connect(a.socket) as qm:
        rows = [new_message(name, b"x") for name in ("b\\orders", "b\\notes") * 2]
        await qm.pipeline.stage("etl", 1, partition=0, attempt="a", messages=rows)
        assert (await qm.pipeline.publish("etl", 1, [Attempt(0, "a", 4)])).messages == 4
    await until(lambda: b.queue(".\\orders").messages == 2, "the transactional messages")
    await until(lambda: b.queue(".\\notes").messages == 2, "the others")
    await _delivered(a)


@hosted
async def test_without_a_kind_in_the_directory_a_message_is_sent_as_before(hosts: Hosts) -> None:
    a, b = await _two_kinds(hosts)
    text = directory_of(hosts).read_text()
    silent = "".join(line for line in text.splitlines(True) if "transactional" not in line)
    directory_of(hosts).write_text(silent)
    await a.directory.reload()  # type: ignore[attr-defined]
    a.resolver.forget()

    async with connect(a.socket) as qm:
        await qm.send("b\\notes", b"1")
        await qm.send("b\\orders", b"2", delivery="transactional")
        await qm.send("b\\orders", b"3", delivery="recoverable")
    await until(lambda: b.queue(".\\notes").messages == 1, "the recoverable message")
    await until(lambda: b.queue(".\\orders").messages == 1, "the transactional message")
    await _delivered(a)


@hosted
async def test_a_dropped_acknowledgment_for_a_transactional_queue_is_logged(
    hosts: Hosts,
) -> None:
    a, b = await _two_kinds(hosts)
    await a.create("plain")
    name = (await _queue_of(a, "b\\orders"))["format_name"]
    await a.resolver.resolve_text(name)

    with structlog.testing.capture_logs() as logged:
        await a.send("plain", b"1", admin_queue=name, acknowledge=int(Acknowledge.POSITIVE_ARRIVAL))
    assert [line["reason"] for line in logged if line["event"] == "acknowledgment_not_sent"]
    assert b.queue(".\\orders").messages == 0
