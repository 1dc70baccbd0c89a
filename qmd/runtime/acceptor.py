"""Acceptor: accepts the connections of a listening socket, a few at a time.

libuv would accept all waiting connections before it does anything else, and each costs a fifth of a
millisecond, even if it never sends anything. Here connections wait in the backlog of the operating
system, and accepting one takes a turn of the class UNTRUSTED (qmd/runtime/fair_scheduler.py).
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from qmd.runtime.fair_scheduler import Class

if TYPE_CHECKING:
    from qmd.runtime.fair_scheduler import FairScheduler
    from qmd.runtime.services import Services

CONNECT_S = 0.000_2  # time that the objects of a connection take in later turns of the loop
RETRY_S = 0.5  # pause after the system had no file descriptors or no memory left
_NO_FILES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Acceptor:
    """One listening socket."""

    def __init__(
        self,
        services: Services,
        turns: FairScheduler,
        listening: socket.socket,
        take: Callable[[socket.socket, object], None],
    ) -> None:
        """Begin to accept at once; the acceptor owns `listening`, a non-blocking socket.

        `take(connected, address)` gets each connection, and owns its socket.
        """
        self._services = services
        self._turns = turns
        self._socket = listening
        self._take = take
        self._is_closed = False
        self._listen()

    @property
    def address(self) -> tuple[str, int]:
        """The address and the port at which it listens, if it is a TCP socket."""
        name = self._socket.getsockname()
        return str(name[0]), int(name[1])

    def close(self) -> None:
        """Stop listening; accepted connections stay open."""
        if not self._is_closed:
            self._is_closed = True
            self._services.loop.remove_reader(self._socket)
            self._socket.close()

    def take_turn(self, _: float, __: int) -> None:
        """Accept one connection."""
        if self._is_closed:
            return
        try:
            connected, address = self._socket.accept()
        except (BlockingIOError, InterruptedError):
            self._listen()
            return
        except OSError as error:
            # The connection may have ended already, or the system has no resources. In both cases
            # the acceptor tries again.
            if error.errno in _NO_FILES:
                self._services.log_limited("socket_fault", "socket", reason=str(error))
                self._services.loop.call_later(RETRY_S, self._wait)
            else:
                self._wait()
            return
        connected.setblocking(False)
        self._turns.charge(CONNECT_S)
        self._take(connected, address)
        self._wait()

    def _listen(self) -> None:
        self._services.loop.add_reader(self._socket, self._on_readable)

    def _on_readable(self) -> None:
        self._services.loop.remove_reader(self._socket)
        self._wait()

    def _wait(self) -> None:
        if not self._is_closed:
            self._turns.wait(self, Class.UNTRUSTED)
