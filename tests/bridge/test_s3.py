"""Bridges to S3, against the server of moto."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.bridge.bridges import Bridges
from tests.process.harness import Daemon, body

BUCKET = "shop"


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Any]]:
    """Yield the address of a server, and a client of it."""
    boto3 = pytest.importorskip("boto3")
    moto = pytest.importorskip("moto.server")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        address = "http://{}:{}".format(*server.get_host_and_port())
        client = boto3.client("s3", endpoint_url=address)
        client.create_bucket(Bucket=BUCKET)
        yield address, client
    finally:
        server.stop()


def keys(client: Any, prefix: str) -> list[str]:
    listed = client.list_objects_v2(Bucket=BUCKET, Prefix=prefix)
    return [each["Key"] for each in listed.get("Contents", [])]


def definitions(address: str) -> dict[str, dict[str, Any]]:
    common = {"kind": "s3", "bucket": BUCKET, "endpoint": address, "batch": 10}
    return {
        "out": {**common, "direction": "out", "queue": "outbox", "prefix": "out/"},
        "in": {**common, "direction": "in", "queue": "inbox", "prefix": "in/"},
    }


@pytest.mark.slow
def test_both_ways_with_kills_of_the_bridge_and_the_daemon(
    daemon: Daemon, s3: tuple[str, Any], bridges: Callable[..., Bridges]
):
    address, client = s3
    daemon.create("outbox", "inbox", transactional=True)
    sent = daemon.send_all(
        "outbox", [b"%d" % n for n in range(1, 41)], "--transactional", "--property", "region=east"
    )
    made = bridges(**definitions(address))
    assert [row["ok"] for row in made.cli("check")] == [True, True]
    made.start()
    made.wait(lambda: len(keys(client, "out/")) > 5, "some objects")
    made.restart()
    daemon.restart()
    made.wait(lambda: daemon.count("outbox") == 0, "an empty outbox")
    objects = [client.get_object(Bucket=BUCKET, Key=each) for each in keys(client, "out/")]
    documents = [json.loads(each["Body"].read()) for each in objects]
    assert [each["id"] for each in documents] == sent
    assert documents[0]["properties"] == {"region": "east"}

    # Back: each object becomes a message, and is deleted.
    for key in keys(client, "out/"):
        source = {"Bucket": BUCKET, "Key": key}
        client.copy_object(Bucket=BUCKET, Key=key.replace("out/", "in/"), CopySource=source)
    client.put_object(Bucket=BUCKET, Key="in/zzz", Body=b"plain", ContentType="text/plain")
    daemon.wait_for("inbox", 5)
    made.restart()
    made.wait(lambda: not keys(client, "in/"), "an empty prefix")
    inward = daemon.receive("inbox")
    assert [body(each) for each in inward] == [b"%d" % n for n in range(1, 41)] + [b"plain"]
    assert inward[0]["properties"] == {"region": "east"}
    assert inward[-1]["properties"] == {"key": "in/zzz"}


def test_an_object_that_was_committed_and_not_deleted_is_not_read_again(
    daemon: Daemon, s3: tuple[str, Any], bridges: Callable[..., Bridges]
):
    address, client = s3
    daemon.create("inbox", transactional=True)
    made = bridges(**{"in": definitions(address)["in"]})
    assert all(row["ok"] for row in made.cli("check"))
    for key, text in (("in/a", b"1"), ("in/b", b"2")):
        client.put_object(Bucket=BUCKET, Key=key, Body=text)
    tag = client.head_object(Bucket=BUCKET, Key="in/a")["ETag"]
    (position,) = daemon.receive("private$\\bridge.in")
    record = json.loads(body(position)) | {"position": {"in/a": tag}}
    daemon.send("private$\\bridge.in", json.dumps(record).encode(), "--transactional")
    made.start()

    made.wait(lambda: not keys(client, "in/"), "an empty prefix")
    assert daemon.bodies("inbox") == [b"2"]
