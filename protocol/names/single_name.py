"""Format names of one destination, one class per keyword.  [MS-MQMQ] 2.1.3 to 2.1.6, 2.2.7

Direct names are in direct_name.py.  The suffixes that are allowed after each GUID are those of
2.2.7, which lists some that the grammar of 2.1 lacks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from protocol.errors import InvalidName
from protocol.identifiers import guid_bytes, guid_text
from protocol.names.direct_name import DirectName, parse_direct, parse_ipv4
from protocol.names.path_name import SYSTEM_QUEUES, NameRule, Suffix, parse_suffix, shown

DOMAIN_CHARACTERS_MAX = 255

_GUID_SHAPE = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
_HEX_DIGITS = frozenset("0123456789abcdefABCDEF")
_MULTICAST_FIRST, _MULTICAST_LAST = 224, 239  # range of the first number, the rule dec-octet1
_NUMBER = NameRule(8, _HEX_DIGITS, "hexadecimal digits")
# The grammar allows any VCHAR here; a comma would be taken as the separator of elements.
_DOMAIN = NameRule(
    DOMAIN_CHARACTERS_MAX,
    frozenset(map(chr, range(0x21, 0x7F))) - {","},
    'ASCII characters from "!" to "~" except the comma',
)


class Name:
    """The base class of the format names below."""

    __slots__ = ()

    @property
    def key(self) -> str:
        """The comparison key: equal for all spellings of one destination."""
        return str(self).lower()

    @property
    def read_only(self) -> bool:
        """Whether the destination accepts no sends."""
        return False


@dataclass(frozen=True, slots=True)
class PublicName(Name):
    """A public queue, identified by the GUID of its object in the directory."""

    queue: bytes
    suffix: Suffix | None = None

    def __post_init__(self) -> None:
        parse_suffix(_suffix_text(self.suffix), 0, "public", Suffix.JOURNAL)

    @property
    def read_only(self) -> bool:
        return self.suffix is not None

    def __str__(self) -> str:
        return f"PUBLIC={guid_text(self.queue)}{_suffix_text(self.suffix)}"


@dataclass(frozen=True, slots=True)
class PrivateName(Name):
    """A private queue, identified by the GUID of its queue manager and its 32-bit number there."""

    queue_manager: bytes
    number: int
    suffix: Suffix | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.number <= 0xFFFF_FFFF:
            raise InvalidName("private.number", 0, f"found {self.number}; 32 bits are allowed")
        parse_suffix(_suffix_text(self.suffix), 0, "private", Suffix.JOURNAL)

    @property
    def read_only(self) -> bool:
        return self.suffix is not None

    def __str__(self) -> str:
        queue_manager = guid_text(self.queue_manager)
        return f"PRIVATE={queue_manager}\\{self.number:08x}{_suffix_text(self.suffix)}"


@dataclass(frozen=True, slots=True)
class DistributionListName(Name):
    """A distribution list, identified by the GUID of its object and, optionally, its domain."""

    distribution_list: bytes
    domain: str | None = None

    def __post_init__(self) -> None:
        if self.domain is not None:
            _DOMAIN.check(self.domain, "dl.domain", 0)

    def __str__(self) -> str:
        domain = "" if self.domain is None else f"@{self.domain}"
        return f"DL={guid_text(self.distribution_list)}{domain}"


@dataclass(frozen=True, slots=True)
class MachineName(Name):
    """A computer's journal or dead-letter queue, identified by the GUID of its queue manager."""

    queue_manager: bytes
    suffix: Suffix | None = None

    def __post_init__(self) -> None:
        parse_suffix(_suffix_text(self.suffix), 0, "machine", *SYSTEM_QUEUES)

    @property
    def read_only(self) -> bool:
        return True

    def __str__(self) -> str:
        return f"MACHINE={guid_text(self.queue_manager)}{_suffix_text(self.suffix)}"


@dataclass(frozen=True, slots=True)
class ConnectorName(Name):
    """A connector's queue; with XACTONLY the queue for transactional messages."""

    connector: bytes
    suffix: Suffix | None = None

    def __post_init__(self) -> None:
        parse_suffix(_suffix_text(self.suffix), 0, "connector", Suffix.XACTONLY)

    def __str__(self) -> str:
        return f"CONNECTOR={guid_text(self.connector)}{_suffix_text(self.suffix)}"


@dataclass(frozen=True, slots=True)
class MulticastName(Name):
    """All queues that listen to an IPv4 multicast address."""

    address: str
    port: int

    def __post_init__(self) -> None:
        _split_multicast(f"{self.address}:{self.port}", 0, "multicast")

    def __str__(self) -> str:
        return f"MULTICAST={self.address}:{self.port}"


SingleName = (
    DirectName
    | PublicName
    | PrivateName
    | DistributionListName
    | MachineName
    | ConnectorName
    | MulticastName
)


def parse_single(text: str, offset: int, prefix: str) -> SingleName:
    """Parse one format name; `prefix` precedes the names of its fields.  Raises InvalidName."""
    keyword, equals, rest = text.partition("=")
    parse = PARSERS.get(keyword.lower())
    if not equals or parse is None:
        expected = ", ".join(f"{keyword.upper()}=" for keyword in PARSERS)
        rule = f"found {shown(keyword)}; one of {expected} is required"
        raise InvalidName(f"{prefix}format_name", offset, rule)
    return parse(rest, offset + len(keyword) + 1, f"{prefix}{keyword.lower()}")


def _parse_public(text: str, offset: int, field: str) -> PublicName:
    queue = _parse_guid(text, offset, f"{field}.guid")
    return PublicName(queue, _suffix_after_guid(text, offset, field, Suffix.JOURNAL))


def _parse_private(text: str, offset: int, field: str) -> PrivateName:
    queue_manager = _parse_guid(text, offset, f"{field}.guid")
    place = offset + len(_GUID_SHAPE)
    rest = text[len(_GUID_SHAPE) :]
    if not rest.startswith("\\"):
        rule = f"found {shown(rest[:1])}; a backslash and the queue's number are required"
        raise InvalidName(f"{field}.number", place, rule)
    number, semicolon, suffix = rest[1:].partition(";")
    _NUMBER.check(number, f"{field}.number", place + 1)
    place += 1 + len(number)
    return PrivateName(
        queue_manager,
        int(number, 16),
        parse_suffix(semicolon + suffix, place, field, Suffix.JOURNAL),
    )


def _parse_distribution_list(text: str, offset: int, field: str) -> DistributionListName:
    distribution_list = _parse_guid(text, offset, f"{field}.guid")
    place, domain = offset + len(_GUID_SHAPE), text[len(_GUID_SHAPE) :]
    if not domain:
        return DistributionListName(distribution_list)
    if domain[0] != "@":
        raise InvalidName(
            f"{field}.domain", place, f"found {shown(domain)}; only @domain may follow"
        )
    return DistributionListName(
        distribution_list, _DOMAIN.check(domain[1:], f"{field}.domain", place + 1)
    )


def _parse_machine(text: str, offset: int, field: str) -> MachineName:
    queue_manager = _parse_guid(text, offset, f"{field}.guid")
    return MachineName(queue_manager, _suffix_after_guid(text, offset, field, *SYSTEM_QUEUES))


def _parse_connector(text: str, offset: int, field: str) -> ConnectorName:
    connector = _parse_guid(text, offset, f"{field}.guid")
    return ConnectorName(connector, _suffix_after_guid(text, offset, field, Suffix.XACTONLY))


def _parse_multicast(text: str, offset: int, field: str) -> MulticastName:
    return MulticastName(*_split_multicast(text, offset, field))


PARSERS: dict[str, Callable[[str, int, str], SingleName]] = {
    "direct": parse_direct,
    "public": _parse_public,
    "private": _parse_private,
    "dl": _parse_distribution_list,
    "machine": _parse_machine,
    "connector": _parse_connector,
    "multicast": _parse_multicast,
}


def _split_multicast(text: str, offset: int, field: str) -> tuple[str, int]:
    address, colon, port = text.partition(":")
    parse_ipv4(address, offset, f"{field}.address")
    if not _MULTICAST_FIRST <= int(address.partition(".")[0]) <= _MULTICAST_LAST:
        rule = f"found {address}; 224.0.0.0 to 239.255.255.255 are multicast addresses"
        raise InvalidName(f"{field}.address", offset, rule)
    offset += len(address) + len(colon)
    # The rule Port allows 0, but no leading zeros.
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and str(int(port)) == port):
        rule = f"found {shown(port)}; a port from 0 to 65535 is required"
        raise InvalidName(f"{field}.port", offset, rule)
    if int(port) > 0xFFFF:
        raise InvalidName(f"{field}.port", offset, f"found {port}; at most 65535 is allowed")
    return address, int(port)


def _parse_guid(text: str, offset: int, field: str) -> bytes:
    """Parse the 36 characters of a GUID at the start of `text`; more may follow.

    Raises InvalidName.
    """
    for index, shape in enumerate(_GUID_SHAPE):
        found = text[index : index + 1]
        if found == shape if shape == "-" else found in _HEX_DIGITS:
            continue
        required = "a hyphen" if shape == "-" else "a hexadecimal digit"
        rule = f"found {shown(found) if found else 'the end'}; {required} is required in a GUID"
        raise InvalidName(field, offset + index, f"{rule} (8-4-4-4-12 digits, no braces)")
    return guid_bytes(text[: len(_GUID_SHAPE)])


def _suffix_after_guid(text: str, offset: int, field: str, *allowed: Suffix) -> Suffix | None:
    return parse_suffix(text[len(_GUID_SHAPE) :], offset + len(_GUID_SHAPE), field, *allowed)


def _suffix_text(suffix: Suffix | None) -> str:
    return f";{suffix}" if suffix else ""
