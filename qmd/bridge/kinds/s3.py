"""Objects of a bucket: one JSON document for each message.

Outward, the key is made of the message's place in its queue and its id: publishing it again writes
the same object.  Inward, objects are read in the order of their keys and deleted after the commit;
the position has the keys of a batch until then, and which writing of each was read.

An object may be written again while its message is on the way, also with the same bytes.  In a
bucket with versions each writing has an id.  Without them its tag and its time tell it from the
next one, if the second of the time is over when it is read.  An object of another bridge is the
exception: its key is made of one message, so that all its writings are that message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from qmd.bridge.definition import S3
from qmd.bridge.ends import Arrival, Position, Published, Unreachable, position_as
from qmd.bridge.envelope import Unusable, document_of, message_of, message_of_document
from qmd.client.message import Message

MEDIA = "application/vnd.qmd.message+json"
OBJECT_BYTES_MAX = 64 * 1024 * 1024
_LOST = (BotoCoreError, ClientError, OSError)
AGE_S = 2  # of an object when it is read, so that a later one has another time
_ONE = "a message"  # all writings of an object of a bridge
_NO_VERSION = "null"  # in a bucket of which the versions are suspended


def _client(given: S3) -> Any:
    """Return a client; credentials come from the environment, as for every program of the SDK."""
    return boto3.client(
        "s3",
        endpoint_url=given.endpoint or None,
        region_name=given.region or None,
        config=Config(connect_timeout=5, read_timeout=30, retries={"max_attempts": 2}),
    )


class S3Sink:
    """A prefix of a bucket, as the end to which messages go."""

    guarantee = (
        "exactly once: a message that is published again replaces its own object; the order of the"
        " keys is that of the queue"
    )

    def __init__(self, definition: S3) -> None:
        self._definition = definition
        self._client: Any = None

    async def open(self) -> None:
        self._client = await _opened(self._definition)

    async def publish(self, messages: Sequence[Message]) -> Published:
        for index, message in enumerate(messages):
            try:
                await asyncio.to_thread(
                    self._client.put_object,
                    Bucket=self._definition.bucket,
                    Key=self._key(message),
                    Body=document_of(message),
                    ContentType=MEDIA,
                )
            except _LOST as error:
                if index:
                    return Published(index)
                raise Unreachable(str(error)) from error
        return Published(len(messages))

    def _key(self, message: Message) -> str:
        return (
            f"{self._definition.prefix}{message.lookup_id:020d}-{message.id.replace(chr(92), '-')}"
        )

    async def close(self) -> None:
        self._client = None


class S3Source:
    """A prefix of a bucket, as the end from which messages come."""

    guarantee = (
        "exactly once for each version of an object, in the order of the keys; objects are deleted"
        " after the commit"
    )

    def __init__(self, definition: S3) -> None:
        self._definition = definition
        self._client: Any = None
        self._fetched: dict[str, str] = {}

    async def open(self, position: Position) -> None:
        self._client = await _opened(self._definition)
        self._fetched = dict(position_as(dict[str, str], position) or {})
        await self.done()

    async def fetch(self, limit: int, wait_s: float, queue: str) -> Sequence[Arrival]:
        listed = await self._call(
            self._client.list_objects_v2,
            Bucket=self._definition.bucket,
            Prefix=self._definition.prefix,
            MaxKeys=limit,
        )
        found = listed.get("Contents", [])
        if not found:
            await asyncio.sleep(wait_s)
            return []
        arrivals: list[Arrival] = []
        self._fetched = {}
        for each in found:
            key = each["Key"]
            answer = await self._found("get_object", key)
            if answer is None:  # it was deleted since
                continue
            if not (_is_of_a_bridge(answer) or _version(answer) or _is_settled(answer)):
                await self._call(answer["Body"].close)
                break  # those behind it wait, for the order of the keys
            body = await self._call(answer["Body"].read, OBJECT_BYTES_MAX + 1)
            self._fetched[key] = _writing(answer)
            arrivals.append(
                _arrival(key, answer.get("ContentType", ""), body, dict(self._fetched), queue)
            )
        if not arrivals:
            await asyncio.sleep(min(wait_s, AGE_S))
        return arrivals

    async def done(self) -> None:
        """Delete what is in the queue, unless it was written again since."""
        bucket = self._definition.bucket
        for key, writing in self._fetched.items():
            version = writing.partition(" ")[2].partition(" ")[2]
            if version:
                await self._call(
                    self._client.delete_object, Bucket=bucket, Key=key, VersionId=version
                )
                continue
            # A position of an earlier program has the tag alone.
            while (head := await self._found("head_object", key)) is not None:
                if writing not in (_writing(head), head["ETag"]):
                    break
                one = {"VersionId": _version(head)} if _version(head) else {}
                await self._call(self._client.delete_object, Bucket=bucket, Key=key, **one)
                if not one:
                    break
        self._fetched = {}

    async def _found(self, name: str, key: str) -> dict[str, Any] | None:
        """Ask for an object; return the answer, None if there is none.  Raises Unreachable."""
        method = getattr(self._client, name)
        try:
            answer: dict[str, Any] = await asyncio.to_thread(
                method, Bucket=self._definition.bucket, Key=key
            )
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] == 404:
                return None
            raise Unreachable(str(error)) from error
        except _LOST as error:
            raise Unreachable(str(error)) from error
        return answer

    async def _call(self, function: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return await asyncio.to_thread(function, *arguments, **named)
        except _LOST as error:
            raise Unreachable(str(error)) from error

    async def close(self) -> None:
        self._client = None


def _version(answer: dict[str, Any]) -> str:
    """Return the id of a version; "" in a bucket without versions."""
    version = str(answer.get("VersionId") or "")
    return "" if version == _NO_VERSION else version


def _writing(answer: dict[str, Any]) -> str:
    """Return a text that tells one writing of an object from the next one: tag, time, version.

    All writings of an object of a bridge are one.
    """
    if _is_of_a_bridge(answer):
        return _ONE
    written_s = int(answer["LastModified"].timestamp())
    return f"{answer['ETag']} {written_s} {_version(answer)}".rstrip()


def _is_of_a_bridge(answer: dict[str, Any]) -> bool:
    return bool(answer.get("ContentType", "") == MEDIA)


def _is_settled(answer: dict[str, Any]) -> bool:
    """Return whether the second in which an object was written is over, by the server's clock."""
    date = answer["ResponseMetadata"]["HTTPHeaders"].get("date", "")
    try:
        now = parsedate_to_datetime(date)
    except ValueError:
        return True  # the server has no clock
    return bool((now - answer["LastModified"]).total_seconds() >= AGE_S)


def _arrival(key: str, media: str, body: bytes, position: Position, queue: str) -> Arrival:
    if len(body) > OBJECT_BYTES_MAX:
        return Arrival(key, None, position, b"", f"{key} has more than {OBJECT_BYTES_MAX} bytes")
    try:
        if media == MEDIA:
            new = message_of_document(body, queue)
        else:
            new = message_of({"content-type": media, "key": key}, body, queue)
    except Unusable as error:
        return Arrival(key, None, position, body, str(error))
    return Arrival(key, new, position, body)


async def _opened(given: S3) -> Any:
    try:
        client = await asyncio.to_thread(_client, given)
        await asyncio.to_thread(client.head_bucket, Bucket=given.bucket)
    except _LOST as error:
        raise Unreachable(str(error)) from error
    return client
