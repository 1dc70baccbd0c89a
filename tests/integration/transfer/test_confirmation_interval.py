"""The confirmation interval: unconfirmed messages, and confirmations that come late."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from protocol import parse_user_message
from protocol.message_class import MessageClass
from qmd.control_protocol.messages import INFINITE_S
from qmd.events.header import Kind
from tests.integration.disk import held_disk, slow_read
from tests.integration.managers import TRANSACTIONAL_DEAD_LETTERS, Hosts, bodies, hosted, until
from tests.integration.remote import guid, listening
from tests.integration.transfer.confirming import (
    ASKING,
    RECEIVED,
    arrived,
    awaiting,
    elsewhere,
    kinds,
)

# --- the interval ---


@hosted
async def test_an_unconfirmed_message_becomes_a_dead_letter_with_a_reason_after_the_interval(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    async with elsewhere(a, b"1", dead_letter=None, time_to_be_received_s=10) as (
        listener, remote, ids,
    ):  # fmt: skip
        name = listener.name("orders")
        remote.order_ack(remote.messages[0])
        await arrived(a, name, 1)

        a.world.ahead_s = 19
        await hosts.reap(a)
        assert awaiting(a, name) == (0, 1)
        a.world.ahead_s = 22
        await hosts.reap(a)

        assert awaiting(a, name) == (0, 0)
        (dead,) = await a.peek(TRANSACTIONAL_DEAD_LETTERS)
        over = MessageClass.NACK_RECEIVE_TIMEOUT
        assert parse_user_message(dead.packet).properties.message_class == over
        assert "was not confirmed" in (dead.reason or "")
        assert (await kinds(a, ids[0]))[-2:] == [Kind.UNCONFIRMED, Kind.DEAD_LETTERED]


@pytest.mark.parametrize("delay_s", [None, 5.0])
@pytest.mark.parametrize("time_to_reach_queue_s", [None, 3, INFINITE_S])
def test_the_interval_is_that_of_the_table(
    tmp_path: Any, delay_s: float | None, time_to_reach_queue_s: int | None
) -> None:
    """Rows of the table in qmd/core/confirmation.py, in a complete queue manager."""
    without_delay_s = 13 if time_to_reach_queue_s == 3 else 20
    interval_s = without_delay_s if delay_s is None else 15

    @hosted
    async def scenario(hosts: Hosts) -> None:
        a = await hosts.start(delivery={"xact_delay_receive_nack_s": delay_s})
        times = {"time_to_be_received_s": 10, "time_to_reach_queue_s": time_to_reach_queue_s}
        async with elsewhere(a, b"1", **times) as (listener, remote, _):
            remote.order_ack(remote.messages[0])
            await arrived(a, listener.name("orders"), 1)
            a.world.ahead_s = interval_s - 2
            await hosts.reap(a)
            assert a.queue(TRANSACTIONAL_DEAD_LETTERS).messages == 0
            a.world.ahead_s = interval_s + 2
            await hosts.reap(a)
            assert a.queue(TRANSACTIONAL_DEAD_LETTERS).messages == 1

    scenario(tmp_path)


@hosted
async def test_without_a_time_to_be_received_a_message_waits_without_limit(hosts: Hosts) -> None:
    a = await hosts.start(delivery={"xact_delay_receive_nack_s": 5.0})
    async with elsewhere(a, b"1") as (listener, remote, _):
        name = listener.name("orders")
        remote.order_ack(remote.messages[0])
        await arrived(a, name, 1)
        a.world.ahead_s = 1e9
        await hosts.reap(a)
        assert awaiting(a, name) == (0, 1)


@hosted
async def test_a_step_of_the_wall_clock_gives_up_no_message(hosts: Hosts) -> None:
    a = await hosts.start()
    async with elsewhere(a, b"1", time_to_be_received_s=100) as (listener, remote, _):
        name = listener.name("orders")
        remote.order_ack(remote.messages[0])
        await arrived(a, name, 1)
        a.world.wall_step_s = 1e6
        await hosts.reap(a)
        assert awaiting(a, name) == (0, 1)


@hosted
async def test_many_messages_that_are_given_up_together_all_become_dead_letters(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    numbers = [b"%d" % number for number in range(1200)]
    async with listening(guid(7)) as listener:
        name = listener.name("orders")
        await a.send(name, *numbers, **ASKING, time_to_be_received_s=10)
        remote = await listener.session()
        seen = 0
        while seen < len(numbers):
            await until(lambda seen=seen: len(remote.messages) > seen)
            seen = len(remote.messages)
            remote.acknowledge()
        remote.order_ack(remote.messages[-1])
        await arrived(a, name, 1200)
        a.world.ahead_s = 30
        await hosts.reap(a)
        assert awaiting(a, name) == (0, 0)
        assert a.queue(TRANSACTIONAL_DEAD_LETTERS).messages == 1200


# --- late confirmations ---


@hosted
async def test_a_late_confirmation_is_recorded_and_the_dead_letter_stays(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    async with elsewhere(a, b"1", time_to_be_received_s=10) as (listener, remote, ids):
        name = listener.name("orders")
        remote.order_ack(remote.messages[0])
        await arrived(a, name, 1)
        a.world.ahead_s = 22
        await hosts.reap(a)
        a = await hosts.restart(a)
        await a.send(name, b"2")
        await until(lambda: len(listener.remotes) == 2 and listener.remotes[1].opened.is_set())
        again = listener.remotes[1]

        for _ in range(2):
            again.final_ack(remote.messages[0], RECEIVED)
        await until(lambda: len(again.acknowledged) == 2)

        assert (await kinds(a, ids[0]))[-3:] == [
            Kind.UNCONFIRMED, Kind.DEAD_LETTERED, Kind.LATE_CONFIRMATION,
        ]  # fmt: skip
        assert bodies(await a.peek(TRANSACTIONAL_DEAD_LETTERS)) == [b"1"]


@hosted
async def test_a_confirmation_of_a_message_that_expired_in_flight_is_late_as_well(
    hosts: Hosts,
) -> None:
    """The order ack was lost, and the message expired at its source meanwhile."""
    a = await hosts.start()
    async with elsewhere(a, b"1", time_to_reach_queue_s=10) as (_, remote, ids):
        a.world.ahead_s = 12
        await hosts.reap(a)
        assert bodies(await a.peek(TRANSACTIONAL_DEAD_LETTERS)) == [b"1"]

        remote.final_ack(remote.messages[0], RECEIVED)

        await until(lambda: len(remote.acknowledged) == 1)
        assert (await kinds(a, ids[0]))[-1] == Kind.LATE_CONFIRMATION


@hosted
async def test_a_message_that_is_confirmed_while_it_is_given_up_ends_once(hosts: Hosts) -> None:
    a = await hosts.start()
    async with elsewhere(a, b"1", time_to_be_received_s=10) as (listener, remote, ids):
        name = listener.name("orders")
        remote.order_ack(remote.messages[0])
        await arrived(a, name, 1)
        a.world.ahead_s = 30
        finish = await slow_read(a, "FROM awaiting WHERE expires_at_s")
        giving_up = asyncio.create_task(hosts.reap(a))
        await asyncio.sleep(0.05)
        remote.final_ack(remote.messages[0], RECEIVED)
        await until(lambda: awaiting(a, name) == (0, 0))
        await a.settled()
        finish.set()
        await giving_up

        assert awaiting(a, name) == (0, 0)
        ends = [
            kind for kind in await kinds(a, ids[0]) if kind in (Kind.CONFIRMED, Kind.UNCONFIRMED)
        ]
        assert len(ends) == 1


@hosted
async def test_a_message_whose_confirmation_is_being_stored_is_not_given_up(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("busy")
    async with elsewhere(a, b"1", time_to_be_received_s=10) as (listener, remote, ids):
        name = listener.name("orders")
        remote.order_ack(remote.messages[0])
        await arrived(a, name, 1)
        a.world.ahead_s = 30
        with held_disk(a):
            commit = asyncio.create_task(a.send("busy", b"2"))
            await asyncio.sleep(0.1)
            # The look-up of the final ack and the search for old messages share the next commit.
            remote.final_ack(remote.messages[0], RECEIVED)
            await asyncio.sleep(0.1)
            giving_up = asyncio.create_task(hosts.reap(a))
            await asyncio.sleep(0.1)
        await commit
        await giving_up

        assert awaiting(a, name) == (0, 0)
        assert (await kinds(a, ids[0]))[-1] == Kind.CONFIRMED
