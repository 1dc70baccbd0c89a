"""Histories of a queue manager that none of its logs shows, as far as the logs of others show them.

If a snapshot of a disk, or a copy of a data folder, is put back, the log continues where the copy
was made.  What the queue manager did between the copy and its return was logged by the history that
is gone.  Its later log alone seems to be that of one that acknowledged messages and did not store
them, and that never sent what others stored.

Such a stretch ends with a start, and the log has nothing in it, but other hosts show the queue
manager at work: it writes its events within a second, and a loss of power costs some seconds of
commits, so one that worked a minute later had another log, or had nothing else to do.  One of these
shows which:

    a later message of the same sequence
        The queue manager has accepted it, or sent it.  So it knew the message, and lost it in this
        history.
    three messages, or one in each direction
        A fault loses messages, or invents them.
    a run that others met in the stretch
        A start is the first event of its run.
    another stream to the same queue
        The source began it without a start: the receiver did not know the last numbers any more.
    a start that names its run
        Such a release does not start on a folder without its last commits (decision 0028), but it
        does on a folder that was put back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pipeline.events import hash_of
from pipeline.jobs.audit.clock_spans import UNSURE_MS, Spans
from pipeline.jobs.audit.coverage import reason_of
from pipeline.jobs.audit.facts import HALF
from pipeline.jobs.audit.fingerprints import RowKind

Frame = Any
Array = Any

#: A start of `host` in `block` at `at_ms`, and the time of the event before it; -1: not known.
#: `run` is the hash of the run that began; that of "" if an earlier release has logged it.
STARTS = ["host", "block", "at_from", "at_ms", "run"]
#: `host` has met a run of another queue manager (`other_runs.py`): event `index` of `block`.
MET = ["host", "block", "index", "at_ms", "run"]
#: `host` worked elsewhere, between these times of its own clock (`other_runs.py`).
ELSEWHERE = ["host", "low", "high"]
#: The reason why a message is open.
OTHER_HISTORY = "other_history"

_MESSAGES = 3  # that show it at work
_NO_RUN = hash_of("")  # of a start that an earlier release has logged
_SILENT_MS = 60_000  # without any event: a queue manager that works is not silent for so long
#: Kinds of candidates that suppose that all of the log of `covering` is there, and the time at
#: which that host acted, by the clock of `clock_of`.
_ACTED = {"acked_not_stored": "ack_at", "never_sent": "accepted_at"}
#: The side of a stream on which the host acts, by the kind of the candidate.
_SIDE = {"acked_not_stored": RowKind.ACCEPTED, "never_sent": RowKind.SENT}


class Logs(NamedTuple):
    """The evidence of all logs about streams and hosts."""

    starts: Frame  # STARTS
    runs: Frame  # of numbers, on both sides of each stream (`survey.RUN_COLUMNS`)
    holes: Frame  # missing parts: host, blocks, times


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
    rows: Frame, why: Array, logs: Logs, spans: Spans, elsewhere: Frame | None = None
) -> None:
    """Enter into `why` the candidates that another history of their host may explain.

    `elsewhere` has the columns `ELSEWHERE`.
    """
    acts = np.flatnonzero(rows.kind.isin(list(_ACTED)).to_numpy() & (why == ""))
    acts = acts[rows.covering.iloc[acts].notna().to_numpy()]
    acts = acts[~_was_known(rows.iloc[acts], logs.runs)]
    starts = logs.starts[logs.starts.at_from >= 0]
    starts = starts[starts.at_ms - starts.at_from > _SILENT_MS]
    for host, part in rows.iloc[acts].groupby("covering"):
        silent = starts[starts.host == host]
        if len(silent) == 0:
            continue
        low, high = _times(part, int(host), spans)
        met = None if elsewhere is None else elsewhere[elsewhere.host == host]
        at = part.index.to_numpy()
        for start in silent.itertuples():
            begin, end = start.at_from, start.at_ms
            is_in = (high >= begin) & (low <= end)
            if not is_in.any():
                continue
            is_at_work = ((low > begin + _SILENT_MS) & (high < end)).any()
            is_met = met is not None and ((met.low > begin) & (met.high < end)).any()
            some = part[is_in]
            are_many = len(some) >= _MESSAGES
            if start.run != _NO_RUN:
                is_other = is_at_work or not are_many
            else:
                is_other = is_at_work and (
                    are_many or some.kind.nunique() == len(_ACTED) or _began_anew(some, logs)
                )
            if is_met or is_other:
                why[at[is_in]] = OTHER_HISTORY
                continue
            # The log of another host may show more work in this stretch.
            for reason, absent in _absent(int(host), begin, end, logs, spans):
                why[at[is_in]] = reason
                rows.loc[at[is_in], "covering"] = absent


def acted_before(rows: Frame, until: Mapping[int, int], spans: Spans) -> Array:
    """Return which candidates are about acts of a host before the time `until` of its clock.

    No other host of them is in `until`.
    """
    found = np.zeros(len(rows), bool)
    acts = rows.kind.isin(list(_ACTED)) & rows.covering.isin(list(until))
    for host, part in rows[acts].groupby("covering"):
        _, high = _times(part, int(host), spans)
        others = part[["source", "host"]].mask(part[["source", "host"]].eq(host).fillna(False))
        found[part.index] = (high < until[host]) & ~others.isin(list(until)).any(axis=1)
    return found


def _began_anew(rows: Frame, logs: Logs) -> bool:
    """Return whether a source continued in another stream without a start of its own."""
    sent = logs.runs[logs.runs.what == RowKind.SENT]
    for row in rows[(rows.kind == "acked_not_stored") & (rows.stream >= 0)].itertuples():
        later = sent[(sent.source == row.source) & (sent.queue == row.sent_queue)]
        later = later[(later.stream != row.stream) & (later.at_first > row.ack_at)]
        if len(later) == 0:
            continue
        began = logs.starts[logs.starts.host == row.source].at_ms
        if not began.between(row.ack_at, later.at_first.min()).any():
            return True
    return False


def _absent(host: int, begin: int, end: int, logs: Logs, spans: Spans) -> list[tuple[str, int]]:
    """Return the reason and the host of a missing log that may show `host` at work.

    That is one of a host with which it has exchanged messages, between these times of `host`.
    """
    runs = logs.runs[logs.runs.what == RowKind.ACCEPTED]
    peers = {*runs.host[runs.source == host], *runs.source[runs.host == host]} - {host}
    holes = logs.holes[logs.holes.host.isin(list(peers))].sort_values(["host", "block_first"])
    if len(holes) == 0:
        return []
    both = np.array([begin, end], np.float64)
    for peer, part in holes.groupby("host"):
        least, most = spans.of(pd.Series([host, host]), int(peer), both, both)
        # Only one that is there for sure: every log ends some time after a start.
        inside = (part.at_first < end + least[1] - UNSURE_MS) & (part.at_last > begin + most[0])
        for hole in part[inside].itertuples():
            return [(reason_of(hole), int(peer))]
    return []


def _was_known(rows: Frame, runs: Frame) -> Array:
    """Return which candidates their host knew in the history that its log shows.

    It has accepted, or sent, a later message of the same sequence: a queue manager refuses a
    message that does not follow the last one that it knows, and it numbers those that it sends.
    """
    known = np.zeros(len(rows), bool)
    for kind, what in _SIDE.items():
        at = np.flatnonzero((rows.kind == kind).to_numpy() & (rows.stream >= 0).to_numpy(bool))
        if len(at) == 0:
            continue
        wanted = rows.iloc[at][["source", "stream", "covering", "key"]].astype(np.int64)
        sequence = wanted.key.to_numpy() >> HALF
        side = runs[runs.what == what]
        later = wanted.assign(at=at, sequence=sequence).merge(
            side.assign(sequence=side.key_first >> HALF, covering=side.host)[
                ["source", "stream", "covering", "sequence", "key_first"]
            ],
            on=["source", "stream", "covering", "sequence"],
        )
        known[later["at"][later.key_first > later.key].unique()] = True
    return known


def _times(part: Frame, host: int, spans: Spans) -> tuple[Array, Array]:
    """Return between which times of its own clock the host acted on each candidate."""
    acted = [row[_ACTED[row["kind"]]] for row in part.to_dict("records")]
    at = pd.array(acted, "Float64").fillna(np.nan).to_numpy(np.float64, na_value=np.nan)
    least, most = spans.of(part.clock_of, host, at, at)
    return at + least - UNSURE_MS, at + most + UNSURE_MS
