"""The program `qmd door http`: its operations, and its periodic work."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import msgspec

from qmd.client.errors import NotConnected
from qmd.config.settings import Settings
from qmd.doors.http import (
    administration,
    history,
    push_operations,
    receiving,
    sending,
    topic_operations,
)
from qmd.doors.http.declarations import Answer, Call, Operation
from qmd.doors.http.exchange import JSON, Response
from qmd.doors.http.limits import Limits
from qmd.doors.http.listening import listening, remove_socket, shown, tls_context
from qmd.doors.http.openapi import describe
from qmd.doors.http.program import run
from qmd.doors.http.pusher import Pusher
from qmd.doors.http.pushes import PushFile
from qmd.doors.http.routes import Router
from qmd.doors.http.server import HttpServer
from qmd.doors.http.sessions import Sessions
from qmd.runtime.systemd import ServiceManager

DRAIN_S = 5.0
SECTION = "http"
READY_S = 2.0  # how long the daemon may take to answer
LOOK_S = 30.0  # between two looks for idle sessions


def operations(
    ready: history.Ready, pushes: PushFile, changed: Callable[[], None]
) -> list[Operation]:
    """Return all operations of the door."""
    found = [
        *sending.OPERATIONS,
        *topic_operations.OPERATIONS,
        *receiving.OPERATIONS,
        *administration.OPERATIONS,
        *history.OPERATIONS,
        *push_operations.operations(pushes, changed),
        history.readiness(ready),
    ]
    description = b""

    async def show(call: Call) -> Response:
        nonlocal description
        description = description or msgspec.json.encode(describe(found))
        return Response(200, description)

    found.append(
        Operation(
            "GET",
            "/openapi.json",
            "describe",
            "Status",
            "This description",
            show,
            {200: Answer("The description.", {JSON: dict[str, Any]})},
            is_open=True,
        )
    )
    return found


class Door:
    """The server, its sessions with the daemon, and their periodic work."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings.http
        self._socket = settings.control.socket
        self.sessions = Sessions(settings.control.socket, anonymous=settings.http.anonymous)
        pushes = PushFile(settings.http.pushes)
        self._pusher = Pusher(pushes, settings.http.push_targets, self.sessions.own)
        router = Router(
            operations(self._ready, pushes, self._pusher.look), self.sessions.of_request
        )
        chosen = settings.http
        limits = Limits(
            chosen.connections_max,
            chosen.connections_per_address_max,
            chosen.head_timeout_s,
            chosen.body_timeout_s,
            chosen.idle_timeout_s,
            chosen.write_timeout_s,
            chosen.request_bytes_max,
            max(chosen.bodies_bytes_max, chosen.request_bytes_max),
        )
        self.server = HttpServer(router, limits)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, service: ServiceManager) -> list[str]:
        """Open the sockets and serve; return where.  Raises CannotServe."""
        context = tls_context(self._settings, SECTION)
        sockets = service.sockets() or list(listening(self._settings, SECTION))
        await self.server.start(sockets, context)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._look()), loop.create_task(self._pusher.run())]
        return [shown(each, is_tls=context is not None) for each in sockets]

    async def stop(self) -> None:
        """End requests and sessions; locks stay with the daemon."""
        await self.server.stop(DRAIN_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        await self.sessions.close()
        if self._settings.socket is not None:
            remove_socket(self._settings.socket)

    async def _ready(self) -> str:
        session = await self.sessions.own()
        connection = session.caller.live_connection
        if connection is None:
            try:
                await asyncio.wait_for(session.connection(), READY_S)
            except TimeoutError as late:
                raise NotConnected(
                    f"the daemon does not answer at {self._socket}",
                    "start it: qmd serve",
                    code="daemon_not_answering",
                ) from late
        return session.caller.queue_manager

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self.sessions.close_idle()


def main(settings: Settings) -> int:
    """Serve until a signal stops the door; return the exit code."""
    gc.set_threshold(20_000, 50, 100)
    return run(settings, SECTION, Door)
