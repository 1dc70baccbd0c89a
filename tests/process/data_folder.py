"""The data folder of a daemon: its database, the agreement of its event log, and a held lock."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.ledger import disagreements
from tests.patience import END_S


def database(folder: Path) -> Path:
    """Return the SQLite file of the data folder, found by its first bytes."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.name.endswith(("-wal", "-shm")):
            with path.open("rb") as file:
                if file.read(16) == b"SQLite format 3\0":
                    return path
    raise AssertionError(f"no database below {folder}")


def check_log(folder: Path) -> None:
    """Assert that the event log agrees with the tables, however the daemon ended."""
    with tempfile.TemporaryDirectory(prefix="qmd-log-") as scratch:
        for name in ("queues.db", "queues.db-wal"):
            for path in folder.rglob(name):
                shutil.copy(path, scratch)
        if not os.listdir(scratch):
            return
        with contextlib.closing(sqlite3.connect(f"{scratch}/queues.db")) as db:
            try:
                problems = disagreements(db)
            except sqlite3.DatabaseError:
                return  # a test damaged the database, or its first start was interrupted
    assert not problems, "\n".join(problems)


@contextlib.contextmanager
def held_disk(folder: Path) -> Iterator[None]:
    """Hold the write lock of the database, so that no commit succeeds meanwhile."""
    with contextlib.closing(
        sqlite3.connect(database(folder), timeout=END_S, isolation_level=None)
    ) as intruder:
        intruder.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            intruder.execute("ROLLBACK")
