"""Table `message_id_history`: numbers of non-transactional messages received.  [MS-MQQB] 3.1.1.3

A row is a segment of the history of one source, as in `qmd/core/number_history.py`.  Its runs are
text, 16 hexadecimal digits each (first and last number), in the order of arrival: a commit appends
runs, or extends the last of them.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_DIGITS = 8


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
    for segment, numbers in additions:
        if not numbers:
            continue
        found = db.execute(
            "SELECT number, runs FROM message_id_history WHERE position = ?", (segment.id,)
        ).fetchone()
        if found is None:
            db.execute(
                "INSERT INTO message_id_history "
                " (position, source, at_s, host, peer, origin, number, runs)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (*segment, numbers[0], _encode(numbers)),
            )
            continue
        number, runs = found
        runs = runs or _encode((number, number))
        if int(runs[-_DIGITS:], 16) + 1 == numbers[0]:  # extends the last run
            runs, last = runs[:-_DIGITS], f"{numbers[1]:08x}"
            numbers = numbers[2:]
        else:
            last = ""
        db.execute(
            "UPDATE message_id_history SET at_s = ?, runs = ? WHERE position = ?",
            (segment.at_s, f"{runs}{last}{_encode(numbers)}", segment.id),
        )


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
