"""Runs of queue managers that an unread part of a log may name.

The log of one copy of a cloned host seems to be all of it, as long as no other log shows a second
run of that host (`other_runs.py`).  The event `met` that shows it may be in a part of a log that is
not there yet.  So what a host says of another one is proved only if it is known with which run it
spoke, and where the log of that run is.  An unread part of a log hides that

    in the log of the host itself   between the last event `met`, or start, and the event
    in the log of the other one     if it may have the start of that run, or the next start
    in the logs of third hosts      if the host has met no run: only those may have met a copy

A message is proved nevertheless if the log of its receiver has a later one of its sequence: a queue
manager refuses a message that does not follow the last one that it knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from pipeline.jobs.audit import coverage, other_runs
from pipeline.jobs.audit.coverage import reason_of
from pipeline.jobs.audit.facts import HALF, Role
from pipeline.jobs.audit.fingerprints import RowKind
from pipeline.jobs.audit.other_runs import by_clock_of, with_names, with_times

if TYPE_CHECKING:
    from pipeline.engines.engine import Engine
    from pipeline.jobs.audit.clock_spans import Spans
    from pipeline.jobs.audit.survey import Survey

Frame = Any

#: Candidates about the acts of a receiver, and those about the acts of a source.
_OF_ACKNOWLEDGER = ("acked_not_stored",)
_ON_THE_WAY = ("lost", "gap")
_OF_SOURCE = ("never_sent", "duplicated", "reordered", "wrong_number", "other_size", "other_queue",
              "delivered_and_dead")  # fmt: skip
#: Kinds that `decisions` turns into one of these, or drops.
_BEFORE = ("accepted_again", "express_again")
_ACKS = (Role.ORDER_ACKED, Role.SESSION_ACKED, Role.PASSED)
_CAME = (Role.ACCEPTED, Role.RELAYED)
_IDS = pa.schema([("source", pa.int64()), ("number", pa.int64())])
_EVENTS = f"""
SELECT f.source, f.number, f.role, f.host, f.peer, f.block, f.index, f.at_ms
FROM facts f JOIN asked_messages a ON f.source = a.source AND f.number = a.number
WHERE f.index >= 0 AND f.role IN ({", ".join(str(int(role)) for role in (*_ACKS, *_CAME))})
"""  # nosec B608: constants
_END = int(coverage.END)
_COLUMNS = ["source", "number", "role", "host", "peer", "block", "index", "at_ms"]


class Doubt(NamedTuple):
    """Why a run is not known: the reason, and the host of the log; and where the span began."""

    why: str
    covering: int
    span: tuple[int, ...]


class Events(NamedTuple):
    """The events of candidates about the acts of other hosts, and who names its runs."""

    events: Frame  # _COLUMNS
    named: dict[int, bool]  # hosts that name their runs, and those that do not, as far as known


def events(engine: Engine, rows: Frame, found: Survey) -> Events | None:
    """Return the events about the messages of `rows`; None if no host names its runs."""
    named = _named(found)
    if all(named.get(host) is False for host in found.hosts):
        return None
    some = rows[rows.kind.isin((*_OF_ACKNOWLEDGER, *_OF_SOURCE, *_BEFORE)) & rows.number.notna()]
    if len(some) == 0:
        return Events(pd.DataFrame(columns=_COLUMNS).astype(np.int64), named)
    ids = some[["source", "number"]].astype(np.int64).drop_duplicates()
    engine.put("asked_messages", pa.Table.from_pandas(ids, _IDS, preserve_index=False))
    return Events(engine.query(_EVENTS).to_pandas()[_COLUMNS].astype(np.int64), named)


def _named(found: Survey) -> dict[int, bool]:
    """Return which hosts name their runs in their logs, as far as these show it."""
    starts = with_names(found.starts, found.names)
    named = dict.fromkeys(found.starts.host.tolist(), False)
    met = with_names(found.met, found.names)
    shown = (*starts.host[starts.number >= 0], *met.host, *met.peer[met.number >= 0])
    return named | dict.fromkeys(map(int, shown), True)


def leave_open(rows: Frame, why: Any, about: Events | None, found: Survey, spans: Spans) -> None:
    """Enter into `why` the candidates that a run may explain which an unread part may name."""
    kinds = (*_OF_ACKNOWLEDGER, *_ON_THE_WAY, *_OF_SOURCE)
    at = np.flatnonzero(rows.kind.isin(kinds).to_numpy() & (why == ""))
    if about is None or len(at) == 0:
        return
    at = at[~_was_known(rows.iloc[at], found)]
    places = {place: part for place, part in about.events.groupby(["source", "number"])}
    runs = _Runs(found, about.named, spans)
    for position in at:
        row = rows.loc[position]
        doubt = _doubt(row, places, runs, found)
        if doubt is not None:
            why[position] = doubt.why
            rows.loc[position, "covering"] = doubt.covering


def _doubt(
    row: Any, places: dict[tuple[int, int], Frame], runs: _Runs, found: Survey
) -> Doubt | None:
    """Return why a candidate is not proved; None: it is."""
    if row.kind in _ON_THE_WAY:
        receiver = row.covering if row.kind == "lost" else row.too_covering
        if pd.isna(receiver) or pd.isna(row.sent_block):
            return None
        doubt = runs.of(int(row.source), int(receiver), int(row.sent_block), _END, int(row.sent_at))
        return doubt if doubt.why else None
    some = places.get((int(row.source), int(row.number)))
    if some is None:
        return None
    some = some[some.role.isin(_ACKS if row.kind in _OF_ACKNOWLEDGER else _CAME)]
    doubts = [
        runs.of(each.host, each.peer, each.block, each.index, each.at_ms)
        for each in some.itertuples()
    ]
    if row.kind == "duplicated" and _is_of_one_run(row, doubts, runs, found):
        return None
    return next((doubt for doubt in doubts if doubt.why), None)


def _is_of_one_run(row: Any, doubts: list[Doubt], runs: _Runs, found: Survey) -> bool:
    """Return whether one run has brought the message twice, whichever it was."""
    known = [doubt.span for doubt in doubts]
    s = found.segments
    s = s[(s.source == row.source) & (s.number_first <= row.number) & (s.number_last >= row.number)]
    for each in s.itertuples():  # an earlier run of the audit has settled the first one
        ends = {
            runs.of(each.host, each.source, block, index, at_ms).span
            for block, index, at_ms in ((each.block_first, 0, each.at_first),
                                        (each.block_last, _END, each.at_last))
        }  # fmt: skip
        known += ends if len(ends) == 1 else []
    return len(set(known)) < len(known)


def _was_known(rows: Frame, found: Survey) -> Any:
    """Return of which missing messages their receiver has a later one of the same sequence."""
    missing = rows.kind.isin((*_OF_ACKNOWLEDGER, *_ON_THE_WAY)) & (rows.stream >= 0)
    known = np.zeros(len(rows), bool)
    at = np.flatnonzero(missing.to_numpy(bool))
    if len(at) == 0:
        return known
    some = rows.iloc[at]
    receiver = some.covering.where(some.kind != "gap", some.too_covering).fillna(0)
    wanted = some[["source", "stream", "key"]].astype(np.int64)
    wanted = wanted.assign(at=at, host=receiver.to_numpy(np.int64),
                           sequence=wanted.key.to_numpy() >> HALF)  # fmt: skip
    came = found.runs[found.runs.what == RowKind.ACCEPTED]
    came = came.assign(sequence=came.key_first >> HALF)
    by = ["source", "stream", "host", "sequence"]
    later = wanted.merge(came[[*by, "key_first"]], on=by)
    known[later["at"][later.key_first > later.key].unique()] = True
    return known


class _Runs:
    """The runs with which hosts spoke, as far as all logs show them."""

    def __init__(self, found: Survey, named: dict[int, bool], spans: Spans) -> None:
        self._found, self._named, self._spans = found, named, spans
        self._starts = with_names(found.starts, found.names)
        met = with_names(found.met, found.names)
        self._met = with_times(met[met.number >= 0], spans)
        self._holes = {
            int(host): list(part.sort_values("block_first").itertuples())
            for host, part in found.holes.groupby("host")
        }
        self._begins: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        self._peers: dict[int, list[int]] = {}
        runs = found.runs[found.runs.what == RowKind.ACCEPTED]
        self._pairs = {*zip(runs.source.tolist(), runs.host.tolist(), strict=True)}
        self._pairs |= {*zip(self._met.host.tolist(), self._met.peer.tolist(), strict=True)}

    def of(self, host: int, peer: int, block: int, index: int, at_ms: int) -> Doubt:
        """Return the doubt about the run of `peer` in an event of `host`; its `why` may be ""."""
        begun = [each for each in self._spans_of(host, peer) if each[:2] <= (block, index)]
        begin, number, run = max(begun, default=(-1, 0, 0))
        hidden = [
            hole for hole in self._holes.get(host, ())
            if begin < hole.block_first and hole.block_last < block
        ]  # fmt: skip
        last = max((int(hole.block_last) for hole in hidden), default=-1)
        span = (host, peer, begin, number, last)
        names = self._named.get(host)
        if self._named.get(peer) is False or peer == host:
            return Doubt("", 0, span)
        if hidden and names is not False:
            return Doubt(reason_of(hidden[-1]), host, span)
        hole, covering = None, peer
        if run > 0:
            hole = self._hole_of_run(host, peer, run, at_ms)
        else:
            hole, covering = self._unread_third(host, peer, at_ms)
            if hole is None and covering:
                return Doubt("no_log", covering, span)
        return Doubt("" if hole is None else reason_of(hole), covering, span)

    def _spans_of(self, host: int, peer: int) -> list[tuple[int, int, int]]:
        """Return the starts of `host`, and the runs of `peer` that it met, as block, index, run."""
        if (host, peer) not in self._begins:
            met = self._met[(self._met.host == host) & (self._met.peer == peer)]
            starts = self._starts.block[self._starts.host == host]
            self._begins[host, peer] = [
                *((int(each.block), int(each.index), int(at) + 1)
                  for at, each in enumerate(met.itertuples())),
                *((int(block), 0, 0) for block in starts),
            ]  # fmt: skip
        return self._begins[host, peer]

    def _hole_of_run(self, host: int, peer: int, nth: int, at_ms: int) -> Any:
        """Return the unread part of the log of `peer` that may show that this run was another copy.

        `nth` is the position of the row, from 1, among those of the pair.
        """
        if peer not in self._found.hosts:
            return None
        met = self._met[(self._met.host == host) & (self._met.peer == peer)].iloc[nth - 1]
        of_peer = self._starts[self._starts.host == peer]
        began = of_peer[of_peer.run == met.run]
        holes = self._found.holes[self._found.holes.host == peer]
        if len(began) == 0:
            of_run = self._met[(self._met.peer == peer) & (self._met.run == met.run)]
            others = self._met[self._met.peer == peer]
            inside = other_runs.parts_with_start(of_run, others, of_peer, holes)
            return next(inside.itertuples(), None) if inside is not None else None
        block = int(began.block.min())
        later = of_peer[of_peer.block > block].sort_values("block")
        end = _END
        if len(later):
            if int(later.number.iloc[0]) == int(met.number) + 1:
                return None  # no start is missing between the two
            end = int(later.block.iloc[0])
        _, high = by_clock_of(peer, host, at_ms, self._spans)
        some = holes[(holes.block_first > block) & (holes.block_first < end)]
        return next(some[some.at_first <= high].itertuples(), None)

    def _unread_third(self, host: int, peer: int, at_ms: int) -> tuple[Any, int]:
        """Return the unread part of a third log, before this time, that may show a copy of `peer`.

        Without any log of a third host: None, and that host.
        """
        for third in self._thirds(peer):
            if third == host or self._named.get(third) is False:
                continue
            if third not in self._found.hosts:
                if self._named.get(third):
                    return None, third
                continue
            _, high = by_clock_of(third, host, at_ms, self._spans)
            for hole in self._holes.get(third, ()):
                if hole.at_first <= high:
                    return hole, third
        return None, 0

    def _thirds(self, peer: int) -> list[int]:
        """Return the hosts that have exchanged messages with `peer`."""
        if peer not in self._peers:
            some = {a if b == peer else b for a, b in self._pairs if peer in (a, b)}
            self._peers[peer] = sorted(some - {peer})
        return self._peers[peer]
