"""Bridges to Kafka, against the mock cluster of librdkafka: no package has a broker.

The mock keeps records and offsets and answers transactions, but shows aborted records too, and ends
with this process: kills of the broker are not tested.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.bridge.bridges import Bridges
from tests.process.harness import Daemon, body


class Cluster:
    """The mock cluster, inside a client."""

    def __init__(self) -> None:
        from confluent_kafka import Producer

        self.producer = Producer({"test.mock.num.brokers": 1, "log_level": 0})
        brokers = self.producer.list_topics(timeout=10).brokers
        self.servers = ",".join(f"{each.host}:{each.port}" for each in brokers.values())
        for topic in ("shop-out", "shop-in"):
            self.producer.list_topics(topic, timeout=10)  # creates it

    def publish(self, topic: str, first: int, last: int, partition: int = 0) -> None:
        for number in range(first, last + 1):
            headers = [("region", b"east")]
            self.producer.produce(topic, b"%d" % number, headers=headers, partition=partition)
        assert self.producer.flush(10) == 0

    def records(self, topic: str) -> list[Any]:
        """Return all records of a topic."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": "test", "log_level": 0})
        partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        places = [TopicPartition(topic, each, 0) for each in partitions]
        wanted = sum(consumer.get_watermark_offsets(each, timeout=10)[1] for each in places)
        consumer.assign(places)
        found: list[Any] = []
        while len(found) < wanted and (some := consumer.consume(1000, timeout=2.0)):
            found += [each for each in some if each.error() is None]
        consumer.close()
        return found


@pytest.fixture
def cluster() -> Cluster:
    pytest.importorskip("confluent_kafka")
    return Cluster()


def definitions(cluster: Cluster) -> dict[str, dict[str, Any]]:
    common = {"kind": "kafka", "servers": cluster.servers, "batch": 20}
    return {
        "out": {**common, "direction": "out", "queue": "outbox", "topic": "shop-out"},
        "in": {**common, "direction": "in", "queue": "inbox", "topic": "shop-in"},
    }


@pytest.mark.slow
def test_both_ways_with_kills_of_the_bridge_and_the_daemon(
    daemon: Daemon, cluster: Cluster, bridges: Callable[..., Bridges]
):
    daemon.create("outbox", "inbox", transactional=True)
    cluster.publish("shop-in", 1, 100)
    made = bridges(**definitions(cluster))
    daemon.send_all("outbox", [b"%d" % n for n in range(1, 101)], "--transactional",
                    "--group", "customer 1", "--label", "order")  # fmt: skip
    assert [row["ok"] for row in made.cli("check")] == [True, True]
    made.start()
    daemon.wait_for("inbox", 5)
    made.restart()
    daemon.restart()
    cluster.publish("shop-in", 101, 200)
    made.wait(lambda: daemon.count("inbox") >= 200, "all messages inward")
    made.wait(lambda: daemon.count("outbox") == 0, "an empty outbox")
    made.stop()

    inward = daemon.receive("inbox")
    assert [body(each) for each in inward] == [b"%d" % n for n in range(1, 201)]
    assert inward[0]["properties"] == {"region": "east"}
    records = cluster.records("shop-out")
    by_id = {dict(each.headers())["qmd-id"]: each for each in records}
    assert len(by_id) == 100
    assert len({each.partition() for each in records}) == 1
    in_order = sorted(by_id.values(), key=lambda each: each.offset())
    assert [each.value() for each in in_order] == [b"%d" % n for n in range(1, 101)]
    assert {each.key() for each in records} == {b"customer 1"}
    assert dict(records[0].headers())["qmd-label"] == b"order"


def test_records_that_are_there_are_not_written_again(
    daemon: Daemon, cluster: Cluster, bridges: Callable[..., Bridges]
):
    """As after a kill between the commit of the broker and the removal here."""
    daemon.create("outbox", transactional=True)
    sent = daemon.send_all("outbox", [b"1", b"2"], "--transactional")
    cluster.producer.produce("shop-out", b"first", headers=[("qmd-id", sent[0].encode())])
    assert cluster.producer.flush(10) == 0
    made = bridges(out=definitions(cluster)["out"])
    made.start()
    made.wait(lambda: daemon.count("outbox") == 0, "an empty outbox")

    assert sorted(each.value() for each in cluster.records("shop-out")) == [b"2", b"first"]
