"""NATS JetStream.

Outward, each message has the header `Nats-Msg-Id`: the server stores none twice within its
duplicate window, and at each start the bridge reads the ids of the last messages of the stream.
Inward, the position is the sequence number in the stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, RetentionPolicy

from qmd.bridge.definition import Nats
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
from qmd.bridge.kinds.nats_credentials import BadCredentials, read_credentials
from qmd.client.message import Message

TIMEOUT_S = 5.0
SCANNED = 10_000  # messages at the end of a stream whose ids are read at a start
_FETCHED = 1000
_MESSAGE_ID = "Nats-Msg-Id"
#: Headers of the server and of this bridge, which are no properties.
_OWN = ("nats-",)
_HEADERS_BYTES_MAX = 32 * 1024

_LOST = (nats.errors.Error, nats.js.errors.Error, OSError, asyncio.TimeoutError)


async def _ignored(*_: object) -> None:
    """Errors of the connection come out of the calls that they concern."""


class Place(msgspec.Struct, frozen=True):
    """The position of an inward bridge."""

    sequence: Annotated[int, msgspec.Meta(ge=1)]
    #: A stream that was made anew begins again with the same numbers.
    stream_created: str


class _Client(Client):  # type: ignore[misc]  # an extra without types
    """A client that never falls back from TLS.

    The library encrypts if the server asks for it in its first line, which anybody on the way can
    change: then it would send the password in the clear.
    """

    def __init__(self, *, is_tls: bool) -> None:
        super().__init__()
        self._is_tls = is_tls

    def _connect_command(self) -> bytes:
        if self._is_tls and not self._server_info.get("tls_required"):
            raise nats.errors.Error("the server offers no TLS, and the definition asks for it")
        found: bytes = super()._connect_command()
        return found


class _Connection:
    """A connection that is not repaired: the bridge opens a new one."""

    def __init__(self, definition: Nats) -> None:
        self.definition = definition
        self._nc: Any = None
        self.js: Any = None

    async def open(self) -> Any:
        """Connect; return the facts about the stream.  Raises Unreachable, DoesNotFit."""
        given = self.definition
        options: dict[str, Any] = {
            "servers": [given.url],
            "allow_reconnect": False,
            "max_reconnect_attempts": 1,
            "connect_timeout": TIMEOUT_S,
            "error_cb": _ignored,
            "disconnected_cb": _ignored,
            "closed_cb": _ignored,
        }
        if given.user:
            options |= {"user": given.user, "password": given.password or ""}
        if given.credentials_file is not None:
            try:
                found = read_credentials(given.credentials_file)
            except BadCredentials as error:
                raise DoesNotFit(str(error)) from error
            options |= {"user_jwt_cb": lambda: found.token, "signature_cb": found.signed}
        if given.ca_file is not None or given.certificate is not None:
            options["tls"] = _tls(given)
        self._nc = _Client(is_tls=given.url.startswith("tls:") or "tls" in options)
        try:
            await asyncio.wait_for(self._nc.connect(**options), 2 * TIMEOUT_S)
            self.js = self._nc.jetstream(timeout=TIMEOUT_S)
            return await self.js.stream_info(given.stream)
        except nats.js.errors.NotFoundError as error:
            await self.close()
            raise DoesNotFit(f"there is no stream {given.stream}") from error
        except _LOST as error:
            await self.close()
            raise _unreachable(error) from error

    @property
    def payload_max(self) -> int:
        return int(self._nc.max_payload)

    async def close(self) -> None:
        if self._nc is not None:
            with contextlib.suppress(*_LOST):
                await asyncio.wait_for(self._nc.close(), TIMEOUT_S)
            self._nc = None


class NatsSink:
    """A subject, as the end to which messages go."""

    guarantee = (
        "exactly once and in order: repeated messages are found by their ids, within the duplicate"
        f" window of the stream and among its last {SCANNED} messages"
    )

    def __init__(self, definition: Nats) -> None:
        self._definition = definition
        self._connection = _Connection(definition)
        self._recent = Recent(2 * SCANNED)

    async def open(self) -> None:
        facts = await self._connection.open()
        if facts.config.retention == RetentionPolicy.WORK_QUEUE:
            return  # its messages cannot be read without taking them
        state = facts.state
        first = max(state.first_seq, state.last_seq - SCANNED + 1, 1)
        if state.messages and first <= state.last_seq:
            await self._scan(first, state.last_seq)

    async def _scan(self, first: int, last: int) -> None:
        """Read the ids of the messages from `first` to `last`."""
        config = ConsumerConfig(
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=first,
            ack_policy=AckPolicy.NONE,
            headers_only=True,
            inactive_threshold=30.0,
        )
        definition, js = self._definition, self._connection.js
        try:
            subscription = await js.pull_subscribe(
                definition.subject, stream=definition.stream, config=config
            )
            pending = (await subscription.consumer_info()).num_pending
            while pending > 0:
                found = await subscription.fetch(min(_FETCHED, pending), timeout=TIMEOUT_S)
                pending -= len(found)
                for each in found:
                    if each.headers and _MESSAGE_ID in each.headers:
                        self._recent.add(each.headers[_MESSAGE_ID])
                if found and found[-1].metadata.sequence.stream >= last:
                    break
            await subscription.unsubscribe()
        except _LOST as error:
            raise _unreachable(error) from error

    async def publish(self, messages: Sequence[Message]) -> Published:
        definition, js = self._definition, self._connection.js
        waiting: list[tuple[str, Any]] = []
        refused: Refused | None = None
        try:
            for index, message in enumerate(messages):
                if message.id in self._recent:
                    continue
                headers = {**headers_of(message), _MESSAGE_ID: message.id}
                reason = self._too_large(headers, message.body)
                if reason:
                    refused = Refused(index, reason)
                    break
                future = await js.publish_async(
                    definition.subject,
                    message.body,
                    wait_stall=TIMEOUT_S,
                    stream=definition.stream,
                    headers=headers,
                )
                waiting.append((message.id, future))
            for message_id, future in waiting:
                await asyncio.wait_for(future, TIMEOUT_S)
                self._recent.add(message_id)
        except _LOST as error:
            for _, future in waiting:
                future.cancel()
            raise _unreachable(error) from error
        return Published(len(messages) if refused is None else refused.at, refused)

    def _too_large(self, headers: dict[str, str], body: bytes) -> str:
        size = len(body) + sum(len(name) + len(text) + 4 for name, text in headers.items()) + 64
        if size <= self._connection.payload_max:
            return ""
        return f"it has {size} bytes, and the server takes {self._connection.payload_max}"

    async def close(self) -> None:
        await self._connection.close()


class NatsSource:
    """A subject, as the end from which messages come."""

    guarantee = "exactly once and in order: the position is the sequence number in the stream"

    def __init__(self, definition: Nats, name: str) -> None:
        self._definition = definition
        self._connection = _Connection(definition)
        self._durable = f"qmd-{name}"
        self._subscription: Any = None
        self._last = 0  # the sequence number of the last message
        self._counted = 0  # the messages of this consumer
        self._made_at = ""  # the time at which the stream was created
        self._fetched: list[Any] = []
        self._must_acknowledge = False

    async def open(self, position: Position) -> None:
        facts = await self._connection.open()
        retention = facts.config.retention
        if retention == RetentionPolicy.INTEREST:
            await self.close()
            raise DoesNotFit(
                f"the stream {self._definition.stream} keeps messages only while consumers are"
                " interested; use limits or a work queue"
            )
        self._must_acknowledge = retention == RetentionPolicy.WORK_QUEUE
        self._made_at = str(facts.created)
        place = position_as(Place, position)
        self._last, self._counted = await self._number(place, facts), 0
        try:
            with contextlib.suppress(nats.js.errors.NotFoundError):
                await self._connection.js.delete_consumer(self._definition.stream, self._durable)
            self._subscription = await self._connection.js.pull_subscribe(
                self._definition.subject,
                durable=self._durable,
                stream=self._definition.stream,
                config=self._config(is_first=position is None),
            )
        except _LOST as error:
            await self.close()
            raise _unreachable(error) from error

    async def _number(self, place: Place | None, facts: Any) -> int:
        """Return the sequence number of a position.  Raises DoesNotFit."""
        if place is None:
            return 0
        if place.stream_created == self._made_at and place.sequence <= facts.state.last_seq:
            return place.sequence
        await self.close()
        raise DoesNotFit(
            f"the position is number {place.sequence} of a stream {self._definition.stream} created"
            f" at {place.stream_created}; the one there was created at {self._made_at} and ends"
            f" with number {facts.state.last_seq}: it was made anew, or has lost messages"
        )

    def _config(self, *, is_first: bool) -> ConsumerConfig:
        if self._must_acknowledge:
            # Messages up to the position are acknowledged or skipped.  A time-out would deliver
            # messages out of their order: the consumer is made anew instead.
            return ConsumerConfig(
                deliver_policy=DeliverPolicy.ALL,
                ack_policy=AckPolicy.EXPLICIT,
                ack_wait=24 * 3600.0,
                max_ack_pending=10_000,
            )
        if is_first and self._definition.start == "end":
            return ConsumerConfig(deliver_policy=DeliverPolicy.NEW, ack_policy=AckPolicy.NONE)
        if is_first:
            return ConsumerConfig(deliver_policy=DeliverPolicy.ALL, ack_policy=AckPolicy.NONE)
        return ConsumerConfig(
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=self._last + 1,
            ack_policy=AckPolicy.NONE,
        )

    async def fetch(self, limit: int, wait_s: float, queue: str) -> Sequence[Arrival]:
        try:
            self._fetched = await self._subscription.fetch(limit, timeout=wait_s)
        except nats.errors.TimeoutError:
            if not self._connection.js._nc.is_connected:
                raise Unreachable("the connection has ended") from None
            return []
        except _LOST as error:
            raise _unreachable(error) from error
        arrivals: list[Arrival] = []
        for each in self._fetched:
            sequence = each.metadata.sequence
            if sequence.consumer != self._counted + 1:
                raise Unreachable(f"messages are missing before number {sequence.stream}")
            self._counted = sequence.consumer
            if sequence.stream > self._last:  # else: committed, and not acknowledged before a kill
                self._last = sequence.stream
                arrivals.append(_arrival(each, Place(sequence.stream, self._made_at), queue))
        if not arrivals and self._must_acknowledge:
            await self.done()
        return arrivals

    async def done(self) -> None:
        if self._must_acknowledge:
            try:
                for each in self._fetched:
                    await each.ack_sync(timeout=TIMEOUT_S)
            except _LOST as error:
                raise _unreachable(error) from error

    async def close(self) -> None:
        await self._connection.close()


def _arrival(message: Any, place: Place, queue: str) -> Arrival:
    headers = {
        name: text
        for name, text in (message.headers or {}).items()
        if not name.lower().startswith(_OWN)
    }
    position = msgspec.to_builtins(place)
    message_id = headers.get(ID, str(place.sequence))
    try:
        new = message_of(headers, message.data, queue)
    except Unusable as error:
        return Arrival(message_id, None, position, message.data, str(error))
    return Arrival(message_id, new, position, message.data)


def _unreachable(error: BaseException) -> Unreachable:
    return Unreachable(str(error) or type(error).__name__)


def _tls(given: Nats) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=given.ca_file)
    if given.certificate is not None:
        context.load_cert_chain(given.certificate, given.key)
    return context
