"""Messages of doors get the packets and events of messages that are sent one by one."""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec
import pytest

from protocol import parse_user_message
from protocol.identifiers import guid_text
from qmd.control_protocol.messages import RECOVERABLE, TRANSACTIONAL, NewMessage, StoredMessage
from qmd.errors import Refusal
from qmd.properties.block import with_properties
from qmd.properties.trace import TRACEPARENT
from qmd.properties.values import MessageProperties
from storage.tables import outgoing as outgoing_rows
from tests.integration.bulk.stages import sent_events
from tests.integration.managers import Host, Hosts, hosted, until

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACED = with_properties(MessageProperties({TRACEPARENT: PARENT}))


def messages(queue: str) -> list[NewMessage]:
    """Return messages of three shapes, with all the fields that differ within a shape."""
    found = [
        NewMessage(
            queue,
            b"x" * number,
            label="ä" * (number % 3),
            body_type=number % 2 * 31,
            correlation_id=bytes([number]) * 20 if number % 4 == 0 else b"",
            application_tag=number,
            extension=b"e" * (number % 5),
        )
        for number in range(12)
    ]
    found += [NewMessage(queue, b"urgent", priority=6)] * 4
    return found + [NewMessage(queue, b"short", time_to_be_received_s=1000, journal=True)] * 4


async def uniform(a: Host, *sent: NewMessage) -> list[object]:
    durable = asyncio.get_running_loop().create_future()
    a.components.link_records.send(list(sent), [], 1, durable.set_result, "")
    return list(await durable)


def contents(stored: list[StoredMessage]) -> list[tuple[object, ...]]:
    """Return everything but the message numbers, times, queues, and indexes of transactions."""
    found = []
    for each in stored:
        packet = parse_user_message(each.packet)
        user, transaction = packet.user, packet.transaction
        fields = (user.flags, user.time_to_be_received, packet.base.flags, packet.base.packet_size)
        marks = None if transaction is None else int(transaction.flags) & 0xF
        found.append((packet.properties, *fields, marks, each.expires_at_s is None))
    return found


@hosted
async def test_alike_messages_have_the_packets_of_single_ones(hosts: Hosts) -> None:
    a = await hosts.start()
    for transactional in (False, True):
        one, other = f"one{transactional}", f"two{transactional}"
        await a.create(one, transactional=transactional)
        await a.create(other, transactional=transactional)
        assert await uniform(a, *messages(one)) == []
        for each in messages(other):
            await a.handed_over([each])
        expected = contents(await a.peek(other))
        assert len(expected) == 20
        assert contents(await a.peek(one)) == expected


@hosted
async def test_alike_messages_have_the_events_of_single_ones(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await uniform(a, *messages("orders"))
    first = [number for each in await sent_events(a) for number in each.numbers]
    stored = [
        parse_user_message(each.packet).user.message_number for each in await a.peek("orders")
    ]
    assert sorted(first) == sorted(stored)


@hosted
async def test_messages_that_differ_too_much_or_are_traced_are_sent_one_by_one(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    await a.create("orders")
    alone = [NewMessage("orders", b"", priority=number) for number in range(6)]
    traced = [NewMessage("orders", b"", extension=TRACED)] * 6
    for sent in (alone, traced):
        assert len(await uniform(a, *sent)) == 6
    assert await uniform(a, *[NewMessage("orders", b"")] * 6) == []
    assert a.queue("orders").messages == 18


@hosted
async def test_all_messages_or_none_are_sent(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    good = [NewMessage("orders", b"good")] * 6
    for bad in (
        NewMessage("missing", b""),
        NewMessage("orders", b"", label="x" * 300),
        NewMessage("orders", b"", correlation_id=b"short"),
    ):
        with pytest.raises(Refusal):
            await uniform(a, *good, *[bad] * 6)
    assert a.queue("orders").messages == 0


@hosted
async def test_a_request_of_an_application_gets_its_ids_before_others_get_the_messages(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    await a.create("orders")
    order: list[object] = []
    queue = a.queue("orders")
    queue.on_ready = lambda _: order.append("ready")
    durable = asyncio.get_running_loop().create_future()

    def done(ids: list[object]) -> None:
        order.append("answered")
        durable.set_result(ids)

    a.components.uniform_sender.send(messages("orders"), b"token", done)
    ids = await durable
    await until(lambda: len(order) > 1, "delivered messages")
    stored = [parse_user_message(each.packet).user for each in await a.peek("orders")]
    own = guid_text(a.components.services.id)
    assert sorted(ids) == sorted(f"{own}\\{user.message_number}" for user in stored)
    assert order == ["answered", "ready"]
    outcome = await a.components.request_outcomes.outcome(b"token", 1)
    assert outcome == ids


@hosted
async def test_few_or_different_messages_of_an_application_are_sent_too(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    for sent in (
        [NewMessage("orders", b"few")] * 2,
        [NewMessage("orders", b"", priority=number) for number in range(8)],
        [NewMessage("orders", b"", extension=TRACED)] * 10,
    ):
        durable = asyncio.get_running_loop().create_future()
        a.components.uniform_sender.send(sent, b"", durable.set_result)
        assert len(await durable) == len(sent)
    assert a.queue("orders").messages == 20


@hosted
async def test_packets_of_a_sequence_have_their_places_and_are_those_of_single_ones(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    one, other = (f"DIRECT=TCP:127.0.0.1:9\\private$\\{name}" for name in ("one", "two"))
    for _ in range(2):
        durable = asyncio.get_running_loop().create_future()
        sent = [msgspec.structs.replace(each, delivery=TRANSACTIONAL) for each in messages(one)]
        a.components.uniform_sender.send(sent, b"", durable.set_result)
        await durable
        for each in messages(other):
            await a.handed_over([msgspec.structs.replace(each, delivery=TRANSACTIONAL)])
    found = []
    for destination in (one, other):
        queue = a.sending_to(destination)
        rows = await a.storage.read(partial(outgoing_rows.page, outgoing_id=queue.id))
        parsed = [parse_user_message(row.packet) for row in rows]
        places = [each.transaction for each in parsed if each.transaction is not None]
        assert [each.sequence_number for each in places] == list(range(1, 41))
        assert [each.previous_number for each in places] == list(range(40))
        assert {each.sequence_id for each in places} == {queue.sequence.sequence_id}
        found.append([(each.properties, int(each.transaction.flags) & 0xF) for each in parsed])
    assert found[0] == found[1]


@hosted
async def test_a_lack_of_memory_for_the_messages_leaves_no_answer(hosts: Hosts) -> None:
    """The batch is committed with what other requests have put into it."""
    a = await hosts.start()
    await a.create("orders")
    answers: list[object] = []
    ids = a.components.services.ids

    def fail(level: int, count: int) -> list[int]:
        raise MemoryError

    whole, ids.next_lookup_ids = ids.next_lookup_ids, fail  # type: ignore[method-assign]
    try:
        with pytest.raises(MemoryError):
            a.components.uniform_sender.send(messages("orders"), b"token", answers.append)
    finally:
        ids.next_lookup_ids = whole  # type: ignore[method-assign]

    await a.send("orders", b"of another", delivery=RECOVERABLE)
    assert answers == []
    assert await a.components.request_outcomes.outcome(b"token", 1) is None
