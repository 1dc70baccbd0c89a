"""The user at the other end of a connection over loopback."""

from __future__ import annotations

import os
import socket
import subprocess

import pytest

from qmd.runtime.loopback_user import user_at_other_end

OTHER = 64_001
CONNECT = "exec 3<>/dev/tcp/127.0.0.1/{port}; read -r -u 3"


def test_a_connection_of_this_process_belongs_to_its_user() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()),
        server.accept()[0] as accepted,
    ):
        assert user_at_other_end(accepted) == os.geteuid()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs a program as another user")
def test_a_connection_of_another_user_belongs_to_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        program = CONNECT.format(port=server.getsockname()[1])
        process = subprocess.Popen(["bash", "-c", program], user=OTHER, cwd="/")
        with server.accept()[0] as accepted:
            assert user_at_other_end(accepted) == OTHER
        process.wait()


def test_an_end_on_another_computer_is_not_known() -> None:
    with socket.socket() as alone:
        assert user_at_other_end(alone) is None
