"""Epochs of logs: a queue manager that was restored from a backup assigns arrival numbers again.

`qmd ship` writes the events after a restored backup to files of another epoch (`-e2-` in the name).
The audit orders messages by their arrival numbers, so numbers that an epoch assigns are raised
above those of earlier epochs.  Numbers of messages that arrived before the backup was made are
lower than all that the epoch assigns, and stay as they are.
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

if TYPE_CHECKING:
    from pipeline.jobs.audit.labels import Labels

Frame = Any

#: The lowest arrival number that a host assigned in an epoch above 1; -1: none so far.
EPOCHS = ["host", "epoch", "first"]
_RAISE_BITS = 40  # of 44: an epoch may assign a billion numbers
_EPOCHS_MAX = 16
_NAME = re.compile(r"([0-9a-f-]{36})-e(\d+)-\d+-\d+\.parquet$")
_ASSIGNING = ("accepted", "sent", "imported", "journaled", "dead_lettered")
_COLUMNS = ("kind", "queue", "lookup_id")


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
    new = pd.DataFrame([(*key, value) for key, value in first.items()], columns=EPOCHS)
    both = pd.concat([before, new.astype(np.int64)], ignore_index=True).astype(np.int64)
    return both.groupby(["host", "epoch"], as_index=False)["first"].max()[EPOCHS]


def _lowest(path: str) -> int:
    lowest = -1
    try:
        for table in read_piece((path, 0, -1), _COLUMNS):
            for row in table.to_pylist():
                if row["kind"] in _ASSIGNING and row["lookup_id"] is not None and (
                    "=" not in row["queue"] or row["kind"] in _ASSIGNING[3:]
                ):  # fmt: skip
                    arrival = row["lookup_id"] & ARRIVAL_MAX
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
            for host, epoch, first in known[EPOCHS].itertuples(index=False)
        }

    def raised(self, facts: Facts, path: str) -> Facts:
        """Return the facts of a file with its places in the order of time."""
        epoch = epoch_of(path)
        if not 1 < epoch <= _EPOCHS_MAX or len(facts.host) == 0:
            return facts
        first = self._first.get((int(facts.host[0]), epoch))
        if first is None or first < 0:
            return facts
        is_new = (facts.place >= 0) & (facts.place & ARRIVAL_MAX >= first)
        raise_by = np.int64(epoch - 1) << np.int64(_RAISE_BITS)
        return facts._replace(place=np.where(is_new, facts.place + raise_by, facts.place))
