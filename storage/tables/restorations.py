"""Counters of restorations: when the folder was last restored, and which the event log knows."""

import sqlite3

from storage.tables import counters

RESTORED = "restored"  # the time of the last restoration, in seconds
LOGGED = "restored_logged"  # the time of the last restoration of which there is an event
_NONE = 1  # a counter that was never set


def note_restored(db: sqlite3.Connection, now_ms: int) -> None:
    """Note a restoration, in the transaction of the caller."""
    counters.set_following(db, RESTORED, now_ms // 1000)


def unlogged(db: sqlite3.Connection) -> int:
    """Return the time of the last restoration in ms; 0 if there is an event of it, or was none."""
    at_s = counters.following(db, RESTORED)
    return 0 if at_s in (_NONE, counters.following(db, LOGGED)) else at_s * 1000


def note_logged(db: sqlite3.Connection, *, at_ms: int) -> None:
    """Note that the log has an event of the restoration at `at_ms`."""
    counters.set_following(db, LOGGED, at_ms // 1000)
