"""Faults of the disk of a queue manager: slow and failed reads, and a locked database."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator

from tests.integration.managers import PATIENCE_S, Host


async def slow_read(host: Host, of: str) -> threading.Event:
    """Stop the next read beside the writer after its first steps, if its SQL contains `of`.

    Returns an event; the read goes on when it is set.
    """
    finish = threading.Event()
    is_meant = False

    def slow_down(db: sqlite3.Connection) -> None:
        def begin(sql: str) -> None:
            nonlocal is_meant
            is_meant = of in sql

        def step() -> int:
            if is_meant:
                finish.wait(PATIENCE_S)
                db.set_progress_handler(None, 0)
            return 0

        db.set_trace_callback(begin)
        db.set_progress_handler(step, 4)

    await host.storage.read(slow_down)
    return finish


async def fail_read(host: Host, of: str) -> None:
    """Interrupt the next read beside the writer whose SQL contains `of`."""
    is_meant = False

    def interrupt(db: sqlite3.Connection) -> None:
        def begin(sql: str) -> None:
            nonlocal is_meant
            is_meant = of in sql

        def step() -> int:
            if is_meant:
                db.set_progress_handler(None, 0)
                db.set_trace_callback(None)
            return is_meant

        db.set_trace_callback(begin)
        db.set_progress_handler(step, 4)

    await host.storage.read(interrupt)


@contextlib.contextmanager
def held_disk(host: Host) -> Iterator[None]:
    """Lock the database from another connection, so that no commit succeeds meanwhile."""
    database = host.services.settings.queue_manager.data / "queues.db"
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as intruder:
        intruder.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            intruder.execute("ROLLBACK")
