"""Epochs of logs: a queue manager that was restored from a backup numbers its events again.

`qmd ship` writes the events after a restored backup to files of another epoch (`-e2-` in the name).
The audit orders messages by their arrival numbers, so numbers that an epoch assigns are raised
above those of earlier epochs.  Numbers of messages that arrived before the backup was made are
lower than all that the epoch assigns, and stay as they are.

Other files do not name an epoch: their content shows at which time each began (`histories.py`).
Nor do the files of the first epoch, if a queue manager has shipped to several targets.
Their blocks are raised too, so that a block of one history does not seem to be a part of another
one that is missing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from pipeline.events import LogFile, Unreadable, hash_of, read_piece
from pipeline.jobs.audit.facts import ARRIVAL_MAX, BLOCK_BITS, RAW_BLOCK, Facts, coded, is_local
from pipeline.jobs.audit.findings import KINDS

if TYPE_CHECKING:
    from pipeline.jobs.audit.labels import Labels

Frame = Any
Array = Any

#: The lowest arrival number that a host assigned in an epoch above 1 (-1: none so far); and the
#: time at which an epoch begins that file names do not show, else 0.
EPOCHS = ["host", "epoch", "first", "since"]
_RAISE_BITS = 40  # of 44: an epoch may assign a billion numbers
EPOCHS_MAX = 16
_NAME = re.compile(r"([0-9a-f-]{36})-e(\d+)-\d+-\d+\.parquet$")
#: Kinds of events that assign an arrival number: 1: in a queue of the host; 2: always.
_ASSIGNING = {"accepted": 1, "sent": 1, "imported": 1, "journaled": 2, "dead_lettered": 2}
_COLUMNS = ("kind", "queue", "lookup_id")
_SHIPPED = re.compile(r"([0-9a-f-]{36})(-e\d+)?-(\d{16})-(\d{16})\.parquet$")


def epoch_of(path: str) -> int:
    """Return the epoch of a shipped file; 1 for all other files."""
    found = _NAME.search(path)
    return int(found[2]) if found else 1


def learned(files: Sequence[LogFile], known: Frame) -> Frame:
    """Return `EPOCHS` with those that the names of `files` show and that are not known."""
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
    new = pd.DataFrame(rows, columns=EPOCHS)
    both = pd.concat([before, new.astype(np.int64)], ignore_index=True).astype(np.int64)
    return both.groupby(["host", "epoch"], as_index=False)[["first", "since"]].max()[EPOCHS]


def is_exported(path: str) -> bool:
    """Return whether a file may be of any epoch: `qmd ship` has not named it."""
    return _SHIPPED.search(path) is None


def blocks_of_first_epoch(path: str) -> tuple[str, int, int] | None:
    """Return the queue manager, the first and the last block of a shipped file without an epoch."""
    found = _SHIPPED.search(path)
    return None if found is None or found[2] else (found[1], int(found[3]), int(found[4]))


def assigned(table: Any) -> Array:
    """Return the arrival number that each event of a table assigns; -1: none."""
    how = coded(table.column("kind"), _ASSIGNING, 0)
    place = table.column("lookup_id").fill_null(-1).to_numpy().astype(np.int64)
    is_assigning = (how == 2) | ((how == 1) & is_local(table.column("queue")))
    return np.where(is_assigning & (place >= 0), place & ARRIVAL_MAX, -1)


def _lowest(path: str) -> int:
    lowest = -1
    try:
        for table in read_piece((path, 0, -1), _COLUMNS):
            arrival = assigned(table)
            if (arrival >= 0).any():
                least = int(arrival[arrival >= 0].min())
                lowest = least if lowest < 0 else min(lowest, least)
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
        if epoch == 1 and self._since:
            return self._raised_by_time(facts)
        if not 1 < epoch <= EPOCHS_MAX or len(facts.host) == 0:
            return facts
        first = self._first.get((int(facts.host[0]), epoch))
        if first is None or first < 0:
            return facts
        is_new = (facts.place >= 0) & (facts.place & ARRIVAL_MAX >= first)
        raise_by = np.int64(epoch - 1) << np.int64(_RAISE_BITS)
        return facts._replace(place=np.where(is_new, facts.place + raise_by, facts.place))

    def _raised_by_time(self, facts: Facts) -> Facts:
        """Raise places and blocks by the epoch in which each event was logged."""
        place, block = facts.place.copy(), facts.block.copy()
        for host, begins in self._since.items():
            of_host = facts.host == host
            for since, epoch in begins:  # a later one replaces the one before
                is_in = of_host & (facts.at_ms >= since)
                first = self._first.get((host, epoch), -1)
                is_new = is_in & (facts.place >= 0) & (facts.place & ARRIVAL_MAX >= first)
                is_new &= first >= 0
                up = np.int64(epoch - 1)
                place = np.where(is_new, facts.place + (up << np.int64(_RAISE_BITS)), place)
                is_in &= facts.block <= RAW_BLOCK
                block = np.where(is_in, facts.block + (up << np.int64(BLOCK_BITS)), block)
        return facts._replace(place=place, block=block)

    def of(self, facts: Facts, path: str) -> Array:
        """Return the epoch of each event."""
        epochs = np.full(len(facts.host), epoch_of(path), np.int64)
        if self._since and epoch_of(path) == 1:
            for host, begins in self._since.items():
                for since, epoch in begins:
                    epochs[(facts.host == host) & (facts.at_ms >= since)] = epoch
        return epochs
