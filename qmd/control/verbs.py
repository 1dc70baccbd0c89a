"""The verbs of the control protocol: the handler of each request."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from qmd.control import (
    bulk_handlers,
    directory_handlers,
    message_handlers,
    operator_handlers,
    routing_handlers,
)
from qmd.control import status as overview
from qmd.control.explain_name import explain
from qmd.control_protocol import messages as frames
from qmd.control_protocol.directory import ExplainName
from qmd.errors import Refusal

if TYPE_CHECKING:
    from qmd.control.components import Components
    from qmd.control.server import ControlConnection

Handler = Callable[["ControlConnection", Any], None]


def _hello(connection: ControlConnection, request: frames.Hello | frames.Login) -> None:
    if request.version != frames.VERSION:
        raise Refusal(
            "versions_differ",
            f"the client speaks version {request.version} of the control protocol, this queue"
            f" manager version {frames.VERSION}",
            "Use client and daemon of the same release.",
        )
    connection.done(request.number, overview.hello(connection.components))


def _bulk(connection: ControlConnection, request: frames.Request) -> None:
    verb = bulk_handlers.VERBS[type(request)]
    work = verb.work(connection.components, connection.rights, request)
    if verb.is_page:
        work = _page_of(connection, work)
    start = connection.change if verb.changes else connection.look
    start(request.number, work)


async def _page_of(connection: ControlConnection, work: Coroutine[Any, Any, object]) -> object:
    try:
        async with connection.turn():
            return await work
    finally:
        work.close()  # it has not started if its turn never came


def _look(work: Callable[[Components, Any], Coroutine[Any, Any, object]]) -> Handler:
    """Return the handler of a verb that changes nothing."""

    def handle(connection: ControlConnection, request: frames.Request) -> None:
        connection.look(request.number, work(connection.components, request))

    return handle


def _change(work: Callable[[Components, Any], Coroutine[Any, Any, object]]) -> Handler:
    """Return the handler of a verb that waits in the middle of a change."""

    def handle(connection: ControlConnection, request: frames.Request) -> None:
        connection.change(request.number, work(connection.components, request))

    return handle


HANDLERS: dict[type, Handler] = {
    frames.Hello: _hello,
    frames.Login: _hello,
    **message_handlers.HANDLERS,
    **operator_handlers.HANDLERS,
    **dict.fromkeys(bulk_handlers.VERBS, _bulk),
    **{verb: _look(work) for verb, work in directory_handlers.LOOKS.items()},
    **{verb: _change(work) for verb, work in directory_handlers.CHANGES.items()},
    **{verb: _change(work) for verb, work in routing_handlers.CHANGES.items()},
    ExplainName: _look(explain),
}
