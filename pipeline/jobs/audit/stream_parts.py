"""Streams in parts, so that no query holds all messages of a large one.

The embedded engine holds the groups of an aggregation, and the rows of a window, in memory: 2 KB
for each message of a stream.  So the messages are made for some of their numbers at a time, and
ordered for some of their keys at a time.  The rows of a part have beside them a few that stand for
all that come before and behind it: the rules ask only for the largest and smallest values there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from pipeline.engines.engine import Engine, whole_numbers
from pipeline.jobs.audit.rules import streams

Frame = Any

#: In one part; more only if so many messages have one key.
MESSAGES_MAX = 50_000
FACTS_MAX = 500_000
_SLICE = 4096  # numbers
_RANGE = 12  # bits of a key

_OF_STREAM = ["source", "stream"]
_RANGES = pa.schema(
    [*((name, pa.int64()) for name in (*_OF_STREAM, "first", "last")), ("is_first", pa.bool_())]
)
#: Of the rows beside a part; the other columns of `messages` are null there.
_SUMMED = (
    *_OF_STREAM, "number", "key", "sent", "sent_key", "sent_at", "sent_block", "accepted",
    "accepted_at", "accepted_block", "place", "ack_at", "ack_block", "host", "receiver",
)  # fmt: skip
_BESIDE = pa.schema([(name, pa.int64()) for name in _SUMMED])
_COUNTS = """
SELECT source, stream, {piece} AS piece, count(*) AS messages FROM messages
WHERE key IS NOT NULL GROUP BY source, stream, {piece}
"""
_IN_PART = "m.key BETWEEN r.first AND r.last OR (m.key IS NULL AND r.is_first)"
_ROWS = f"""
SELECT m.*, FALSE AS is_beside FROM messages m JOIN stream_part r
ON m.source = r.source AND m.stream = r.stream WHERE {_IN_PART}
"""
_OF_RECEIVER = "FILTER (WHERE m.host = m.receiver)"
_SUMS = f"""
SELECT m.source, m.stream, min(m.receiver) AS receiver,
  min(m.key) AS key_min, max(m.key) AS key_max, max(m.sent_key) AS sent_key,
  max(m.sent_at) AS sent_at, min(m.sent_block) AS sent_block_min,
  max(m.sent_block) AS sent_block_max,
  min(m.number) FILTER (WHERE m.sent > 0) AS number_min,
  max(m.number) FILTER (WHERE m.sent > 0) AS number_max,
  min(m.accepted_block) {_OF_RECEIVER} AS accepted_block_min,
  max(m.accepted_block) {_OF_RECEIVER} AS accepted_block_max,
  min(m.accepted_at) AS accepted_at, min(m.ack_at) AS ack_at, min(m.ack_block) AS ack_block
FROM messages m JOIN stream_part r ON m.source = r.source AND m.stream = r.stream
WHERE {_IN_PART} GROUP BY m.source, m.stream
"""
_PLACES = f"""
SELECT m.source, m.stream, m.host, min(m.place) AS place,
  min(m.place) FILTER (WHERE m.sent > 0) AS sent_place
FROM messages m JOIN stream_part r ON m.source = r.source AND m.stream = r.stream
WHERE ({_IN_PART}) AND m.accepted > 0 GROUP BY m.source, m.stream, m.host
"""


def keep_messages(engine: Engine) -> None:
    """Create `messages`: a view, or a table that is made for some numbers at a time."""
    if not engine.in_parts:
        engine.view("messages", streams.MESSAGES)
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


def ordered(engine: Engine) -> Iterator[None]:
    """Create `ordered` for one part of the messages after the other."""
    counts = engine.query(_COUNTS.format(piece=f"key >> {_RANGE}")) if engine.in_parts else None
    if counts is None or sum(counts.column("messages").to_pylist()) <= MESSAGES_MAX:
        # Two queries read it: candidates and segments.
        engine.keep("ordered", streams.ORDERED)
        yield
        return
    parts = _ranges(counts.to_pandas())
    beside = _beside(engine, parts)
    names = engine.query("SELECT * FROM messages LIMIT 0").schema.names
    nulls = ", ".join(name if name in _SUMMED else f"NULL AS {name}" for name in names)
    for ranges, rows in zip(parts, beside, strict=True):
        engine.put("stream_part", _table(ranges, _RANGES))
        engine.put("stream_beside", _table(rows, _BESIDE))
        engine.view(
            "part_messages",
            f"{_ROWS} UNION ALL SELECT {nulls}, TRUE AS is_beside FROM stream_beside",
        )
        query = streams.ORDERED.replace("FROM messages", "FROM part_messages")
        engine.keep("ordered", f"SELECT * FROM ({query}) each WHERE NOT is_beside")
        yield


def _parts(counts: Any, most: int) -> Any:
    """Return the number of the part of each piece: pieces in their order, about `most` in each."""
    return (np.cumsum(counts) - counts) // most


def _ranges(counts: Frame) -> list[Frame]:
    """Return for each part the ranges of keys in it, `_RANGES`."""
    counts = counts.astype(np.int64).sort_values([*_OF_STREAM, "piece"], ignore_index=True)
    counts["part"] = _parts(counts.messages.to_numpy(), MESSAGES_MAX)
    ranges = counts.groupby([*_OF_STREAM, "part"], as_index=False).piece.agg(["min", "max"])
    ranges = ranges.assign(
        first=ranges["min"] * (1 << _RANGE),
        last=(ranges["max"] + 1) * (1 << _RANGE) - 1,
        is_first=~ranges.duplicated(_OF_STREAM),
    )
    return [part[_RANGES.names] for _, part in ranges.groupby("part")]


def _beside(engine: Engine, parts: list[Frame]) -> list[Frame]:
    """Return the rows that stand for what comes before and behind each part."""
    sums, places = [], []
    for number, ranges in enumerate(parts):
        engine.put("stream_part", _table(ranges, _RANGES))
        sums.append(whole_numbers(engine.query(_SUMS)).assign(part=number))
        places.append(whole_numbers(engine.query(_PLACES)).assign(part=number))
    every, came = pd.concat(sums, ignore_index=True), pd.concat(places, ignore_index=True)
    cut = every[every.duplicated(_OF_STREAM, keep=False)]
    pairs = pd.MultiIndex.from_frame(cut[_OF_STREAM].drop_duplicates())
    came = came[pd.MultiIndex.from_frame(came[_OF_STREAM]).isin(pairs)]
    return [
        _rows_beside(cut, came, number, every[every.part == number]) for number in range(len(parts))
    ]


def _rows_beside(cut: Frame, came: Frame, number: int, here: Frame) -> Frame:
    """Return the rows beside part `number`, of the streams that it shares with others (`cut`)."""
    there = pd.MultiIndex.from_frame(here[_OF_STREAM])

    def some(frame: Frame, which: Any) -> Frame:
        return frame[which & pd.MultiIndex.from_frame(frame[_OF_STREAM]).isin(there)]

    before = some(cut, cut.part < number).groupby(_OF_STREAM, as_index=False).max()
    behind = some(cut, cut.part > number).groupby(_OF_STREAM, as_index=False)
    last = behind[["key_max"]].max()
    behind = behind.min()
    later = some(came, came.part > number).groupby([*_OF_STREAM, "host"], as_index=False).min()
    later = later.merge(last, on=_OF_STREAM)
    rows = [
        before.assign(
            number=before.number_max, key=before.key_max, sent=before.number_max.notna(),
            sent_block=before.sent_block_max, accepted=0, host=before.receiver,
            accepted_block=before.accepted_block_max,
        ).drop(columns=["accepted_at", "ack_at", "ack_block"]),
        behind.assign(
            number=behind.number_min, key=behind.key_min, sent=behind.number_min.notna(),
            sent_block=behind.sent_block_min, accepted=0, host=behind.receiver,
            accepted_block=behind.accepted_block_min,
        ).drop(columns=["sent_key", "sent_at"]),
        # Of a message that was overtaken, the rules do not ask by which one.
        later.assign(key=later.key_max, sent=0, accepted=1),
        later[later.sent_place.notna()].assign(
            key=later.key_max, sent=1, accepted=1, place=later.sent_place
        ),
    ]  # fmt: skip
    wide = [each.reindex(columns=list(_SUMMED)).astype("Int64") for each in rows]
    return pd.concat(wide, ignore_index=True)


def _table(frame: Frame, schema: Any) -> Any:
    return pa.Table.from_pandas(frame[schema.names], schema, preserve_index=False)
