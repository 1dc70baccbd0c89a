"""Principals: the users, programs and queue managers that entries of access control name.

    user:ann  user:1000  group:staff  local  token:archive  cert:sha256:0f3a...  cert:CN
    sasl:ann@EXAMPLE.COM  service:billing.service  peer:GUID  host:10.0.0.0/8  sid:S-1-5-21-...
    anonymous  everyone

A user or group that is named has its number beside its name, as it was when the entry was made: a
number that the system has given to another account since then is another account.
"""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

from protocol.errors import InvalidName
from protocol.identifiers import guid_bytes, guid_text

USER, GROUP, TOKEN, CERT, SASL = "user", "group", "token", "cert", "sasl"
SERVICE, PEER, HOST, SID = "service", "peer", "host", "sid"
SIGNER = "signer"  # the SHA-256 of the certificate of a verified signature
#: Kinds that stand for many at once, and have no name.
EVERYONE, ANONYMOUS, LOCAL = "everyone", "anonymous", "local"

NAMELESS = (EVERYONE, ANONYMOUS, LOCAL)
NAMED = (USER, GROUP, TOKEN, CERT, SASL, SERVICE, PEER, HOST, SID, SIGNER)
NUMBERED = (USER, GROUP)
NAME_CHARACTERS_MAX = 256
ID_MAX = (1 << 32) - 2  # of a user or group; -1 stands for none


class BadPrincipal(ValueError):
    """A text that is not the name of a principal; the message says why."""


class Principal(NamedTuple):
    """One principal; `number` is the id of a user or group, where it is known."""

    kind: str
    name: str = ""
    number: int | None = None

    def __str__(self) -> str:
        if self.kind in NAMELESS:
            return self.kind
        return f"{self.kind}:{self.name if self.name else self.number}"


ALL = Principal(EVERYONE)
UNPROVEN = Principal(ANONYMOUS)
ALL_LOCAL = Principal(LOCAL)


def is_of_kind(kind: str, text: str) -> bool:
    """Return whether a text is that of a principal of the kind, as `parse_principal` reads it."""
    return text.partition(":")[0].strip().casefold() == kind


def parse_principal(text: str) -> Principal:
    """Return the principal of a text.  Raises BadPrincipal.

    The number of a named user or group is not known here.
    """
    kind, colon, name = text.partition(":")
    kind = kind.strip().casefold()
    if kind in NAMELESS and not colon:
        return Principal(kind)
    if kind not in NAMED or not colon:
        raise BadPrincipal(
            f"'{text}' is not a principal: it is one of {', '.join(NAMELESS)}, or begins with"
            f" {', '.join(f'{each}:' for each in NAMED)}"
        )
    if (
        not name
        or len(name) > NAME_CHARACTERS_MAX
        or not name.isprintable()
        or name != name.strip()
    ):
        raise BadPrincipal(f"'{text}' has no name of 1 to {NAME_CHARACTERS_MAX} characters")
    if kind in NUMBERED and name.isascii() and name.isdigit():
        if int(name) > ID_MAX:
            raise BadPrincipal(f"'{text}' has an id above {ID_MAX}")
        return Principal(kind, "", int(name))
    return Principal(kind, _canonical(kind, name, text))


def _canonical(kind: str, name: str, text: str) -> str:
    """Return the one spelling of a name by which principals are compared.  Raises BadPrincipal."""
    if kind == PEER:
        try:
            return guid_text(guid_bytes(name))
        except InvalidName as error:
            raise BadPrincipal(f"'{text}' does not have the GUID of a queue manager") from error
    if kind == HOST:
        try:
            return str(ipaddress.ip_network(name, strict=False))
        except ValueError as error:
            raise BadPrincipal(f"'{text}' is neither an address nor a network") from error
    if kind == SID:
        if not name.upper().startswith("S-1-"):
            raise BadPrincipal(
                f"'{text}' is not a security identifier, such as S-1-5-21-1-2-3-1001"
            )
        return name.upper()
    if kind == CERT and name.casefold().startswith("sha256:"):
        return name.casefold().replace(" ", "")
    return name


def is_within(principal: Principal, network: Principal) -> bool:
    """Return whether the address of one principal of kind HOST lies within that of another."""
    inner, outer = ipaddress.ip_network(principal.name), ipaddress.ip_network(network.name)
    if isinstance(inner, ipaddress.IPv4Network) and isinstance(outer, ipaddress.IPv4Network):
        return inner.subnet_of(outer)
    if isinstance(inner, ipaddress.IPv6Network) and isinstance(outer, ipaddress.IPv6Network):
        return inner.subnet_of(outer)
    return False
