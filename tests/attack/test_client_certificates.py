"""Certificates of clients of the port for remote control: they expire, or lose their authority."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from qmd.access.tokens import create
from tests.patience import END_S
from tests.process.harness import Daemon, Hosts, free_port
from tests.process.remote_daemon import make_certificates, make_short_client

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl is needed to make certificates"
)
SHORT_S = 4.0  # for which a certificate is valid that expires during a test
VERSION = 1


class Port:
    """A daemon whose remote clients need a certificate and a token."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        make_certificates(folder)
        self.daemon: Daemon = hosts.daemon(
            remote={
                "enabled": True,
                "port": self.port,
                "certificate": str(folder / "remote.crt"),
                "key": str(folder / "remote.key"),
                "client_ca": str(folder / "ca.crt"),
            }
        )
        self.daemon.create("orders")
        path = self.daemon.folder / "remote-tokens"
        self.token = create(path, "clerk", frozenset({"read"}), ("orders",))
        self.valid_for(600)

    def valid_for(self, seconds: float) -> None:
        """Make a new certificate of the client."""
        folder = self.folder
        make_short_client(folder, "short", seconds)
        self.context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        self.context.load_cert_chain(folder / "short.crt", folder / "short.key")

    @contextlib.contextmanager
    def connected(self, session: ssl.SSLSession | None = None) -> Iterator[ssl.SSLSocket]:
        """Yield a connection that has sent its login; TLS may resume an earlier session."""
        with (
            socket.create_connection(("127.0.0.1", self.port), END_S) as plain,
            self.context.wrap_socket(plain, server_hostname="localhost", session=session) as made,
        ):
            frame = msgspec.msgpack.encode(["login", 1, VERSION, self.token])
            made.sendall(struct.pack("<I", len(frame)) + frame)
            yield made


@pytest.fixture
def port(hosts: Hosts, tmp_path: Path) -> Port:
    return Port(hosts, tmp_path)


def answer(connection: ssl.SSLSocket) -> list[Any]:
    """Return the next answer; an empty list: the connection has ended."""
    with contextlib.suppress(ConnectionError, ssl.SSLError), connection.makefile("rb") as stream:
        head = stream.read(4)
        if len(head) == 4:
            found: list[Any] = msgspec.msgpack.decode(stream.read(struct.unpack("<I", head)[0]))
            return found
    return []


def test_a_remote_connection_ends_when_the_certificate_of_its_client_expires(port: Port) -> None:
    with port.connected() as other:
        assert answer(other)[0] == "done"
        port.valid_for(SHORT_S)
        began = time.monotonic()
        with port.connected() as connection:
            assert answer(connection)[0] == "done"
            session = connection.session

            assert answer(connection) == [], "it waits for the end"
            assert time.monotonic() >= began + SHORT_S - 2

        with contextlib.suppress(ssl.SSLError), port.connected(session) as again:
            assert answer(again)[:1] != ["done"], "a session of TLS was resumed"


def test_a_remote_connection_ends_when_its_authority_is_taken_away(port: Port) -> None:
    with port.connected() as connection:
        assert answer(connection)[0] == "done"
        other = port.folder / "other"
        other.mkdir()
        make_certificates(other)
        shutil.copy(other / "ca.crt", port.folder / "ca.crt")

        os.kill(port.daemon.pid, signal.SIGHUP)

        assert answer(connection) == []
