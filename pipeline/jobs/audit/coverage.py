"""Coverage: the stretches of each log that were read, and the missing ones (holes)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from pipeline.jobs.audit.facts import epoch_of_block
from pipeline.jobs.audit.settled import COVERED

Frame = Any
END = np.int64(1) << np.int64(62)  # of a log: behind any block, and any time

_MANY = 20  # stretches of a log without adjacent blocks


def cover(rows: Frame) -> tuple[Frame, set[int]]:
    """Return merged stretches, and the hosts with repeated blocks."""
    rows = rows[COVERED].sort_values(["host", "block_first", "block_last"], ignore_index=True)
    if len(rows) == 0:
        return rows, set()
    reached = rows.groupby("host").block_last.cummax()
    before = reached.groupby(rows.host).shift(fill_value=-(1 << 60))
    latest = rows.groupby("host").at_last.cummax().groupby(rows.host).shift(fill_value=-(1 << 60))
    is_later = rows.block_first > before  # and not a repetition
    rows["at_sum"] = np.maximum(rows.at_sum, (latest - rows.at_first).where(is_later, 0))
    begins = rows.block_first > before + 1
    merged = rows.groupby(begins.cumsum(), sort=False).agg(
        host=("host", "first"),
        block_first=("block_first", "min"),
        block_last=("block_last", "max"),
        at_first=("at_first", "min"),
        at_last=("at_last", "max"),
        count=("count", "sum"),
        at_sum=("at_sum", "max"),
    )
    merged = merged.reset_index(drop=True)
    expected = merged.block_last - merged.block_first + 1
    twice = set(merged[merged["count"] > expected].host)
    merged["count"] = np.minimum(merged["count"], expected)
    return merged, twice


def holes_of(covered: Frame) -> Frame:
    """Return the missing parts of each log: before, between and behind its stretches."""
    found = []
    for host, part in covered.groupby("host"):
        part = part.sort_values("block_first")
        # If a queue manager does not number blocks consecutively, holes are not visible.
        blocks = part["count"].sum()
        # Otherwise: a log with missing stretches has few large gaps, or as much was read as is
        # missing.
        epochs = part.groupby(epoch_of_block(part.block_first))
        span = (epochs.block_last.max() - epochs.block_first.min() + 1).sum()
        if len(part) > _MANY and len(part) * 10 > blocks * 9 and blocks * 4 < span:
            last = part.iloc[-1]
            found.append((host, last.block_last + 1, END, part.at_last.max(), END))
            continue
        before_block, before_at = 0, -END
        for row in part.itertuples():
            if row.block_first > before_block + 1:
                found.append((host, before_block + 1, row.block_first - 1, before_at, row.at_first))
            before_block, before_at = row.block_last, row.at_last
        found.append((host, before_block + 1, END, before_at, END))
    frame = pd.DataFrame(
        found, columns=["host", "block_first", "block_last", "at_first", "at_last"]
    )
    return frame.astype(np.int64)


def reason_of(hole: Any) -> str:
    """Return why messages are open of which this missing part of a log may know more."""
    if hole.block_last == END:
        return "late_log"
    return "log_begins_later" if hole.at_first == -END else "log_hole"


def complete_until(holes: Frame, inventories: Frame) -> Frame:
    """Let the end of each log begin when its newest inventory was taken.

    Otherwise a log whose host was idle afterwards would seem to end before the events that other
    hosts report some milliseconds later.
    """
    if len(holes) == 0 or len(inventories) == 0:
        return holes
    heads = inventories.drop_duplicates("host").set_index("host")
    is_end = (holes.block_last == END) & holes.host.isin(heads.index)
    for at in holes.index[is_end]:
        head = heads.loc[holes.host[at]]
        if holes.block_first[at] > head.block:  # all of the log up to the inventory was read
            holes.loc[at, "at_first"] = max(int(holes.at_first[at]), int(head.taken_at_ms))
    return holes
