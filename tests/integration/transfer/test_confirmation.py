"""The transaction confirmation process at the source: messages that wait for their final acks."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, closing
from typing import Any

import pytest

from protocol import parse_user_message
from protocol.message_class import MessageClass
from qmd.control_protocol.messages import INFINITE_S, TRANSACTIONAL, NewMessage
from qmd.errors import Refusal
from qmd.events.header import Kind
from qmd.queues.local_queue import Reader
from qmd.queues.outgoing_queue import TRANSACTIONAL_FIRST
from storage.tables import events
from tests.integration.managers import (
    DEAD_LETTERS,
    JOURNAL,
    TRANSACTIONAL_DEAD_LETTERS,
    Host,
    Hosts,
    Remote,
    RemoteListener,
    bodies,
    guid,
    hosted,
    listening,
    until,
)

RECEIVED = MessageClass.ACK_RECEIVE
ASKING: dict[str, Any] = {"delivery": TRANSACTIONAL, "dead_letter": True}


def awaiting(host: Host, name: str) -> tuple[int, int]:
    queue = host.sending_to(name)
    return queue.messages, queue.awaiting.messages


async def arrived(host: Host, name: str, count: int) -> None:
    """Wait until all messages have arrived and `count` wait for their final acks, on disk."""
    await until(lambda: awaiting(host, name) == (0, count))
    await host.settled()


async def kinds(host: Host, message_id: str) -> list[str]:
    """Return the kinds of the recorded events of one of the host's messages, in order."""
    await host.settled()
    number = int(message_id.rpartition("\\")[2])
    told = await host.storage.read(lambda db: events.of_message(db, host.id, number, 100))
    return [event.kind for event in told]


@asynccontextmanager
async def elsewhere(
    host: Host, *sent: bytes, **properties: Any
) -> AsyncIterator[tuple[RemoteListener, Remote, list[str]]]:
    """Send messages to a queue manager that has received them, but acknowledged none.

    Yields its listener, its session, and the ids of the messages.
    """
    async with listening(guid(7)) as listener:
        ids = await host.send(listener.name("orders"), *sent, **{**ASKING, **properties})
        remote = await listener.session()
        await until(lambda: len(remote.messages) == len(sent))
        yield listener, remote, ids


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
            told = await kinds(a, ids[0])
            if properties.get("dead_letter") is False:
                assert dead == []
                assert told[-1] == Kind.DISCARDED
            else:
                assert bodies(dead) == [b"1"]
                packet = parse_user_message(dead[0].packet)
                assert packet.properties.message_class == message_class
                assert "127.0.0.1" in (dead[0].reason or "")
                assert told[-2:] == [Kind.FINAL_ACK_RECEIVED, Kind.DEAD_LETTERED]
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
        with a.held_disk():
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
        listening(guid(8)) as stranger,
    ):
        name = listener.name("orders")
        remote.order_ack(remote.messages[0])
        await arrived(a, name, 1)
        await a.send(stranger.name("x"), b"x")
        other = await stranger.session()

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


# --- requests for confirmation ---


@pytest.mark.parametrize(
    ("always", "dead_letter", "time_to_be_received_s", "asks", "kept"),
    [
        (False, None, None, False, True),
        (False, None, INFINITE_S, False, True),
        (False, None, 100, True, True),
        (False, True, None, True, True),
        (False, False, None, False, False),
        (False, False, 100, False, False),
        (True, None, None, True, True),
        (True, False, None, True, True),
    ],
)
def test_settings_and_properties_decide_confirmation_and_dead_letters(
    tmp_path: Any,
    always: bool,
    dead_letter: bool | None,
    time_to_be_received_s: int | None,
    asks: bool,
    kept: bool,
) -> None:
    @hosted
    async def scenario(hosts: Hosts) -> None:
        a = await hosts.start(delivery={"xact_dead_letter_always": always})
        wants = {"dead_letter": dead_letter, "time_to_be_received_s": time_to_be_received_s}
        async with elsewhere(a, b"1", b"2", **wants) as (listener, remote, _):
            assert remote.messages[0].message.user.flags.negative_journal == asks
            remote.final_ack(remote.messages[1], MessageClass.NACK_QUEUE_EXCEED_QUOTA)
            await until(lambda: a.sending_to(listener.name("orders")).messages == 1)
            remote.order_ack(remote.messages[0])
            await until(lambda: awaiting(a, listener.name("orders")) == (0, int(asks)))
            await a.settled()
            dead = bodies(await a.peek(TRANSACTIONAL_DEAD_LETTERS))
            assert dead == ([b"2"] if kept else [])

    scenario(tmp_path)


@hosted
async def test_other_messages_request_negative_journaling_unless_the_application_declines(
    hosts: Hosts,
) -> None:
    a = await hosts.start(delivery={"xact_dead_letter_always": True})
    async with listening(guid(7)) as listener:
        for dead_letter in (None, True, False):
            await a.send(listener.name("orders"), b"%r" % dead_letter, dead_letter=dead_letter)
        remote = await listener.session()
        await until(lambda: len(remote.messages) == 3)
        asked = [each.message.user.flags.negative_journal for each in remote.messages]
        assert asked == [1, 1, 0]


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
