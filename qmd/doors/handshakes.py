"""Handshakes of TLS at a door: counted and limited before anything is read.

The event loop could make them by itself, but then each silent connection would hold a descriptor
until its time limit, and a thousand of them would keep all others out.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

PAUSE_S = 0.1  # after a failed accept, such as one without a free descriptor


class Limits(NamedTuple):
    """The limits of handshakes: in all, of one address, and of the seconds of each."""

    connections: int
    connections_of_address: int
    seconds: float


class Handshakes:
    """The connections of which the handshake is not finished."""

    def __init__(
        self, context: ssl.SSLContext, limits: Limits, finished: Callable[[], asyncio.Protocol]
    ) -> None:
        """`finished` returns the protocol of a connection after its handshake."""
        self._context = context
        self._limits = limits
        self._finished = finished
        self._accepting: dict[asyncio.Task[None], socket.socket] = {}
        self._open: dict[asyncio.Task[None], str] = {}  # with the address; the oldest first
        self._of_address: Counter[str] = Counter()

    def listen(self, listener: socket.socket, backlog: int) -> None:
        """Accept the connections of a bound socket, which `stop` closes.  Raises OSError."""
        listener.listen(backlog)
        listener.setblocking(False)
        task = asyncio.get_running_loop().create_task(self._accept(listener))
        self._accepting[task] = listener

    def stop(self) -> None:
        """Accept no more connections, and end all handshakes."""
        for task, listener in self._accepting.items():
            task.cancel()
            listener.close()
        for each in list(self._open):
            each.cancel()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listener)
            except OSError:
                await asyncio.sleep(PAUSE_S)
                continue
            self._enter(connection, str(address[0]))

    def _enter(self, connection: socket.socket, address: str) -> None:
        """Begin a handshake; the oldest one of the greediest address makes room for it."""
        if self._of_address[address] >= self._limits.connections_of_address:
            self._end_oldest_of(address)
        elif len(self._open) >= self._limits.connections:
            self._end_oldest_of(max(self._of_address, key=self._of_address.__getitem__))
        task = asyncio.get_running_loop().create_task(self._make(connection))
        self._open[task] = address
        self._of_address[address] += 1
        task.add_done_callback(self._leave)

    def _end_oldest_of(self, address: str) -> None:
        oldest = next(task for task, each in self._open.items() if each == address)
        oldest.cancel()
        self._leave(oldest)

    def _leave(self, task: asyncio.Task[None]) -> None:
        """Stop counting a handshake that has ended."""
        address = self._open.pop(task, None)
        if address is not None:
            self._of_address[address] -= 1
            if not self._of_address[address]:
                del self._of_address[address]

    async def _make(self, connection: socket.socket) -> None:
        """Make the handshake of a connection, and hand the connection over."""
        with contextlib.suppress(OSError, TimeoutError):  # it fails, or takes too long: then closed
            await asyncio.get_running_loop().connect_accepted_socket(
                self._finished,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=self._limits.seconds,
            )
