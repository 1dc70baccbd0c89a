"""Lifetimes of messages in complete queue managers: expiry, and steps of the wall clock."""

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
from qmd.core.packet_fields import sent_time_s
from qmd.queues.local_queue import Reader
from tests.integration.managers import (
    DEAD_LETTERS,
    TRANSACTIONAL_DEAD_LETTERS,
    Host,
    Hosts,
    bodies,
    dial,
    guid,
    hosted,
    listening,
    packet,
    until,
)
from tests.integration.operations.test_transactions import orders

DAY_S = 24 * 3600
NOWHERE = "DIRECT=TCP:127.0.0.1:1\\private$\\x"
STEPS_S = (400 * DAY_S, -400 * DAY_S)


async def dead(host: Host) -> list[bytes]:
    """Return the bodies of the messages in the dead-letter queues."""
    plain, transactional = (
        await host.peek(DEAD_LETTERS),
        await host.peek(TRANSACTIONAL_DEAD_LETTERS),
    )
    return sorted(bodies(plain + transactional))


# The wall clock is set.


@pytest.mark.parametrize("step_s", STEPS_S)
@pytest.mark.parametrize("with_restart", [False, True])
def test_a_step_of_the_wall_clock_does_not_change_expiry(
    step_s: int, with_restart: bool, tmp_path: Any
) -> None:
    @hosted
    async def scenario(hosts: Hosts) -> None:
        a = await hosts.start()
        await a.create("orders")
        for delivery in (RECOVERABLE, TRANSACTIONAL) if with_restart else (EXPRESS, RECOVERABLE):
            await a.send(NOWHERE, b"out", delivery=delivery, time_to_reach_queue_s=100)
        await a.send("orders", b"here", time_to_be_received_s=100)
        a.world.wall_step_s += step_s
        if with_restart:
            a = await hosts.restart(a)
        a.world.ahead_s += 90
        await hosts.reap(a)
        assert (a.sending_to(NOWHERE).messages, await dead(a)) == (2, [])
        assert bodies(await a.take(Reader(), "orders")) == [b"here"]

        a.world.ahead_s += 12
        await hosts.reap(a)
        assert a.sending_to(NOWHERE).messages == 0
        assert await dead(a) == [b"out", b"out"]  # a taken message does not expire

    scenario(tmp_path)


@pytest.mark.parametrize("step_s", STEPS_S)
def test_the_wall_clock_after_the_computers_restart_does_not_end_a_queue_full_of_messages(
    step_s: int, tmp_path: Any
) -> None:
    @hosted
    async def scenario(hosts: Hosts) -> None:
        a = await hosts.start()
        await a.create("orders")
        await a.send("orders", b"here", time_to_be_received_s=100)
        await hosts.stop(a)
        a.world.wall_step_s = step_s
        a.world.boots = 1
        a = await hosts.start("a")
        a.world.ahead_s += 90
        await hosts.reap(a)
        assert a.queue("orders").messages == 1

        a.world.ahead_s += 12
        await hosts.reap(a)
        assert await dead(a) == [b"here"]

    scenario(tmp_path)


@hosted
async def test_a_duplicate_is_detected_after_a_step_of_the_wall_clock(hosts: Hosts) -> None:
    """This holds over a restart as well: the age of entries does not depend on the wall clock."""
    a = await hosts.start()
    await a.create("orders")
    again = packet(b"1", source=guid(7), number=5)
    remote = await dial(a, guid(7))
    remote.send(again, packet(b"2", source=guid(7), number=6))
    await until(lambda: a.queue("orders").messages == 2)
    a.world.wall_step_s += 10 * DAY_S
    await a.retention.forget_old()
    a = await hosts.restart(a)
    await a.retention.forget_old()

    remote = await dial(a, guid(7))
    endless = 0xFFFFFFFF  # otherwise they would come too late by the wall clock
    again = packet(b"1", source=guid(7), number=5, time_to_reach_queue_s=endless)
    remote.send(again, packet(b"3", source=guid(7), number=7, time_to_reach_queue_s=endless))
    await until(lambda: a.queue("orders").messages == 3)
    await a.settled()
    assert await a.receive("orders") == [b"1", b"2", b"3"]


@hosted
async def test_the_age_of_the_history_does_not_follow_the_wall_clock(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")

    async def blocks() -> int:
        await a.settled()
        await a.event_log_limits.forget_old()
        count = "SELECT count(*) FROM event_block"
        return int(await a.storage.read(lambda db: db.execute(count).fetchone()[0]))

    for body in (b"1", b"2", b"3"):
        await a.send("orders", body)
    kept = await blocks()
    a.world.wall_step_s = 400 * DAY_S
    assert kept > 1
    assert await blocks() == kept

    a.world.wall_step_s, a.world.ahead_s = 0.0, 400 * DAY_S
    assert await blocks() == 1  # the newest block always stays


@pytest.mark.parametrize("step_s", STEPS_S)
def test_a_message_that_waited_during_a_clock_step_is_sent_with_a_corrected_sent_time(
    step_s: int, tmp_path: Any
) -> None:
    """With a wrong sent time, the receiver would end the message at once, or keep it too long."""

    @hosted
    async def scenario(hosts: Hosts) -> None:
        a = await hosts.start()
        a.world.wall_step_s = step_s
        a.clock.look(is_needed=False)  # as the reaper does every second
        async with listening(guid(7)) as elsewhere:
            name = elsewhere.name("orders")
            await a.outgoing.set_paused(a.destinations.route(name), True)  # type: ignore[arg-type]
            for delivery in (EXPRESS, RECOVERABLE, TRANSACTIONAL):
                await a.send(name, b"%d" % delivery, delivery=delivery)
            await a.send(name, b"endless", time_to_reach_queue_s=0xFFFFFFFF)
            a.world.ahead_s += 100
            a.world.wall_step_s = 0.0
            a.clock.look(is_needed=False)
            await a.send(name, b"by the right clock")
            await a.outgoing.set_paused(a.destinations.route(name), False)  # type: ignore[arg-type]
            remote = await elsewhere.session()
            await until(lambda: len(remote.ordinary) == 5)

            for received in remote.messages:
                late_s = a.world.time() - sent_time_s(received.packet)
                body = received.message.properties.body
                if body == b"endless":
                    assert abs(late_s - 100 + step_s) < 3  # not corrected: it cannot expire
                elif body == b"by the right clock":
                    assert abs(late_s) < 3
                else:
                    assert abs(late_s - 100) < 3

    scenario(tmp_path)


@hosted
async def test_a_message_that_waited_over_a_restart_is_sent_with_a_corrected_sent_time(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    a.world.wall_step_s = -400 * DAY_S
    async with listening(guid(7)) as elsewhere:
        name = elsewhere.name("orders")
        await a.outgoing.set_paused(a.destinations.route(name), True)  # type: ignore[arg-type]
        await a.send(name, b"1")
        await hosts.stop(a)
        a.world.wall_step_s = 0.0
        a = await hosts.start("a")
        await a.outgoing.set_paused(a.destinations.route(name), False)  # type: ignore[arg-type]
        remote = await elsewhere.session()
        await until(lambda: remote.ordinary == [b"1"])

        assert abs(a.world.time() - sent_time_s(remote.messages[0].packet)) < 3


@hosted
async def test_without_a_clock_step_a_message_keeps_its_sent_time(hosts: Hosts) -> None:
    a = await hosts.start()
    async with listening(guid(7)) as elsewhere:
        name = elsewhere.name("orders")
        await a.outgoing.set_paused(a.destinations.route(name), True)  # type: ignore[arg-type]
        await a.send(name, b"1")
        sent_s = int(a.world.time())
        a.world.ahead_s += 1000.9
        await a.outgoing.set_paused(a.destinations.route(name), False)  # type: ignore[arg-type]
        remote = await elsewhere.session()
        await until(lambda: remote.ordinary == [b"1"])
        assert 0 <= sent_s - sent_time_s(remote.messages[0].packet) <= 1


@pytest.mark.parametrize("year", [1970, 2105, 2106, 2165])
def test_messages_are_delivered_although_the_clock_is_years_off(year: int, tmp_path: Any) -> None:
    """A clock without a battery loses the year, and sent times in packets end in 2106."""

    @hosted
    async def scenario(hosts: Hosts) -> None:
        a = await hosts.start()
        a.world.wall_step_s = (year - 2020) * 365.25 * DAY_S if year > 2000 else -a.world.time()
        await a.create("orders", transactional=True)
        await a.create("news")
        async with listening(guid(7)) as elsewhere:
            for name in ("one", "two"):
                await a.send(elsewhere.name(name), name.encode(), delivery=TRANSACTIONAL)
            remote = await elsewhere.session()
            await until(lambda: Counter(remote.ordinary) == Counter([b"one", b"two"]))
            for message in remote.messages:
                remote.order_ack(message)
            await until(lambda: not any(queue.messages for queue in a.outgoing.queues))
        remote = await dial(a, guid(8))
        sent_s = a.world.time()
        position = (1 << 32, 1, 0)
        for packed in (
            packet(
                b"1", source=guid(8), number=1, queue="orders", position=position, sent_s=sent_s
            ),
            packet(b"2", source=guid(8), number=2, queue="news", sent_s=sent_s, acknowledge=3),
            packet(b"3", source=guid(8), number=3, queue="missing", sent_s=sent_s),
        ):
            remote.send(packed)
        await until(lambda: remote.order_acks == [position[:2]])
        await a.settled()
        a = await hosts.restart(a)

        assert await a.receive("orders") + await a.receive("news") == [b"1", b"2"]
        assert await dead(a) == [b"3"]

    scenario(tmp_path)


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
