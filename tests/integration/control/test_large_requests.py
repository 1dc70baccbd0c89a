"""Requests with many messages: they are done in parts, and are one commit nevertheless."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import msgspec
import pytest

from protocol import parse_user_message
from qmd.bulk.prepared_messages import PreparedMessages
from qmd.client import QueueManager, QueueManagerError, Signer, connect, new_message
from qmd.control_protocol.messages import Done, Import, ImportedMessage, NewMessage, Refused
from qmd.control_protocol.parts import MANY
from qmd.core.acknowledgment import POSITIVE_ARRIVAL
from qmd.message_security.keyring import make_signer
from qmd.operations.packet_composer import PacketComposer
from tests.integration.control.test_local_users import user
from tests.integration.managers import Host, Hosts, hosted, until
from tests.process.control_client import ControlClient

MESSAGES = MANY + 500
SIGNED = 200  # far fewer than MANY


Delivery = Literal["automatic", "transactional"]
NUMBERED = [b"%d" % number for number in range(MESSAGES)]


def under_way(host: Host) -> Iterator[int]:
    """Return the numbers of requests of each account that have begun and are not answered."""
    return (each.under_way for each in host.client_accounts._accounts.values())


def messages_to(queue: str, *bodies: bytes, delivery: Delivery = "automatic") -> list[NewMessage]:
    return [new_message(queue, body, delivery=delivery) for body in bodies]


async def all_of(host: Host) -> list[bytes]:
    """Receive all messages of the queue `orders`."""
    bodies: list[bytes] = []
    while host.queue("orders").messages:
        bodies += await host.receive("orders")
    return bodies


async def send_numbered(qm: QueueManager, queue: str) -> list[str]:
    return await qm.send_many(messages_to(queue, *NUMBERED))


@hosted
async def test_a_large_request_is_in_order_and_nothing_overtakes_it(hosts: Hosts) -> None:
    a, b = await hosts.start("a"), await hosts.start("b")
    await a.create("orders")
    await b.create("orders", transactional=True)
    there = f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\orders"
    async with connect(a.socket) as qm:
        ways: list[tuple[str, Delivery]] = [("orders", "automatic"), (there, "transactional")]
        for queue, delivery in ways:
            ids, last = await asyncio.gather(
                qm.send_many(messages_to(queue, *NUMBERED, delivery=delivery)),
                qm.send_many(messages_to(queue, b"last", delivery=delivery)),
            )
            numbers = [int(each.partition("\\")[2]) for each in (*ids, *last)]
            assert numbers == sorted(set(numbers))
    assert await all_of(a) == [*NUMBERED, b"last"]
    await until(lambda: b.queue("orders").messages == MESSAGES + 1)
    assert await all_of(b) == [*NUMBERED, b"last"]


@hosted
async def test_others_are_served_while_a_large_request_is_prepared(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.create("other")
    async with connect(a.socket) as large, connect(a.socket) as other:
        await other.send("other", b"connected")
        sent = asyncio.create_task(send_numbered(large, "orders"))
        await until(lambda: any(under_way(a)))
        await other.send("other", b"small")
        assert not sent.done()
        assert a.queue("orders").messages == 0
        await sent
    assert a.queue("orders").messages == MESSAGES


@hosted
async def test_others_are_served_while_signatures_are_verified(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.create("other")
    folder = a.socket.parent
    make_signer("ann", folder / "ann.key", folder / "ann.crt", days=2)
    async with connect(a.socket) as large, connect(a.socket) as other:
        await other.send("other", b"connected")
        signer = Signer(str(folder / "ann.key"), str(folder / "ann.crt"))
        one = await large.sign(new_message("orders", b"signed"), signer)
        sent = asyncio.create_task(large.send_many([one] * SIGNED))
        await until(lambda: any(under_way(a)))
        await other.send("other", b"small")
        assert not sent.done()
        assert a.queue("orders").messages == 0
        assert len(set(await sent)) == SIGNED
        changed = msgspec.structs.replace(one, body=b"another")
        with pytest.raises(QueueManagerError, match="signature"):
            await large.send_many([one] * SIGNED + [changed])
        found = [each async for each in large.peek_each("orders")]

    assert [each.authenticated for each in found] == [True] * SIGNED


@hosted
async def test_a_signature_over_many_queues_is_verified_once(hosts: Hosts) -> None:
    a = await hosts.start()
    names = [f"q{number}" for number in range(50)]
    for name in names:
        await a.create(name)
    folder = a.socket.parent
    make_signer("ann", folder / "ann.key", folder / "ann.crt", days=2)
    signer = Signer(str(folder / "ann.key"), str(folder / "ann.crt"))
    protection = a.message_protection
    async with connect(a.socket) as qm:
        one = await qm.sign(new_message(",".join(names), b"signed"), signer)
        before = protection.checked_count
        await qm.send_many([one])
        assert protection.checked_count == before + 1
        found = []
        for name in names:
            found += [each async for each in qm.peek_each(name)]
        assert [each.authenticated for each in found] == [True] * len(names)
        # Neither other bytes nor another list have a share in that verdict.
        for changed in (
            msgspec.structs.replace(one, body=b"another"),
            msgspec.structs.replace(one, destination=",".join(names[1:])),
        ):
            with pytest.raises(QueueManagerError, match="signature"):
                await qm.send_many([changed])
    assert all(a.queue(name).messages == 1 for name in names)


@hosted
async def test_others_are_served_while_an_import_is_checked(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.create("other")
    await a.send("orders", b"exported")
    (stored,) = await a.peek("orders")
    one = ImportedMessage(stored.packet, 1)
    large = await user(a, os.getuid())
    async with connect(a.socket) as other:
        await other.send("other", b"connected")
        done = asyncio.create_task(large.ask(Import, "orders", [one] * MESSAGES))
        await until(lambda: any(under_way(a)))
        await other.send("other", b"small")
        assert not done.done()
        assert a.queue("orders").messages == 1
        assert isinstance(await done, Done)
        assert a.queue("orders").messages == 1 + MESSAGES
        broken = [*[one] * MESSAGES, ImportedMessage(b"broken", 1)]
        reply = await large.ask(Import, "orders", broken)
    large.close()

    assert isinstance(reply, Refused)
    assert (reply.code, f"entry {MESSAGES + 1} " in reply.text) == ("packet_broken", True)
    assert a.queue("orders").messages == 1 + MESSAGES


@hosted
async def test_a_large_request_with_a_bad_message_sends_nothing(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.create("small", quota_bytes=100_000)
    async with connect(a.socket) as qm:
        good = messages_to("orders", *NUMBERED)
        with pytest.raises(QueueManagerError, match="nowhere"):
            await qm.send_many([*good, new_message("nowhere", b"")])
        with pytest.raises(QueueManagerError, match="quota"):
            await qm.send_many([*good, *messages_to("small", *NUMBERED)])
        await qm.send("orders", b"next")
    assert await all_of(a) == [b"next"]


@hosted
async def test_unusual_messages_of_a_large_request_are_sent_too(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.create("acks")
    async with connect(a.socket) as qm:
        usual = messages_to("orders", *NUMBERED)
        express = new_message("orders", b"express", delivery="express")
        ids = await qm.send_many([*usual, express])
        assert len(set(ids)) == MESSAGES + 1
    assert a.queue("orders").messages == MESSAGES + 1


@contextmanager
def composed_in_the_last_turn(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """Yield the packets that are composed while the messages of a request get their places."""
    found: list[bytes] = []
    is_last = False
    compose, write = PacketComposer.compose, PreparedMessages.write

    def watched(self: PacketComposer, *arguments: Any, **more: Any) -> bytes:
        packet = compose(self, *arguments, **more)
        if is_last:
            found.append(packet)
        return packet

    def last(self: PreparedMessages, *arguments: Any) -> None:
        nonlocal is_last
        is_last = True
        write(self, *arguments)
        is_last = False

    with monkeypatch.context() as patch:
        patch.setattr(PacketComposer, "compose", watched)
        patch.setattr(PreparedMessages, "write", last)
        yield found


@hosted
async def test_packets_of_unusual_messages_are_made_in_parts(hosts: Hosts) -> None:
    a, b = await hosts.start("a"), await hosts.start("b")
    await a.create("orders")
    await a.create("copies")
    await a.create("acks")
    await b.create("orders", transactional=True)
    there = f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\orders"
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("orders", {"delivery": "express"}),
        ("orders", {"admin_queue": "acks", "acknowledge": POSITIVE_ARRIVAL}),
        ("orders,copies", {}),
        (there, {"delivery": "transactional", "report_queue": "acks"}),
    ]
    async with connect(a.socket) as qm:
        for destination, properties in kinds:
            messages = [new_message(destination, each, **properties) for each in NUMBERED]
            with (
                pytest.MonkeyPatch.context() as patch,
                composed_in_the_last_turn(patch) as composed,
            ):
                ids = await qm.send_many(messages)
            assert len(ids) == MESSAGES
            assert not composed, destination
    for queue, times in (("orders", 3), ("copies", 1)):
        assert a.queue(queue).messages == times * MESSAGES
    await until(lambda: b.queue("orders").messages == MESSAGES)
    assert await all_of(b) == NUMBERED
    assert await all_of(a) == NUMBERED * 3


@hosted
async def test_unusual_messages_of_a_transaction_are_one_transaction(hosts: Hosts) -> None:
    a, b = await hosts.start("a"), await hosts.start("b")
    await a.create("orders", transactional=True)
    await b.create("orders", transactional=True)
    there = f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\orders"
    later = new_message("orders", b"later", delay_s=3600.0)
    async with connect(a.socket) as qm, qm.transaction():
        await qm.send_many([later])
        await qm.send_many([new_message(f"orders,{there}", each) for each in NUMBERED])
    await until(lambda: b.queue("orders").messages == MESSAGES)
    for host in (a, b):
        stored = await host.peek("orders")
        stored += await host.peek("orders", stored[-1].lookup_id + 1)
        headers = [parse_user_message(each.packet).transaction for each in stored]
        flags = [each.flags for each in headers if each is not None]
        assert [each.first for each in flags] == [1, *[0] * (MESSAGES - 1)]
        assert [each.last for each in flags] == [*[0] * (MESSAGES - 1), 1]
        assert len({each.index for each in flags}) == 1
        assert await all_of(host) == NUMBERED


@hosted
async def test_a_queue_that_is_deleted_while_messages_are_prepared_gets_none(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.create("copies")
    async with connect(a.socket) as large, connect(a.socket) as other:
        await other.send("orders", b"connected")
        messages = [new_message("orders,copies", each) for each in NUMBERED]
        sent = asyncio.create_task(large.send_many(messages))
        await until(lambda: any(under_way(a)))
        await other.delete_queue("copies")
        assert not sent.done()
        with pytest.raises(QueueManagerError, match=r"copies|changed"):
            await sent
    assert a.queue("orders").messages == 1


@hosted
async def test_a_large_request_in_a_transaction_is_sent_by_its_commit(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders", transactional=True)
    async with connect(a.socket) as qm:
        async with qm.transaction():
            await send_numbered(qm, "orders")
            await qm.send("orders", b"last")
            assert a.queue("orders").messages == 0
        transaction = qm.transaction()
        await transaction.begin()
        bad = [*messages_to("orders", *NUMBERED), new_message("nowhere", b"")]
        with pytest.raises(QueueManagerError, match="nowhere"):
            await transaction.send_many(bad)
        with pytest.raises(QueueManagerError, match="nowhere"):
            await transaction.commit()
    assert await all_of(a) == [*NUMBERED, b"last"]


@hosted
async def test_a_large_request_is_done_once_for_its_token(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")

    def send_both() -> None:
        rows = [["orders", body] for body in NUMBERED]
        with ControlClient(a.socket) as first, ControlClient(a.socket) as second:
            requests = [
                (client, client.send("send_once", rows, b"token", mark))
                for client, mark in ((first, b"same"), (second, b"same"), (second, b"other"))
            ]
            one, two, other = (client.reply(number) for client, number in requests)
            assert one[0] == "done"
            assert one[2] == two[2]
            assert other[2] == "idempotency_key_reused"

    await asyncio.to_thread(send_both)
    assert a.queue("orders").messages == MESSAGES


@hosted
async def test_a_large_request_that_is_not_understood_names_the_place(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")

    def send_bad() -> None:
        rows: list[list[object]] = [["orders", body] for body in NUMBERED]
        rows[MANY][1] = 5
        with ControlClient(a.socket) as client:
            _, _, code, text, _, _ = client.ask("send", rows)
            assert code == "request_not_understood"
            assert f"`$[2][{MANY}][1]`" in text
            client.done("send", [["orders", b"next"]])

    await asyncio.to_thread(send_bad)
    assert await all_of(a) == [b"next"]


@hosted
async def test_others_are_served_while_a_large_transaction_commits(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders", transactional=True)
    await a.create("other")
    async with connect(a.socket) as large, connect(a.socket) as other:
        await other.send("other", b"connected")
        transaction = large.transaction()
        await transaction.begin()
        for part in (NUMBERED[:900], NUMBERED[900:]):
            await transaction.send_many(messages_to("orders", *part))
        committed = asyncio.create_task(transaction.commit())
        await until(lambda: any(under_way(a)))
        await other.send("other", b"small")
        assert not committed.done()
        assert a.queue("orders").messages == 0
        await committed
    stored = await a.peek("orders")
    stored += await a.peek("orders", stored[-1].lookup_id + 1)
    headers = [parse_user_message(each.packet).transaction for each in stored]
    flags = [each.flags for each in headers if each is not None]
    assert [each.first for each in flags] == [1, *[0] * (MESSAGES - 1)]
    assert [each.last for each in flags] == [*[0] * (MESSAGES - 1), 1]
    assert len({each.index for each in flags}) == 1
    assert await all_of(a) == NUMBERED
