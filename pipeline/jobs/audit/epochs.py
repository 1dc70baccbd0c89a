"""Epochs of logs: a queue manager that was restored from a backup assigns arrival numbers again.

`qmd ship` writes the events after a restored backup to files of another epoch (`-e2-` in the name).
The audit orders messages by their arrival numbers, so numbers that an epoch assigns are raised
above those of earlier epochs.  Numbers of messages that arrived before the backup was made are
lower than all that the epoch assigns, and stay as they are.

Other files do not name an epoch.  If two of them have different times for one event (of a block and
a number in it), they are of two histories, and the events from the later one of these on are
another epoch: its time separates the two.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from pipeline.events import LogFile, Unreadable, hash_of, read_piece
from pipeline.jobs.audit.facts import ARRIVAL_MAX, Facts
from pipeline.jobs.audit.findings import KINDS
from pipeline.jobs.incremental.new_events import readable_boxes

if TYPE_CHECKING:
    from pipeline.jobs.audit.labels import Labels

Frame = Any
Array = Any

#: The lowest arrival number that a host assigned in an epoch above 1 (-1: none so far); and the
#: time at which an epoch begins that file names do not show, else 0.
EPOCHS = ["host", "epoch", "first", "since"]
_RAISE_BITS = 40  # of 44: an epoch may assign a billion numbers
_EPOCHS_MAX = 16
_NAME = re.compile(r"([0-9a-f-]{36})-e(\d+)-\d+-\d+\.parquet$")
_ASSIGNING = ("accepted", "sent", "imported", "journaled", "dead_lettered")
_COLUMNS = ("kind", "queue", "lookup_id")
_CONTENT = ("queue_manager", "block", "index", "at_ms")
_SHIPPED = re.compile(r"[0-9a-f-]{36}(?:-e\d+)?-\d{16}-\d{16}\.parquet$")


def epoch_of(path: str) -> int:
    """Return the epoch of a shipped file; 1 for all other files."""
    found = _NAME.search(path)
    return int(found[2]) if found else 1


def learned(files: Sequence[LogFile], known: Frame) -> Frame:
    """Return `EPOCHS` with those of `files` that are not known."""
    before = known
    known = known[known["first"] >= 0]
    have = set(zip(known.host.tolist(), known.epoch.tolist(), strict=True))
    first: dict[tuple[int, int], int] = {}
    for file in files:
        named = _NAME.search(file.path)
        if named is None or (key := (hash_of(named[1]), int(named[2]))) in have:
            continue
        lowest = [each for each in (_lowest(file.path), first.get(key, -1)) if each >= 0]
        first[key] = min(lowest, default=-1)
    rows = [(*key, value, 0) for key, value in first.items()]
    rows += _by_content(files, before)
    new = pd.DataFrame(rows, columns=EPOCHS)
    both = pd.concat([before, new.astype(np.int64)], ignore_index=True).astype(np.int64)
    return both.groupby(["host", "epoch"], as_index=False)[["first", "since"]].max()[EPOCHS]


def _by_content(files: Sequence[LogFile], known: Frame) -> list[tuple[int, int, int, int]]:
    """Return the epochs that files without an epoch in their names show."""
    ranges: dict[int, list[tuple[int, int, str]]] = {}
    for file in files:
        if _SHIPPED.search(file.path) is None:
            for host, first, last in readable_boxes((file.path, 0, -1)):
                if host is not None:
                    ranges.setdefault(host, []).append((first, last, file.path))
    found: list[tuple[int, int, int, int]] = []
    for host, parts in ranges.items():
        parts.sort()
        overlap = [
            path
            for n, (first, last, path) in enumerate(parts)
            if any(first <= b and a <= last for m, (a, b, _) in enumerate(parts) if m != n)
        ]
        for since, blocks in _histories(host, overlap):
            before = known[known.host == host]
            if since in set(before.since):
                continue
            epoch = max([1, *before.epoch, *(e for h, e, *_ in found if h == host)]) + 1
            found.append((host, int(epoch), min(blocks, default=-1), since))
    return found


def _histories(host: int, paths: Sequence[str]) -> list[tuple[int, list[int]]]:
    """Return the time at which each further history begins, and the arrivals that it assigns."""
    if len(paths) < 2:
        return []
    contents: dict[tuple[int, int], set[int]] = {}  # by block and index: times
    events: list[tuple[int, int]] = []  # time, arrival that is assigned
    for path in dict.fromkeys(paths):
        try:
            for table in read_piece((path, 0, -1), (*_COLUMNS, *_CONTENT)):
                for row in table.to_pylist():
                    if hash_of(row["queue_manager"] or "") != host:
                        continue
                    place = row["block"], row["index"]
                    contents.setdefault(place, set()).add(row["at_ms"])
                    events.append((row["at_ms"], _assigned(row)))
        except (Unreadable, FileNotFoundError):
            continue  # the passes over the files report it
    # Files may share a block, each with some of its events: one that ends at midnight, or names
    # kinds.  One event has one time.
    begins = sorted(max(times) for times in contents.values() if len(times) > 1)[:1]
    return [
        (since, [arrival for at_ms, arrival in events if at_ms >= since and arrival >= 0])
        for since in begins
    ]


def _assigned(row: dict[str, Any]) -> int:
    """Return the arrival number that an event assigns; -1: none."""
    is_assigning = row["kind"] in _ASSIGNING and row["lookup_id"] is not None
    if is_assigning and ("=" not in (row["queue"] or "") or row["kind"] in _ASSIGNING[3:]):
        return int(row["lookup_id"] & ARRIVAL_MAX)
    return -1


def _lowest(path: str) -> int:
    lowest = -1
    try:
        for table in read_piece((path, 0, -1), _COLUMNS):
            for row in table.to_pylist():
                if (arrival := _assigned(row)) >= 0:
                    lowest = arrival if lowest < 0 else min(lowest, arrival)
    except (Unreadable, FileNotFoundError):
        return -1  # the passes over the files report it
    return lowest


def restored(known: Frame, labels: Labels) -> list[dict[str, Any]]:
    """Return a finding for each host with more than one epoch."""
    last = known.groupby("host").epoch.max()
    return [
        labels.about("restored", int(host), f"Epoch {epoch} of its log. {KINDS['restored']}", None)
        for host, epoch in last.items()
    ]


class Epochs:
    """Raises the arrival numbers of later epochs."""

    def __init__(self, known: Frame) -> None:
        self._first = {
            (int(host), int(epoch)): int(first)
            for host, epoch, first, _ in known[EPOCHS].itertuples(index=False)
        }
        self._since: dict[int, list[tuple[int, int]]] = {}  # host: (time, epoch), ascending
        for host, epoch, _, since in sorted(known[EPOCHS].itertuples(index=False)):
            if since:
                self._since.setdefault(int(host), []).append((int(since), int(epoch)))

    def raised(self, facts: Facts, path: str) -> Facts:
        """Return the facts of a file with its places in the order of time."""
        epoch = epoch_of(path)
        if epoch == 1 and self._since and _SHIPPED.search(path) is None:
            return self._raised_by_time(facts)
        if not 1 < epoch <= _EPOCHS_MAX or len(facts.host) == 0:
            return facts
        first = self._first.get((int(facts.host[0]), epoch))
        if first is None or first < 0:
            return facts
        is_new = (facts.place >= 0) & (facts.place & ARRIVAL_MAX >= first)
        raise_by = np.int64(epoch - 1) << np.int64(_RAISE_BITS)
        return facts._replace(place=np.where(is_new, facts.place + raise_by, facts.place))

    def _raised_by_time(self, facts: Facts) -> Facts:
        place = facts.place.copy()
        for host, begins in self._since.items():
            for since, epoch in begins:
                first = self._first.get((host, epoch), -1)
                is_new = (facts.host == host) & (facts.at_ms >= since) & (facts.place >= 0)
                is_new &= (facts.place & ARRIVAL_MAX >= first) & (first >= 0)
                raise_by = np.int64(min(epoch, _EPOCHS_MAX) - 1) << np.int64(_RAISE_BITS)
                place = np.where(is_new, facts.place + raise_by, place)
        return facts._replace(place=place)

    def of(self, facts: Facts, path: str) -> Array:
        """Return the epoch of each event."""
        epochs = np.full(len(facts.host), epoch_of(path), np.int64)
        if self._since and _SHIPPED.search(path) is None:
            for host, begins in self._since.items():
                for since, epoch in begins:
                    epochs[(facts.host == host) & (facts.at_ms >= since)] = epoch
        return epochs
