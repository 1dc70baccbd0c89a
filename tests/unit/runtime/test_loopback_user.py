"""The user at the other end of a connection over loopback."""

from __future__ import annotations

import os
import socket
import subprocess

import pytest

from qmd.runtime.loopback_user import user_at_other_end
from tests.users import connect_to_port_as, needs_root

OTHER = 64_001
CONNECT = "exec 3<>/dev/tcp/127.0.0.1/{port}; read -r -u 3"


def test_a_connection_of_this_process_belongs_to_its_user() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()),
        server.accept()[0] as accepted,
    ):
        assert user_at_other_end(accepted) == os.geteuid()


@pytest.mark.parametrize(("listens", "dialled"), [("::1", "::1"), ("::", "127.0.0.1")])
def test_a_connection_of_ipv6_and_one_to_a_socket_for_both_have_a_user(
    listens: str, dialled: str
) -> None:
    is_both = listens == "::"
    with (
        socket.create_server(
            (listens, 0), family=socket.AF_INET6, dualstack_ipv6=is_both
        ) as server,
        socket.create_connection((dialled, server.getsockname()[1])),
        server.accept()[0] as accepted,
    ):
        assert user_at_other_end(accepted) == os.geteuid()


@needs_root
def test_a_connection_of_another_user_belongs_to_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        program = CONNECT.format(port=server.getsockname()[1])
        process = subprocess.Popen(["bash", "-c", program], user=OTHER, cwd="/")
        with server.accept()[0] as accepted:
            assert user_at_other_end(accepted) == OTHER
        process.wait()


@needs_root
def test_the_user_of_an_end_that_was_closed_is_not_known() -> None:
    """Linux states root for it, whatever user it had."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connected = connect_to_port_as(OTHER, server.getsockname()[1])
        with server.accept()[0] as accepted:
            connected.close()
            assert accepted.recv(1) == b"", "its end has arrived"
            assert user_at_other_end(accepted) is None


def test_an_end_on_another_computer_is_not_known() -> None:
    with socket.socket() as alone:
        assert user_at_other_end(alone) is None
