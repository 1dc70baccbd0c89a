"""Table `counter`: numbers that are never assigned twice, not even after a crash.

Reserve a block, wait until that is durable, then assign its numbers from memory.  A crash loses the
rest of a block, which only leaves a gap.
"""

import sqlite3


def reserve(db: sqlite3.Connection, name: str, count: int) -> int:
    """Reserve `count` numbers for the caller and return the first; the very first number is 1."""
    (value,) = db.execute(
        "INSERT INTO counter (name, value) VALUES (:name, 1 + :count)"
        " ON CONFLICT (name) DO UPDATE SET value = value + :count RETURNING value",
        {"name": name, "count": count},
    ).fetchone()
    return int(value) - count


def following(db: sqlite3.Connection, name: str) -> int:
    """Return the number with which the next `reserve` begins."""
    row = db.execute("SELECT value FROM counter WHERE name = ?", (name,)).fetchone()
    return 1 if row is None else int(row[0])


def set_following(db: sqlite3.Connection, name: str, value: int) -> None:
    db.execute("INSERT OR REPLACE INTO counter (name, value) VALUES (?, ?)", (name, value))
