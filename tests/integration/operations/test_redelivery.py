"""Retry policies of queues: waits in `;retry`, and the ends of messages that keep failing."""

from __future__ import annotations

from typing import Any

import pytest

from qmd.control_protocol.messages import EXPRESS, Choice, Piece
from qmd.core.retry_policy import End, RetryPolicy
from qmd.errors import Refusal
from qmd.operations.redelivery import changed
from qmd.queues.local_queue import Reader
from tests.integration.managers import (
    DEAD_LETTERS,
    TRANSACTIONAL_DEAD_LETTERS,
    Host,
    Hosts,
    bodies,
    hosted,
)

STEADY = RetryPolicy(attempts=3, delay_s=10, factor=2, delay_max_s=100, jitter=0)


async def fail(host: Host, queue: str, reason: str = "no stock", *, counted: bool = True) -> None:
    """Receive the first message in a transaction, and abort that."""
    reader = Reader(is_unread=not counted)
    assert await host.take(reader, queue)
    host.message_receiver.abort(reader, "01", reason)
    await host.redelivery.stop()
    await host.settled()


async def later(host: Host, seconds: float) -> None:
    host.world.ahead_s += seconds
    await host.retry_release.release()
    await host.settled()


async def places(host: Host, *names: str) -> list[int]:
    """Return the numbers of messages in the queue `orders`, and in subqueues that exist."""
    found = []
    for name in names:
        key = f"private$\\{name}"
        queue = host.queues.by_key.get(key)
        found.append(0 if queue is None else queue.messages)
    return found


@pytest.mark.parametrize("transactional", [True, False])
def test_a_failed_message_waits_longer_each_time_and_ends_as_poison(
    transactional: bool, tmp_path: Any
) -> None:
    @hosted
    async def scenario(hosts: Hosts) -> None:
        a = await hosts.start()
        queue = await a.create("orders", transactional=transactional)
        await a.redelivery.set(queue, STEADY)
        sent, _ = await a.send("orders", b"1", b"2")

        await fail(a, "orders")
        assert await places(a, "orders", "orders;retry") == [1, 1]
        assert bodies(await a.peek("orders")) == [b"2"]
        await later(a, 9)
        assert await places(a, "orders", "orders;retry") == [1, 1]
        await later(a, 1.1)
        assert bodies(await a.peek("orders")) == [b"1", b"2"]

        await fail(a, "orders")
        await later(a, 19)
        assert await places(a, "orders", "orders;retry") == [1, 1]
        await later(a, 1.1)
        await fail(a, "orders", "the warehouse burnt")

        (poison,) = await a.peek("orders;poison")
        assert (bodies([poison]), poison.abort_count) == ([b"1"], 3)
        assert await places(a, "orders", "orders;retry", "orders;poison") == [1, 0, 1]
        story = await a.message_lookup.why(sent, "", ask=False)
        assert "failed 3 times" in story["sentences"][0]
        assert "the warehouse burnt" in story["sentences"][0]

    scenario(tmp_path)


@hosted
async def test_counts_and_waits_survive_a_restart(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.redelivery.set(await a.create("orders", transactional=True), STEADY)
    await a.send("orders", b"1")
    await fail(a, "orders")
    a = await hosts.restart(a)
    assert a.queue("orders").retry == STEADY
    await later(a, 10.1)
    await fail(a, "orders")
    a = await hosts.restart(a)
    await later(a, 20.1)
    await fail(a, "orders")
    assert await places(a, "orders", "orders;retry", "orders;poison") == [0, 0, 1]


@pytest.mark.parametrize("transactional", [True, False])
def test_a_message_may_end_as_a_dead_letter_with_the_reason(
    transactional: bool, tmp_path: Any
) -> None:
    @hosted
    async def scenario(hosts: Hosts) -> None:
        a = await hosts.start()
        queue = await a.create("orders", transactional=transactional)
        policy = STEADY._replace(attempts=1, end=End.DEAD_LETTER)
        await a.redelivery.set(queue, policy)
        await a.send("orders", b"1")
        await fail(a, "orders", "no such customer")
        (letter,) = await a.peek(TRANSACTIONAL_DEAD_LETTERS if transactional else DEAD_LETTERS)
        assert bodies([letter]) == [b"1"]
        assert "failed once; the last time: no such customer" in (letter.reason or "")
        assert queue.messages == 0

    scenario(tmp_path)


@hosted
async def test_a_message_given_back_as_failed_counts_and_others_do_not(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.redelivery.set(await a.create("orders"), STEADY)
    await a.send("orders", b"1")
    reader = Reader()
    for _ in range(5):
        messages = await a.take(reader, "orders")
        a.give_back(reader, "orders", messages)
    (message,) = await a.take(reader, "orders")
    assert message.abort_count == 0
    assert (
        a.message_receiver.fail(reader, a.queue("orders"), [message.lookup_id] * 2, "no stock") == 1
    )
    await a.redelivery.stop()
    await a.settled()
    (waiting,) = await a.peek("orders;retry")
    assert waiting.abort_count == 1


@hosted
async def test_without_a_policy_a_failure_is_counted_and_returns_to_its_place(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", b"1", b"2")
    reader = Reader()
    (message,) = await a.take(reader, "orders")
    a.message_receiver.fail(reader, a.queue("orders"), [message.lookup_id], "no")
    await a.settled()
    first, _ = await a.peek("orders")
    assert (bodies([first]), first.abort_count) == ([b"1"], 1)


@hosted
async def test_an_unread_message_has_not_failed(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.redelivery.set(await a.create("orders", transactional=True), STEADY)
    await a.send("orders", b"1")
    await fail(a, "orders", counted=False)
    assert await places(a, "orders", "orders;retry") == [1, 0]


@hosted
async def test_an_express_message_is_retried_too(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.redelivery.set(await a.create("orders"), STEADY)
    await a.send("orders", b"1", delivery=EXPRESS)
    await fail(a, "orders")
    await later(a, 10.1)
    (message,) = await a.peek("orders")
    assert message.abort_count == 1
    await fail(a, "orders")
    a = await hosts.restart(a)  # its message is lost, and its time has no effect
    await later(a, 1000)
    assert a.retry_release._next_ms is None


@hosted
async def test_a_message_that_an_operator_moved_away_stays_there(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.redelivery.set(await a.create("orders"), STEADY)
    await a.create("others")
    await a.send("orders", b"1", b"2")
    await fail(a, "orders")
    await fail(a, "orders")
    first, _ = await a.peek("orders;retry")
    choice = Choice(lookup_ids=[first.lookup_id])
    await a.mover.move(a.queue("orders;retry"), "others", choice, Piece())
    await later(a, 10.1)
    assert await places(a, "orders", "orders;retry", "others") == [1, 0, 1]


@hosted
async def test_a_taken_message_waits_until_it_is_free(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.redelivery.set(await a.create("orders"), STEADY)
    await a.send("orders", b"1", b"2")
    await fail(a, "orders")
    await fail(a, "orders")
    reader = Reader()
    taken = await a.take(reader, "orders;retry")
    await later(a, 10.1)
    assert await places(a, "orders", "orders;retry") == [1, 1]
    a.give_back(reader, "orders;retry", taken)
    await later(a, 5.1)
    assert await places(a, "orders", "orders;retry") == [2, 0]


@hosted
async def test_the_policy_goes_with_its_queue(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.redelivery.set(await a.create("orders"), STEADY)
    await a.queue_deletion.delete(a.queue("orders"), dry_run=False)
    a = await hosts.restart(a)
    queue = await a.create("orders")
    assert queue.retry is None
    await a.redelivery.set(queue, STEADY)
    await a.redelivery.set(queue, None)
    a = await hosts.restart(a)
    assert a.queue("orders").retry is None
    with pytest.raises(Refusal, match="no retry policy of its own"):
        await a.redelivery.set(a.queue(DEAD_LETTERS), STEADY)


@pytest.mark.parametrize(
    "values",
    [
        {"attempts": -1},
        {"delay_s": float("nan")},
        {"delay_s": 5.0, "delay_max_s": 1.0},
        {"factor": 0.5},
        {"jitter": 2.0},
        {"end": "nowhere"},
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(values: dict[str, Any]) -> None:
    from qmd.control_protocol.messages import RetryProperties

    with pytest.raises(Refusal, match="retr"):
        changed(None, RetryProperties(**values))


def test_changes_of_a_policy_keep_the_other_values() -> None:
    from qmd.control_protocol.messages import RetryProperties

    assert changed(STEADY, RetryProperties(attempts=7)) == STEADY._replace(attempts=7)
    assert changed(STEADY, RetryProperties(off=True)) is None
    long = changed(None, RetryProperties(delay_s=86_400.0))
    assert long is not None
    assert long.delay_max_s == 86_400
