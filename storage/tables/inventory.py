"""The ids of all stored messages at one position of the event log, for `qmd ship`.

A message's id is in the head of its packet, which stays readable if the packet is encrypted
(`storage/vault.py`).  SQLite collects the numbers of each queue and source in one text, so that
reading a million rows does not hold Python's lock.
"""

import sqlite3
from typing import NamedTuple

from storage.tables.keys import LOOKUP_BITS

_SOURCE = "substr(packet, 17, 16)"
_NUMBERS = "group_concat(hex(substr(packet, 57, 4)), '')"
#: The table, the column that names its queue, and the table of those queues with their names.
_TABLES = (
    ("message", f"key >> {LOOKUP_BITS}", "queue", "name"),
    ("outgoing", f"key >> {LOOKUP_BITS}", "outgoing_queue", "destination"),
    ("awaiting", "queue_id", "outgoing_queue", "destination"),
)


class Present(NamedTuple):
    """The messages of one source in one queue."""

    table: str
    queue: str  # the name of our queue, or the format name of a remote destination
    source: bytes
    numbers: bytes  # four bytes each, in the order of the wire


class TooMany(Exception):
    """More messages are stored than one inventory can name; the argument is their number."""


def read(db: sqlite3.Connection, messages_max: int) -> tuple[int, int, list[Present]]:
    """Return the newest block of the event log, its time, and the messages stored then.

    All are of one state of the database.  Raises TooMany.
    """
    db.execute("BEGIN")
    try:
        block, at_ms = db.execute(
            "SELECT id, last_at_ms FROM event_block ORDER BY id DESC LIMIT 1"
        ).fetchone() or (0, 0)
        counts = (db.execute(f"SELECT count(*) FROM {table}") for table, *_ in _TABLES)
        if (total := sum(count for ((count,),) in counts)) > messages_max:
            raise TooMany(total)
        present = []
        for table, queue, names, name in _TABLES:
            groups = (
                f"SELECT {queue} AS queue_id, {_SOURCE} AS source, {_NUMBERS} AS numbers"
                f" FROM {table} GROUP BY 1, 2"
            )
            rows = db.execute(
                f"SELECT coalesce(q.{name}, ''), m.source, m.numbers FROM ({groups}) m"
                f" LEFT JOIN {names} q ON q.id = m.queue_id"
            )
            present += [
                Present(table, queue, source, bytes.fromhex(numbers))
                for queue, source, numbers in rows
            ]
        return block, at_ms, present
    finally:
        db.execute("COMMIT")
