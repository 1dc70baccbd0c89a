"""Requests to other hosts: one connection for each, which is kept.  [MC-MQSRM] 2.1.1"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable

import httptools

from qmd.doors.http.webhook import Target, target_of

RESPONSE_BYTES_MAX = 64 * 1024
TEXT_BYTES_MAX = 300  # of the body of an answer, for people
TIMEOUT_S = 30.0


class NotAccepted(Exception):
    """A host has not accepted a message; `status` is 0 if it has not answered."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class _Response:
    """The parser's view of a response."""

    def __init__(self) -> None:
        self.is_complete = False
        self._text = b""

    def on_body(self, data: bytes) -> None:
        self._text += data[: TEXT_BYTES_MAX - len(self._text)]

    @property
    def text(self) -> str:
        """The beginning of its body in one line, if it is plain text."""
        text = " ".join(self._text.decode("utf-8", "replace").split())
        return "" if text.startswith("<") else "".join(filter(str.isprintable, text))

    def on_message_complete(self) -> None:
        self.is_complete = True


class HttpClient:
    """A client of one host, for one request at a time."""

    def __init__(
        self, context: ssl.SSLContext | None, permits: Callable[[str], bool] | None = None
    ) -> None:
        """`context` is for HTTPS; `permits(address)` returns whether an address may be connected
        to, None: any one."""
        self._context = context
        self._permits = permits
        self._at: tuple[bool, str, int] | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._lock = asyncio.Lock()
        self.address = ""  # of the host, at the last connection

    async def open(self, url: str) -> None:
        """Connect to the host of a URL, if there is no connection.  Raises NotAccepted."""
        target = target_of(url)
        async with self._lock, self._explained(target):
            await self._connect(target)

    async def post(self, url: str, body: bytes, content_type: str) -> None:
        """Return when the host has answered with 2xx.  Raises NotAccepted."""
        target = target_of(url)
        async with self._lock, self._explained(target):
            status, text = await self._exchange(target, body, content_type)
        if not 200 <= status < 300:
            why = f": {text}" if text else ""
            raise NotAccepted(f"{target.authority} has answered {status}{why}", status)

    @contextlib.asynccontextmanager
    async def _explained(self, target: Target) -> AsyncIterator[None]:
        """Close the connection after a failure, and raise NotAccepted for it."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                yield
        except TimeoutError:
            self.close()
            text = f"{target.authority} has not answered in {TIMEOUT_S:g} s"
            raise NotAccepted(text) from None
        except (OSError, ssl.SSLError, UnicodeError, httptools.HttpParserError) as error:
            # UnicodeError: a name that DNS does not allow, such as "a..b"
            self.close()
            raise NotAccepted(f"{target.authority} cannot be reached: {error}") from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        if self._writer is not None:
            with contextlib.suppress(OSError, ssl.SSLError):
                self._writer.transport.abort()
        self._reader = self._writer = self._at = None

    async def _exchange(self, target: Target, body: bytes, content_type: str) -> tuple[int, str]:
        head = (
            f"POST {target.path} HTTP/1.1\r\nHost: {target.authority}\r\n"
            f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
            'SOAPAction: "MSMQMessage"\r\nProxy-Accept: NonInteractiveClient\r\n\r\n'
        ).encode("latin-1", "replace")
        was_open = self._writer is not None
        try:
            return await self._try(target, head + body)
        except (OSError, EOFError):
            if not was_open:
                raise
            self.close()  # the host has closed a connection that was idle
            return await self._try(target, head + body)

    async def _connect(self, target: Target) -> None:
        place = target.is_tls, target.host, target.port
        if self._at == place:
            return
        self.close()
        context = self._context if target.is_tls else None
        if target.is_tls and context is None:
            context = ssl.create_default_context()
        self._reader, self._writer = await asyncio.open_connection(
            await self._place(target), target.port, ssl=context,
            server_hostname=target.host if context else None,
        )  # fmt: skip
        self._at = place
        peer = self._writer.get_extra_info("peername")
        self.address = str(peer[0]).removeprefix("::ffff:") if peer else ""

    async def _place(self, target: Target) -> str:
        """Return the name or the address to connect to.  Raises OSError.

        The address is checked after the look-up, and is the one that is used: a name of another
        host may lead anywhere.
        """
        if self._permits is None:
            return target.host
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        addresses = [str(each[4][0]).partition("%")[0] for each in found]
        for address in addresses:
            if self._permits(address.removeprefix("::ffff:")):
                return address
        raise OSError(
            f"{', '.join(addresses[:4])} is not the address of the sender, nor among receipts_to in"
            " the section [srmp]"
        )

    async def _try(self, target: Target, data: bytes) -> tuple[int, str]:
        await self._connect(target)
        assert self._writer is not None
        assert self._reader is not None
        self._writer.write(data)
        await self._writer.drain()
        return await self._status()

    async def _status(self) -> tuple[int, str]:
        """Return the status of the response, and its text."""
        assert self._reader is not None
        response, size = _Response(), 0
        parser = httptools.HttpResponseParser(response)
        while not response.is_complete:
            data = await self._reader.read(16 * 1024)
            if not data:
                raise ConnectionResetError("the connection has ended without an answer")
            size += len(data)
            if size > RESPONSE_BYTES_MAX:
                raise ConnectionResetError("the answer is too long")
            parser.feed_data(data)
        status = int(parser.get_status_code())
        if not parser.should_keep_alive():
            self.close()
        return status, response.text
