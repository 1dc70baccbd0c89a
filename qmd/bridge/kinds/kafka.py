"""Kafka, by librdkafka.

Outward, each batch is a transaction of a producer whose id is that of the bridge: a producer of a
killed bridge cannot write any more, and its open transaction is aborted.  At each start the bridge
reads the ids of the last records.  Inward, the position has the offset of each partition.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from qmd.bridge.definition import Kafka
from qmd.bridge.ends import Arrival, Position, Published, Recent, Refused, Unreachable
from qmd.bridge.envelope import ID, Unusable, headers_of, message_of
from qmd.client.message import Message

TIMEOUT_S = 15.0
SCANNED = 10_000  # records at the end of each partition whose ids are read at a start
_TOO_LARGE = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError._INVALID_ARG)

T = TypeVar("T")


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
                "transactional.id": f"qmd-bridge-{self._name}",
                "enable.idempotence": True,
                "log_level": 0,
                **given.options,
            }
        )
        # From here on an earlier producer of this bridge cannot write any more.
        self._producer.init_transactions(TIMEOUT_S)
        consumer = _consumer(given, f"qmd-bridge-{self._name}")
        try:
            for partition in _partitions(consumer, given.topic):
                self._scan(consumer, partition)
        finally:
            consumer.close()

    def _scan(self, consumer: Any, partition: int) -> None:
        """Read the ids of the last records of a partition."""
        place = TopicPartition(self._definition.topic, partition)
        low, high = consumer.get_watermark_offsets(place, timeout=TIMEOUT_S)
        first = max(low, high - SCANNED)
        if first >= high:
            return
        place.offset = first
        consumer.assign([place])
        while True:
            for record in consumer.consume(1000, timeout=1.0):
                if record.error() is None:
                    message_id = dict(record.headers() or []).get(ID)
                    if message_id:
                        self._recent.add(message_id.decode())
            # Records of transactions end with markers, which are not delivered.
            (now,) = consumer.position([place])
            if now.offset >= high or now.offset < 0:
                return

    async def publish(self, messages: Sequence[Message]) -> Published:
        return await self._thread.run(lambda: self._publish(messages))

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
                raise KafkaException(min(failures, key=lambda each: each[0])[1])
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
        self._offsets = dict(position or {})
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
            elif at < low:
                raise KafkaException(KafkaError(KafkaError.OFFSET_OUT_OF_RANGE))
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


def _consumer(given: Kafka, group: str) -> Any:
    return Consumer(
        {
            "bootstrap.servers": given.servers,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": False,
            "log_level": 0,
            **given.options,
        }
    )


def _partitions(consumer: Any, topic: str) -> list[int]:
    found = consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
    if found.error is not None:
        raise KafkaException(found.error)
    return sorted(found.partitions)
