"""Kafka, by librdkafka.

Outward, each batch is a transaction of a producer whose id is that of the bridge: a producer of a
killed bridge cannot write any more, and its open transaction is aborted.  At each start the bridge
reads the ids of the last records.  Inward, the position has the offset of each partition.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from qmd.bridge.definition import Kafka
from qmd.bridge.ends import (
    Arrival,
    DoesNotFit,
    Position,
    Published,
    Recent,
    Refused,
    Unreachable,
    position_as,
)
from qmd.bridge.envelope import ID, Unusable, headers_of, message_of
from qmd.client.message import Message

TIMEOUT_S = 15.0
SCANNED = 10_000  # records at the end of each partition whose ids are read at a start
_TOO_LARGE = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError._INVALID_ARG)
#: Errors of a broker that the same record will always meet.
_REFUSED = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD)

T = TypeVar("T")


class _RecordRefused(Exception):
    """A broker has refused a batch of records for what one of them is."""

    def __str__(self) -> str:
        return f"the broker refused it: {self.args[0].str()}"


class _Thread:
    """The thread of one bridge: calls of librdkafka wait."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    async def run(self, call: Callable[[], T]) -> T:
        """Run a call.  Raises Unreachable."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="bridge-kafka")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, call)
        except (KafkaException, BufferError) as error:
            raise Unreachable(str(error)) from error

    async def close(self, end: Callable[[], None]) -> None:
        if self._pool is not None:
            with contextlib.suppress(Unreachable):
                await self.run(end)
            self._pool.shutdown(wait=False)
            self._pool = None


class KafkaSink:
    """A topic, as the end to which messages go."""

    guarantee = (
        "exactly once for consumers that read committed records: transactions, and at a start the"
        f" ids of the last {SCANNED} records of each partition; in order within a partition, which"
        " is chosen by the group of a message"
    )

    def __init__(self, definition: Kafka, name: str) -> None:
        self._definition, self._name = definition, name
        self._thread = _Thread()
        self._producer: Any = None
        self._recent = Recent(4 * SCANNED)

    async def open(self) -> None:
        await self._thread.run(self._open)

    def _open(self) -> None:
        given = self._definition
        self._producer = Producer(
            {
                "bootstrap.servers": given.servers,
                "log_level": 0,
                **given.options,
                # Not to be changed by options: on these the guarantee rests.
                "transactional.id": f"qmd-bridge-{self._name}",
                "enable.idempotence": True,
            }
        )
        # From here on an earlier producer of this bridge cannot write any more.
        self._producer.init_transactions(TIMEOUT_S)
        group = f"qmd-bridge-{self._name}"
        with _closing(_consumer(given, group, is_scan=True)) as consumer:
            for partition in _partitions(consumer, given.topic):
                self._scan(consumer, TopicPartition(given.topic, partition), group)

    def _scan(self, consumer: Any, place: Any, group: str) -> None:
        """Read the ids of the last records of a partition, as far as they are committed.

        The last committed record may be before the end: behind it is a transaction that is open,
        and there may be records of an earlier process of this bridge, too.  Raises Unreachable if
        such a transaction does not end in time.
        """
        with _closing(_consumer(self._definition, group, level="read_uncommitted")) as other:
            low, high = other.get_watermark_offsets(place, timeout=TIMEOUT_S)
        place.offset = max(low, high - SCANNED)
        if place.offset >= high:
            return
        consumer.assign([place])
        until = time.monotonic() + TIMEOUT_S
        while True:
            at = place.offset
            for record in consumer.consume(1000, timeout=1.0):
                error = record.error()
                if error is None:
                    message_id = dict(record.headers() or []).get(ID)
                    if message_id:
                        self._recent.add(message_id.decode(errors="replace"))
                    until = time.monotonic() + TIMEOUT_S
                elif error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                at = record.offset() + (error is None)
            # Records of transactions end with markers, which are not delivered.
            if max(at, consumer.position([place])[0].offset) >= high:
                return
            if time.monotonic() > until:
                raise Unreachable(
                    f"partition {place.partition} of {place.topic} cannot be read up to its end"
                    f" ({high}): a transaction of another producer is open"
                )

    async def publish(self, messages: Sequence[Message]) -> Published:
        try:
            return await self._thread.run(lambda: self._publish(messages))
        except _RecordRefused as error:
            if len(messages) == 1:
                return Published(0, Refused(0, str(error)))
        # A broker refuses whole batches: find the record.
        for index, message in enumerate(messages):
            done = await self.publish([message])
            if done.refused is not None:
                return Published(index, done.refused._replace(at=index))
        return Published(len(messages))

    def _publish(self, messages: Sequence[Message]) -> Published:
        given, producer = self._definition, self._producer
        failures: list[tuple[int, Any]] = []
        sent: list[str] = []
        refused: Refused | None = None
        producer.begin_transaction()
        try:
            for index, message in enumerate(messages):
                if message.id in self._recent:
                    continue
                headers = [(name, text.encode()) for name, text in headers_of(message).items()]
                try:
                    producer.produce(
                        given.topic,
                        message.body,
                        key=message.group.encode() or None,
                        headers=headers,
                        on_delivery=lambda error, _, index=index: (
                            failures.append((index, error)) if error else None
                        ),
                    )
                except KafkaException as error:
                    if error.args[0].code() not in _TOO_LARGE:
                        raise
                    refused = Refused(index, error.args[0].str())
                    break
                sent.append(message.id)
            producer.flush(TIMEOUT_S)
            if failures:
                _, failure = min(failures, key=lambda each: each[0])
                raise (_RecordRefused if failure.code() in _REFUSED else KafkaException)(failure)
            producer.commit_transaction(TIMEOUT_S)
        except BaseException:
            with contextlib.suppress(KafkaException):
                producer.abort_transaction(TIMEOUT_S)
            raise
        for message_id in sent:
            self._recent.add(message_id)
        return Published(len(messages) if refused is None else refused.at, refused)

    async def close(self) -> None:
        def end() -> None:
            self._producer = None

        await self._thread.close(end)


class KafkaSource:
    """A topic, as the end from which messages come."""

    guarantee = "exactly once, in the order of each partition: the position has its offset"

    def __init__(self, definition: Kafka) -> None:
        self._definition = definition
        self._thread = _Thread()
        self._consumer: Any = None
        self._offsets: dict[str, int] = {}

    async def open(self, position: Position) -> None:
        self._offsets = dict(position_as(dict[str, int], position) or {})
        await self._thread.run(lambda: self._open(is_first=position is None))

    def _open(self, *, is_first: bool) -> None:
        given = self._definition
        self._consumer = _consumer(given, "qmd-bridge")
        places = []
        for partition in _partitions(self._consumer, given.topic):
            place = TopicPartition(given.topic, partition)
            low, high = self._consumer.get_watermark_offsets(place, timeout=TIMEOUT_S)
            at = self._offsets.get(str(partition))
            if at is None:  # also a partition that was added later: from its beginning
                at = high if is_first and given.start == "end" else low
            elif not low <= at <= high:
                raise DoesNotFit(
                    f"partition {partition} of {given.topic} has the records {low} to {high}, and"
                    f" the position is {at}: records were deleted before they were read, or the"
                    " topic was made anew"
                )
            self._offsets[str(partition)] = place.offset = at
            places.append(place)
        self._consumer.assign(places)

    async def fetch(self, limit: int, wait_s: float, queue: str) -> Sequence[Arrival]:
        records = await self._thread.run(lambda: self._consumer.consume(limit, timeout=wait_s))
        arrivals: list[Arrival] = []
        for record in records:
            if (error := record.error()) is not None:
                raise Unreachable(error.str())
            self._offsets[str(record.partition())] = record.offset() + 1
            arrivals.append(_arrival(record, dict(self._offsets), queue))
        return arrivals

    async def done(self) -> None:
        """The broker keeps no position of the bridge."""

    async def close(self) -> None:
        def end() -> None:
            if self._consumer is not None:
                self._consumer.close()
                self._consumer = None

        await self._thread.close(end)


def _arrival(record: Any, position: dict[str, int], queue: str) -> Arrival:
    place = f"{record.topic()}/{record.partition()}/{record.offset()}"
    body = record.value() or b""
    try:
        headers = {name: (text or b"").decode() for name, text in record.headers() or []}
        new = message_of(headers, body, queue)
    except (Unusable, UnicodeDecodeError) as error:
        return Arrival(place, None, position, body, str(error))
    return Arrival(headers.get(ID, place), new, position, body)


def _consumer(
    given: Kafka, group: str, *, level: str = "read_committed", is_scan: bool = False
) -> Any:
    return Consumer(
        {
            "bootstrap.servers": given.servers,
            "group.id": group,
            "log_level": 0,
            **given.options,
            # Not to be changed by options: on these the guarantee rests.
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": level,
            "enable.partition.eof": is_scan,
        }
    )


@contextlib.contextmanager
def _closing(consumer: Any) -> Iterator[Any]:
    try:
        yield consumer
    finally:
        consumer.close()


def _partitions(consumer: Any, topic: str) -> list[int]:
    found = consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
    if found.error is not None:
        raise KafkaException(found.error)
    return sorted(found.partitions)
