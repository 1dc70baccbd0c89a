"""Attackers that take all places: sessions, handshakes, pings.  Others are served nevertheless."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
import tomllib
from collections.abc import Callable, Iterator

import pytest

from tests.patience import END_S
from tests.process import wire
from tests.process.connection import Closed, Connection
from tests.process.harness import Daemon, Hosts, free_port
from tests.process.peer import Peer
from tests.process.remote import RemoteQueueManager

SESSIONS_MAX = 12
USEFUL = 10  # messages that make a host known


@pytest.fixture
def daemon(hosts: Hosts) -> Daemon:
    """Return a daemon with few places for sessions."""
    daemon = hosts.daemon(peers={"sessions_max": SESSIONS_MAX, "sessions_per_peer_max": 12})
    daemon.create("plain")
    return daemon


@pytest.fixture
def attackers() -> Iterator[list[RemoteQueueManager]]:
    """Yield a list; its queue managers are closed after the test."""
    attackers: list[RemoteQueueManager] = []
    yield attackers
    for each in attackers:
        each.close()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + END_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def try_session(remote: RemoteQueueManager, port: int, source: str) -> Peer | None:
    """Return a session, or None if it was refused."""
    connection = remote.adopt(Connection.open(port, source=source))
    try:
        connection.send(wire.establish(client=remote.guid))
        answer = wire.parse(connection.frame())
        assert isinstance(answer, wire.Establish)
        if answer.refused:
            return None
        connection.send(wire.parameters())
        wire.parse(connection.frame())
    except Closed:
        return None
    return Peer(remote, connection, own_window=64, remote_window=64)


def occupy(
    attackers: list[RemoteQueueManager], port: int, sources: list[str], count: int
) -> list[Peer]:
    """Open sessions that send nothing, until `count` were tried."""
    opened = []
    for number in range(count):
        attackers.append(RemoteQueueManager())
        peer = try_session(attackers[-1], port, sources[number % len(sources)])
        if peer is not None:
            opened.append(peer)
    return opened


def deliver(peer: Peer, count: int = 1) -> None:
    for _ in range(count):
        peer.send(peer.owner.message("plain", b"useful", recoverable=True))
    peer.wait_stored()


def open_after(peers: list[Peer]) -> int:
    """Return how many of these sessions are still open."""
    open_count = 0
    for peer in peers:
        with contextlib.suppress(Closed, OSError):
            try:
                peer.connection.frame(0.05)
            except TimeoutError:
                open_count += 1
    return open_count


def test_a_known_host_gets_a_session_although_others_have_all_places(
    daemon: Daemon, remote: RemoteQueueManager, attackers: list[RemoteQueueManager]
):
    peer = remote.connect(daemon.port, source="127.0.0.1")
    deliver(peer, USEFUL)
    peer.close()
    wait_until(lambda: not daemon.json("session", "list"))

    many = [f"127.0.3.{number}" for number in range(1, 100)]
    idle = occupy(attackers, daemon.port, many, 2 * SESSIONS_MAX)

    assert len(idle) == SESSIONS_MAX
    again = try_session(remote, daemon.port, "127.0.0.1")
    assert again is not None
    deliver(again)
    assert open_after(idle) == SESSIONS_MAX - 1


def test_a_host_is_known_after_a_restart(
    daemon: Daemon, remote: RemoteQueueManager, attackers: list[RemoteQueueManager]
):
    deliver(remote.connect(daemon.port, source="127.0.0.1"), USEFUL)
    daemon.restart()
    occupy(attackers, daemon.port, [f"127.0.3.{number}" for number in range(1, 100)], 20)

    again = try_session(remote, daemon.port, "127.0.0.1")

    assert again is not None
    deliver(again)


def test_an_address_with_many_sessions_makes_room_for_another_address(
    daemon: Daemon, remote: RemoteQueueManager, attackers: list[RemoteQueueManager]
):
    idle = occupy(attackers, daemon.port, ["127.0.3.1"], SESSIONS_MAX + 3)
    assert len(idle) == SESSIONS_MAX

    peer = try_session(remote, daemon.port, "127.0.0.1")

    assert peer is not None
    deliver(peer)
    assert open_after(idle) == SESSIONS_MAX - 1


def test_useful_sessions_are_not_ended_for_untrusted_ones(
    daemon: Daemon, remote: RemoteQueueManager, attackers: list[RemoteQueueManager]
):
    useful = [remote.connect(daemon.port) for _ in range(SESSIONS_MAX // 2)]
    for peer in useful:
        deliver(peer, USEFUL)

    many = [f"127.0.3.{number}" for number in range(1, 100)]
    occupy(attackers, daemon.port, many, 4 * SESSIONS_MAX)

    for peer in useful:
        deliver(peer)


def test_a_session_without_messages_makes_room_after_a_while(
    daemon: Daemon, remote: RemoteQueueManager, attackers: list[RemoteQueueManager]
):
    """Then also a host that is not known, and has as many sessions as each attacker, gets in."""
    many = [f"127.0.3.{number}" for number in range(1, 100)]
    occupy(attackers, daemon.port, many, SESSIONS_MAX)

    peer: list[Peer | None] = [None]

    def gets_in() -> bool:
        peer[0] = try_session(remote, daemon.port, "127.0.0.1")
        return peer[0] is not None

    wait_until(gets_in)
    assert peer[0] is not None
    deliver(peer[0])


def test_handshakes_of_other_addresses_are_not_dropped_for_those_of_one(
    hosts: Hosts, remote: RemoteQueueManager
):
    daemon = hosts.daemon(peers={"handshakes_max": 8})
    daemon.create("plain")
    honest = remote.adopt(Connection.open(daemon.port, source="127.0.0.1"))
    honest.send(wire.establish(client=remote.guid))
    wire.parse(honest.frame())  # it pauses in the middle of its handshake

    silent = [remote.adopt(Connection.open(daemon.port, source="127.0.3.1")) for _ in range(40)]
    ended = 0
    for connection in silent:
        with contextlib.suppress(TimeoutError):
            try:
                connection.frame(0.2)
            except Closed:
                ended += 1
    honest.send(wire.parameters())
    wire.parse(honest.frame())

    assert ended >= 32
    deliver(Peer(remote, honest, own_window=64, remote_window=64))


# Pings.


@pytest.fixture
def ping_port(hosts: Hosts) -> int:
    daemon = hosts.daemon(listen={"ping": True, "ping_port": free_port()})
    port = tomllib.loads(daemon.config.read_text())["listen"]["ping_port"]
    assert isinstance(port, int)
    return port


def ping(*, flags: int = 1, guid: bytes = b"") -> bytes:
    return struct.pack("<HHI", flags, 0x5548, 7) + (guid or os.urandom(16))


def ask(port: int, datagrams: list[bytes], *, source: tuple[str, int] = ("127.0.0.1", 0)) -> int:
    """Send datagrams; return the number of answers. A last ping has an answer of its own."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.bind(source)
        client.connect(("127.0.0.1", port))
        for datagram in datagrams:
            client.send(datagram)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            other.bind(("127.0.9.9", 0))
            other.connect(("127.0.0.1", port))
            other.settimeout(1.0)
            answer = b""
            while not answer:
                other.send(ping())  # the system may drop it if the buffer of the daemon is full
                with contextlib.suppress(TimeoutError):
                    answer = other.recv(100)
            assert len(answer) == 24  # all earlier datagrams have been processed
        client.setblocking(False)
        answers = 0
        with contextlib.suppress(BlockingIOError):
            while client.recv(100):
                answers += 1
        return answers


def test_two_hosts_do_not_answer_each_others_answers(hosts: Hosts):
    ports = [free_port(), free_port()]
    daemons = [hosts.daemon(listen={"ping": True, "ping_port": port}) for port in ports]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.connect(("127.0.0.1", ports[0]))
        client.settimeout(END_S)
        client.send(ping())
        answer = client.recv(100)

    # An answer that is sent again, with a port of a service as its sender.
    assert ask(ports[0], [answer]) == 0
    assert ask(ports[1], [ping(flags=3)]) == 0
    assert ask(ports[1], [ping()], source=("127.0.0.1", 3527)) == 0
    assert ask(ports[1], [ping()]) == 1
    assert all(daemon.alive for daemon in daemons)


def test_answers_to_pings_of_one_address_are_limited(ping_port: int):
    answered = ask(ping_port, [ping() for _ in range(200)])

    assert 1 <= answered < 100
