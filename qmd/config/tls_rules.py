"""Rules of TLS between queue managers: which peers need it, prefer it or never get it.

"10.0.0.0/8 required", "*.example.com preferred", "gate-b required 1817", "* never"
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from qmd.config.route_rules import Pattern, parse_pattern

TLS_RULE = '"PEER required|preferred|never [PORT]", for example "10.0.0.0/8 required"'


class Wanted(Enum):
    """Whether sessions with a peer use TLS."""

    REQUIRED = "required"
    PREFERRED = "preferred"
    NEVER = "never"


class TlsRule(NamedTuple):
    """One rule; `port` is the port of the peer for TLS, and 0 if the rule names none."""

    peers: Pattern
    wanted: Wanted
    port: int = 0

    def __str__(self) -> str:
        return f"{self.peers} {self.wanted.value}{f' {self.port}' if self.port else ''}"

    def fits(self, hosts: Iterable[str], guid: bytes | None) -> bool:
        """Return whether the rule is for a peer with one of these names or addresses, or a GUID."""
        return (guid is not None and self.peers.has_guid(guid)) or any(
            self.peers.has_host(host) for host in hosts
        )


def parse_tls_rule(text: str) -> TlsRule:
    """Parse a rule. Raises ValueError with the reason."""
    words = text.split()
    if len(words) not in (2, 3):
        raise ValueError(f"{text!r} has {len(words)} words: write {TLS_RULE}")
    try:
        wanted = Wanted(words[1])
    except ValueError:
        raise ValueError(f"{words[1]!r} is none of required, preferred, never") from None
    port = words[2] if len(words) == 3 else "0"
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError(f"{port!r} is not a port")
    if len(words) == 3 and (int(port) == 0 or wanted is Wanted.NEVER):
        raise ValueError(f"{text!r} has a port that cannot be used")
    return TlsRule(parse_pattern(words[0]), wanted, int(port))
