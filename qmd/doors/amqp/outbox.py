"""The messages of one connection that are not committed yet, in their order.

    add ──► waiting ──► up to four requests under way ──► (commit) ──► finished, in their order
                ▲              └──► refused: each message alone, the others wait
                └── refused because they follow it ──┘

Requests leave without waiting for the answers to those before them, so that the client, this door
and the daemon work at the same time.  The daemon refuses a request that follows a refused one: no
message overtakes another of the connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from qmd.client.errors import ClientError, QueueManagerError, WrongDelivery
from qmd.control_protocol import messages as frames
from qmd.control_protocol.links import LinkDeliveries, SendOverLinks
from qmd.doors.amqp.conditions import is_no_outcome

if TYPE_CHECKING:
    from qmd.doors.amqp.context import Context
    from qmd.doors.amqp.sending import Producer

#: Of one request.  Queues pass on up to 512 messages from memory, and read more from the disk.
BATCH_MESSAGES = 500
UNDER_WAY_BYTES = 4 * 1024 * 1024  # of all requests
EARLIER_REFUSED = "earlier_refused"
REQUESTS_MAX = 4  # under way: one in each process, and those between them


class Item:
    """One message under way; `delivery` is None when its sender expects no answer."""

    __slots__ = (
        *("delivery", "error", "message", "producer", "recorded", "size", "token"),
        "transaction",
    )

    def __init__(
        self, producer: Producer, delivery: Any, message: frames.NewMessage, size: int
    ) -> None:
        self.producer = producer
        self.delivery = delivery
        self.message = message
        self.size = size
        self.transaction = b""
        self.token = b""
        self.recorded = b""  # its delivery, for a sender that resumes its link
        self.error: Exception | None = None


class _Request:
    """Messages of one request, and its answer or the error that kept it from being sent."""

    __slots__ = ("answer", "items", "size")

    def __init__(
        self, items: list[Item], size: int, answer: asyncio.Future[Any] | ClientError
    ) -> None:
        self.items, self.size, self.answer = items, size, answer

    async def outcome(self) -> ClientError | None:
        """Wait for the answer; return its error."""
        if isinstance(self.answer, ClientError):
            return self.answer
        try:
            await self.answer
        except ClientError as error:
            return error
        return None


class Outbox:
    """The messages of one connection that are not committed yet."""

    def __init__(self, conversation: Context) -> None:
        self._conversation = conversation
        self._items: deque[Item] = deque()  # they wait
        self._requests: deque[_Request] = deque()  # they are under way
        self._requests_max = REQUESTS_MAX
        self._is_repeating = False
        self._task: asyncio.Task[None] | None = None
        self._turn = 0  # of the last request
        self.bytes = 0  # of the messages that wait or are under way
        self._added = self._done = 0  # messages, since the beginning
        self._barriers: deque[tuple[int, asyncio.Future[None]]] = deque()

    def add(self, item: Item) -> None:
        """Add a message; `start` begins to send."""
        self._items.append(item)
        self.bytes += item.size
        self._added += 1

    def start(self) -> None:
        """Send the messages that wait, unless enough are under way."""
        if self._items:
            self._fill()
            if self._task is None:
                self._task = self._conversation.spawn(self._run())

    async def barrier(self) -> None:
        """Wait until all messages that were added before have been committed or refused."""
        if self._done < self._added:
            passed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._barriers.append((self._added, passed))
            await passed

    def drop_unanswered(self) -> None:
        """Drop the messages that were not passed on, of senders that expect an answer."""
        kept = [item for item in self._items if item.delivery is None]
        dropped = len(self._items) - len(kept)
        self._items = deque(kept)
        self._pass(dropped)

    def _pass(self, count: int) -> None:
        self._done += count
        while self._barriers and self._barriers[0][0] <= self._done:
            _, passed = self._barriers.popleft()
            if not passed.done():
                passed.set_result(None)

    # Requests.

    def _fill(self) -> None:
        """Send requests, as many as may be under way."""
        while self._items and not self._is_repeating and self._may_follow(self._items[0]):
            items, size = self._next()
            follows = bool(self._requests)
            self._requests.append(_Request(items, size, self._ask(items, follows=follows)))

    def _may_follow(self, item: Item) -> bool:
        """Return whether a request with this message may leave before the others are answered."""
        if not self._requests:
            return True
        first = self._requests[0].items[0]
        return (
            len(self._requests) < self._requests_max
            and item.transaction == first.transaction
            and not (item.token or first.token)
            and sum([each.size for each in self._requests]) + item.size <= UNDER_WAY_BYTES
        )

    def _next(self) -> tuple[list[Item], int]:
        """Return the next messages for one request: of one transaction, or with one token."""
        first = self._items.popleft()
        batch, size = [first], first.size
        room = UNDER_WAY_BYTES - sum([each.size for each in self._requests])
        while self._items and not first.token and len(batch) < BATCH_MESSAGES:
            item = self._items[0]
            if item.transaction != first.transaction or item.token or size + item.size > room:
                break
            batch.append(self._items.popleft())
            size += item.size
        return batch, size

    def _ask(self, items: list[Item], *, follows: bool) -> asyncio.Future[Any] | ClientError:
        """Send a request; `follows`: it must not be accepted after a refusal of the one before."""
        messages = [item.message for item in items]
        control, token = self._conversation.control, items[0].token
        try:
            if token or items[0].transaction:
                return control.ask(frames.Send, messages, token, items[0].transaction, bool(token))
            before, self._turn = self._turn, self._turn + 1
            after = before if follows else 0
            return control.ask(SendOverLinks, messages, _entries(items), self._turn, after)
        except ClientError as error:
            return error

    # Answers.

    async def _run(self) -> None:
        try:
            while self._requests:
                request = self._requests[0]
                error = await request.outcome()
                if error is None or not _may_repeat(request, error):
                    self._requests.popleft()
                    self._requests_max = min(2 * self._requests_max, REQUESTS_MAX)
                    self._finish(request.items, error)
                else:
                    self._is_repeating = True
                    await self._repeat(error)
                    self._is_repeating = False
                self._fill()
        finally:
            self._task = None

    async def _repeat(self, error: ClientError) -> None:
        """Send each message of a refused request alone; those that followed it wait again."""
        refused, *followers = self._requests
        waiting: list[Item] = []
        for request in followers:
            if await request.outcome() is None:
                raise RuntimeError("the daemon has accepted messages after a refusal")
            waiting += request.items
        self._requests.clear()
        self._requests_max = 1
        _take_back([*refused.items, *waiting])
        self._items.extendleft(reversed(waiting))
        if self._conversation.is_over:
            self.drop_unanswered()
        for item in refused.items:
            alone: ClientError | None = error
            if len(refused.items) > 1 or error.code == EARLIER_REFUSED:
                alone = await self._alone(item)
            if _may_need_a_transactional_queue(item, alone):
                item.message = msgspec.structs.replace(item.message, delivery=frames.AUTOMATIC)
                alone = await self._alone(item)
            self._finish([item], alone)

    async def _alone(self, item: Item) -> ClientError | None:
        """Send one message; return its error."""
        request = _Request([item], item.size, self._ask([item], follows=False))
        error = await request.outcome()
        if error is not None and _may_repeat(request, error):
            _take_back([item])
        return error

    def _finish(self, items: list[Item], error: ClientError | None) -> None:
        """Settle messages that were committed, or refused."""
        for item in items:
            item.error = error
            self.bytes -= item.size
            item.producer.finished(item)
        for producer in {item.producer for item in items}:
            producer.restore_credit()
        self._pass(len(items))
        self._conversation.flush()


def _entries(batch: list[Item]) -> list[LinkDeliveries]:
    """Return the deliveries of a batch that senders can resume, by their links."""
    found: dict[Producer, list[bytes]] = {}
    for item in batch:
        if item.recorded:
            found.setdefault(item.producer, []).append(item.recorded)
    return [producer.record.entry(deliveries) for producer, deliveries in found.items()]


def _take_back(items: list[Item]) -> None:
    """Note that the deliveries of refused messages, the last of their links, are not recorded."""
    for item in items:
        if item.recorded:
            item.producer.record.take_back()


def _may_repeat(request: _Request, error: ClientError) -> bool:
    """Return whether messages of a refused request may be accepted when each is sent alone."""
    is_refusal = isinstance(error, QueueManagerError) and not is_no_outcome(error)
    return is_refusal and not request.items[0].transaction


def _may_need_a_transactional_queue(item: Item, error: ClientError | None) -> bool:
    """Return whether a refused message is express only because its sender wants no answer."""
    return (
        item.delivery is None
        and item.message.delivery == frames.EXPRESS
        and isinstance(error, WrongDelivery)
    )
