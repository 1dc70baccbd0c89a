"""Other users of this computer, for tests that run as root: connections with their credentials."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can connect as another user: run the tests as root"
)


def connect_as(
    user: int, path: Path, *, group: int = 0, groups: tuple[int, ...] = ()
) -> socket.socket:
    """Connect to a Unix socket as a user; `group` 0 is a group with the id of the user.

    A child process connects, because a process cannot become root again, and passes the connection
    on: the kernel keeps the credentials of the process that connected.  The folder and the socket
    become accessible to all users; the folders above it need not be.
    """
    os.chmod(path.parent, 0o755)
    os.chmod(path, 0o666)
    ours, theirs = socket.socketpair()
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.fchdir(folder)
            os.setgroups(list(groups))
            os.setgid(group or user)
            os.setuid(user)
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.connect(path.name)
            socket.send_fds(theirs, [b"c"], [connection.fileno()])
            code = 0
        finally:
            os._exit(code)
    os.close(folder)
    theirs.close()
    with ours:
        _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
    _, status = os.waitpid(child, 0)
    assert status == 0, f"user {user} cannot connect to {path}"
    return socket.socket(fileno=descriptors[0])
