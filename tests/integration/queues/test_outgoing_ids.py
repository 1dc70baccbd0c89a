"""Ids of outgoing queues: there are few, and those of idle empty queues are reused."""

from __future__ import annotations

import asyncio

import pytest

from qmd.control_protocol import messages as frames
from qmd.core.acknowledgment import POSITIVE_ARRIVAL
from qmd.errors import Refusal
from qmd.queues.limits import Limits
from storage.tables import awaiting, outgoing
from tests.integration.managers import Host, Hosts, hosted, until
from tests.integration.remote import RemoteListener, listening

FEW = Limits(destinations=8)
GUID = bytes([9]) * 16


def to(port: int, queue: str) -> str:
    return f"DIRECT=TCP:127.0.0.1:{port}\\private$\\{queue}"


async def sent(a: Host, destination: str, *bodies: bytes, delivery: int) -> None:
    """Send messages, and wait until they are acknowledged."""
    await a.send(destination, *bodies, delivery=delivery)
    await until(lambda: not a.sending_to(destination).messages, f"{bodies!r} to {destination}")
    await a.settled()


async def stored_ids(a: Host) -> list[int]:
    await a.settled()
    return [row.id for row in await a.storage.read(outgoing.list_queues)]


async def refusal_of(a: Host, destination: str) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await a.send(destination, b"x")
    return caught.value


@hosted
async def test_ids_suffice_for_any_number_of_destinations_in_turn(hosts: Hosts) -> None:
    """Replies to single requests go to such destinations.  Both ends are restarted in between."""
    a, b = await hosts.start("a", limits=FEW), await hosts.start("b")
    deliveries = (frames.EXPRESS, frames.RECOVERABLE, frames.TRANSACTIONAL)
    for number in range(60):
        name, delivery = f"reply{number}", deliveries[number % 3]
        queue = await b.create(name, transactional=delivery == frames.TRANSACTIONAL)
        await sent(a, to(b.port, name), b"1", b"2", delivery=delivery)
        assert queue.messages == 2
        assert a.outgoing.count <= 8
        if number % 20 == 10:
            a = await hosts.restart(a, limits=FEW)
        if number % 20 == 15:
            b = await hosts.restart(b)

    ids = await stored_ids(a)
    assert sorted(ids) == sorted(each.id for each in a.outgoing.queues)
    assert set(ids) <= set(range(1, 9))
    assert len(a.peers.links) <= 2


@hosted
async def test_a_forgotten_destination_keeps_its_order_when_it_is_used_again(hosts: Hosts) -> None:
    """No message is lost or doubled, since the id of its next sequence is greater."""
    a, b = await hosts.start("a", limits=FEW), await hosts.start("b")
    await b.create("orders", transactional=True)
    orders = to(b.port, "orders")
    ids = []
    for round_ in range(4):
        await sent(a, orders, b"%d" % round_, delivery=frames.TRANSACTIONAL)
        ids.append(a.sending_to(orders).sequence.sequence_id)
        for number in range(10):
            queue = await b.create(f"other{round_}-{number}", transactional=True)
            await sent(a, to(b.port, queue.name[9:]), b"x", delivery=frames.TRANSACTIONAL)
        with pytest.raises(Refusal):
            a.sending_to(orders)
        if round_ % 2:
            a.world.wall_step_s -= 86_400  # the wall clock is set back
            a = await hosts.restart(a, limits=FEW)

    assert ids == sorted(set(ids))
    assert await b.receive("orders") == [b"0", b"1", b"2", b"3"]


@hosted
async def test_a_new_destination_is_refused_at_once_if_no_queue_is_idle(hosts: Hosts) -> None:
    a = await hosts.start("a", limits=FEW)
    for number in range(8):
        await a.send(to(1, f"q{number}"), b"waits")
    batch = a.storage.batch

    refusal = await refusal_of(a, to(1, "one-too-many"))
    assert refusal.code == "too_many_destinations"
    assert "8 outgoing queues" in refusal.text
    for number in range(1000):  # without a search for idle queues on each refusal
        await refusal_of(a, to(1, f"more{number}"))
    assert a.storage.batch is batch
    assert batch.load.is_empty
    assert len(a.peers.links) == 1

    await a.undeliverable.purge(a.sending_to(to(1, "q3")))
    await a.settled()
    a.outgoing_ids._search_at = 0.0  # as if time had passed since the last search
    await a.send(to(1, "one-too-many"), b"waits")
    assert {each.destination[-2:] for each in a.outgoing.queues} == {
        *(f"q{number}" for number in range(8) if number != 3),
        "ny",
    }


@hosted
async def test_a_queue_that_is_paused_redirected_or_held_is_not_forgotten(hosts: Hosts) -> None:
    a, b = await hosts.start("a", limits=FEW), await hosts.start("b")
    for number in range(8):
        await b.create(f"q{number}", transactional=True)
        await sent(a, to(b.port, f"q{number}"), b"x", delivery=frames.TRANSACTIONAL)
    kept = {a.sending_to(to(b.port, f"q{number}")).id for number in range(3)}
    await a.outgoing.set_paused(a.sending_to(to(b.port, "q0")), True)
    await a.redirection.redirect(to(b.port, "q1"), f"127.0.0.1:{b.port}")
    held = a.sending_to(to(b.port, "q2"))  # an application's transaction holds it like this
    for number in range(8, 30):
        await b.create(f"q{number}", transactional=True)
        await sent(a, to(b.port, f"q{number}"), b"x", delivery=frames.TRANSACTIONAL)

    assert held in a.outgoing.queues
    assert kept <= set(await stored_ids(a))
    assert a.outgoing.count == 8


@hosted
async def test_a_queue_with_messages_that_wait_for_confirmation_is_not_forgotten(
    hosts: Hosts,
) -> None:
    a = await hosts.start("a", limits=FEW)
    async with listening(GUID) as listener:
        name = to(listener.port, "confirmed")
        await a.send(
            name,
            b"x",
            delivery=frames.TRANSACTIONAL,
            dead_letter=True,
            time_to_be_received_s=3600,
        )
        remote = await listener.session()
        await until(lambda: remote.ordinary)
        remote.acknowledge()
        remote.order_ack(remote.messages[-1])
        await until(lambda: a.sending_to(name).awaiting.messages == 1)
        await others(a, listener, 20)
        assert a.sending_to(name).awaiting.messages == 1

        await a.confirmations.give_up(a.sending_to(name))
        await a.settled()
        for _ in range(2):
            await others(a, listener, 20)
            assert await a.storage.read(awaiting.unconfirmed_queues) == {a.sending_to(name).id}
            await a.retention.forget_old()
            a = await hosts.restart(a, limits=FEW)

        a.world.ahead_s += 400 * 86400
        await a.retention.forget_old()
        await others(a, listener, 20)
        with pytest.raises(Refusal):
            a.sending_to(name)


async def others(a: Host, listener: RemoteListener, count: int) -> None:
    """Send one message to each of `count` destinations."""
    for number in range(count):
        await a.send(to(listener.port, f"other{number}"), b"y")
        while any(each.messages for each in a.outgoing.queues if "other" in each.destination):
            remote = await listener.session()
            remote.acknowledge()
            await asyncio.sleep(0.001)
        await a.settled()


@hosted
async def test_a_transaction_keeps_its_destination(hosts: Hosts) -> None:
    a, b = await hosts.start("a", limits=FEW), await hosts.start("b")
    await b.create("orders", transactional=True)
    orders = to(b.port, "orders")
    await sent(a, orders, b"1", delivery=frames.TRANSACTIONAL)
    route = a.destinations.route(orders)
    for number in range(30):
        await b.create(f"q{number}")
        await sent(a, to(b.port, f"q{number}"), b"x", delivery=frames.RECOVERABLE)
    assert a.destinations.route(orders) is route
    await sent(a, orders, b"2", delivery=frames.TRANSACTIONAL)
    assert await b.receive("orders") == [b"1", b"2"]


@hosted
async def test_acknowledgments_have_half_of_the_ids_and_give_them_back(hosts: Hosts) -> None:
    a, b = await hosts.start("a", limits=FEW), await hosts.start("b")
    await a.create("orders")
    for number in range(30):
        await b.create(f"admin{number}")
        await b.send(
            to(a.port, "orders"),
            b"x",
            admin_queue=to(b.port, f"admin{number}"),
            acknowledge=POSITIVE_ARRIVAL,
        )
        queue = b.queue(f"admin{number}")
        await until(lambda: queue.messages == 1, "its acknowledgment")  # noqa: B023
        # Its outgoing queue gives the id back when the session has acknowledged it.
        await until(lambda: not any(each.messages for each in a.outgoing.queues), "its release")
        await a.settled()
    assert a.outgoing.count <= 4
    assert len(await a.peek("orders")) == 30


@hosted
async def test_queues_for_non_transactional_messages_use_no_sequences(hosts: Hosts) -> None:
    a = await hosts.start("a")
    for number in range(50):
        await a.send(to(1, f"q{number}"), b"plain")
    before = a.outgoing_ids._last_timestamp
    await a.send(to(1, "q3"), b"in order", delivery=frames.TRANSACTIONAL)
    await a.send(to(1, "q4"), b"in order", delivery=frames.TRANSACTIONAL)
    first = a.sending_to(to(1, "q3")).sequence.sequence_id
    second = a.sending_to(to(1, "q4")).sequence.sequence_id

    assert before <= 1
    assert second >> 32 == (first >> 32) + 1
    a = await hosts.restart(a)
    assert a.outgoing.queue_of_sequence(first) is a.sending_to(to(1, "q3"))
    assert a.sending_to(to(1, "q4")).sequence.sequence_id == second
    await a.send(to(1, "q5"), b"in order", delivery=frames.TRANSACTIONAL)
    assert a.sending_to(to(1, "q5")).sequence.sequence_id > second
