"""The verbs of the control protocol: the handler of each request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qmd.control import (
    access_handlers,
    audit_handlers,
    bulk_handlers,
    certificate_handlers,
    delayed_handlers,
    directory_handlers,
    door_handlers,
    explain_name,
    figure_handlers,
    identity_handlers,
    lock_handlers,
    message_handlers,
    operator_handlers,
    routing_handlers,
    settings_handlers,
    tls_handlers,
    topic_handlers,
)
from qmd.control import status as overview
from qmd.control.audited import audited
from qmd.control.handler import Handler
from qmd.control.token_login import log_in
from qmd.control_protocol import messages as frames
from qmd.errors import Refusal

if TYPE_CHECKING:
    from qmd.control.server import ControlConnection


def _hello(connection: ControlConnection, request: frames.Hello | frames.Login) -> None:
    if request.version != frames.VERSION:
        raise Refusal(
            "versions_differ",
            f"the client uses version {request.version} of the control protocol, this queue"
            f" manager version {frames.VERSION}",
            "Use client and daemon of the same release.",
        )
    if isinstance(request, frames.Login) and request.token:
        log_in(connection, request)
    else:
        connection.done(request.number, overview.hello(connection.components))


#: The handler of each request: the tables of all areas; requests of operators are recorded.
HANDLERS: dict[type, Handler] = audited(
    {
        frames.Hello: _hello,
        frames.Login: _hello,
        **message_handlers.HANDLERS,
        **lock_handlers.HANDLERS,
        **operator_handlers.HANDLERS,
        **bulk_handlers.HANDLERS,
        **delayed_handlers.HANDLERS,
        **directory_handlers.HANDLERS,
        **certificate_handlers.HANDLERS,
        **routing_handlers.HANDLERS,
        **identity_handlers.HANDLERS,
        **tls_handlers.HANDLERS,
        **topic_handlers.HANDLERS,
        **settings_handlers.HANDLERS,
        **explain_name.HANDLERS,
        **access_handlers.HANDLERS,
        **door_handlers.HANDLERS,
        **figure_handlers.HANDLERS,
        **audit_handlers.HANDLERS,
    }
)
