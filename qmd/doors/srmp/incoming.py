"""Requests of other hosts: each source of messages is a session of this door with the daemon.

    POST ──► envelope ──► packet ──► session ──► acknowledged by the daemon ──► 200
                                        └─► order ack ──► receipt of the stream, by POST

A request is answered after the daemon has acknowledged its message: one that is durable is on disk
then.  The daemon finds duplicates and gaps as in any session.  A request without an answer is made
again by its host.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence

import structlog

from protocol.names.direct_name import PORT, DirectName, Transport
from protocol.names.format_name import FormatName, parse_format_name
from qmd.client import QueueManager
from qmd.client.errors import ClientError
from qmd.doors.http.exchange import Request, Response
from qmd.doors.http.problems import Problem
from qmd.doors.http.sessions import CHALLENGE, bearer
from qmd.doors.srmp.client import HttpClient
from qmd.doors.srmp.envelope import Envelope, MessageId, NotSrmp
from qmd.doors.srmp.messages import Posted, name_of, packet_of, read_request
from qmd.doors.srmp.redirection import Redirection, redirected
from qmd.doors.srmp.session import SessionEnded
from qmd.doors.srmp.source import Sender, Source, stream_name
from qmd.doors.srmp.sources import Sources
from qmd.doors.srmp.stream_starts import Starts
from qmd.runtime.log import LimitedLog

log = structlog.get_logger()

TEXT = "text/plain"
SOURCES_MAX = 1000
SOURCES_OF_ADDRESS_MAX = 200
QUEUE_KNOWN_S = 5.0
#: The source of messages without the element of MSMQ.
_NAMESPACE = uuid.UUID("d1d0b8b5-4a52-4e12-9f0c-0f2b6f1f7e33")


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
        make_client: Callable[[str], HttpClient],
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
        self._sources: OrderedDict[tuple[uuid.UUID, Sender], Source] = OrderedDict()
        self._queues: dict[str, tuple[float, bool | None]] = {}  # whether it is transactional
        self._number = int(time.time()) & 0x7FFFFFFF
        self.received = 0
        self._log = LimitedLog(log)

    async def __call__(self, request: Request, *, is_encrypted: bool) -> Response:
        """Answer a request: 200 when the daemon has the message."""
        peer = request.peer
        try:
            token = bearer(request.headers.get("authorization")) or ""
        except Problem as problem:
            return _answer(problem.status, str(problem))
        if token and not is_encrypted:
            return _answer(403, "a token is accepted over HTTPS only")
        sender = Sender(peer.address, peer.certificate, is_encrypted, token)
        if request.method != "POST" or request.segments[0].lower() != "msmq":
            return _answer(404, "messages are sent by POST to /msmq/...")
        try:
            posted = read_request(request.body, request.headers.get("content-type", ""))
            return await self._take(posted, request, sender)
        except NotSrmp as error:
            self._log_limited("info", "srmp_refused", peer.address, str(error))
            return _answer(400, str(error))
        except ClientError as error:
            if error.code == "token_refused":
                self._log_limited("info", "srmp_refused", peer.address, error.text)
                return _answer(401, error.text)
            self._log_limited("warning", "srmp_waits", peer.address, error.text)
            return _answer(503, error.text)
        except (SessionEnded, TimeoutError, OSError) as error:
            self._log_limited("warning", "srmp_waits", peer.address, str(error))
            return _answer(503, f"the queue manager does not take messages now: {error}")

    def _log_limited(self, level: str, event: str, host: str, reason: str) -> None:
        """Log an event that any host can cause at will, rate-limited for each host."""
        self._log.log(level, event, key=host, now=time.monotonic(), host=host, reason=reason)

    async def _take(self, posted: Posted, request: Request, sender: Sender) -> Response:
        envelope = posted.envelope
        if envelope.stream_receipt is not None:
            # One that is not known belongs to a stream that has ended, or is sent again.
            self._receipt(envelope, sender.address)
            return _answer(200)
        destination = await self._destination(envelope, request)
        if envelope.stream is not None and envelope.stream.owner != envelope.id.source:
            raise NotSrmp("the stream is not one of the source of the message")
        identity = await self._identity(envelope, sender.address)
        packet = packet_of(posted, destination, identity.source.bytes_le, identity.number)
        if envelope.stream is not None:
            url = envelope.stream.receipts_to
            if url:
                name_of(url.partition("?")[0])
            stream = stream_name(identity.source, envelope.stream.id)
            await self._starts.keep(stream, url, sender.address)
        source = await self._source(identity.source, envelope.id.source, sender)
        try:
            await source.deliver(packet, recoverable=envelope.durable, daemon=self._daemon)
        except ClientError:  # no session has begun
            self._sources.pop((identity.source, sender), None)
            raise
        self.received += 1
        return _answer(200)

    async def _identity(self, envelope: Envelope, address: str) -> MessageId:
        """Return the identity of a message for the daemon.  Raises OSError."""
        own = uuid.uuid5(_NAMESPACE, self._qm.id)
        if not envelope.is_msmq:
            self._number = (self._number + 1) & 0xFFFFFFFF
            return MessageId(uuid.uuid5(own, address), self._number)
        stated, number = envelope.id.source, envelope.id.number
        if stated in (own, uuid.UUID(self._qm.id)):
            # The daemon's own messages for a URL of this host, or a host that states its GUID.
            return MessageId(uuid.uuid5(stated, address), number)
        return MessageId(await self._known.guid_of(stated, address), number)

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

    async def _source(self, guid: uuid.UUID, stated: uuid.UUID, sender: Sender) -> Source:
        key = guid, sender
        source = self._sources.get(key)
        if source is None:
            await self._make_room(sender.address)
            client = self._make_client(sender.address)
            ask = self._qm.caller.ask
            source = Source(guid, stated, sender, self._starts, client, ask, self._log)
            self._sources[key] = source
        self._sources.move_to_end(key)
        return source

    async def _make_room(self, address: str) -> None:
        """End a source if there are too many: of this address, or of the one with the most.

        One with receipts to send may be ended too.  Its host sends its messages again, and the
        daemon then acknowledges them again.
        """
        counts = Counter(each.sender.address for each in self._sources.values())
        if counts[address] < SOURCES_OF_ADDRESS_MAX:
            if len(self._sources) < SOURCES_MAX:
                return
            [(address, _)] = counts.most_common(1)
        own = [key for key, each in self._sources.items() if each.sender.address == address]
        idle = (key for key in own if not self._sources[key].is_busy)
        await self._sources.pop(next(idle, own[0])).close()

    async def close(self) -> None:
        """End all sessions."""
        self._log.finish()
        for source in self._sources.values():
            with contextlib.suppress(SessionEnded):
                await source.close()


def _host(header: str) -> str:
    """Return the host of a Host header, in lower case."""
    host, _, port = header.rpartition(":")
    return (host if port.isdigit() else header).strip("[]").casefold()


def _answer(status: int, text: str = "") -> Response:
    return Response(status, text.encode(), TEXT, CHALLENGE if status == 401 else ())
