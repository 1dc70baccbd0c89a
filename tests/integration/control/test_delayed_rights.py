"""Delayed messages over the control protocol: rights to cancel them, and topics."""

from __future__ import annotations

from qmd.access.demands import ADMIN, READ, WRITE
from qmd.control_protocol.access import ChangeAccess
from qmd.control_protocol.delayed import CancelDelayed, ListDelayed
from qmd.control_protocol.messages import NewMessage, Refused, Send
from qmd.control_protocol.operations import CreateQueue, DeleteQueue
from qmd.control_protocol.topics import CreateTopic, Subscribe
from tests.integration.control.test_local_users import ANN, BOB, user
from tests.integration.control.verb_tries import World
from tests.integration.managers import DEAD_LETTERS, Hosts, hosted
from tests.users import needs_root

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


@needs_root
@hosted
async def test_a_delayed_message_does_not_enter_a_closed_queue_of_the_same_name(
    hosts: Hosts,
) -> None:
    host = await hosts.start()
    ann, bob = await user(host, ANN), await user(host, BOB)
    names = ("closed", "open", "granted")
    for name in (*names, "mine"):
        await ann.done(CreateQueue, name)
        await ann.done(Send, [NewMessage(name, name.encode(), delay_ms=HOUR_MS)])
    await ann.done(Send, [NewMessage("closed,open", b"copies", delay_ms=HOUR_MS)])
    host.world.ahead_s += 2
    for name in names:
        await ann.done(DeleteQueue, name)
        await bob.done(CreateQueue, name)
        if name != "open":
            await bob.done(ChangeAccess, "revoke", "everyone", "send", name)
    await bob.done(ChangeAccess, "grant", f"user:{ANN}", "send", "granted")
    await ann.done(ChangeAccess, "revoke", "everyone", "send", "mine")
    host.world.ahead_s += 3600
    while await host.delayed_release.release():
        pass
    await host.settled()

    assert await host.receive("closed") == []
    assert await host.receive("open") == [b"open", b"copies"]
    assert await host.receive("granted") == [b"granted"]
    assert await host.receive("mine") == [b"mine"]
    assert sorted(await host.receive(DEAD_LETTERS)) == [b"closed", b"copies"]
    ann.close(), bob.close()
