"""Ranges that are read without a reader: order, filters, and reasons of dead letters."""

from __future__ import annotations

from typing import Any

from protocol.message_class import MessageClass
from qmd.client.pipeline import each_message
from qmd.control_protocol import messages as frames
from qmd.control_protocol.bulk import EVERYTHING, Filter
from qmd.control_protocol.messages import EXPRESS, Choice
from tests.integration.bulk.reader import numbered
from tests.integration.managers import Host, Hosts, bodies, hosted

# Ranges without a reader.


async def read(host: Host, queue: str, after: int = 0, until: int = 0, **how: Any) -> list[bytes]:
    how = {"limit": 3, "bytes_max": 1 << 20, "wanted": EVERYTHING, "bodies": True, **how}
    found: list[bytes] = []
    following: int | None = after
    while following is not None:
        rows = await host.ranges.read(host.queue(queue), following, until, **how)
        until = rows.until
        found += bodies([message for _, message in each_message(rows)])
        following = rows.next
    return found


@hosted
async def test_a_queue_is_read_in_the_order_of_arrival_without_taking_messages(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    await a.create("orders")
    for number in range(10):
        delivery = EXPRESS if number % 3 == 0 else frames.RECOVERABLE
        await a.send("orders", b"%d" % number, priority=number % 8, delivery=delivery)
    assert await read(a, "orders") == numbered(10)
    for parts in (1, 2, 4):
        split = await a.ranges.split(a.queue("orders"), parts, 0, 0)
        await a.send("orders", b"later")
        together: list[bytes] = []
        for after, until, _ in split["ranges"]:
            together += await read(a, "orders", after, until)
        assert [each for each in together if each != b"later"] == numbered(10)
    assert a.queue("orders").messages == 13


@hosted
async def test_filters_are_applied_by_the_queue_manager(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders", transactional=True)
    await a.send("orders", *numbered(4), label="green")
    await a.send("orders", *numbered(4, 4), label="red")
    red = Filter(Choice(label="RED"))
    assert await read(a, "orders", wanted=Filter(sequence_id=(1 << 64) - 1)) == []
    assert await read(a, "orders", wanted=red) == numbered(4, 4)
    assert await read(a, "orders", wanted=Filter(Choice(message_class="normal"))) == numbered(8)
    rows = await a.ranges.read(
        a.queue("orders"), 0, 0, limit=100, bytes_max=1 << 20, wanted=red, bodies=False
    )
    [packet, *_] = [message.packet for _, message in each_message(rows)]
    whole = (await a.peek("orders", limit=5))[4].packet
    assert whole.startswith(packet)
    assert len(whole) - len(packet) == 4  # "4", and padding


@hosted
async def test_dead_letters_are_read_with_their_reasons(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", b"old", time_to_be_received_s=1, dead_letter=True)
    a.world.ahead_s += 10
    await hosts.reap(a)
    rows = await a.ranges.read(
        a.queue("system$;deadletter"),
        0,
        0,
        limit=9,
        bytes_max=1 << 20,
        wanted=EVERYTHING,
        bodies=True,
    )
    assert rows.reasons is not None
    assert "time-to-be-received" in str(rows.reasons[0]) or rows.reasons[0]
    assert await read(
        a,
        "system$;deadletter",
        wanted=Filter(Choice(message_class=MessageClass.NACK_RECEIVE_TIMEOUT.name.lower())),
    ) == [b"old"]
