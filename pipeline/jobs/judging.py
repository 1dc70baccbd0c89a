"""From the events of suspect streams to findings: which candidates are proved, which stay open."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from pipeline.events import host_of_path
from pipeline.jobs import clocks, rules
from pipeline.jobs.facts import Facts, Role
from pipeline.jobs.findings import (
    FINDING_SCHEMA,
    KINDS,
    AuditResult,
    AuditSettings,
    Picture,
)
from pipeline.jobs.labels import Labels
from pipeline.jobs.runs import What
from pipeline.jobs.state import State
from pipeline.jobs.survey import END, Survey

Frame = Any

_DEAD_ROLES = (Role.ENDED, Role.REFUSED, Role.DEAD_LATER)
_CLOCK_UNSURE_MS = 50  # offsets are no more exact than the way there and back


def judge(
    spark: Any, facts: Any, found: Survey, routes: Frame, state: State, settings: AuditSettings
) -> AuditResult:
    """The rules.  Everything below is partitioned by `source`, as the events came."""
    from pyspark import StorageLevel

    if facts is None:
        rows = pd.DataFrame(columns=rules.COLUMN_NAMES).astype(
            {name: "Int64" for name in rules.COLUMN_NAMES[1:]}
        )
        return _conclude(rows, found, routes, state, settings)[0]
    facts = facts.persist(StorageLevel.DISK_ONLY)
    facts.createOrReplaceTempView("facts")
    _streams_view(spark, found, state)
    _old_dead_view(spark, state)
    spark.sql(rules.MESSAGES).createOrReplaceTempView("messages")
    spark.sql(rules.ORDERED).createOrReplaceTempView("ordered")
    queries = [rules.CANDIDATES]
    # Each query is another stage: those that could find nothing are left out.
    if settings.full or found.suspect_plain or len(found.dead) or len(state.dead):
        queries.append(rules.PLAIN)
    if settings.full or found.suspect_queues:
        queries.append(rules.LEFT_TWICE)
    candidates = spark.sql(" UNION ALL ".join(f"({query})" for query in queries))
    try:
        # Hashes have 64 bits: columns with nulls must not become floating.
        rows = _exact(candidates)
        judged, proved = _conclude(rows, found, routes, state, settings)
        if settings.pictures:
            judged.pictures = _pictures(spark, proved, settings.pictures)
    finally:
        facts.unpersist()
    return judged


def _old_dead_view(spark: Any, state: State) -> None:
    """Which messages ended at their source in earlier runs, and how."""
    old = state.dead
    some = pd.DataFrame({"source": old.source, "number": old.key_first})
    for name, role in zip(("old_ended", "old_refused", "old_dead_later"), _DEAD_ROLES, strict=True):
        some[name] = (old.key_last == int(role)).astype(int)
    some = some.groupby(["source", "number"], as_index=False).max()
    spark.createDataFrame(
        [tuple(map(int, row)) for row in some.itertuples(index=False)],
        "source bigint, number bigint, old_ended int, old_refused int, old_dead_later int",
    ).createOrReplaceTempView("old_dead")


def _exact(table: Any) -> Frame:
    return table.toArrow().to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)


def _pictures(spark: Any, proved: Frame, most: int) -> list[Picture]:
    """Of some findings, of different kinds, the messages around them."""
    some = proved[proved.key.notna() & (proved.stream >= 0)]
    chosen = [
        row for kind in KINDS for row in some[some.kind == kind].head(1).itertuples()
    ][:most]  # fmt: skip
    if not chosen:
        return []
    spark.createDataFrame(
        [(n, int(row.source), int(row.stream), int(row.key)) for n, row in enumerate(chosen)],
        "n int, source bigint, stream bigint, wanted bigint",
    ).createOrReplaceTempView("chosen")
    near = _exact(spark.sql(rules.NEAR)).sort_values(["n", "key", "number"])
    found = []
    for n, row in enumerate(chosen):
        messages = near[near.n == n].assign(
            is_bad=lambda each, row=row: (
                (each.key == row.key) if pd.isna(row.number) else each.number == row.number
            )
        )
        found.append(Picture(row.kind, int(row.source), int(row.host) if pd.notna(row.host) else 0,
                             int(row.key), messages))  # fmt: skip
    return found


def _streams_view(spark: Any, found: Survey, state: State) -> None:
    """What is known of suspect streams from elsewhere: for the rules to look up."""
    streams = found.streams
    suspect = found.suspect_streams
    mask = [pair in suspect for pair in zip(streams.source, streams.stream, strict=True)]
    columns = ["source", "stream", "receiver", "following", "old_sent_last", "old_accepted_last"]
    some = streams.loc[mask, columns]
    old = state.runs
    if len(old):

        def runs(what: What, *which: str) -> Any:
            these = old[old.what == what]
            lists = {
                pair: part[["key_first", "key_last", *which]].values.tolist()
                for pair, part in these.groupby(["source", "stream"])
            }
            return [lists.get(pair, []) for pair in zip(some.source, some.stream, strict=True)]

        some = some.assign(
            old_sent=runs(What.SENT, "block_first", "block_last"),
            old_accepted=runs(
                What.ACCEPTED, "place_first", "place_last", "host", "block_first", "block_last"
            ),
        )
    else:
        some = some.assign(old_sent=[[] for _ in range(len(some))])
        some["old_accepted"] = some.old_sent
    # What was accepted under numbers of this stream, though it was sent in another one.
    bare = found.runs[found.runs.what == What.ACCEPTED].merge(
        streams.loc[streams.sent_first > streams.accepted_first, ["source", "stream"]]
    )
    given = {
        pair: part[["key_first", "key_last"]].values.tolist()
        for pair, part in bare.groupby(["source", "stream"])
    }
    some["given"] = [given.get(pair, []) for pair in zip(some.source, some.stream, strict=True)]
    schema = (
        ", ".join(f"{name} bigint" for name in columns)
        + ", old_sent array<array<bigint>>, old_accepted array<array<bigint>>"
        ", given array<array<bigint>>"
    )
    rows = [tuple(row) for row in some.itertuples(index=False)]
    spark.createDataFrame(rows, schema).createOrReplaceTempView("streams")


def _conclude(
    rows: Frame, found: Survey, routes: Frame, state: State, settings: AuditSettings
) -> tuple[AuditResult, Frame]:
    """Which candidates are proved, and which stay open because a log is missing."""
    rows = rows.reset_index(drop=True)
    rows["source"] = rows.source.astype(np.int64)
    rows["stream"] = rows.stream.astype(np.int64)
    offsets, wrong = clocks.solve(
        pd.concat([state.clock_bounds, found.clock_bounds]),
        settings.clock_tolerance_ms,
    )
    state.clock_bounds = clocks.narrowed(state.clock_bounds, found.clock_bounds)
    labels = Labels(found, routes)
    plain = ((rows.covering == 0) & (rows.stream < 0)).fillna(False).astype(bool)
    if plain.any():
        rows.loc[plain, "covering"] = [
            labels.taker(int(row.source), int(row.sent_queue), row.acked_by)
            for row in rows[plain].itertuples()
        ]
    why = _undecided(rows, found, offsets)
    # What came again long after it was done is no message that nobody sent.  That it was sent
    # before is known only where nothing of its sender's log is missing but the end.
    gaps = found.holes[found.holes.block_last != END]
    again = (rows.kind == "never_sent") & (rows.stream < 0) & ~rows.source.isin(gaps.host)
    if again.any():
        last = rows.source.map(state.plain_last).fillna(-1)
        again = (again & (rows.number <= last)).fillna(False).astype(bool)
        rows.loc[again, "kind"] = "duplicated"
        why[again.to_numpy()] = ""
    is_pending = rows.kind == "pending"
    why[is_pending.to_numpy() & (why == "")] = "on_its_way"
    is_open = why != ""
    proved = rows[~is_open]
    open_rows = rows[is_open].assign(why=why[is_open])
    findings = [labels.finding(row) for row in proved.head(settings.findings_max).itertuples()]
    about_hosts = _about_hosts(open_rows, found, labels, offsets, wrong)
    counts = proved.kind.value_counts().to_dict()
    for each in about_hosts:
        counts[each["kind"]] = counts.get(each["kind"], 0) + 1
    frame = pd.DataFrame(
        [*about_hosts, *findings], columns=FINDING_SCHEMA.names, dtype=object
    ).astype({"sequence_number": "Int64", "until_number": "Int64", "at_ms": "Int64"})
    opened = (
        open_rows.assign(
            host_name=[labels.host(int(host)) for host in open_rows.covering.fillna(0)]
        )
        .groupby(["why", "host_name"], as_index=False)
        .agg(messages=("kind", "size"), oldest_at_ms=("at_ms", "min"))
        .rename(columns={"why": "reason", "host_name": "host"})
    )
    streams = labels.streams(frame, open_rows)
    result = AuditResult(
        findings=frame,
        open=opened,
        streams=streams,
        offsets_ms={labels.host(host): offset for host, offset in offsets.items()},
        events=found.events,
        messages=int(streams.sent.clip(lower=0).sum()) if len(streams) else 0,
        suspects=0,
        files=0,
        seconds=0.0,
        carried=_carried(open_rows),
        counts=counts,
    )
    return result, proved


def _undecided(rows: Frame, found: Survey, offsets: dict[int, float]) -> Any:
    """Why each candidate cannot be decided: "" where the log that is asked for is there."""
    why = np.full(len(rows), "", dtype=object)
    needs = rows.covering.notna().to_numpy() & (rows.kind != "pending").to_numpy()
    for host, part in rows[needs].groupby("covering"):
        host = int(host)
        at = part.index.to_numpy()
        if host not in found.hosts:
            why[at] = "no_log"
            continue
        # By the clock of that host, with room for what is not known about clocks.
        other = [offsets.get(int(each), 0.0) if pd.notna(each) else 0.0 for each in part.clock_of]
        shift = offsets.get(host, 0.0) - np.array(other)
        begin = _floats(part.at_from, -np.inf) + shift - _CLOCK_UNSURE_MS
        end = _floats(part.at_to, np.inf) + shift + _CLOCK_UNSURE_MS
        first, last = _floats(part.block_from, -1.0), _floats(part.block_to, np.inf)
        has_first, has_last = part.block_from.notna().to_numpy(), part.block_to.notna().to_numpy()
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


def _floats(column: Any, default: float) -> Any:
    return column.astype("Float64").fillna(default).to_numpy(np.float64)


def _about_hosts(
    open_rows: Frame, found: Survey, labels: Labels, offsets: dict[int, float], wrong: set[int]
) -> list[dict[str, Any]]:
    rows = []
    for host in sorted(wrong):
        rows.append(
            labels.about("clock", host, f"It is {_span(offsets[host])} the others' clocks.", None)
        )
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


def _carried(open_rows: Frame) -> Frame:
    """Events, as `Facts`, that the next run has to know of what is open."""
    made: list[dict[str, int]] = []

    def add(row: Any, role: Role, at_ms: Any, block: Any, **more: Any) -> None:
        made.append(
            dict.fromkeys(Facts._fields, 0)
            | {
                "role": int(role),
                "host": int(row.source),
                "block": int(block) if pd.notna(block) else -int(row.number) - 1,
                "index": -int(row.number) * 16 - int(role),  # of no event that is read again
                "at_ms": int(at_ms) if pd.notna(at_ms) else 0,
                "source": int(row.source),
                "number": int(row.number),
                "stream": int(row.stream),
                "key": int(row.key) if pd.notna(row.key) else 0,
                "place": -1,
                "queue": int(row.sent_queue) if pd.notna(row.sent_queue) else 0,
                "grade": int(row.grade) if pd.notna(row.grade) else -1,
            }
            | more
        )

    for row in open_rows[open_rows.kind != "gap"].itertuples():
        if pd.notna(row.sent_at):
            add(row, Role.SENT, row.sent_at, row.sent_block)
        if pd.notna(row.accepted_at):
            add(
                row, Role.ACCEPTED, row.accepted_at, row.accepted_block, host=int(row.host),
                queue=int(row.queue), place=int(row.place),
            )  # fmt: skip
        if pd.notna(row.ack_at):
            role = Role.SESSION_ACKED if row.stream < 0 else Role.ORDER_ACKED
            add(row, role, row.ack_at, None)
    return pd.DataFrame(made, columns=list(Facts._fields)).astype(np.int64)
