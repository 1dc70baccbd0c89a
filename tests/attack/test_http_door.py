"""Attacks on the HTTP door: slow, large, ambiguous and countless requests; wrong tokens."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import END_S
from tests.process.http_door import HttpClient, HttpDoor, messages, open_door
from tests.process.remote_daemon import make_certificates

FAST = {"head_timeout": "400ms", "body_timeout": "400ms", "write_timeout": "400ms"}


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpDoor]:
    yield from open_door(
        tmp_path_factory.mktemp("attack"),
        "orders",
        connections_max=40,
        connections_per_address_max=30,
        request_bytes_max="1MiB",
        bodies_bytes_max="4MiB",
        **FAST,
    )


@pytest.fixture(autouse=True)
def serves_on(door: HttpDoor) -> Iterator[None]:
    """Check that the door serves a well-behaved client after each attack.

    The door may still count connections that have just ended: the client obeys `retry-after`.
    """
    yield
    client = door.client()
    deadline = time.monotonic() + END_S
    while (answer := client.ask("POST", messages("orders"), {"body": "still here"})).status == 503:
        assert time.monotonic() < deadline, "the door has no place again"
        client.close()
        time.sleep(float(answer.headers["retry-after"]))
    assert answer.status == 201, answer
    client.json("POST", "/v1/queues/orders/purge")
    door.close_clients()


@contextlib.contextmanager
def connected(door: HttpDoor) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", door.port), timeout=END_S) as connection:
        yield connection


def answer_to(door: HttpDoor, data: bytes) -> bytes:
    """Send bytes; return everything that comes until the door ends the connection."""
    with connected(door) as connection:
        with contextlib.suppress(ConnectionError):  # it has seen enough
            connection.sendall(data)
        return rest_of(connection)


def rest_of(connection: socket.socket) -> bytes:
    found = b""
    with contextlib.suppress(ConnectionError):
        while data := connection.recv(65536):
            found += data
    return found


HEAD = b"POST /v1/queues/orders/messages HTTP/1.1\r\nhost: x\r\ncontent-type: text/plain\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /heal",
        b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-slow: ",
        HEAD + b"content-length: 100\r\n\r\nonly this",
        HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\nab",
    ],
    ids=["nothing", "line", "headers", "body", "chunk"],
)
def test_a_slow_request_ends_at_its_time_limit(door: HttpDoor, sent: bytes) -> None:
    answer = answer_to(door, sent)

    assert answer == b"" if not sent else answer.startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("sent", [b"GET /heal", HEAD + b"content-length: 100\r\n\r\nonly this"])
def test_slow_requests_in_all_places_make_room(door: HttpDoor, sent: bytes) -> None:
    with contextlib.ExitStack() as slow:
        connections = [slow.enter_context(connected(door)) for _ in range(30)]
        for each in connections:
            each.sendall(sent)
        time.sleep(0.1)  # the door reads them
        for _ in range(3):
            assert answer_to(door, b"GET /healthz HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 ")


def test_silent_handshakes_make_room(tmp_path: Path) -> None:
    """Beyond the limit of an address the oldest handshake ends; a genuine client gets its place."""
    most, many = 5, 40
    folder = tmp_path / "qmd"
    folder.mkdir()
    make_certificates(folder)
    certified = {"certificate": "remote.crt", "key": "remote.key", "head_timeout": "10m"}
    limits = {"connections_max": most, "connections_per_address_max": most}
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    doors = open_door(tmp_path, "orders", **certified, **limits)
    door = next(doors)
    with contextlib.ExitStack() as silent:
        crowd = [silent.enter_context(connected(door)) for _ in range(many)]
        ended = [rest_of(each) for each in crowd[: many - most]]
        assert ended == [b""] * (many - most)
        with (
            connected(door) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as tls,
        ):
            tls.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            assert tls.recv(65536).startswith(b"HTTP/1.1 200 ")
    doors.close()


def test_a_head_that_comes_drop_by_drop_has_one_time_limit(door: HttpDoor) -> None:
    with connected(door) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\n")
        with contextlib.suppress(ConnectionError):
            for number in range(10_000):
                connection.sendall(b"x-%d: 1\r\n" % number)
                time.sleep(0.02)
                connection.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    if connection.recv(1, socket.MSG_PEEK):
                        break
                connection.settimeout(END_S)
        connection.settimeout(END_S)
        assert rest_of(connection).startswith((b"HTTP/1.1 408 ", b"HTTP/1.1 431 "))


def test_a_client_that_does_not_read_its_response_is_ended(door: HttpDoor) -> None:
    client = door.client()
    body = "x" * 900_000
    for _ in range(20):
        client.send("orders", body)
    token = door.token(name="admin")
    with socket.socket() as greedy:
        greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        greedy.settimeout(END_S)
        greedy.connect(("127.0.0.1", door.port))
        request = f"GET {messages('orders')} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}"
        greedy.sendall(f"{request}\r\n\r\n".encode())
        # It reads and sends nothing: only the end of the door's side can be seen.
        deadline = time.monotonic() + END_S
        while is_established(door.port, greedy.getsockname()[1]):
            assert time.monotonic() < deadline, "its connection goes on"
            time.sleep(0.05)


def is_established(port: int, client_port: int) -> bool:
    """Return whether the end of a connection at `port` is open, as the kernel lists it."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, *_ = line.split()
        if local.endswith(f":{port:04X}") and remote.endswith(f":{client_port:04X}"):
            return state == "01"
    return False


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 101 + b"\r\n", 431),
        (b"GET /healthz HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 40_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n", 431),
        (HEAD + b"content-length: 1048577\r\n\r\n", 413),
        (HEAD + b"content-length: 999999999999999999\r\n\r\n", 413),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n100001\r\n" + b"x" * 0x100001 + b"\r\n", 413),
    ],
    ids=["many", "long", "path", "length", "huge", "chunks"],
)
def test_a_request_that_is_too_large_is_refused_before_it_is_read(
    door: HttpDoor, data: bytes, status: int
) -> None:
    assert answer_to(door, data).startswith(b"HTTP/1.1 %d " % status)


SMUGGLED = b"GET /healthz HTTP/1.1\r\nhost: smuggled\r\n\r\n"


@pytest.mark.parametrize(
    "head",
    [
        b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n",
        b"content-length: 4\r\ncontent-length: 5\r\n\r\nabcd",
        b"content-length: 4\r\ncontent-length: 4\r\n\r\nabcd",
        b"content-length: 4, 4\r\n\r\nabcd",
        b"content-length: +4\r\n\r\nabcd",
        b"content-length: -1\r\n\r\n",
        b"content-length: 0x4\r\n\r\nabcd",
        b"content-length : 4\r\n\r\nabcd",
        b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"transfer-encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
        b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"x: y\ncontent-length: 4\r\n\r\nabcd",
        b"x: y\r\n folded: z\r\n\r\n",
        b"x\x00: y\r\n\r\n",
        b"host: other\r\n\r\n",
        b"transfer-encoding: chunked\r\n\r\n0;ext=\n\r\n\r\n",
        b"transfer-encoding: chunked\r\n\r\n-1\r\n\r\n",
        b"transfer-encoding: chunked\r\n\r\n5\r\nabcdeX0\r\n\r\n",
    ],
)
def test_a_request_that_can_be_read_in_two_ways_ends_its_connection(
    door: HttpDoor, head: bytes
) -> None:
    """The bytes after it are never executed as a request of their own."""
    answer = answer_to(door, HEAD + head + SMUGGLED)

    assert answer.count(b"HTTP/1.1 ") == 1, answer
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 501 ")), answer


@pytest.mark.parametrize(
    "body",
    [
        b"content-length: 9\r\n\r\nten screw",
        b"transfer-encoding: chunked\r\n\r\n9\r\nten screw\r\n0\r\n\r\n",
    ],
)
@pytest.mark.parametrize("pause_s", [0.0, 0.2])
def test_a_request_that_permits_an_upgrade_keeps_its_body(
    door: HttpDoor, body: bytes, pause_s: float
) -> None:
    """Clients that also speak HTTP/2 permit it with each request, and send the body at once."""
    offer = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"
    door.client().receive("orders", limit=100)
    head, separator, rest = (
        HEAD.replace(b"host: x", b"host: localhost") + offer + body + SMUGGLED
    ).partition(b"\r\n\r\n")
    with socket.create_connection(("127.0.0.1", door.port), timeout=END_S) as connection:
        connection.sendall(head + separator)
        time.sleep(pause_s)
        connection.sendall(rest)
        answer = b""
        while data := connection.recv(65536):
            answer += data

    assert answer.count(b"HTTP/1.1 ") == 1, answer
    assert answer.startswith(b"HTTP/1.1 201 "), answer
    assert [each["body"] for each in door.client().receive("orders", limit=10)] == ["ten screw"]


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /healthz\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n\r\n",  # without a host
        b"GET http://[/ HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
        b"GET * HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /%ff HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
        b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n",
        b"\x00" * 100,
    ],
)
def test_other_protocols_get_an_error(door: HttpDoor, data: bytes) -> None:
    assert b" 40" in answer_to(door, data).partition(b"\r\n")[0]


def test_pipelined_requests_are_answered_in_order(door: HttpDoor) -> None:
    many = 20
    data = b"".join(
        b"GET /v1/nothing/%d HTTP/1.1\r\nhost: x\r\n\r\nGET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
        % n
        for n in range(many)
    )
    with connected(door) as connection:
        connection.sendall(data)
        found = b""
        last = b'{"status":"ok","queue_manager":null}'
        while found.count(last) < many:
            found += connection.recv(65536)

    statuses = [part[:3] for part in found.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"404", b"200"] * many


def test_an_unending_flood_of_pipelined_requests_is_bounded(door: HttpDoor) -> None:
    with connected(door) as connection:
        connection.settimeout(2)
        with contextlib.suppress(OSError):  # the door stops reading, or ends the connection
            for _ in range(2000):
                connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n" * 1000)


def test_idle_connections_make_room_for_others(door: HttpDoor) -> None:
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(connected(door)) for _ in range(29)]
        for each in crowd:
            each.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
            assert each.recv(65536).startswith(b"HTTP/1.1 200 ")
        extra = [stack.enter_context(connected(door)) for _ in range(5)]
        for each in extra:  # beyond the limit of one address
            each.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        statuses = {each.recv(12) for each in extra}
        # The connections that were idle for the longest time have left.
        assert [each.recv(1) for each in crowd[:4]] == [b""] * 4

    assert statuses == {b"HTTP/1.1 200"}


def test_wrong_tokens_are_refused(door: HttpDoor) -> None:
    for token in ("wrong", "qmd_" + "A" * 43, "x" * 300, "a b"):
        client = HttpClient(door.port, token)
        answer = client.ask("GET", "/v1/queues")
        assert (answer.status, "www-authenticate" in answer.headers) == (401, True), token
        client.close()
    for scheme in ("Basic dTpw", "Bearer", "Bearer ", "bearer  ", ""):
        client = HttpClient(door.port, None)
        assert client.problem("GET", "/v1/queues", authorization=scheme)[0] == 401, scheme
        client.close()


def test_wrong_tokens_do_not_delay_the_right_one(door: HttpDoor) -> None:
    right = door.client()
    right.json("GET", "/v1/queues")
    with contextlib.ExitStack() as stack:
        for number in range(20):
            guess = stack.enter_context(connected(door))
            head = f"GET /v1/queues HTTP/1.1\r\nhost: x\r\nauthorization: Bearer guess{number}"
            guess.sendall(f"{head}\r\n\r\n".encode())
        right.json("GET", "/v1/queues")


def test_a_token_is_in_no_log_or_answer(door: HttpDoor) -> None:
    client = door.client(door.token("read", name="secret"))
    answer = client.ask("POST", messages("orders"), {"body": "1"})
    client.ask("GET", f"/v1/queues/{client.token}")

    assert answer.status == 403
    assert client.token is not None
    assert client.token.encode() not in answer.content
    assert client.token not in door.tail()
    assert client.token not in door.daemon.tail()


@pytest.mark.parametrize(
    "body", [b"[" * 100_000, b'{"body":' * 50_000, b'{"body": "\\ud800"}', b"\xff\xfe", b"1e999999"]
)
def test_odd_json_is_refused(door: HttpDoor, body: bytes) -> None:
    answer = door.client().ask("POST", messages("orders"), body)

    assert answer.status == 400, answer
    assert json.loads(answer.content)["code"] in ("http_bad_body", "argument_unsendable")
