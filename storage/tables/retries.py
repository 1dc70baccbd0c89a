"""Tables `retry_policy` and `retry`: policies of queues, and messages that wait for an attempt.

A row of `retry` is written in the commit that moves a message to the subqueue `;retry`, and deleted
after the message has left it.  A row without its message has no effect.
"""

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple


class PolicyRow(NamedTuple):
    """The policy of a queue."""

    queue_id: int
    attempts: int
    immediate: int
    delay_ms: int
    factor: float
    delay_max_ms: int
    jitter: float
    ends: str


class RetryRow(NamedTuple):
    """A message in a subqueue `;retry`, and its time by the queue manager's own clock."""

    key: int
    due_ms: int


def list_policies(db: sqlite3.Connection) -> list[PolicyRow]:
    """Return the policies of all queues."""
    columns = ", ".join(PolicyRow._fields)
    return list(map(PolicyRow._make, db.execute(f"SELECT {columns} FROM retry_policy")))


def set_policy(db: sqlite3.Connection, row: PolicyRow) -> None:
    """Store the policy of a queue in place of an earlier one."""
    db.execute(
        f"INSERT OR REPLACE INTO retry_policy ({', '.join(row._fields)})"
        f" VALUES ({', '.join('?' * len(row))})",
        row,
    )


def remove_policy(db: sqlite3.Connection, queue_id: int) -> None:
    db.execute("DELETE FROM retry_policy WHERE queue_id = ?", (queue_id,))


def add(db: sqlite3.Connection, rows: Sequence[RetryRow]) -> None:
    """Store the times of messages; a later time replaces an earlier one."""
    db.executemany("INSERT OR REPLACE INTO retry (key, due_ms) VALUES (?, ?)", rows)


def due(db: sqlite3.Connection, now_ms: int, rows_max: int) -> list[RetryRow]:
    """Return messages that are due, the earliest first."""
    rows = db.execute(
        "SELECT key, due_ms FROM retry WHERE due_ms <= ? ORDER BY due_ms LIMIT ?",
        (now_ms, rows_max),
    )
    return list(map(RetryRow._make, rows))


def next_due_ms(db: sqlite3.Connection) -> int | None:
    """Return the earliest time; None: no message waits."""
    found: int | None = db.execute("SELECT min(due_ms) FROM retry").fetchone()[0]
    return found


def find(db: sqlite3.Connection, key: int) -> int | None:
    """Return the time of a message; None: it does not wait."""
    row = db.execute("SELECT due_ms FROM retry WHERE key = ?", (key,)).fetchone()
    return None if row is None else int(row[0])


def remove(db: sqlite3.Connection, rows: Sequence[RetryRow]) -> None:
    """Delete rows that have not got another time meanwhile."""
    db.executemany("DELETE FROM retry WHERE key = ? AND due_ms = ?", rows)
