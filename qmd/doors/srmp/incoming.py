"""Requests of other hosts: each source of messages is a session of this door with the daemon.

    POST ──► envelope ──► packet ──► session ──► acknowledged by the daemon ──► 200
                                        └─► order ack ──► receipt of the stream, by POST

A request is answered after the daemon has acknowledged its message: one that is durable is on disk
then.  The daemon finds duplicates and gaps as in any session.  A request without an answer is made
again by its host.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog

from protocol.acknowledgments import MessageKind, classify, final_ack_body, order_ack_body
from protocol.message_class import MessageClass
from protocol.names.direct_name import PORT, DirectName, Transport
from protocol.names.format_name import FormatName, parse_format_name
from qmd.client import QueueManager
from qmd.client.errors import ClientError
from qmd.core.session import MessageReceived
from qmd.doors.http.exchange import Request, Response
from qmd.doors.srmp.client import HttpClient, NotAccepted
from qmd.doors.srmp.envelope import (
    ORDER_ACK_LABEL,
    Envelope,
    MessageId,
    NotSrmp,
    StreamReceipt,
    write_envelope,
)
from qmd.doors.srmp.messages import Posted, name_of, now, packet_of, read_request
from qmd.doors.srmp.redirection import Redirection, redirected
from qmd.doors.srmp.session import BinarySession, SessionEnded
from qmd.doors.srmp.sources import Sources
from qmd.runtime.definition_file import DefinitionFile

log = structlog.get_logger()

TEXT = "text/plain"
SOURCES_MAX = 1000
STREAMS_MAX = 100_000  # of which the URL for receipts is kept
STREAMS_OF_SOURCE_MAX = 1000
RECEIPT_PAUSE_S = 0.2  # receipts of one stream within this time are one
AGAIN_FIRST_S, AGAIN_LAST_S = 1.0, 300.0
QUEUE_KNOWN_S = 5.0
CONNECT_S = 10.0
#: The source of messages without the element of MSMQ.
_NAMESPACE = uuid.UUID("d1d0b8b5-4a52-4e12-9f0c-0f2b6f1f7e33")


class StreamStart(msgspec.Struct, frozen=True):
    """The URL to which the receipts of a stream are sent; its name is the id of the stream."""

    name: str
    receipts_to: str


class Starts:
    """The URLs for receipts: only the first message of a stream has it, so they are on disk."""

    def __init__(self, path: Path) -> None:
        self._file = DefinitionFile(path, StreamStart, OSError)

    def receipts_to(self, stream: str) -> str:
        """Return the URL for the receipts of a stream, or ""."""
        found = self._file.read().get(stream)
        return "" if found is None else found.receipts_to

    def keep(self, stream: str, receipts_to: str) -> None:
        """Keep the first URL of a stream, durably: another host must not direct its receipts.

        A source with too many streams loses its oldest one.  Raises OSError.
        """
        if self.receipts_to(stream):
            return
        source = stream.partition("\\")[0]

        def add(found: dict[str, StreamStart]) -> None:
            own = [name for name in found if name.startswith(source)]
            for name in own[: max(0, len(own) + 1 - STREAMS_OF_SOURCE_MAX)]:
                del found[name]
            found[stream] = StreamStart(stream, receipts_to)
            while len(found) > STREAMS_MAX:
                del found[next(iter(found))]

        self._file.change(add)


class Source:
    """One source of messages: its session with the daemon, and the receipts that it gets."""

    def __init__(
        self, guid: uuid.UUID, stated: uuid.UUID, starts: Starts, client: HttpClient
    ) -> None:
        """`guid` is that for the daemon, `stated` that for the other host: see sources.py."""
        self.guid = guid
        self._stated = stated
        self._starts = starts
        self._client = client
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
                reader, writer = await asyncio.open_connection(*daemon)
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
        url = self._starts.receipts_to(stream_name(self.guid, receipt.id))
        if not url:
            log.warning("srmp_no_receipt", stream=receipt.id, source=str(receipt.owner))
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
            log.info("srmp_not_accepted", url=url, message_id="", reason=str(error))
            return False
        return True

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


class Incoming:
    """The handler of requests."""

    def __init__(
        self,
        qm: QueueManager,
        daemon: tuple[str, int],
        starts: Starts,
        known: Sources,
        rules: Sequence[Redirection],
        names: Sequence[str],
        make_client: Callable[[], HttpClient],
        receipt: Callable[[Envelope, str], bool],
    ) -> None:
        """`receipt(envelope, address)` passes the receipt of a stream to the daemon."""
        self._qm = qm
        self._daemon = daemon
        self._starts = starts
        self._known = known
        self._rules = rules
        self._names = {name.casefold() for name in names}
        self._make_client = make_client
        self._receipt = receipt
        self._sources: OrderedDict[uuid.UUID, Source] = OrderedDict()
        self._queues: dict[str, tuple[float, bool | None]] = {}  # whether it is transactional
        self._number = int(time.time()) & 0x7FFFFFFF
        self.received = 0

    async def __call__(self, request: Request) -> Response:
        """Answer a request: 200 when the daemon has the message."""
        if request.method != "POST" or request.segments[0].lower() != "msmq":
            return _answer(404, "messages are sent by POST to /msmq/...")
        try:
            posted = read_request(request.body, request.headers.get("content-type", ""))
            return await self._take(posted, request)
        except NotSrmp as error:
            log.info("srmp_refused", host=request.peer.address, reason=str(error))
            return _answer(400, str(error))
        except ClientError as error:
            return _answer(503, error.text)
        except (SessionEnded, TimeoutError, OSError) as error:
            log.warning("srmp_waits", reason=str(error))
            return _answer(503, f"the queue manager does not take messages now: {error}")

    async def _take(self, posted: Posted, request: Request) -> Response:
        envelope = posted.envelope
        if envelope.stream_receipt is not None:
            # One that is not known belongs to a stream that has ended, or is sent again.
            self._receipt(envelope, request.peer.address)
            return _answer(200)
        destination = await self._destination(envelope, request)
        if envelope.stream is not None and envelope.stream.owner != envelope.id.source:
            raise NotSrmp("the stream is not one of the source of the message")
        identity = self._identity(envelope, request.peer.address)
        packet = packet_of(posted, destination, identity.source.bytes_le, identity.number)
        if envelope.stream is not None and envelope.stream.receipts_to:
            name_of(envelope.stream.receipts_to.partition("?")[0])
            stream = stream_name(identity.source, envelope.stream.id)
            self._starts.keep(stream, envelope.stream.receipts_to)
        source = await self._source(identity.source, envelope.id.source)
        await source.deliver(packet, recoverable=envelope.durable, daemon=self._daemon)
        self.received += 1
        return _answer(200)

    def _identity(self, envelope: Envelope, address: str) -> MessageId:
        """Return the identity of a message for the daemon.  Raises OSError."""
        own = uuid.uuid5(_NAMESPACE, self._qm.id)
        if not envelope.is_msmq:
            self._number = (self._number + 1) & 0xFFFFFFFF
            return MessageId(own, self._number)
        stated, number = envelope.id.source, envelope.id.number
        if stated == own:
            return MessageId(uuid.uuid5(own, address), number)
        return MessageId(self._known.guid_of(stated, address), number)

    async def _destination(self, envelope: Envelope, request: Request) -> FormatName:
        """Return the queue of this queue manager that a message is for.  Raises NotSrmp."""
        given = name_of(envelope.to)
        if given.host.casefold() not in {*self._names, _host(request.headers.get("host", ""))}:
            raise NotSrmp(f"{given.host} is not this host")
        url = redirected(envelope.to, self._rules)
        if url == envelope.to:
            path = given.local_path
        else:
            mapped = parse_format_name(url)
            if not isinstance(mapped, DirectName) or mapped.host != ".":
                raise NotSrmp(f"{url} is not a queue of this host")
            path = mapped.local_path
        name = DirectName(Transport.OS, self._qm.name, PORT, *path)
        is_transactional = await self._kind(str(DirectName(Transport.OS, ".", PORT, *path)))
        if is_transactional is None:
            raise NotSrmp(f"there is no queue {name}")
        if is_transactional is not (envelope.stream is not None):
            raise NotSrmp("streams go to transactional queues, and other messages do not")
        return name

    async def _kind(self, name: str) -> bool | None:
        """Return whether a queue is transactional; None: there is no such queue."""
        known = self._queues.get(name)
        if known is not None and known[0] > time.monotonic():
            return known[1]
        try:
            found: bool | None = bool((await self._qm.show_queue(name))["transactional"])
        except ClientError as error:
            if error.code not in ("no_such_queue", "name_not_understood", "no_such_subqueue"):
                raise
            found = None
        if len(self._queues) > SOURCES_MAX:
            self._queues.clear()
        self._queues[name] = time.monotonic() + QUEUE_KNOWN_S, found
        return found

    async def _source(self, guid: uuid.UUID, stated: uuid.UUID) -> Source:
        source = self._sources.get(guid)
        if source is None:
            source = Source(guid, stated, self._starts, self._make_client())
            self._sources[guid] = source
        self._sources.move_to_end(guid)
        while len(self._sources) > SOURCES_MAX:
            oldest = next((each for each, it in self._sources.items() if not it.is_busy), None)
            if oldest is None or oldest == guid:
                break
            await self._sources.pop(oldest).close()
        return source

    async def close(self) -> None:
        """End all sessions."""
        for source in self._sources.values():
            with contextlib.suppress(SessionEnded):
                await source.close()


def stream_name(owner: uuid.UUID, stream: int) -> str:
    """Return the name of a stream."""
    return f"{owner}\\{stream}"


async def _nothing(packet: bytes) -> None:
    """Take a packet that needs no wait."""


def _host(header: str) -> str:
    """Return the host of a Host header, in lower case."""
    host, _, port = header.rpartition(":")
    return (host if port.isdigit() else header).strip("[]").casefold()


def _answer(status: int, text: str = "") -> Response:
    return Response(status, text.encode(), TEXT)
