"""The connection of a door to the control socket, which acts for one user."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from qmd.client.connection import Connection, open_connection
from qmd.client.errors import NotConnected
from qmd.control_protocol import access as access_frames
from qmd.control_protocol import messages as frames

Verb = Callable[..., frames.Request]


class UserConnection:
    """A connection that is opened on its first use, and then has the rights of its user."""

    def __init__(
        self, socket: Path, principals: Sequence[str], lost: Callable[[NotConnected], None]
    ) -> None:
        """`principals`: those that the door has proven, the main one first; `lost` is called when
        the connection ends before `close`."""
        self._socket = socket
        self._principals = list(principals)
        self._lost = lost
        self._opening: asyncio.Task[Connection] | None = None
        self._connection: Connection | None = None
        self._is_closed = False
        #: The answer to the greeting: the GUID and the name of the queue manager.
        self.queue_manager = ""
        self.name = ""

    async def open(self) -> None:
        """Connect, unless it is connected.  Raises ClientError."""
        if self._connection is None:
            if self._opening is None:
                self._opening = asyncio.get_running_loop().create_task(self._open())
                self._opening.add_done_callback(self._opened)
            await asyncio.shield(self._opening)

    def _opened(self, task: asyncio.Task[Connection]) -> None:
        self._opening = None
        if not task.cancelled():
            task.exception()  # those that wait for it report it

    async def _open(self) -> Connection:
        connection = await open_connection(self._socket)
        try:
            hello = await connection.ask(frames.Hello, frames.VERSION)
            await connection.ask(access_frames.ActFor, self._principals)
        except BaseException:
            await connection.close()
            raise
        self.queue_manager, self.name = hello["queue_manager"], hello["name"]
        if self._is_closed:
            await connection.close()
            raise NotConnected("the client has left", "", code="client_closed")
        self._connection = connection
        connection.when_closed(self._ended)
        return connection

    def ask(self, verb: Verb, *arguments: object) -> asyncio.Future[Any]:
        """Make a request; return the future of its answer.  Raises the errors of `Connection.ask`,
        and NotConnected if it is not open."""
        if self._connection is None:
            raise NotConnected(
                "there is no connection to the queue manager", "connect again",
                code="connection_lost",
            )  # fmt: skip
        return self._connection.ask(verb, *arguments)

    async def request(self, verb: Verb, *arguments: object) -> Any:
        """Make a request, after connecting; return its answer.  Raises ClientError."""
        await self.open()
        return await self.ask(verb, *arguments)

    def close(self) -> None:
        """End the connection: messages that were taken and not settled return to their queues."""
        self._is_closed = True
        if self._connection is not None:
            self._connection.abort()

    def _ended(self) -> None:
        if not self._is_closed:
            self._lost(
                NotConnected(
                    "the connection to the queue manager was lost",
                    "connect again",
                    code="connection_lost",
                )
            )
