"""Expiry in complete queue managers: lifetimes, readers, and many messages at once."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import pytest

from protocol import parse_user_message
from protocol.message_class import MessageClass
from qmd.control_protocol import messages as frames
from qmd.control_protocol.messages import EXPRESS, RECOVERABLE, TRANSACTIONAL, Choice
from qmd.queues.local_queue import Reader
from tests.integration.maintenance.lifetimes import NOWHERE, dead
from tests.integration.managers import DEAD_LETTERS, Hosts, bodies, hosted, until
from tests.integration.operations.test_transactions import orders
from tests.integration.remote import dial, guid, listening, packet

# Messages from other queue managers.


@pytest.mark.parametrize(
    ("sent_ago_s", "time_s", "left_s"),
    [
        (0, 100, 100),
        (60, 100, 40),
        (80, 100, 20),
        (-5000, 100, 100),  # sent in the future: the clocks differ
        (-1, 0, 0),
    ],
)
def test_the_remaining_lifetime_counts_from_the_sent_time(
    sent_ago_s: int, time_s: int, left_s: int, tmp_path: Any
) -> None:
    @hosted
    async def scenario(hosts: Hosts) -> None:
        a = await hosts.start()
        await a.create("orders")
        remote = await dial(a, guid(7))
        remote.send(
            packet(
                b"1",
                source=guid(7),
                number=5,
                time_to_be_received_s=time_s,
                sent_s=time.time() - sent_ago_s,
            )
        )
        await until(lambda: a.queue("orders").messages == 1)
        await a.settled()
        if left_s:
            a.world.ahead_s += left_s - 15
            await hosts.reap(a)
            assert a.queue("orders").messages == 1

        a.world.ahead_s += 20
        await hosts.reap(a)
        assert await dead(a) == [b"1"]

    scenario(tmp_path)


@hosted
async def test_a_message_that_arrives_too_late_ends_at_once(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    remote = await dial(a, guid(7))
    for number, times in enumerate(({"time_to_be_received_s": 50}, {"time_to_reach_queue_s": 50})):
        late = packet(b"1", source=guid(7), number=number, sent_s=time.time() - 60, **times)
        remote.send(late)
    remote.send(packet(b"in time", source=guid(7), number=9))
    await until(lambda: a.queue("orders").messages)
    await a.settled()

    assert await a.receive("orders") == [b"in time"]
    messages = await a.peek(DEAD_LETTERS)
    classes = {parse_user_message(message.packet).properties.message_class for message in messages}
    assert (len(messages), classes) == (2, {MessageClass.NACK_REACH_QUEUE_TIMEOUT})


# While a reader has the message.


@pytest.mark.parametrize("delivery", [EXPRESS, RECOVERABLE])
def test_a_message_that_was_taken_in_time_does_not_expire(delivery: int, tmp_path: Any) -> None:
    @hosted
    async def scenario(hosts: Hosts) -> None:
        a = await hosts.start()
        await a.create("orders")
        await a.send("orders", b"1", b"2", delivery=delivery, time_to_be_received_s=10)
        reader = Reader()
        taken = await a.take(reader, "orders", 2)
        a.world.ahead_s += 1000
        await hosts.reap(a)

        assert await a.removing(reader, "orders", taken) == 2
        assert await dead(a) == []

    scenario(tmp_path)


@pytest.mark.parametrize("delivery", [EXPRESS, RECOVERABLE])
def test_a_message_that_is_given_back_too_late_ends_at_once(delivery: int, tmp_path: Any) -> None:
    @hosted
    async def scenario(hosts: Hosts) -> None:
        a = await hosts.start()
        queue = await a.create("orders")
        await a.send("orders", b"late", delivery=delivery, time_to_be_received_s=10)
        await a.send("orders", b"in time", delivery=delivery, time_to_be_received_s=100)
        reader, other = Reader(), Reader()
        taken = await a.take(reader, "orders", 2)
        waiting = a.taking(other, "orders", 2, wait_s=frames.FOREVER)
        a.world.ahead_s += 20
        await hosts.reap(a)
        a.give_back(reader, "orders", taken)

        assert bodies(await waiting) == [b"in time"]
        await a.settled()
        assert (queue.messages, await dead(a)) == (1, [b"late"])

    scenario(tmp_path)


@hosted
async def test_a_message_that_a_closed_reader_returns_too_late_ends_at_once(hosts: Hosts) -> None:
    a = await hosts.start()
    queue = await a.create("orders")
    await a.send("orders", b"late", time_to_be_received_s=10)
    reader = Reader()
    await a.take(reader, "orders")
    a.world.ahead_s += 20
    a.message_receiver.leave(reader)
    await a.settled()

    assert (queue.messages, await dead(a)) == (0, [b"late"])


@pytest.mark.parametrize("commits", [True, False])
def test_a_message_that_a_transaction_took_in_time_does_not_expire_in_it(
    commits: bool, tmp_path: Any
) -> None:
    @hosted
    async def scenario(hosts: Hosts) -> None:
        a = await hosts.start()
        application = await orders(a)
        await a.send("orders", b"1", time_to_be_received_s=10)
        transaction = application.begin()
        await application.take(transaction, "orders")
        a.world.ahead_s += 20
        await hosts.reap(a)
        assert a.queue("orders").messages == 1

        if commits:
            await application.committing(transaction)
        else:
            application.abort(transaction)
        await a.settled()
        assert (a.queue("orders").messages, await dead(a)) == (0, [] if commits else [b"1"])

    scenario(tmp_path)


@hosted
async def test_a_peek_does_not_show_expired_messages(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    for delivery in (EXPRESS, RECOVERABLE):
        await a.send("orders", b"over", delivery=delivery, time_to_be_received_s=10)
        await a.send("orders", b"there", delivery=delivery, time_to_be_received_s=100)
    a.world.ahead_s += 20

    assert bodies(await a.peek("orders")) == [b"there", b"there"]


@pytest.mark.parametrize("delivery", [EXPRESS, RECOVERABLE])
def test_expired_messages_are_not_selected(delivery: int, tmp_path: Any) -> None:
    @hosted
    async def scenario(hosts: Hosts) -> None:
        a = await hosts.start()
        queue = await a.create("orders")
        await a.send("orders", b"over", delivery=delivery, label="x", time_to_be_received_s=10)
        await a.send("orders", b"there", delivery=delivery, label="x", time_to_be_received_s=100)
        a.world.ahead_s += 20

        choice = Choice(label="x")
        taken = await a.selective_receiver.take(Reader(), queue, choice, 5, frames.NO_WAIT)
        assert bodies(taken) == [b"there"]
        await hosts.reap(a)
        assert await dead(a) == [b"over"]

    scenario(tmp_path)


# Many messages that expire together.


@pytest.mark.parametrize("delivery", [EXPRESS, RECOVERABLE, TRANSACTIONAL])
@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_a_thousand_messages_that_expire_together_end_once_each_and_do_not_block_others(
    where: str, delivery: int, tmp_path: Any
) -> None:
    @hosted
    async def scenario(hosts: Hosts) -> None:
        a = await hosts.start()
        await a.create("orders", transactional=delivery == TRANSACTIONAL)
        await a.create("other")
        names = [b"%d" % number for number in range(1000)]
        target = "orders" if where == "here" else NOWHERE
        await a.send(target, *names, delivery=delivery, time_to_be_received_s=10)
        queue = a.queue("orders") if where == "here" else a.sending_to(NOWHERE)
        a.world.ahead_s += 12
        reaper = asyncio.create_task(a.maintenance.run())
        try:
            before, most = 1000, 0
            while before:
                await a.send("other", b"in between")
                most = max(most, before - queue.messages)
                before = queue.messages
            assert most <= 400, "nobody else had a turn"
        finally:
            reaper.cancel()
        await a.settled()

        assert Counter(await dead(a)) == Counter(names)

    scenario(tmp_path)


@pytest.mark.parametrize("delivery", [EXPRESS, RECOVERABLE])
def test_a_reader_gets_the_message_after_a_thousand_expired_ones(
    delivery: int, tmp_path: Any
) -> None:
    @hosted
    async def scenario(hosts: Hosts) -> None:
        a = await hosts.start()
        await a.create("orders")
        names = [b"%d" % number for number in range(1000)]
        await a.send("orders", *names, delivery=delivery, time_to_be_received_s=10)
        await a.send("orders", b"last", delivery=delivery)
        a.world.ahead_s += 12

        assert await a.receive("orders") == [b"last"]
        await until(lambda: not a.queue("orders").messages)
        await a.settled()
        assert Counter(await dead(a)) == Counter(names)

    scenario(tmp_path)


@pytest.mark.parametrize("delivery", [EXPRESS, RECOVERABLE, TRANSACTIONAL])
def test_a_session_gets_the_message_after_a_thousand_expired_ones(
    delivery: int, tmp_path: Any
) -> None:
    @hosted
    async def scenario(hosts: Hosts) -> None:
        a = await hosts.start()
        async with listening(guid(7)) as elsewhere:
            name = elsewhere.name("orders")
            await a.outgoing.set_paused(a.destinations.route(name), True)  # type: ignore[arg-type]
            names = [b"%d" % number for number in range(1000)]
            await a.send(name, *names, delivery=delivery, time_to_reach_queue_s=10)
            await a.send(name, b"last", delivery=delivery)
            a.world.ahead_s += 12
            await a.outgoing.set_paused(a.destinations.route(name), False)  # type: ignore[arg-type]
            remote = await elsewhere.session()
            await until(lambda: remote.ordinary == [b"last"])

    scenario(tmp_path)


@pytest.mark.parametrize("delivery", [EXPRESS, RECOVERABLE])
def test_a_thousand_messages_that_return_too_late_end_once_each(
    delivery: int, tmp_path: Any
) -> None:
    @hosted
    async def scenario(hosts: Hosts) -> None:
        a = await hosts.start()
        await a.create("orders")
        names = [b"%d" % number for number in range(1000)]
        await a.send("orders", *names, delivery=delivery, time_to_be_received_s=10)
        reader = Reader()
        await a.take(reader, "orders", 1000)
        a.world.ahead_s += 12
        await hosts.reap(a)
        assert a.queue("orders").messages == 1000
        a.message_receiver.leave(reader)
        await hosts.reap(a)

        assert a.queue("orders").messages == 0
        assert Counter(await dead(a)) == Counter(names)

    scenario(tmp_path)


# A time-to-be-received of zero.


@pytest.mark.parametrize("delivery", [EXPRESS, RECOVERABLE])
def test_a_message_with_a_lifetime_of_zero_reaches_only_a_waiting_reader(
    delivery: int, tmp_path: Any
) -> None:
    @hosted
    async def scenario(hosts: Hosts) -> None:
        a = await hosts.start()
        await a.create("orders")
        waiting = a.taking(Reader(), "orders", wait_s=frames.FOREVER)
        a.world.ahead_s += a.clock.next_second_in_s  # to the beginning of a second
        await a.send("orders", b"1", delivery=delivery, time_to_be_received_s=0)
        assert bodies(await waiting) == [b"1"]
        await a.send("orders", b"2", delivery=delivery, time_to_be_received_s=0)
        await a.send(NOWHERE, b"3", delivery=delivery, time_to_reach_queue_s=0)

        a.world.ahead_s += 1
        await hosts.reap(a)
        assert await dead(a) == [b"2", b"3"]

    scenario(tmp_path)
