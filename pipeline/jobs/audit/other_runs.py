"""Runs of a queue manager that other logs name, and that its own log lacks.

Two copies of a queue manager, such as a cloned machine and its original, have one GUID, and the log
of each has its own events only.  A queue manager logs each of its starts with the *run* that
begins, and an event `met` when it speaks with another run than before of its peer.  So the audit
knows which run has acknowledged or sent a message.  If the log of that run is missing, nothing is
decided about the message.  docs/decisions/0083

The log of a run is missing in two cases:

    the run began elsewhere   no start in the log has it, and no unread part of the log may have it
    the run went on elsewhere the log has its start, and a later start before the event
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from pipeline.events import hash_of
from pipeline.jobs.audit.clock_spans import UNSURE_MS
from pipeline.jobs.audit.coverage import END
from pipeline.jobs.audit.facts import Role
from pipeline.jobs.audit.other_histories import ELSEWHERE

if TYPE_CHECKING:
    from pipeline.engines.engine import Engine
    from pipeline.jobs.audit.clock_spans import Spans
    from pipeline.jobs.audit.survey import Survey

Frame = Any
Array = Any

#: The reason why a message is open.
OTHER_COPY = "other_copy"

#: Between two events of its log, `host` spoke with `run` of `peer`: from event `index_first` of
#: block `block_first` on, and before event `index_last` of block `block_last`.  That run was
#: another copy from `at_low` on at the earliest, and from `at_high` on for sure, by its clock.
#: Events from `at_from` on are read.
SPOKEN = pa.schema(
    [(name, pa.int64()) for name in
     ("host", "peer", "run", "block_first", "index_first", "block_last", "index_last",
      "at_from", "at_low", "at_high")]
)  # fmt: skip
_SPOKE = """(f.block > s.block_first OR f.block = s.block_first AND f.index >= s.index_first)
  AND (f.block < s.block_last OR f.block = s.block_last AND f.index < s.index_last)
  AND f.at_ms >= s.at_from"""

#: Events of one queue manager about the acts of another one.
_ABOUT_PEERS = (Role.ACCEPTED, Role.RELAYED, Role.ORDER_ACKED, Role.SESSION_ACKED, Role.PASSED,
                Role.REFUSED, Role.DEAD_LATER, Role.ENDED)  # fmt: skip
_EVENTS = f"""
SELECT f.source, f.number, f.role, f.host, f.peer, f.at_ms, s.run, s.at_low, s.at_high
FROM facts f JOIN spoken s ON f.host = s.host AND f.peer = s.peer
WHERE {_SPOKE}
  AND f.role IN ({", ".join(str(int(role)) for role in _ABOUT_PEERS)})
"""  # nosec B608: constants
#: Of each message: how often one run brought it, from how many runs it was accepted, and by which
#: hosts.  Runs with a log, and those without a name, count as one for each of these hosts.
_ACCEPTED = f"""
SELECT source, number, max(times) AS times, count(*) AS runs,
  min(first_host) AS first_host, max(last_host) AS last_host FROM (
  SELECT f.source, f.number, coalesce(s.run, f.host) AS run, count(*) AS times,
    min(f.host) AS first_host, max(f.host) AS last_host
  FROM facts f LEFT JOIN spoken s ON f.host = s.host AND f.peer = s.peer
    AND {_SPOKE}
  WHERE f.role = {int(Role.ACCEPTED)} GROUP BY f.source, f.number, coalesce(s.run, f.host)) each
GROUP BY source, number HAVING sum(times) > 1
"""  # nosec B608

#: Candidates that the log of another copy cannot explain: one log alone shows them.
_OF_ONE_LOG = ("ended_twice", "received_unstored", "imported_twice", "vanished", "rolled_back",
               "pending")  # fmt: skip
_RUN = re.compile(r"([0-9a-f-]{36}), run ([0-9]{1,18}) [0-9a-f]{16}")


class Evidence(NamedTuple):
    """Evidence of other logs about runs without a log."""

    spoken: Frame  # of SPOKEN
    events: Frame  # about messages, while hosts spoke with these runs
    accepted: Frame  # messages that were accepted more than once
    unlogged: set[int]  # queue managers without a log of which several runs were met
    met: Any  # which host has met which queue manager
    elsewhere: Frame  # other_histories.ELSEWHERE: when runs were met that began elsewhere


def evidence(engine: Engine, found: Survey, spans: Spans) -> Evidence | None:
    """Return the evidence in table `facts`; None if no run can be that of another copy."""
    met = _met(found, spans)
    rows = spoken(found, met, spans)
    if len(rows) == 0:
        return None
    engine.put("spoken", pa.Table.from_pandas(rows.astype(np.int64), SPOKEN, preserve_index=False))
    events = engine.query(_EVENTS).to_pandas().astype(np.int64)
    accepted = engine.query(_ACCEPTED).to_pandas().astype(np.int64)
    unlogged = set(rows.peer.tolist()) - found.hosts.keys()
    pairs = pd.MultiIndex.from_frame(met[["host", "peer"]].drop_duplicates())
    began = rows[rows.at_high == -END]
    elsewhere = met[met.run.isin(began.run)][["peer", "low", "high"]].set_axis(ELSEWHERE, axis=1)
    return Evidence(rows, events, accepted, unlogged, pairs, elsewhere)


def leave_open(
    rows: Frame, why: Array, shown: Evidence | None, copied: Collection[int], in_both: Array
) -> None:
    """Enter into `why` the candidates that the log of another copy may explain.

    `copied` are the hosts with the logs of several copies, which nothing keeps apart.  `in_both`
    are the candidates that one of the logs of both copies would explain.
    """
    if shown is not None:  # a copy of which no log is there
        elsewhere = shown.spoken.peer[shown.spoken.at_high == -END]
        in_both = in_both & ~rows.covering.isin(list(elsewhere)).to_numpy(bool)
    for name in ("covering", "too_covering", "source", "host"):
        chosen = rows[name].isin(list(copied)).to_numpy(bool) & (why == "") & ~in_both
        chosen &= (rows.kind != "pending").to_numpy()
        why[chosen] = OTHER_COPY
        rows.loc[chosen, "covering"] = rows[name][chosen].astype("Int64")
    if shown is None or len(rows) == 0:
        return
    sure = _of_other_copies(shown)
    events = shown.events[shown.events.at_ms >= shown.events.at_low]
    events = events[_index(events, _RUN_OF).isin(sure)]
    copy_of = events.groupby(["source", "number"]).peer.max().astype("Int64")
    ids = pd.MultiIndex.from_arrays(
        [rows.source.fillna(0).astype(np.int64), rows.number.fillna(0).astype(np.int64)]
    )
    peer = pd.Series(copy_of.reindex(ids).array, rows.index, "Int64")
    # One that is not acknowledged may have been handed to the other copy, and one that is not known
    # may have come to it.
    spoken = shown.spoken[_index(shown.spoken, _RUN_OF).isin(sure)]
    is_missing = rows.kind.isin(["lost", "gap"]).to_numpy()
    for at in np.flatnonzero(is_missing & peer.isna().to_numpy()):
        row = rows.loc[at]
        receiver = row.covering if row.kind == "lost" else row.too_covering
        some = (spoken.host == row.source) & (spoken.peer == receiver)
        some &= (spoken.block_last >= row.sent_block) | (row.kind == "gap")
        if pd.notna(receiver) and some.any():
            peer[at] = receiver
    peer = peer.fillna(_without_runs(rows, shown, set(sure.get_level_values("peer"))))
    twice = _at_several_hosts(shown)
    repeated = shown.accepted[shown.accepted.times > 1]
    is_unclear = (rows.kind == "duplicated").to_numpy() & ids.isin(twice.index)
    peer = peer.where(~is_unclear, pd.Series(twice.reindex(ids).array, rows.index, "Int64"))
    repeated = ids.isin(pd.MultiIndex.from_frame(repeated[["source", "number"]]))
    proved = rows.kind.isin(_OF_ONE_LOG).to_numpy()
    proved |= repeated & (rows.kind == "duplicated").to_numpy()
    chosen = peer.notna().to_numpy() & ~proved & ~in_both & (why == "")
    why[chosen] = OTHER_COPY
    rows.loc[chosen, "covering"] = peer[chosen]


_RUN_OF = ["host", "peer", "run"]


def _index(frame: Frame, columns: list[str]) -> Any:
    return pd.MultiIndex.from_frame(frame[columns])


def _without_runs(rows: Frame, shown: Evidence, copied: set[int]) -> Frame:
    """Return the queue manager of `copied` that each candidate is about, if no run is known.

    A host that does not run qmd logs no runs, and one behind a relay meets that relay alone.
    """
    found = pd.Series(pd.NA, rows.index, "Int64")
    for host, peer in (("source", "covering"), ("host", "source")):
        pairs = pd.MultiIndex.from_arrays([rows[name].fillna(0).astype(np.int64)
                                           for name in (host, peer)])  # fmt: skip
        is_one = rows[peer].isin(list(copied)).to_numpy(bool) & ~pairs.isin(shown.met)
        found = found.mask(is_one, rows[peer])
    return found


def _at_several_hosts(shown: Evidence) -> Frame:
    """Return the sources of messages that several hosts have accepted, each from another run.

    Two copies give the same number to different messages, and here no log of the source shows it.
    """
    some = shown.accepted[shown.accepted.source.isin(list(shown.unlogged))]
    some = some[(some.runs > 1) & (some.first_host < some.last_host)]
    return some.assign(peer=some.source).set_index(["source", "number"]).peer.astype("Int64")


def _of_other_copies(shown: Evidence) -> Any:
    """Return which runs at which hosts are those of other copies for sure: not just by a clock."""
    sure = shown.events[shown.events.at_ms >= shown.events.at_high]
    began = shown.spoken[shown.spoken.at_high == -END]
    return _index(pd.concat([sure[_RUN_OF], began[_RUN_OF]]), _RUN_OF)


def _met(found: Survey, spans: Spans) -> Frame:
    """Return the runs that hosts have met, with their names and times."""
    met = with_names(found.met, found.names)
    return with_times(met[met.number >= 0], spans)


def spoken(found: Survey, met: Frame, spans: Spans) -> Frame:
    """Return with which runs hosts spoke that may be those of another copy, as `SPOKEN`."""
    starts = with_names(found.starts, found.names)
    rows = []
    for (peer, run), part in met.groupby(["peer", "run"]):
        of_peer, met_of_peer = starts[starts.host == peer], met[met.peer == peer]
        began = of_peer[of_peer.run == run]
        if peer not in found.hosts:
            if met_of_peer.run.nunique() == 1:
                continue
            ends = [*_met_later(part, met_of_peer), (int(peer), int(END))]
        elif len(began):
            later = of_peer[of_peer.block > began.block.min()]
            later = later[later.block == later.block.min()]
            ends = [(int(peer), int(at_ms)) for at_ms in later.at_ms]
        elif _is_elsewhere(part, met_of_peer, of_peer, found.holes[found.holes.host == peer]):
            ends = [(int(peer), -int(END))]
        else:
            ends = []
        for each in part.itertuples() if ends else ():
            times = [by_clock_of(int(each.host), *end, spans) for end in ends]
            last = _until(each, met, starts, found.covered)
            low, high = (min(bound) for bound in zip(*times, strict=True))
            since = low if peer in found.hosts else -END
            rows.append((each.host, peer, run, each.block, each.index, *last, since, low, high))
    return pd.DataFrame(rows, columns=SPOKEN.names).astype(np.int64)


def with_names(rows: Frame, names: dict[int, str]) -> Frame:
    """Add `peer` and `count`: the queue manager of each run, and its number of starts; or -1."""
    matched = [_RUN.fullmatch(names.get(int(run), "")) for run in rows.run]
    return rows.assign(
        peer=np.array([hash_of(each[1]) if each else -1 for each in matched], np.int64),
        number=np.array([int(each[2]) if each else -1 for each in matched], np.int64),
    )


def with_times(met: Frame, spans: Spans) -> Frame:
    """Add `low` and `high`: between which times of its own clock each run was met."""
    at = met.at_ms.to_numpy(np.float64)
    low, high = at.copy(), at.copy()
    for peer in met.peer.unique():
        which = np.flatnonzero(met.peer == peer)
        least, most = spans.of(met.host.iloc[which], int(peer), at[which], at[which])
        low[which] += least - UNSURE_MS
        high[which] += most + UNSURE_MS
    return met.assign(low=low, high=high)


def _is_elsewhere(run: Frame, met: Frame, starts: Frame, holes: Frame) -> bool:
    """Return whether a run that no start names cannot have begun in an unread part of the log."""
    inside = parts_with_start(run, met, starts, holes)
    return inside is not None and len(inside) == 0


def parts_with_start(run: Frame, met: Frame, starts: Frame, holes: Frame) -> Frame | None:
    """Return the `holes` of a log in which a run that no start names may have begun.

    `met` are all rows about runs of that queue manager, `run` those of this run, `starts` and
    `holes` those of its log.  None: it may have begun with a start that an earlier release logged.
    """
    number = int(run.number.iloc[0])
    if (starts.number == number).any():
        return holes[:0]  # this log had another run under that number
    if (met.high[met.number > number] < run.low.max()).any():
        return holes[:0]  # a later run was met before: both were there at one time
    begin = starts.block[(starts.number >= 0) & (starts.number < number)].max()
    end = starts.block[starts.number > number].min()
    begin, end = (-1 if pd.isna(begin) else begin), (END if pd.isna(end) else end)
    unnamed = starts[starts.number < 0]  # of an earlier release
    if unnamed.block.between(begin, end).any():
        return None
    since = met.low[met.number < number].max()  # an earlier run was still there
    inside = (holes.block_last > begin) & (holes.block_first < end)
    inside &= holes.at_first <= run.high.min()
    if not pd.isna(since):
        inside &= holes.at_last >= since
    return holes[inside]


def _met_later(run: Frame, met: Frame) -> list[tuple[int, int]]:
    """Return when hosts met other runs, by their clocks: after `run`, and begun after it.

    Without a log of the queue manager nothing else shows when a run ended.
    """
    others = met[(met.number >= run.number.iloc[0]) & (met.run != run.run.iloc[0])]
    first = others.groupby("run").low.transform("min")
    others = others[first > run.high.min()]
    return list(zip(others.host.tolist(), others.at_ms.tolist(), strict=True))


def by_clock_of(host: int, peer: int, at_ms: int, spans: Spans) -> tuple[int, int]:
    """Return between which times of the clock of `host` that of `peer` showed `at_ms`."""
    if abs(at_ms) == END:
        return at_ms, at_ms
    at = np.array([at_ms], np.float64)
    least, most = spans.of(pd.Series([peer]), host, at, at)
    return int(at_ms + least[0] - UNSURE_MS), int(at_ms + most[0] + UNSURE_MS)


def _until(one: Any, met: Frame, starts: Frame, covered: Frame) -> tuple[int, int]:
    """Return the block, and the event in it, before which a host speaks with a run it has met.

    It ends with the next run of that peer, with a start of the host, or with the read part of its
    log.
    """
    read = covered[(covered.host == one.host) & (covered.block_first <= one.block)]
    ends = [(int(each), int(END)) for each in read.block_last[read.block_last >= one.block]]
    others = met[(met.peer == one.peer) & (met.host == one.host)]
    places = [*others[["block", "index"]].itertuples(index=False, name=None)]
    places += [(block, 0) for block in starts.block[starts.host == one.host]]
    ends += [place for place in places if place > (one.block, one.index)]
    return min(ends)
