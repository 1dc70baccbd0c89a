"""Target: the requests of an HTTP connection.

Any bytes, in any pieces, are the same requests, each of which an operation accepts or refuses as a
problem; the connection answers in order, and nothing that follows an end is executed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from random import Random
from typing import Any

from qmd.doors.http import administration, history, receiving, sending, topic_operations
from qmd.doors.http.declarations import Call
from qmd.doors.http.exchange import Request, Response, of_json
from qmd.doors.http.limits import PIPELINED_MAX, Limits
from qmd.doors.http.locks import LockId
from qmd.doors.http.problems import Problem
from qmd.doors.http.routes import Router
from qmd.doors.http.server import HttpConnection, HttpServer
from qmd.doors.http.sessions import bearer
from tests.fuzz.limits import within_limits
from tests.fuzz.target import Target, numbers, pieces, steered

SIZES_MAX = 8
TURNS_MAX = 10_000
REQUEST_BYTES_MAX = 4096
HEAD = b"POST /v1/queues/orders%3Bx/messages?label=a%20b&priority=5 HTTP/1.1\r\nhost: localhost\r\n"
SEEDS = (
    HEAD + b"content-type: application/json\r\ncontent-length: 13\r\n\r\n" + b'{"body": "x"}',
    HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n3;a=b\r\nabc\r\n0\r\n\r\n",
    HEAD
    + b"ce-specversion: 1.0\r\nce-id: 1\r\nce-source: s\r\nce-type: t\r\nexpect: 100-continue\r\n"
    b"content-length: 2\r\n\r\nab",
    b"POST /v1/messages HTTP/1.1\r\nhost: x\r\nidempotency-key: a\r\ncontent-type: application/json"
    b"\r\ncontent-length: 52\r\n\r\n"
    + b'{"messages": [{"destination": "orders", "body": ""}]}'[:52],
    b"POST /v1/queues/orders/locks HTTP/1.1\r\nhost: x\r\nauthorization: Bearer qmd_abc\r\n"
    b'content-type: application/json\r\ncontent-length: 14\r\n\r\n{"lock_s": 10}',
    b"DELETE /v1/locks/AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAb3JkZXJz HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET /v1/events?last=1&kinds=sent&kinds=received HTTP/1.1\r\nhost: x\r\naccept: */*\r\n\r\n",
    b"GET http://x/healthz HTTP/1.0\r\nconnection: keep-alive\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n" * 3,
    b"GET /v1/topics/a HTTP/1.1\r\nhost: x\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\nPRI",
)
WORDS = (
    *(b"\r\n", b"\n", b"\0", b":", b" ", b"%", b"%00", b"%ff", b";", b"chunked", b"0\r\n\r\n"),
    *(b"content-length: 5\r\n", b"transfer-encoding: chunked\r\n", b"connection: close\r\n"),
    *(b"99999999999999999999", b"-1", b"&", b"=", b'"', b"[" * 200, b"HTTP/1.1", b"HTTP/9.9"),
)


class Connection(asyncio.Transport):
    """The other end of a connection: it keeps all that was written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.is_closed = False

    def write(self, data: Any) -> None:
        assert not self.is_closed
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


async def _no_session(request: Request) -> Any:
    raise AssertionError("the router authenticates only requests that it executes")


ROUTER = Router(
    [
        *(*sending.OPERATIONS, *receiving.OPERATIONS, *topic_operations.OPERATIONS),
        *(*administration.OPERATIONS, *history.OPERATIONS),
    ],
    _no_session,
)


def _checked(request: Request) -> Response:
    """Check a request as the door does before it is executed."""
    try:
        bearer(request.headers.get("authorization"))
        operation, path = ROUTER._find(request)
        Call(operation, request, path, None).check()
        if "lock" in path:
            place = LockId.parse(path["lock"])
            assert LockId.parse(place.text) == place
    except Problem as problem:
        return problem.response()
    return of_json({})


async def _served(data: bytes, sizes: list[int]) -> tuple[list[tuple[Any, ...]], bytes]:
    """Return the requests in these bytes, and the answers."""
    found: list[tuple[Any, ...]] = []

    async def handle(request: Request) -> Response:
        found.append(
            (request.method, request.segments, request.query, dict(request.headers), request.body)
        )
        return _checked(request)

    server = HttpServer(handle, Limits(request_bytes=REQUEST_BYTES_MAX))
    connection, transport = HttpConnection(server), Connection()
    connection.connection_made(transport)
    for piece in pieces(data, sizes):
        if transport.is_closed:
            break
        connection.data_received(piece)
        await _rest(connection)
    connection.eof_received()
    await _rest(connection)
    connection.connection_lost(None)
    assert server.registry.bodies_bytes == 0
    assert not server.registry.connections
    return found, bytes(transport.written)


async def _rest(connection: HttpConnection) -> None:
    """Let the connection answer all requests that it has."""
    for _ in range(TURNS_MAX):
        if connection._task is None and not connection._waiting:
            return
        await asyncio.sleep(0)
    raise AssertionError("a request is never answered")


_loop = asyncio.new_event_loop()


def serve(data: bytes, sizes: list[int]) -> tuple[list[tuple[Any, ...]], bytes]:
    return _loop.run_until_complete(_served(data, sizes))


def check_requests(data: bytes) -> None:
    sizes, stream = numbers(data, SIZES_MAX)
    requests, answers = within_limits(serve, stream, sizes)
    assert not answers or answers.startswith(b"HTTP/1.1 ")
    for method, segments, query, headers, body in requests:
        assert method.isascii()
        assert query.isascii()
        assert len(body) <= REQUEST_BYTES_MAX
        assert all(name == name.lower() for name in headers)
        assert not any("\n" in value or "\0" in value for value in headers.values())
        assert segments
    if stream.count(b" ") < PIPELINED_MAX:  # else one read has more requests than may wait
        assert serve(stream, [])[0] == requests


def mutate_stream(data: bytes, size_max: int, random: Random) -> bytes:
    """Change bytes, repeat or delete a part, or insert words of HTTP."""
    out = bytearray(data or random.choice(SEEDS))
    for _ in range(random.randrange(1, 5)):
        at, choice = random.randrange(len(out) + 1), random.random()
        if choice < 0.3 and at < len(out):
            out[at] = random.randrange(256)
        elif choice < 0.7:
            out[at:at] = random.choice((*WORDS, random.choice(SEEDS)))
        elif choice < 0.85:
            out[at:at] = out[at : at + random.randrange(1, 40)]
        else:
            del out[at : at + random.randrange(1, 20)]
    return bytes(out[:size_max])


def seeds() -> Iterable[bytes]:
    for data in SEEDS:
        yield b"\0" + data
        yield bytes((3, 1, 7, 40)) + data


TARGETS = (Target("http-requests", check_requests, seeds, steered(mutate_stream, SIZES_MAX)),)
