"""Histories of a queue manager that none of its logs shows, as far as the logs of others show them.

If a snapshot of a disk, or a copy of a data folder, is put back, the log continues where the copy
was made.  What the queue manager did between the copy and its return was logged by the history that
is gone.  Its later log alone seems to be that of one that acknowledged messages and did not store
them, and that never sent what others stored.

Such a stretch ends with a start, and the log has nothing in it, but other hosts show the queue
manager at work: it writes its events within a second, and a loss of power costs some seconds of
commits, so one that worked a minute later had another log.  One message is no evidence, because a
queue manager that has nothing else to do may lose it.  Three are, or one of each direction: a fault
loses messages, or invents them.  A run that others met in this stretch, and that the log does not
name, is evidence without any message: a start is the first event of its run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from pipeline.jobs.audit.clock_spans import UNSURE_MS, Spans

Frame = Any
Array = Any

#: A start of `host` in `block` at `at_ms`, and the time of the event before it; -1: not known.
#: `run` is the hash of the run that began; that of "" if an earlier release has logged it.
STARTS = ["host", "block", "at_from", "at_ms", "run"]
#: `host` has met a run of another queue manager (`other_runs.py`).
MET = ["host", "block", "at_ms", "run"]
#: `host` worked elsewhere, between these times of its own clock (`other_runs.py`).
ELSEWHERE = ["host", "low", "high"]
#: The reason why a message is open.
OTHER_HISTORY = "other_history"

_SILENT_MS = 60_000  # without any event: a queue manager that works is not silent for so long
_MESSAGES = 3  # that show it at work
#: Kinds of candidates that suppose that all of the log of `covering` is there, and the time at
#: which that host acted, by the clock of `clock_of`.
_ACTED = {"acked_not_stored": "ack_at", "never_sent": "accepted_at"}


def starts(known: Frame, new: Frame, covered: Frame) -> Frame:
    """Return `STARTS` of earlier runs and of these files, each once.

    `covered` are the stretches of both, before they are merged: one of them ends before a start
    with which a file begins.
    """
    both = pd.concat([known, new]).astype(np.int64)
    both = both.groupby(["host", "block", "at_ms", "run"], as_index=False).at_from.max()[STARTS]
    ends = covered.assign(block=covered.block_last + 1).groupby(["host", "block"]).at_last.max()
    places = pd.MultiIndex.from_frame(both[["host", "block"]])
    before = ends.reindex(places).fillna(-1).to_numpy(np.int64)
    return both.assign(at_from=np.where(both.at_from < 0, before, both.at_from))


def leave_open(
    rows: Frame, why: Array, starts: Frame, spans: Spans, elsewhere: Frame | None = None
) -> None:
    """Enter into `why` the candidates that another history of their host may explain.

    `starts` are all known ones, as `STARTS`; `elsewhere` has the columns `ELSEWHERE`.
    """
    acts = np.flatnonzero(rows.kind.isin(list(_ACTED)).to_numpy() & (why == ""))
    acts = acts[rows.covering.iloc[acts].notna().to_numpy()]
    for host, part in rows.iloc[acts].groupby("covering"):
        silent = starts[(starts.host == host) & (starts.at_from >= 0)]
        silent = silent[silent.at_ms - silent.at_from > _SILENT_MS]
        if len(silent) == 0:
            continue
        low, high = _times(part, int(host), spans)
        met = None if elsewhere is None else elsewhere[elsewhere.host == host]
        at = part.index.to_numpy()
        for begin, end in silent[["at_from", "at_ms"]].itertuples(index=False):
            is_in = (high >= begin) & (low <= end)
            is_at_work = (low > begin + _SILENT_MS) & (high < end)
            is_met = met is not None and ((met.low > begin) & (met.high < end)).any()
            is_both = part.kind[is_in].nunique() == len(_ACTED)
            if is_met or (is_at_work.any() and (is_both or is_in.sum() >= _MESSAGES)):
                why[at[is_in]] = OTHER_HISTORY


def _times(part: Frame, host: int, spans: Spans) -> tuple[Array, Array]:
    """Return between which times of its own clock the host acted on each candidate."""
    acted = [row[_ACTED[row["kind"]]] for row in part.to_dict("records")]
    at = pd.array(acted, "Float64").fillna(np.nan).to_numpy(np.float64, na_value=np.nan)
    least, most = spans.of(part.clock_of, host, at, at)
    return at + least - UNSURE_MS, at + most + UNSURE_MS
