"""The rule that a client belongs to the process that connected it.

A fork copies the socket and all state, and none of the threads: two processes would write to one
connection, receive the same messages, or wait for a thread that does not exist.  Therefore every
verb of the copy is refused, the ends of its contexts do nothing, and its socket is closed as soon
as the fork has begun: otherwise the forks of a process that died would keep its connection open,
and the daemon would not notice.
"""

from __future__ import annotations

import contextlib
import os

from qmd.client.errors import ClientError

#: The sockets of the connections, by the identity of the connection.
_sockets: dict[int, int] = {}
_this_process = os.getpid()  # a call of the system for each message would be a tenth of a send


class Home:
    """The process that connected a client; unset before it has connected."""

    __slots__ = ("_process",)

    def __init__(self) -> None:
        self._process = 0

    def settle(self) -> None:
        """Record this process.  Raises ClientError when another process was recorded before."""
        self.check()
        self._process = _this_process

    @property
    def is_elsewhere(self) -> bool:
        return self._process != _this_process and self._process != 0

    def check(self) -> None:
        """Raise ClientError in a process that was forked."""
        if self.is_elsewhere:
            raise ClientError(
                f"this client was connected by process {self._process}, and this is process"
                f" {_this_process}, which was forked from it",
                "connect a new client in this process, after the fork",
                code="client_forked",
            )


def opened(connection: object, socket: int) -> None:
    """Record the file descriptor of a connection."""
    _sockets[id(connection)] = socket


def closed(connection: object) -> None:
    """Remove a connection, before its file descriptor is closed and can be reused."""
    _sockets.pop(id(connection), None)


def _begin_child() -> None:
    """Notice the fork in the child, as soon as it runs, and replace the copied sockets.

    The descriptors stay in use and refer to /dev/null: the copied objects close them later, and by
    then the same number must not belong to another file.
    """
    global _this_process
    _this_process = os.getpid()
    sockets = list(_sockets.values())
    _sockets.clear()
    if not sockets:
        return
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for socket in sockets:
            os.dup2(nowhere, socket, inheritable=False)
        os.close(nowhere)


os.register_at_fork(after_in_child=_begin_child)
