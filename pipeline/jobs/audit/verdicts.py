"""Verdicts: which candidates of suspect streams are proved findings, and which stay open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.engines.engine import Engine, plain_numbers, whole_numbers
from pipeline.events import host_of_path
from pipeline.jobs import clocks
from pipeline.jobs.audit import presence, rules
from pipeline.jobs.audit.coverage import END
from pipeline.jobs.audit.epochs import restored
from pipeline.jobs.audit.facts import Facts, Role
from pipeline.jobs.audit.findings import (
    FINDING_SCHEMA,
    KINDS,
    AuditResult,
    AuditSettings,
    FindingTimeline,
)
from pipeline.jobs.audit.fingerprints import RowKind
from pipeline.jobs.audit.labels import Labels
from pipeline.jobs.audit.settled import (
    AGAIN,
    SEGMENT,
    Stretches,
    in_pairs,
    joined,
    others_of,
    position_of,
)
from pipeline.jobs.audit.state import State
from pipeline.jobs.audit.stream_links import destinations
from pipeline.jobs.audit.survey import Survey

Frame = Any

_OF_OTHERS = {"source": "source", "stream": "stream", "key_first": "key",
              "sent_block_first": "sent_block", "host": "host", "place_first": "place"}  # fmt: skip
_SEGMENTS = pa.schema([(name, pa.int64()) for name in SEGMENT])
_KEPT = pa.schema([(name, pa.int64()) for name in ("source", "number", "how")])
_CHOSEN = pa.schema(
    [("n", pa.int32()), *((name, pa.int64()) for name in ("source", "stream", "wanted"))]
)
_LISTS = pa.list_(pa.list_(pa.int64()))
_LEAVING = (Role.RECEIVED, Role.LEFT)
_CLOCK_UNSURE_MS = 50  # clocks drift


def judge(
    engine: Engine,
    found: Survey,
    routes: Frame,
    state: State,
    settings: AuditSettings,
    *,
    has_facts: bool,
) -> AuditResult:
    """Apply the rules to table `facts`.  All queries are partitioned by `source`, as it is."""
    if not has_facts:
        rows = pd.DataFrame(columns=rules.COLUMN_NAMES).astype(
            {name: "Int64" for name in rules.COLUMN_NAMES[1:]}
        )
        return _conclude(_with_again(rows, None, found), found, routes, state, settings)[0]
    engine.put("streams", _suspect_streams(found))
    engine.put("destinations", _destinations(found))
    engine.view("messages", rules.MESSAGES)
    # Two queries read it: candidates and segments.
    engine.keep("ordered", rules.ORDERED)
    kept = state.carried
    queries = [rules.CANDIDATES]
    # Each query is another stage: skip those that cannot find anything.
    if settings.full or found.suspect_plain or len(found.dead) or len(kept):
        queries += [rules.PLAIN, rules.ORPHANS]
    if settings.full or found.suspect_queues or kept.role.isin(_LEAVING).any():
        queries.append(rules.LEFT_TWICE)
    if len(found.unarrived.frame):
        engine.put("unarrived", pa.Table.from_pandas(found.unarrived.frame, preserve_index=False))
        queries.append(rules.UNARRIVED)
    if len(found.imported) or (kept.role == Role.IMPORTED).any():
        queries.append(rules.IMPORTED_TWICE)
    # Hashes have 64 bits: columns with nulls must not become floating point.
    rows = whole_numbers(engine.query(" UNION ALL ".join(f"({query})" for query in queries)))
    rows = _with_received(_with_again(rows, engine, found), found)
    ids, rows = _kept_ids(rows, found)
    judged, proved = _conclude(rows, found, routes, state, settings)
    judged.kept = _kept(engine, ids)
    if found.suspect_streams:
        judged.segments = _segments(engine, found, judged.kept)
    if settings.timelines:
        judged.timelines = _timelines(engine, proved, settings.timelines)
    return judged


def _with_again(rows: Frame, engine: Engine | None, found: Survey) -> Frame:
    """Add the messages that left a place again, after another run had read that they left it."""
    again = found.again
    if engine is not None and len(found.again_places.frame) and len(found.again_numbers.frame):
        for name, numbers in (("places", found.again_places), ("numbers", found.again_numbers)):
            table = pa.Table.from_pandas(numbers.frame, preserve_index=False)
            engine.put(f"again_{name}", table)
        new = plain_numbers(engine.query(rules.AGAIN))
        again = pd.concat([new[AGAIN], again]).drop_duplicates(AGAIN[:-1], ignore_index=True)
        found.again = again
    if len(again) == 0:
        return rows
    place = AGAIN[:-1]
    twice = rows[rows.kind == "ended_twice"][place].astype(np.int64).assign(there=True)
    missing = again.merge(twice, on=place, how="left")
    missing = missing[missing.there.isna()][AGAIN].astype("Int64")
    if len(missing) == 0:
        return rows
    added = missing.assign(kind="ended_twice", stream=-1).reindex(columns=rules.COLUMN_NAMES)
    added = added.astype({name: "Int64" for name in rules.COLUMN_NAMES[1:]})
    return _and(rows, added)


def _and(rows: Frame, more: Frame) -> Frame:
    if len(rows) == 0 or len(more) == 0:  # an empty table has no types
        return rows if len(more) == 0 else more
    return pd.concat([rows, more], ignore_index=True)


def _with_received(rows: Frame, found: Survey) -> Frame:
    """Make `died_later` a finding where another run has read that the message was received."""
    died = (rows.kind == "died_later").to_numpy()
    if not died.any():
        return rows
    source, number = (rows[name].fillna(0).to_numpy(np.int64) for name in ("source", "number"))
    rows.loc[died, "kind"] = "delivered_and_dead"
    return rows[~died | _was_received(source, number, found)].reset_index(drop=True)


def _was_received(source: Any, number: Any, found: Survey) -> Any:
    """Return which messages were received, and did not leave their queue in another way."""
    received = found.departed_numbers.of_kind(source, number, Role.RECEIVED)
    return received & ~found.departed_numbers.of_kind(source, number, Role.LEFT)


def _kept_ids(rows: Frame, found: Survey) -> tuple[Frame, Frame]:
    """Return the messages of which events are kept, and how (`rules.KEPT`); and the other rows."""
    orphans = rows[rows.kind == "orphan"]
    ids = [
        rows[rows.kind == "kept"].assign(how=1),
        rows[rows.kind.isin(["imported", "imported_twice"])].assign(how=1),
        rows[rows.kind.isin(["ended_twice", "received_unstored"])].assign(how=2),
    ]
    rows = rows[~rows.kind.isin(["kept", "orphan", "imported"])]
    if len(orphans):
        source, number = (orphans[name].to_numpy(np.int64) for name in ("source", "number"))
        express = found.numbers.have(source, number, express=True)
        is_settled = found.numbers.have(source, number, express=False)
        # Its source gave it this number, and it is not open: so it was stored.
        ended = (orphans.key > 0).to_numpy(bool)
        later = ~ended & (orphans.until_key > 0).to_numpy(bool)
        wrong = orphans[is_settled & (ended | later)].assign(
            kind="delivered_and_dead", stream=-1, key=pd.NA, until_key=pd.NA
        )
        is_proved = ended | (later & _was_received(source, number, found))
        wrong.loc[is_proved[is_settled & (ended | later)], "covering"] = pd.NA
        if len(wrong):
            rows = pd.concat([rows, wrong], ignore_index=True)
        ids.append(orphans[(is_settled & (ended | later)) | ~(is_settled | express)].assign(how=1))
    frame = pd.concat(ids)[["source", "number", "how"]]
    return frame.groupby(["source", "number"], as_index=False).how.min(), rows


def _kept(engine: Engine, ids: Frame) -> Frame:
    engine.put("kept", pa.Table.from_pandas(ids.astype(np.int64), _KEPT, preserve_index=False))
    return plain_numbers(engine.query(rules.KEPT).select(list(Facts._fields)))


def _segments(engine: Engine, found: Survey, kept: Frame) -> Frame:
    """Return the settled segments, each stream in its own task."""
    stretches = Stretches(found.covered)

    def join(batches: Iterable[Any]) -> Iterator[Any]:
        held = list(batches)
        if held:
            table = pa.Table.from_batches(held)
            # Filter first: columns with nulls would become floating point, and hashes have 64 bits.
            good = table.filter(table["is_good"]).select(SEGMENT).to_pandas()
            others = table.filter(pc.invert(table["is_good"])).select(list(_OF_OTHERS))
            others = whole_numbers(others).fillna(-1).rename(columns=_OF_OTHERS)
            yield pa.RecordBatch.from_pandas(
                joined(good, stretches, others)[SEGMENT], _SEGMENTS, preserve_index=False
            )

    fresh = engine.mapped(rules.SEGMENTS, join, _SEGMENTS).to_pandas()
    segments = pd.concat([found.segments, fresh[SEGMENT]]).astype(np.int64)
    return joined(segments, stretches, others_of(kept))


def _timelines(engine: Engine, proved: Frame, most: int) -> list[FindingTimeline]:
    """Return some findings of different kinds, each with the messages around it."""
    some = proved[proved.key.notna() & (proved.stream >= 0)]
    chosen = [
        row for kind in KINDS for row in some[some.kind == kind].head(1).itertuples()
    ][:most]  # fmt: skip
    if not chosen:
        return []
    wanted = [(n, int(row.source), int(row.stream), int(row.key)) for n, row in enumerate(chosen)]
    engine.put(
        "chosen",
        pa.Table.from_pylist(
            [dict(zip(_CHOSEN.names, row, strict=True)) for row in wanted], _CHOSEN
        ),
    )
    near = whole_numbers(engine.query(rules.NEAR)).sort_values(["n", "key", "number"])
    found = []
    for n, row in enumerate(chosen):
        messages = near[near.n == n].assign(
            is_bad=lambda each, row=row: (
                (each.key == row.key) if pd.isna(row.number) else each.number == row.number
            )
        )
        receiver = int(row.host) if pd.notna(row.host) else 0
        found.append(FindingTimeline(row.kind, int(row.source), receiver, int(row.key), messages))
    return found


def _destinations(found: Survey) -> Any:
    """Return the table of direct names: the queues that each may be at its destination."""
    wanted = destinations(found.names, list(found.names))
    return pa.table(
        {
            "sent_to": pa.array(list(wanted), pa.int64()),
            "queues": pa.array([sorted(each) for each in wanted.values()], pa.list_(pa.int64())),
        }
    )


def _suspect_streams(found: Survey) -> Any:
    """Return the table of suspect streams: what is known of them besides the facts."""
    columns = ["source", "stream", "receiver", "following", "following_sent"]
    some = found.streams.loc[in_pairs(found.streams, found.judged_streams), columns]

    def runs(frame: Frame, *which: str) -> Any:
        lists = {
            pair: part[["key_first", "key_last", *which]].values.tolist()
            for pair, part in frame.groupby(["source", "stream"])
        }
        pairs = zip(some.source, some.stream, strict=True)
        return pa.array([lists.get(pair, []) for pair in pairs], _LISTS)

    segments = found.segments[in_pairs(found.segments, found.judged_streams)]
    of_sent = ("sent_block_first", "sent_block_last", "sent_at_min", "sent_at_max")
    # Messages accepted under numbers of this stream, although they were sent in another.
    accepted = found.runs[found.runs.what == RowKind.ACCEPTED]
    return pa.table(
        {name: pa.array(some[name].to_numpy(np.int64)) for name in columns}
        | {
            "old_sent": runs(segments, *of_sent),
            "old_accepted": runs(segments, "place_first", "place_last", "host", "at_min", "at_max"),
            "given": runs(accepted[in_pairs(accepted, found.judged_streams)]),
        }
    )


def _conclude(
    rows: Frame, found: Survey, routes: Frame, state: State, settings: AuditSettings
) -> tuple[AuditResult, Frame]:
    """Return the result, and the proved candidates; others stay open as a log is missing."""
    rows = _and(rows, presence.vanished(found, rules.COLUMN_NAMES)).reset_index(drop=True)
    rows["source"] = rows.source.astype(np.int64)
    rows["stream"] = rows.stream.astype(np.int64)
    bounds = clocks.narrowed(state.clock_bounds, found.clock_bounds)
    offsets, wrong = clocks.solve_over_time(bounds, settings.clock_tolerance_ms)
    spans = clocks.Spans(bounds, wrong, _set_back(found.covered, settings.clock_tolerance_ms))
    labels = Labels(found, routes)
    rows, why = _decided(rows, found, spans, labels)
    is_open = why != ""
    proved = rows[~is_open]
    open_rows = rows[is_open].assign(why=why[is_open])
    findings = [labels.finding(row) for row in proved.head(settings.findings_max).itertuples()]
    about_hosts = restored(state.epochs, labels)
    about_hosts += _about_hosts(open_rows, found, labels, offsets, wrong)
    counts = proved.kind.value_counts().to_dict()
    for each in about_hosts:
        counts[each["kind"]] = counts.get(each["kind"], 0) + 1
    frame = pd.DataFrame(
        [*about_hosts, *findings], columns=FINDING_SCHEMA.names, dtype=object
    ).astype({"sequence_number": "Int64", "until_number": "Int64", "at_ms": "Int64"})
    streams = labels.streams(frame, open_rows)
    result = AuditResult(
        findings=frame,
        open=_open_messages(open_rows, labels),
        streams=streams,
        offsets_ms={labels.host(host): offset for host, offset in offsets.items()},
        events=found.events,
        messages=int(streams.sent.clip(lower=0).sum()) if len(streams) else 0,
        suspects=0,
        files=0,
        seconds=0.0,
        segments=found.segments,
        kept=state.carried,
        counts=counts,
    )
    return result, proved


def _decided(rows: Frame, found: Survey, spans: clocks.Spans, labels: Labels) -> tuple[Frame, Any]:
    """Return the candidates, and for each the reason why it is open: "" if it is proved."""
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
    rows, why = _without_repetitions(rows, why, found)
    pending = np.flatnonzero((rows.kind == "pending").to_numpy() & (why == ""))
    gone = presence.not_on_its_way(rows.iloc[pending], found)
    rows.loc[pending[gone], "kind"] = "vanished"
    why[pending[~gone]] = "on_its_way"
    return rows, why


def _without_repetitions(rows: Frame, why: Any, found: Survey) -> tuple[Frame, Any]:
    """Make repeated messages duplicates, and drop the other candidates `express_again`.

    A message that its source has sent and that is not open was stored before: it is a repetition.
    """
    if not rows.kind.isin(["never_sent", "express_again"]).any():
        return rows, why
    source, number = (rows[name].fillna(0).to_numpy(np.int64) for name in ("source", "number"))
    for kind in ("never_sent", "express_again"):
        repeated = (rows.kind == kind).to_numpy()
        repeated &= found.numbers.have(source, number, express=kind == "express_again")
        rows.loc[repeated, "kind"] = "duplicated"
        why[repeated] = ""
        for at in np.flatnonzero(repeated & (rows.stream >= 0).to_numpy(bool)):
            position = position_of(found.segments, int(source[at]), int(number[at]))
            if position is not None:
                rows.loc[at, ["stream", "key"]] = position
    gone = (rows.kind == "express_again").to_numpy()
    return rows[~gone].reset_index(drop=True), why[~gone]


def _open_messages(open_rows: Frame, labels: Labels) -> Frame:
    """Count the open messages by reason and host."""
    hosts = [labels.host(int(host)) for host in open_rows.covering.fillna(0)]
    groups = open_rows.assign(host_name=hosts).groupby(["why", "host_name"], as_index=False)
    counted = groups.agg(messages=("kind", "size"), oldest_at_ms=("at_ms", "min"))
    return counted.rename(columns={"why": "reason", "host_name": "host"})


def _require_log_of_acknowledger(rows: Frame, labels: Labels) -> None:
    """Require the log of the host that acknowledged, also if the queue was redirected to it."""
    if len(rows) == 0:
        return
    acked = (rows.stream >= 0) & rows.acked_by.notna() & rows.covering.notna()
    for at in np.flatnonzero(acked.to_numpy(bool)):
        host = labels.acknowledger(int(rows.acked_by[at]))
        if host and host != rows.covering[at]:
            rows.loc[at, ["covering", "host"]] = host
            rows.loc[at, ["block_from", "block_to"]] = pd.NA  # these belong to another log


def _keep_open_for_other_receivers(
    rows: Frame, why: Any, found: Survey, spans: clocks.Spans
) -> None:
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


def _undecided(rows: Frame, found: Survey, spans: clocks.Spans, which: str = "") -> Any:
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
        least, most = spans.of(part[f"{which}clock_of"], host)
        begin = _floats(part[f"{which}at_from"], -np.inf) + least - _CLOCK_UNSURE_MS
        end = _floats(part[f"{which}at_to"], np.inf) + most + _CLOCK_UNSURE_MS
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
            reason = (
                "late_log" if hole.block_last == END
                else "log_begins_later" if hole.at_first == -END
                else "log_hole"
            )  # fmt: skip
            why[at[inside]] = reason
    return why


def _set_back(covered: Frame, tolerance_ms: int) -> set[int]:
    """Return hosts that set their clocks back beyond the tolerance, by their own logs."""
    return set(covered.host[covered.at_sum > tolerance_ms].tolist())


def _floats(column: Any, default: float) -> Any:
    return column.astype("Float64").fillna(default).to_numpy(np.float64)


def _about_hosts(
    open_rows: Frame,
    found: Survey,
    labels: Labels,
    offsets: dict[int, float],
    wrong: dict[int, int],
) -> list[dict[str, Any]]:
    rows = []
    for host in sorted(wrong):
        text = f"It is {_span(offsets[host])} the clocks of the other hosts."
        if wrong[host]:
            text = f"It is {_span(offsets[host])} the clock of {labels.host(wrong[host])}; "
            text += "or that clock is wrong: there is no third host to compare."
        rows.append(labels.about("clock", host, text, None))
    for hole in found.holes.itertuples():
        if hole.block_last != END and hole.at_first != -END:
            text = f"Blocks {hole.block_first} to {hole.block_last} of its log are missing."
            rows.append(labels.about("log_hole", hole.host, text, hole.at_first))
    absent: dict[str, int] = {}
    for why in ("late_log", "no_log"):
        some = open_rows[(open_rows.why == why) & open_rows.covering.notna()]
        for host, part in some.groupby("covering"):
            if why == "late_log":
                text = f"{len(part)} messages cannot be decided until the rest of it is there."
                rows.append(labels.about("late_log", int(host), text, part.at_ms.min()))
        if why == "no_log":
            for row in some.itertuples():
                name = labels.absent(row)
                absent[name] = absent.get(name, 0) + 1
    streams = found.streams
    if len(streams):
        unknown = streams[(streams.sent_runs < 0) & ~streams.source.isin(list(found.hosts))]
        for source in unknown.source.unique():
            absent.setdefault(labels.host(int(source)), 0)
    for path, reason in sorted(found.unreadable.items()):
        rows.append(
            dict.fromkeys(FINDING_SCHEMA.names)
            | {"kind": "broken_file", "host": host_of_path(path), "detail": f"{path}: {reason}"}
        )
    for name, count in sorted(absent.items()):
        text = f"{count} messages cannot be decided without it." if count else "It sends messages."
        rows.append(
            dict.fromkeys(FINDING_SCHEMA.names) | {"kind": "no_log", "host": name, "detail": text}
        )
    return rows


def _span(ms: float) -> str:
    size = abs(ms)
    if size < 1000:
        text = f"{size:.0f} ms"
    else:
        text = f"{size / 1000:.1f} s" if size < 120_000 else f"{size / 60_000:.1f} min"
    return f"{text} {'ahead of' if ms > 0 else 'behind'}"
