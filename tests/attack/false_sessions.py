"""Sessions that state the GUID of another queue manager, with and without proofs of keys."""

from __future__ import annotations

import os
import struct
import time

from qmd.runtime.identity_key import IdentityKey
from tests.process import wire
from tests.process.connection import Closed, Connection
from tests.process.wire import Establish, Message, Parameters

FILL = b"\x5a" * 512
FAST = {"delivery": {"retry_first": "50ms", "retry_max": "200ms", "resend": ["1s"]}}
#: The label of the initiator's signature, and the blocks in paddings: qmd/core/identity_proof.py.
INITIATOR = b"qmd 1 session: initiator\0"
CHALLENGE, ANSWER, PROOF = b"qmd\x01challeng", b"qmd\x01answered", b"qmd\x01identity"


def instance(starts: int) -> bytes:
    """Return the end of a padding that states a run of qmd."""
    return struct.pack("<12sBQ16s", b"qmd\x01instance", 0, starts, os.urandom(16))


def stated(starts: int, begin: bytes = b"") -> bytes:
    """Return a padding with a run at its end and a block at its beginning."""
    end = instance(starts)
    return begin + FILL[len(begin) + len(end) :] + end


def shake_hands(port: int, guid: bytes, padding: bytes, *, source: str | None = None) -> Connection:
    """Open a session that states a GUID and a padding, without any proof."""
    connection = opened(Connection.open(port, source=source))
    connection.send(wire.establish(client=guid, padding=padding))
    assert isinstance(wire.parse(connection.frame()), Establish)
    connection.send(wire.parameters())
    assert isinstance(wire.parse(connection.frame()), Parameters)
    return connection


def prove(port: int, guid: bytes, key: IdentityKey, starts: int) -> Connection:
    """Open a session with a genuine proof of a key of its own."""
    connection = opened(Connection.open(port))
    address = bytes(10) + b"\xff\xff" + bytes((127, 0, 0, 1)) + port.to_bytes(2, "big")
    request = stated(starts, CHALLENGE + os.urandom(32) + key.public + address)
    connection.send(wire.establish(client=guid, padding=request))
    answer = wire.parse(connection.frame())
    assert isinstance(answer, Establish)
    assert answer.padding.startswith(ANSWER)
    signature = key.sign(INITIATOR + guid + answer.server + request + answer.padding)
    connection.send(
        wire.establish(client=guid, server=answer.server, padding=stated(starts, PROOF + signature))
        + wire.parameters()
    )
    return connection


_connections: list[Connection] = []


def opened(connection: Connection) -> Connection:
    """Close a connection at the end of the test: a fixture calls `close_all`."""
    _connections.append(connection)
    return connection


def close_all() -> None:
    """Close all connections of the test."""
    while _connections:
        _connections.pop().close()


def messages_of(connection: Connection, seconds: float = 1.0) -> list[Message]:
    """Return the user messages that a session gets within some time."""
    found = []
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        try:
            packet = wire.parse(connection.frame(left))
        except (TimeoutError, Closed, AssertionError):
            break
        if isinstance(packet, Message):
            found.append(packet)
    return found
