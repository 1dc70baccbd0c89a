"""Histories of exported logs: a queue manager that was restored from a backup numbers blocks again.

Exported files do not name the epoch of their log (`epochs.py`).  Their content shows it: one event,
which is a block and a number in it, has one time.  If files have several times for one, a backup
was restored between these times.  All such pairs of times together show when each history began.
A queue manager also logs an event `restored` at its first start with a restored folder: then the
later history alone shows that there was another one, of which the end is missing.

Files that `qmd ship` has named tell their epoch within one target.  If two targets have the same
blocks of a queue manager, their content decides as well: it was restored or cloned, and has shipped
to another target since, or the files were copied.

Files of earlier runs are read again for this, as far as they are still there, because a run that
reads both histories at once, and runs that read them one after the other, have to say the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from pipeline.engines.engine import Engine
from pipeline.events import LogFile, Unreadable, hash_of, read_piece, text_hashes
from pipeline.jobs.audit.epochs import (
    EPOCHS,
    EPOCHS_MAX,
    blocks_of_first_epoch,
    is_exported,
)
from pipeline.jobs.audit.facts import RAW_BLOCK, epoch_of_block
from pipeline.jobs.audit.history_events import (
    begins,
    both_until,
    lowest_assigned,
    read_events,
    side_by_side,
)
from pipeline.jobs.incremental.new_events import readable_boxes

Frame = Any
Array = Any
#: First and last block of a host in a file, and its path.
Range = tuple[int, int, str]


class Histories:
    """The exported files among `new` and `earlier` ones, which a state has read (`covered`)."""

    def __init__(
        self, new: Sequence[LogFile], earlier: Sequence[LogFile], covered: Frame, *, all_there: bool
    ) -> None:
        self._ranges = _ranges(new)
        self._shipped = _shipped_ranges(new)
        self._earlier = earlier
        self._ranges_before: dict[int, list[Range]] | None = None
        self._shipped_before: dict[int, list[Range]] = {}
        self._covered = covered.assign(block=covered.block_first & RAW_BLOCK,
                                       last=covered.block_last & RAW_BLOCK)  # fmt: skip
        self._all_there = all_there  # no file that the state has read is gone
        for host, parts in self._shipped.items():
            if _overlap(parts) or self._was_read(host, parts):
                self._ranges.setdefault(host, []).extend(parts)
        #: Hosts of which two copies ran at one time: their events cannot be kept apart.
        self.copied: set[int] = set()

    def doubtful(self, epochs: Frame, twice: Collection[int] = ()) -> list[int]:
        """Return the hosts that may have several histories, and of which there are new events.

        `twice` are hosts with more events under some block than a block has.
        """
        restored = set(epochs.host[epochs.since != 0].tolist())
        return [
            host for host, parts in self._ranges.items()
            if host in restored or host in twice or _overlap(parts) or self._was_read(host, parts)
        ]  # fmt: skip

    def learned(self, engine: Engine, epochs: Frame, hosts: Collection[int]) -> Frame:
        """Return `epochs` with those that the contents of the logs of `hosts` show."""
        if not hosts:
            return epochs
        named = epochs[epochs.since == 0].groupby("host").epoch.max().to_dict()
        found = self._epochs_of(engine, {host: max(1, named.get(host, 1)) for host in hosts})
        for host, rows in found.items():
            of_host = epochs.host == host
            if host in self.copied:
                epochs = epochs[~(of_host & (epochs.since != 0))]
                continue
            known = epochs[of_host & (epochs.since != 0)]
            if not self._all_there and self._must_begin_anew(host, known, rows):
                continue  # the files that show the known ones, or that were read, may be gone
            epochs = pd.concat([epochs[~(of_host & (epochs.since != 0))], rows], ignore_index=True)
        return epochs.astype(np.int64)

    def both_until(
        self, engine: Engine, hosts: Collection[int], broken: Collection[str]
    ) -> dict[int, int]:
        """Return until when the logs of both copies of each of `hosts` are there (ms).

        `broken` are files of which nothing counts.
        """
        if not hosts:
            return {}
        try:
            paths = [path for path in self._paths_of(hosts) if path not in broken]
            read_events(engine, paths, hosts)
            return both_until(engine)
        finally:
            engine.release()

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

    def _epochs_of(self, engine: Engine, last_named: dict[int, int]) -> dict[int, Frame]:
        """Return the epochs behind the last one that file names show, of each host."""
        paths = self._paths_of(last_named)
        gone = self._covered[self._covered.host.isin(list(last_named))]
        try:
            read_events(engine, paths, last_named)
            begun = begins(engine, None if self._all_there else gone)
            self.copied |= side_by_side(engine, begun)
            lowest = lowest_assigned(engine, paths, begun)
        finally:
            engine.release()
        return {
            host: pd.DataFrame(
                [(host, named + 1 + n, lowest.get((host, n + 1), -1), since)
                 for n, since in enumerate(begun.get(host, ())[: EPOCHS_MAX - named])],
                columns=EPOCHS,
            ).astype(np.int64)
            for host, named in last_named.items()
        }  # fmt: skip

    def _paths_of(self, hosts: Collection[int]) -> list[str]:
        if self._ranges_before is None:
            self._ranges_before = _ranges(self._earlier)
            self._shipped_before = _shipped_ranges(self._earlier)
        places = (self._ranges, self._ranges_before, self._shipped, self._shipped_before)
        parts = [part for host in hosts for ranges in places for part in ranges.get(host, ())]
        return list(dict.fromkeys(path for *_, path in parts))


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


def _shipped_ranges(files: Sequence[LogFile]) -> dict[int, list[Range]]:
    """Return the blocks of each host in each file of the first epoch, as their names tell."""
    found: dict[int, list[Range]] = {}
    for file in files:
        if named := blocks_of_first_epoch(file.path):
            host, first, last = named
            found.setdefault(hash_of(host), []).append((first, last, file.path))
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
