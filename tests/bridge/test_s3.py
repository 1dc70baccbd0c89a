"""Bridges to S3, against the server of moto."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from qmd.bridge.definition import S3
from qmd.bridge.ends import Arrival, Position
from tests.bridge.bridges import Bridges
from tests.process.harness import Daemon, body

BUCKET = "shop"


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Any]]:
    """Yield the address of a server, and a client of it."""
    boto3 = pytest.importorskip("boto3")
    moto = pytest.importorskip("moto.server")
    backends = pytest.importorskip("moto.moto_api._internal.models")
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
        backends.moto_api_backend.reset()


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


class Reader:
    """An inward end without its queue: a test decides when the messages are in there."""

    def __init__(self, address: str) -> None:
        from qmd.bridge.kinds.s3 import S3Source

        self.source = S3Source(
            S3(direction="in", queue="inbox", bucket=BUCKET, prefix="in/", endpoint=address)
        )

    async def open(self, position: Position = None) -> None:
        await self.source.open(position)

    async def arrived(self) -> list[Arrival]:
        """Return the next messages, when the objects are old enough."""
        while not (found := await self.source.fetch(10, 0.1, "inbox")):
            pass
        return list(found)


def put(
    client: Any, key: str, content: bytes, media: str = "application/octet-stream"
) -> dict[str, Any]:
    client.put_object(Bucket=BUCKET, Key=key, Body=content, ContentType=media)
    return dict(client.head_object(Bucket=BUCKET, Key=key))


def put_later(client: Any, key: str, content: bytes) -> None:
    """Write an object again until the server states another time for it."""
    before = client.head_object(Bucket=BUCKET, Key=key)["LastModified"]
    while put(client, key, content)["LastModified"] == before:
        pass


def test_objects_with_the_same_bytes_are_messages_of_their_own(s3: tuple[str, Any]) -> None:
    address, client = s3
    for key in ("in/a", "in/b"):
        put(client, key, b"same")

    async def read() -> None:
        reader = Reader(address)
        await reader.open()
        found = 0
        while found < 2:  # the second may be too young when the first is old enough
            arrived = await reader.arrived()
            assert all(each.raw == b"same" for each in arrived)
            found += len(arrived)
            await reader.source.done()
        assert found == 2

    asyncio.run(read())
    assert not keys(client, "in/")


def test_the_same_bytes_that_are_written_again_are_another_message(s3: tuple[str, Any]) -> None:
    """Before the first object is deleted, and while the bridge is down."""
    address, client = s3
    put(client, "in/a", b"same")

    async def read() -> None:
        reader = Reader(address)
        await reader.open()
        (first,) = await reader.arrived()
        put_later(client, "in/a", b"same")
        await reader.source.done()
        (second,) = await reader.arrived()
        assert first.raw == second.raw == b"same"

        client.delete_object(Bucket=BUCKET, Key="in/a")  # and the bridge is killed
        put(client, "in/a", b"same")
        await asyncio.to_thread(put_later, client, "in/a", b"same")
        restarted = Reader(address)
        await restarted.open(second.position)
        (third,) = await restarted.arrived()
        await restarted.source.done()
        assert third.raw == b"same"

    asyncio.run(read())
    assert not keys(client, "in/")


def test_in_a_bucket_with_versions_each_of_them_is_a_message(s3: tuple[str, Any]) -> None:
    address, client = s3
    versions = {"Status": "Enabled"}
    client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration=versions)
    put(client, "in/a", b"same")

    async def read() -> None:
        reader = Reader(address)
        await reader.open()
        (first,) = await reader.arrived()
        put(client, "in/a", b"same")  # in the same second, most likely
        await reader.source.done()
        (second,) = await reader.arrived()
        await reader.source.done()
        assert first.raw == second.raw == b"same"

    asyncio.run(read())
    assert not keys(client, "in/")


@pytest.mark.parametrize("versions", [False, True])
def test_an_object_of_a_bridge_is_one_message_however_often_it_is_written(
    s3: tuple[str, Any], versions: bool
) -> None:
    """A bridge that was killed before its commit writes the object again."""
    from qmd.bridge.kinds.s3 import MEDIA

    address, client = s3
    if versions:
        enabled = {"Status": "Enabled"}
        client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration=enabled)
    document = b'{"body_base64":"MQ=="}'
    put(client, "in/1-a", document, MEDIA)

    async def read() -> None:
        reader = Reader(address)
        await reader.open()
        (first,) = await reader.arrived()
        for _ in range(2):
            put(client, "in/1-a", document, MEDIA)
        restarted = Reader(address)
        await restarted.open(first.position)
        assert first.message is not None
        assert await restarted.source.fetch(10, 0.1, "inbox") == []

    asyncio.run(read())
    assert not keys(client, "in/")
