"""The oldest message of a queue: the first row of each level, of which one is the oldest."""

import sqlite3
from collections.abc import Iterable

from storage.tables.keys import LEVEL_MAX, level_range

_SENT_AT = 53  # of UserHeader.SentTime in a packet, counted from 1.  [MS-MQMQ] 2.2.19.2


def arrived_at_ms(db: sqlite3.Connection, queue_ids: Iterable[int]) -> dict[int, int]:
    """Return when the oldest stored message of each queue arrived; empty queues are left out."""
    return _oldest(db, "SELECT arrived_at_ms FROM message", queue_ids)


def sent_at_ms(db: sqlite3.Connection, outgoing_ids: Iterable[int]) -> dict[int, int]:
    """Return when the oldest stored message of each outgoing queue was sent, in the same way.

    The time is that of the clock of the host that made the message.
    """
    return _oldest(db, f"SELECT substr(packet, {_SENT_AT}, 4) FROM outgoing", outgoing_ids)


def _oldest(db: sqlite3.Connection, select: str, ids: Iterable[int]) -> dict[int, int]:
    found: dict[int, int] = {}
    for each in ids:
        times = [
            _ms(row[0])
            for level in range(LEVEL_MAX + 1)
            if (
                row := db.execute(
                    f"{select} WHERE key BETWEEN ? AND ? ORDER BY key LIMIT 1",
                    level_range(each, level),
                ).fetchone()
            )
        ]
        if times:
            found[each] = min(times)
    return found


def _ms(value: int | bytes) -> int:
    return value if isinstance(value, int) else int.from_bytes(value, "little") * 1000
