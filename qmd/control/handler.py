"""Handlers of requests: the type of all, their server, and handlers that await something."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from qmd.control.components import Components
    from qmd.control.places import Places
    from qmd.control.server import ControlConnection
    from qmd.control_protocol.messages import Request

#: Begins the work of a request and arranges its answer.  Raises Refusal.
Handler = Callable[["ControlConnection", Any], None]
Work = Callable[["Components", Any], Coroutine[Any, Any, object]]


class Server(Protocol):
    """The server of a connection: `ControlServer`."""

    places: Places[ControlConnection]
    connections: dict[ControlConnection, None]
    connection_count: int
    handlers: Mapping[type, Handler]


def look(work: Work) -> Handler:
    """Return the handler of a verb that changes nothing; `work` returns its answer."""

    def handle(connection: ControlConnection, request: Request) -> None:
        connection.look(request.number, work(connection.components, request))

    return handle


def change(work: Work) -> Handler:
    """Return the handler of a verb that waits in the middle of a change."""

    def handle(connection: ControlConnection, request: Request) -> None:
        connection.change(request.number, work(connection.components, request))

    return handle
