"""Attackers that take all places of the control socket or of the port for remote control."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import msgspec
import pytest

from qmd.access.tokens import create
from tests.patience import END_S
from tests.process.control_client import ControlClient
from tests.process.harness import Daemon, Hosts, free_port
from tests.process.remote_daemon import make_certificates

CLIENTS_MAX = 20
FIRST, SECOND = 64_001, 64_002  # users
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become other users")


# Other users.


def _serve(user: int, path: Path, pipe: Pipe) -> None:
    """Connect, ask and count as a local user, in a process of its own."""
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    clients: list[ControlClient] = []
    while True:
        verb, count = pipe.recv()
        if verb == "connect":
            for _ in range(count):
                client = ControlClient(path)
                client.sock.settimeout(END_S)
                clients.append(client)
            pipe.send(len(clients))
        elif verb == "ask":
            pipe.send(sum([_is_answered(client) for client in clients]))
        elif verb == "wait":
            for client in clients:
                with contextlib.suppress(EOFError):
                    for _ in range(count):
                        client.send("take", r"private$\plain", 1, 600.0)
            pipe.send(_refused(clients))


def _is_answered(client: ControlClient) -> bool:
    try:
        return bool(client.ask("hello", 1)[0] == "done")
    except (EOFError, OSError):
        return False


def _refused(clients: list[ControlClient]) -> list[str]:
    """Return the codes of refusals; an answer to a last request shows that all were read."""
    codes = []
    for client in clients:
        last = client.send("hello", 1)
        while (reply := client.read())[1] != last:
            codes.append(reply[2])
        if reply[0] == "refused":
            codes.append(reply[2])
    return codes


@pytest.fixture
def user() -> Iterator[Callable[[int, Daemon], Callable[..., Any]]]:
    """Yield a function that starts a process of a user; it returns a function that commands it."""
    context = multiprocessing.get_context("fork")
    processes = []

    def start(number: int, daemon: Daemon) -> Callable[..., Any]:
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_serve, args=(number, daemon.folder / "qmd.sock", theirs), daemon=True
        )
        process.start()
        processes.append(process)

        def command(verb: str, count: int = 0) -> Any:
            ours.send((verb, count))
            assert ours.poll(END_S)
            return ours.recv()

        return command

    yield start
    for process in processes:
        process.kill()
        process.join()


@pytest.fixture
def daemon(hosts: Hosts) -> Daemon:
    """Return a daemon with few places, whose socket all local users can reach."""
    daemon = hosts.daemon(control={"mode": "0666", "clients_max": CLIENTS_MAX})
    for folder in (daemon.folder, *daemon.folder.parents):
        if str(folder).startswith("/tmp/"):
            folder.chmod(0o755)
    daemon.create("plain")
    return daemon


def hello(path: Path) -> bool:
    """Return whether a new client of this user gets an answer."""
    with contextlib.suppress(OSError), ControlClient(path) as client:
        return _is_answered(client)
    return False


def test_silent_clients_make_room_for_others(daemon: Daemon):
    path = daemon.folder / "qmd.sock"
    silent = [ControlClient(path) for _ in range(4 * CLIENTS_MAX)]

    assert hello(path)
    assert all(hello(path) for _ in range(CLIENTS_MAX))

    for client in silent:
        client.close()


@needs_root
def test_silent_clients_of_a_user_make_room_for_another_user_at_once(
    daemon: Daemon, user: Callable[[int, Daemon], Callable[..., Any]]
):
    attacker, other = user(FIRST, daemon), user(SECOND, daemon)
    attacker("connect", 3 * CLIENTS_MAX)

    other("connect", 5)

    assert other("ask") == 5
    assert hello(daemon.folder / "qmd.sock")


@needs_root
def test_a_user_with_all_places_gives_some_up_for_another_user_and_for_operators(
    daemon: Daemon, user: Callable[[int, Daemon], Callable[..., Any]]
):
    attacker, other = user(FIRST, daemon), user(SECOND, daemon)
    attacker("connect", CLIENTS_MAX)
    assert attacker("ask") == CLIENTS_MAX  # none of them is silent

    other("connect", 5)

    assert other("ask") == 5
    assert attacker("ask") == CLIENTS_MAX - 5
    # An operator has places beside all of those.
    assert all(hello(daemon.folder / "qmd.sock") for _ in range(5))
    assert other("ask") == 5
    assert attacker("ask") == CLIENTS_MAX - 5


@needs_root
@pytest.mark.parametrize("principal", [f"user:{SECOND}", f"group:{SECOND}"])
def test_a_user_who_may_administer_access_has_a_place_of_the_operators(
    daemon: Daemon, user: Callable[[int, Daemon], Callable[..., Any]], principal: str
):
    daemon.cli("acl", "grant", principal, "administer-access", "host")
    attacker, other = user(FIRST, daemon), user(SECOND, daemon)
    attacker("connect", CLIENTS_MAX)
    assert attacker("ask") == CLIENTS_MAX

    other("connect", 5)

    assert other("ask") == 5
    assert attacker("ask") == CLIENTS_MAX


@needs_root
@pytest.mark.parametrize("count", [5, CLIENTS_MAX // 2])
def test_a_user_cannot_make_others_leave_by_many_connections(
    daemon: Daemon, user: Callable[[int, Daemon], Callable[..., Any]], count: int
):
    """A user with as many connections as another one is not the greediest, and gives up none."""
    attacker, other = user(FIRST, daemon), user(SECOND, daemon)
    other("connect", count)
    assert other("ask") == count

    attacker("connect", CLIENTS_MAX - count)
    attacker("ask")
    attacker("connect", 3 * CLIENTS_MAX)
    attacker("ask")

    assert other("ask") == count


@needs_root
def test_requests_of_a_user_that_wait_are_limited(
    hosts: Hosts, user: Callable[[int, Daemon], Callable[..., Any]]
):
    daemon = hosts.daemon(control={"mode": "0666"})
    daemon.folder.chmod(0o755)
    daemon.folder.parent.chmod(0o755)
    daemon.create("plain")
    daemon.cli("acl", "grant", f"user:{FIRST}", "receive", "plain")
    attacker = user(FIRST, daemon)
    attacker("connect", 10)

    refused = attacker("wait", 2500)  # 25,000 receives, each of which waits for ten minutes

    assert set(refused) == {"too_many_waiting"}
    assert len(refused) >= 5_000
    with ControlClient(daemon.folder / "qmd.sock") as client:
        client.done("send", [[r"private$\plain", b"still served"]])


# The port for remote control.


needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl is needed to make certificates"
)


class RemoteClients:
    """A daemon that listens for remote clients, and connections to it."""

    def __init__(self, hosts: Hosts, **settings: Any) -> None:
        self.port = free_port()
        self.daemon = hosts.daemon(
            start=False, remote={"enabled": True, "port": self.port, **settings}
        )
        self.daemon.folder.mkdir(parents=True, exist_ok=True)
        make_certificates(self.daemon.folder)
        self._open: list[socket.socket] = []
        self._context = ssl.create_default_context(cafile=self.daemon.folder / "ca.crt")
        self.daemon.start()

    def token(self, name: str, *scopes: str) -> str:
        return create(self.daemon.folder / "remote-tokens", name, frozenset(scopes), ())

    def plain(self, source: str) -> socket.socket:
        """Return a connection without TLS."""
        connection = socket.create_connection(("127.0.0.1", self.port), END_S, (source, 0))
        self._open.append(connection)
        return connection

    def log_in(self, token: str, source: str = "127.0.0.1") -> ssl.SSLSocket | None:
        """Return a connection that has logged in; None if it was refused or closed."""
        try:
            connection = self._context.wrap_socket(self.plain(source), server_hostname="localhost")
            self._open.append(connection)
            reply = self.ask(connection, ["login", 1, 1, token])
        except OSError:
            return None
        return connection if reply[0] == "done" else None

    def ask(self, connection: ssl.SSLSocket, request: list[Any]) -> list[Any]:
        """Return the reply to a request.  Raises OSError if there is none."""
        content = msgspec.msgpack.encode(request)
        connection.sendall(struct.pack("<I", len(content)) + content)
        data = b""
        while len(data) < 4 or len(data) < 4 + struct.unpack_from("<I", data)[0]:
            more = connection.recv(65536)
            if not more:
                raise ConnectionResetError
            data += more
        return list(msgspec.msgpack.decode(data[4:]))

    def close(self) -> None:
        for each in self._open:
            each.close()

    def is_served(self, connection: ssl.SSLSocket) -> bool:
        try:
            return bool(self.ask(connection, ["status", 2])[0] == "done")
        except OSError:
            return False


@pytest.fixture
def remote_clients(hosts: Hosts) -> Iterator[Callable[..., RemoteClients]]:
    """Yield a function that starts a daemon for remote clients, with settings of [remote]."""
    started: list[RemoteClients] = []

    def start(**settings: Any) -> RemoteClients:
        started.append(RemoteClients(hosts, **settings))
        return started[-1]

    yield start
    for each in started:
        each.close()


@needs_openssl
def test_silent_tls_connections_do_not_keep_others_out(
    remote_clients: Callable[..., RemoteClients],
):
    remote = remote_clients(login_timeout="60s")
    token = remote.token("reader", "read")
    before = remote.log_in(token, "127.0.5.1")
    assert before is not None
    for number in range(300):
        remote.plain(f"127.0.4.{1 + number % 200}")

    deadline = time.monotonic() + END_S
    while (client := remote.log_in(token)) is None:
        assert time.monotonic() < deadline  # the limit of new connections may delay the first

    assert remote.is_served(client)
    assert remote.is_served(before)


@needs_openssl
def test_a_token_with_all_places_gives_some_up_for_another_and_for_administrators(
    remote_clients: Callable[..., RemoteClients],
):
    remote = remote_clients(connections_max=6)
    many, few, admin = (
        remote.token("many", "read"),
        remote.token("few", "read"),
        remote.token("admin", "admin"),
    )
    greedy = [remote.log_in(many) for _ in range(6)]
    assert all(greedy)
    assert remote.log_in(many) is None

    operators = [remote.log_in(admin) for _ in range(4)]
    client = remote.log_in(few)

    assert all(operators)
    assert client is not None
    assert remote.is_served(client)
    assert sum(remote.is_served(each) for each in greedy if each) == 5


@needs_openssl
def test_the_handshake_and_the_login_have_one_time_limit(
    remote_clients: Callable[..., RemoteClients],
):
    remote = remote_clients(login_timeout="1s")
    silent = remote.plain("127.0.0.1")

    assert silent.recv(1) == b""
