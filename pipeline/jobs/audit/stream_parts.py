"""Streams in parts, so that no query, or no task of it, holds all messages of a large one.

The rows of a part have beside them a few that stand for all that come before and behind it: the
rules ask only for the largest and smallest values there.

The embedded engine holds the groups of an aggregation, and the rows of a window, in memory: 2 KB
for each message of a stream.  So the messages are made for some of their numbers at a time, and
ordered for some of their keys at a time.  Spark orders all parts of all streams at once, each in
a task.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa

from pipeline.engines.engine import Engine, whole_numbers
from pipeline.jobs.audit.rules import streams
from pipeline.jobs.audit.settled import in_pairs

if TYPE_CHECKING:
    from pipeline.jobs.audit.survey import Survey

Frame = Any

#: In one part; more only if so many messages have one key.
MESSAGES_MAX = 50_000
FACTS_MAX = 500_000
#: In one task of Spark: in its heap, three windows hold 0.5 KB of each.
TASK_MAX = 100_000
_SLICE = 4096  # numbers
_RANGE = 12  # bits of a key

_OF_STREAM = ["source", "stream"]
_RANGES = pa.schema(
    [
        *((name, pa.int64()) for name in (*_OF_STREAM, "part", "first", "last")),
        ("is_first", pa.bool_()),
    ]
)
#: Of the rows beside a part; the other columns of `messages` are null there.
_SUMMED = (
    *_OF_STREAM, "number", "key", "sent", "sent_key", "sent_at", "sent_block", "accepted",
    "accepted_at", "accepted_block", "place", "ack_at", "ack_block", "host", "receiver",
)  # fmt: skip
_BESIDE = pa.schema([(name, pa.int64()) for name in (*_SUMMED, "part")])
_COUNTS = """
SELECT source, stream, {piece} AS piece, count(*) AS messages FROM messages
WHERE key IS NOT NULL GROUP BY source, stream, {piece}
"""
#: The parts of the streams with more messages than `{most}`.
_LARGE = f"""
WITH counts AS ({_COUNTS}), placed AS (
  SELECT *, sum(messages) OVER (PARTITION BY source, stream) AS of_stream,
    sum(messages) OVER (PARTITION BY source, stream ORDER BY piece
                        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) - messages AS before
  FROM counts
), parts AS (
  SELECT *, CAST(floor(before / {{most}}) AS BIGINT) AS part FROM placed WHERE of_stream > {{most}}
)
SELECT source, stream, part, min(piece) AS piece_min, max(piece) AS piece_max
FROM parts GROUP BY source, stream, part
"""
_JOINED = """JOIN stream_part r ON m.source = r.source AND m.stream = r.stream
  AND (m.key BETWEEN r.first AND r.last OR (m.key IS NULL AND r.is_first))"""
_ROWS = f"""
SELECT /*+ BROADCAST(r) */ m.*, coalesce(r.part, 0) AS part, FALSE AS is_beside
FROM messages m {{how}} {_JOINED}
"""
_OF_RECEIVER = "FILTER (WHERE m.host = m.receiver)"
_SUMS = f"""
SELECT /*+ BROADCAST(r) */ m.source, m.stream, r.part, m.host, min(m.receiver) AS receiver,
  min(m.key) AS key_min, max(m.key) AS key_max, max(m.sent_key) AS sent_key,
  max(m.sent_at) AS sent_at, min(m.sent_block) AS sent_block_min,
  max(m.sent_block) AS sent_block_max,
  min(m.number) FILTER (WHERE m.sent > 0) AS number_min,
  max(m.number) FILTER (WHERE m.sent > 0) AS number_max,
  min(m.accepted_block) {_OF_RECEIVER} AS accepted_block_min,
  max(m.accepted_block) {_OF_RECEIVER} AS accepted_block_max,
  min(m.accepted_at) AS accepted_at, min(m.ack_at) AS ack_at, min(m.ack_block) AS ack_block,
  min(m.place) FILTER (WHERE m.accepted > 0) AS place,
  min(m.place) FILTER (WHERE m.accepted > 0 AND m.sent > 0) AS sent_place
FROM messages m {_JOINED} GROUP BY m.source, m.stream, r.part, m.host
"""


def parts_of(found: Survey) -> int:
    """Return the number of parts of all judged messages, for Spark; 0 if no source has many."""
    some = found.streams[in_pairs(found.streams, found.judged_streams)]
    messages = some[["sent_count", "accepted_count"]].max(axis=1).clip(lower=0)
    if len(some) == 0 or messages.groupby(some.source).sum().max() <= TASK_MAX:
        return 0
    return int(messages.sum()) // TASK_MAX + 1


def keep_messages(engine: Engine, parts: int) -> None:
    """Create `messages`: a view, or a table that is made for some numbers at a time.

    `parts` is that of `parts_of`.
    """
    if not engine.in_parts:
        create = engine.keep if parts else engine.view
        create("messages", streams.MESSAGES)
        return
    piece = f"CAST(floor(number / {_SLICE}) AS BIGINT)"
    counts = engine.query(f"SELECT {piece} AS piece, count(*) AS rows FROM facts GROUP BY {piece}")
    counts = counts.to_pandas().sort_values("piece")
    part = _parts(counts.rows.to_numpy(np.int64), FACTS_MAX)
    ranges = counts.groupby(part).piece.agg(["min", "max"]) * _SLICE
    engine.keep(
        "messages",
        *(streams.messages_of(first, last + _SLICE - 1)
          for first, last in ranges.itertuples(index=False))
        if len(ranges) > 1 else (streams.MESSAGES,),
    )  # fmt: skip


def ordered(engine: Engine, parts: int) -> Iterator[None]:
    """Create `ordered`: at once, or for one part of the messages after the other."""
    if engine.in_parts:
        counts = engine.query(_COUNTS.format(piece=f"key >> {_RANGE}")).to_pandas()
        if counts.messages.sum() > MESSAGES_MAX:
            yield from _one_after_the_other(engine, _ranges(counts))
            return
    elif parts and len(ranges := _of_large(engine)):
        sums = _sums(engine, ranges)
        rows = [_rows_beside(sums, number) for number in sorted(set(ranges.part))]
        _order(engine, ranges, pd.concat(rows, ignore_index=True), tasks=2 * parts)
        yield
        return
    # Two queries read it: candidates and segments.
    engine.keep("ordered", streams.ordered())
    yield


def _one_after_the_other(engine: Engine, ranges: Frame) -> Iterator[None]:
    parts = [part for _, part in ranges.groupby("part")]
    sums = pd.concat([_sums(engine, part) for part in parts], ignore_index=True)
    for part in parts:
        _order(engine, part, _rows_beside(sums, int(part.part.iloc[0])))
        yield


def _order(engine: Engine, ranges: Frame, beside: Frame, *, tasks: int = 0) -> None:
    """Create `ordered` from the parts `ranges`, and with `tasks` from all other messages too."""
    engine.put("stream_part", _table(ranges, _RANGES))
    engine.put("stream_beside", _table(beside, _BESIDE))
    names = engine.query("SELECT * FROM messages LIMIT 0").schema.names
    nulls = ", ".join(name if name in _SUMMED else f"NULL AS {name}" for name in names)
    rows = _ROWS.format(how="LEFT" if tasks else "")
    rows += f"UNION ALL SELECT {nulls}, part, TRUE AS is_beside FROM stream_beside"
    if tasks:
        rows = f"SELECT /*+ REPARTITION({tasks}, source, stream, part) */ * FROM ({rows}) each"
    engine.view("part_messages", rows)
    query = streams.ordered("part_messages", "source, stream, part")
    engine.keep("ordered", f"SELECT * FROM ({query}) each WHERE NOT is_beside")


def _parts(counts: Any, most: int) -> Any:
    """Return the number of the part of each piece: pieces in their order, about `most` in each."""
    return (np.cumsum(counts) - counts) // most


def _ranges(counts: Frame) -> Frame:
    """Return the ranges of keys in each part, `_RANGES`; small streams share a part."""
    counts = counts.astype(np.int64).sort_values([*_OF_STREAM, "piece"], ignore_index=True)
    counts["part"] = _parts(counts.messages.to_numpy(), MESSAGES_MAX)
    of_part = counts.groupby([*_OF_STREAM, "part"], as_index=False).piece
    return _with_ends(of_part.agg(piece_min="min", piece_max="max"))


def _of_large(engine: Engine) -> Frame:
    """Return the ranges of keys in each part of each large stream, `_RANGES`."""
    large = engine.query(_LARGE.format(piece=f"key >> {_RANGE}", most=TASK_MAX)).to_pandas()
    return _with_ends(large.sort_values([*_OF_STREAM, "part"], ignore_index=True))


def _with_ends(ranges: Frame) -> Frame:
    return ranges.assign(
        first=ranges.piece_min * (1 << _RANGE),
        last=(ranges.piece_max + 1) * (1 << _RANGE) - 1,
        is_first=~ranges.duplicated(_OF_STREAM),
    )[_RANGES.names]


def _sums(engine: Engine, ranges: Frame) -> Frame:
    """Return what the rows beside parts are made of: of each part and host."""
    engine.put("stream_part", _table(ranges, _RANGES))
    return whole_numbers(engine.query(_SUMS))


def _rows_beside(sums: Frame, number: int) -> Frame:
    """Return the rows beside part `number`, of the streams that have other parts."""
    there = pd.MultiIndex.from_frame(sums[sums.part == number][_OF_STREAM])
    cut = sums[pd.MultiIndex.from_frame(sums[_OF_STREAM]).isin(there)]
    places = ["place", "sent_place"]
    before = cut[cut.part < number].groupby(_OF_STREAM, as_index=False).max()
    later = cut[cut.part > number]
    behind = later.groupby(_OF_STREAM, as_index=False)
    last = behind[["key_max"]].max()
    behind = behind.min().drop(columns=places)
    came = later[later.place.notna()][[*_OF_STREAM, "host", *places]]
    came = came.groupby([*_OF_STREAM, "host"], as_index=False).min().merge(last, on=_OF_STREAM)
    rows = [
        before.assign(
            number=before.number_max, key=before.key_max, sent=before.number_max.notna(),
            sent_block=before.sent_block_max, accepted=0, host=before.receiver,
            accepted_block=before.accepted_block_max,
        ).drop(columns=["accepted_at", "ack_at", "ack_block", *places]),
        behind.assign(
            number=behind.number_min, key=behind.key_min, sent=behind.number_min.notna(),
            sent_block=behind.sent_block_min, accepted=0, host=behind.receiver,
            accepted_block=behind.accepted_block_min,
        ).drop(columns=["sent_key", "sent_at"]),
        # Of a message that was overtaken, the rules do not ask by which one.
        came.assign(key=came.key_max, sent=0, accepted=1),
        came[came.sent_place.notna()].assign(
            key=came.key_max, sent=1, accepted=1, place=came.sent_place
        ),
    ]  # fmt: skip
    wide = [each.reindex(columns=list(_SUMMED)).astype("Int64") for each in rows]
    return pd.concat(wide, ignore_index=True).assign(part=number)


def _table(frame: Frame, schema: Any) -> Any:
    return pa.Table.from_pandas(frame[schema.names], schema, preserve_index=False)
