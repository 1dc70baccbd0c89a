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

from pipeline.events import LogFile
from pipeline.jobs import clocks
from pipeline.jobs.audit.facts import coded, ids_of, is_local
from pipeline.jobs.incremental.known_events import DAY_MS, Chains
from pipeline.jobs.incremental.memory import Memory, joined
from pipeline.jobs.incremental.new_events import each_once

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
_POINTS = (0.5, 0.95, 0.99)

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
_MESSAGE = ", ".join(f"{name} bigint" for name in _NAMES)

_CELL = ["from_host", "to_host", "queue", "hour_ms", "stage", "raw_ms"]
_CELL_SCHEMA = ", ".join(f"{name} bigint" for name in (*_CELL, "messages", "bytes"))


def latency(
    spark: Any,
    files: Sequence[LogFile],
    memory: Memory,
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Frame]:
    """Return tables `by_route`, `by_queue`, `by_hour`, `route_hours` (of the slowest), `clocks`.

    They cover `files` and the content of `memory`; the new content is staged there.
    """
    from pyspark import StorageLevel

    progress(f"reading the messages of {len(files)} files")
    fresh = each_once(spark, files, memory.seen(), _COLUMNS, _EVENT, _events)
    messages = None
    try:
        names = _names(fresh.names, memory)
        chains = Chains(memory.see(fresh.stretches))
        messages = _judged(spark, fresh, memory, chains).persist(StorageLevel.DISK_ONLY)
        messages.createOrReplaceTempView("messages")
        progress("comparing the clocks of the hosts")
        offsets = _offsets(spark, memory)
        shifts = _shifts(offsets, memory)
        for name, frame in (("offsets", offsets), ("shifts", shifts)):
            spark.createDataFrame(frame, _OFFSETS).createOrReplaceTempView(name)
        progress("their stages")
        cells = _cells(spark).persist(StorageLevel.DISK_ONLY)
        _remember(cells, messages, memory)
        tables = _tables(spark, cells, names, memory)
        cells.unpersist()
    finally:
        fresh.close()
        if messages is not None:
            messages.unpersist()
    tables["clocks"] = _clocks(offsets, names)
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


def _judged(spark: Any, fresh: Any, memory: Memory, chains: Chains) -> Any:
    """Return a row for each message that was incomplete before, and whether it `is_over`."""
    fresh.rows.createOrReplaceTempView("events")
    parts = [
        f"{how}(CASE WHEN stage = {stage} THEN {column} END) AS {name}"
        for name, (how, column, stage) in _OF_MESSAGE.items()
    ]
    found = spark.sql(
        f"SELECT source, number, {', '.join(parts)}, max(bytes) AS bytes, min(at_ms) AS told_ms,"
        " min(host) AS told_host FROM events GROUP BY source, number"
    )
    if memory.parts("open"):
        known = spark.createDataFrame(memory.table("open", _numbers(_NAMES)), _MESSAGE)
        found.unionByName(known).createOrReplaceTempView("known")
        parts = [f"min({name}) AS {name}" for name in (*_OF_MESSAGE, "told_ms", "told_host")]
        found = spark.sql(
            f"SELECT source, number, {', '.join(parts)}, max(bytes) AS bytes FROM known"
            " GROUP BY source, number"
        )

    def each(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            over = pa.array(_is_over(batch, chains), pa.bool_())
            yield pa.RecordBatch.from_arrays(
                [*batch.columns, over], names=[*batch.schema.names, "is_over"]
            )

    return found.select(*_NAMES).mapInArrow(each, f"{_MESSAGE}, is_over boolean")


def _is_over(batch: Any, chains: Chains) -> Array:
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
    newest = pd.Series(column("told_host")).map(chains.newest).fillna(0).to_numpy(np.int64)
    is_old = newest > column("told_ms") + WAIT_DAYS * DAY_MS
    return (is_known & is_complete) | is_old


def _offsets(spark: Any, memory: Memory) -> Frame:
    """Return how far each host's clock is ahead on each day, from all known messages."""
    new = spark.sql(
        "SELECT from_host AS source, to_host AS host, sent_ms DIV 86400000 AS day,"
        " max(accepted_ms - acked_ms) AS at_from, min(accepted_ms - sent_ms) AS at_to"
        " FROM messages WHERE sent_ms IS NOT NULL AND accepted_ms IS NOT NULL"
        " AND from_host <> to_host GROUP BY 1, 2, 3"
    ).toPandas()
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


_OFFSETS = "host bigint, day bigint, offset_ms double"


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


def _cells(spark: Any) -> Any:
    """Count the messages of each route, queue, hour and duration, by uncorrected clocks.

    Stage 0 counts all messages.
    """
    # `stack` makes a row for each known stage.
    stages = ", ".join(
        f"{n}, {name}_ms - sent_ms, {'shift' if there else '0D'}"
        for n, (name, there) in enumerate(STAGES.items(), 1)
    )
    spark.sql(
        "SELECT /*+ BROADCAST(f, t) */ m.*, coalesce(t.offset_ms, 0) - coalesce(f.offset_ms, 0)"
        " AS shift FROM messages m"
        " LEFT JOIN shifts f ON m.from_host = f.host AND m.sent_ms DIV 86400000 = f.day"
        " LEFT JOIN shifts t ON m.to_host = t.host AND m.sent_ms DIV 86400000 = t.day"
        " WHERE sent_ms IS NOT NULL AND (to_host IS NOT NULL OR acked_ms IS NOT NULL)"
    ).createOrReplaceTempView("counted")
    spark.sql(
        "SELECT from_host, coalesce(to_host, 0) AS to_host, coalesce(queue, destination) AS queue,"
        " sent_ms - sent_ms % 3600000 AS hour_ms, is_over, bytes,"
        f" stack({len(STAGES) + 1}, 0, 0L, 0D, {stages}) AS (stage, raw, shift) FROM counted"
    ).createOrReplaceTempView("differences")
    near = "raw - CAST(shift AS bigint)"
    step = (
        f"CAST(shift AS bigint) + CAST(sign({near}) * round({EXACT_MS} * pow({STEP},"
        f" 0.5 + floor(ln(abs({near}) / {EXACT_MS}) / ln({STEP})))) AS bigint)"
    )
    return spark.sql(
        "SELECT from_host, to_host, queue, hour_ms, CAST(stage AS bigint) AS stage,"
        f" CASE WHEN abs({near}) < {EXACT_MS} THEN raw ELSE {step} END AS raw_ms, is_over,"
        " count(*) AS messages, sum(if(stage = 0, bytes, 0)) AS bytes"
        " FROM differences WHERE raw IS NOT NULL GROUP BY 1, 2, 3, 4, 5, 6, 7"
    )


def _remember(cells: Any, messages: Any, memory: Memory) -> None:
    over = cells.where("is_over").drop("is_over").toArrow()
    is_full = memory.parts("histogram") >= _PARTS_MAX
    if is_full:
        over = pa.concat_tables([over, memory.table("histogram", over.schema)])
        over = over.group_by(_CELL).aggregate([("messages", "sum"), ("bytes", "sum")])
        over = over.rename_columns([name.removesuffix("_sum") for name in over.column_names])
    # In this order most columns repeat, and compress well.
    over = over.sort_by([(name, "ascending") for name in _CELL])
    memory.stage_table("histogram", over, append=not is_full)
    kept = messages.where("NOT is_over").drop("is_over").toArrow()
    memory.stage_table("open", kept.sort_by([("source", "ascending"), ("number", "ascending")]))


def _numbers(names: Sequence[str]) -> Any:
    return pa.schema([(name, pa.int64()) for name in names])


def _tables(spark: Any, cells: Any, names: dict[int, str], memory: Memory) -> dict[str, Frame]:
    histogram = memory.table("histogram", _numbers([*_CELL, "messages", "bytes"]))
    known = spark.createDataFrame(histogram, _CELL_SCHEMA)
    everything = known.unionByName(cells.where("NOT is_over").drop("is_over"))
    everything.createOrReplaceTempView("cells")
    _durations(spark, names).createOrReplaceTempView("took")
    by_route, by_queue, by_hour = _figures(
        spark, ("from_host", "to_host"), ("to_host", "queue"), ("hour",)
    )
    result = {
        "by_route": _ranked(by_route, "accepted_p95_ms", "from_host", "to_host"),
        "by_queue": _ranked(by_queue, "received_p95_ms", "to_host", "queue"),
        "by_hour": by_hour.sort_values("hour", ignore_index=True),
    }
    slow = result["by_route"].dropna(subset=["accepted_p95_ms"]).head(SLOW_ROUTES)
    spark.createDataFrame(
        list(slow[["from_host", "to_host"]].itertuples(index=False, name=None)),
        "from_host string, to_host string",
    ).createOrReplaceTempView("slow")
    spark.sql(
        "SELECT /*+ BROADCAST(slow) */ took.* FROM took JOIN slow USING (from_host, to_host)"
    ).createOrReplaceTempView("took")
    (route_hours,) = _figures(spark, ("from_host", "to_host", "hour"))
    result["route_hours"] = route_hours.sort_values(
        ["from_host", "to_host", "hour"], ignore_index=True
    )
    return result


def _durations(spark: Any, names: dict[int, str]) -> Any:
    """Return the view `cells` with names, and durations corrected by the offsets of clocks."""
    texts = [(key, text) for key, text in names.items()]
    spark.createDataFrame(texts, "key bigint, text string").createOrReplaceTempView("texts")
    at_other = ", ".join(str(n) for n, there in enumerate(STAGES.values(), 1) if there)
    return spark.sql(
        "SELECT /*+ BROADCAST(f, t, a, b, q) */ a.text AS from_host, coalesce(b.text, '') AS"
        " to_host, q.text AS queue, timestamp_millis(hour_ms) AS hour, stage, messages, bytes,"
        f" raw_ms - if(stage IN ({at_other}),"
        " coalesce(t.offset_ms, 0) - coalesce(f.offset_ms, 0), 0) AS took_ms FROM cells"
        " LEFT JOIN offsets f ON from_host = f.host AND hour_ms DIV 86400000 = f.day"
        " LEFT JOIN offsets t ON to_host = t.host AND hour_ms DIV 86400000 = t.day"
        " LEFT JOIN texts a ON from_host = a.key LEFT JOIN texts b ON to_host = b.key"
        " LEFT JOIN texts q ON queue = q.key"
    )


def _figures(spark: Any, *sets: tuple[str, ...]) -> list[Frame]:
    """Return the figures of the view `took` by each set of columns, from one query."""
    points = ", ".join(map(str, _POINTS))
    figures = ", ".join(
        f"percentile(took_ms, array({points}), messages) FILTER (WHERE stage = {n}) AS {name}"
        for n, name in enumerate(STAGES, 1)
    )
    columns = list(dict.fromkeys(column for each in sets for column in each))
    found = spark.sql(
        f"SELECT {', '.join(columns)}, grouping_id({', '.join(columns)}) AS grouped,"
        " sum(messages) FILTER (WHERE stage = 0) AS messages,"
        f" sum(bytes) AS bytes, {figures},"
        " coalesce(sum(messages) FILTER (WHERE stage = 2 AND took_ms < 0), 0) AS before_sent"
        f" FROM took GROUP BY GROUPING SETS ({', '.join(map(_listed, sets))})"
    ).toPandas()
    for name in STAGES:
        for at, point in enumerate(_POINTS):
            found[f"{name}_p{int(point * 100)}_ms"] = [
                None if each is None else each[at] for each in found[name]
            ]
    figures_of = [name for name in found.columns if name.endswith("_ms")]
    found[figures_of] = found[figures_of].astype(np.float64)
    found = found.drop(columns=list(STAGES))
    tables = []
    for each in sets:
        left_out = [column not in each for column in columns]
        mine = sum(bit << n for n, bit in enumerate(reversed(left_out)))
        gone = ["grouped", *(column for column in columns if column not in each)]
        table = found[found.grouped == mine].drop(columns=gone)
        tables.append(table[[*each, *(name for name in table.columns if name not in each)]])
    return tables


def _ranked(frame: Frame, figure: str, *columns: str) -> Frame:
    """Sort by `figure`, the largest first, and then by `columns`."""
    return frame.sort_values(
        [figure, *columns], ascending=[False, *[True] * len(columns)], ignore_index=True
    )


def _listed(columns: tuple[str, ...]) -> str:
    return f"({', '.join(columns)})"


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
