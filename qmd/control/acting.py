"""Doors: processes that serve users of other computers, and act for each of them.

A door proves the identity of its user (a password, a certificate) and states it once for each
connection to the control socket.  The connection then has the rights of that user, and can never
have others again.  docs/access.md.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import TYPE_CHECKING

from qmd.access.rights import NO_RIGHTS, DoorRights
from qmd.core.access import Caller
from qmd.core.principals import (
    ANONYMOUS,
    CERT,
    HOST,
    SASL,
    BadPrincipal,
    Principal,
    parse_principal,
)
from qmd.errors import Refusal
from qmd.queues.local_queue import Reader
from qmd.runtime.shares import Owner

if TYPE_CHECKING:
    from qmd.control.server import ControlConnection

#: The kinds of principals that a door can prove; the last one is never the main one.  A door that
#: could state a user of this computer would have the rights of root.
PROVEN_BY_DOORS = (SASL, CERT, ANONYMOUS, HOST)


def act_for(connection: ControlConnection, texts: Sequence[str]) -> dict[str, str]:
    """Give a connection the rights of a user of a door; return the name of its main principal.

    The messages that the connection has taken return to their queues, and its transactions are
    aborted: it continues as a new connection would.  Raises Refusal.
    """
    principals = proven_principals(connection, texts)
    main = principals[0]
    if main.kind == HOST:
        raise _bad(main, "an address alone is no user")
    components = connection.components
    connection.let_go()
    connection.reader = Reader()
    connection.rights = NO_RIGHTS
    addresses = ", ".join(each.name for each in principals if each.kind == HOST)
    shown = f"{main} at {addresses}" if addresses else str(main)
    if not connection.change_account(Owner(("door", str(main)), addresses), shown):
        components.services.log_limited("too_many_clients", str(main), client=shown)
        connection.abort()
        return {}
    is_distant = any(each.kind == HOST and not _is_loopback(each.name) for each in principals)
    caller = Caller(str(main), frozenset(principals), is_remote=True, is_distant=is_distant)
    connection.rights = DoorRights(components.access_checks, caller, main)
    return {"principal": str(main)}


def proven_principals(connection: ControlConnection, texts: Sequence[str]) -> list[Principal]:
    """Return the principals that a door has proven for its user.  Raises Refusal."""
    if not connection.is_local or isinstance(connection.rights, DoorRights):
        raise Refusal(
            "acting_not_allowed",
            "the connection cannot act for a user: it has a user already, or is not one to the"
            " control socket",
            "Open a new connection to the control socket for each user.",
        )
    return [_principal(text) for text in texts]


def _principal(text: str) -> Principal:
    try:
        principal = parse_principal(text)
    except BadPrincipal as error:
        raise Refusal("bad_principal", str(error), "See docs/access.md.") from error
    if principal.kind not in PROVEN_BY_DOORS:
        raise _bad(principal, f"a door can prove {', '.join(PROVEN_BY_DOORS)}")
    return principal


def _is_loopback(network: str) -> bool:
    """Return whether the text of a principal of kind HOST is an address of this computer."""
    address = ipaddress.ip_network(network).network_address
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _bad(principal: Principal, why: str) -> Refusal:
    return Refusal(
        "principal_of_no_door",
        f"a door cannot act for {principal}: {why}",
        "Grant the rights to the principal that the door proves, such as sasl:NAME.",
    )
