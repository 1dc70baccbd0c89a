"""Another queue manager for integration tests: the remote end of a session, and its packets.

A test controls each act of that end: which messages it acknowledges, and when.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any

from protocol import (
    FinalAckBody,
    OrderAckBody,
    build_final_ack,
    build_order_ack,
    order_ack_body,
    order_queue_name,
    patch_sequence,
    transaction_offset,
)
from protocol.framing import PacketBuffer
from protocol.message_class import MessageClass
from protocol.names.format_name import parse_format_name
from qmd.control_protocol import messages as frames
from qmd.control_protocol.messages import NewMessage
from qmd.core.session import (
    Acknowledged,
    Closed,
    MessageReceived,
    Opened,
    Session,
    SessionSettings,
)
from qmd.message.addresses import NO_ADDRESS, queue_address, reply_address
from qmd.message.build import compose
from tests.integration.managers import PATIENCE_S, Host, until

_numbers = itertools.count(1_000_000)


def packet(
    body: bytes = b"",
    *,
    source: bytes,
    number: int,
    queue: str = "orders",
    delivery: int = frames.RECOVERABLE,
    position: tuple[int, int, int] | None = None,
    admin: str = "",
    sent_s: float | None = None,
    **properties: Any,
) -> bytes:
    """Return the packet of a message from another queue manager.

    `position` is (sequence id, number, previous number).
    """
    if position is not None:
        delivery = frames.TRANSACTIONAL
    built = compose(
        NewMessage("", body, **properties),
        source=source,
        destination=queue_address(parse_format_name(f"DIRECT=TCP:127.0.0.1\\private$\\{queue}")),
        admin=reply_address(parse_format_name(admin)) if admin else NO_ADDRESS,
        response=NO_ADDRESS,
        message_number=number,
        sent_time_s=int(time.time() if sent_s is None else sent_s),
        delivery=delivery,
        position=None if position is None else (*position[:2], 0),
    )
    if position is None:
        return built
    changed, offset = bytearray(built), transaction_offset(built)
    assert offset is not None
    patch_sequence(changed, offset, *position)
    return bytes(changed)


class Remote(asyncio.Protocol):
    """The other end of a session.  It receives all messages, and acknowledges them on request."""

    def __init__(self, guid: bytes, *, initiator: bool, **settings: Any) -> None:
        self.guid = guid
        self.session = Session(
            initiator=initiator,
            own_id=guid,
            settings=SessionSettings(**settings),
            now=time.monotonic(),
        )
        self.messages: list[MessageReceived] = []
        self.acknowledged: list[object] = []
        self.opened = asyncio.Event()
        self.closed = asyncio.Event()
        self.transport: Any = None
        self._initiator = initiator
        self._buffer = PacketBuffer()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        if self._initiator:
            self.session.start(time.monotonic())
            self.flush()

    def data_received(self, data: bytes) -> None:
        for event in self.session.receive(self._buffer.feed(data), time.monotonic()):
            if isinstance(event, MessageReceived):
                self.messages.append(event)
            elif isinstance(event, Acknowledged):
                self.acknowledged += event.tokens
            elif isinstance(event, Opened):
                self.opened.set()
            elif isinstance(event, Closed):
                self.transport.close()
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()

    def flush(self) -> None:
        if data := self.session.data_to_send():
            self.transport.write(data)

    def send(self, *packets: bytes) -> None:
        """Send packets, as far as the window allows; the packet itself is the token."""
        for each in packets:
            express = not each[60] & 0x60
            self.session.send(each, recoverable=not express, token=each, now=time.monotonic())
        self.flush()

    def acknowledge(self) -> None:
        """Acknowledge all received recoverable messages as stored."""
        numbers = [each.recoverable_number for each in self.messages if each.recoverable_number]
        self.session.mark_stored(numbers, time.monotonic())
        self.flush()

    def order_ack(self, of: MessageReceived) -> None:
        """Send an order ack for all messages of the sequence up to this one."""
        transaction = of.message.transaction
        assert transaction is not None
        self.send(
            build_order_ack(
                source_queue_manager=self.guid,
                destination=order_queue_name("127.0.0.1"),
                message_number=next(_numbers),
                sent_time=int(time.time()),
                body=OrderAckBody(
                    transaction.sequence_id,
                    transaction.sequence_number,
                    transaction.sequence_number - 1,
                ),
            )
        )

    def final_ack(
        self, of: MessageReceived, message_class: int, *, message_number: int | None = None
    ) -> None:
        """Send a final ack for a message of the queue manager."""
        user, transaction = of.message.user, of.message.transaction
        assert transaction is not None
        self.send(
            build_final_ack(
                source_queue_manager=self.guid,
                destination=order_queue_name("127.0.0.1"),
                message_number=next(_numbers),
                sent_time=int(time.time()),
                message_class=message_class,
                body=FinalAckBody(
                    transaction.sequence_id,
                    transaction.sequence_number,
                    transaction.previous_number,
                    user.source_queue_manager,
                    user.message_number if message_number is None else message_number,
                ),
            )
        )

    def close(self) -> None:
        self.transport.abort()

    @property
    def ordinary(self) -> list[bytes]:
        """The bodies of the received messages of applications."""
        return [
            each.message.properties.body
            for each in self.messages
            if not each.message.properties.message_class
        ]

    @property
    def classes(self) -> Counter[int]:
        """The number of received messages by message class."""
        return Counter(each.message.properties.message_class for each in self.messages)

    @property
    def order_acks(self) -> list[tuple[int, int]]:
        """The sequence id and number of each received order ack."""
        return [
            order_ack_body(each.message)[:2]
            for each in self.messages
            if each.message.properties.message_class == MessageClass.ORDER_ACK
        ]


async def dial(host: Host, guid: bytes, **settings: Any) -> Remote:
    """Open a session with `host` as a queue manager `guid`."""
    _, remote = await host.loop.create_connection(
        partial(Remote, guid, initiator=True, **settings), "127.0.0.1", host.port
    )
    async with asyncio.timeout(PATIENCE_S):
        await remote.opened.wait()
    return remote


@contextlib.asynccontextmanager
async def listening(
    guid: bytes, *, port: int = 0, **settings: Any
) -> AsyncIterator[RemoteListener]:
    """Listen as a queue manager `guid` that other queue managers can connect to."""
    listener = RemoteListener(guid, settings)
    server = await asyncio.get_running_loop().create_server(listener.connected, "127.0.0.1", port)
    listener.port = server.sockets[0].getsockname()[1]
    try:
        yield listener
    finally:
        server.close()
        for remote in listener.remotes:
            remote.close()


class RemoteListener:
    """The accepted sessions, the latest one last."""

    def __init__(self, guid: bytes, settings: Mapping[str, Any]) -> None:
        self.guid = guid
        self.port = 0
        self.remotes: list[Remote] = []
        self._settings = settings

    def connected(self) -> Remote:
        self.remotes.append(Remote(self.guid, initiator=False, **self._settings))
        return self.remotes[-1]

    def name(self, queue: str) -> str:
        return f"DIRECT=TCP:127.0.0.1:{self.port}\\private$\\{queue}"

    async def session(self) -> Remote:
        await until(lambda: self.remotes and self.remotes[-1].opened.is_set(), "a session")
        return self.remotes[-1]


def guid(number: int) -> bytes:
    assert number
    return struct.pack("<16s", number.to_bytes(4, "big").rjust(16, b"\x11"))
