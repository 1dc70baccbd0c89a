"""Mutated HTTP requests: each gets an answer or an end, and the door serves on."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator

import pytest

from tests.attack.mutated import mutated
from tests.patience import END_S
from tests.process.http_door import HttpDoor, open_door

SEED, COUNT = 17, 300
ODD = (b"\0", b"\r", b"\n", b"\r\n", b":", b"%", b"99999")
WHOLE = (
    b"POST /v1/queues/orders/messages?label=a%20b HTTP/1.1\r\nhost: localhost\r\n"
    b"content-type: application/json\r\ncontent-length: 15\r\n\r\n" + b'{"body": "text"}'[:15],
    b"POST /v1/queues/orders/receive HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    b"2\r\n{}\r\n0\r\n\r\n",
    b"GET /v1/events?last=1 HTTP/1.1\r\nhost: localhost\r\naccept: */*\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\nGET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n",
)
#: Beginnings that no continuation makes a request: the answer must not wait for more of them.
MALFORMED = (
    b"\0\0\0\0\0\0\0\0",
    b"GET  HTTP/1.1\r\n",
    b"GET /healthz HTTP/x.y\r\n",
    b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"GET /healthz HTTP/1.1\r\nhost: x\r\na b: c\r\n",
    b"GET /healthz HTTP/1.1\r\nhost: x\r\ncontent-length: 1x\r\n",
)


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpDoor]:
    yield from open_door(tmp_path_factory.mktemp("mutations"), "orders", head_timeout="2s")


def test_no_mutated_request_stops_or_hangs_the_door(door: HttpDoor) -> None:
    chance = random.Random(SEED)
    for number in range(COUNT):
        data = mutated(chance, chance.choice(WHOLE), ODD, faults_max=4)
        connection = socket.create_connection(("127.0.0.1", door.port), timeout=END_S)
        with connection, contextlib.suppress(ConnectionError):
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            found = b""
            while part := connection.recv(65536):  # a hang ends in a TimeoutError
                found += part
            assert not found or found.startswith(b"HTTP/1.1 "), (number, data)
            assert b"http_failed" not in found, (number, data)
    for data in MALFORMED:  # the client keeps its end open
        with socket.create_connection(("127.0.0.1", door.port), timeout=END_S) as connection:
            connection.sendall(data)
            found = b""
            while part := connection.recv(65536):
                found += part
            assert found.startswith(b"HTTP/1.1 400 "), (data, found)
    assert door.process is not None
    assert door.process.poll() is None
    door.client().json("GET", "/v1/status")
    door.close_clients()
