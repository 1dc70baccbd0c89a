"""Handlers of the verbs about TLS between queue managers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qmd.control.handler import Handler, change, look
from qmd.control_protocol.tls import ForgetTlsPeer, ListTlsPeers

if TYPE_CHECKING:
    from qmd.control.components import Components

Value = dict[str, Any]


async def _list(components: Components, request: ListTlsPeers) -> list[Value]:
    return [
        {"peer": row.peer, "port": row.port, "key": row.key, "met_s": row.met_s}
        for row in components.tls.met
    ]


async def _forget(components: Components, request: ForgetTlsPeer) -> Value:
    return {"peer": request.peer, "forgotten": components.tls.forget(request.peer.casefold())}


HANDLERS: dict[type, Handler] = {
    ListTlsPeers: look(_list),
    ForgetTlsPeer: change(_forget),
}
