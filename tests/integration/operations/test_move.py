"""Moving messages between queues of one computer, in a complete queue manager."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from protocol import parse_user_message
from protocol.message_class import MessageClass
from qmd.client.choice import chosen
from qmd.control_protocol.messages import EVERY_MESSAGE, EXPRESS, Choice, Piece
from qmd.errors import Refusal
from qmd.events.header import Kind
from qmd.queues.local_queue import Reader
from storage.tables import events
from tests.integration.managers import DEAD_LETTERS, Host, Hosts, bodies, hosted
from tests.integration.remote import dial, guid, packet


async def move(
    host: Host,
    source: str,
    target: str,
    choice: Choice = EVERY_MESSAGE,
    limit: int = 1024,
    **named: Any,
) -> dict[str, Any]:
    return await host.mover.move(
        host.queue(source), target, choice, Piece(limit, **named.pop("piece", {})), **named
    )


@hosted
async def test_the_first_move_to_a_subqueue_creates_it(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders", transactional=True)
    await a.send("orders", b"1", b"2", b"3")

    done = await move(a, "orders", "orders;retry", limit=2)

    assert done["messages"] == 2
    retry = a.queue("orders;retry")
    assert (retry.name, retry.transactional) == ("private$\\orders;retry", True)
    assert bodies(await a.peek("orders;retry")) == [b"1", b"2"]
    assert bodies(await a.peek("orders")) == [b"3"]
    moved = (await a.peek("ORDERS;Retry"))[0]
    assert moved.move_count == 1
    assert moved.last_move_at_ms == pytest.approx(a.environment.time() * 1000, abs=5000)


@hosted
async def test_a_move_survives_a_restart(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", b"1", b"2")
    await move(a, "orders", "orders;retry", limit=1)

    a = await hosts.restart(a)

    assert a.queue("orders;retry").parent is a.queue("orders")
    (moved,) = await a.peek("orders;retry")
    assert (bodies([moved]), moved.move_count) == ([b"1"], 1)
    assert await a.receive("orders;retry") == [b"1"]
    assert await a.receive("orders") == [b"2"]


@hosted
async def test_a_message_that_is_moved_away_and_back_keeps_its_place(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", b"1", b"2", b"3")
    first = (await a.peek("orders"))[0].lookup_id
    await move(a, "orders", "orders;retry", chosen(lookup_ids=[first]))
    assert (await a.peek("orders;retry"))[0].lookup_id == first

    await move(a, "orders;retry", "orders")

    assert await a.receive("orders") == [b"1", b"2", b"3"]


@hosted
async def test_waiting_readers_of_the_target_get_moved_messages(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.create("other")
    await a.send("orders", b"1")
    waiting = a.taking(Reader(), "other", 1, 5.0)

    await move(a, "orders", "other")

    assert bodies(await waiting) == [b"1"]


@hosted
async def test_express_messages_are_moved_and_keep_their_order(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", b"1")
    await a.send("orders", b"2", delivery=EXPRESS)
    await a.send("orders", b"3")
    await a.send("orders", b"4", delivery=EXPRESS, priority=7)

    assert (await move(a, "orders", "orders;retry"))["messages"] == 4

    assert a.queue("orders").messages == 0
    assert await a.receive("orders;retry") == [b"4", b"1", b"2", b"3"]


@hosted
async def test_a_queue_longer_than_the_window_is_moved_in_pieces_and_in_order(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.create("other")
    expected = [b"%d" % number for number in range(6000)]
    await a.send("orders", *expected)

    start: int | None = 0
    until = pieces = 0
    while start is not None:
        done = await move(a, "orders", "other", limit=9999, piece={"start": start, "until": until})
        start, until, pieces = done["next"], done["until"], pieces + 1

    assert pieces == 6
    assert a.queue("orders").messages == 0
    received: list[bytes] = []
    while part := await a.receive("other"):
        received += part
    assert received == expected


@hosted
async def test_messages_are_selected_by_their_properties(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    ids = await a.send("orders", b"1", label="red apples")
    await a.send("orders", b"2", label="Green apples")
    await a.send("orders", b"3", label="green pears")

    assert (await move(a, "orders", "orders;a", chosen(label="GREEN apple")))["messages"] == 1
    assert (await move(a, "orders", "orders;b", chosen(ids=ids)))["messages"] == 1

    assert [await a.receive(f"orders{name}") for name in (";a", ";b", "")] == [
        [b"2"],
        [b"1"],
        [b"3"],
    ]


@hosted
async def test_a_taken_message_is_skipped_or_refused_if_it_is_named(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", b"1", b"2")
    reader = Reader()
    (taken,) = await a.take(reader, "orders")

    with pytest.raises(Refusal, match="taken by an application") as refused:
        await move(a, "orders", "orders;retry", chosen(lookup_ids=[taken.lookup_id]))
    assert refused.value.code == "message_taken"
    done = await move(a, "orders", "orders;retry")
    assert (done["messages"], done["taken"]) == (1, 1)
    await a.removing(reader, "orders", [taken])
    assert await a.receive("orders;retry") == [b"2"]


@hosted
async def test_all_named_messages_are_moved_or_none(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", b"1", b"2")
    here = [message.lookup_id for message in await a.peek("orders")]

    with pytest.raises(Refusal, match="no message with the lookup id") as refused:
        await move(a, "orders", "orders;retry", chosen(lookup_ids=[*here, 99]))
    assert refused.value.code == "no_such_message"

    assert await a.receive("orders") == [b"1", b"2"]


@hosted
async def test_a_named_message_that_is_received_meanwhile_stops_the_move(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", b"1", b"2")
    here = [message.lookup_id for message in await a.peek("orders")]
    chosen_before = await a.selection.choose(a.queue("orders"), chosen(lookup_ids=here), Piece())
    reader = Reader()
    await a.removing(reader, "orders", await a.take(reader, "orders"))
    await move(a, "orders", "orders;retry", limit=1)
    await move(a, "orders;retry", "orders")

    # The second half of a move that has chosen its messages before these changes.
    with pytest.raises(Exception) as gone:  # noqa: PT011 - it never leaves `move`
        await a.mover._move(
            a.queue("orders"), a.queue("orders;retry"), chosen_before, b"", is_named=True
        )

    assert gone.value.lookup_ids == {here[0]}  # type: ignore[attr-defined]
    assert await a.receive("orders") == [b"2"]


@hosted
async def test_a_transactional_message_is_moved_only_to_transactional_queues(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders", transactional=True)
    await a.create("plain")
    await a.send("orders", b"1")
    await a.send("plain", b"2")

    with pytest.raises(Refusal, match=r"is transactional, and private\$.plain is not"):
        await move(a, "orders", "plain")
    with pytest.raises(Refusal, match=r"is not transactional, and private\$.orders is"):
        await move(a, "plain", "orders;retry")

    assert "private$\\orders;retry" not in a.queues.by_key


@hosted
async def test_nothing_is_moved_into_a_dead_letter_queue_or_onto_itself(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", b"1")

    with pytest.raises(Refusal, match="journal or dead-letter queue"):
        await move(a, "orders", DEAD_LETTERS)
    with pytest.raises(Refusal, match="already"):
        await move(a, "orders", "ORDERS")
    with pytest.raises(Refusal, match="no queue"):
        await move(a, "orders", "nowhere;retry")


@hosted
async def test_subqueues_count_towards_the_quota_of_their_queue(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("other", quota_bytes=100_000)
    await a.create("orders", quota_bytes=1000)
    await a.send("orders", bytes(300))
    await a.send("other", bytes(700))

    await move(a, "orders", "orders;retry")
    with pytest.raises(Refusal, match=r"private\$.orders is full"):
        await a.send("orders", bytes(500))
    with pytest.raises(Refusal, match=r"private\$.orders is full"):
        await move(a, "other", "orders;retry")

    await move(a, "orders;retry", "other")
    await a.send("orders", bytes(500))


@hosted
async def test_a_dry_run_reports_the_selected_messages_and_moves_none(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", b"1", b"2", b"3")

    would = await move(a, "orders", "orders;retry", limit=2, dry_run=True)

    assert would["messages"] == 2
    assert "private$\\orders;retry" not in a.queues.by_key
    assert a.queue("orders").messages == 3


@hosted
async def test_a_dead_letter_that_is_moved_to_a_queue_is_a_normal_message(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", b"late", time_to_be_received_s=1)
    a.world.ahead_s = 10
    await hosts.reap(a)
    (dead,) = await a.peek(DEAD_LETTERS)
    assert dead.reason

    await move(a, DEAD_LETTERS, "orders")

    (alive,) = await a.peek("orders")
    assert alive.reason is None
    assert parse_user_message(alive.packet).properties.message_class == MessageClass.NORMAL
    await hosts.reap(a)
    assert await a.receive("orders") == [b"late"]


@hosted
async def test_messages_in_a_subqueue_expire_like_those_in_its_queue(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", b"late", time_to_be_received_s=60)
    await move(a, "orders", "orders;retry")

    a.world.ahead_s = 100
    await hosts.reap(a)

    assert a.queue("orders;retry").messages == 0
    assert bodies(await a.peek(DEAD_LETTERS)) == [b"late"]


@hosted
async def test_sends_to_a_subqueue_are_refused_locally_and_from_peers(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", b"1")
    await move(a, "orders", "orders;retry")

    with pytest.raises(Refusal) as refused:
        await a.send("orders;retry", b"2")
    assert refused.value.code == "queue_read_only"
    remote = await dial(a, guid(7))
    remote.send(packet(b"3", source=guid(7), number=1, queue="orders;retry"))
    await a.settled()
    while not a.queue(DEAD_LETTERS).messages:
        await a.settled()

    (refused_there,) = await a.peek(DEAD_LETTERS)
    assert (
        parse_user_message(refused_there.packet).properties.message_class
        == MessageClass.NACK_BAD_DESTINATION_QUEUE
    )
    assert await a.receive("orders;retry") == [b"1"]


@hosted
async def test_deleting_a_queue_deletes_its_subqueues(hosts: Hosts) -> None:
    a = await hosts.start()
    queue = await a.create("orders")
    await a.send("orders", b"1", b"2", b"3")
    await move(a, "orders", "orders;retry", limit=1)
    await move(a, "orders", "orders;poison", limit=1)

    assert (await a.queue_deletion.delete(queue)).messages == 3

    assert [each.name for each in a.queues.by_key.values() if each.parent] == []
    a = await hosts.restart(a)
    assert [each.name for each in a.queues.by_key.values() if each.parent] == []


@hosted
async def test_a_subqueue_can_be_deleted_alone(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders", quota_bytes=1000)
    await a.send("orders", bytes(600))
    await move(a, "orders", "orders;retry")

    assert (await a.queue_deletion.delete(a.queue("orders;retry"))).messages == 1

    await a.send("orders", bytes(600))
    assert a.queue("orders").subqueues == []


@hosted
async def test_a_move_is_recorded_with_its_queues(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    (sent,) = await a.send("orders", b"1")
    await move(a, "orders", "orders;retry")

    number = int(sent.rpartition("\\")[2])
    reported = await a.storage.read(
        partial(events.of_message, source=a.id, number=number, events_max=100)
    )

    (moved,) = [event for event in reported if event.kind == Kind.MOVED]
    assert (moved.queue, moved.to_queue) == ("private$\\orders", "private$\\orders;retry")


@hosted
async def test_the_outcome_of_a_move_is_known_by_its_token(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", b"1", b"2")

    done = await move(a, "orders", "orders;retry", limit=1, token=b"token")

    assert await a.request_outcomes.outcome(b"token") == done


@hosted
async def test_a_moved_message_keeps_its_abort_count(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders", transactional=True)
    await a.send("orders", b"1")
    a.transactions.begin(b"t" * 16, a, 10.0)
    done: asyncio.Future[Any] = a.loop.create_future()
    a.transactions.take(b"t" * 16, a, a.queue("orders"), 1, 0.0, done.set_result)
    await done

    a.transactions.abort(b"t" * 16, a, "")
    await move(a, "orders", "orders;retry")

    (moved,) = await a.take(Reader(), "orders;retry")
    assert (moved.abort_count, moved.move_count) == (1, 1)


@hosted
async def test_a_subqueue_without_its_queue_becomes_an_independent_queue(hosts: Hosts) -> None:
    a = await hosts.start()
    queue = await a.create("orders")
    await a.send("orders", b"1")
    await move(a, "orders", "orders;retry")
    await a.storage.batch.run(lambda db: db.execute("DELETE FROM queue WHERE id = ?", (queue.id,)))

    a = await hosts.restart(a)

    assert await a.receive("orders;retry") == [b"1"]
