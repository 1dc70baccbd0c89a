"""A client belongs to the process that connected it.

A fork copies the socket and all that is remembered, and none of the threads: two processes would
write into one connection, hand out the same messages, or wait for a thread that is not there.  So
every verb of the copy is refused, the ends of its contexts do nothing, and its socket is closed as
soon as the fork has begun: a process that dies must not be kept alive for the daemon by its forks.
"""

from __future__ import annotations

import contextlib
import os

from qmd.client.errors import ClientError

#: The connections' sockets, by the identity of the connection.
_sockets: dict[int, int] = {}


class Home:
    """The process that connected a client; none, before it has."""

    __slots__ = ("_process",)

    def __init__(self) -> None:
        self._process = 0

    def settle(self) -> None:
        """It is this one.  Raises ClientError where it was another one before."""
        self.check()
        self._process = os.getpid()

    @property
    def is_elsewhere(self) -> bool:
        return self._process not in (0, os.getpid())

    def check(self) -> None:
        """Raises ClientError in a process that was forked."""
        if self.is_elsewhere:
            raise ClientError(
                f"this client was connected by process {self._process}, and this is process"
                f" {os.getpid()}, which was forked from it",
                "connect another one in this process, after the fork",
                code="client_forked",
            )


def opened(connection: object, socket: int) -> None:
    """`socket` is the number of a connection's file."""
    _sockets[id(connection)] = socket


def closed(connection: object) -> None:
    """Before the file is closed, and its number given to another."""
    _sockets.pop(id(connection), None)


def _leave_sockets() -> None:
    """In the child, at once.

    The numbers stay taken, by files that lead nowhere: the copies of the objects that have them
    close them some day, and it must not be a file of somebody else's then.
    """
    sockets = list(_sockets.values())
    _sockets.clear()
    if not sockets:
        return
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for socket in sockets:
            os.dup2(nowhere, socket, inheritable=False)
        os.close(nowhere)


os.register_at_fork(after_in_child=_leave_sockets)
