"""The ping over UDP: off by default; one answer to a well-formed request (QB 2.2.7, 3.1.7.7)."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

import pytest

from tests.patience import END_S
from tests.process.harness import Daemon, Hosts, free_port

SIGNATURE = 0x5548


@pytest.fixture(scope="module")
def shared(shared_hosts: Hosts) -> Daemon:
    return shared_hosts.daemon(listen={"ping": True, "ping_port": free_port()})


@pytest.fixture
def client(daemon: Daemon) -> Iterator[socket.socket]:
    import tomllib

    port = tomllib.loads(daemon.config.read_text())["listen"]["ping_port"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.connect(("127.0.0.1", port))
        client.settimeout(END_S)
        yield client


def request(*, flags: int = 1, signature: int = SIGNATURE, cookie: int = 77) -> bytes:
    return struct.pack("<HHI", flags, signature, cookie) + os.urandom(16)


def test_a_request_is_answered_with_its_cookie_and_our_guid(daemon: Daemon, client: socket.socket):
    client.send(request(cookie=0xFEDCBA98))

    answer = client.recv(100)

    assert len(answer) == 24
    flags, signature, cookie = struct.unpack_from("<HHI", answer)
    assert flags & 3 == 1, "RC copied, not refused"
    assert signature == SIGNATURE
    assert cookie == 0xFEDCBA98
    guid = daemon.json("status")[0]["queue_manager"].split("-")
    assert answer[8:].hex() == (
        bytes.fromhex(guid[0])[::-1].hex()
        + bytes.fromhex(guid[1])[::-1].hex()
        + bytes.fromhex(guid[2])[::-1].hex()
        + guid[3]
        + guid[4]
    )


def test_the_client_bit_is_copied(client: socket.socket):
    for bit in (0, 1):
        client.send(request(flags=bit))
        assert struct.unpack_from("<H", client.recv(100))[0] & 1 == bit


def test_other_datagrams_are_ignored(daemon: Daemon, client: socket.socket):
    good = request(cookie=5)
    for datagram in (
        b"",
        b"x",
        good[:23],
        good + b"x",
        request(signature=0x4855),
        os.urandom(1400),
    ):
        client.send(datagram)
    client.send(good)

    # The first answer belongs to the only valid request.
    assert struct.unpack_from("<I", client.recv(100), 4)[0] == 5
    assert daemon.alive


def test_no_ping_is_answered_unless_it_is_enabled(hosts: Hosts):
    port = free_port()
    hosts.daemon(listen={"ping_port": port})
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.connect(("127.0.0.1", port))
        client.settimeout(END_S)
        client.send(request())
        with pytest.raises(ConnectionRefusedError):
            client.recv(100)
