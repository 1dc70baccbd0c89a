"""The HTTP/1.1 server: connections, their limits of size and time, and the order of responses.

The parser is llhttp, that of Node.js, in its strict mode: it refuses requests that two parsers
could read differently.  A client that is slow with a head, a body or reading ends at a deadline.
docs/decisions/0050.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections import deque
from collections.abc import Iterable
from email.utils import formatdate
from functools import partial
from typing import cast

import httptools
import structlog

from qmd.doors import handshakes
from qmd.doors.http.exchange import Handler, Peer, Request, Response, head_of, split_target
from qmd.doors.http.limits import HEAD_BYTES_MAX, HEADERS_MAX, PIPELINED_MAX, Limits, Registry
from qmd.doors.http.peer import peer_of
from qmd.doors.http.problems import Problem, problem_response

log = structlog.get_logger()

BACKLOG = 1024
_NEVER = float("inf")
# Headers that two requests or servers could understand differently if they came twice.
_SINGLE = frozenset(
    {"host", "content-length", "transfer-encoding", "content-type", "authorization",
     "idempotency-key", "expect"}
)  # fmt: skip
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
NO_PLACE = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"  # noqa: E501


class HttpServer:
    """A server on any number of listening sockets."""

    def __init__(self, handler: Handler, limits: Limits) -> None:
        self.handler = handler
        self.limits = limits
        self.registry = Registry(limits)
        self.is_stopping = False
        self._servers: list[asyncio.Server] = []
        self._handshakes: handshakes.Handshakes | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._date = (0, b"")

    async def start(self, sockets: Iterable[socket.socket], context: ssl.SSLContext | None) -> None:
        """Serve the clients of bound sockets.  Raises OSError."""
        loop = asyncio.get_running_loop()
        accept = partial(HttpConnection, self)
        if context is not None:
            limits = handshakes.Limits(
                self.limits.connections, self.limits.connections_of_address, self.limits.head_s
            )
            self._handshakes = handshakes.Handshakes(context, limits, accept)
        for each in sockets:
            if self._handshakes is None or each.family == socket.AF_UNIX:
                self._servers.append(await loop.create_server(accept, sock=each, backlog=BACKLOG))
            else:
                self._handshakes.listen(each, BACKLOG)
        self._sweeping = loop.create_task(self._sweep())

    async def stop(self, drain_s: float) -> None:
        """Accept no more clients, let requests that have begun end, and close all connections."""
        self.is_stopping = True
        for server in self._servers:
            server.close()
        if self._handshakes is not None:
            self._handshakes.stop()
        for connection in list(self.registry.connections):
            connection.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(drain_s):
                if self.registry.connections:
                    await self.registry.emptied.wait()
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connection in list(self.registry.connections):
            connection.abort()

    @property
    def date(self) -> bytes:
        """The header line with the present time."""
        now = int(time.time())
        if now != self._date[0]:
            self._date = now, f"date: {formatdate(now, usegmt=True)}\r\n".encode()
        return self._date[1]

    async def _sweep(self) -> None:
        """End connections at their deadlines, and when the certificates of clients expire."""
        limits, loop = self.limits, asyncio.get_running_loop()
        pause_s = min(1.0, limits.head_s / 4, limits.body_s / 4, limits.write_s / 4)
        while True:
            await asyncio.sleep(pause_s)
            now = loop.time()
            for connection in list(self.registry.connections):
                if connection.peer.has_expired:
                    connection.abort()
                elif min(connection.deadline, connection.write_by) <= now:
                    connection.is_late()


class HttpConnection(asyncio.Protocol):
    """The connection of one client: its requests are answered one after the other."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._limits = server.limits
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self.peer = Peer("")
        self.deadline = _NEVER  # loop time, for a request
        self.write_by = _NEVER  # the same, for the client to read
        self._part = "head"  # that is expected: head, body, or "" while requests are answered
        self._head_bytes = 0
        self._ends = False  # nothing more is read
        self._waiting: deque[Request | Problem] = deque()
        self._request: Request | None = None  # that is being answered
        self._task: asyncio.Task[None] | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._reserved = 0  # bytes of bodies
        self._is_paused = False

    # -- called by the event loop ------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.peer = peer_of(self._transport)
        if self._server.is_stopping or not self._server.registry.admit(self, self.peer.address):
            self._ends = True
            self._transport.write(NO_PLACE)
            self._transport.close()
            return
        self.deadline = self._loop.time() + self._limits.head_s

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.registry.leave(self)
        self._server.registry.release(self._reserved)
        self._reserved = 0
        self._transport = None
        self._waiting.clear()
        self._may_write.set()
        self._leave()

    def eof_received(self) -> bool:
        """Keep the connection for responses to complete requests."""
        self._ends = True
        if self._task is None:
            return False
        if self._request is not None and self._request.is_waiting:
            self._leave()
            return False
        return True

    def pause_writing(self) -> None:
        self._may_write.clear()
        self.write_by = self._loop.time() + self._limits.write_s

    def resume_writing(self) -> None:
        self._may_write.set()
        self.write_by = _NEVER

    def data_received(self, data: bytes) -> None:
        if self._ends:
            return
        if self._part != "body":
            self._head_bytes += len(data)
            if not self._part:
                self._begin_head()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._go_on_without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            if not self._ends:
                self._fault(400, "http_malformed", f"the request is not HTTP/1.1: {error}")
        if self._part == "head" and self._head_bytes > HEAD_BYTES_MAX:
            self._fault(431, "http_head_too_large")
        self._go_on()

    # -- called by the parser ----------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._begin_head()
        self._url = b""
        self._headers: dict[str, str] = {}
        self._header_count = self._header_bytes = 0
        self._body: list[bytes] = []
        self._body_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._url += url
        if len(self._url) > HEAD_BYTES_MAX:
            self._fault(431, "http_head_too_large")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_count += 1
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > HEAD_BYTES_MAX or self._header_count > HEADERS_MAX:
            self._fault(431, "http_head_too_large")
            return
        if self._part == "body":
            return  # behind the chunks of a body: a proxy may not have checked it
        key, text = name.decode("latin-1").lower(), value.decode("latin-1").strip()
        if key in self._headers:
            if key in _SINGLE:
                self._fault(400, "http_malformed", f"the header {key} came twice")
                return
            text = f"{self._headers[key]}, {text}"
        self._headers[key] = text

    def on_headers_complete(self) -> None:
        if self._ends or self._parser.should_upgrade():
            return
        self._part = "body"
        self.deadline = self._loop.time() + self._limits.body_s
        headers, version = self._headers, self._parser.get_http_version()
        is_old = version == "1.0"
        coding = headers.get("transfer-encoding")
        if version not in ("1.0", "1.1"):
            self._fault(400, "http_malformed", f"the version {version} of HTTP is not known")
        elif not is_old and "host" not in headers:
            self._fault(400, "http_malformed", "the header host is missing")
        elif coding is not None and (is_old or coding.lower() != "chunked"):
            self._fault(501, "http_malformed", f"the transfer coding {coding} is not known")
        elif int(headers.get("content-length") or 0) > self._limits.request_bytes:
            self._fault(413, "http_body_too_large")
        elif headers.get("expect", "").lower() == "100-continue" and self._task is None:
            self._write(CONTINUE)

    def on_body(self, body: bytes) -> None:
        if self._ends:
            return
        self._body_bytes += len(body)
        if self._body_bytes > self._limits.request_bytes:
            self._fault(413, "http_body_too_large")
        elif not self._server.registry.reserve(len(body)):
            self._fault(503, "http_busy")
        else:
            self._reserved += len(body)
            self._body.append(body)

    def on_message_complete(self) -> None:
        if self._ends or self._parser.should_upgrade():
            return
        self._part, self._head_bytes = "", 0
        self.deadline = _NEVER
        if self.peer.has_expired:
            self._fault(401, "http_no_credentials", "the certificate of the client has expired")
            return
        try:
            segments, query = split_target(self._url)
        except ValueError as error:
            self._fault(400, "http_malformed", str(error))
            return
        request = Request(
            self._parser.get_method().decode("ascii"),
            segments,
            query,
            self._headers,
            self._body[0] if len(self._body) == 1 else b"".join(self._body),
            self.peer,
            keep_alive=self._parser.should_keep_alive(),
            is_old=self._parser.get_http_version() != "1.1",
        )
        self._waiting.append(request)
        if not request.keep_alive or request.is_old:
            self._ends = True
        elif len(self._waiting) > PIPELINED_MAX:
            self._fault(429, "http_busy")

    def _go_on_without_upgrade(self, rest: bytes) -> None:
        """Answer a request without the upgrade that it permits, and end the connection then.

        The parser takes what follows its head for another protocol, and skips its body.
        """
        if self._ends:
            return
        if (method := self._parser.get_method()) == b"CONNECT":
            self._fault(400, "http_malformed", "the door is no proxy")
            return
        kept = {**self._headers, "connection": "close"}
        kept.pop("upgrade", None)
        lines = [f"{name}: {value}\r\n" for name, value in kept.items()]
        head = b"%b %b HTTP/%b\r\n%b\r\n" % (
            method, self._url, self._parser.get_http_version().encode(),
            "".join(lines).encode("latin-1"),
        )  # fmt: skip
        self._parser = httptools.HttpRequestParser(self)
        self._head_bytes = 0
        try:
            self._parser.feed_data(head)
            if rest:
                self._parser.feed_data(rest)
        except httptools.HttpParserUpgrade:
            self._ends = True  # another request behind this one
        except httptools.HttpParserError as error:
            self._fault(400, "http_malformed", f"the request is not HTTP/1.1: {error}")

    # -- the order of requests ---------------------------------------------------------------

    def stop(self) -> None:
        """End the connection after the request that is being answered."""
        self._ends = True
        if self._request is not None and self._request.is_waiting and self._task is not None:
            self._task.cancel()
        elif self._task is None:
            self._close()

    @property
    def is_idle(self) -> bool:
        """Whether no request has begun."""
        return self._task is None and self._part != "body" and not self._head_bytes

    @property
    def is_unfinished(self) -> bool:
        """Whether it has sent a part of a request, and waits for no response."""
        return self._task is None and not self._waiting and not self._ends

    @property
    def unread_bytes(self) -> int:
        """The size of the responses, or parts of them, that the client has not read."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def abort(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def is_late(self) -> None:
        """End the connection: its deadline is over."""
        self.deadline = _NEVER
        is_unread = self.write_by < _NEVER or self._transport is None or self._ends
        if is_unread or self._task is not None or not (self._part == "body" or self._head_bytes):
            # It does not read its response, or has sent nothing.
            self.abort()
            return
        self._fault(408, "http_too_slow")
        self._go_on()

    def _begin_head(self) -> None:
        self._part = "head"
        self.deadline = self._loop.time() + self._limits.head_s

    def _fault(self, status: int, code: str, detail: str = "") -> None:
        """Answer with a problem, after the requests before, and end the connection."""
        if not self._ends:
            self._ends = True
            self._waiting.append(Problem(status, code, detail, closes=True))

    def _go_on(self) -> None:
        """Answer the next request, if none is being answered."""
        must_pause = bool(self._waiting) and (self._task is not None or len(self._waiting) > 1)
        if must_pause != self._is_paused and self._transport is not None:
            self._is_paused = must_pause
            with contextlib.suppress(RuntimeError):  # it is closing
                (self._transport.pause_reading if must_pause else self._transport.resume_reading)()
        if self._task is None and self._waiting and self._transport is not None:
            self._task = self._loop.create_task(self._answer(self._waiting.popleft()))

    async def _answer(self, request: Request | Problem) -> None:
        try:
            # A client that reads nothing would collect one response after the other.
            await self._may_write.wait()
            if self._transport is None:
                return
            if isinstance(request, Problem):
                await self._respond(None, request.response())
                return
            self._request = request
            try:
                response = await self._server.handler(request)
            except asyncio.CancelledError:
                if not self._server.is_stopping or request.has_left:
                    raise
                response = problem_response(503, "http_stopping", closes=True)
            await self._respond(request, response)
        except asyncio.CancelledError:
            self._close()
        except Exception:
            log.exception("http_failed")
            await self._respond(None, problem_response(500, "http_failed", closes=True))
        finally:
            self._answered(request)

    def _answered(self, request: Request | Problem) -> None:
        self._task = self._request = None
        if isinstance(request, Request) and request.body:
            size = min(self._reserved, len(request.body))
            self._reserved -= size
            self._server.registry.release(size)
        self._server.registry.used(self)
        if self._transport is None or self._transport.is_closing():
            return
        if not self._waiting and self._ends:
            self._close()
        elif not self._waiting and not self._part:
            self.deadline = self._loop.time() + self._limits.idle_s
        self._go_on()

    async def _respond(self, request: Request | None, response: Response) -> None:
        is_last = self._ends and not self._waiting
        close = response.closes or is_last or request is None or not request.keep_alive
        chunked = response.stream is not None and request is not None and not request.is_old
        head = head_of(response, self._server.date, close=close, chunked=chunked)
        if request is not None and request.method == "HEAD":
            self._write(head)
        elif response.stream is None:
            self._server.registry.make_room_to_write(len(response.body))
            self._write(head + response.body)
        else:
            self._write(head)
            await self._stream(response, chunked=chunked)
        if close:
            self._ends = True
            self._waiting.clear()
            self._close()

    async def _stream(self, response: Response, *, chunked: bool) -> None:
        assert response.stream is not None
        async for piece in response.stream:
            await self._may_write.wait()
            if self._transport is None:
                return
            self._write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
        if chunked:
            self._write(b"0\r\n\r\n")

    def _leave(self) -> None:
        """Cancel a request that waits: no client reads its response."""
        if self._request is not None:
            self._request.has_left = True
            if self._request.is_waiting and self._task is not None:
                self._task.cancel()

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _close(self) -> None:
        """Close after the client has got the rest, or at the deadline."""
        if self._transport is not None:
            self.write_by = min(self.write_by, self._loop.time() + self._limits.write_s)
            self._transport.close()
