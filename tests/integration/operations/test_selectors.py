"""Receiving and peeking with a selector, through the client and a complete queue manager."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qmd.client import BadRequest, QueueManager, chosen, connect, new_message
from qmd.properties.values import Typed
from tests.integration.managers import Host, Hosts, hosted, until


async def send(qm: QueueManager, *bodies: bytes, **properties: Any) -> None:
    await qm.send_many([new_message("orders", body, **properties) for body in bodies])


@hosted
async def test_a_receive_takes_the_first_message_that_matches(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    async with connect(a.socket) as qm:
        await send(qm, b"west", properties={"region": "west", "weight": 3})
        await send(qm, b"east", properties={"region": "east", "weight": 3})
        await send(qm, b"express", properties={"region": "east"}, delivery="express")
        await send(qm, b"none")

        message = await qm.receive("orders", where="region = 'east'")
        assert message is not None
        assert message.body == b"east"
        found = await qm.receive_many("orders", 9, where="region IS NOT NULL")
        assert [each.body for each in found] == [b"west", b"express"]
        assert await qm.receive("orders", where="weight > 0") is None
        assert [each.body for each in await qm.peek("orders")] == [b"none"]


@hosted
async def test_a_transaction_receives_and_returns_messages_that_match(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders", transactional=True)
    async with connect(a.socket) as qm:
        for weight in range(4):
            await send(qm, b"%d" % weight, properties={"weight": weight})
        transaction = qm.transaction()
        await transaction.begin()
        found = await transaction.receive_many("orders", 9, where="weight BETWEEN 1 AND 2")
        assert [each.body for each in found] == [b"1", b"2"]
        await transaction.abort()

        async with qm.transaction():
            message = await qm.receive("orders", where="weight = 2")
            assert message is not None
            assert (message.body, message.abort_count) == (b"2", 1)
        left = [each.body async for each in qm.peek_each("orders")]
        assert left == [b"0", b"1", b"3"]


@hosted
async def test_peeks_and_cursors_stop_at_messages_that_match(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    async with connect(a.socket) as qm:
        messages = [
            new_message("orders", b"%d" % number, properties={"n": number}) for number in range(600)
        ]
        await qm.send_many(messages)
        found = [each.body async for each in qm.peek_each("orders", where="n / 100 * 100 = n")]
        assert found == [b"0", b"100", b"200", b"300", b"400", b"500"]
        async with qm.open("orders") as queue:
            cursor = queue.cursor("n >= 598")
            assert [(await cursor.next()).body, (await cursor.next()).body] == [b"598", b"599"]
            assert await cursor.next() is None
            assert (await cursor.receive()).body == b"599"
        assert (await qm.receive("orders", where="n > 400")).body == b"401"
        moved = await qm.move("orders", "orders;low", chosen(where="n < 400"))
        assert moved.messages == 400


@pytest.mark.parametrize(
    ("where", "matches"),
    [
        ("label = 'order 17' AND qmd.label LIKE 'order%'", True),
        ("priority = 5 AND qmd.priority = 5 AND JMSPriority = 6 AND amqp.priority = 6", True),
        ("priority = 'high'", False),
        ("application_tag = 99 AND body_type = 8 AND body_bytes = 4", True),
        ("class = 'normal' AND delivery = 'recoverable' AND JMSDeliveryMode = 'PERSISTENT'", True),
        ("correlation_id = '03020100-0504-0706-0809-0a0b0c0d0e0f\\7'", True),
        ("JMSCorrelationID = 'mine'", True),
        ("JMSMessageID = 'ID:5' AND amqp.message_id = 'ID:5' AND id <> 'ID:5'", True),
        ("JMSType = 'order 17' AND amqp.content_type = 'text/plain'", True),
        ("group = 'g 1' AND JMSXGroupID = 'g 1' AND JMSXGroupSeq = 3", True),
        ("sent <= arrived AND JMSTimestamp = sent AND sent > 1600000000000", True),
        ("count = 5 AND JMSXDeliveryCount = 1 AND NOT JMSRedelivered", True),
        ("abort_count = 0 AND move_count = 0 AND reason IS NULL", True),
        ("source = id", False),
        ("bytes IS NULL AND list IS NULL", True),
        ("content_type = 'own'", True),  # the application's comes first
        ("qmd.content_type = 'text/plain'", True),
    ],
)
def test_a_selector_can_refer_to_any_property(tmp_path: Any, where: str, matches: bool) -> None:
    @hosted
    async def scenario(hosts: Hosts) -> None:
        a = await hosts.start()
        await a.create("orders")
        async with connect(a.socket) as qm:
            await qm.send(
                "orders",
                b"body",
                label="order 17",
                priority=5,
                application_tag=99,
                body_type=8,
                correlation_id=bytes(range(16)) + (7).to_bytes(4, "little"),
                properties={"count": Typed("uint", 5), "bytes": b"x", "list": [1]}
                | {"content_type": "own"},
                standard={"message-id": "ID:5", "correlation-id": "mine", "group-sequence": 3},
                group="g 1",
                content_type="text/plain",
            )
            found = await qm.peek("orders", where=where)
            assert bool(found) is matches
            assert bool(await qm.receive("orders", where=where)) is matches

    scenario(tmp_path)


@hosted
async def test_long_properties_and_copies_are_searched_as_well(hosts: Hosts) -> None:
    """They are not among the first bytes of the row, which are read for others."""
    a = await hosts.start()
    for name in ("orders", "other"):
        await a.create(name)
    async with connect(a.socket) as qm:
        long = {"before": "x" * 10_000, "n": 1}
        await send(qm, b"b" * 100_000, properties=long)
        await send(qm, b"b" * 100_000, properties={"n": 2})
        both = new_message("orders,other", b"c" * 2000, properties={"n": 3})
        await qm.send_many([both])
        for where, size in (("n = 3", 2000), ("n = 1", 100_000), ("n > 0", 100_000)):
            message = await qm.receive("orders", where=where)
            assert message is not None
            assert len(message.body) == size
        choice = chosen(where="n = 3", label="x", message_class="normal")
        assert await qm.receive_chosen("other", choice) == []
        assert len(await qm.receive_chosen("other", chosen(where="n = 3"))) == 1


@hosted
async def test_a_bad_selector_is_refused_with_its_place(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    async with connect(a.socket) as qm:
        for verb in (qm.receive, qm.peek, qm.take):
            with pytest.raises(BadRequest, match="at character 10") as error:
                await verb("orders", where="region = ")
            assert error.value.code == "bad_selector"


async def waiting(a: Host, qm: QueueManager, where: str) -> asyncio.Task[Any]:
    receiving = asyncio.create_task(qm.receive("orders", where=where, timeout_s=None))
    queue = a.queue("orders")
    before = len(queue.scouts)
    await until(lambda: len(queue.scouts) > before and queue.watchers)
    return receiving


@hosted
async def test_a_search_that_waits_looks_only_at_messages_that_become_ready(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    await a.create("orders")
    pages: list[int] = []
    look = a.selective_receiver._selection._page

    async def counted(queue: Any, listed: list[int], *rest: Any, **named: Any) -> Any:
        if not listed:
            pages.append(1)
        return await look(queue, listed, *rest, **named)

    async with connect(a.socket) as qm, connect(a.socket) as other:
        await qm.send_many([new_message("orders", b"x", properties={"n": 1})] * 1000)
        receiving = await waiting(a, qm, "n = 2")
        searched = asyncio.Event()
        a.storage.batch.read_after(lambda db: None, lambda _: searched.set())
        await searched.wait()
        taken = await other.take("orders", 3)
        await other.send("orders", b"seen", properties={"n": 1})
        await until(lambda: not any(scout._noted for scout in a.queue("orders").scouts))
        a.selective_receiver._selection._page = counted

        await other.send("orders", b"wanted", properties={"n": 2}, priority=7)
        assert (await receiving).body == b"wanted"
        assert not pages, "it did not read the queue again"

        # A message that is given back is seen too.
        receiving = await waiting(a, qm, "n = 1 AND abort_count = 1")
        await taken.give_back()
        transaction = other.transaction()
        await transaction.begin()
        first = await transaction.receive("orders")
        await transaction.abort()
        assert (await receiving).lookup_id == first.lookup_id


@hosted
async def test_many_messages_while_a_search_waits_make_it_look_everywhere(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    async with connect(a.socket) as qm, connect(a.socket) as other:
        receiving = await waiting(a, qm, "n = 2")
        messages = [new_message("orders", b"", properties={"n": 1})] * 1500
        await other.send_many([*messages, new_message("orders", b"wanted", properties={"n": 2})])
        assert (await receiving).body == b"wanted"
        assert not a.queue("orders").scouts
