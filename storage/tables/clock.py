"""The last state of the queue manager's own clock and the computer's: four rows of `counter`."""

import sqlite3
from typing import NamedTuple

NAMES = ("clock_ms", "clock_wall_ms", "clock_boot_ms", "clock_boot")


class ClockRow(NamedTuple):
    """Clock readings taken at one moment."""

    at_ms: int  # by the queue manager's own clock
    wall_ms: int
    boot_ms: int  # since the computer was started
    boot: int  # identifies that start of the computer


def read(db: sqlite3.Connection) -> ClockRow | None:
    """Return the stored readings; None if they were never written or are incomplete."""
    found = dict(
        db.execute("SELECT name, value FROM counter WHERE name BETWEEN 'clock' AND 'clock~'")
    )
    return ClockRow(*(found[name] for name in NAMES)) if found.keys() >= {*NAMES} else None


def write(db: sqlite3.Connection, row: ClockRow) -> None:
    db.executemany(
        "INSERT OR REPLACE INTO counter (name, value) VALUES (?, ?)", zip(NAMES, row, strict=True)
    )
