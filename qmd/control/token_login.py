"""Logins with a token on the control socket: a door serves the clients that have tokens.

The connection has the rights of the token instead of those of its user, until it ends.  The port
for remote control has its own logins: qmd/control/remote.py.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from qmd.access.rights import DoorRights, GrantedRights, rights_of
from qmd.control import status as overview
from qmd.control.token_watch import Holder
from qmd.core.access import Caller
from qmd.core.principals import TOKEN, Principal
from qmd.errors import Refusal
from qmd.queues.local_queue import Reader
from qmd.runtime.shares import Owner

if TYPE_CHECKING:
    from qmd.control.server import ControlConnection
    from qmd.control_protocol.messages import Login

FAILURE_DELAY_S = 0.5  # before the answer to a wrong token
HERE = "this computer"  # in the place of an address


def log_in(connection: ControlConnection, request: Login) -> None:
    """Give a connection to the control socket the rights of a token.

    It continues as a new connection would: the messages that it has taken return.  Raises Refusal.
    """
    if isinstance(connection.rights, DoorRights | GrantedRights):
        raise Refusal(
            "acting_not_allowed",
            "the connection has logged in already, or acts for a user of a door",
            "Open a new connection for each user.",
        )
    logins = connection.components.token_logins
    grant = logins.find(request.token)
    if grant is None:
        connection.change(request.number, refuse_token(connection))
        return
    caller = Caller(
        f"token:{grant.name}", frozenset({Principal(TOKEN, grant.name)}), is_limited=True
    )
    connection.let_go()
    connection.reader = Reader()
    connection.rights = rights_of(grant, connection.components.access_checks, caller)
    if not connection.change_account(Owner(("token", grant.name), HERE), f"token:{grant.name}"):
        connection.components.services.log_limited(
            "too_many_clients", grant.name, client=f"token:{grant.name}"
        )
        connection.abort()
        return
    holder = Holder(
        grant, HERE, connection.close, connection.abort, lambda: connection.account is None
    )
    logins.watch.add(connection, holder)
    answer = {"scopes": sorted(grant.scopes), "token": grant.name}
    connection.done(request.number, overview.hello(connection.components) | answer)


async def refuse_token(connection: ControlConnection) -> object:
    """Refuse an unknown token, after a pause.  Raises Refusal."""
    name = connection.components.services.name
    connection.components.services.log_limited("remote_token_refused", HERE, address=HERE)
    await asyncio.sleep(FAILURE_DELAY_S)
    raise unknown_token(name)


def unknown_token(name: str) -> Refusal:
    """Return the refusal of a token that a queue manager does not know."""
    return Refusal(
        "token_refused",
        f"{name} does not know this token",
        "It was revoked, or belongs to another host: see `qmd remote token list` there.",
    )
