"""Delayed messages: kept on disk, released once at their time, cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from typing import Any

import pytest

from qmd.control_protocol.messages import EXPRESS, FOREVER, TRANSACTIONAL, NewMessage
from qmd.core.packet_fields import sent_time_s
from qmd.errors import Refusal
from qmd.queues.local_queue import Reader
from tests.integration.managers import (
    DEAD_LETTERS,
    Host,
    Hosts,
    bodies,
    hosted,
    until,
)

YEAR_S = 365 * 86400
HOUR_MS = 3_600_000


@contextlib.asynccontextmanager
async def releasing(host: Host) -> AsyncIterator[None]:
    """Run the release, as the daemon does."""
    task = asyncio.create_task(host.delayed_release.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def released(host: Host) -> None:
    """Release all messages that are due now."""
    while await host.delayed_release.release():
        pass
    await host.settled()


def at(host: Host, later_s: float) -> int:
    """Return a time of the wall clock, in milliseconds."""
    return int((host.environment.time() + later_s) * 1000)


async def kinds(host: Host, message_id: str) -> list[str]:
    story = await host.message_lookup.why(message_id, "", ask=False)
    return [event["kind"] for event in story["events"]]


@hosted
async def test_a_delayed_message_is_delivered_at_its_time_and_not_before(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    (first,) = await a.send("orders", b"in an hour", delay_ms=HOUR_MS)
    await a.send("orders", b"at a time", deliver_at_ms=at(a, 1800))
    await a.send("orders", b"now")

    await released(a)
    assert await a.receive("orders") == [b"now"]

    a.world.ahead_s += 1801
    await released(a)
    assert await a.receive("orders") == [b"at a time"]

    a.world.ahead_s += 1800
    await released(a)
    assert await a.receive("orders") == [b"in an hour"]
    assert await kinds(a, first) == ["delayed", "sent", "received"]


@hosted
async def test_the_running_release_wakes_by_itself(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    async with releasing(a):
        await a.send("orders", b"later", delay_ms=HOUR_MS)
        await a.send("orders", b"soon", delay_ms=20)
        (message,) = await a.take(Reader(), "orders", wait_s=FOREVER)
        assert bodies([message]) == [b"soon"]


@hosted
async def test_a_message_that_is_due_already_is_sent_at_once(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", b"1", deliver_at_ms=at(a, -5))
    await a.send("orders", b"2", deliver_at_ms=1)
    assert a.delayed.totals == (0, 0)
    assert await a.receive("orders") == [b"1", b"2"]


@hosted
async def test_messages_are_released_in_the_order_of_their_times(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders", transactional=True)
    for seconds in (30, 10, 20):
        await a.send("orders", b"%d" % seconds, deliver_at_ms=at(a, seconds))
    await a.send("orders", b"25", delay_ms=25_000)
    a.world.ahead_s += 60
    await released(a)
    assert await a.receive("orders") == [b"10", b"20", b"25", b"30"]


@hosted
async def test_delays_survive_a_restart_and_years_of_downtime(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", b"absolute", deliver_at_ms=at(a, 4 * YEAR_S))
    await a.send("orders", b"relative", delay_ms=HOUR_MS)
    a = await hosts.restart(a)
    assert a.delayed.totals[0] == 2
    await released(a)
    assert await a.receive("orders") == []

    a.world.boots += 1  # the computer was off: its own clock does not count more than 30 days
    a.world.ahead_s += 4 * YEAR_S + 86400 * 2
    a.world.wall_step_s = 0
    a = await hosts.restart(a)
    await released(a)
    assert b"absolute" in await a.receive("orders")
    a.world.ahead_s += 3601
    await released(a)
    assert a.delayed.totals == (0, 0)


@pytest.mark.parametrize("step_s", [7200, -7200])
def test_a_step_of_the_wall_clock_moves_times_and_not_delays(step_s: int, tmp_path: Any) -> None:
    @hosted
    async def scenario(hosts: Hosts) -> None:
        a = await hosts.start()
        await a.create("orders")
        await a.send("orders", b"absolute", deliver_at_ms=at(a, 3600))
        await a.send("orders", b"relative", delay_ms=HOUR_MS)
        a.world.wall_step_s += step_s
        await released(a)
        assert await a.receive("orders") == ([b"absolute"] if step_s > 0 else [])

        a.world.ahead_s += 3601
        await released(a)
        assert await a.receive("orders") == [b"relative"]

        if step_s < 0:
            a.world.ahead_s += 7200
            await released(a)
            assert await a.receive("orders") == [b"absolute"]

    scenario(tmp_path)


@hosted
async def test_the_time_to_be_received_begins_with_the_release(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", b"1", delay_ms=HOUR_MS, time_to_be_received_s=60)
    a.world.ahead_s += 3601
    await released(a)
    (message,) = await a.peek("orders")
    assert abs(sent_time_s(message.packet) - a.environment.time()) <= 2
    await hosts.reap(a)
    assert a.queue("orders").messages == 1
    a.world.ahead_s += 62
    await hosts.reap(a)
    assert a.queue("orders").messages == 0


@hosted
async def test_an_express_message_is_on_disk_while_it_is_delayed(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", b"1", delay_ms=HOUR_MS, delivery=EXPRESS)
    a = await hosts.restart(a)
    a.world.ahead_s += 3601
    await released(a)
    a = await hosts.restart(a)
    assert await a.receive("orders") == [b"1"]


@hosted
async def test_a_message_to_another_host_waits_here_and_keeps_its_order(hosts: Hosts) -> None:
    a, b = await hosts.start("a"), await hosts.start("b")
    await b.create("orders", transactional=True)
    name = f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\orders"
    a.world.ahead_s = b.world.ahead_s
    for seconds in (20, 10):
        await a.send(name, b"%d" % seconds, delivery=TRANSACTIONAL, deliver_at_ms=at(a, seconds))
    await a.send(name, b"0", delivery=TRANSACTIONAL)
    await until(lambda: b.queue("orders").messages == 1, "the arrival")
    assert a.sending_to(name).sequence.next_number == 2
    a.world.ahead_s += 15
    await released(a)
    a.world.ahead_s += 15
    await released(a)
    await until(lambda: b.queue("orders").messages == 3, "the arrivals")
    await b.settled()
    assert await b.receive("orders") == [b"0", b"10", b"20"]


@hosted
async def test_a_message_to_several_queues_is_delayed_as_one(hosts: Hosts) -> None:
    a = await hosts.start()
    for name in ("one", "two", "three"):
        await a.create(name)
    body = b"x" * 2000
    (ids,) = await a.send(
        "DIRECT=OS:.\\private$\\one,DIRECT=OS:.\\private$\\two,DIRECT=OS:.\\private$\\three",
        body,
        delay_ms=HOUR_MS,
    )
    assert len(ids) == 3
    assert a.delayed.totals[0] == 1
    await a.queue_deletion.delete(a.queue("two"), dry_run=False)
    a.world.ahead_s += 3601
    await released(a)
    for name in ("one", "three"):
        assert await a.receive(name) == [body]
    (letter,) = await a.peek(DEAD_LETTERS)
    assert bodies([letter]) == [body]
    assert "two" in (letter.reason or "")


@hosted
async def test_delayed_and_other_messages_of_one_transaction_commit_together(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders", transactional=True)
    owner = object()
    a.transactions.begin(bytes(16), owner, 60)
    ids = a.transactions.send(
        bytes(16),
        owner,
        [
            NewMessage("orders", b"later", delay_ms=HOUR_MS),
            NewMessage("orders", b"now"),
        ],
    )
    assert a.delayed.totals == (0, 0)
    done: asyncio.Future[list[object]] = a.loop.create_future()
    a.transactions.commit(bytes(16), owner, done.set_result)
    assert await done == ids
    assert a.delayed.totals[0] == 1
    assert await a.receive("orders") == [b"now"]
    a.world.ahead_s += 3601
    await released(a)
    (message,) = await a.peek("orders")
    assert bodies([message]) == [b"later"]


@hosted
async def test_a_cancelled_message_is_never_sent(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    first, second = await a.send("orders", b"1", b"2", delay_ms=HOUR_MS)
    assert await a.delayed.cancel([first], lambda row: True) == [first]
    assert await a.delayed.cancel([first], lambda row: True) == []
    a.world.ahead_s += 3601
    await released(a)
    assert await a.receive("orders") == [b"2"]
    assert await a.delayed.cancel([second], lambda row: True) == []
    assert await kinds(a, first) == ["delayed", "cancelled"]


@hosted
async def test_a_cancel_and_a_release_at_once_have_one_winner(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    ids = await a.send("orders", *[b"%d" % number for number in range(50)], delay_ms=1000)
    a.world.ahead_s += 2
    cancels = [a.delayed.cancel([each], lambda row: True) for each in ids]
    _, *answers = await asyncio.gather(released(a), *cancels)
    await released(a)
    cancelled = sum(map(len, answers))
    assert a.queue("orders").messages + cancelled == 50
    assert a.delayed.totals == (0, 0)
    await a.receive("orders")


@hosted
async def test_nothing_is_cancelled_between_the_reading_of_a_message_and_its_release(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    await a.create("orders")
    (sent,) = await a.send("orders", b"1", delay_ms=1000)
    a.world.ahead_s += 2
    found = await a.delayed.due((), 10, 1 << 20)
    assert len(found) == 1
    cancelling = asyncio.create_task(a.delayed.cancel([sent], lambda row: True))
    for _ in range(5):
        await a.settled()
    assert not cancelling.done()
    a.delayed.release_ends()
    assert await cancelling == [sent]
    await released(a)
    assert await a.receive("orders") == []


@hosted
async def test_delayed_messages_count_towards_the_quota_of_their_queue(hosts: Hosts) -> None:
    a = await hosts.start()
    queue = await a.create("orders", quota_bytes=10_000)
    await a.send("orders", b"x" * 6000, delay_ms=HOUR_MS)
    assert (queue.messages, queue.own_bytes) == (0, 0)
    for later in ({}, {"delay_ms": HOUR_MS}):
        with pytest.raises(Refusal, match="is full"):
            await a.send("orders", b"x" * 6000, **later)
    a = await hosts.restart(a)
    queue = a.queue("orders")
    assert queue.bytes > 6000
    a.world.ahead_s += 3601
    await released(a)
    assert await a.receive("orders") == [b"x" * 6000]
    assert queue.bytes == 0


@hosted
async def test_a_full_destination_delays_further_and_others_go_on(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders", quota_bytes=10_000)
    await a.create("others")
    await a.send("orders", b"x" * 6000, delay_ms=1000)
    await a.send("orders", b"y" * 1000, delay_ms=1001)
    await a.send("others", b"z", delay_ms=2000)
    await a.administration.change(a.queue("orders"), quota_bytes=100)
    a.world.ahead_s += 3
    await released(a)
    assert await a.receive("others") == [b"z"]
    assert (a.queue("orders").messages, a.delayed.totals[0]) == (0, 2)
    await a.administration.change(a.queue("orders"), quota_bytes=10_000)
    a.delayed_release._blocked.clear()  # instead of a wait for the next attempt
    await released(a)
    assert await a.receive("orders") == [b"x" * 6000, b"y" * 1000]


@pytest.mark.parametrize("dead_letter", [None, False])
def test_a_message_whose_queue_was_deleted_is_a_dead_letter(
    dead_letter: bool | None, tmp_path: Any
) -> None:
    @hosted
    async def scenario(hosts: Hosts) -> None:
        a = await hosts.start()
        await a.create("orders")
        (sent,) = await a.send("orders", b"1", delay_ms=1000, dead_letter=dead_letter)
        await a.queue_deletion.delete(a.queue("orders"), dry_run=False)
        a.world.ahead_s += 3
        await released(a)
        letters = await a.peek(DEAD_LETTERS)
        if dead_letter is None:
            assert bodies(letters) == [b"1"]
            assert "delayed" in (letters[0].reason or "")
            assert await kinds(a, sent) == ["delayed", "unsendable", "dead_lettered"]
        else:
            assert letters == []
            assert await kinds(a, sent) == ["delayed", "unsendable", "discarded"]

    scenario(tmp_path)


@hosted
async def test_a_queue_that_was_created_anew_gets_the_message(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", b"1", delay_ms=1000)
    await a.queue_deletion.delete(a.queue("orders"), dry_run=False)
    await a.create("orders")
    a.world.ahead_s += 3
    await released(a)
    assert await a.receive("orders") == [b"1"]


@hosted
async def test_many_messages_are_released_in_pieces(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", *[b"%d" % number for number in range(600)], delay_ms=1000)
    assert a.delayed.totals[0] == 600
    a.world.ahead_s += 2
    await released(a)
    assert await a.receive("orders") == [b"%d" % number for number in range(600)]


@hosted
async def test_a_damaged_row_is_set_aside_and_others_go_on(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", b"1", b"2", delay_ms=1000)

    def damage(db: sqlite3.Connection) -> None:
        db.execute(
            "UPDATE delayed SET data = CAST(x'00' || substr(data, 2) AS BLOB)"
            " WHERE number = (SELECT min(number) FROM delayed)"
        )

    await a.storage.batch.run(damage)
    a.world.ahead_s += 2
    await released(a)
    assert await a.receive("orders") == [b"2"]
    places = await a.storage.read(lambda db: db.execute("SELECT place FROM damaged").fetchall())
    assert places == [("delayed",)]


@hosted
async def test_the_pages_of_a_list_have_each_message_once(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.create("others")
    ids = await a.send("orders", *[b"%d" % number for number in range(5)], delay_ms=HOUR_MS)
    await a.send("others", b"x", delay_ms=HOUR_MS)
    name = a.queue("orders").name
    found: list[str] = []
    start: int | None = 0
    while start is not None:
        page = await a.delayed.page(name, start, 2, bodies=True)
        found += [each["id"] for each in page["messages"]]
        start = page["next"]
    assert found == ids
    everything = await a.delayed.page("", 0, 100, bodies=False)
    assert len(everything["messages"]) == 6
    assert {each["body"] for each in everything["messages"]} == {None}
