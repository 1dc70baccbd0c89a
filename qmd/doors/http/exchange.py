"""Requests and responses of HTTP, as handlers see them.  RFC 9110."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

import msgspec

JSON = "application/json"
encode_json = msgspec.json.encode


class Peer(NamedTuple):
    """The client at the other end of a connection."""

    address: str  # an IP address, or "" for a Unix socket
    user: int | None = None  # of a Unix socket, according to the kernel
    certificate: tuple[str, ...] = ()  # the principals of a verified client certificate
    expires_at_s: float = math.inf  # of the certificate, in seconds since 1970
    there: tuple[str, int] | None = None  # the address and the port of its end
    here: tuple[str, int] | None = None  # and of ours

    @property
    def has_expired(self) -> bool:
        """Whether its certificate has expired since it was verified."""
        return time.time() >= self.expires_at_s


class Request:
    """One request with its complete body."""

    __slots__ = (
        "body",
        "has_left",
        "headers",
        "is_old",
        "is_waiting",
        "keep_alive",
        "method",
        "peer",
        "query",
        "segments",
    )

    def __init__(
        self,
        method: str,
        segments: list[str],
        query: str,
        headers: dict[str, str],
        body: bytes,
        peer: Peer,
        *,
        keep_alive: bool = True,
        is_old: bool = False,
    ) -> None:
        """`segments` are those of the path, decoded; names in `headers` are in lower case."""
        self.method = method
        self.segments = segments
        self.query = query
        self.headers = headers
        self.body = body
        self.peer = peer
        self.keep_alive = keep_alive
        self.is_old = is_old  # HTTP/1.0
        self.is_waiting = False  # for a message or an event: it may be cancelled
        self.has_left = False  # the client does not read the response any more

    @property
    def media_type(self) -> str:
        """The media type of the body, without parameters, in lower case."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


class Response:
    """One response; a `stream` is sent in chunks, instead of a body."""

    __slots__ = ("body", "closes", "headers", "media_type", "status", "stream")

    def __init__(
        self,
        status: int,
        body: bytes = b"",
        media_type: str = JSON,
        headers: tuple[tuple[str, str], ...] = (),
        *,
        stream: AsyncIterator[bytes] | None = None,
        closes: bool = False,
    ) -> None:
        self.status = status
        self.body = body
        self.media_type = media_type
        self.headers = headers
        self.stream = stream
        self.closes = closes  # the connection ends after it


Handler = Callable[[Request], Awaitable[Response]]

_STATUS_LINES = {
    each.value: f"HTTP/1.1 {each.value} {each.phrase}\r\n".encode() for each in HTTPStatus
}


def of_json(value: Any, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    """Return a response with a value in JSON."""
    return Response(status, encode_json(value), JSON, headers)


def head_of(response: Response, date: bytes, *, close: bool, chunked: bool) -> bytes:
    """Return the status line and the headers.

    `date` is a complete header line.  Values of headers are those of this door, without line ends.
    """
    parts = [_STATUS_LINES[response.status], date]
    if response.body or response.stream is not None:
        parts.append(f"content-type: {response.media_type}\r\n".encode())
    if chunked:
        parts.append(b"transfer-encoding: chunked\r\n")
    elif response.stream is None and response.status not in (204, 304):
        parts.append(b"content-length: %d\r\n" % len(response.body))
    for name, value in response.headers:
        parts.append(f"{name}: {value}\r\n".encode("latin-1", "replace"))
    if close:
        parts.append(b"connection: close\r\n")
    parts.append(b"cache-control: no-store\r\nx-content-type-options: nosniff\r\n\r\n")
    return b"".join(parts)


def split_target(target: bytes) -> tuple[list[str], str]:
    """Return the segments of a path, decoded, and the query.  Raises ValueError.

    An encoded slash belongs to its segment.
    """
    if not target.startswith(b"/"):
        scheme, separator, rest = target.partition(b"://")
        if scheme.lower() not in (b"http", b"https") or not separator:
            raise ValueError("the request target is neither a path nor a URL")
        target = b"/" + rest.partition(b"/")[2]
    path, _, query = target.partition(b"?")
    try:
        segments = [unquote_to_bytes(each).decode() for each in path[1:].split(b"/")]
        return segments, query.decode("ascii")
    except UnicodeDecodeError as error:
        raise ValueError("the path is not UTF-8, or the query not ASCII") from error
