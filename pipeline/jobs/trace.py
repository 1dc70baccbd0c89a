"""Trace: the history of one message and of related messages, over all hosts.  docs/jobs.md

Related messages: those with the message's id as correlation id (responses, acknowledgments, the
same message sent again), the message that its own correlation id names, and so on for a few steps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.engines.local import LocalEngine
from pipeline.events import LogFile, read_piece
from pipeline.jobs.event_table import COLUMNS, read_events

STEPS_MAX = 5
MESSAGES_MAX = 1000


def trace(
    spark: Any,
    files: Sequence[LogFile],
    message: str,
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Return the table `events` for the message or correlation id `message`, causes first.

    Events of one host are in its order.  Between hosts a message is sent before it arrives,
    whatever the clocks say.
    """
    related, of_messages = _local(files) if isinstance(spark, LocalEngine) else _spark(spark, files)
    wanted = {message.strip().lower()}
    known: set[str] = set()
    for step in range(STEPS_MAX):
        progress(f"step {step + 1}: {len(wanted)} messages")
        pairs = related(sorted(wanted)[:MESSAGES_MAX])
        known |= wanted
        wanted = {each for pair in pairs for each in pair if each and each not in known}
        if not wanted or len(known) > MESSAGES_MAX:
            break
    return {"events": _in_order(of_messages(sorted(known)))}


#: From ids: the pairs of message and correlation id that contain one; and the events of messages.
_Related = Callable[[list[str]], Iterable[tuple[str | None, str | None]]]
_OfMessages = Callable[[list[str]], Any]
_EVENT = ["queue_manager", "block", "index"]


def _spark(spark: Any, files: Sequence[LogFile]) -> tuple[_Related, _OfMessages]:
    from pyspark.sql import functions as F

    table = read_events(spark, files).where("message_id <> ''")

    def related(ids: list[str]) -> Iterable[tuple[str | None, str | None]]:
        some = table.where(F.col("message_id").isin(ids) | F.col("correlation_id").isin(ids))
        return [tuple(row) for row in some.select(*_IDS).distinct().collect()]

    def of_messages(ids: list[str]) -> Any:
        return table.where(F.col("message_id").isin(ids)).dropDuplicates(_EVENT).toPandas()

    return related, of_messages


_IDS = ("message_id", "correlation_id")


def _texts(table: Any) -> dict[str, Any]:
    """Return the columns that are dictionaries: their texts have to be plain ones."""
    return {f.name: object for f in table.schema if pa.types.is_dictionary(f.type)}


def _local(files: Sequence[LogFile]) -> tuple[_Related, _OfMessages]:
    """Return the same in this process, where each question reads the columns that it needs."""

    def chosen(ids: list[str], columns: Sequence[str], by: Sequence[str]) -> Any:
        wanted, found = pa.array(ids, pa.string()), []
        for file in files:
            for table in read_piece((file.path, 0, -1), columns):
                matches = [pc.is_in(table.column(name).cast(pa.string()), wanted) for name in by]
                named = pc.greater(table.column("message_id").cast(pa.string()), "")
                some = table.filter(pc.and_(named, functools.reduce(pc.or_, matches)))
                found.append(some.to_pandas(strings_to_categorical=False).astype(_texts(some)))
        return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=list(columns))

    def related(ids: list[str]) -> Iterable[tuple[str | None, str | None]]:
        pairs = chosen(ids, _IDS, _IDS).drop_duplicates()
        return [(a or None, b or None) for a, b in pairs.fillna("").itertuples(index=False)]

    def of_messages(ids: list[str]) -> Any:
        rows = chosen(ids, COLUMNS, ("message_id",))
        return rows.drop_duplicates(_EVENT, ignore_index=True)

    return related, of_messages


def _in_order(rows: Any) -> Any:
    """Sort by time: each host in its own order, and a message's sending before its arrival."""
    if len(rows) == 0:
        return rows
    rows = rows.sort_values(["host", "block", "index"], ignore_index=True)
    # The least offset of each other clock: no arrival precedes its sending.
    sent = rows[rows.kind == "sent"].groupby("message_id").at_ms.min()
    accepted = rows[rows.kind == "accepted"]
    behind: dict[str, float] = {}
    for row in accepted.itertuples():
        if row.message_id in sent.index:
            gap = float(sent[row.message_id] - row.at_ms)
            behind[row.host] = max(behind.get(row.host, 0.0), gap)
    rows["shown_ms"] = rows.at_ms + rows.host.map(lambda host: max(0.0, behind.get(host, 0.0)))
    rows["rank"] = rows.kind.ne("sent").astype(int)
    rows["time"] = pd.to_datetime(rows.at_ms, unit="ms", utc=True)
    return rows.sort_values(["shown_ms", "rank", "host", "block", "index"], ignore_index=True).drop(
        columns=["shown_ms", "rank"]
    )
