"""Delayed messages over the control protocol: rights to cancel them, and topics."""

from __future__ import annotations

from qmd.access.demands import ADMIN, READ, WRITE
from qmd.control_protocol.delayed import CancelDelayed, ListDelayed
from qmd.control_protocol.messages import NewMessage, Refused, Send
from qmd.control_protocol.topics import CreateTopic, Subscribe
from tests.integration.control.verb_tries import World
from tests.integration.managers import Hosts, hosted

HOUR_MS = 3_600_000


@hosted
async def test_a_client_cancels_its_own_delayed_messages_only(hosts: Hosts) -> None:
    host = await hosts.start()
    world = World(host)
    await world.server.listen()
    try:
        await host.create("orders")
        mine, other = await world.log_in(READ, WRITE), await world.log_in(READ, WRITE)
        operator = await world.log_in(READ, WRITE, ADMIN, queues=("orders",))
        later = NewMessage("orders", b"1", delay_ms=HOUR_MS)
        one, two = await mine.done(Send, [later, later])

        refused = await other.ask(CancelDelayed, [one])
        assert isinstance(refused, Refused)
        assert refused.code == "scope_missing"
        assert host.delayed.totals[0] == 2
        assert await mine.done(CancelDelayed, [one]) == [one]
        assert await operator.done(CancelDelayed, [one, two]) == [two]
        assert (await mine.done(ListDelayed, "orders"))["messages"] == []
    finally:
        await world.close()


@hosted
async def test_a_delayed_message_to_a_topic_reaches_each_subscription(hosts: Hosts) -> None:
    host = await hosts.start()
    world = World(host)
    await world.server.listen()
    try:
        client = await world.connect()
        await client.done(CreateTopic, "news")
        for name in ("one", "two"):
            await host.create(name)
            await client.done(Subscribe, "news", f"to {name}", name)
        await client.done(Send, [NewMessage("topic:news", b"x" * 700, delay_ms=1000)])
        assert await host.receive("one") == []
        host.world.ahead_s += 2
        while await host.delayed_release.release():
            pass
        for name in ("one", "two"):
            assert await host.receive(name) == [b"x" * 700]
    finally:
        await world.close()
