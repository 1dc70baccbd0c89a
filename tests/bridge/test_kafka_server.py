"""Bridges to a server of Kafka's protocol in a process of its own, with transactions.

It keeps aborted records from readers of committed ones, and stops producers that were replaced, as
Kafka does.  It saves its records a moment after it has acknowledged them, so it is ended in order
here: a broker that loses acknowledged records loses messages, whatever a bridge does.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.bridge.bridges import Bridges
from tests.bridge.brokers import KafkaServer
from tests.bridge.kafka_transactions import PARTITIONS, TOPICS, between_transactions
from tests.process.harness import Daemon, body


def create_topics(server: KafkaServer) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": server.servers, "log_level": 0})
    topics = [NewTopic(name, PARTITIONS, 1) for name in TOPICS]
    for future in admin.create_topics(topics).values():
        future.result(20)


def producer(server: KafkaServer, **options: Any) -> Any:
    from confluent_kafka import Producer

    return Producer({"bootstrap.servers": server.servers, "log_level": 0, **options})


def publish(server: KafkaServer, first: int, last: int) -> None:
    made = producer(server, **{"enable.idempotence": True})
    for number in range(first, last + 1):
        made.produce("shop-in", b"%d" % number, partition=0)
    assert made.flush(20) == 0


def records(server: KafkaServer, level: str = "read_committed") -> list[Any]:
    """Return the records of the outward topic, up to the end of each partition."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            **{"bootstrap.servers": server.servers, "group.id": "test", "log_level": 0},
            **{"isolation.level": level, "enable.partition.eof": True},
        }
    )
    consumer.assign([TopicPartition("shop-out", each, 0) for each in range(PARTITIONS)])
    found: list[Any] = []
    ended: set[int] = set()
    while len(ended) < PARTITIONS:
        for each in consumer.consume(1000, timeout=1.0):
            if each.error() is None:
                found.append(each)
            else:
                assert each.error().code() == KafkaError._PARTITION_EOF, each.error()
                ended.add(each.partition())
    consumer.close()
    return found


def definitions(server: KafkaServer) -> dict[str, dict[str, Any]]:
    common = {"kind": "kafka", "servers": server.servers, "batch": 20}
    return {
        "out": {**common, "direction": "out", "queue": "outbox", "topic": "shop-out"},
        "in": {**common, "direction": "in", "queue": "inbox", "topic": "shop-in"},
    }


@pytest.mark.slow
def test_both_ways_with_kills_of_the_bridge_and_the_daemon_and_restarts_of_the_broker(
    daemon: Daemon, kafka: KafkaServer, bridges: Callable[..., Bridges]
):
    daemon.create("outbox", "inbox", transactional=True)
    create_topics(kafka)
    made = bridges(**definitions(kafka))
    sent = 0

    def more() -> None:
        nonlocal sent
        first, sent = sent + 1, sent + 200
        daemon.send_all("outbox", [b"%d" % n for n in range(first, sent + 1)], "--transactional",
                        "--group", "customer 1")  # fmt: skip
        publish(kafka, first, sent)

    def restart_broker() -> None:
        with between_transactions(made, kafka):
            kafka.stop()
        kafka.start()

    more()
    made.start()
    for disturb in (made.restart, daemon.restart, made.restart, restart_broker, made.restart):
        daemon.wait_for("inbox", sent - 190)
        disturb()
        more()
    made.wait(lambda: daemon.count("inbox") >= sent, "all messages inward")
    made.wait(lambda: daemon.count("outbox") == 0, "an empty outbox")
    made.stop()

    expected = [b"%d" % n for n in range(1, sent + 1)]
    assert [body(each) for each in daemon.receive("inbox")] == expected
    outward = records(kafka)
    assert len({each.partition() for each in outward}) == 1
    assert [each.value() for each in outward] == expected


def test_a_killed_transaction_is_not_seen_and_is_written_again(
    daemon: Daemon, kafka: KafkaServer, bridges: Callable[..., Bridges]
):
    """Stop a bridge somewhere in its transactions: what it has not committed is never read."""
    daemon.create("outbox", transactional=True)
    create_topics(kafka)
    made = bridges(out=definitions(kafka)["out"])
    for turn in range(8):
        daemon.send_all("outbox", [b"%d %d" % (turn, n) for n in range(60)], "--transactional")
        made.start()
        made.wait(lambda turn=turn: len(records(kafka, "read_uncommitted")) > 60 * turn, "records")
        made.kill()
    made.start()
    made.wait(lambda: daemon.count("outbox") == 0, "an empty outbox")

    found = Counter(each.value() for each in records(kafka))
    assert found == Counter(b"%d %d" % (turn, n) for turn in range(8) for n in range(60))


def test_records_behind_an_open_transaction_are_found_at_a_start(
    daemon: Daemon, kafka: KafkaServer, bridges: Callable[..., Bridges]
):
    """They are committed, but not to be read until another producer ends its transaction."""
    daemon.create("outbox", transactional=True)
    create_topics(kafka)
    sent = daemon.send_all("outbox", [b"1", b"2"], "--transactional", "--group", "a")
    other = producer(kafka, **{"transactional.id": "other"})
    other.init_transactions(20)
    other.begin_transaction()
    mine = producer(kafka, **{"transactional.id": "qmd-bridge-out"})
    mine.init_transactions(20)
    mine.begin_transaction()
    for partition in range(PARTITIONS):
        other.produce("shop-out", b"of another", partition=partition)
    assert other.flush(20) == 0
    mine.produce("shop-out", b"1", key=b"a", headers=[("qmd-id", sent[0].encode())])
    mine.commit_transaction(20)
    made = bridges(out=definitions(kafka)["out"])
    made.start()
    made.wait(lambda: "another producer" in str(made.state()), "the reason")
    assert daemon.count("outbox") == 2
    other.abort_transaction(20)
    made.wait(lambda: daemon.count("outbox") == 0, "an empty outbox")

    assert [each.value() for each in records(kafka)] == [b"1", b"2"]


def test_a_topic_that_was_made_anew_is_named(
    daemon: Daemon, kafka: KafkaServer, bridges: Callable[..., Bridges]
):
    from confluent_kafka.admin import AdminClient

    daemon.create("inbox", transactional=True)
    create_topics(kafka)
    publish(kafka, 1, 5)
    made = bridges(**{"in": definitions(kafka)["in"]})
    made.start()
    daemon.wait_for("inbox", 5)
    made.process.send_signal(signal.SIGTERM) if made.process else None
    made.kill()
    admin = AdminClient({"bootstrap.servers": kafka.servers, "log_level": 0})
    for future in admin.delete_topics(["shop-in", "shop-out"]).values():
        future.result(20)
    create_topics(kafka)

    (row,) = made.cli("check", check=False)
    assert not row["ok"]
    assert "the topic was made anew" in row["text"]
