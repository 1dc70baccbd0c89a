"""The port of the SRMP door for the daemon: other users of this computer get no session there."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.patience import END_S, LOOK_S
from tests.process.harness import Hosts
from tests.process.srmp_door import SrmpDoor, host
from tests.users import connect_to_port_as, needs_root

pytestmark = needs_root

OTHER, FIN_WAIT_2 = 64_001, "05"


@pytest.fixture
def door(hosts: Hosts) -> Iterator[SrmpDoor]:
    door = host(hosts)
    yield door
    door.kill()


@pytest.fixture
def begin(door: SrmpDoor) -> Iterator[Callable[[int, int], socket.socket]]:
    """Yield a function by which a user begins a session for a host at a port of this computer."""
    gateway = tomllib.loads(door.daemon.config.read_text())["srmp"]["gateway_port"]
    with contextlib.ExitStack() as stack:

        def begin(user: int, port: int) -> socket.socket:
            connection = stack.enter_context(connect_to_port_as(user, gateway))
            connection.settimeout(END_S)
            with contextlib.suppress(ConnectionError):  # it may be closed already
                connection.sendall(b"QMD-SRMP 1 http://127.0.0.1:%d\n" % port)
            return connection

        yield begin


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + END_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(LOOK_S)


def state_of(port: int) -> str:
    """Return the state of the connection from a port of this computer, proc(5)."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    return next((row[3] for row in rows if row[1] == f"0100007F:{port:04X}"), "")


@pytest.mark.parametrize("leaves", [False, True])
def test_another_user_gets_no_session_for_a_host(
    door: SrmpDoor, begin: Callable[[int, int], socket.socket], leaves: bool
) -> None:
    """It would send messages in the name of the daemon, and take its receipts.

    A user that closes its end before the door looks is not known any more.
    """
    with socket.create_server(("127.0.0.1", 0)) as target:
        port = target.getsockname()[1]
        target.settimeout(END_S)
        begin(os.geteuid(), port)
        target.accept()[0].close()  # the door has connected to the host for the daemon's user

        assert door.process is not None
        os.kill(door.process.pid, signal.SIGSTOP)
        refused = begin(OTHER, port)
        if leaves:
            left = refused.getsockname()[1]
            refused.close()
            until(lambda: state_of(left) == FIN_WAIT_2)
        os.kill(door.process.pid, signal.SIGCONT)

        until(lambda: "srmp_not_the_daemon" in door.log.read_text())
        if not leaves:
            with contextlib.suppress(ConnectionError):
                assert refused.recv(1) == b""
        target.setblocking(False)
        with pytest.raises(BlockingIOError):
            target.accept()
