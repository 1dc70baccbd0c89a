"""Other users of this computer, for tests that run as root: connections with their credentials."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can connect as another user: run the tests as root"
)


def connect_as(
    user: int, path: Path, *, group: int = 0, groups: tuple[int, ...] = ()
) -> socket.socket:
    """Connect to a Unix socket as a user; `group` 0 is a group with the id of the user.

    The folder and the socket become accessible to all users; the folders above it need not be.
    """
    os.chmod(path.parent, 0o755)
    os.chmod(path, 0o666)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)

    def connect() -> socket.socket:
        os.fchdir(folder)
        _become(user, group or user, groups)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(path.name)
        return connection

    try:
        return _connected(connect, f"user {user} to {path}")
    finally:
        os.close(folder)


def connect_to_port_as(user: int, port: int, *, source: str = "127.0.0.1") -> socket.socket:
    """Connect to a TCP port of 127.0.0.1 as a user, from an address of loopback."""

    def connect() -> socket.socket:
        _become(user, user, ())
        connection = socket.socket()
        connection.bind((source, 0))
        connection.connect(("127.0.0.1", port))
        return connection

    return _connected(connect, f"user {user} to port {port}")


def _become(user: int, group: int, groups: tuple[int, ...]) -> None:
    os.setgroups(list(groups))
    os.setgid(group)
    os.setuid(user)


def _connected(connect: Callable[[], socket.socket], what: str) -> socket.socket:
    """Return a connection that a child process has made.

    A process cannot become root again, so a child connects and passes the connection on: the kernel
    keeps the credentials of the process that connected.
    """
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            connection = connect()
            socket.send_fds(theirs, [b"c"], [connection.fileno()])
            code = 0
        finally:
            os._exit(code)
    theirs.close()
    with ours:
        _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
    _, status = os.waitpid(child, 0)
    assert status == 0, f"there is no connection of {what}"
    return socket.socket(fileno=descriptors[0])
