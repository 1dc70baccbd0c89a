r"""Direct format names, with and without their `DIRECT=`.  [MS-MQMQ] 2.1.2

    TCP:10.0.0.5\private$\orders          OS:hostb\orders;JOURNAL
    HTTP://hostb:8080/MSMQ\private$\orders    OS:.\SYSTEM$;DEADXACT

A port after the address of TCP: and OS: is an extension of ours, for queue managers that listen on
another port than 1801: `TCP:10.0.0.5:1802\orders`, `TCP:[::1]:1802\orders`.  All parsers accept it;
packets never contain it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from ipaddress import AddressValueError, IPv6Address
from string import ascii_letters, digits

from protocol.errors import InvalidName
from protocol.names.path_name import (
    COMPUTER,
    LocalPath,
    NameRule,
    Suffix,
    check_local_path,
    parse_local_path,
    shown,
)

PORT = 1801  # [MS-MQQB] 2.1.1
WIRE_NAMES_MAX = 32  # cached names: rejecting a message parses its queue name three times


class Transport(StrEnum):
    """The protocol of a direct name."""

    TCP = "TCP"
    OS = "OS"
    HTTP = "HTTP"
    HTTPS = "HTTPS"


_DEFAULT_PORT = {Transport.TCP: PORT, Transport.OS: PORT, Transport.HTTP: 80, Transport.HTTPS: 443}
_URL = (Transport.HTTP, Transport.HTTPS)
_TRANSPORTS = {transport.lower(): transport for transport in Transport}
_DISCONTINUED = frozenset(("spx", "ipx"))
PROTOCOLS = _TRANSPORTS.keys() | _DISCONTINUED
_VIRTUAL_DIRECTORY = "/MSMQ"
_SEPARATORS = ("\\", "/", "")  # "": the name ends here; the caller rejects that
_SCOPE = NameRule(64, frozenset(ascii_letters + digits + "._-"), "letters, digits and . _ -")


@dataclass(frozen=True, slots=True)
class DirectName:
    """A queue and the address of its computer.

    `host` is an IP address for TCP (IPv6 without brackets), otherwise a computer name; "." is the
    local computer.  The other parts are those of `LocalPath`.
    """

    transport: Transport
    host: str
    port: int
    queue: str = ""
    private: bool = False
    subqueue: str | None = None
    system: bool = False
    suffix: Suffix | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.port <= 0xFFFF:
            raise InvalidName("direct.port", 0, _port_rule(str(self.port)))
        host = _parse_host(self.host, 0, "direct", self.transport)
        object.__setattr__(self, "host", host)
        check_local_path(self.local_path, "direct")

    @property
    def local_path(self) -> LocalPath:
        return LocalPath(self.queue, self.private, self.subqueue, self.system, self.suffix)

    @property
    def key(self) -> str:
        """The comparison key: equal for all spellings of one destination."""
        return str(self).lower()

    @property
    def read_only(self) -> bool:
        """Whether the destination accepts no sends."""
        return self.local_path.read_only

    def __str__(self) -> str:
        return f"DIRECT={self._text(self.port)}"

    def wire_text(self) -> str:
        """Return the name as packets carry it: without `DIRECT=` and without our port extension."""
        return self._text(self.port if self.transport in _URL else PORT)

    def wire_bytes(self) -> bytes:
        """Return `wire_text` in UTF-16LE with its null.  [MS-MQMQ] 2.2.18.1.5.2"""
        return f"{self.wire_text()}\0".encode("utf-16-le")

    def _text(self, port: int) -> str:
        url = self.transport in _URL
        default = port == _DEFAULT_PORT[self.transport]
        host = f"[{self.host}]" if ":" in self.host and (url or not default) else self.host
        address = host if default else f"{host}:{port}"
        if url:
            address = f"//{address}{_VIRTUAL_DIRECTORY}"
        return f"{self.transport}:{address}\\{self.local_path}"


def queue_key(name: object) -> str | None:
    r"""Return the key by which a queue manager finds its own queue: `private$\orders;journal`.

    The key is in lower case; it is None for names that are not direct.  The caller checks whether
    the address is its own.
    """
    return name.local_path.key if isinstance(name, DirectName) else None


@lru_cache(maxsize=WIRE_NAMES_MAX)
def parse_wire_name(raw: bytes) -> DirectName:
    """Parse the direct name of a packet: UTF-16LE with its null, without `DIRECT=`.

    Raises InvalidName; its offset counts UTF-16 code units.
    """
    if len(raw) % 2 or raw[-2:] != b"\0\0":
        rule = f"{len(raw)} bytes found; UTF-16 text that ends in a null is required"
        raise InvalidName("direct", len(raw) // 2, rule)
    try:
        text = raw[:-2].decode("utf-16-le")
    except UnicodeDecodeError as error:
        raise InvalidName("direct", error.start // 2, "found half of a surrogate pair") from error
    return parse_direct(text, 0, "direct")


def parse_direct(text: str, offset: int, field: str) -> DirectName:
    r"""Parse `protocol:address\queue`, which starts at character `offset` of the whole name."""
    transport, start = _parse_protocol(text, offset, field)
    if transport in _URL:
        address, start, end = _split_url(text, start, offset, field)
    else:
        address = text[start:].partition("\\")[0]
        end = start + len(address)
    if end == len(text):
        rule = "found the end; a backslash and the name of a queue are required"
        raise InvalidName(f"{field}.queue", offset + end, rule)
    _, host, port = parse_address(address, offset + start, field, transport)
    path = parse_local_path(text[end + 1 :], offset + end + 1, field, separator=text[end])
    return DirectName(transport, host, port, *path)


def _parse_protocol(text: str, offset: int, field: str) -> tuple[Transport, int]:
    """Return the protocol, and the index at which the address begins."""
    protocol, colon, _ = text.partition(":")
    transport = _TRANSPORTS.get(protocol.lower())
    if colon and transport:
        return transport, len(protocol) + 1
    rule = f"found {shown(protocol)}; TCP:, OS:, HTTP: or HTTPS: is required"
    if protocol.lower() in _DISCONTINUED:
        rule = f"found {protocol}: SPX/IPX is not supported; use TCP: or OS:"
    raise InvalidName(f"{field}.protocol", offset, rule)


def _split_url(text: str, start: int, offset: int, field: str) -> tuple[str, int, int]:
    r"""Split `//host[:port]/MSMQ`, which is followed by a `\` or, as in a URL, a `/`.

    Return host and port, the index at which they begin, and the index of the separator after them.
    """
    if not text.startswith("//", start):
        rule = f"found {shown(text[start : start + 2])}; //host/MSMQ is required"
        raise InvalidName(f"{field}.host", offset + start, rule)
    start += 2
    address = text[start:].partition("/")[0]
    directory = start + len(address)
    end = directory + len(_VIRTUAL_DIRECTORY)
    separator = text[end : end + 1]
    if text[directory:end].lower() != _VIRTUAL_DIRECTORY.lower() or separator not in _SEPARATORS:
        rule = f"found {shown(text[directory : end + 1])}; {_VIRTUAL_DIRECTORY}\\ is required here"
        raise InvalidName(f"{field}.virtual_directory", offset + directory, rule)
    return address, start, end


def parse_address(
    text: str, offset: int, field: str, transport: Transport | None
) -> tuple[Transport, str, int]:
    """Parse `host`, `host:port`, `[IPv6]:port` or, outside a URL, a bare IPv6 address.

    If `transport` is None, an IP address implies TCP, any other host OS.
    """
    bracketed = text.startswith("[")
    if bracketed:
        host, bracket, rest = text[1:].partition("]")
        if not bracket or ":" not in host or rest[:1] not in ("", ":"):
            rule = f"found {shown(text)}; [IPv6 address] or [IPv6 address]:port is required"
            raise InvalidName(f"{field}.host", offset, rule)
        colon, port_digits = rest[:1], rest[1:]
    elif text.count(":") > 1 and transport not in _URL:
        host, colon, port_digits = text, "", ""
    else:
        host, colon, port_digits = text.partition(":")
    if transport is None:
        transport = Transport.TCP if _looks_like_ip(host) else Transport.OS
    host = _parse_host(host, offset + bracketed, field, transport)
    port = _DEFAULT_PORT[transport]
    # the grammar allows an empty port in a URL
    if colon and (port_digits or transport not in _URL):
        port = _parse_port(port_digits, offset + len(text) - len(port_digits), field)
    return transport, host, port


def _looks_like_ip(host: str) -> bool:
    return ":" in host or (host != "." and not host.strip(digits + "."))


def _parse_host(host: str, offset: int, field: str, transport: Transport) -> str:
    """Return the host in its canonical spelling: an IPv6 address in its shortest form."""
    if ":" in host and transport is not Transport.OS:
        return _parse_ipv6(host, offset, f"{field}.host")
    if transport is Transport.TCP:
        return parse_ipv4(host, offset, f"{field}.host", hint=" (computer names go with OS:)")
    return COMPUTER.check(host, f"{field}.host", offset)


def parse_ipv4(text: str, offset: int, field: str, *, hint: str = "") -> str:
    """Return `text` if it is four decimal numbers of one byte, without leading zeros.

    Raises InvalidName; `hint` is appended to its rule.
    """
    if not text:
        raise InvalidName(field, offset, f"found nothing; an IPv4 address is required{hint}")
    place = offset
    parts = text.split(".", 4)
    for part in parts:
        if not (part.isascii() and part.isdigit() and len(part) <= 3 and str(int(part)) == part):
            rule = f"found {shown(part)} in {shown(text)}; numbers from 0 to 255 are required{hint}"
            raise InvalidName(field, place, rule)
        if int(part) > 0xFF:
            raise InvalidName(field, place, f"found {part}; at most 255 is allowed")
        place += len(part) + 1
    if len(parts) != 4:
        raise InvalidName(field, offset, f"found {shown(text)}; an IPv4 address has four numbers")
    return text


def _parse_ipv6(text: str, offset: int, field: str) -> str:
    address, percent, scope = text.partition("%")
    if percent:
        _SCOPE.check(scope, field, offset + len(address) + 1)
    try:
        return str(IPv6Address(address)) + percent + scope
    except AddressValueError as error:
        rule = f"found {shown(address)}; an IPv6 address is required"
        raise InvalidName(field, offset, rule) from error


def _parse_port(text: str, offset: int, field: str) -> int:
    number = text.lstrip("0")
    decimal = text.isascii() and text.isdigit() and 1 <= len(number) <= 5
    if not decimal or int(number) > 0xFFFF:
        raise InvalidName(f"{field}.port", offset, _port_rule(text))
    return int(number)


def _port_rule(found: str) -> str:
    return f"found {shown(found)}; a port from 1 to 65535 is required"
