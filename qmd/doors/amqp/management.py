"""Management of queues: requests to the address `$management`, as in AMQP Management 1.0.

A request is a message with the application properties `operation`, `type` and `name`, and a
`reply-to`.  Its answer has `statusCode` and `statusDescription`, the correlation id of the request,
and the attributes of queues in its body.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import proton
import structlog
from cproton import lib

from qmd.client.errors import ClientError
from qmd.control_protocol import messages as frames
from qmd.control_protocol import operations as operator_frames
from qmd.doors.amqp import engine
from qmd.doors.amqp import sections as parts
from qmd.doors.amqp.arriving import STANDARD, arrived
from qmd.doors.amqp.conditions import LIMIT, AmqpFault, condition_of
from qmd.doors.amqp.sections import BadMessage
from qmd.doors.amqp.served import RequestLink, ServedLink
from qmd.properties import values as names

if TYPE_CHECKING:
    from qmd.doors.amqp.context import Context

log = structlog.get_logger()

ADDRESS = "$management"
QUEUE = "org.qmd.queue"
CREDIT, REQUEST_BYTES = 50, 64 * 1024
#: Answers that wait for credit.  Beyond these bytes requests are refused: a table of all queues
#: has megabytes, and a client need not take it.
ANSWERS_MAX, ANSWERS_BYTES = 1000, 4 * 1024 * 1024
STATUS = {
    "amqp:not-found": 404,
    "amqp:unauthorized-access": 403,
    "amqp:invalid-field": 400,
    "amqp:decode-error": 400,
    "amqp:precondition-failed": 409,
    "amqp:resource-limit-exceeded": 507,
    "amqp:not-implemented": 501,
}


class Answer:
    """The answer to one request."""

    def __init__(self, status: int, text: str, body: Any = None) -> None:
        self.status, self.text, self.body = status, text, body


class ManagementAnswers(ServedLink):
    """A link over which a client receives the answers to its requests."""

    def __init__(self, conversation: Context, link: Any) -> None:
        self._conversation = conversation
        self.link = link
        self._pointer = link._impl
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._count = 0

    @property
    def is_full(self) -> bool:
        """Whether the client leaves so much that its requests are refused."""
        return self._bytes > ANSWERS_BYTES

    def answers(self, address: str) -> bool:
        """Return whether it receives the answers to requests with this `reply-to`."""
        return address in ("", ADDRESS, self.link.remote_target.address)

    def add(self, data: bytes) -> None:
        """Send an answer, as soon as there is credit."""
        if len(self._waiting) < ANSWERS_MAX:
            self._waiting.append(data)
            self._bytes += len(data)
            self.flow()

    def flow(self) -> None:
        """Send answers, as far as the credit goes."""
        while self._waiting and lib.pn_link_credit(self._pointer) > 0:
            self._count += 1
            tag, data = b"%d" % self._count, self._waiting.popleft()
            self._bytes -= len(data)
            engine.settle(engine.send(self._pointer, tag, data))
        if lib.pn_link_get_drain(self._pointer):
            lib.pn_link_drained(self._pointer)
        self._conversation.flush()

    def take(self) -> None:
        """Do nothing: it has no queue."""

    def updated(self, delivery: Any) -> None:
        """Ignore the state of an answer."""

    def close(self) -> None:
        """Drop the answers that the client has not got."""
        self._waiting.clear()
        self._bytes = 0


class ManagementRequests(RequestLink):
    """A link over which a client sends its requests."""

    def __init__(self, conversation: Context, link: Any) -> None:
        super().__init__(conversation, link, credit=CREDIT, request_bytes=REQUEST_BYTES)
        self._turn = asyncio.Lock()  # one request of the link at a time: an answer may be large

    async def process(self, delivery: Any, data: bytes) -> None:
        async with self._turn:
            await self._process_next(delivery, data)

    async def _process_next(self, delivery: Any, data: bytes) -> None:
        try:
            request = Request(data)
        except BadMessage as error:
            engine.reject(delivery, condition_of(AmqpFault("amqp:decode-error", str(error))))
            self._conversation.flush()
            return
        answers = self._answers_to(request)
        if answers is not None and answers.is_full:
            text = f"{ANSWERS_BYTES} bytes of answers wait for the credit of the client"
            engine.reject(delivery, condition_of(AmqpFault(LIMIT, text)))
            lib.pn_link_flow(self._pointer, 1)
            self._conversation.flush()
            return
        try:
            answer = await self._execute(request)
        except ClientError as error:
            condition = condition_of(error)
            answer = Answer(STATUS.get(condition.name, 500), condition.description or "")
        if self._conversation.is_over:
            return
        if not self.is_freed:
            engine.accept(delivery)
            lib.pn_link_flow(self._pointer, 1)
        await self._answer(request, request.encoded(answer))
        self._conversation.flush()

    async def _answer(self, request: Request, data: bytes) -> None:
        """Send an answer over the link for answers, or to the queue that the request names."""
        link = self._answers_to(request)
        if link is not None:
            link.add(data)
            return
        now_ms = int(time.time() * 1000)
        message = arrived(data, request.reply_to, settled=False, now_ms=now_ms).message
        try:
            await self._conversation.control.request(frames.Send, [message], b"", b"")
        except ClientError as error:
            log.warning("amqp_message_dropped", queue=request.reply_to, reason=str(error))

    def _answers_to(self, request: Request) -> ManagementAnswers | None:
        """Return the link that gets the answer, None if it goes to a queue."""
        for link in self._conversation.links.values():
            if isinstance(link, ManagementAnswers) and link.answers(request.reply_to):
                return link
        return None

    async def _execute(self, request: Request) -> Answer:
        """Execute a request.  Raises ClientError."""
        operation = OPERATIONS.get(request.operation)
        if operation is None:
            return Answer(501, f"the operation {request.operation[:40]} is not known")
        return await operation(self._conversation.control.request, request)


Ask = Callable[..., Awaitable[Any]]


async def _create(ask: Ask, request: Request) -> Answer:
    made = await ask(operator_frames.CreateQueue, request.name, *_new(request.attributes))
    return Answer(201, "created", _shown(made))


async def _read(ask: Ask, request: Request) -> Answer:
    return Answer(200, "OK", _shown(await ask(operator_frames.ShowQueue, request.name)))


async def _delete(ask: Ask, request: Request) -> Answer:
    await ask(operator_frames.DeleteQueue, request.name)
    return Answer(204, "deleted", {})


async def _purge(ask: Ask, request: Request) -> Answer:
    purged = await ask(operator_frames.PurgeQueue, request.name)
    return Answer(200, "purged", {"messages": purged["messages"]})


async def _query(ask: Ask, request: Request) -> Answer:
    found = await ask(operator_frames.ListQueues)
    return Answer(200, "OK", _table(found, request.attributes))


async def _operations(ask: Ask, request: Request) -> Answer:
    return Answer(200, "OK", {QUEUE: {each: [] for each in ("CREATE", "READ", "DELETE", "PURGE")}})


async def _types(ask: Ask, request: Request) -> Answer:
    return Answer(200, "OK", {QUEUE: []})


#: All operations: each asks the daemon with the rights of the client.
OPERATIONS: dict[str, Callable[[Ask, Request], Awaitable[Answer]]] = {
    "CREATE": _create,
    "READ": _read,
    "DELETE": _delete,
    "PURGE": _purge,
    "QUERY": _query,
    "GET-QUEUES": _query,
    "GET-OPERATIONS": _operations,
    "GET-TYPES": _types,
}


class Request:
    """A request of a client."""

    def __init__(self, data: bytes) -> None:
        """Read a request.  Raises BadMessage."""
        found = arrived(data, ADDRESS, settled=False, now_ms=int(time.time() * 1000))
        sections = {each.code: each for each in parts.split(data)}
        properties = _section(data, sections, parts.PROPERTIES) or []
        given = _section(data, sections, parts.APPLICATION) or {}
        fields = dict(zip(STANDARD, properties, strict=False))
        self.operation = str(given.get("operation", ""))
        self.name = str(given.get("name", given.get("identity", "")))
        self.reply_to = str(fields.get(names.REPLY_TO) or found.message.response_queue)
        correlation = fields.get(names.CORRELATION_ID)
        self.correlation = fields.get(names.MESSAGE_ID) if correlation is None else correlation
        body = _section(data, sections, parts.VALUE)
        self.attributes: dict[Any, Any] = body if isinstance(body, dict) else {}
        if self.operation == "QUERY":
            self.attributes.setdefault("count", given.get("count"))
            self.attributes.setdefault("offset", given.get("offset"))

    def encoded(self, answer: Answer) -> bytes:
        """Return the answer as a message."""
        properties: list[Any] = [None] * len(STANDARD)
        properties[STANDARD.index(names.TO)] = self.reply_to
        properties[STANDARD.index(names.CORRELATION_ID)] = self.correlation
        values = {
            "statusCode": proton.int32(answer.status),
            "statusDescription": answer.text,
        }
        return b"".join(
            (
                parts.encode(parts.PROPERTIES, properties[:6]),
                parts.encode(parts.APPLICATION, values),
                parts.encode(parts.VALUE, answer.body if answer.body is not None else {}),
            )
        )


def _section(data: bytes, sections: dict[int, Any], code: int) -> Any:
    section = sections.get(code)
    return None if section is None else parts.decode(data[section.start : section.end])


def _new(attributes: dict[Any, Any]) -> tuple[Any, ...]:
    """Return the properties of a new queue: transactional, label, journal, quota."""
    quota = attributes.get("quota")
    return (
        bool(attributes.get("transactional", False)),
        str(attributes.get("label", "")),
        bool(attributes.get("journal", False)),
        quota if isinstance(quota, int) and not isinstance(quota, bool) else None,
    )


def _shown(queue: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of a queue, as AMQP can express them."""
    plain = (str, int, bool, float)
    found = {key: each for key, each in queue.items() if isinstance(each, plain)}
    return {**found, "type": QUEUE, "identity": queue.get("format_name", queue.get("name", ""))}


def _table(queues: list[dict[str, Any]], attributes: dict[Any, Any]) -> dict[str, Any]:
    """Return queues as the specification has them: names of attributes, and a list for each."""
    offset, count = attributes.get("offset"), attributes.get("count")
    start = offset if isinstance(offset, int) and offset > 0 else 0
    end = start + count if isinstance(count, int) and count >= 0 else None
    shown = [_shown(each) for each in queues[start:end]]
    wanted = [str(each) for each in attributes.get("attributeNames") or []]
    columns = wanted or sorted({key for each in shown for key in each})
    return {
        "attributeNames": columns,
        "results": [[each.get(column) for column in columns] for each in shown],
    }
