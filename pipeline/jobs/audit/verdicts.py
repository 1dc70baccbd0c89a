"""Verdicts: which candidates of suspect streams are proved findings, and which stay open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from pipeline.engines.engine import Engine, plain_numbers, whole_numbers
from pipeline.jobs import clocks
from pipeline.jobs.audit import clock_spans, other_runs, presence, stream_parts, unread_runs
from pipeline.jobs.audit.decisions import decided
from pipeline.jobs.audit.epochs import restored
from pipeline.jobs.audit.facts import Facts, Role
from pipeline.jobs.audit.findings import (
    FINDING_SCHEMA,
    AuditResult,
    AuditSettings,
)
from pipeline.jobs.audit.given import without_given
from pipeline.jobs.audit.host_findings import about_hosts, copies
from pipeline.jobs.audit.labels import Labels
from pipeline.jobs.audit.rules import places, plain, streams
from pipeline.jobs.audit.rules.candidates import COLUMN_NAMES
from pipeline.jobs.audit.settled import (
    AGAIN,
    SEGMENT,
    Stretches,
    in_pairs,
    joined,
    others_of,
    settled_inside,
)
from pipeline.jobs.audit.state import State
from pipeline.jobs.audit.stream_links import destinations
from pipeline.jobs.audit.survey import Survey
from pipeline.jobs.audit.timelines import timelines

Frame = Any

_OF_OTHERS = {"source": "source", "stream": "stream", "key_first": "key",
              "sent_block_first": "sent_block", "host": "host", "place_first": "place"}  # fmt: skip
_SEGMENTS = pa.schema([(name, pa.int64()) for name in SEGMENT])
_KEPT = pa.schema([(name, pa.int64()) for name in ("source", "number", "how")])
_LISTS = pa.list_(pa.list_(pa.int64()))
_LEAVING = (Role.RECEIVED, Role.LEFT)
_ROWS_JOINED = 100_000


def judge(
    engine: Engine,
    found: Survey,
    routes: Frame,
    state: State,
    settings: AuditSettings,
    copied: dict[int, int],
    *,
    has_facts: bool,
) -> AuditResult:
    """Apply the rules to table `facts`.  All queries are partitioned as it is.

    `copied` are the hosts with the logs of several copies, and until when both are there (ms).
    """
    if not has_facts:
        rows = pd.DataFrame(columns=COLUMN_NAMES).astype(
            {name: "Int64" for name in COLUMN_NAMES[1:]}
        )
        rows, compared = _with_again(rows, None, found), _compared(found, state, settings)
        return _conclude(rows, found, routes, state, settings, compared, copied)[0]
    engine.put("streams", _suspect_streams(found))
    engine.put("destinations", _destinations(found))
    parts = stream_parts.parts_of(found)
    stream_parts.keep_messages(engine, parts)
    kept = state.carried
    queries = []
    # Each query is another stage: skip those that cannot find anything.
    if settings.full or found.suspect_plain or len(found.dead) or len(kept):
        queries += [plain.PLAIN, plain.ORPHANS]
    if settings.full or found.suspect_queues or kept.role.isin(_LEAVING).any():
        queries.append(places.LEFT_TWICE)
    if len(found.unarrived.frame):
        engine.put("unarrived", pa.Table.from_pandas(found.unarrived.frame, preserve_index=False))
        queries.append(places.UNARRIVED)
    if len(found.imported) or (kept.role == Role.IMPORTED).any():
        queries.append(places.IMPORTED_TWICE)
    # Hashes have 64 bits: columns with nulls must not become floating point.
    rows, fresh = _of_streams(engine, found)
    if queries:
        beside = engine.query(" UNION ALL ".join(f"({query})" for query in queries))
        rows = whole_numbers(pa.concat_tables([rows, beside.cast(rows.schema)]))
    else:
        rows = whole_numbers(rows)
    rows = without_given(rows, engine, are_apart=parts > 0 and not engine.in_parts)
    rows = _with_received(_with_again(rows, engine, found), found)
    ids, rows = _kept_ids(rows, found)
    compared = _compared(found, state, settings)
    shown = other_runs.evidence(engine, found, compared.spans)
    about = unread_runs.events(engine, rows, found)
    judged, proved = _conclude(rows, found, routes, state, settings, compared, copied, shown, about)
    judged.kept = _kept(engine, ids)
    if found.suspect_streams:
        segments = pd.concat([found.segments, fresh]).astype(np.int64)
        judged.segments = joined(segments, Stretches(found.covered), others_of(judged.kept))
    if settings.timelines:
        judged.timelines = timelines(engine, proved, settings.timelines)
    return judged


def _with_again(rows: Frame, engine: Engine | None, found: Survey) -> Frame:
    """Add the messages that left a place again, after another run had read that they left it."""
    again = found.again
    if engine is not None and len(found.again_places.frame) and len(found.again_numbers.frame):
        for name, numbers in (("places", found.again_places), ("numbers", found.again_numbers)):
            table = pa.Table.from_pandas(numbers.frame, preserve_index=False)
            engine.put(f"again_{name}", table)
        new = plain_numbers(engine.query(places.AGAIN))
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
    added = missing.assign(kind="ended_twice", stream=-1).reindex(columns=COLUMN_NAMES)
    added = added.astype({name: "Int64" for name in COLUMN_NAMES[1:]})
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
    """Return the messages of which events are kept, and how (`places.KEPT`); and the other rows."""
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
        wrong = wrong.astype(rows.dtypes)  # a column of nulls alone has no type
        is_proved = ended | (later & _was_received(source, number, found))
        wrong.loc[is_proved[is_settled & (ended | later)], "covering"] = pd.NA
        if len(wrong):
            rows = pd.concat([rows, wrong], ignore_index=True)
        ids.append(orphans[(is_settled & (ended | later)) | ~(is_settled | express)].assign(how=1))
    frame = pd.concat(ids)[["source", "number", "how"]]
    return frame.groupby(["source", "number"], as_index=False).how.min(), rows


def _kept(engine: Engine, ids: Frame) -> Frame:
    engine.put("kept", pa.Table.from_pandas(ids.astype(np.int64), _KEPT, preserve_index=False))
    return plain_numbers(engine.query(places.KEPT).select(list(Facts._fields)))


def _of_streams(engine: Engine, found: Survey) -> tuple[Any, Frame]:
    """Return the candidates about messages of streams, and the settled segments."""
    rows, segments, others = [], [], []
    none = pd.DataFrame(columns=list(_OF_OTHERS.values())).astype(np.int64)
    parts = stream_parts.parts_of(found)
    for _ in stream_parts.ordered(engine, parts):
        rows.append(engine.query(streams.CANDIDATES))
        if found.suspect_streams:
            some, beside = _segments(engine, found, none)
            segments.append(some)
            others.append(beside)
    known = pd.concat([none, *others], ignore_index=True)
    if len(segments) > 1 and settled_inside(pd.concat(segments), known):
        # One that repeats a settled message may keep those of another part apart.
        segments = [_segments(engine, found, known)[0] for _ in stream_parts.ordered(engine, parts)]
    found_ = pd.concat([pd.DataFrame(columns=SEGMENT).astype(np.int64), *segments])
    return pa.concat_tables([each.cast(rows[0].schema) for each in rows]), found_


def _segments(engine: Engine, found: Survey, known: Frame) -> tuple[Frame, Frame]:
    """Return the settled segments of table `ordered`, each stream, or part of it, in one task.

    Also return the messages of no segment, as `settled.OTHERS`; `known` are those of other parts.
    """
    stretches = Stretches(found.covered)
    query = f"SELECT {', '.join(_OF_OTHERS)} FROM ({streams.SEGMENTS}) each WHERE NOT is_good"
    others = whole_numbers(engine.query(query)).fillna(-1).rename(columns=_OF_OTHERS)
    others = others.astype(np.int64)
    beside = pd.concat([known, others])

    def join(batches: Iterable[Any]) -> Iterator[Any]:
        # A stream of a task may be larger than its memory.
        segments: list[Frame] = []
        for table in _tables_of(batches):
            # Filter first: columns with nulls would become floating point, and hashes have 64 bits.
            good = table.filter(table["is_good"]).select(SEGMENT).to_pandas()
            segments.append(joined(good, stretches, beside, each_apart=True)[SEGMENT])
            if sum(map(len, segments)) > _ROWS_JOINED:
                some = joined(pd.concat(segments), stretches, beside, each_apart=True)
                segments = [some[SEGMENT]]
        if segments:
            some = joined(pd.concat(segments), stretches, beside, each_apart=True)[SEGMENT]
            yield pa.RecordBatch.from_pandas(some, _SEGMENTS, preserve_index=False)

    return engine.mapped(streams.SEGMENTS, join, _SEGMENTS).to_pandas(), others


def _tables_of(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the batches as tables of `_ROWS_JOINED` rows or more, but twice as many at most."""
    held: list[Any] = []
    for batch in batches:
        for first in range(0, len(batch), _ROWS_JOINED):
            held.append(batch.slice(first, _ROWS_JOINED))
            if sum(map(len, held)) >= _ROWS_JOINED:
                yield pa.Table.from_batches(held)
                held = []
    if held:
        yield pa.Table.from_batches(held)


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
    return pa.table(
        {name: pa.array(some[name].to_numpy(np.int64)) for name in columns}
        | {
            "old_sent": runs(segments, *of_sent),
            "old_accepted": runs(segments, "place_first", "place_last", "host", "at_min", "at_max"),
        }
    )


class _Clocks(NamedTuple):
    """The clocks of all hosts, as far as messages show them."""

    spans: clock_spans.Spans
    offsets: dict[int, float]
    wrong: dict[int, int]


def _compared(found: Survey, state: State, settings: AuditSettings) -> _Clocks:
    bounds = clock_spans.narrowed(state.clock_bounds, found.clock_bounds)
    offsets, wrong = clocks.solve_over_time(clock_spans.by_day(bounds), settings.clock_tolerance_ms)
    spans = clock_spans.Spans(bounds, wrong, _set_back(found.covered, settings.clock_tolerance_ms))
    return _Clocks(spans, offsets, wrong)


def _conclude(
    rows: Frame,
    found: Survey,
    routes: Frame,
    state: State,
    settings: AuditSettings,
    compared: _Clocks,
    copied: dict[int, int],
    shown: other_runs.Evidence | None = None,
    about: unread_runs.Events | None = None,
) -> tuple[AuditResult, Frame]:
    """Return the result, and the proved candidates; others stay open as a log is missing."""
    rows = _and(rows, presence.vanished(found, COLUMN_NAMES)).reset_index(drop=True)
    rows["source"] = rows.source.astype(np.int64)
    rows["stream"] = rows.stream.astype(np.int64)
    labels = Labels(found, routes)
    rows, why = decided(rows, found, compared.spans, labels, state, copied, shown, about)
    is_open = why != ""
    proved = rows[~is_open]
    open_rows = rows[is_open].assign(why=why[is_open])
    findings = [labels.finding(row) for row in proved.head(settings.findings_max).itertuples()]
    rows_of_hosts = restored(state.epochs, labels)
    rows_of_hosts += copies(copied, open_rows, labels)
    rows_of_hosts += about_hosts(open_rows, found, labels, compared.offsets, compared.wrong)
    counts = proved.kind.value_counts().to_dict()
    for each in rows_of_hosts:
        counts[each["kind"]] = counts.get(each["kind"], 0) + 1
    frame = pd.DataFrame(
        [*rows_of_hosts, *findings], columns=FINDING_SCHEMA.names, dtype=object
    ).astype({"sequence_number": "Int64", "until_number": "Int64", "at_ms": "Int64"})
    streams = labels.streams(frame, open_rows)
    result = AuditResult(
        findings=frame,
        open=_open_messages(open_rows, labels),
        streams=streams,
        offsets_ms={labels.host(host): offset for host, offset in compared.offsets.items()},
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


def _open_messages(open_rows: Frame, labels: Labels) -> Frame:
    """Count the open messages by reason and host."""
    hosts = [labels.host(int(host)) for host in open_rows.covering.fillna(0)]
    groups = open_rows.assign(host_name=hosts).groupby(["why", "host_name"], as_index=False)
    counted = groups.agg(messages=("kind", "size"), oldest_at_ms=("at_ms", "min"))
    return counted.rename(columns={"why": "reason", "host_name": "host"})


def _set_back(covered: Frame, tolerance_ms: int) -> set[int]:
    """Return hosts that set their clocks back beyond the tolerance, by their own logs."""
    return set(covered.host[covered.at_sum > tolerance_ms].tolist())
