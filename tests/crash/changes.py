"""Changes that tests make to a daemon, in its own process before it starts."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import qmd.daemon
import qmd.maintenance.expiry
import qmd.maintenance.loop
import qmd.manager
import storage.engine.writer
from qmd.runtime.environment import Environment
from storage import StorageOptions

CLOCK_RATE = 20
CLOCK_ORIGIN = "TEST_CLOCK_ORIGIN"  # seconds since 1970, the same for all daemons of a test
CLOCK_SKIPPED = "TEST_CLOCK_SKIPPED"  # additional time that has passed


class Hurried(Environment):
    """An environment with time that runs twenty times as fast, and continues through restarts."""

    def wall_clock(self) -> float:
        origin = float(os.environ[CLOCK_ORIGIN])
        return origin + (time.time() - origin) * CLOCK_RATE + float(os.environ[CLOCK_SKIPPED])

    def boot_time(self) -> float:
        return super().boot_time() * CLOCK_RATE + float(os.environ[CLOCK_SKIPPED])


def hurry() -> None:
    """Shorten all times to a twentieth."""
    qmd.daemon.Environment = Hurried  # type: ignore[misc]
    qmd.maintenance.loop.INTERVAL_S = 0.01  # type: ignore[misc]
    # A full disk is retried as often as usual, but for a twentieth of the time, and never without
    # end: a disk that stays full stops the daemon.
    patience_s = StorageOptions().full_disk_patience_s / CLOCK_RATE
    qmd.manager.StorageOptions = partial(  # type: ignore[attr-defined]
        StorageOptions,
        full_disk_patience_s=patience_s,
        full_disk_patience_of_others_s=patience_s,
    )
    storage.engine.writer.RETRY_S /= CLOCK_RATE  # type: ignore[misc]


def a_few_at_a_time() -> None:
    """End expired messages in several commits, however few there are."""
    qmd.maintenance.expiry.EXPIRED_ROWS = 3  # type: ignore[misc]


def impatient() -> None:
    """Wait 0.2 s instead of 10 s for other programs that have the database locked."""
    from storage.engine import connection

    set_up = connection._set_up

    def set_up_impatiently(db: sqlite3.Connection, options: StorageOptions) -> None:
        set_up(db, replace(options, busy_timeout_ms=200))

    connection._set_up = set_up_impatiently


def migrate() -> None:
    """Add a migration to a newer schema."""
    from storage.engine import schema

    known = schema.read_migrations()
    following = schema.Migration(
        known[-1].version + 1 if known else schema.FIRST_VERSION + 1,
        "ALTER TABLE message ADD COLUMN colour TEXT; UPDATE message SET colour = 'red';"
        "CREATE INDEX message_colour ON message (colour);",
    )
    schema.read_migrations = lambda folder=None: [*known, following]


def trust_the_log() -> None:
    """Omit the remedy for failed syncs: the write-ahead log is not written again."""
    from storage.engine import disk

    def only_look(path: Path) -> int:
        return path.stat().st_size if path.exists() else 0

    disk.rewrite_log = only_look


# Faults that the tests must detect.


def sync_at_checkpoints_only() -> None:
    """Select SQLite's other mode for write-ahead logs."""
    _with_synchronous("NORMAL")


def never_sync() -> None:
    _with_synchronous("OFF")


def promise_early() -> None:
    """Report results before the commit instead of after it."""
    from storage.engine.batch import Batch

    def when_durable(self: Batch, callback: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(callback)
        self.load.count(0)

    Batch.when_durable = when_durable  # type: ignore[method-assign]


def move_on_later() -> None:
    """Store the position of a sequence in a commit of its own, after that of its messages."""
    from storage.tables import sequences

    set_states = sequences.set_states

    def set_states_later(db: sqlite3.Connection, states: Sequence[sequences.SequenceState]) -> None:
        db.execute("COMMIT")
        db.execute("BEGIN IMMEDIATE")
        set_states(db, states)

    sequences.set_states = set_states_later


def delete_later() -> None:
    """Let every removal follow in a later commit."""
    from storage.tables import messages

    delete = messages.delete
    waiting: list[int] = []

    def delete_later(db: sqlite3.Connection, keys: Sequence[int]) -> None:
        before, waiting[:] = waiting[:], list(keys)
        delete(db, before)

    messages.delete = delete_later


def _with_synchronous(mode: str) -> None:
    from storage import storage

    set_up = storage.set_up_writer

    def set_up_writer(db: sqlite3.Connection, options: StorageOptions) -> None:
        set_up(db, options)
        db.execute(f"PRAGMA synchronous = {mode}")

    storage.set_up_writer = set_up_writer
