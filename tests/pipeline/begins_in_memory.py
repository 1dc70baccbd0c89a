"""The begins of the histories of one log, by another implementation: all events in memory."""

from __future__ import annotations

from typing import Any

import numpy as np

Frame = Any
Array = Any


def begins_of(events: Frame, covered: Frame | None = None) -> list[int]:
    """Return the time at which each history of a log begins, but the first.

    `events` have block, index and at_ms.  `covered` are stretches of events that are not among
    them: `block` to `last`, until `at_last`.
    """
    events = events.drop_duplicates().sort_values(["block", "index", "at_ms"], ignore_index=True)
    block, index, at_ms = (events[name].to_numpy(np.int64) for name in ("block", "index", "at_ms"))
    again = np.flatnonzero((block[1:] == block[:-1]) & (index[1:] == index[:-1])) + 1
    left, right = at_ms[again - 1], at_ms[again]  # the restoration was between the two
    for row in covered.itertuples() if covered is not None else ():
        some = at_ms[(block >= row.block) & (block <= row.last) & (at_ms > row.at_last)]
        left = np.append(left, np.full(len(some), row.at_last))
        right = np.append(right, some)
    by_time = np.lexsort((index, block, at_ms))
    begins: list[int] = []
    while len(right):
        latest = int(right.min())  # the history has begun by then
        of_it = left < latest
        if not of_it.any():
            break
        ended = int(left[of_it].max())
        begins.append(_begin(at_ms[by_time], by_time, ended, latest))
        left, right = left[~of_it], right[~of_it]
    return begins


def _begin(at_ms: Array, position: Array, ended: int, latest: int) -> int:
    """Return the time of the first event behind `ended` with a lower position than one before it.

    `at_ms` ascends; `position` is the rank of each event by its block and number.
    """
    end = int(np.searchsorted(at_ms, latest, side="right"))
    behind = int(np.searchsorted(at_ms, ended, side="right"))
    if behind == 0:
        return latest
    top = np.maximum.accumulate(position[:end])
    drops = np.flatnonzero(position[behind:end] < top[behind - 1 : end - 1])
    return int(at_ms[behind + drops[0]]) if len(drops) else latest
