"""Sources: each host that sends messages is a session of this door with the daemon.

message ──► session ──► acknowledged by the daemon
               └─► order ack, final ack ──► receipt of the stream, by POST
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple

from protocol.acknowledgments import MessageKind, classify, final_ack_body, order_ack_body
from protocol.message_class import MessageClass
from qmd.control_protocol.doors import AnnounceSession
from qmd.core.session import MessageReceived
from qmd.doors.srmp.client import HttpClient, NotAccepted
from qmd.doors.srmp.envelope import (
    ORDER_ACK_LABEL,
    Envelope,
    MessageId,
    StreamReceipt,
    write_envelope,
)
from qmd.doors.srmp.messages import now
from qmd.doors.srmp.session import BinarySession
from qmd.doors.srmp.stream_starts import Starts
from qmd.runtime.log import LimitedLog

RECEIPT_PAUSE_S = 0.2  # receipts of one stream within this time are one
AGAIN_FIRST_S, AGAIN_LAST_S = 1.0, 300.0
CONNECT_S = 10.0
NOT_UNDERSTOOD = 400

#: Makes a request to the daemon.  Raises ClientError.
Ask = Callable[..., Awaitable[Any]]


class Sender(NamedTuple):
    """The host that sends messages: its address, and the principals that it has proven."""

    address: str
    principals: tuple[str, ...] = ()
    is_encrypted: bool = False
    token: str = ""  # which the daemon checks


class Source:
    """One source of messages: its session with the daemon, and the receipts that it gets."""

    def __init__(
        self,
        guid: uuid.UUID,
        stated: uuid.UUID,
        sender: Sender,
        starts: Starts,
        client: HttpClient,
        ask: Ask,
        log: LimitedLog,
    ) -> None:
        """`guid` is that for the daemon, `stated` that for the other host: see sources.py."""
        self.sender = sender
        self._ask = ask
        self.guid = guid
        self._stated = stated
        self._starts = starts
        self._client = client
        self._log = log
        self._session: BinarySession | None = None
        self._opening = asyncio.Lock()
        self._receipts: dict[int, int] = {}  # stream -> the last number
        self._sending: dict[int, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def deliver(self, packet: bytes, *, recoverable: bool, daemon: tuple[str, int]) -> None:
        """Return when the daemon has the message.  Raises SessionEnded, OSError."""
        await (await self._open(daemon)).send(packet, recoverable=recoverable)

    async def _open(self, daemon: tuple[str, int]) -> BinarySession:
        async with self._opening:
            if self._session is not None and not self._session.ended:
                return self._session
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await self._connect(daemon)
                self._session = session = BinarySession(
                    reader,
                    writer,
                    self.guid.bytes_le,
                    initiator=True,
                    take=_nothing,
                    received=self._received,
                )
                self._spawn(session.run())
                await session.opened
            return session

    async def _connect(
        self, daemon: tuple[str, int]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the daemon for the host: its limits and rights decide about the messages."""
        family = socket.AF_INET6 if ":" in daemon[0] else socket.AF_INET
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            connection.bind((daemon[0], 0))
            address, port = connection.getsockname()[:2]
            sender = self.sender
            await self._ask(
                AnnounceSession, address, port, sender.address, list(sender.principals),
                sender.is_encrypted, sender.token,
            )  # fmt: skip
            await asyncio.get_running_loop().sock_connect(connection, daemon)
            return await asyncio.open_connection(sock=connection)
        except BaseException:
            connection.close()
            raise

    def _received(self, received: MessageReceived) -> None:
        """Handle a message of the daemon: an acknowledgment for this source."""
        session = self._session
        assert session is not None
        message = received.message
        kind = classify(message, self.guid.bytes_le)
        if kind is MessageKind.ORDER_ACK:
            body = order_ack_body(message)
            self._owe(body.sequence_id, body.sequence_number)
        elif kind is MessageKind.FINAL_ACK:
            self._spawn(self._final(session, received))
            return
        session.stored(received.recoverable_number)

    def _owe(self, stream: int, number: int) -> None:
        """Send the receipt for a stream soon; one that follows takes its place."""
        self._receipts[stream] = number
        if stream not in self._sending:
            self._sending[stream] = self._spawn(self._send_receipts(stream))

    async def _send_receipts(self, stream: int) -> None:
        pause_s = AGAIN_FIRST_S
        try:
            await asyncio.sleep(RECEIPT_PAUSE_S)
            while stream in self._receipts:
                number = self._receipts[stream]
                receipt = StreamReceipt(self._stated, stream, number)
                if not await self._post(receipt, MessageClass.ORDER_ACK):
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, AGAIN_LAST_S)
                elif self._receipts.get(stream) == number:
                    del self._receipts[stream]
        finally:
            self._sending.pop(stream, None)

    async def _final(self, session: BinarySession, received: MessageReceived) -> None:
        """Send a final receipt; the daemon keeps its acknowledgment until that has succeeded."""
        body, pause_s = final_ack_body(received.message), AGAIN_FIRST_S
        receipt = StreamReceipt(self._stated, body.sequence_id, body.sequence_number)
        about = MessageId(self._stated, body.message_number)
        number = received.message.properties.message_class
        while not session.ended and not await self._post(receipt, number, about):
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, AGAIN_LAST_S)
        session.stored(received.recoverable_number)

    async def _post(
        self, receipt: StreamReceipt, message_class: int, about: MessageId | None = None
    ) -> bool:
        """Send a receipt; return whether it was accepted, or can never be."""
        try:
            url = await self._starts.receipts_to(stream_name(self.guid, receipt.id))
        except OSError as error:
            self._log_limited("warning", "srmp_waits", reason=str(error))
            return False
        if not url:
            self._log_limited(
                "warning", "srmp_no_receipt", stream=receipt.id, source=str(receipt.owner)
            )
            return True
        decision = "positive" if message_class == MessageClass.ACK_RECEIVE else "negative"
        session = self._session
        daemon = session.session.remote_id if session is not None else None
        own = uuid.UUID(bytes_le=daemon) if daemon else uuid.UUID(int=0)
        envelope = Envelope(
            to=url,
            id=MessageId(own, secrets.randbelow(1 << 32)),
            sent_at=now(),
            label=ORDER_ACK_LABEL,
            stream_receipt=receipt,
            decided_at=None if about is None else now(),
            decision="" if about is None else decision,
            about=about,
            message_class=message_class,
            priority=0,
        )
        try:
            await self._client.post(url, write_envelope(envelope), "text/xml")
        except NotAccepted as error:
            self._log_limited("info", "srmp_receipt_not_accepted", url=url, reason=str(error))
            return error.status == NOT_UNDERSTOOD
        return True

    def _log_limited(self, level: str, event: str, **fields: object) -> None:
        """Log an event that the host can cause with each stream, rate-limited for the host."""
        self._log.log(level, event, key=self.sender.address, now=time.monotonic(), **fields)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @property
    def is_busy(self) -> bool:
        """Whether it has receipts to send."""
        return bool(self._receipts)

    async def close(self) -> None:
        """End the session, and all that it does."""
        if self._session is not None:
            self._session.close("the door stops")
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))


def stream_name(owner: uuid.UUID, stream: int) -> str:
    """Return the name of a stream."""
    return f"{owner}\\{stream}"


async def _nothing(packet: bytes) -> None:
    """Take a packet that needs no wait."""
