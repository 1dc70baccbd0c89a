"""Histories of exported logs: a queue manager that was restored from a backup numbers blocks again.

Exported files do not name the epoch of their log (`epochs.py`).  Their content shows it: one event,
which is a block and a number in it, has one time.  If files have several times for one, a backup
was restored between these times.  All such pairs of times together show when each history began.

Files of earlier runs are read again for this, as far as they are still there, because a run that
reads both histories at once, and runs that read them one after the other, have to say the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from pipeline.events import LogFile, Unreadable, read_piece, text_hashes
from pipeline.jobs.audit.epochs import (
    EPOCHS,
    EPOCHS_MAX,
    assigned,
    is_exported,
)
from pipeline.jobs.audit.facts import RAW_BLOCK, epoch_of_block
from pipeline.jobs.incremental.new_events import readable_boxes

Frame = Any
Array = Any
#: First and last block of a host in a file, and its path.
Range = tuple[int, int, str]

_PLACE = ("queue_manager", "block", "index", "at_ms")
_ASSIGNED = ("queue_manager", "at_ms", "kind", "queue", "lookup_id")


class Histories:
    """The exported files among `new` and `earlier` ones, which a state has read (`covered`)."""

    def __init__(
        self, new: Sequence[LogFile], earlier: Sequence[LogFile], covered: Frame, *, all_there: bool
    ) -> None:
        self._ranges = _ranges(new)
        self._earlier = earlier
        self._ranges_before: dict[int, list[Range]] | None = None
        self._covered = covered.assign(block=covered.block_first & RAW_BLOCK,
                                       last=covered.block_last & RAW_BLOCK)  # fmt: skip
        self._all_there = all_there  # no file that the state has read is gone

    def doubtful(self, epochs: Frame, twice: Collection[int] = ()) -> list[int]:
        """Return the hosts that may have several histories, and of which there are new events.

        `twice` are hosts with more events under some block than a block has.
        """
        restored = set(epochs.host[epochs.since != 0].tolist())
        return [
            host for host, parts in self._ranges.items()
            if host in restored or host in twice or _overlap(parts) or self._was_read(host, parts)
        ]  # fmt: skip

    def learned(self, epochs: Frame, hosts: Iterable[int]) -> Frame:
        """Return `epochs` with those that the contents of the logs of `hosts` show."""
        for host in hosts:
            of_host = epochs.host == host
            named = epochs[of_host & (epochs.since == 0)]
            rows = self._epochs_of(host, max([1, *named.epoch.tolist()]))
            known = epochs[of_host & (epochs.since != 0)]
            if not self._all_there and len(known) and self._must_begin_anew(host, known, rows):
                continue  # the files that show the known ones may be gone
            epochs = pd.concat([epochs[~(of_host & (epochs.since != 0))], rows], ignore_index=True)
        return epochs.astype(np.int64)

    def must_begin_anew(self, before: Frame, after: Frame) -> bool:
        """Return whether `after` moves events that were read under the epochs `before`."""
        return any(
            self._must_begin_anew(int(host), before[before.host == host], after[after.host == host])
            for host in pd.concat([before, after]).host.unique()
        )

    def _must_begin_anew(self, host: int, before: Frame, after: Frame) -> bool:
        read = self._covered[self._covered.host == host]
        before, after = before[before.since != 0], after[after.since != 0]
        begins = dict(zip(after.epoch.tolist(), after.since.tolist(), strict=True))
        for row in read.itertuples() if len(before) or begins else ():
            epoch = int(epoch_of_block(row.block_first))
            if (epoch > 1 and begins.get(epoch, row.at_last + 1) > row.at_first) or any(
                since <= row.at_last for later, since in begins.items() if later > epoch
            ):
                return True
        both = before.merge(after, on="epoch", suffixes=("", "_after"))
        was_read = both.epoch.isin(epoch_of_block(read.block_first.to_numpy()))
        return bool((was_read & (both["first"] != both["first_after"])).any())

    def _was_read(self, host: int, parts: Sequence[Range]) -> bool:
        known = self._covered[self._covered.host == host]
        return any(((known.block <= b) & (known["last"] >= a)).any() for a, b, _ in parts)

    def _epochs_of(self, host: int, last_named: int) -> Frame:
        if self._ranges_before is None:
            self._ranges_before = _ranges(self._earlier)
        parts = [*self._ranges.get(host, ()), *self._ranges_before.get(host, ())]
        paths = list(dict.fromkeys(path for *_, path in parts))
        events = _events_of(host, paths)
        gone = None if self._all_there else self._covered[self._covered.host == host]
        begins = begins_of(events, gone)
        rows = [(host, last_named + 1 + n, -1, since) for n, since in enumerate(begins)]
        found = pd.DataFrame(rows[: EPOCHS_MAX - last_named], columns=EPOCHS).astype(np.int64)
        if len(found):
            found["first"] = _lowest_assigned(host, paths, found.since.to_numpy())
        return found


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


def _ranges(files: Sequence[LogFile]) -> dict[int, list[Range]]:
    """Return the blocks of each host in each exported file."""
    found: dict[int, list[Range]] = {}
    for file in files:
        if not is_exported(file.path):
            continue
        boxes = readable_boxes((file.path, 0, -1))
        if any(host is None for host, *_ in boxes):
            boxes = _boxes_of(file.path)
        for host, first, last in boxes:
            found.setdefault(int(host or 0), []).append((first, last, file.path))
    return found


def _boxes_of(path: str) -> list[tuple[int | None, int, int]]:
    """Return the boxes of a file with several hosts."""
    ranges: dict[int, tuple[int, int]] = {}
    for table in _tables(path, ("queue_manager", "block")):
        hosts, block = text_hashes(table.column("queue_manager")), table.column("block").to_numpy()
        for host in np.unique(hosts).tolist():
            mine = block[hosts == host]
            low, high = ranges.get(host, (1 << 62, -1))
            ranges[host] = min(low, int(mine.min())), max(high, int(mine.max()))
    return [(host, first, last) for host, (first, last) in ranges.items()]


def _overlap(parts: Sequence[Range]) -> bool:
    ordered = sorted(parts)
    return any(b[0] <= a[1] for a, b in pairwise(ordered))


def _tables(path: str, columns: Sequence[str]) -> Iterable[Any]:
    try:
        yield from read_piece((path, 0, -1), columns)
    except (Unreadable, FileNotFoundError):
        return  # the passes over the files report it


def _events_of(host: int, paths: Sequence[str]) -> Frame:
    """Return block, index and at_ms of the events of a host."""
    found = pd.DataFrame({name: pd.Series(dtype=np.int64) for name in _PLACE[1:]})
    for path in paths:
        parts = [found]
        for table in _tables(path, _PLACE):
            mine = text_hashes(table.column("queue_manager")) == host
            parts.append(
                pd.DataFrame({name: table.column(name).to_numpy()[mine] for name in _PLACE[1:]})
            )
        found = pd.concat(parts, ignore_index=True).drop_duplicates()
    return found


def _lowest_assigned(host: int, paths: Sequence[str], begins: Array) -> list[int]:
    """Return the lowest arrival number that a host assigned in each history; -1: none."""
    lowest = np.full(len(begins) + 1, -1, np.int64)
    for path in paths:
        for table in _tables(path, _ASSIGNED):
            arrival = assigned(table)
            at = np.flatnonzero((text_hashes(table.column("queue_manager")) == host)
                                & (arrival >= 0))  # fmt: skip
            history = np.searchsorted(begins, table.column("at_ms").to_numpy()[at], side="right")
            for n in np.unique(history):
                least = int(arrival[at][history == n].min())
                lowest[n] = least if lowest[n] < 0 else min(lowest[n], least)
    return list(map(int, lowest[1:]))
