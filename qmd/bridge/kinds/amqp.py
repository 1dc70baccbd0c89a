"""Brokers of AMQP 1.0: RabbitMQ, ActiveMQ Artemis, Azure Service Bus and others.

The mapping is that of the AMQP door (docs/amqp.md).  Outward, a message is removed when the broker
has accepted it; a broker that finds duplicates by their ids makes that exactly once.  Inward, the
position has the ids of the last messages, so that one that is delivered again is known.

The engine is Proton.  Its blocking calls run in one thread for each bridge.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import proton
from proton import Delivery, Endpoint, Link, SSLDomain
from proton.utils import BlockingConnection

from qmd.bridge.definition import Amqp
from qmd.bridge.ends import (
    Arrival,
    Position,
    Published,
    Recent,
    Refused,
    Unreachable,
    position_as,
)
from qmd.client.message import Message
from qmd.doors.amqp.arriving import arrived
from qmd.doors.amqp.leaving import NOT_ENCODABLE, encoded
from qmd.doors.amqp.sections import BadMessage

TIMEOUT_S = 10.0
RECENT = 20_000  # ids that an outward bridge remembers
#: Ids in the position of an inward one: much more than a broker can have unsettled.
REMEMBERED = 2_000

T = TypeVar("T")


class _Lost(Exception):
    """The connection or the link has ended."""


class _Connection:
    """A blocking connection in a thread of its own."""

    def __init__(self, definition: Amqp) -> None:
        self.definition = definition
        self._thread: ThreadPoolExecutor | None = None
        self.connection: Any = None

    async def run(self, call: Callable[[], T]) -> T:
        """Run a call in the thread.  Raises Unreachable."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="bridge-amqp")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, call)
        except (proton.ProtonException, _Lost, OSError) as error:
            raise Unreachable(f"{type(error).__name__}: {error}") from error

    def connect(self) -> None:
        """Connect; in the thread."""
        given = self.definition
        options: dict[str, Any] = {}
        if given.user:
            options |= {"user": given.user, "password": given.password or ""}
            options |= {"allowed_mechs": "PLAIN SCRAM-SHA-256", "allow_insecure_mechs": True}
        self.connection = BlockingConnection(
            given.url,
            timeout=TIMEOUT_S,
            ssl_domain=_tls(given),
            heartbeat=30,
            **options,
        )

    async def close(self) -> None:
        if self._thread is None:
            return

        def end() -> None:
            if self.connection is not None:
                with contextlib.suppress(Exception):
                    self.connection.timeout = 1
                    self.connection.close()
                self.connection = None

        await asyncio.get_running_loop().run_in_executor(self._thread, end)
        self._thread.shutdown(wait=False)
        self._thread = None


class AmqpSink:
    """An address of a broker, as the end to which messages go."""

    guarantee = (
        "at least once and in order, and not again when only the daemon or the connection to it"
        " ends; exactly once if the broker finds duplicates by their ids"
    )

    def __init__(self, definition: Amqp, queue_manager: str) -> None:
        self._connection = _Connection(definition)
        self._definition = definition
        self._queue_manager = queue_manager
        self._recent = Recent(RECENT)
        self._link: Any = None
        self._tag = 0

    async def open(self) -> None:
        def open_() -> None:
            self._connection.connect()
            sender = self._connection.connection.create_sender(self._definition.address)
            self._link = sender.link

        await self._connection.run(open_)

    async def publish(self, messages: Sequence[Message]) -> Published:
        packets: list[tuple[int, Message, bytes]] = []
        refused: Refused | None = None
        for index, message in enumerate(messages):
            if message.id in self._recent:
                continue
            try:
                packets.append((index, message, self._encoded(message)))
            except NOT_ENCODABLE as error:
                refused = Refused(index, f"AMQP cannot express it: {error}")
                break
        outcomes = await self._connection.run(lambda: self._send([each for *_, each in packets]))
        for (index, message, _), reason in zip(packets, outcomes, strict=True):
            if reason is None:
                self._recent.add(message.id)
            elif reason:
                return Published(index, Refused(index, reason))
            else:
                return Published(index)  # released: the broker does not take it now
        return Published(len(messages) if refused is None else refused.at, refused)

    def _encoded(self, message: Message) -> bytes:
        raw = encoded(message.stored, self._queue_manager)
        if not self._definition.duplicate_property:
            return raw
        whole = proton.Message()
        whole.decode(raw)
        whole.properties = {
            **(whole.properties or {}),
            self._definition.duplicate_property: message.id,
        }
        found: bytes = whole.encode()
        return found

    def _send(self, packets: Sequence[bytes]) -> list[str | None]:
        """Send in the thread; return None for each accepted one, or the reason, or ""."""
        link, connection = self._link, self._connection.connection
        deliveries = []
        for packet in packets:
            connection.wait(
                lambda: link.credit > 0 or _ended(link), msg="credit", timeout=TIMEOUT_S
            )
            if _ended(link):
                raise _Lost(_reason(link.remote_condition) or "the link was closed")
            self._tag += 1
            delivery = link.delivery(str(self._tag))
            link.stream(packet)
            link.advance()
            deliveries.append(delivery)
        connection.wait(
            lambda: all(each.remote_state or each.settled for each in deliveries) or _ended(link),
            msg="outcomes",
            timeout=TIMEOUT_S,
        )
        found = [_outcome(each) for each in deliveries]
        for each in deliveries:
            each.settle()
        return found

    async def close(self) -> None:
        await self._connection.close()


class _Incoming(proton.Handler):  # type: ignore[misc]  # an extra without types
    """Deliveries as bytes, before Proton makes objects of them."""

    def __init__(self, connection: _Connection) -> None:
        super().__init__()
        self._connection = connection
        self.waiting: deque[tuple[bytes, Any]] = deque()

    def on_delivery(self, event: Any) -> None:
        delivery = event.delivery
        if delivery.link.is_receiver and delivery.readable and not delivery.partial:
            raw = delivery.link.recv(delivery.pending)
            delivery.link.advance()
            self.waiting.append((raw, delivery))
            if self._connection.connection is not None:
                self._connection.connection.container.yield_()


class AmqpSource:
    """An address of a broker, as the end from which messages come."""

    guarantee = (
        "exactly once, for messages with an id, as far as the broker delivers unsettled messages"
        f" again among the next {REMEMBERED}; at least once for messages without one"
    )

    def __init__(self, definition: Amqp) -> None:
        self._connection = _Connection(definition)
        self._definition = definition
        self._incoming = _Incoming(self._connection)
        self._recent = Recent(REMEMBERED)
        self._receiver: Any = None
        self._link: Any = None
        self._taken: list[Any] = []

    async def open(self, position: Position) -> None:
        self._recent = Recent(REMEMBERED, position_as(list[str], position) or ())

        def open_() -> None:
            self._connection.connect()
            # The end of this object would take the handler from its link.
            self._receiver = self._connection.connection.create_receiver(
                self._definition.address, credit=self._definition.batch, handler=self._incoming
            )
            self._link = self._receiver.link

        await self._connection.run(open_)

    async def fetch(self, limit: int, wait_s: float, queue: str) -> Sequence[Arrival]:
        found = await self._connection.run(lambda: self._take(limit, wait_s))
        self._taken = [delivery for _, delivery in found]
        now_ms = int(time.time() * 1000)
        arrivals: list[Arrival] = []
        for raw, _ in found:
            message_id = _id_of(raw)
            known = bool(message_id) and message_id in self._recent
            if message_id:
                self._recent.add(message_id)
            arrivals.append(_arrival(raw, message_id, queue, now_ms, known=known))
        if arrivals:
            position = list(self._recent)
            arrivals = [each._replace(position=position) for each in arrivals]
        return arrivals

    def _take(self, limit: int, wait_s: float) -> list[tuple[bytes, Any]]:
        """Wait in the thread for the first message, and return those that are there."""
        link, waiting = self._link, self._incoming.waiting
        with contextlib.suppress(proton.Timeout):
            self._connection.connection.wait(
                lambda: bool(waiting) or _ended(link), msg="a message", timeout=wait_s
            )
        if not waiting and _ended(link):
            raise _Lost(_reason(link.remote_condition) or "the link was closed")
        return [waiting.popleft() for _ in range(min(limit, len(waiting)))]

    async def done(self) -> None:
        await self._connection.run(self._accept)

    def _accept(self) -> None:
        for delivery in self._taken:
            delivery.update(Delivery.ACCEPTED)
            delivery.settle()
        self._link.flow(len(self._taken))
        self._taken = []
        connection = self._connection.connection
        with contextlib.suppress(proton.Timeout):  # let the dispositions leave now
            connection.wait(lambda: not connection.conn.transport.pending(), timeout=1.0)

    async def close(self) -> None:
        await self._connection.close()
        self._receiver = self._link = None


def _arrival(raw: bytes, message_id: str, queue: str, now_ms: int, *, known: bool) -> Arrival:
    if known:
        return Arrival(message_id, None, None, b"")
    try:
        new = arrived(raw, queue, settled=False, now_ms=now_ms).message
    except BadMessage as error:
        return Arrival(message_id, None, None, raw, str(error))
    return Arrival(message_id, new, None, raw)


def _id_of(raw: bytes) -> str:
    """Return the id of a message with its type; empty: it has none."""
    if not raw:
        return ""  # Proton would end the process by an assertion
    message = proton.Message()
    try:
        message.decode(raw)
        found = message.id
    except Exception:
        return ""  # Proton checks little itself: decoding raises anything, and `arrived` says why
    return "" if found is None else f"{type(found).__name__}:{found}"


def _outcome(delivery: Any) -> str | None:
    """Return None for an accepted delivery, a reason for a rejected one, and "" otherwise."""
    if delivery.remote_state == Delivery.ACCEPTED:
        return None
    if delivery.remote_state == Delivery.REJECTED:
        return _reason(delivery.remote.condition) or "the broker rejected it"
    return ""


def _reason(condition: Any) -> str:
    return "" if condition is None else f"{condition.name}: {condition.description}"


def _ended(link: Link) -> bool:
    return bool(link.state & Endpoint.REMOTE_CLOSED)


def _tls(given: Amqp) -> SSLDomain | None:
    if not given.url.startswith("amqps:"):
        return None
    domain = SSLDomain(SSLDomain.MODE_CLIENT)
    if given.ca_file is not None:
        domain.set_trusted_ca_db(str(given.ca_file))
    if given.certificate is not None:
        key = given.key or given.certificate
        domain.set_credentials(str(given.certificate), str(key), None)
    domain.set_peer_authentication(SSLDomain.VERIFY_PEER_NAME)
    return domain
