"""Trace: the history of one message and of related messages, over all hosts.  docs/jobs.md

Related messages: those with the message's id as correlation id (responses, acknowledgments, the
same message sent again), the message that its own correlation id names, and so on for a few steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from pipeline.events import LogFile
from pipeline.jobs.event_table import read_events

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
    from pyspark.sql import functions as F

    table = read_events(spark, files).where("message_id <> ''")
    wanted = {message.strip().lower()}
    known: set[str] = set()
    for step in range(STEPS_MAX):
        progress(f"step {step + 1}: {len(wanted)} messages")
        ids = sorted(wanted)[:MESSAGES_MAX]
        related = (
            table.where(F.col("message_id").isin(ids) | F.col("correlation_id").isin(ids))
            .select("message_id", "correlation_id")
            .distinct()
            .collect()
        )
        known |= wanted
        wanted = {
            each for row in related for each in row if each and each not in known
        }  # fmt: skip
        if not wanted or len(known) > MESSAGES_MAX:
            break
    rows = (
        table.where(F.col("message_id").isin(sorted(known)))
        .dropDuplicates(["queue_manager", "block", "index"])
        .toPandas()
    )
    return {"events": _in_order(rows)}


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
