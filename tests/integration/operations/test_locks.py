"""Locks: takes that end by themselves and outlast their connection, in a complete queue manager."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from qmd.access.rights import ALL_RIGHTS
from qmd.client import (
    BadRequest,
    Locked,
    LockLost,
    NotTaken,
    QueueManager,
    blocking,
    connect,
    new_message,
)
from qmd.control_protocol import locks as lock_frames
from qmd.control_protocol.messages import EVERY_MESSAGE, FOREVER
from qmd.operations import locks
from qmd.queues.local_queue import Reader
from tests.integration.managers import Host, Hosts, hosted, until

LONG_S = 600.0


async def filled(hosts: Hosts, *bodies: bytes, **properties: Any) -> Host:
    a = await hosts.start()
    await a.create("orders", **properties)
    await a.send("orders", *bodies)
    return a


def bodies(messages: Any) -> list[bytes]:
    return [message.body for message in messages]


async def left(qm: QueueManager, queue: str = "orders") -> list[bytes]:
    return [message.body async for message in qm.peek_each(queue)]


@hosted
async def test_a_lock_outlasts_its_connection_and_another_one_settles_it(hosts: Hosts) -> None:
    a = await filled(hosts, b"1", b"2", b"3", b"4")
    async with connect(a.socket) as qm:
        taken = await qm.take_locked("orders", 3, lock_s=LONG_S)
        assert bodies(taken.messages) == [b"1", b"2", b"3"]
    async with connect(a.socket) as qm:
        assert await left(qm) == [b"4"], "the others are locked"
        [shown] = await qm.list_locks()
        assert (shown["lock"], shown["messages"]) == (taken.id.hex(), 3)
        again = qm.locked(taken.id, "orders")
        assert await again.settle("remove", [taken.messages[1].lookup_id]) == 1
        assert await again.settle("give_back", [taken.messages[2].lookup_id]) == 1
        assert await left(qm) == [b"3", b"4"]
        assert await again.remove([]) == 0
        assert await again.remove() == 1
        assert await qm.list_locks() == []
        with pytest.raises(LockLost):
            await again.settle("remove")
        assert await left(qm) == [b"3", b"4"]
    assert a.queue("orders").messages == 2


@hosted
async def test_the_end_of_a_lock_gives_its_messages_back_and_counts_an_attempt(
    hosts: Hosts,
) -> None:
    a = await filled(hosts, b"1", b"2")
    async with connect(a.socket) as qm:
        taken = await qm.take_locked("orders", lock_s=0.02)
        message = await qm.receive("orders", timeout_s=None, where="abort_count = 1")
        assert message is not None
        assert (message.body, message.abort_count) == (b"1", 1)
        for settling in (taken.remove(), taken.renew(5), taken.reject("late")):
            with pytest.raises(LockLost):
                await settling
        found = await qm.why(message.id)
        assert "its lock of 0.02 s has expired" in str(found)
        assert await left(qm) == [b"2"]
    await a.settled()
    assert a.queue("orders").messages == 1


@hosted
async def test_a_renewed_lock_does_not_end_before_its_new_time(hosts: Hosts) -> None:
    a = await filled(hosts, b"1", b"2")
    async with connect(a.socket) as qm:
        taken = await qm.take_locked("orders", lock_s=LONG_S)
        await taken.renew(2 * LONG_S)
        [lock] = a.locks._locks.values()
        assert lock.ends_at > a.loop.time() + 1.5 * LONG_S
        await taken.renew(0.02)
        await until(lambda: not a.locks._locks)
        assert await left(qm) == [b"1", b"2"]


@hosted
async def test_a_lock_takes_further_messages(hosts: Hosts) -> None:
    a = await filled(hosts, b"1", b"2", b"3")
    async with connect(a.socket) as qm:
        taken = await qm.take_locked("orders", lock_s=LONG_S)
        assert bodies(await taken.take(1, lock_s=LONG_S)) == [b"2"]
        assert await taken.remove(taken.messages[:1]) == 1
        assert bodies(taken.messages) == [b"2"]
        await taken.give_back(failed=True, reason="no such customer")
        message = await qm.receive("orders")
        assert message is not None
        assert (message.body, message.abort_count) == (b"2", 1)
        assert "no such customer" in str(await qm.why(message.id))


@hosted
async def test_a_block_gives_back_messages_that_were_not_settled(hosts: Hosts) -> None:
    a = await filled(hosts, b"1", b"2")
    async with connect(a.socket) as qm:
        async with await qm.take_locked("orders", 2, lock_s=LONG_S) as taken:
            await taken.remove(taken.messages[1:])
        with pytest.raises(ZeroDivisionError):
            async with await qm.take_locked("orders", lock_s=LONG_S) as taken:
                raise ZeroDivisionError
        message = await qm.receive("orders")
        assert message is not None
        assert (message.body, message.abort_count) == (b"1", 1)
        assert not a.locks._locks


@hosted
async def test_locks_end_with_the_daemon_and_count_no_attempt(hosts: Hosts) -> None:
    a = await filled(hosts, b"1")
    async with connect(a.socket) as qm:
        taken = await qm.take_locked("orders", lock_s=LONG_S)
        a = await hosts.restart(a)
        with pytest.raises(LockLost):
            await taken.remove()
        message = await qm.receive("orders")
        assert message is not None
        assert (message.body, message.abort_count) == (b"1", 0)


@hosted
async def test_a_rejected_message_goes_to_the_dead_letters(hosts: Hosts) -> None:
    a = await filled(hosts, b"1")
    async with connect(a.socket) as qm:
        taken = await qm.take_locked("orders", lock_s=LONG_S)
        assert await taken.reject("no such customer") == 1
        [letter] = [each async for each in qm.peek_each("system$;deadletter")]
        assert "no such customer" in (letter.reason or "")


@hosted
async def test_a_transaction_settles_messages_that_were_taken_before(hosts: Hosts) -> None:
    a = await filled(hosts, b"1", b"2", b"3", b"4", transactional=True)
    await a.create("invoices", transactional=True)
    async with connect(a.socket) as qm:
        locked = await qm.take_locked("orders", 2, lock_s=LONG_S)
        taken = await qm.take("orders")
        messages = locked.messages
        async with qm.transaction() as transaction:
            assert await transaction.settle(locked) == 2
            assert [message.body for message in messages] == [b"1", b"2"]  # still to be handled
            assert not locked.messages
            assert await transaction.settle(taken) == 1
            await transaction.send("invoices", b"for three")
            assert await left(qm) == [b"4"]
            assert await left(qm, "invoices") == []
            assert not a.locks._locks
        assert await left(qm) == [b"4"]
        assert await left(qm, "invoices") == [b"for three"]

        locked = await qm.take_locked("orders", lock_s=LONG_S)
        transaction = qm.transaction()
        await transaction.begin()
        await transaction.settle(locked)
        await transaction.abort()
        message = await qm.receive("orders")
        assert message is not None
        assert (message.body, message.abort_count) == (b"4", 1)
        with pytest.raises(LockLost):
            await locked.settle("remove")


@hosted
async def test_messages_of_another_connection_are_not_settled(hosts: Hosts) -> None:
    a = await filled(hosts, b"1", transactional=True)
    async with connect(a.socket) as qm, connect(a.socket) as other:
        taken = await other.take("orders")
        async with qm.transaction() as transaction:
            with pytest.raises(NotTaken):
                await transaction.settle(taken)
        await taken.remove()


@hosted
async def test_a_client_that_leaves_while_it_waits_gets_no_message(hosts: Hosts) -> None:
    a = await filled(hosts)
    for where in ("", "TRUE"):
        async with connect(a.socket) as qm:
            waiting = asyncio.create_task(
                qm.take_locked("orders", lock_s=LONG_S, timeout_s=None, where=where)
            )
            await until(lambda: a.locks._locks)
            waiting.cancel()
        await until(lambda: not a.locks._locks)
        await a.send("orders", b"1")
        assert await a.receive("orders") == [b"1"]


@hosted
async def test_a_caller_that_is_cancelled_gives_its_messages_back(hosts: Hosts) -> None:
    a = await filled(hosts)
    async with connect(a.socket) as qm, connect(a.socket) as other:
        waiting = asyncio.create_task(qm.take_locked("orders", lock_s=LONG_S, timeout_s=None))
        await until(lambda: a.locks._locks)
        waiting.cancel()
        await asyncio.wait([waiting])
        await other.send("orders", b"1")
        message = await other.receive("orders", timeout_s=None)
        assert message is not None
        assert (message.body, message.abort_count) == (b"1", 0)


@hosted
async def test_a_message_that_comes_while_a_request_is_cancelled_is_given_back(
    hosts: Hosts,
) -> None:
    """The cancellation withdraws the request only in the next turn of the event loop."""
    a = await filled(hosts)
    queue, reader = a.queue("orders"), Reader()
    await a.send("orders", b"1")
    (message,) = await a.take(reader, "orders")
    work = a.locks.take(bytes(16), LONG_S, ALL_RIGHTS, queue, EVERY_MESSAGE, 1, FOREVER)
    taking = asyncio.create_task(work)
    await until(lambda: queue.waiters)

    taking.cancel()
    a.message_receiver.give_back(reader, queue, [message.lookup_id])
    await asyncio.wait([taking])

    assert taking.cancelled()
    assert not a.locks._locks
    assert await a.receive("orders") == [b"1"]


@hosted
async def test_a_removal_with_a_lost_answer_is_done_once(hosts: Hosts) -> None:
    a = await filled(hosts, b"1", b"2")
    async with connect(a.socket) as qm:
        taken = await qm.take_locked("orders", lock_s=LONG_S)
        token = os.urandom(16)
        arguments = taken.id, "orders", [], "remove", "", token
        assert await qm._caller.ask(lock_frames.SettleLocked, *arguments) == 1
        assert await qm.outcome(token) == 1
        assert (
            await qm._caller.change_again(lock_frames.SettleLocked, *arguments[:-1], token=token)
            == 1
        )
        assert await left(qm) == [b"2"]


@hosted
async def test_bad_requests_are_refused(hosts: Hosts) -> None:
    a = await filled(hosts, b"1")
    async with connect(a.socket) as qm:
        for lock_s in (0.0, -1.0, float("nan"), float("inf"), 1e6):
            with pytest.raises(BadRequest) as error:
                await qm.take_locked("orders", lock_s=lock_s)
            assert error.value.code == "bad_lock_time"
        with pytest.raises(BadRequest) as error:
            await qm.take_locked("orders", lock_s=5, lock=b"short")
        assert error.value.code == "bad_lock_id"
        taken = await qm.take_locked("orders", lock_s=LONG_S)
        with pytest.raises(BadRequest) as error:
            await taken.settle("forget")
        assert error.value.code == "bad_settlement"
        with pytest.raises(LockLost):
            await taken.settle("remove", [taken.messages[0].lookup_id + 1])
        await taken.remove()


@hosted
async def test_a_user_cannot_hold_any_number_of_locks(hosts: Hosts) -> None:
    a = await filled(hosts, *[b"%d" % number for number in range(4)])
    before = locks.LOCKS_OF_OWNER_MAX
    locks.LOCKS_OF_OWNER_MAX = 2
    try:
        async with connect(a.socket) as qm:
            held = [await qm.take_locked("orders", lock_s=LONG_S) for _ in range(2)]
            with pytest.raises(Exception, match="locks are under way"):
                await qm.take_locked("orders", lock_s=LONG_S)
            await held[0].remove()
            assert isinstance(await qm.take_locked("orders", lock_s=LONG_S), Locked)
    finally:
        locks.LOCKS_OF_OWNER_MAX = before


@hosted
async def test_the_blocking_client_has_locks(hosts: Hosts) -> None:
    a = await filled(hosts, b"1", b"2", transactional=True)

    def work() -> None:
        with blocking.connect(a.socket) as qm:
            with qm.take_locked("orders", lock_s=LONG_S) as taken, qm.transaction() as transaction:
                transaction.settle(taken)
            with qm.take_locked("orders", lock_s=LONG_S) as taken:
                assert taken.remove() == 1
            assert qm.peek("orders") == []

    await asyncio.to_thread(work)


@hosted
async def test_a_message_given_back_as_failed_counts_an_attempt(hosts: Hosts) -> None:
    a = await filled(hosts, b"1", b"2")
    async with connect(a.socket) as qm:
        taken = await qm.take("orders", 2)
        await taken.give_back(failed=True, reason="the printer is out of paper")
        await qm.send_many([new_message("orders", b"3")])
        messages = await qm.receive_many("orders", 3)
        assert [(each.body, each.abort_count) for each in messages] == [
            *((b"1", 1), (b"2", 1), (b"3", 0)),
        ]
        assert "the printer is out of paper" in str(await qm.why(messages[0].id))
