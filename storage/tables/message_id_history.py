"""Table `message_id_history`: numbers of non-transactional messages received.  [MS-MQQB] 3.1.1.3

A row is a segment of the history of one source, as in `qmd/core/number_history.py`.  Its runs are
text, 16 hexadecimal digits each (first and last number), in the order of arrival: a commit appends
runs, or extends the last of them.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from storage.tables import many_rows

_DIGITS = 8
_TABLE = "message_id_history (position, source, at_s, host, peer, origin, number, runs)"
#: A segment that exists gets the new runs.  If the first of them continues its last run, both
#: become one.  A row of an older version may have no runs, and has one number.
_EXTEND = f"""ON CONFLICT (position) DO UPDATE SET
    at_s = excluded.at_s,
    runs = CASE
        WHEN substr(runs, -{_DIGITS}) = printf('%08x', excluded.number - 1)
            THEN substr(runs, 1, length(runs) - {_DIGITS}) || substr(excluded.runs, {_DIGITS} + 1)
        WHEN runs <> '' THEN runs || excluded.runs
        WHEN number = excluded.number - 1
            THEN printf('%08x', number) || substr(excluded.runs, {_DIGITS} + 1)
        ELSE printf('%08x%08x', number, number) || excluded.runs
        END"""


class Segment(NamedTuple):
    """Numbers of one source that arrived at about the same time."""

    id: int  # ids only grow
    source: bytes
    at_s: int  # arrival of the last of them
    host: str  # address of the peer that delivered them; empty: not known
    peer: bytes  # GUID of that peer
    origin: str = ""  # of the source; empty: not known


class StoredSegment(NamedTuple):
    segment: Segment
    runs: list[tuple[int, int]]  # first and last number, both included


def remember(db: sqlite3.Connection, additions: Iterable[tuple[Segment, Sequence[int]]]) -> None:
    """Add numbers, as first and last number of each run in one list: [1, 5, 9, 9].

    An existing segment is extended, and its time is updated.
    """
    rows = [(*segment, numbers[0], _encode(numbers)) for segment, numbers in additions if numbers]
    size = sum(len(row[-1]) for row in rows)
    many_rows.insert(db, _TABLE, rows, size, conflict=_EXTEND)


def entries(db: sqlite3.Connection) -> list[StoredSegment]:
    """Return all segments by id: of each source the oldest come first."""
    rows = db.execute(
        "SELECT position, source, at_s, host, coalesce(peer, source), origin, number, runs"
        " FROM message_id_history ORDER BY position"
    )
    return [
        StoredSegment(Segment(*row), _decode(runs) if runs else [(number, number)])
        for *row, number, runs in rows
    ]


def forget(db: sqlite3.Connection, ids: Iterable[int]) -> None:
    """Delete segments; unknown ids are ignored."""
    db.executemany("DELETE FROM message_id_history WHERE position = ?", ((id_,) for id_ in ids))


def _encode(numbers: Sequence[int]) -> str:
    return "".join([f"{number:08x}" for number in numbers])


def _decode(runs: str) -> list[tuple[int, int]]:
    return [
        (int(runs[at : at + _DIGITS], 16), int(runs[at + _DIGITS : at + 2 * _DIGITS], 16))
        for at in range(0, len(runs), 2 * _DIGITS)
    ]
