"""A start does not read more for more messages: windows are read when they are needed."""

import asyncio
import sqlite3
from pathlib import Path

from qmd.assembly.restore import _read_state
from storage.tables.keys import message_key
from tests.unit.storage.support import durable, insert, opened

REMOTE = 7  # an outgoing queue


def steps(db: sqlite3.Connection) -> int:
    """Count the steps of SQLite's machine for the state that a start reads."""
    counted = 0

    def count() -> int:
        nonlocal counted
        counted += 1
        return 0

    db.set_progress_handler(count, 1)
    try:
        _read_state(db)
    finally:
        db.set_progress_handler(None, 1)
    return counted


def test_a_start_reads_no_more_for_more_messages(tmp_path: Path) -> None:
    async def scenario() -> None:
        found = []
        async with opened(tmp_path / "data") as storage:
            for first in (1, 2, 1000):
                insert(storage, *range(first, 2 * first))
                for number in range(first, 2 * first):
                    storage.batch.outgoing.insert(message_key(REMOTE, 8, number), bytes(60))
                await durable(storage)
                found.append(await storage.read(steps))
        assert found[2] == found[1]

    asyncio.run(scenario())
