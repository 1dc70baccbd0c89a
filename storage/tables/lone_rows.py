"""Deletion of a single row of a table of messages, the removal of a message that is alone.

It needs two statements, and finds the row by its key: those for many rows take twice as long.
"""

import sqlite3

from storage.tables import shared_parts, tally


def delete(db: sqlite3.Connection, table: str, key: int) -> None:
    """Delete the row of `message` or `outgoing` with this key, if there is one.

    Its shared part is deleted as well, unless other rows have it.
    """
    row = db.execute(
        f"SELECT length(packet) + part_bytes, part_id FROM {table} WHERE key = ?", (key,)
    ).fetchone()
    if row is None:
        return
    size, part_id = row
    tally.removed(db, table, key, size)
    db.execute(f"DELETE FROM {table} WHERE key = ?", (key,))
    if part_id is not None:
        shared_parts.delete_unnamed(db, [part_id])
