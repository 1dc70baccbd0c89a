"""Taking, removing, giving back and peeking, in a complete queue manager."""

from __future__ import annotations

import asyncio

import pytest

from qmd.control_protocol import messages as frames
from qmd.control_protocol.messages import EXPRESS
from qmd.errors import Refusal
from qmd.queues.local_queue import Reader
from storage.tables.event_index import GROUP_BLOCKS
from tests.integration.disk import held_disk
from tests.integration.managers import Hosts, bodies, hosted, until


@hosted
async def test_messages_are_taken_in_order_and_deleted_when_removed(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders", transactional=True)
    await a.send("orders", b"1", b"2", b"3")
    reader = Reader()

    first = await a.take(reader, "orders", 2)
    assert bodies(first) == [b"1", b"2"]
    assert bodies(await a.take(Reader(), "orders", 9)) == [b"3"]
    assert await a.removing(reader, "orders", first) == 2
    assert a.queue("orders").messages == 1


@hosted
async def test_a_higher_priority_comes_first_for_express_and_stored_messages(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", b"low", priority=1)
    await a.send("orders", b"usual")
    await a.send("orders", b"express", delivery=EXPRESS)
    await a.send("orders", b"high", priority=6)
    await a.send("orders", b"urgent", priority=7, delivery=EXPRESS)

    assert await a.receive("orders") == [b"urgent", b"high", b"usual", b"express", b"low"]


@hosted
async def test_a_message_that_is_given_back_returns_to_its_place(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", b"1", b"2", b"3")
    reader = Reader()
    taken = await a.take(reader, "orders", 2)

    assert a.give_back(reader, "orders", taken[:1]) == 1
    assert a.give_back(reader, "orders", taken[:1]) == 0, "it has it no more"
    assert await a.receive("orders") == [b"1", b"3"]
    assert bodies(await a.peek("orders")) == [], "the reader still has the other one"


@hosted
async def test_a_reader_that_leaves_gives_back_its_messages_and_stops_waiting(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", b"1", b"2", b"3")
    leaving, staying = Reader(), Reader()
    taken = await a.take(leaving, "orders", 3)
    await a.removing(leaving, "orders", taken[1:2])
    forgotten = a.taking(leaving, "orders", 1, frames.FOREVER)
    waiting = a.taking(staying, "orders", 9, frames.FOREVER)

    a.message_receiver.leave(leaving)
    await a.settled()
    assert waiting.done(), "the messages of the reader that left are not back"
    assert bodies(waiting.result()) == [b"1", b"3"]
    assert not forgotten.done()
    assert not a.queue("orders").waiters


@hosted
async def test_only_the_reader_that_took_a_message_can_remove_it(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", b"1", b"2")
    reader = Reader()
    taken = await a.take(reader, "orders", 2)

    with pytest.raises(Refusal, match="was not taken on this connection"):
        a.removing(Reader(), "orders", taken)
    assert await a.removing(reader, "orders", [*taken, *taken]) == 2, "twice the same is once"
    with pytest.raises(Refusal, match="was not taken on this connection"):
        a.removing(reader, "orders", taken)


@hosted
async def test_a_removal_is_answered_only_after_its_commit(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", b"1")
    reader = Reader()
    taken = await a.take(reader, "orders")

    with held_disk(a):
        removed = a.removing(reader, "orders", taken)
        await until(lambda: a.storage.pressure)
        a.message_receiver.leave(reader)
        assert bodies(await a.take(Reader(), "orders", wait_s=0.01)) == [], "it is gone, or will be"
        assert not removed.done()
        assert a.queue("orders").messages == 1, "it needs its room: the commit may fail"
    assert await removed == 1
    assert a.queue("orders").messages == 0


@hosted
async def test_readers_are_served_in_the_order_of_their_requests(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    waiting = [a.taking(Reader(), "orders", 1, frames.FOREVER) for _ in range(3)]
    in_vain = a.taking(Reader(), "orders", 1, 0.02)

    await a.send("orders", b"1", b"2", b"3")
    await a.settled()
    assert all(each.done() for each in waiting), "a reader still waits"
    assert [bodies(each.result()) for each in waiting] == [[b"1"], [b"2"], [b"3"]]
    assert await in_vain == []
    assert await a.take(Reader(), "orders") == []


@hosted
async def test_a_queue_longer_than_the_window_in_memory_is_read_in_order(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    numbers = [b"%d" % number for number in range(9000)]
    for start in range(0, 9000, 3000):
        await a.send("orders", *numbers[start : start + 3000])
    reader = Reader()
    received: list[bytes] = []
    while messages := await a.take(reader, "orders", 700, wait_s=0.05):
        received += bodies(messages)
        await a.removing(reader, "orders", messages)

    assert received == numbers


@hosted
async def test_one_reply_is_limited_to_about_8_mb(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    for _ in range(10):
        await a.send("orders", bytes(3_000_000))

    assert len(await a.take(Reader(), "orders", 10)) == 2
    assert len(await a.peek("orders", limit=10)) == 2


@hosted
async def test_an_expired_message_is_not_given_to_readers(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", b"stored", b"late", time_to_be_received_s=10)
    await a.send("orders", b"express", delivery=EXPRESS, time_to_be_received_s=10)
    await a.send("orders", b"fresh", time_to_be_received_s=100, dead_letter=False)
    a.world.ahead_s = 11

    assert await a.receive("orders") == [b"fresh"]
    await a.settled()
    assert a.queue("orders").messages == 0
    dead = await a.peek("DIRECT=OS:.\\SYSTEM$;DEADLETTER")
    assert sorted(bodies(dead)) == [b"express", b"late", b"stored"]
    assert {message.reason for message in dead} != {None}


@hosted
async def test_a_peek_shows_the_ready_messages_and_takes_none(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", *[b"%d" % number for number in range(30)])
    await a.send("orders", b"x", delivery=EXPRESS)
    reader = Reader()
    taken = await a.take(reader, "orders", 14)
    a.give_back(reader, "orders", taken[:5] + taken[10:12])

    seen = await a.peek("orders", limit=10)
    assert bodies(seen) == [b"%d" % number for number in (0, 1, 2, 3, 4, 10, 11, 14, 15, 16)]
    rest = await a.peek("orders", start=seen[-1].lookup_id + 1)
    assert bodies(rest) == [b"%d" % number for number in range(17, 30)] + [b"x"]
    assert await a.peek("orders", start=rest[-1].lookup_id + 1) == []


@hosted
async def test_a_peek_waits_for_the_first_message_and_leaves_no_waiter(hosts: Hosts) -> None:
    a = await hosts.start()
    queue = await a.create("orders")
    for _ in range(20):
        assert await a.peek("orders") == []
    assert await a.message_browser.peek(queue, 0, 1, 0.01) == []
    given_up = asyncio.create_task(a.message_browser.peek(queue, 0, 1, frames.FOREVER))
    waiting = asyncio.create_task(a.message_browser.peek(queue, 0, 1, frames.FOREVER))
    await until(lambda: len(queue.watchers) == 2)
    given_up.cancel()

    await a.send("orders", b"1")
    await until(waiting.done, "the peek that waits")
    assert bodies(waiting.result()) == [b"1"]
    assert not queue.watchers


@hosted
async def test_the_outcome_of_a_request_is_known_by_its_token(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    reader = Reader()
    ids = await a.handed_over([frames.NewMessage("orders", b"1")] * 2, b"sent")
    await a.removing(reader, "orders", await a.take(reader, "orders"), b"removed")
    a = await hosts.restart(a)

    assert await a.request_outcomes.outcome(b"sent") == ids
    assert await a.request_outcomes.outcome(b"removed") == 1
    assert await a.request_outcomes.outcome(b"never made") is None
    for number in range(GROUP_BLOCKS):  # outcomes are forgotten in groups of commits
        await a.handed_over([frames.NewMessage("orders", b"%d" % number)])
    a.world.ahead_s = 100_000
    await a.retention.forget_old()
    assert await a.request_outcomes.outcome(b"sent") is None
