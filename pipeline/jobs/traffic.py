"""How much goes where, what waits, and when a quota fills.  docs/jobs.md, "traffic" """

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd

from pipeline.events import LogFile
from pipeline.jobs.reading import read_events

Frame = Any

_CAME = ("sent", "accepted", "imported", "journaled", "dead_lettered")
_LEFT = ("received", "expired", "purged", "queue_deleted", "rejected", "requeued")
HOUR_MS = 3_600_000


def traffic(
    spark: Any,
    files: Sequence[LogFile],
    quota_bytes: int = 0,
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Frame]:
    """Tables `by_hour` (of each host), `routes`, `queues` (backlog and forecast of each queue)."""
    progress("what came and went")
    kinds = ", ".join(f"'{kind}'" for kind in (*_CAME, *_LEFT, "moved"))
    events = read_events(spark, files).where(
        f"kind IN ({kinds}, 'order_acknowledged', 'session_acknowledged')"
    )
    # What was exported twice happened once.  By time as well: who was put back from a backup gives
    # numbers of blocks once more.
    events = events.dropDuplicates(["queue_manager", "block", "index", "at_ms"])
    events.createOrReplaceTempView("events")
    by_hour = spark.sql(
        f"SELECT host, timestamp_millis(at_ms - at_ms % {HOUR_MS}) AS hour,"
        " count_if(kind = 'sent') AS sent, count_if(kind = 'accepted') AS accepted,"
        " count_if(kind = 'received') AS received,"
        " sum(if(kind = 'sent', bytes, 0)) AS sent_bytes,"
        " sum(if(kind = 'accepted', bytes, 0)) AS accepted_bytes"
        " FROM events GROUP BY 1, 2 ORDER BY 1, 2"
    ).toPandas()
    progress("what waits")
    # Where a message is counted: in the queue that it came to, or left.
    came = ", ".join(f"'{kind}'" for kind in _CAME)
    left = ", ".join(f"'{kind}'" for kind in (*_LEFT, "order_acknowledged", "session_acknowledged"))
    hours = spark.sql(
        f"""
WITH moves AS (
  SELECT host, if(kind IN ('journaled', 'dead_lettered'), to_queue, queue) AS queue, at_ms, bytes,
    1 AS way
  FROM events WHERE kind IN ({came})
  UNION ALL SELECT host, queue, at_ms, bytes, -1 FROM events WHERE kind IN ({left})
  UNION ALL SELECT host, to_queue, at_ms, bytes, 1 FROM events WHERE kind = 'moved'
  UNION ALL SELECT host, queue, at_ms, bytes, -1 FROM events WHERE kind = 'moved'
  UNION ALL SELECT host, queue, at_ms, bytes, -1 FROM events
    WHERE kind = 'dead_lettered' AND instr(queue, '=') > 0
)
SELECT host, queue, at_ms - at_ms % {HOUR_MS} AS hour_ms, sum(way) AS messages,
  sum(way * bytes) AS bytes, count_if(way > 0) AS came, count_if(way < 0) AS gone
FROM moves GROUP BY 1, 2, 3
"""
    ).toPandas()
    queues = [
        {"host": host, "queue": queue} | _backlog(part.sort_values("hour_ms"), quota_bytes)
        for (host, queue), part in hours.groupby(["host", "queue"])
        # Expired at its sender is told twice: as its end, and as a dead letter.
    ]
    frame = pd.DataFrame(queues)
    if len(frame):
        frame = frame.sort_values("bytes", ascending=False, ignore_index=True)
    return {"by_hour": by_hour, "queues": frame}


def _backlog(hours: Frame, quota_bytes: int) -> dict[str, Any]:
    """What is in a queue at the end, how long it has been so, and where that leads."""
    messages = hours.messages.cumsum().to_numpy()
    size = hours.bytes.cumsum().to_numpy()
    # A log that begins later knows of messages that leave, and not of their coming.
    messages, size = messages - min(0, messages.min()), size - min(0, size.min())
    at_ms = hours.hour_ms.to_numpy()
    empty = np.flatnonzero(messages == 0)
    since = at_ms[empty[-1] + 1] if len(empty) and empty[-1] + 1 < len(at_ms) else at_ms[0]
    age_h = (at_ms[-1] - since) / HOUR_MS if messages[-1] else 0.0
    growth = 0.0  # bytes a day
    if len(at_ms) > 2:
        growth = float(np.polyfit((at_ms - at_ms[0]) / (24 * HOUR_MS), size, 1)[0])
    full = None
    if quota_bytes and growth > 1 and size[-1] < quota_bytes:
        days = (quota_bytes - size[-1]) / growth
        if days < 3650:
            full = datetime.fromtimestamp(at_ms[-1] / 1000 + days * 86_400, UTC).date()
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
