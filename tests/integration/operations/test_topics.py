"""Topics: a message goes to the queues of all matching subscriptions, in one commit."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from qmd.client import (
    NoSuchQueue,
    QueueManager,
    QueueManagerError,
    SentId,
    TransactionDoomed,
    blocking,
    connect,
)
from tests.integration.managers import Host, Hosts, hosted, until


async def news(hosts: Hosts, **more: Any) -> Host:
    """Start a host with a topic and three subscriptions."""
    a = await hosts.start()
    async with connect(a.socket) as qm:
        for name in ("all", "east", "heavy", "others"):
            await qm.create_queue(name)
        await qm.topics.create("News", **more)
        await qm.topics.subscribe("news", "all", "all")
        await qm.topics.subscribe("topic:NEWS", "east", "east", where="region = 'east'")
        await qm.topics.subscribe("news", "heavy", "heavy", where="weight > 3 OR label LIKE '%!'")
    return a


async def bodies(qm: QueueManager, queue: str) -> list[bytes]:
    return [message.body for message in await qm.receive_many(queue, 99)]


@hosted
async def test_a_message_goes_to_each_subscription_that_matches(hosts: Hosts) -> None:
    a = await news(hosts)
    async with connect(a.socket) as qm:
        both = await qm.send("topic:news", b"1", properties={"region": "east", "weight": 5})
        assert isinstance(both, SentId)
        assert len(both.copies) == 3
        await qm.send("TOPIC:news", b"2", properties={"region": "west"})
        await qm.send("topic:news", b"3", label="urgent!")
        assert await bodies(qm, "east") == [b"1"]
        assert await bodies(qm, "heavy") == [b"1", b"3"]
        received = await qm.receive_many("all", 9)
        assert [each.body for each in received] == [b"1", b"2", b"3"]
        assert received[0].properties == {"region": "east", "weight": 5}
        assert received[0].standard_properties == {"to": "topic:News"}
        assert await qm.receive("all", where="amqp.to = 'topic:News'") is None
        story = await qm.why(both.copies[1])
        assert story["sentences"]


@hosted
async def test_topics_and_subscriptions_survive_a_restart(hosts: Hosts) -> None:
    a = await news(hosts, unmatched="others")
    async with connect(a.socket) as qm:
        await qm.topics.subscribe("news", "EAST", "others", where="region = 'north'")
        await qm.topics.unsubscribe("news", "heavy")
        assert len((await qm.topics.show("news"))["subscriptions"]) == 2
    a = await hosts.restart(a)
    async with connect(a.socket) as qm:
        [topic] = await qm.topics.list_all()
        assert (topic["name"], topic["unmatched"]) == ("News", "others")
        assert [(each["destination"], each["where"]) for each in topic["subscriptions"]] == [
            ("all", ""),
            ("others", "region = 'north'"),
        ]
        await qm.send("topic:news", b"1", properties={"region": "north"})
        assert await bodies(qm, "all") == await bodies(qm, "others") == [b"1"]
        await qm.topics.delete("news")
        assert await qm.topics.list_all() == []
    a = await hosts.restart(a)
    async with connect(a.socket) as qm:
        with pytest.raises(NoSuchQueue) as error:
            await qm.send("topic:news", b"2")
        assert error.value.code == "no_such_topic"
        for destination in ("all,topic:news", "topic:news,all"):
            with pytest.raises(NoSuchQueue, match="a topic is a destination alone"):
                await qm.send(destination, b"2")
        with pytest.raises(NoSuchQueue, match="a topic of another host"):
            await qm.send("topic:news@hostb", b"2")
        assert await bodies(qm, "all") == []


@hosted
async def test_a_message_of_no_subscription_is_refused_or_goes_elsewhere(hosts: Hosts) -> None:
    a = await news(hosts)
    async with connect(a.socket) as qm:
        await qm.topics.unsubscribe("news", "all")
        with pytest.raises(NoSuchQueue) as error:
            await qm.send("topic:news", b"1")
        assert error.value.code == "no_subscription"
        await qm.topics.create("news", unmatched="others")
        await qm.send("topic:news", b"2")
        await qm.send("topic:news", b"3", properties={"region": "east"})
        assert await bodies(qm, "others") == [b"2"]
        assert await bodies(qm, "east") == [b"3"]


@hosted
async def test_a_message_goes_to_all_subscriptions_or_to_none(hosts: Hosts) -> None:
    a = await news(hosts)
    async with connect(a.socket) as qm:
        await qm.delete_queue("east")
        with pytest.raises(NoSuchQueue, match="element 2 of 2"):
            await qm.send("topic:news", b"1", properties={"region": "east"})
        assert await bodies(qm, "all") == []
        await qm.send("topic:news", b"2")
        assert await bodies(qm, "all") == [b"2"]


@hosted
async def test_topics_in_transactions_and_with_tokens(hosts: Hosts) -> None:
    a = await hosts.start()
    async with connect(a.socket) as qm:
        for name in ("one", "two"):
            await qm.create_queue(name, transactional=True)
        await qm.topics.create("news")
        await qm.topics.subscribe("news", "1", "one")
        await qm.topics.subscribe("news", "2", "two", where="n = 2")
        async with qm.transaction() as transaction:
            await transaction.send("topic:news", b"1", properties={"n": 1})
            await transaction.send("topic:news", b"2", properties={"n": 2})
            # Subscriptions count at the send, as the members of a list do.
            await qm.topics.unsubscribe("news", "2")
        assert await bodies(qm, "one") == [b"1", b"2"]
        assert await bodies(qm, "two") == [b"2"]
        token = os.urandom(16)
        sent = await qm.send("topic:news", b"3", token=token)
        assert await qm.outcome(token) == [sent]
        first = await qm.send_once("topic:news", b"4", deduplication_id="4")
        assert first == await qm.send_once("topic:news", b"4", deduplication_id="4")
        assert await bodies(qm, "one") == [b"3", b"4"]
        await qm.topics.unsubscribe("news", "1")
        transaction = qm.transaction()
        await transaction.begin()
        with pytest.raises(NoSuchQueue):
            await transaction.send("topic:news", b"5")
        with pytest.raises(TransactionDoomed):
            await transaction.commit()


@hosted
async def test_a_subscription_delivers_to_another_host(hosts: Hosts) -> None:
    a, b = await hosts.start("a"), await hosts.start("b")
    elsewhere = f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\far"
    async with connect(a.socket) as qm, connect(b.socket) as other:
        await qm.create_queue("near")
        await other.create_queue("far")
        await qm.topics.create("news")
        await qm.topics.subscribe("news", "far", elsewhere, where="n > 1")
        await qm.topics.subscribe("news", "near", "near")
        for number in (1, 2):
            await qm.send("topic:news", b"%d" % number, properties={"n": number}, group="g")
        message = await other.receive("far", timeout_s=None)
        assert message is not None
        assert (message.body, message.properties, message.group) == (b"2", {"n": 2}, "g")
        assert await bodies(qm, "near") == [b"1", b"2"]
        await until(
            lambda: not a.outgoing.queues or all(not queue.messages for queue in a.outgoing.queues)
        )


@hosted
async def test_bad_topics_and_subscriptions_are_refused(hosts: Hosts) -> None:
    a = await news(hosts)
    async with connect(a.socket) as qm:
        for work, code in (
            (qm.topics.create(""), "bad_topic_name"),
            (qm.topics.create("a,b"), "bad_topic_name"),
            (qm.topics.create("x" * 101), "bad_topic_name"),
            (qm.topics.create("x", unmatched="none+such"), "name_not_understood"),
            (qm.topics.subscribe("none", "a", "all"), "no_such_topic"),
            (qm.topics.subscribe("news", "a\0", "all"), "bad_topic_name"),
            (qm.topics.subscribe("news", "a", "none-such"), "no_such_queue"),
            (qm.topics.subscribe("news", "a", "topic:news"), "topic_in_topic"),
            (qm.topics.subscribe("news", "a", "all", where="="), "bad_selector"),
            (qm.topics.unsubscribe("news", "a"), "no_such_subscription"),
            (qm.topics.delete("none"), "no_such_topic"),
            (qm.topics.show("none"), "no_such_topic"),
        ):
            with pytest.raises(QueueManagerError) as error:
                await work
            assert error.value.code == code
        assert len((await qm.topics.show("news"))["subscriptions"]) == 3


@hosted
async def test_the_blocking_client_has_topics(hosts: Hosts) -> None:
    a = await news(hosts)

    def work() -> None:
        with blocking.connect(a.socket) as qm:
            qm.topics.subscribe("news", "more", "others", where="region = 'south'")
            qm.send("topic:news", b"1", properties={"region": "south"})
            assert qm.receive("others").body == b"1"

    await asyncio.to_thread(work)
