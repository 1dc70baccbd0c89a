"""Accepting messages from applications, and delivering them to their destinations."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from protocol import parse_user_message
from protocol.message_class import MessageClass
from qmd.control_protocol import messages as frames
from qmd.control_protocol.messages import EXPRESS, RECOVERABLE, TRANSACTIONAL, NewMessage
from qmd.core.sequence import NUMBER_MAX
from qmd.errors import Refusal
from tests.integration.managers import (
    DEAD_LETTERS,
    JOURNAL,
    TRANSACTIONAL_DEAD_LETTERS,
    Host,
    Hosts,
    bodies,
    hosted,
    until,
)
from tests.integration.remote import guid, listening
from tests.patience import END_S


def refusal_of(host: Host, *messages: NewMessage) -> str:
    with pytest.raises(Refusal) as caught:
        host.handed_over(list(messages))
    return caught.value.code


def name_at(host: Host, queue: str) -> str:
    return f"DIRECT=TCP:127.0.0.1:{host.port}\\private$\\{queue}"


@hosted
async def test_messages_are_delivered_once_and_in_order(hosts: Hosts) -> None:
    a, b = await hosts.start("a"), await hosts.start("b")
    await b.create("orders", transactional=True)
    numbers = [b"%d" % number for number in range(200)]
    for start in range(0, 200, 50):
        await a.send(name_at(b, "orders"), *numbers[start : start + 50], delivery=TRANSACTIONAL)
    await until(lambda: b.queue("orders").messages == 200)
    await b.settled()

    assert await b.receive("orders") == numbers
    await until(lambda: a.sending_to(name_at(b, "orders")).messages == 0, "its release")


@hosted
async def test_all_messages_of_a_request_are_accepted_or_none(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.create("small", quota_bytes=1000)
    good = NewMessage("orders", b"x")

    assert refusal_of(a, good, NewMessage("nowhere", b"x")) == "no_such_queue"
    assert refusal_of(a, good, NewMessage("small", bytes(1000))) == "queue_full"
    assert refusal_of(a, good, NewMessage("small", bytes(400)), NewMessage("small", bytes(400)))
    assert refusal_of(a, good, NewMessage("orders", b"", priority=8)) == "bad_priority"
    assert a.queue("orders").messages == 0
    await a.handed_over([good, NewMessage("small", bytes(400))])
    assert a.queue("small").messages == 1


@hosted
async def test_delivery_and_kind_of_queue_must_match(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("plain")
    await a.create("strict", transactional=True)

    for queue, delivery, code in (
        ("plain", TRANSACTIONAL, "not_transactional"),
        ("strict", RECOVERABLE, "needs_transactional"),
        ("strict", EXPRESS, "needs_transactional"),
    ):
        assert refusal_of(a, NewMessage(queue, b"", delivery=delivery)) == code
    for queue in (JOURNAL, DEAD_LETTERS, "order_queue$", "system$;deadxact"):
        assert refusal_of(a, NewMessage(queue, b"")) in ("queue_read_only", "name_not_understood")


@hosted
async def test_the_quota_of_the_computer_counts_every_queue(hosts: Hosts) -> None:
    a = await hosts.start(quotas={"computer_bytes": 10_000})
    await a.create("orders")
    await a.send("orders", bytes(4000))
    await a.send("DIRECT=TCP:127.0.0.1:1\\private$\\x", bytes(4000))

    assert refusal_of(a, NewMessage("orders", bytes(4000))) == "computer_full"
    await a.receive("orders")
    await a.send("orders", bytes(4000))


@hosted
async def test_memory_for_express_messages_is_bounded(hosts: Hosts) -> None:
    a = await hosts.start(quotas={"express_bytes": 10_000})
    await a.create("orders")
    express = NewMessage("orders", bytes(4000), delivery=EXPRESS)
    elsewhere = NewMessage("DIRECT=TCP:127.0.0.1:1\\private$\\x", bytes(4000), delivery=EXPRESS)
    await a.handed_over([express, elsewhere])

    assert refusal_of(a, express) == "express_full"
    assert refusal_of(a, elsewhere) == "express_full"
    await a.send("orders", bytes(4000), delivery=RECOVERABLE)
    assert len(await a.receive("orders")) == 2
    await a.handed_over([express])


@hosted
async def test_a_flood_faster_than_the_disk_is_refused_without_doubled_message_numbers(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    await a.create("orders")
    flood = [NewMessage("orders", b"", delivery=EXPRESS)] * frames.MESSAGES_MAX
    ids: list[str] = []
    refused = ""
    is_free = threading.Event()  # until it is set, the disk is busy and no numbers can be reserved
    held = a.storage.batch.run(lambda db: is_free.wait(END_S))
    for _ in range(10):
        try:
            ids += await a.handed_over(flood)
        except Refusal as refusal:
            refused = refusal.text
            break
    is_free.set()
    assert await held
    assert "than can be given a number" in refused
    assert len(ids) == len(set(ids)) >= 2 * frames.MESSAGES_MAX, "what one client may ask for"

    await a.settled()
    ids += await a.handed_over(flood)
    assert len(ids) == len(set(ids))


@hosted
async def test_a_host_name_without_an_address_does_not_stop_the_daemon(hosts: Hosts) -> None:
    a = await hosts.start()
    for host in ("x..y", "y" * 64):
        await a.send(f"orders@{host}", b"x")
        sender = a.sending_to(f"orders@{host}")
        await until(lambda sender=sender: sender.link.retry.failures >= 2, "two attempts")


@hosted
async def test_a_sequence_without_free_numbers_is_replaced_once_it_is_empty(hosts: Hosts) -> None:
    a = await hosts.start()
    async with listening(guid(7)) as elsewhere:
        name = elsewhere.name("orders")
        await a.send(name, b"1", delivery=TRANSACTIONAL)
        remote = await elsewhere.session()
        await until(lambda: len(remote.messages) == 1)
        sequence = a.sending_to(name).sequence
        sequence.next_number = NUMBER_MAX - 1
        assert (
            refusal_of(a, *[NewMessage(name, b"", delivery=TRANSACTIONAL)] * 3) == "sequence_full"
        )
        remote.order_ack(remote.messages[0])
        await until(lambda: a.sending_to(name).messages == 0)

        await a.send(name, b"2", b"3", b"4", delivery=TRANSACTIONAL)
        await until(lambda: len(remote.messages) == 4)
        headers = [each.message.transaction for each in remote.messages]
        positions = [(each.sequence_id, each.sequence_number) for each in headers if each]
        first, second = positions[0][0], positions[1][0]
        assert first < second
        assert positions[1:] == [(second, 1), (second, 2), (second, 3)]


@hosted
async def test_the_index_of_a_transaction_goes_on_after_a_start(hosts: Hosts) -> None:
    """Of 20 bits: unique among the transactions of a sender.  [MS-MQMQ] 2.2.20.5"""
    a = await hosts.start()
    await a.create("orders", transactional=True)
    indexes = []
    for _ in range(3):
        await a.send("orders", b"1", b"2", delivery=TRANSACTIONAL)
        for each in await a.peek("orders"):
            transaction = parse_user_message(each.packet).transaction
            assert transaction is not None
            indexes.append(transaction.flags >> 4 & 0xFFFFF)
        await a.receive("orders")
        a = await hosts.restart(a)

    assert len(set(indexes)) == 6
    for first, second in zip(indexes[::2], indexes[1::2], strict=True):
        assert second - first & 0xFFFFF == 1


@hosted
async def test_a_paused_queue_keeps_its_messages_and_does_not_connect(hosts: Hosts) -> None:
    a = await hosts.start()
    async with listening(guid(7)) as elsewhere:
        name = elsewhere.name("orders")
        a.destinations.route(name)
        await a.outgoing.set_paused(a.sending_to(name), True)
        await a.send(name, b"1")
        await a.settled()
        assert a.sending_to(name).link.state(a.sending_to(name)).value == "paused"
        a = await hosts.restart(a)
        await a.settled()
        assert not elsewhere.remotes

        await a.outgoing.set_paused(a.sending_to(name), False)
        remote = await elsewhere.session()
        await until(lambda: remote.ordinary == [b"1"])


@hosted
async def test_a_queue_whose_session_has_ended_is_disconnected(hosts: Hosts) -> None:
    """[MS-MQQB] 3.1.5.9, [MS-MQMQ] 2.3.12.11"""
    a, b = await hosts.start("a"), await hosts.start("b")
    await b.create("orders")
    name = f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\orders"
    a.destinations.route(name)
    queue = a.sending_to(name)
    assert queue.link.state(queue).windows_name == "INACTIVE"
    await a.send(name, b"1")
    await until(lambda: b.queue("orders").messages == 1 and not queue.messages)
    connection = queue.link.connection
    assert connection is not None
    assert queue.link.state(queue).windows_name == "CONNECTED"
    a.services.lifecycle.stopping = True
    assert queue.link.state(queue).windows_name == "DISCONNECTING"
    a.services.lifecycle.stopping = False

    connection.close("it is not needed")

    await until(lambda: queue.link.connection is None)
    assert queue.link.state(queue).windows_name == "DISCONNECTED"


@hosted
async def test_a_kick_connects_or_resends_at_once(hosts: Hosts) -> None:
    a = await hosts.start(delivery={"retry_first_s": 1000.0, "retry_max_s": 1000.0})
    port = a.port
    await hosts.stop(a)  # now its port is closed
    a = await hosts.start("b", delivery={"retry_first_s": 1000.0, "retry_max_s": 1000.0})
    name = f"DIRECT=TCP:127.0.0.1:{port}\\private$\\orders"
    await a.send(name, b"1", b"2", delivery=TRANSACTIONAL)
    await until(lambda: a.sending_to(name).link.retry.failures == 1)
    async with listening(guid(7), port=port) as elsewhere:
        a.outgoing.kick(a.sending_to(name))
        remote = await elsewhere.session()
        await until(lambda: remote.ordinary == [b"1", b"2"])

        a.outgoing.kick(a.sending_to(name))
        await until(lambda: remote.ordinary == [b"1", b"2"] * 2)


@hosted
async def test_queues_of_one_address_are_served_in_turn(hosts: Hosts) -> None:
    a = await hosts.start()
    async with listening(guid(7), window_size=64) as elsewhere:
        names = [elsewhere.name(f"q{number}") for number in range(3)]
        for name in names:
            await a.outgoing.set_paused(_outgoing(a, name), True)
            await a.send(name, *[name.encode()] * 200)
        await asyncio.gather(*(a.outgoing.set_paused(_outgoing(a, name), False) for name in names))
        remote = await elsewhere.session()
        await until(lambda: len(remote.messages) == 64)
        remote.acknowledge()
        await until(lambda: len(remote.messages) == 128)
        remote.acknowledge()
        await until(lambda: len(remote.messages) == 192)

        assert {remote.ordinary.count(name.encode()) for name in names} == {64}


def _outgoing(host: Host, name: str) -> Any:
    return host.destinations.route(name)


@hosted
async def test_a_message_that_does_not_arrive_in_time_becomes_a_dead_letter_with_a_reason(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    name = "DIRECT=TCP:127.0.0.1:1\\private$\\x"
    await a.create("admin")
    wants: dict[str, Any] = {
        "time_to_reach_queue_s": 10,
        "acknowledge": 4,
        "admin_queue": "DIRECT=OS:.\\private$\\admin",
    }
    for delivery in (EXPRESS, RECOVERABLE, TRANSACTIONAL):
        await a.send(name, b"%d" % delivery, delivery=delivery, **wants)
    await a.send(name, b"unmourned", dead_letter=False, time_to_reach_queue_s=10)
    await a.send(name, b"patient")
    a.world.ahead_s = 11
    await hosts.reap(a)

    dead = await a.peek(DEAD_LETTERS) + await a.peek(TRANSACTIONAL_DEAD_LETTERS)
    assert bodies(dead) == [b"%d" % EXPRESS, b"%d" % RECOVERABLE, b"%d" % TRANSACTIONAL]
    for message in dead:
        properties = parse_user_message(message.packet).properties
        assert properties.message_class == MessageClass.NACK_REACH_QUEUE_TIMEOUT
        assert "127.0.0.1:1" in (message.reason or "")
    assert len(await a.receive("admin")) == 3
    assert a.sending_to(name).messages == 1


@hosted
async def test_the_previous_number_skips_an_expired_message(hosts: Hosts) -> None:
    a = await hosts.start()
    async with listening(guid(7)) as elsewhere:
        name = elsewhere.name("orders")
        await a.outgoing.set_paused(_outgoing(a, name), True)
        await a.send(name, b"1", delivery=TRANSACTIONAL)
        await a.send(name, b"2", b"3", delivery=TRANSACTIONAL, time_to_reach_queue_s=10)
        await a.send(name, b"4", delivery=TRANSACTIONAL)
        a.world.ahead_s = 11
        await a.outgoing.set_paused(_outgoing(a, name), False)
        remote = await elsewhere.session()
        await until(lambda: remote.ordinary == [b"1", b"4"])

        last = remote.messages[-1].message.transaction
        assert last is not None
        assert (last.sequence_number, last.previous_number) == (4, 1)
        assert a.queue(TRANSACTIONAL_DEAD_LETTERS).messages == 2


@hosted
async def test_an_acknowledged_message_with_a_journal_is_copied_once(hosts: Hosts) -> None:
    a = await hosts.start()
    async with listening(guid(7)) as elsewhere:
        await a.send(elsewhere.name("orders"), b"kept", journal=True)
        await a.send(elsewhere.name("orders"), b"not kept")
        remote = await elsewhere.session()
        await until(lambda: len(remote.messages) == 2)
        assert a.queue(JOURNAL).messages == 0
        remote.acknowledge()
        await until(lambda: a.sending_to(elsewhere.name("orders")).messages == 0)
        await a.settled()

        assert bodies(await a.peek(JOURNAL)) == [b"kept"]


@hosted
async def test_a_purge_ends_all_waiting_messages_and_later_ones_are_sent(hosts: Hosts) -> None:
    a = await hosts.start()
    b = await hosts.start("b")
    await b.create("orders")
    await b.create("strict", transactional=True)
    port = b.port
    await hosts.stop(b)
    name = f"DIRECT=TCP:127.0.0.1:{port}\\private$\\orders"
    strict = f"DIRECT=TCP:127.0.0.1:{port}\\private$\\strict"
    for delivery in (EXPRESS, RECOVERABLE):
        await a.send(name, *[b"old"] * 600, delivery=delivery)
    await a.send(strict, *[b"old"] * 600, delivery=TRANSACTIONAL)

    assert await a.undeliverable.purge(a.sending_to(name)) == 1200
    assert await a.undeliverable.purge(a.sending_to(strict)) == 600
    await a.settled()
    assert await a.undeliverable.purge(a.sending_to(strict)) == 0

    assert a.queue(DEAD_LETTERS).messages == 1200
    assert a.queue(TRANSACTIONAL_DEAD_LETTERS).messages == 600
    (dead,) = await a.peek(TRANSACTIONAL_DEAD_LETTERS, limit=1)
    packet = parse_user_message(dead.packet)
    assert packet.properties.message_class == MessageClass.NACK_DELETED
    await a.send(name, b"new", delivery=RECOVERABLE)
    await a.send(strict, b"new", delivery=TRANSACTIONAL)
    b = await hosts.start("b", port)
    for queue in ("orders", "strict"):
        await until(lambda queue=queue: b.queue(queue).messages == 1)
        await b.settled()
        assert await b.receive(queue) == [b"new"]
