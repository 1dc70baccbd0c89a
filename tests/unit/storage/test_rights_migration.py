"""The upgrade to a version with rights: what all local users shared, they go on sharing."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.engine import schema
from storage.tables import access, outcomes

DATA = Path(__file__).resolve().parents[2] / "data"
FULL = (
    "send,receive,peek,receive-journal,purge,delete,get-properties,set-properties,get-permissions,"
    "change-permissions,take-ownership"
)
HOST = "create-queue,see-status,read-events,manage-outgoing,manage-directory,manage-peers"


@pytest.fixture
def old() -> Iterator[sqlite3.Connection]:
    """Yield the database of a version without rights, with an outcome."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.executescript((DATA / "schema_20.sql").read_text(encoding="utf-8"))
        db.execute("INSERT INTO outcome (token, result, at_s) VALUES (x'01', x'02', 3)")
        yield db


def upgrade(db: sqlite3.Connection) -> None:
    schema.prepare(db, schema.read_migrations(), now_s=0, new_id=bytes(16))


def test_the_queues_of_an_old_folder_are_shared_by_all_local_users(old: sqlite3.Connection) -> None:
    upgrade(old)

    entries = {row.object: row[1:] for row in access.entries(old)}
    shared = ("allow", "local", None, FULL)
    assert entries == {
        "host": ("allow", "local", None, HOST),
        "system$;journal": shared,
        "system$;deadletter": shared,
        "system$;deadxact": shared,
        "private$\\plain": shared,
        "private$\\fleeting": shared,
        "private$\\orders": shared,
    }


def test_outcomes_of_before_the_upgrade_are_shared_and_later_ones_are_not(
    old: sqlite3.Connection,
) -> None:
    upgrade(old)
    outcomes.record(old, [(b"\5", b"\6", 7)])

    assert outcomes.find(old, b"\1 and a mark", shared=b"\1") == b"\2"
    assert outcomes.find(old, b"\1 and a mark") is None
    assert outcomes.find(old, b"\5 and a mark", shared=b"\5") is None
    outcomes.record(old, [(b"\1", b"\x08", 9)])  # another request, of an administrator
    assert outcomes.find(old, b"\1 and a mark", shared=b"\1") is None
