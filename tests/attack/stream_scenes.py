"""Scenes of the attacks on streams: a receiver, a genuine source, and programs with its GUID."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
import uuid
from collections.abc import Callable
from typing import Any

from tests.patience import END_S
from tests.process import wire
from tests.process.harness import Daemon, Hosts
from tests.process.peer import Peer

FAST: dict[str, Any] = {
    "delivery": {
        "retry_first": "50ms",
        "retry_max": "200ms",
        "resend": ["500ms"],
        "order_ack_timeout": "50ms",
    }
}
GENUINE, HOSTILE = "127.0.0.2", "127.0.0.3"
RECEIVED, DELETED, PURGED, DENIED = 0x4000, 0xC000, 0xC001, 0x8004
FINAL_CLASSES = (RECEIVED, DELETED, PURGED, 0xC002, 0xC004, 0x8001, 0x8004)
LAST = (1 << 64) - 1
#: As long as genuine bodies: the log of each data folder must state one size for each message id.
JUNK = b"made up"


def guid_of(daemon: Daemon) -> bytes:
    return uuid.UUID(daemon.json("status")[0]["queue_manager"]).bytes_le


def eventually(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + END_S
    while not condition():
        assert time.monotonic() < deadline, f"no end within the time: {what}"
        time.sleep(0.05)


def genuine(number: int) -> bytes:
    return b"gen %03d" % number


def sequence_from(seconds_ago: int) -> int:
    """Return a sequence id as that of a sender with a clock, which others cannot guess."""
    return (wire.now_s() - seconds_ago) << 32 | int.from_bytes(os.urandom(4), "big")


def rows(daemon: Daemon, table: str) -> int:
    """Return the number of rows of a table on the disk of a daemon."""
    with contextlib.closing(sqlite3.connect(daemon.folder / "data" / "queues.db")) as db:
        (count,) = db.execute(f"SELECT count(*) FROM {table}").fetchone()
    return int(count)


def incoming(daemon: Daemon) -> list[dict[str, Any]]:
    return [row for row in daemon.json("sequence", "list") if row["direction"] == "incoming"]


class Scene:
    """A receiver, a genuine source without a key, and a program that states its GUID."""

    def __init__(self, hosts: Hosts) -> None:
        self.daemon = hosts.daemon(**FAST)
        self.daemon.create("orders", "others", transactional=True)
        self.daemon.create("plain")
        self.genuine, self._hosts = hosts.remote(), hosts
        self.sequence = sequence_from(900)
        self.sent = 0
        self.reconnect()

    def reconnect(self) -> None:
        self.peer = self.genuine.connect(self.daemon.port, source=GENUINE)

    def attacker(self, source: str = HOSTILE, guid: bytes | None = None) -> Peer:
        """Open a session that states a GUID, by default that of the genuine source."""
        remote = self._hosts.remote(guid or self.genuine.guid)
        return remote.connect(self.daemon.port, source=source)

    def order(self, count: int = 1) -> None:
        """Send genuine messages of the sequence, and wait for their order ack."""
        numbers = range(self.sent + 1, self.sent + count + 1)
        self.peer.send_many(
            self.genuine.transactional("orders", self.sequence, number, body=genuine(number))
            for number in numbers
        )
        self.sent += count
        self.peer.wait_order_ack(self.sequence, self.sent)

    def genuine_orders(self) -> list[bytes]:
        """Receive all orders; return the bodies of the genuine ones."""
        return [body for body in self.daemon.bodies("orders") if body.startswith(b"gen")]

    def expected(self) -> list[bytes]:
        return [genuine(number) for number in range(1, self.sent + 1)]


class Keyed:
    """Two queue managers with keys at one address; an attacker is there too."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        self.receiver = hosts.daemon(**FAST)
        self.receiver.create("orders", "others", transactional=True)
        self.receiver.create("plain")
        self.sender = hosts.daemon(**FAST)
        self.sender.create("answers")
        self.guid = guid_of(self.sender)
        self.sent = 0

    def attacker(self, guid: bytes | None = None, *, of: Daemon | None = None) -> Peer:
        remote = self.hosts.remote(guid or self.guid)
        return remote.connect((of or self.receiver).port)

    def to(self, queue: str) -> str:
        return f"DIRECT=TCP:127.0.0.1:{self.receiver.port}\\private$\\{queue}"

    def send(self, queue: str, content: bytes, *options: str) -> int:
        """Send a message; return its number."""
        return int(self.sender.send(self.to(queue), content, *options).partition("\\")[2])

    def order(self) -> None:
        self.sent += 1
        self.send("orders", genuine(self.sent), "--transactional")
        eventually(
            lambda: self.sender.json("outgoing", "show", self.to("orders"))[0]["messages"] == 0,
            "the order ack",
        )
