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
from typing import NamedTuple
from urllib.parse import urlsplit

import httptools

RESPONSE_BYTES_MAX = 64 * 1024
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
    """Return the parts of a URL that `pushes.check` has accepted."""
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(is_tls, parts.hostname or "", parts.port or (443 if is_tls else 80), path)


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
    """The parser's view of a response."""

    def __init__(self) -> None:
        self.is_complete = False
        self.retry_after = b""

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"retry-after":
            self.retry_after = value

    def on_message_complete(self) -> None:
        self.is_complete = True


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
            address = await _address(target, allowed, setting)
            status, retry_after = await _post(target, address, headers, body)
    except TimeoutError as error:
        raise DeliveryFailed(f"no answer came within {timeout_s:g} s") from error
    except (OSError, ssl.SSLError) as error:
        raise DeliveryFailed(f"the connection failed: {error}") from error
    if not 200 <= status < 300:
        seconds = retry_after.decode("latin-1").strip()
        wait_s = float(seconds) if seconds.isascii() and seconds.isdigit() else 0.0
        raise DeliveryFailed(f"the answer was {status}", retry_after_s=min(wait_s, 86_400.0))


async def _address(target: Target, allowed: Sequence[Network | str], setting: str) -> str:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise DeliveryFailed(f"{target.host} has no address: {error}") from error
    addresses = [str(each[4][0]).partition("%")[0] for each in found]
    for address in addresses:
        if is_permitted(ipaddress.ip_address(address), target.host, allowed):
            return address
    raise DeliveryFailed(f"{target.host} ({', '.join(addresses[:4])}) is not among the {setting}")


async def _post(
    target: Target, address: str, headers: Sequence[tuple[str, str]], body: bytes
) -> tuple[int, bytes]:
    context = ssl.create_default_context() if target.is_tls else None
    reader, writer = await asyncio.open_connection(
        address, target.port, ssl=context, server_hostname=target.host if context else None
    )
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
    response = _Response()
    parser = httptools.HttpResponseParser(response)
    size = 0
    while not response.is_complete and size < RESPONSE_BYTES_MAX:
        data = await reader.read(16 * 1024)
        if not data:
            break
        size += len(data)
        try:
            parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise DeliveryFailed(f"the answer is not HTTP: {error}") from error
    status = parser.get_status_code() if size else 0
    if not status:
        raise DeliveryFailed("the connection ended without an answer")
    return status, response.retry_after
