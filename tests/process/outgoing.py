"""Helpers for tests of transmission: settings, sends, and sequence numbers."""

from __future__ import annotations

from tests.process import wire
from tests.process.harness import Daemon

QUICK = {"resend": ["700ms"], "retry_first": "50ms", "retry_max": "200ms"}
SLOW = {"resend": ["1h"], "retry_first": "50ms", "retry_max": "200ms"}


def send(
    daemon: Daemon, destination: str, *bodies: bytes, kind: str = "transactional"
) -> list[str]:
    """Send one message per body, in order; return their ids."""
    return daemon.send_all(destination, bodies, f"--{kind}")


def place(message: wire.Message) -> tuple[int, int]:
    """Return (number, previous number) of a transactional message."""
    assert message.transaction is not None
    return message.transaction.number, message.transaction.previous


def sequence_of(message: wire.Message) -> int:
    assert message.transaction is not None
    return message.transaction.sequence_id
