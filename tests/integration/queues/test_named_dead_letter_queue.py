"""Dead-letter queues that applications name: dead letters go there, and to no other queue."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from protocol import parse_user_message
from protocol.message_class import MessageClass
from qmd.control_protocol.messages import EXPRESS, RECOVERABLE, TRANSACTIONAL, NewMessage
from qmd.errors import Refusal
from qmd.queues import named_dead_letter_queue
from storage.tables import own_dead_letters
from tests.integration.disk import held_disk
from tests.integration.managers import (
    DEAD_LETTERS,
    TRANSACTIONAL_DEAD_LETTERS,
    Host,
    Hosts,
    bodies,
    hosted,
    until,
)
from tests.integration.remote import dial, guid, listening, packet

NOWHERE = "DIRECT=TCP:127.0.0.1:1\\private$\\x"


async def with_queues(hosts: Hosts) -> Host:
    a = await hosts.start()
    await a.create("failed")
    await a.create("undone", transactional=True)
    return a


def own(delivery: int) -> dict[str, Any]:
    queue = "undone" if delivery == TRANSACTIONAL else "failed"
    return {"delivery": delivery, "dead_letter_queue": queue}


async def rows(host: Host) -> dict[int, int]:
    page = partial(own_dead_letters.page, after=-1, rows_max=100)
    return await host.storage.read(page)


@hosted
async def test_an_expired_message_goes_to_the_named_dead_letter_queue(hosts: Hosts) -> None:
    a = await with_queues(hosts)
    for delivery in (EXPRESS, RECOVERABLE, TRANSACTIONAL):
        body = b"%d" % delivery
        await a.send(NOWHERE, body, time_to_reach_queue_s=10, **own(delivery))
        await a.send(NOWHERE, b"system", time_to_reach_queue_s=10, delivery=delivery)

    a.world.ahead_s = 60
    await hosts.reap(a)

    assert sorted(bodies(await a.peek("failed"))) == [b"0", b"1"]
    (undone,) = await a.peek("undone")
    ended = parse_user_message(undone.packet)
    assert ended.properties.message_class == MessageClass.NACK_REACH_QUEUE_TIMEOUT
    assert undone.reason
    assert bodies(await a.peek(DEAD_LETTERS)) == [b"system"] * 2
    assert bodies(await a.peek(TRANSACTIONAL_DEAD_LETTERS)) == [b"system"]


@hosted
async def test_the_named_dead_letter_queue_survives_a_restart(hosts: Hosts) -> None:
    a = await with_queues(hosts)
    await a.send(NOWHERE, b"x", time_to_reach_queue_s=10, **own(RECOVERABLE))

    a = await hosts.restart(a)
    a.world.ahead_s = 60
    await hosts.reap(a)

    assert await a.receive("failed") == [b"x"]


@hosted
async def test_a_message_that_ends_before_the_stored_names_are_loaded_goes_to_its_queue(
    hosts: Hosts,
) -> None:
    a = await with_queues(hosts)
    await a.create("orders")
    await a.send("orders", b"x", time_to_be_received_s=10, **own(RECOVERABLE))
    await a.send("orders", b"system", time_to_be_received_s=10, delivery=RECOVERABLE)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(named_dead_letter_queue, "PAUSE_S", 1e6)
        a = await hosts.restart(a)
        a.world.ahead_s = 60
        await hosts.reap(a)

    assert a.own_dead_letters.is_loading
    assert bodies(await a.peek("failed")) == [b"x"]
    assert bodies(await a.peek(DEAD_LETTERS)) == [b"system"]


@hosted
async def test_the_stored_names_are_loaded_in_pieces(hosts: Hosts) -> None:
    a = await with_queues(hosts)
    for _ in range(5):
        await a.send(NOWHERE, b"x", time_to_reach_queue_s=10, **own(RECOVERABLE))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(named_dead_letter_queue, "ROWS_AT_ONCE", 2)
        a = await hosts.restart(a)
        with pytest.raises(Refusal):  # after they are loaded
            await a.queue_deletion.delete(a.queue("failed"))
        assert not a.own_dead_letters.is_loading

    a.world.ahead_s = 60
    await hosts.reap(a)
    assert bodies(await a.peek("failed")) == [b"x"] * 5
    for _ in range(2):
        await a.retention.forget_old()
    assert await rows(a) == {}


@hosted
async def test_a_refused_message_goes_to_the_named_dead_letter_queue(hosts: Hosts) -> None:
    a = await with_queues(hosts)
    async with listening(guid(7)) as elsewhere:
        name = elsewhere.name("orders")
        await a.send(name, b"x", **own(TRANSACTIONAL))
        remote = await elsewhere.session()
        await until(lambda: remote.messages)
        remote.final_ack(remote.messages[0], MessageClass.NACK_BAD_DESTINATION_QUEUE)
        await until(lambda: a.queue("undone").messages == 1)

    assert await a.receive("undone") == [b"x"]
    assert a.queue(TRANSACTIONAL_DEAD_LETTERS).messages == 0


@hosted
async def test_an_unconfirmed_message_goes_to_the_named_dead_letter_queue(hosts: Hosts) -> None:
    a = await with_queues(hosts)
    async with listening(guid(7)) as elsewhere:
        name = elsewhere.name("orders")
        await a.send(name, b"x", time_to_be_received_s=10, dead_letter=True, **own(TRANSACTIONAL))
        remote = await elsewhere.session()
        await until(lambda: remote.messages)
        remote.order_ack(remote.messages[0])
        await until(lambda: a.sending_to(name).awaiting.messages == 1)
        await a.retention.forget_old()
        await a.retention.forget_old()
        assert len(await rows(a)) == 1  # the row stays, since the message waits for its final ack

        a.world.ahead_s = 400_000
        await hosts.reap(a)
        await until(lambda: a.queue("undone").messages == 1)

    assert a.queue(TRANSACTIONAL_DEAD_LETTERS).messages == 0


@hosted
async def test_a_message_that_expires_in_a_local_queue_goes_to_the_named_dead_letter_queue(
    hosts: Hosts,
) -> None:
    a = await with_queues(hosts)
    await a.create("orders")
    await a.send("orders", b"x", time_to_be_received_s=10, **own(RECOVERABLE))

    a.world.ahead_s = 60
    await hosts.reap(a)

    assert await a.receive("failed") == [b"x"]  # a dead letter does not expire again


@hosted
async def test_a_message_of_another_source_with_the_same_number_is_not_affected(
    hosts: Hosts,
) -> None:
    a = await with_queues(hosts)
    (sent,) = await a.send(NOWHERE, b"ours", **own(RECOVERABLE))
    remote = await dial(a, guid(7))

    remote.send(packet(b"theirs", source=guid(7), number=int(sent.split("\\")[1]), queue="undone"))
    await until(lambda: a.queue(DEAD_LETTERS).messages == 1)

    assert a.queue("failed").messages == 0
    remote.close()


@hosted
async def test_only_a_local_queue_of_the_same_kind_can_be_named(hosts: Hosts) -> None:
    a = await with_queues(hosts)
    for queue, delivery in (
        ("undone", RECOVERABLE),
        ("failed", TRANSACTIONAL),
        ("nowhere", RECOVERABLE),
        (NOWHERE, RECOVERABLE),
        (DEAD_LETTERS, RECOVERABLE),
        ("DIRECT=OS:elsewhere\\private$\\failed", RECOVERABLE),
    ):
        with pytest.raises(Refusal) as caught:
            a.handed_over([NewMessage(NOWHERE, b"", delivery=delivery, dead_letter_queue=queue)])
        assert caught.value.code == "bad_dead_letter_queue", queue
    with pytest.raises(Refusal) as caught:
        a.handed_over([NewMessage(NOWHERE, b"", dead_letter=False, dead_letter_queue="failed")])
    assert caught.value.code == "dead_letter_unwanted"
    assert a.usage.bytes == 0


@hosted
async def test_the_named_dead_letter_queue_is_not_in_the_packet(hosts: Hosts) -> None:
    a = await with_queues(hosts)
    async with listening(guid(7)) as elsewhere:
        await a.send(elsewhere.name("orders"), b"x", **own(RECOVERABLE))
        await a.send(elsewhere.name("orders"), b"x", delivery=RECOVERABLE)
        remote = await elsewhere.session()
        await until(lambda: len(remote.messages) == 2)
        with_it, without = (each.packet for each in remote.messages)

    assert b"f\0a\0i\0l\0e\0d\0" not in with_it
    assert len(with_it) == len(without)


@hosted
async def test_the_rows_of_delivered_messages_are_deleted_later(hosts: Hosts) -> None:
    a = await with_queues(hosts)
    async with listening(guid(7)) as elsewhere:
        name = elsewhere.name("orders")
        await a.send(name, b"1", **own(RECOVERABLE))
        await a.send(NOWHERE, b"2", **own(RECOVERABLE))
        await a.send(NOWHERE, b"3", **own(EXPRESS))
        remote = await elsewhere.session()
        await until(lambda: remote.messages)
        remote.acknowledge()
        await until(lambda: a.sending_to(name).messages == 0)
        await a.settled()
        await until(lambda: not a.outgoing_release._releasable_keys)
        await a.settled()

    assert len(await rows(a)) == 2
    await a.retention.forget_old()
    assert len(await rows(a)) == 2  # kept once: the message may be between two tables
    await a.retention.forget_old()

    assert len(await rows(a)) == 1
    a.world.ahead_s = 400_000
    await hosts.reap(a)
    assert sorted(bodies(await a.peek("failed"))) == [b"2", b"3"]


@hosted
async def test_a_queue_that_may_still_get_dead_letters_cannot_be_deleted(hosts: Hosts) -> None:
    a = await with_queues(hosts)
    await a.send(NOWHERE, b"x", time_to_reach_queue_s=10, **own(RECOVERABLE))

    with pytest.raises(Refusal) as caught:
        await a.queue_deletion.delete(a.queue("failed"))
    assert caught.value.code == "dead_letters_expected"

    a.world.ahead_s = 60
    await hosts.reap(a)
    assert (await a.queue_deletion.delete(a.queue("failed"))).messages == 1


@hosted
async def test_receiving_a_dead_letter_sends_no_acknowledgment(hosts: Hosts) -> None:
    a = await with_queues(hosts)
    await a.create("acks")
    await a.send(
        NOWHERE,
        b"x",
        time_to_reach_queue_s=10,
        admin_queue="acks",
        acknowledge=15,
        **own(RECOVERABLE),
    )
    a.world.ahead_s = 60
    await hosts.reap(a)
    await until(lambda: a.queue("acks").messages == 1)

    assert await a.receive("failed") == [b"x"]
    await a.settled()

    assert a.queue("acks").messages == 1


@hosted
async def test_a_queue_is_marked_while_its_deletion_is_under_way(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("failed")
    queue = a.queue("failed")

    with held_disk(a):
        deleting = asyncio.ensure_future(a.queue_deletion.delete(queue))
        await until(lambda: queue.deleted, "the deletion to begin")
        assert queue.id in a.dead_letters.system_queues().being_deleted
    await deleting

    assert not a.dead_letters.system_queues().being_deleted
