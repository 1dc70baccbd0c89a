"""Rules for routes in the configuration: `DESTINATION via HOP then HOP`.

    10.2.0.0/16 via gate-a then gate-b:1802        the network of an address in a direct name
    *.berlin.example via gate-berlin               the end of a name; without "*.", one name
    3f2504e0-4f89-11d3-9a0c-0305e82c3301 via [fd00::7]:1801
    10.3.0.5 via direct then gate-a                first itself, then over another computer
    * via gate-c                                   all destinations without another route

The first matching rule applies. Hops are tried in turn.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple

from protocol.errors import InvalidName
from protocol.identifiers import guid_bytes, guid_text
from protocol.names.direct_name import PORT
from protocol.names.path_name import COMPUTER

RULE = '"DESTINATION via HOP then HOP", for example "10.2.0.0/16 via gate-a then gate-b:1802"'
DIRECT = "direct"
HOPS_PER_RULE_MAX = 16

_GUID = re.compile(r"\{?[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\}?")

Network = IPv4Network | IPv6Network


class Pattern(NamedTuple):
    """A set of destinations; exactly one field is set, or none: all destinations."""

    network: Network | None = None
    name: str = ""  # casefolded; with a leading ".", all names with this end
    guid: bytes = b""

    def __str__(self) -> str:
        if self.network is not None:
            return str(self.network)
        if self.guid:
            return guid_text(self.guid)
        return f"*{self.name}" if self.name.startswith(".") else self.name or "*"

    @property
    def is_all(self) -> bool:
        return self == Pattern()

    def has_host(self, host: str) -> bool:
        """Return whether a name or an address in a direct name matches."""
        if self.is_all:
            return True
        if self.network is not None:
            address = _address(host)
            return address is not None and address in self.network
        host = host.casefold()
        return bool(self.name) and (
            host.endswith(self.name) if self.name.startswith(".") else host == self.name
        )

    def has_guid(self, guid: bytes) -> bool:
        """Return whether a queue manager matches, judged by its GUID."""
        return self.is_all or (bool(self.guid) and guid == self.guid)


class Hop(NamedTuple):
    """Another queue manager on the route; an empty `host` means the destination itself."""

    host: str = ""
    port: int = PORT

    def __str__(self) -> str:
        if not self.host:
            return DIRECT
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORT else f"{host}:{self.port}"


class Rule(NamedTuple):
    destinations: Pattern
    hops: tuple[Hop, ...]

    def __str__(self) -> str:
        return f"{self.destinations} via {' then '.join(map(str, self.hops))}"


def parse_pattern(text: str) -> Pattern:
    """Parse the destination of a rule. Raises ValueError with the reason."""
    text = text.strip()
    if text == "*":
        return Pattern()
    if _GUID.fullmatch(text):
        return Pattern(guid=guid_bytes(text.strip("{}")))
    if "/" in text or ":" in text or text[:1].isdigit():
        return Pattern(network=ip_network(text))
    wildcard = text.startswith("*.")
    name = _computer(text[2:] if wildcard else text)
    return Pattern(name=f".{name}" if wildcard else name)


def parse_hop(text: str) -> Hop:
    """Parse a hop of a rule. Raises ValueError with the reason."""
    text = text.strip()
    if text == DIRECT:
        return Hop()
    host, port = text, str(PORT)
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        IPv6Address(host)
        if rest:
            if not rest.startswith(":"):
                raise ValueError(f"{text!r} has no port after its address")
            port = rest[1:]
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    if not (port.isascii() and port.isdigit() and 0 < int(port) <= 65535):
        raise ValueError(f"{text!r} has no port from 1 to 65535")
    if _address(host) is None:
        host = _computer(host)
    return Hop(host, int(port))


def parse_rule(text: str) -> Rule:
    """Parse a rule. Raises ValueError with the reason."""
    destinations, via, hops = text.partition(" via ")
    if not via:
        raise ValueError(f"{text!r} has no ' via ': write {RULE}")
    found = tuple(map(parse_hop, hops.split(" then ")))
    if len(found) > HOPS_PER_RULE_MAX:
        raise ValueError(f"{len(found)} hops; {HOPS_PER_RULE_MAX} are allowed")
    return Rule(parse_pattern(destinations), found)


def _computer(text: str) -> str:
    try:
        return COMPUTER.check(text, "name", 0).casefold()
    except InvalidName as error:
        raise ValueError(f"{text!r}: {error}") from error


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
