"""kill -9 of the brokers of Kafka and S3, under load in both directions.

`make soak` kills more often.  NATS and RabbitMQ have their kills in their own files.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bridge.bridges import Bridges
from tests.bridge.brokers import KafkaServer
from tests.bridge.kafka_transactions import PARTITIONS, TOPICS, between_transactions
from tests.bridge.s3_server import S3Server
from tests.bridge.test_kafka_server import create_topics, publish, records
from tests.bridge.test_kafka_server import definitions as kafka_definitions
from tests.bridge.test_s3 import BUCKET, Reader, keys, put
from tests.bridge.test_s3 import definitions as s3_definitions
from tests.patience import END_S
from tests.process.harness import Daemon, body

KILLS = int(os.environ.get("BROKER_KILLS", "1"))


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, last + 1)]


def saved_ends(kafka: KafkaServer) -> list[int]:
    """Return the ends of the partitions in the file of the server."""
    try:
        topics = dict(json.loads((kafka.folder / "store" / "kafka.json").read_text())["topics"])
    except (OSError, ValueError):
        return []
    rows = {name: dict(topics[name]["partitions"]) for name in TOPICS if name in topics}
    return [
        rows[name][partition]["high_watermark"] if name in rows else -1
        for name in TOPICS
        for partition in range(PARTITIONS)
    ]


def kill_between_transactions(made: Bridges, kafka: KafkaServer) -> None:
    """Kill the server between transactions, and after it has saved what it has acknowledged.

    This server saves records after it has acknowledged them: a kill at any time would lose what no
    broker may lose.
    """
    deadline = time.monotonic() + END_S
    with between_transactions(made, kafka) as written:
        while saved_ends(kafka) != written:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        kafka.kill()
    kafka.start()


def test_kills_of_kafka_neither_lose_nor_double(
    daemon: Daemon, kafka: KafkaServer, bridges: Callable[..., Bridges]
) -> None:
    daemon.create("outbox", "inbox", transactional=True)
    create_topics(kafka)
    made = bridges(**kafka_definitions(kafka))
    sent = 0

    def more() -> None:
        nonlocal sent
        first, sent = sent + 1, sent + 100
        daemon.send_all("outbox", numbered(first, sent), "--transactional", "--group", "customer 1")
        publish(kafka, first, sent)

    more()
    made.start()
    for _ in range(KILLS):
        daemon.wait_for("inbox", sent - 90)
        kill_between_transactions(made, kafka)
        more()
    made.wait(lambda: daemon.count("inbox") >= sent, "all messages inward")
    made.wait(lambda: daemon.count("outbox") == 0, "an empty outbox")
    made.stop()

    assert [body(each) for each in daemon.receive("inbox")] == numbered(1, sent)
    assert [each.value() for each in records(kafka)] == numbered(1, sent)


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[S3Server, Any]]:
    """Yield a server that can be killed, and a client of it."""
    boto3 = pytest.importorskip("boto3")
    pytest.importorskip("moto.server")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    server = S3Server(tmp_path / "s3")
    server.start()
    try:
        client = boto3.client("s3", endpoint_url=server.url)
        client.create_bucket(Bucket=BUCKET)
        yield server, client
    finally:
        server.kill()


def test_kills_of_s3_neither_lose_nor_double(
    daemon: Daemon, s3: tuple[S3Server, Any], bridges: Callable[..., Bridges]
) -> None:
    server, client = s3
    daemon.create("outbox", "inbox", transactional=True)
    made = bridges(**s3_definitions(server.url))
    ids: list[str] = []
    sent = 0

    def more() -> None:
        nonlocal sent
        first, sent = sent + 1, sent + 20
        ids.extend(daemon.send_all("outbox", numbered(first, sent), "--transactional"))
        for number in range(first, sent + 1):
            client.put_object(Bucket=BUCKET, Key=f"in/{number:06}", Body=b"%d" % number)

    more()
    made.start()
    for _ in range(KILLS):
        daemon.wait_for("inbox", sent - 15)
        server.restart()
        more()
    made.wait(lambda: not keys(client, "in/"), "an empty prefix")
    made.wait(lambda: daemon.count("outbox") == 0, "an empty outbox")
    made.stop()

    assert [body(each) for each in daemon.receive("inbox")] == numbered(1, sent)
    names = keys(client, "out/")
    objects = [client.get_object(Bucket=BUCKET, Key=each)["Body"].read() for each in names]
    assert [json.loads(each)["id"] for each in objects] == ids


def test_an_object_that_was_read_before_a_kill_of_s3_is_not_read_again(
    s3: tuple[S3Server, Any],
) -> None:
    server, client = s3
    put(client, "in/a", b"1")

    async def read() -> None:
        reader = Reader(server.url)
        await reader.open()
        (first,) = await reader.arrived()  # seconds old: a restart must not make it new
        server.restart()
        await reader.open(first.position)

    asyncio.run(read())
    assert not keys(client, "in/")
