"""Steps of the wall clock: expiry, duplicates, history and sent times do not follow them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from qmd.control_protocol.messages import EXPRESS, RECOVERABLE, TRANSACTIONAL
from qmd.core.packet_fields import sent_time_s
from qmd.queues.local_queue import Reader
from tests.integration.maintenance.lifetimes import DAY_S, NOWHERE, dead
from tests.integration.managers import DEAD_LETTERS, Hosts, bodies, hosted, until
from tests.integration.remote import dial, guid, listening, packet

STEPS_S = (400 * DAY_S, -400 * DAY_S)


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
        await until(lambda: a.queue(DEAD_LETTERS).messages == 1)
        await a.settled()
        a = await hosts.restart(a)

        assert await a.receive("orders") + await a.receive("news") == [b"1", b"2"]
        assert await dead(a) == [b"3"]

    scenario(tmp_path)
