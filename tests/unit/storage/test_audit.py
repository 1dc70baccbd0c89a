"""The audit log on disk: its chain of digests, and what dropping old entries leaves of it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from qmd.control_protocol.audit import chained
from storage.tables import audit

SCHEMA = Path(__file__).resolve().parents[3] / "storage/schema.sql"


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(SCHEMA.read_text())
        yield db


def is_intact(db: sqlite3.Connection) -> bool:
    """Return whether the digests are those that clients compute."""
    anchor, rows = audit.page(db, 0, 10_000)
    number, digest = anchor
    for row in rows:
        digest = chained(digest, row.number, row.entry)
        if (row.number, row.digest) != (number + 1, digest):
            return False
        number = row.number
    return True


def test_the_digests_are_those_that_clients_compute(db: sqlite3.Connection) -> None:
    numbers = [audit.append(db, json.dumps({"text": text})) for text in ("a", "ü", "")]

    assert numbers == [1, 2, 3]
    assert is_intact(db)
    db.execute("UPDATE audit_entry SET entry = 'other' WHERE number = 2")
    assert not is_intact(db)


def test_dropped_entries_leave_an_anchor_and_an_entry(db: sqlite3.Connection) -> None:
    for number in range(100):
        audit.append(db, json.dumps({"n": number, "text": "x" * 100}))
    digests = {row.number: row.digest for row in audit.page(db, 0, 1000)[1]}

    dropped = audit.trim(db, 5000, 1000, 7)

    anchor, rows = audit.page(db, 0, 1000)
    assert 0 < dropped < 100
    assert anchor == (dropped, digests[dropped])
    assert rows[0].number == dropped + 1
    assert json.loads(rows[-1].entry) == {
        "at_ms": 7,
        "kind": "dropped",
        "up_to": dropped,
        "digest": digests[dropped].hex(),
    }
    assert is_intact(db)
    assert audit.trim(db, 1 << 30, 1000, 8) == 0


def test_the_numbers_go_on_after_all_entries_were_dropped(db: sqlite3.Connection) -> None:
    for _ in range(3):
        audit.append(db, "{}")

    audit.trim(db, 0, 1000, 7)
    assert audit.append(db, "{}") == 5  # the fourth one says that three were dropped

    assert is_intact(db)


def test_the_last_entries_are_found_from_the_end(db: sqlite3.Connection) -> None:
    for number in range(5):
        audit.append(db, str(number))

    assert [row.entry for row in audit.page(db, -2, 100)[1]] == ["3", "4"]
    assert [row.entry for row in audit.page(db, 4, 100)[1]] == ["3", "4"]
