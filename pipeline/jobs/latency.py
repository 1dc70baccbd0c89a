"""Latency of messages, from stage to stage, by route, queue and hour.  docs/jobs.md, "latency"

A stage at another host is recorded by another clock: offsets are estimated from messages in both
directions, for each day, and subtracted.  A difference that is still negative is counted as such
(`before_sent`), and not as 0.

Of a message with all events, only its counts in a histogram are kept: for its route,
queue and hour, by the uncorrected clocks, so that offsets that become known later also correct
earlier counts.  Of all other messages a row is kept from run to run.  docs/decisions/0026
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from pipeline.engines.engine import Engine, whole_numbers
from pipeline.engines.on_spark import engine_of
from pipeline.events import LogFile
from pipeline.jobs import clocks
from pipeline.jobs.audit.facts import coded, ids_of, is_local
from pipeline.jobs.incremental.believed import believed
from pipeline.jobs.incremental.known_events import DAY_MS, Chains
from pipeline.jobs.incremental.memory import Memory, joined
from pipeline.jobs.incremental.new_events import NewEvents, each_once
from pipeline.jobs.latency_figures import day_of, durations, figures

Frame = Any
Array = Any

#: Stages, each measured since the message was sent; `true`: recorded by the receiver's clock.
STAGES = {
    "transmitted": False,
    "accepted": True,
    "acked": False,
    "received": True,
    "confirmed": False,
}
SLOW_ROUTES = 25  # are listed hour by hour

#: How long an incomplete message is kept, by the newest event of a host that has logged it.
WAIT_DAYS = 30
#: A transmission may be logged this much later than its acknowledgment.
_LAZY_MS = 5_000
#: Figures are exact up to this many ms; above, the histogram has steps of 2 %.
EXACT_MS = 128
STEP = 1.02
_PARTS_MAX = 12  # of the histogram: then they are merged

_COLUMNS = ("host", "kind", "message_id", "queue", "bytes")
(_SENT, _TRANSMITTED, _ACCEPTED, _ACKED, _RECEIVED, _CONFIRMED, _AWAITING, _SETTLED, _GONE,
 _DIED) = range(1, 11)  # fmt: skip
_KINDS = {
    "sent": _SENT,
    "transmitted": _TRANSMITTED,
    "accepted": _ACCEPTED,
    "order_acknowledged": _ACKED,
    "session_acknowledged": _ACKED,
    "received": _RECEIVED,
    "confirmed": _CONFIRMED,
    "awaiting": _AWAITING,
    "unconfirmed": _SETTLED,
    "final_ack_received": _SETTLED,
    **dict.fromkeys(("expired", "purged", "queue_deleted", "rejected", "lost", "damaged"), _GONE),
    **dict.fromkeys(("dead_lettered", "discarded"), _DIED),
}
_EVENT = "source bigint, number bigint, stage bigint, at_ms bigint, host bigint, queue bigint," \
         " bytes bigint, block bigint"  # fmt: skip

#: Columns of a message: the first event of each kind.  Hosts are hashes of GUIDs, queues of names.
_OF_MESSAGE = {
    "sent_ms": ("min", "at_ms", _SENT),
    "sent_block": ("min", "block", _SENT),
    "from_host": ("min", "host", _SENT),
    "destination": ("min", "queue", _SENT),
    "transmitted_ms": ("min", "at_ms", _TRANSMITTED),
    "accepted_ms": ("min", "at_ms", _ACCEPTED),
    "accepted_block": ("min", "block", _ACCEPTED),
    "to_host": ("min", "host", _ACCEPTED),
    "queue": ("min", "queue", _ACCEPTED),
    "acked_ms": ("min", "at_ms", _ACKED),
    "acked_block": ("min", "block", _ACKED),
    "received_ms": ("min", "at_ms", _RECEIVED),
    "received_block": ("min", "block", _RECEIVED),
    "confirmed_ms": ("min", "at_ms", _CONFIRMED),
    "confirmed_block": ("min", "block", _CONFIRMED),
    "awaiting_block": ("min", "block", _AWAITING),
    "settled_block": ("min", "block", _SETTLED),
    "gone_block": ("min", "block", _GONE),
}
_NAMES = ["source", "number", *_OF_MESSAGE, "bytes", "told_ms", "told_host"]

_CELL = ["from_host", "to_host", "queue", "hour_ms", "stage", "raw_ms"]


def latency(
    spark: Any,
    files: Sequence[LogFile],
    memory: Memory,
    progress: Callable[[str], None] = lambda text: None,
    *,
    now_ms: int | None = None,
) -> dict[str, Frame]:
    """Return tables `by_route`, `by_queue`, `by_hour`, `route_hours` (of the slowest), `clocks`.

    They cover `files` and the content of `memory`; the new content is staged there.  `spark` is a
    session, or the embedded engine.  `now_ms` is the time of the run, if not that of this host.
    """
    engine = engine_of(spark)
    progress(f"reading the messages of {len(files)} files")
    fresh = each_once(spark, files, memory.seen(), _COLUMNS, _EVENT, _events)
    try:
        names = _names(fresh.names, memory)
        seen = memory.see(fresh.stretches)
        counting, day_last = believed(seen, now_ms)
        newest = counting.groupby("host").at_last.max()
        _judge(engine, fresh, memory, Chains(seen), newest)
        progress("comparing the clocks of the hosts")
        offsets = _offsets(engine, memory)
        for name, frame in (("offsets", offsets), ("shifts", _shifts(offsets, memory))):
            engine.put(name, pa.Table.from_pandas(frame, _OFFSETS, preserve_index=False))
        progress("their stages")
        _count(engine)
        _remember(engine, memory)
        tables = _tables(engine, names, memory)
    finally:
        engine.release()
        fresh.close()
    tables["clocks"] = _clocks(offsets[offsets.day <= day_last], names)
    return tables


def _events(table: Any, names: dict[int, str]) -> Iterable[Any]:
    """Return the events on the way of messages to another host."""
    from pipeline.events import text_hashes

    stage = coded(table.column("kind"), _KINDS, 0).astype(np.int64)
    at = np.flatnonzero(stage)
    if len(at) == 0:
        return []
    table, stage = table.take(pa.array(at)), stage[at]
    own_names: dict[int, str] = {}
    host = text_hashes(table.column("queue_manager"))
    source, number, has_id = ids_of(table.column("message_id").combine_chunks())
    queues = table.column("queue").combine_chunks()
    queue = text_hashes(queues, own_names)
    host_names = text_hashes(table.column("host"), own_names)
    own, here = source == host, is_local(queues)
    beside = [
        key
        for key, text in own_names.items()
        if text.endswith(";journal") or text.startswith("system$")
    ]
    # Only the source logs sending and acknowledgments.  Its own dead letters, its messages to
    # itself, and copies in journals take no way.
    by_source = np.isin(stage, (_SENT, _TRANSMITTED, _ACKED, _CONFIRMED, _AWAITING, _SETTLED))
    by_other = np.isin(stage, (_ACCEPTED, _RECEIVED, _GONE))
    chosen = has_id & np.where(
        by_source,
        own & ~here,
        np.where(by_other, ~own & here & ~np.isin(queue, np.array(beside, np.int64)), False),
    )
    for key in np.unique(queue[chosen]).tolist():
        names[key] = own_names[key]
    for mine, name in set(zip(host.tolist(), host_names.tolist(), strict=True)):
        names[mine] = own_names[name]
    at = np.flatnonzero(chosen)
    arrays = [
        source[at], number[at], stage[at], table.column("at_ms").to_numpy()[at], host[at],
        queue[at], table.column("bytes").fill_null(0).to_numpy()[at],
        table.column("block").to_numpy()[at],
    ]  # fmt: skip
    columns = [each.split()[0] for each in _EVENT.split(", ")]
    return [pa.RecordBatch.from_arrays([pa.array(a, pa.int64()) for a in arrays], names=columns)]


def _names(new: dict[int, str], memory: Memory) -> dict[int, str]:
    empty = pd.DataFrame({"key": pd.Series(dtype=np.int64), "text": pd.Series(dtype=object)})
    known = memory.read("names", empty)
    names = dict(zip(known.key.tolist(), known.text.tolist(), strict=True)) | new
    rows = sorted(names.items())
    memory.stage("names", pd.DataFrame(rows, columns=["key", "text"]).astype({"key": np.int64}))
    return names


def _judge(engine: Engine, fresh: NewEvents, memory: Memory, chains: Chains, newest: Frame) -> None:
    """Create `messages`: each message that was incomplete before, and whether it `is_over`.

    `newest` are the times of the newest events of hosts.
    """
    fresh.view(engine, "events")
    parts = [
        f"{how}(CASE WHEN stage = {stage} THEN {column} END) AS {name}"
        for name, (how, column, stage) in _OF_MESSAGE.items()
    ]
    found = (
        f"SELECT source, number, {', '.join(parts)}, max(bytes) AS bytes, min(at_ms) AS told_ms,"
        " min(host) AS told_host FROM events GROUP BY source, number"
    )
    if memory.parts("open"):
        engine.put("known", memory.table("open", _numbers(_NAMES)))
        engine.view("fresh", found)
        listed = ", ".join(_NAMES)
        parts = [f"min({name}) AS {name}" for name in (*_OF_MESSAGE, "told_ms", "told_host")]
        found = (
            f"SELECT source, number, {', '.join(parts)}, max(bytes) AS bytes FROM"
            f" (SELECT {listed} FROM fresh UNION ALL SELECT {listed} FROM known)"
            " GROUP BY source, number"
        )

    def each(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            over = pa.array(_is_over(batch, chains, newest), pa.bool_())
            yield pa.RecordBatch.from_arrays([*batch.columns, over], schema=schema)

    schema = _numbers(_NAMES).append(pa.field("is_over", pa.bool_()))
    engine.keep_mapped("messages", f"SELECT {', '.join(_NAMES)} FROM ({found})", each, schema)


def _is_over(batch: Any, chains: Chains, newest: Frame) -> Array:
    """Return for each message whether later files can still change its row.

    They cannot if the log of its source was read without a gap from its sending to its
    acknowledgment (and its settlement, if that is awaited), and the log of its destination from its
    arrival until it left its queue; or if `WAIT_DAYS` have passed.
    """
    none = np.int64(-1)

    def column(name: str) -> Array:
        return batch.column(batch.schema.names.index(name)).fill_null(none).to_numpy()

    source, target = column("from_host"), column("to_host")
    acked = column("acked_block")
    begun, until = chains.of(source, column("sent_block"))
    acknowledged, _ = chains.of(source, acked)
    awaited = column("awaiting_block") != none
    last = np.maximum(column("confirmed_block"), column("settled_block"))
    settled, _ = chains.of(source, last)
    left = np.where(
        column("received_block") != none, column("received_block"), column("gone_block")
    )
    came, _ = chains.of(target, column("accepted_block"))
    gone, _ = chains.of(target, left)
    is_known = (column("sent_ms") != none) & (column("accepted_ms") != none) & (acked != none)
    is_complete = (begun > 0) & (begun == acknowledged) & (until >= column("acked_ms") + _LAZY_MS)
    is_complete &= ~awaited | ((last != none) & (settled == begun))
    is_complete &= (left != none) & (came > 0) & (came == gone)
    until_now = pd.Series(column("told_host")).map(newest).fillna(0).to_numpy(np.int64)
    is_old = until_now > column("told_ms") + WAIT_DAYS * DAY_MS
    return (is_known & is_complete) | is_old


def _offsets(engine: Engine, memory: Memory) -> Frame:
    """Return how far each host's clock is ahead on each day, from all known messages."""
    new = engine.query(
        f"SELECT from_host AS source, to_host AS host, {day_of('sent_ms')} AS day,"
        " max(accepted_ms - acked_ms) AS at_from, min(accepted_ms - sent_ms) AS at_to"
        " FROM messages WHERE sent_ms IS NOT NULL AND accepted_ms IS NOT NULL"
        " AND from_host <> to_host GROUP BY 1, 2, 3"
    )
    new = whole_numbers(new)
    old = memory.read("bounds", pd.DataFrame(columns=clocks.BOUNDS))
    types = dict.fromkeys(clocks.BOUNDS, "Int64")
    old, new = old.astype(types), new.astype(types)
    both = (
        joined(old, new)
        .groupby(["source", "host", "day"], as_index=False)
        .agg(at_from=("at_from", "max"), at_to=("at_to", "min"))
        .sort_values(["day", "source", "host"], ignore_index=True)
    )
    memory.stage("bounds", both)
    known = memory.read("offsets", _no_offsets())
    changed = set(
        joined(both, old).drop_duplicates(keep=False).day
    )  # days without new bounds keep their offsets
    rows = [
        (int(host), int(day), float(offset))
        for day, part in both[both.day.isin(changed)].groupby("day")
        for host, offset in clocks.estimate(part.drop(columns="day")).items()
    ]
    fresh = pd.DataFrame(rows, columns=list(known.columns))
    together = joined(known[~known.day.isin(changed)], fresh.astype(known.dtypes))
    together = together.sort_values(["day", "host"], ignore_index=True)
    memory.stage("offsets", together)
    return together


_OFFSETS = pa.schema([("host", pa.int64()), ("day", pa.int64()), ("offset_ms", pa.float64())])


def _no_offsets() -> Frame:
    return pd.DataFrame({
        "host": pd.Series(dtype=np.int64), "day": pd.Series(dtype=np.int64),
        "offset_ms": pd.Series(dtype=np.float64),
    })  # fmt: skip


def _shifts(offsets: Frame, memory: Memory) -> Frame:
    """Return the difference around which the histogram has small steps; once chosen it stays."""
    known = memory.read("shifts", _no_offsets())
    new = offsets.assign(offset_ms=offsets.offset_ms.round())
    both = joined(known, new).drop_duplicates(["host", "day"], keep="last")
    if len(known):
        # A step that moves by a few ms would only add more steps.
        before = both[["host", "day"]].merge(known, how="left", on=["host", "day"]).offset_ms
        near = (both.offset_ms.to_numpy() - before.to_numpy()).__abs__() < 20
        both["offset_ms"] = np.where(near, before, both.offset_ms)
    both = both.sort_values(["day", "host"], ignore_index=True)
    memory.stage("shifts", both)
    return both


def _count(engine: Engine) -> None:
    """Create `cells`: messages of each route, queue, hour and duration, by uncorrected clocks.

    Stage 0 counts all messages.
    """
    stages = [_stage("0", "0", "0")]
    stages += [
        _stage(str(n), f"{name}_ms - sent_ms", "shift" if there else "0")
        for n, (name, there) in enumerate(STAGES.items(), 1)
    ]
    engine.view(
        "counted",
        "SELECT /*+ BROADCAST(f, t) */ m.*, coalesce(t.offset_ms, 0) - coalesce(f.offset_ms, 0)"
        " AS shift FROM messages m"
        f" LEFT JOIN shifts f ON m.from_host = f.host AND {day_of('m.sent_ms')} = f.day"
        f" LEFT JOIN shifts t ON m.to_host = t.host AND {day_of('m.sent_ms')} = t.day"
        " WHERE sent_ms IS NOT NULL AND (to_host IS NOT NULL OR acked_ms IS NOT NULL)",
    )
    engine.view(
        "differences",
        "SELECT from_host, coalesce(to_host, 0) AS to_host, coalesce(queue, destination) AS queue,"
        " sent_ms - sent_ms % 3600000 AS hour_ms, is_over, bytes,"
        f" inline(array({', '.join(stages)})) FROM counted",
    )
    near = "(raw - around)"
    step = (
        f"around + CAST(sign({near}) * round({EXACT_MS} * pow({STEP},"
        f" 0.5 + floor(ln(abs({near}) / {EXACT_MS}.0) / ln({STEP})))) AS bigint)"
    )
    engine.keep(
        "cells",
        "SELECT from_host, to_host, queue, hour_ms, stage,"
        f" CASE WHEN abs({near}) < {EXACT_MS} THEN raw ELSE {step} END AS raw_ms, is_over,"
        " count(*) AS messages,"
        " CAST(sum(CASE WHEN stage = 0 THEN bytes ELSE 0 END) AS bigint) AS bytes"
        " FROM differences WHERE raw IS NOT NULL GROUP BY 1, 2, 3, 4, 5, 6, 7",
    )


def _stage(number: str, raw: str, around: str) -> str:
    """Return a structure: a stage, its duration, and the whole ms around which steps are small."""
    return (
        f"named_struct('stage', CAST({number} AS bigint), 'raw', CAST({raw} AS bigint),"
        f" 'around', CAST({around} AS bigint))"
    )


def _remember(engine: Engine, memory: Memory) -> None:
    listed = ", ".join([*_CELL, "messages", "bytes"])
    over = engine.query(f"SELECT {listed} FROM cells WHERE is_over")
    over = over.cast(_numbers(over.schema.names))
    is_full = memory.parts("histogram") >= _PARTS_MAX
    if is_full:
        over = pa.concat_tables([over, memory.table("histogram", over.schema)])
        over = over.group_by(_CELL).aggregate([("messages", "sum"), ("bytes", "sum")])
        over = over.rename_columns([name.removesuffix("_sum") for name in over.column_names])
    # In this order most columns repeat, and compress well.
    over = over.sort_by([(name, "ascending") for name in _CELL])
    memory.stage_table("histogram", over, append=not is_full)
    kept = engine.query(f"SELECT {', '.join(_NAMES)} FROM messages WHERE NOT is_over")
    memory.stage_table("open", kept.sort_by([("source", "ascending"), ("number", "ascending")]))


def _numbers(names: Sequence[str]) -> Any:
    return pa.schema([(name, pa.int64()) for name in names])


def _tables(engine: Engine, names: dict[int, str], memory: Memory) -> dict[str, Frame]:
    columns = [*_CELL, "messages", "bytes"]
    listed = ", ".join(columns)
    engine.put("histogram", memory.table("histogram", _numbers(columns)))
    texts = {
        "key": pa.array(list(names), pa.int64()),
        "text": pa.array(names.values(), pa.string()),
    }
    engine.put("texts", pa.table(texts))
    there = [n for n, is_there in enumerate(STAGES.values(), 1) if is_there]
    engine.view("took", durations(listed, there))
    by_route, by_queue, by_hour = figures(
        engine, "took", list(STAGES), ("from_host", "to_host"), ("to_host", "queue"), ("hour_ms",)
    )
    result = {
        "by_route": _ranked(by_route, "accepted_p95_ms", "from_host", "to_host"),
        "by_queue": _ranked(by_queue, "received_p95_ms", "to_host", "queue"),
        "by_hour": by_hour.sort_values("hour", ignore_index=True),
    }
    slow = result["by_route"].dropna(subset=["accepted_p95_ms"]).head(SLOW_ROUTES)
    pairs = pa.schema([("from_host", pa.string()), ("to_host", pa.string())])
    engine.put("slow", pa.Table.from_pandas(slow[pairs.names], pairs, preserve_index=False))
    engine.view(
        "took_slowly",
        "SELECT /*+ BROADCAST(slow) */ took.* FROM took JOIN slow USING (from_host, to_host)",
    )
    (route_hours,) = figures(
        engine, "took_slowly", list(STAGES), ("from_host", "to_host", "hour_ms")
    )
    result["route_hours"] = route_hours.sort_values(
        ["from_host", "to_host", "hour"], ignore_index=True
    )
    return result


def _ranked(frame: Frame, figure: str, *columns: str) -> Frame:
    """Sort by `figure`, the largest first, and then by `columns`."""
    return frame.sort_values(
        [figure, *columns], ascending=[False, *[True] * len(columns)], ignore_index=True
    )


def _clocks(offsets: Frame, names: dict[int, str]) -> Frame:
    """Return each host's offset on its last known day, and the least and largest of all days."""
    if len(offsets) == 0:
        return pd.DataFrame(columns=["host", "offset_ms", "least_ms", "most_ms"])
    last = offsets.sort_values("day").groupby("host", as_index=False).agg(
        offset_ms=("offset_ms", "last"), least_ms=("offset_ms", "min"),
        most_ms=("offset_ms", "max"),
    )  # fmt: skip
    last["host"] = [names.get(int(host), "") for host in last.host]
    order = last.offset_ms.abs().sort_values(ascending=False, kind="stable").index
    return last.loc[order].reset_index(drop=True)
