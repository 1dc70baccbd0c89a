"""Requests of clients with few rights that have stopped the daemon."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import msgspec

from tests.process.control_client import ControlClient
from tests.process.harness import Daemon, Hosts
from tests.users import connect_as, needs_root

OTHER = 64_001  # a user without rights
TRIES = 60  # of leaving at the one moment
REQUESTS = 40  # of a client that leaves


def frame(verb: str, number: int, *fields: Any) -> bytes:
    """Return a request as it travels."""
    inside = msgspec.msgpack.encode([verb, number, *fields])
    return struct.pack("<I", len(inside)) + inside


def check(daemon: Daemon) -> None:
    """Check that the daemon goes on."""
    try:
        with ControlClient(daemon.folder / "qmd.sock") as client:
            client.done("list_queues")
    except (OSError, EOFError) as error:
        raise AssertionError("the daemon has stopped") from error
    assert "stopped_by_a_bug" not in daemon.log.read_text()


@needs_root
def test_a_question_about_no_right_is_refused(hosts: Hosts) -> None:
    """A user may ask about its own rights without having any."""
    daemon = hosts.daemon()
    daemon.create("orders")
    for right in ("", " ", ","):
        with connect_as(OTHER, daemon.folder / "qmd.sock") as client:
            client.sendall(frame("test_access", 1, "", right, "orders"))
            answer = client.recv(65536)
            check(daemon)
            assert b"bad_right" in answer


def test_a_client_may_leave_while_its_request_is_refused(hosts: Hosts) -> None:
    """Nothing waits for the refusal then."""
    daemon = hosts.daemon()
    daemon.create("orders")
    choice = [[], [b"short"], "", "", "", "", None, None]
    for _ in range(TRIES):
        with (
            contextlib.suppress(EOFError, OSError),
            ControlClient(daemon.folder / "qmd.sock") as client,
        ):
            for number in range(REQUESTS):
                client.send_raw(frame("take_chosen", number, "orders", choice, 1, -1.0))
    check(daemon)
