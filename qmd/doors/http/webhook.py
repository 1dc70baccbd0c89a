"""One request to a webhook: resolved, checked against the allowed targets, signed and timed.

The connection is made to the address that was checked, and redirects are not followed: a name
that changes its address, or a target that points elsewhere, reaches nothing that is not allowed.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import ipaddress
import socket
import ssl
from collections.abc import Sequence
from string import punctuation
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import httptools

RESPONSE_BYTES_MAX = 64 * 1024
BODY_S = 2.0  # for the rest of a response, of which the status has come
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class DeliveryFailed(Exception):
    """A message was not accepted; the text says why."""

    def __init__(self, text: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class Target(NamedTuple):
    """A parsed URL."""

    is_tls: bool
    host: str
    port: int
    path: str  # with the query

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port == (443 if self.is_tls else 80) else f"{name}:{self.port}"


def target_of(url: str) -> Target:
    """Return the parts of a URL that `pushes.check` has accepted, or of the URL of a queue.

    Spaces and characters beyond ASCII are escaped, as a request needs them: in a name by IDNA, in a
    path by %.
    """
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    host = parts.hostname or ""
    path = quote((parts.path or "/") + (f"?{parts.query}" if parts.query else ""), safe=punctuation)
    if not host.isascii():
        with contextlib.suppress(UnicodeError):  # the look-up of such a name explains it
            host = host.encode("idna").decode()
    return Target(is_tls, host, parts.port or (443 if is_tls else 80), path)


def is_permitted(address: IpAddress, host: str, allowed: Sequence[Network | str]) -> bool:
    """Return whether a message may be delivered to an address that `host` has.

    A name in the list permits its addresses except those of this computer and its link; a network
    permits every address in it.
    """
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if any(not isinstance(each, str) and address in each for each in allowed):
        return True
    names = {each.casefold() for each in allowed if isinstance(each, str)}
    inner = _inner(address)
    return (
        host.casefold() in names
        and not _is_special(address)
        and not (inner is not None and _is_special(inner))
    )


def _is_special(address: IpAddress) -> bool:
    return (
        address.is_loopback
        or address.is_link_local
        or address.is_multicast
        or address.is_unspecified
        or address.is_reserved
    )


def _inner(address: IpAddress) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address to which an IPv6 address leads by a gateway: that of 6to4."""
    return address.sixtofour if isinstance(address, ipaddress.IPv6Address) else None


def signature(key: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """Return the signature of a message, as Standard Webhooks define it: HMAC with SHA-256."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


class _Response:
    """The parser's view of a response; those before the final one are skipped."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.status = 0  # after the head of the final one
        self.is_complete = False
        self.retry_after = b""

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"retry-after" and not self.status:
            self.retry_after = value

    def on_headers_complete(self) -> None:
        if (status := self.parser.get_status_code()) >= 200:
            self.status = status

    def on_message_complete(self) -> None:
        self.is_complete = bool(self.status)


async def deliver(
    url: str,
    headers: Sequence[tuple[str, str]],
    body: bytes,
    allowed: Sequence[Network | str],
    timeout_s: float,
    setting: str,
) -> None:
    """Send a POST request; return when it was answered with 2xx.  Raises DeliveryFailed.

    `setting` names the list of allowed targets, for the error.
    """
    target = target_of(url)
    try:
        async with asyncio.timeout(timeout_s):
            addresses = await _addresses(target, allowed, setting)
            status, retry_after = await _post(target, addresses, headers, body)
    except TimeoutError as error:
        raise DeliveryFailed(f"no answer came within {timeout_s:g} s") from error
    except (OSError, ssl.SSLError, UnicodeError) as error:
        raise DeliveryFailed(f"the connection failed: {error}") from error
    if not 200 <= status < 300:
        seconds = retry_after.decode("latin-1").strip()
        wait_s = float(seconds) if seconds.isascii() and seconds.isdigit() else 0.0
        raise DeliveryFailed(f"the answer was {status}", retry_after_s=min(wait_s, 86_400.0))


async def _addresses(target: Target, allowed: Sequence[Network | str], setting: str) -> list[str]:
    """Return the addresses of a target that are allowed, at least one.  Raises DeliveryFailed."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # a name that DNS does not allow, such as "a..b"
        raise DeliveryFailed(f"{target.host} has no address: {error}") from error
    addresses = [str(each[4][0]).partition("%")[0] for each in found]
    permitted = [
        address
        for address in addresses
        if is_permitted(ipaddress.ip_address(address), target.host, allowed)
    ]
    if not permitted:
        shown = ", ".join(addresses[:4])
        raise DeliveryFailed(f"{target.host} ({shown}) is not among the {setting}")
    return permitted


async def _connect(
    target: Target, addresses: Sequence[str]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first address that answers.  Raises OSError, ssl.SSLError."""
    tls: dict[str, Any] = {}
    if target.is_tls:
        tls = {"ssl": ssl.create_default_context(), "server_hostname": target.host}
    *others, last = addresses
    for address in others:
        with contextlib.suppress(OSError):
            return await asyncio.open_connection(address, target.port, **tls)
    return await asyncio.open_connection(last, target.port, **tls)


async def _post(
    target: Target, addresses: Sequence[str], headers: Sequence[tuple[str, str]], body: bytes
) -> tuple[int, bytes]:
    reader, writer = await _connect(target, addresses)
    try:
        lines = [f"POST {target.path} HTTP/1.1", f"host: {target.authority}"]
        lines += [f"{name}: {value}" for name, value in headers]
        lines += [f"content-length: {len(body)}", "connection: close", "", ""]
        writer.write("\r\n".join(lines).encode("latin-1", "replace") + body)
        await writer.drain()
        return await _status(reader)
    finally:
        writer.close()
        with contextlib.suppress(OSError, ssl.SSLError):
            writer.transport.abort()


async def _status(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Return the status of the final response, and how long to wait.  Raises DeliveryFailed.

    A body that is slow or ends early changes nothing: the message was accepted, or not.
    """
    response = _Response()
    size = await _read(reader, response, until_complete=False)
    if not response.status:
        raise DeliveryFailed(
            "the answer is too long" if size >= RESPONSE_BYTES_MAX
            else "the connection ended without an answer"
        )  # fmt: skip
    if not response.is_complete:
        with contextlib.suppress(OSError, DeliveryFailed, TimeoutError):
            async with asyncio.timeout(BODY_S):
                await _read(reader, response, until_complete=True)
    return response.status, response.retry_after


async def _read(reader: asyncio.StreamReader, response: _Response, *, until_complete: bool) -> int:
    """Read until the head or all of a response has come; return the number of bytes read."""
    size = 0
    while size < RESPONSE_BYTES_MAX:
        if response.is_complete or (response.status and not until_complete):
            break
        data = await reader.read(16 * 1024)
        if not data:
            break
        size += len(data)
        try:
            response.parser.feed_data(data)
        except httptools.HttpParserError as error:
            if not response.status:
                raise DeliveryFailed(f"the answer is not HTTP: {error}") from error
            break
    return size
