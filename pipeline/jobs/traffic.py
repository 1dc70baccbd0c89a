"""Traffic: rates by host and queue, backlogs, and when a quota fills.  docs/jobs.md, "traffic"

Every figure is a sum over events, by host, queue and hour: the sums of earlier runs are added to
those of new files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from pipeline.events import LogFile
from pipeline.jobs.audit.facts import coded
from pipeline.jobs.incremental.believed import last_day
from pipeline.jobs.incremental.known_events import DAY_MS
from pipeline.jobs.incremental.memory import Memory, joined
from pipeline.jobs.incremental.new_events import each_once

Frame = Any
Array = Any

HOUR_MS = 3_600_000
#: Days before the last event that the forecast uses; older growth has little meaning.
FORECAST_DAYS = 14

_COLUMNS = ("host", "kind", "queue", "to_queue", "bytes")
_INTO_QUEUE, _INTO_OTHER, _OUT, _MOVED = 1, 2, 3, 4
#: Each message enters a queue once and leaves it once: a message that is acknowledged and awaits
#: its confirmation still occupies its place.  The end of a message in an outgoing queue is logged
#: by its cause; if it enters a dead-letter queue, another event logs that.
_WAYS = {
    **dict.fromkeys(("sent", "accepted", "imported", "awaiting", "relayed"), _INTO_QUEUE),
    **dict.fromkeys(("journaled", "dead_lettered"), _INTO_OTHER),
    **dict.fromkeys(
        ("received", "expired", "purged", "queue_deleted", "rejected", "requeued", "lost",
         "vanished", "damaged", "unroutable", "order_acknowledged", "session_acknowledged",
         "confirmed", "unconfirmed", "final_ack_received"),
        _OUT,
    ),
    "moved": _MOVED,
}  # fmt: skip
_COUNTED = {"sent": 1, "accepted": 2, "received": 3}
_SUMS = ("messages", "bytes", "came", "gone", "sent", "accepted", "received", "sent_bytes",
         "accepted_bytes")  # fmt: skip
_SCHEMA = "host string, queue string, hour_ms bigint, " + ", ".join(f"{n} bigint" for n in _SUMS)
_QUEUES = ["host", "queue", "hour_ms", "messages", "bytes", "came", "gone"]
_HOURS = ["host", "hour_ms", "sent", "accepted", "received", "sent_bytes", "accepted_bytes"]


def traffic(
    spark: Any,
    files: Sequence[LogFile],
    memory: Memory,
    quota_bytes: int = 0,
    progress: Callable[[str], None] = lambda text: None,
    *,
    now_ms: int | None = None,
) -> dict[str, Frame]:
    """Return tables `by_hour` (of each host) and `queues` (backlog and forecast of each).

    They cover `files` and the content of `memory`; the new content is staged there.  `now_ms` is
    the time of the run, if not that of this host.
    """
    progress(f"counting arrivals and departures: {len(files)} files")
    fresh = each_once(spark, files, memory.seen(), _COLUMNS, _SCHEMA, _sums)
    try:
        new = fresh.to_pandas()
    finally:
        fresh.close()
    of_queues = new[new.queue.notna()] if len(new) else new
    of_hosts = new[new.queue.isna()] if len(new) else new
    queues = _added(memory.read("queues", _empty(_QUEUES)), of_queues, _QUEUES)
    hours = _added(memory.read("hours", _empty(_HOURS)), of_hosts, _HOURS)
    memory.stage("queues", queues)
    memory.stage("hours", hours)
    memory.see(fresh.stretches)
    progress("what waits")
    by_hour = hours.assign(hour=pd.to_datetime(hours.hour_ms, unit="ms"))
    by_hour = by_hour.sort_values(["host", "hour"], ignore_index=True)
    queues = _at_real_hours(queues, now_ms)
    until_ms = queues.groupby("host").hour_ms.max()
    rows = [
        {"host": host, "queue": queue}
        | _backlog(part.sort_values("hour_ms"), int(until_ms[host]), quota_bytes)
        for (host, queue), part in queues.groupby(["host", "queue"])
    ]
    frame = pd.DataFrame(rows, columns=_BACKLOG)
    frame = frame.sort_values(["bytes", "host", "queue"], ascending=[False, True, True],
                              ignore_index=True)  # fmt: skip
    return {
        "by_hour": by_hour[["host", "hour", *_HOURS[2:]]],
        "queues": frame,
    }


def _at_real_hours(queues: Frame, now_ms: int | None) -> Frame:
    """Count messages that are dated after tomorrow in the newest hour of their host before that.

    They are in the queue, or have left it; only the date is wrong.
    """
    end = (last_day(queues.hour_ms, now_ms) + 1) * DAY_MS
    is_late = queues.hour_ms >= end
    if not is_late.any():
        return queues
    newest = queues.hour_ms.mask(is_late).groupby(queues.host).transform("max")
    newest = newest.fillna(queues.hour_ms[~is_late].max())
    hours = queues.hour_ms.mask(is_late, newest).astype(np.int64)
    return _added(queues[:0], queues.assign(hour_ms=hours), _QUEUES)


def _empty(columns: list[str]) -> Frame:
    return pd.DataFrame(
        {
            name: pd.Series(dtype=object if name in ("host", "queue") else np.int64)
            for name in columns
        }
    )


def _added(old: Frame, new: Frame, columns: list[str]) -> Frame:
    keys = [name for name in columns if name in ("host", "queue", "hour_ms")]
    both = joined(old, new[columns])
    return both.groupby(keys, as_index=False).sum()


def _sums(table: Any, names: dict[int, str]) -> Iterable[Any]:
    """Sum new events for each host, queue and hour; with an empty queue for each host and hour."""
    at_ms = table.column("at_ms").to_numpy()
    hour = at_ms - at_ms % HOUR_MS
    size = table.column("bytes").fill_null(0).to_numpy()
    way = coded(table.column("kind"), _WAYS, 0)
    counted = coded(table.column("kind"), _COUNTED, 0)
    hosts, queues, others = (
        table.column(name).combine_chunks() for name in ("host", "queue", "to_queue")
    )
    frames = []
    for codes, queue, sign in (
        ((_INTO_QUEUE,), queues, 1),
        ((_INTO_OTHER, _MOVED), others, 1),
        ((_OUT, _MOVED), queues, -1),
    ):
        at = np.flatnonzero(np.isin(way, codes))
        if len(at):
            ones = np.ones(len(at), np.int64)
            frames.append(
                pd.DataFrame(
                    {
                        "host": hosts.take(pa.array(at)).cast(pa.string()).to_pandas(),
                        "queue": queue.take(pa.array(at)).cast(pa.string()).to_pandas().fillna(""),
                        "hour_ms": hour[at],
                        "messages": sign * ones,
                        "bytes": sign * size[at],
                        "came": ones if sign > 0 else 0 * ones,
                        "gone": 0 * ones if sign > 0 else ones,
                    }
                )
            )
    at = np.flatnonzero(counted)
    if len(at):
        what, bytes_ = counted[at], size[at]
        frames.append(
            pd.DataFrame(
                {
                    "host": hosts.take(pa.array(at)).cast(pa.string()).to_pandas(),
                    "queue": None,
                    "hour_ms": hour[at],
                    "sent": (what == 1).astype(np.int64),
                    "accepted": (what == 2).astype(np.int64),
                    "received": (what == 3).astype(np.int64),
                    "sent_bytes": np.where(what == 1, bytes_, 0),
                    "accepted_bytes": np.where(what == 2, bytes_, 0),
                }
            )
        )
    for frame in frames:
        keys = ["host", "queue", "hour_ms"]
        sums = frame.groupby(keys, as_index=False, dropna=False, observed=True).sum()
        sums = sums.reindex(columns=[*keys, *_SUMS])
        sums[list(_SUMS)] = sums[list(_SUMS)].fillna(0).astype(np.int64)
        sums["queue"] = sums.queue.astype(object).where(sums.queue.notna(), None)
        yield pa.RecordBatch.from_pandas(sums, preserve_index=False)


_BACKLOG = ["host", "queue", "messages", "bytes", "most_messages", "backlog_hours", "came", "gone",
            "growth_bytes_a_day", "full_on"]  # fmt: skip


def _backlog(hours: Frame, until_ms: int, quota_bytes: int) -> dict[str, Any]:
    """Return the content of a queue at the end of its host's log, its age, and the forecast."""
    messages = hours.messages.cumsum().to_numpy()
    size = hours.bytes.cumsum().to_numpy()
    # A log that begins later shows messages that leave without their arrival.
    messages, size = messages - min(0, messages.min()), size - min(0, size.min())
    at_ms = hours.hour_ms.to_numpy()
    if at_ms[-1] < until_ms:  # no message arrived or left since
        at_ms = np.append(at_ms, until_ms)
        messages, size = np.append(messages, messages[-1]), np.append(size, size[-1])
    empty = np.flatnonzero(messages == 0)
    since = at_ms[empty[-1] + 1] if len(empty) and empty[-1] + 1 < len(at_ms) else at_ms[0]
    age_h = (at_ms[-1] - since) / HOUR_MS if messages[-1] else 0.0
    growth = 0.0  # bytes a day
    recent = at_ms > at_ms[-1] - FORECAST_DAYS * 24 * HOUR_MS
    if recent.sum() > 2:
        days = (at_ms[recent] - at_ms[-1]) / (24 * HOUR_MS)
        growth = float(np.polyfit(days, size[recent], 1)[0])
    full = None
    if quota_bytes and size[-1] >= quota_bytes:
        full = datetime.fromtimestamp(at_ms[-1] / 1000, UTC).date()
    elif quota_bytes and growth > 1 and messages[-1]:  # an empty queue keeps up: it does not fill
        days_left = (quota_bytes - size[-1]) / growth
        if days_left < 3650:
            full = datetime.fromtimestamp(at_ms[-1] / 1000 + days_left * 86_400, UTC).date()
    return {
        "messages": int(messages[-1]),
        "bytes": int(size[-1]),
        "most_messages": int(messages.max()),
        "backlog_hours": float(age_h),
        "came": int(hours.came.sum()),
        "gone": int(hours.gone.sum()),
        "growth_bytes_a_day": growth,
        "full_on": None if full is None else str(full),
    }
