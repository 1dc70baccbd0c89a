"""The server of Kafka between the transactions of a bridge: it forgets open ones when it ends."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator

from tests.bridge.bridges import Bridges
from tests.bridge.brokers import KafkaServer
from tests.patience import END_S

TOPICS = ("shop-out", "shop-in")
PARTITIONS = 2


def ends(kafka: KafkaServer, level: str) -> list[int]:
    """Return the end of each partition, for readers of a level."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            **{"bootstrap.servers": kafka.servers, "group.id": "ends", "log_level": 0},
            "isolation.level": level,
        }
    )
    try:
        return [
            consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=20)[1]
            for topic in TOPICS
            for partition in range(PARTITIONS)
        ]
    finally:
        consumer.close()


@contextlib.contextmanager
def between_transactions(made: Bridges, kafka: KafkaServer) -> Iterator[list[int]]:
    """Stop the bridge while it has no open transaction; yield the ends of the partitions.

    A server that ends within a transaction, and confirms its commit after its next start, has lost
    its records: no broker may do that, but this one does.
    """
    assert made.process is not None
    deadline = time.monotonic() + END_S
    while True:
        made.process.send_signal(signal.SIGSTOP)
        written = ends(kafka, "read_uncommitted")
        if written == ends(kafka, "read_committed"):
            break
        made.process.send_signal(signal.SIGCONT)
        assert time.monotonic() < deadline
    try:
        yield written
    finally:
        made.process.send_signal(signal.SIGCONT)
