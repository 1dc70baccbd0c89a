"""How applications send to and receive from each peer, with the usual library for Python.

The libraries: that of qmd, pika for RabbitMQ, nats-py, and redis-py with hiredis.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from qmd.client import connect
from qmd.client.new_message import new_message
from qmd.control_protocol.messages import NewMessage

WINDOW_MESSAGES = 1000
REMOVALS_AHEAD = 4  # takes with an unfinished removal
PATIENCE_S = 60.0

Got = Callable[[bytes], bool]
Ready = Callable[[], None]


class Sender:
    """Counts confirmations, and wakes the one that waits for them.

    `batch`: messages between two flushes, each of which waits for all confirmations; 0: a window.
    """

    def __init__(self, batch: int = 0) -> None:
        self._batch = batch
        self._confirmed = 0
        self._waiter: asyncio.Future[None] | None = None

    async def open(self, address: str) -> None:
        raise NotImplementedError

    async def send(self, body: bytes) -> None:
        raise NotImplementedError

    async def flush(self) -> None:
        """Write what was only gathered."""

    async def confirmed_to(self, number: int) -> None:
        """Wait until so many messages are confirmed."""
        while self._confirmed < number:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def confirm(self, count: int = 1) -> None:
        self._confirmed += count
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def confirm_result(self, done: asyncio.Future[Any]) -> None:
        done.result()  # an error ends the benchmark
        self.confirm()


class QmdSender(Sender):
    """Client of qmd: messages between two flushes are one request if they are a batch."""

    async def open(self, address: str) -> None:
        socket, self._destination, kind = address.split("|")
        self._delivery: Any = kind
        self._here = await connect(socket).__aenter__()
        self._sender = self._here.sender(self._destination, window=WINDOW_MESSAGES)
        await self._sender.__aenter__()
        self._gathered: list[NewMessage] = []

    async def send(self, body: bytes) -> None:
        if self._batch:
            new = new_message(self._destination, body, delivery=self._delivery)
            self._gathered.append(new)
            return
        sent = await self._sender.send(body, delivery=self._delivery)
        sent.add_done_callback(self.confirm_result)

    async def flush(self) -> None:
        if gathered := self._gathered:
            self._gathered = []
            await self._here.send_many(gathered)
            self.confirm(len(gathered))


async def receive_qmd(address: str, got: Got, prefetch: int, every: int, ready: Ready) -> None:
    socket, queue = address.split("|")
    removals: deque[asyncio.Task[None]] = deque()
    async with connect(socket) as here:
        ready()
        is_last = False
        while not is_last:
            limit = min(every, prefetch // REMOVALS_AHEAD) or 1
            taken = await here.take(queue, limit, timeout_s=PATIENCE_S)
            if not taken:
                raise SystemExit("no more messages came")
            for message in taken.messages:
                is_last = got(message.body)
            removals.append(asyncio.create_task(taken.remove()))
            while len(removals) > REMOVALS_AHEAD:
                await removals.popleft()
        for removal in removals:
            await removal


class AmqpSender(Sender):
    async def open(self, address: str) -> None:
        import pika

        self._channel = await _channel(int(address.split("|")[0]))
        self._queue = address.split("|")[1]
        self._properties = pika.BasicProperties(delivery_mode=2)
        self._lowest, self._single = 1, set[int]()  # tags below are confirmed; above, these are
        begun = asyncio.get_running_loop().create_future()
        self._channel.confirm_delivery(self._on_answer, callback=begun.set_result)
        await begun

    async def send(self, body: bytes) -> None:
        self._channel.basic_publish("", self._queue, body, self._properties)

    def _on_answer(self, frame: Any) -> None:
        method = frame.method
        if type(method).__name__ != "Ack":
            raise SystemExit("RabbitMQ refused a message")
        if not method.multiple:
            self._single.add(method.delivery_tag)
            self.confirm()
            return
        span = set(range(self._lowest, method.delivery_tag + 1))
        fresh = len(span - self._single)
        self._single -= span
        self._lowest = method.delivery_tag + 1
        self.confirm(fresh)


async def _channel(port: int) -> Any:
    import pika
    from pika.adapters.asyncio_connection import AsyncioConnection

    opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    AsyncioConnection(
        pika.ConnectionParameters(
            "127.0.0.1", port, heartbeat=0, credentials=pika.PlainCredentials("guest", "guest")
        ),
        on_open_callback=lambda connection: connection.channel(on_open_callback=opened.set_result),
        on_open_error_callback=lambda _, error: opened.set_exception(error),
    )
    return await opened


async def receive_amqp(address: str, got: Got, prefetch: int, every: int, ready: Ready) -> None:
    loop = asyncio.get_running_loop()
    channel = await _channel(int(address.split("|")[0]))
    limited, end = loop.create_future(), loop.create_future()
    channel.basic_qos(prefetch_count=prefetch, callback=limited.set_result)
    await limited
    count = 0

    def on_message(_: Any, method: Any, properties: Any, body: bytes) -> None:
        nonlocal count
        count += 1
        is_last = got(body)
        if is_last or count % every == 0:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if is_last and not end.done():
            end.set_result(None)

    channel.basic_consume(address.split("|")[1], on_message, callback=lambda _: ready())
    await end
    await asyncio.sleep(0.3)  # the last acknowledgment is written


class NatsSender(Sender):
    async def open(self, address: str) -> None:
        import nats

        port, self._subject = address.split("|")
        connection = await nats.connect(f"nats://127.0.0.1:{port}")
        self._stream = connection.jetstream(publish_async_max_pending=100_000)

    async def send(self, body: bytes) -> None:
        sent = await self._stream.publish_async(self._subject, body)
        sent.add_done_callback(self.confirm_result)


async def receive_nats(address: str, got: Got, prefetch: int, every: int, ready: Ready) -> None:
    import nats
    from nats.js.api import AckPolicy, ConsumerConfig

    port, where = address.split("|")
    stream, subject = where.split("/")
    connection = await nats.connect(f"nats://127.0.0.1:{port}")
    end = asyncio.get_running_loop().create_future()

    async def on_message(message: Any) -> None:
        is_last = got(message.data)
        await message.ack()  # of each: its acknowledgments of many forbid work queues
        if is_last and not end.done():
            end.set_result(None)

    await connection.jetstream().subscribe(
        subject,
        stream=stream,
        durable="c",
        cb=on_message,
        manual_ack=True,
        config=ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, max_ack_pending=prefetch),
    )
    ready()
    await end
    await connection.drain()


class RedisSender(Sender):
    """Client of Redis: commands between two flushes are one pipeline."""

    async def open(self, address: str) -> None:
        import redis.asyncio

        port, self._key = address.split("|")
        self._pipeline = redis.asyncio.Redis(port=int(port)).pipeline(transaction=False)

    async def send(self, body: bytes) -> None:
        self._pipeline.xadd(self._key, {"b": body})

    async def flush(self) -> None:
        if count := len(self._pipeline):
            await self._pipeline.execute()
            self.confirm(count)


async def receive_redis(address: str, got: Got, prefetch: int, every: int, ready: Ready) -> None:
    import redis.asyncio

    port, key = address.split("|")
    client = redis.asyncio.Redis(port=int(port))
    try:
        await client.xgroup_create(key, "g", "0", mkstream=True)
    except redis.asyncio.ResponseError as error:
        if "BUSYGROUP" not in str(error):  # it is there since the warm-up
            raise
    ready()
    is_last = False
    while not is_last:
        found = await client.xreadgroup("g", "c", {key: ">"}, count=every, block=5000)
        for _, messages in found or []:
            for _, fields in messages:
                is_last = got(fields[b"b"])
            numbers = [number for number, _ in messages]
            pipeline = client.pipeline(transaction=True)
            pipeline.xack(key, "g", *numbers)
            pipeline.xdel(key, *numbers)
            await pipeline.execute()


SENDERS: dict[str, type[Sender]] = {
    "qmd": QmdSender,
    "amqp": AmqpSender,
    "nats": NatsSender,
    "redis": RedisSender,
}
RECEIVERS: dict[str, Callable[[str, Got, int, int, Ready], Awaitable[None]]] = {
    "qmd": receive_qmd,
    "amqp": receive_amqp,
    "nats": receive_nats,
    "redis": receive_redis,
}
