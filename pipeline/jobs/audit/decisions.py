"""Decisions: which candidates the logs that were read prove, and which stay open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from pipeline.jobs.audit import other_histories, other_runs, presence, unread_runs
from pipeline.jobs.audit.clock_spans import UNSURE_MS, Spans
from pipeline.jobs.audit.coverage import reason_of
from pipeline.jobs.audit.facts import Role
from pipeline.jobs.audit.fingerprints import RowKind
from pipeline.jobs.audit.labels import Labels
from pipeline.jobs.audit.settled import Numbers, position_of
from pipeline.jobs.audit.survey import EarlierState, Survey

Frame = Any


def decided(
    rows: Frame,
    found: Survey,
    spans: Spans,
    labels: Labels,
    known: EarlierState,
    copied: Mapping[int, int],
    shown: other_runs.Evidence | None = None,
    about: unread_runs.Events | None = None,
) -> tuple[Frame, Any]:
    """Return the candidates, and for each the reason why it is open: "" if it is proved.

    `known` is the state after earlier audits, `copied` are the hosts with the logs of
    several copies, and until when both are there, `shown` is the evidence of runs without a log,
    `about` are the events of the candidates.
    """
    plain = ((rows.covering == 0) & (rows.stream < 0)).fillna(False).astype(bool)
    if plain.any():
        rows.loc[plain, "covering"] = [
            labels.taker(int(row.source), int(row.sent_queue), row.acked_by)
            for row in rows[plain].itertuples()
        ]
    _require_log_of_acknowledger(rows, labels)
    why = _undecided(rows, found, spans)
    too = _undecided(rows, found, spans, "too_")
    # If both are missing, the first one is reported.
    of_other = (why == "") & (too != "")
    why[of_other] = too[of_other]
    rows.loc[of_other, "covering"] = rows.too_covering[of_other]
    _keep_open_for_other_receivers(rows, why, found, spans)
    rows, why = _without_repetitions(rows, why, found, known)
    in_both = other_histories.acted_before(rows, copied, spans)
    other_runs.leave_open(rows, why, shown, copied, in_both)
    elsewhere = None if shown is None else shown.elsewhere
    logs = other_histories.Logs(found.starts, found.runs, found.holes)
    other_histories.leave_open(rows, why, logs, spans, elsewhere)
    unread_runs.leave_open(rows, why, about, found, spans)
    pending = np.flatnonzero((rows.kind == "pending").to_numpy() & (why == ""))
    gone = presence.not_on_its_way(rows.iloc[pending], found)
    rows.loc[pending[gone], "kind"] = "vanished"
    # Its queue manager has logged that it misses it: later messages may have passed it since.
    absent = rows[rows.kind.isin(["pending", "vanished", "lost"]) & (why == "")]
    missed = presence.missed_at(absent, found).dropna()
    rows.loc[missed.index, "kind"] = "vanished"
    rows.loc[missed.index, "at_ms"] = missed
    why[(rows.kind == "pending").to_numpy() & (why == "")] = "on_its_way"
    return rows, why


#: Candidates that become duplicates if the message was stored before.
_REPEATED = ("never_sent", "express_again", "accepted_again")
#: Rules for messages that were sent once and accepted once.
_OF_ONCE = ("reordered", "wrong_number", "other_queue", "number_reused")


def _without_repetitions(
    rows: Frame, why: Any, found: Survey, known: EarlierState
) -> tuple[Frame, Any]:
    """Make repeated messages duplicates, and drop their candidates that suppose one acceptance.

    `express_again` and `accepted_again` are dropped if the message is no repetition.
    """
    if not rows.kind.isin(_REPEATED).any():
        return rows, why
    repeated = rows.kind.isin(_REPEATED).to_numpy() & _stored_before(rows, found, known)
    source, number = (rows[name].fillna(0).to_numpy(np.int64) for name in ("source", "number"))
    rows.loc[repeated, "kind"] = "duplicated"
    why[repeated] = ""
    for at in np.flatnonzero(repeated & (rows.stream >= 0).to_numpy(bool)):
        position = position_of(found.segments, int(source[at]), int(number[at]))
        if position is not None:
            rows.loc[at, ["stream", "key"]] = position
    gone = rows.kind.isin(["express_again", "accepted_again"]).to_numpy()
    ids = pd.MultiIndex.from_arrays([source, number])
    gone |= ids.isin(ids[repeated]) & rows.kind.isin(_OF_ONCE).to_numpy()
    # Of a message that was stored before, these files may contain two more acceptances.
    twice = np.flatnonzero((rows.kind == "duplicated").to_numpy())
    gone[twice] |= ids[twice].duplicated()
    return rows[~gone].reset_index(drop=True), why[~gone]


def _stored_before(rows: Frame, found: Survey, known: EarlierState) -> Any:
    """Return which messages were stored before, and none of their events from then is kept.

    Those are messages that their source has sent, and that are not open.
    """
    source, number = (rows[name].fillna(0).to_numpy(np.int64) for name in ("source", "number"))
    is_express = (rows.kind == "express_again").to_numpy()
    stored = np.where(
        is_express,
        found.numbers.have(source, number, express=True),
        found.numbers.have(source, number, express=False),
    )
    # A message whose sending these files, or the kept events, contain was stored before if it was
    # sent before as well: a source that was restored from a backup gives its numbers again.
    sent = known.carried[known.carried.role == Role.SENT]
    kept = pd.MultiIndex.from_frame(sent[["source", "number"]])
    ids = pd.MultiIndex.from_arrays([source, number])
    is_kept = ids.isin(kept)
    before = Numbers(known.numbers).have(source, number, express=False) & ~is_kept
    before |= ids.isin(pd.MultiIndex.from_frame(known.resent))
    return np.where(rows.sent_at.isna().to_numpy(), stored, before)


def _require_log_of_acknowledger(rows: Frame, labels: Labels) -> None:
    """Require the log of the host that acknowledged, also if the queue was redirected to it."""
    if len(rows) == 0:
        return
    acked = ((rows.stream >= 0) & rows.acked_by.notna() & rows.covering.notna()).to_numpy(bool)
    peers = rows.acked_by[acked].astype(np.int64)
    hosts = {int(peer): labels.acknowledger(int(peer)) for peer in peers.unique()}
    host = peers.map(hosts)
    host = host[(host != 0) & (host != rows.covering[acked])]
    if len(host):
        for name in ("covering", "host"):
            rows.loc[host.index, name] = host.astype(rows[name].dtype)
        rows.loc[host.index, ["block_from", "block_to"]] = pd.NA  # these belong to another log


def _keep_open_for_other_receivers(rows: Frame, why: Any, found: Survey, spans: Spans) -> None:
    """Keep a loss open if the stream was redirected and another host may have stored it."""
    lost = np.flatnonzero((rows.kind == "lost").to_numpy() & (why == ""))
    if len(lost) == 0:
        return
    accepted = found.runs[found.runs.what == RowKind.ACCEPTED]
    accepted = accepted[["source", "stream", "host"]].drop_duplicates()
    hosts = accepted[accepted.duplicated(["source", "stream"], keep=False)]
    for (source, stream), part in hosts.groupby(["source", "stream"]):
        at = lost[(rows.source[lost] == source) & (rows.stream[lost] == stream)]
        for host in part.host:
            others = rows.loc[at].assign(block_from=pd.NA, block_to=pd.NA, covering=host)
            others = others[(rows.covering[at] != host).to_numpy(bool)]
            if len(others):
                reasons = _undecided(others.reset_index(drop=True), found, spans)
                why[others.index.to_numpy()[reasons != ""]] = reasons[reasons != ""]


def _undecided(rows: Frame, found: Survey, spans: Spans, which: str = "") -> Any:
    """Return why each candidate cannot be decided: "" if the required log was read.

    `which` is the prefix of the columns that name the required stretch.
    """
    why = np.full(len(rows), "", dtype=object)
    required = rows[f"{which}covering"]
    needs = required.notna().to_numpy() & (rows.kind != "pending").to_numpy()
    for host, part in rows[needs].groupby(f"{which}covering"):
        host = int(host)
        at = part.index.to_numpy()
        if host not in found.hosts:
            why[at] = "no_log"
            continue
        # By the clock of that host, with a margin for the uncertainty of clocks.
        begin = _floats(part[f"{which}at_from"], -np.inf)
        end = _floats(part[f"{which}at_to"], np.inf)
        least, most = spans.of(part[f"{which}clock_of"], host, begin, end)
        begin, end = begin + least - UNSURE_MS, end + most + UNSURE_MS
        block_from, block_to = part[f"{which}block_from"], part[f"{which}block_to"]
        first, last = _floats(block_from, -1.0), _floats(block_to, np.inf)
        has_first, has_last = block_from.notna().to_numpy(), block_to.notna().to_numpy()
        for hole in found.holes[found.holes.host == host].itertuples():
            inside = (
                (hole.block_last >= first)
                & (hole.block_first <= last)
                & (has_last | (hole.at_first <= end))
                & (has_first | (hole.at_last >= begin))
            )
            why[at[inside]] = reason_of(hole)
    return why


def _floats(column: Any, default: float) -> Any:
    return column.astype("Float64").fillna(default).to_numpy(np.float64)
