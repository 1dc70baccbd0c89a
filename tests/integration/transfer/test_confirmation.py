"""The transaction confirmation process at the source: messages that wait for their final acks."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from typing import Any

import pytest

from protocol import parse_user_message
from protocol.message_class import MessageClass
from qmd.control_protocol.messages import TRANSACTIONAL, NewMessage
from qmd.errors import Refusal
from qmd.events.header import Kind
from qmd.queues.local_queue import Reader
from qmd.queues.transmission import TRANSACTIONAL_FIRST
from tests.integration.disk import held_disk
from tests.integration.managers import (
    DEAD_LETTERS,
    JOURNAL,
    TRANSACTIONAL_DEAD_LETTERS,
    Hosts,
    bodies,
    hosted,
    until,
)
from tests.integration.remote import guid, listening
from tests.integration.transfer.confirming import (
    ASKING,
    RECEIVED,
    arrived,
    awaiting,
    elsewhere,
    kinds,
)


class Looking(list[object]):
    """A list of acknowledged packets that records the number of waiting rows at each addition."""

    def __init__(self, db: sqlite3.Connection) -> None:
        super().__init__()
        self._db = db
        self.waiting: list[int] = []

    def __iadd__(self, tokens: Iterable[object]) -> Looking:  # type: ignore[misc, override]
        self.waiting += self._db.execute("SELECT count(*) FROM awaiting").fetchone()
        self.extend(tokens)
        return self


@hosted
async def test_an_order_ack_releases_only_messages_that_need_no_confirmation(hosts: Hosts) -> None:
    a = await hosts.start()
    async with elsewhere(a, b"1", b"2") as (listener, remote, _):
        name = listener.name("orders")
        await a.send(name, b"3", b"4", delivery=TRANSACTIONAL)
        await until(lambda: len(remote.messages) == 4)
        before = a.usage.bytes
        silent = sum(len(each.packet) for each in remote.messages[2:])

        remote.order_ack(remote.messages[3])

        await arrived(a, name, 2)
        assert a.usage.bytes == before - silent
        assert a.sending_to(name).sequence.outstanding == 0


@hosted
async def test_a_message_is_deleted_when_its_receipt_is_confirmed(hosts: Hosts) -> None:
    a = await hosts.start()
    async with elsewhere(a, b"1", b"2") as (listener, remote, ids):
        name = listener.name("orders")
        remote.order_ack(remote.messages[1])
        await arrived(a, name, 2)

        remote.final_ack(remote.messages[1], RECEIVED)

        await arrived(a, name, 1)
        remote.final_ack(remote.messages[0], RECEIVED)
        await until(lambda: awaiting(a, name) == (0, 0))
        await a.settled()
        assert a.usage.bytes == 0
        assert await kinds(a, ids[0]) == [
            Kind.SENT, Kind.TRANSMITTED, Kind.ORDER_ACKNOWLEDGED, Kind.AWAITING, Kind.CONFIRMED,
        ]  # fmt: skip
        # A new sequence begins, as after any other completed one.
        await a.send(name, b"3", delivery=TRANSACTIONAL)
        await until(lambda: remote.ordinary == [b"1", b"2", b"3"])
        first, third = (remote.messages[each].message.transaction for each in (0, 2))
        assert first is not None
        assert third is not None
        assert third.sequence_id == first.sequence_id + 1


@hosted
async def test_a_receipt_is_journaled_on_request(hosts: Hosts) -> None:
    a = await hosts.start()
    for want in ({"dead_letter": True}, {"dead_letter": None}, {"dead_letter": False}):
        async with elsewhere(a, b"%r" % want, journal=True, **want) as (listener, remote, _):
            name = listener.name("orders")
            remote.order_ack(remote.messages[0])
            await arrived(a, name, 1)
            remote.final_ack(remote.messages[0], RECEIVED)
            await arrived(a, name, 0)

    assert len(await a.peek(JOURNAL)) == 3
    assert a.queue(TRANSACTIONAL_DEAD_LETTERS).messages == 0


@pytest.mark.parametrize(
    "message_class",
    [
        MessageClass.NACK_QUEUE_DELETED,
        MessageClass.NACK_QUEUE_PURGED,
        MessageClass.NACK_RECEIVE_TIMEOUT,
        MessageClass.NACK_RECEIVE_REJECTED,
        MessageClass.NACK_BAD_DESTINATION_QUEUE,
    ],
)
@pytest.mark.parametrize(
    "properties", [{}, {"dead_letter": False, "journal": True}, {"journal": True}]
)
def test_a_negative_final_ack_makes_a_dead_letter_with_class_and_reason(
    tmp_path: Any, message_class: int, properties: Any
) -> None:
    @hosted
    async def scenario(hosts: Hosts) -> None:
        a = await hosts.start()
        async with elsewhere(a, b"1", **properties) as (listener, remote, ids):
            name = listener.name("orders")
            remote.order_ack(remote.messages[0])
            await arrived(a, name, 1)

            remote.final_ack(remote.messages[0], message_class)

            await until(lambda: awaiting(a, name) == (0, 0))
            await a.settled()
            dead = await a.peek(TRANSACTIONAL_DEAD_LETTERS)
            reported = await kinds(a, ids[0])
            if properties.get("dead_letter") is False:
                assert dead == []
                assert reported[-1] == Kind.DISCARDED
            else:
                assert bodies(dead) == [b"1"]
                packet = parse_user_message(dead[0].packet)
                assert packet.properties.message_class == message_class
                assert "127.0.0.1" in (dead[0].reason or "")
                assert reported[-2:] == [Kind.FINAL_ACK_RECEIVED, Kind.DEAD_LETTERED]
            assert a.queue(JOURNAL).messages == 0

    scenario(tmp_path)


@pytest.mark.parametrize("message_class", [RECEIVED, MessageClass.NACK_QUEUE_PURGED])
def test_a_final_ack_that_overtakes_its_order_ack_counts_as_well(
    tmp_path: Any, message_class: int
) -> None:
    @hosted
    async def scenario(hosts: Hosts) -> None:
        a = await hosts.start()
        async with elsewhere(a, b"1", b"2", b"3") as (listener, remote, _):
            name = listener.name("orders")

            remote.final_ack(remote.messages[1], message_class)

            await until(lambda: awaiting(a, name) == (1, 1))
            await a.settled()
            assert a.sending_to(name).sequence.acknowledged == 2
            # The later order ack has no effect.
            remote.order_ack(remote.messages[1])
            remote.order_ack(remote.messages[2])
            await arrived(a, name, 2)
            dead = bodies(await a.peek(TRANSACTIONAL_DEAD_LETTERS))
            assert dead == ([] if message_class == RECEIVED else [b"2"])

    scenario(tmp_path)


@hosted
async def test_final_acks_for_a_whole_window_are_processed_at_once(hosts: Hosts) -> None:
    a = await hosts.start()
    numbers = [b"%d" % number for number in range(60)]
    async with elsewhere(a, *numbers, journal=True) as (listener, remote, _):
        name = listener.name("orders")
        for message in remote.messages[:60]:
            remote.final_ack(message, RECEIVED)

        await until(lambda: awaiting(a, name) == (0, 0))
        await a.settled()
        assert sorted(bodies(await a.peek(JOURNAL)), key=int) == numbers


@hosted
async def test_a_final_ack_is_acknowledged_only_when_its_end_is_on_disk(hosts: Hosts) -> None:
    a = await hosts.start()
    async with elsewhere(a, b"1") as (listener, remote, _):
        name = listener.name("orders")
        remote.order_ack(remote.messages[0])
        await arrived(a, name, 1)
        before = len(remote.acknowledged)
        with held_disk(a):
            remote.final_ack(remote.messages[0], RECEIVED)
            for _ in range(40):
                await asyncio.sleep(0.005)
            assert len(remote.acknowledged) == before
        await until(lambda: len(remote.acknowledged) == before + 1)

        database = a.services.settings.queue_manager.data / "queues.db"
        with closing(sqlite3.connect(database)) as db:
            assert db.execute("SELECT count(*) FROM awaiting").fetchone() == (0,)


@hosted
async def test_a_duplicate_final_ack_ends_its_message_once(hosts: Hosts) -> None:
    a = await hosts.start()
    async with elsewhere(a, b"1", journal=True) as (listener, remote, ids):
        name = listener.name("orders")
        for _ in range(3):
            remote.final_ack(remote.messages[0], RECEIVED)
        await until(lambda: awaiting(a, name) == (0, 0) and len(remote.acknowledged) == 3)
        remote.final_ack(remote.messages[0], MessageClass.NACK_QUEUE_PURGED)
        await until(lambda: len(remote.acknowledged) == 4)

        assert bodies(await a.peek(JOURNAL)) == [b"1"]
        assert a.queue(TRANSACTIONAL_DEAD_LETTERS).messages == 0
        assert (await kinds(a, ids[0])).count(Kind.CONFIRMED) == 1


@hosted
async def test_final_acks_without_a_matching_message_are_ignored(hosts: Hosts) -> None:
    a = await hosts.start()
    async with elsewhere(a, b"1", b"2") as (listener, remote, _):
        name = listener.name("orders")
        remote.order_ack(remote.messages[0])
        await until(lambda: awaiting(a, name) == (1, 1))

        remote.final_ack(remote.messages[0], RECEIVED, message_number=4711)  # another message
        remote.final_ack(remote.messages[1], 0x4123)  # an undefined class
        for message_class in (RECEIVED, MessageClass.NACK_BAD_DESTINATION_QUEUE):
            remote.final_ack(remote.messages[0], message_class, message_number=4711)

        await until(lambda: len(remote.acknowledged) == 5)
        assert awaiting(a, name) == (1, 1)
        assert a.queue(TRANSACTIONAL_DEAD_LETTERS).messages == 0


@hosted
async def test_a_final_ack_that_contradicts_itself_ends_nothing(hosts: Hosts) -> None:
    """Such a final ack has the position of one message, and the message number of another."""
    a = await hosts.start()
    async with elsewhere(a, b"1", b"2") as (listener, remote, ids):
        name = listener.name("orders")
        remote.order_ack(remote.messages[1])
        await arrived(a, name, 2)
        other = int(ids[1].rpartition("\\")[2])

        for message_class in (RECEIVED, MessageClass.NACK_QUEUE_PURGED):
            remote.final_ack(remote.messages[0], message_class, message_number=other)

        await until(lambda: len(remote.acknowledged) == 3)
        await a.settled()
        assert awaiting(a, name) == (0, 2)


@hosted
async def test_the_stored_copy_is_deleted_before_its_final_ack_is_acknowledged(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    async with elsewhere(a, *[b"%d" % number for number in range(20)]) as (listener, remote, _):
        remote.order_ack(remote.messages[19])
        await arrived(a, listener.name("orders"), 20)
        await until(lambda: len(remote.acknowledged) == 1)
        database = a.services.settings.queue_manager.data / "queues.db"
        with closing(sqlite3.connect(database)) as db:
            seen = remote.acknowledged = Looking(db)
            for count, message in enumerate(remote.messages[:20], 1):
                remote.final_ack(message, RECEIVED)
                await until(lambda count=count: len(seen) == count)
        assert seen.waiting == list(range(19, -1, -1))


@hosted
async def test_another_queue_manager_cannot_confirm(hosts: Hosts) -> None:
    a = await hosts.start()
    async with (
        elsewhere(a, b"1") as (listener, remote, _),
        listening(guid(8)) as outsider,
    ):
        name = listener.name("orders")
        remote.order_ack(remote.messages[0])
        await arrived(a, name, 1)
        await a.send(outsider.name("x"), b"x")
        other = await outsider.session()

        other.final_ack(remote.messages[0], RECEIVED)

        await until(lambda: len(other.acknowledged) == 1)
        assert awaiting(a, name) == (0, 1)


@hosted
async def test_waiting_messages_and_their_quota_survive_a_restart(hosts: Hosts) -> None:
    a = await hosts.start(quotas={"computer_bytes": 10_000})
    async with elsewhere(a, bytes(4000), bytes(4000)) as (listener, remote, _):
        name = listener.name("orders")
        remote.order_ack(remote.messages[1])
        await arrived(a, name, 2)
        used = a.usage.bytes

        a = await hosts.restart(a, quotas={"computer_bytes": 10_000})

        assert (awaiting(a, name), a.usage.bytes) == ((0, 2), used)
        with pytest.raises(Refusal) as caught:
            a.handed_over([NewMessage(name, bytes(4000))])
        assert caught.value.code == "computer_full"
        # The source connects by itself, since the destination may not be able to reach it.
        await until(lambda: len(listener.remotes) == 2 and listener.remotes[1].opened.is_set())
        listener.remotes[1].final_ack(remote.messages[0], RECEIVED)
        await arrived(a, name, 1)
        await a.send(name, bytes(4000))


@hosted
async def test_an_order_ack_after_a_restart_applies_to_messages_on_the_disk(hosts: Hosts) -> None:
    a = await hosts.start()
    async with elsewhere(a, b"1", b"2", b"3") as (listener, remote, _):
        name = listener.name("orders")
        await a.outgoing.set_paused(a.sending_to(name), True)
        a = await hosts.restart(a)
        await a.outgoing.set_paused(a.sending_to(name), False)
        again = await listener.session()
        await until(lambda: len(listener.remotes) == 2 and listener.remotes[1].opened.is_set())
        again = listener.remotes[1]

        again.order_ack(remote.messages[1])

        await until(lambda: awaiting(a, name) == (1, 2))
        await a.settled()
        again.final_ack(remote.messages[0], RECEIVED)
        await until(lambda: awaiting(a, name) == (1, 1))


@hosted
async def test_a_refusal_after_a_restart_ends_the_waiting_message(hosts: Hosts) -> None:
    """Some queue managers send an order ack for a message first, and a refusal after it."""
    a = await hosts.start()
    async with elsewhere(a, b"1", b"2") as (listener, remote, _):
        name = listener.name("orders")
        remote.order_ack(remote.messages[0])
        await until(lambda: awaiting(a, name) == (1, 1))
        await a.settled()
        a = await hosts.restart(a)
        await until(lambda: len(listener.remotes) == 2 and listener.remotes[1].opened.is_set())
        again = listener.remotes[1]

        again.final_ack(remote.messages[0], MessageClass.NACK_QUEUE_EXCEED_QUOTA)

        await until(lambda: awaiting(a, name) == (1, 0))
        await a.settled()
        (dead,) = await a.peek(TRANSACTIONAL_DEAD_LETTERS)
        assert bodies([dead]) == [b"1"]
        assert "full" in (dead.reason or "")
        # Outstanding messages are refused as usual.
        again.final_ack(remote.messages[1], MessageClass.NACK_QUEUE_EXCEED_QUOTA)
        await until(lambda: awaiting(a, name) == (0, 0))


@hosted
async def test_a_message_that_expires_with_its_order_ack_waits_and_is_counted(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    async with elsewhere(a, b"1", b"2") as (listener, remote, ids):
        name = listener.name("orders")
        queue = a.sending_to(name)
        connection = queue.link.connection
        assert connection is not None
        sequence = queue.sequence

        # In one batch, the message expires and its order ack comes.
        a.undeliverable.expire(queue, [TRANSACTIONAL_FIRST | (sequence.base + 1)])
        a.outgoing_release.acknowledged(connection, queue, sequence.sequence_id, 2, a.loop.time())

        await arrived(a, name, 2)
        assert a.queue(TRANSACTIONAL_DEAD_LETTERS).messages == 0
        assert Kind.AWAITING in await kinds(a, ids[0])
        remote.final_ack(remote.messages[0], RECEIVED)
        await arrived(a, name, 1)


@hosted
async def test_a_waiting_message_outlives_its_sequence(hosts: Hosts) -> None:
    a = await hosts.start()
    async with elsewhere(a, b"1") as (listener, remote, _):
        name = listener.name("orders")
        remote.order_ack(remote.messages[0])
        await arrived(a, name, 1)
        await a.send(name, b"2", **ASKING)
        await until(lambda: len(remote.messages) == 2)
        first, second = (each.message.transaction for each in remote.messages)
        assert first is not None
        assert second is not None
        assert (second.sequence_id, second.sequence_number) == (first.sequence_id + 1, 1)

        remote.final_ack(remote.messages[0], RECEIVED)  # number 1 of another sequence

        await until(lambda: awaiting(a, name) == (1, 0))
        remote.final_ack(remote.messages[1], RECEIVED)
        await until(lambda: awaiting(a, name) == (0, 0))


@hosted
async def test_with_two_queue_managers_every_message_ends_in_exactly_one_place(
    hosts: Hosts,
) -> None:
    a, b = await hosts.start("a"), await hosts.start("b")
    await b.create("orders", transactional=True)
    name = f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\orders"
    await a.send(name, b"received", b"rejected", **ASKING, journal=True)
    await a.send(name, b"late", **ASKING, time_to_be_received_s=10)
    await arrived(a, name, 3)
    await b.settled()
    await b.receive("orders", limit=1)
    reader = Reader()
    (taken,) = await b.take(reader, "orders")
    done: asyncio.Future[int] = b.loop.create_future()
    b.message_receiver.reject(
        reader, b.queue("orders"), [taken.lookup_id], "no", b"", done.set_result
    )
    await done
    b.world.ahead_s = 12
    await hosts.reap(b)

    await until(lambda: awaiting(a, name) == (0, 0))
    await a.settled()
    assert bodies(await a.peek(JOURNAL)) == [b"received"]
    dead = await a.peek(TRANSACTIONAL_DEAD_LETTERS)
    assert bodies(dead) == [b"rejected", b"late"]
    for host in (a, b):
        assert host.queue(DEAD_LETTERS).messages == 0
    await until(lambda: b.usage.bytes == 0)
