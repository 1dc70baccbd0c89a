"""How long messages took, from stage to stage, by route, queue and hour.  docs/jobs.md, "latency"

A stage at another host is told by another clock: offsets are estimated from messages both ways, and
taken out.  What is then still negative is counted as such (`before_sent`), and not as 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from pipeline.events import LogFile
from pipeline.jobs import clocks
from pipeline.jobs.reading import ledger

Frame = Any

#: Until when, since it was sent; `true`: the receiver's clock.
STAGES = {
    "transmitted": False,
    "accepted": True,
    "acked": False,
    "received": True,
    "confirmed": False,
}
SLOW_ROUTES = 25  # are told of hour by hour
_SHIFT = " - coalesce(t.offset_ms, 0) + coalesce(f.offset_ms, 0)"
_POINTS = (0.5, 0.95, 0.99)


def latency(
    spark: Any, files: Sequence[LogFile], progress: Callable[[str], None] = lambda text: None
) -> dict[str, Frame]:
    """Tables `by_route`, `by_queue`, `by_hour`, `route_hours` (of the slowest), `clocks`."""
    table = ledger(spark, files)
    progress("the messages, by the clocks of their hosts")
    bounds = spark.sql(
        "SELECT from_host AS source, to_host AS host, max(accepted_ms - acked_ms) AS at_from,"
        " min(accepted_ms - sent_ms) AS at_to, count(*) AS messages FROM ledger"
        " WHERE sent_ms IS NOT NULL AND accepted_ms IS NOT NULL AND from_host <> to_host"
        " GROUP BY from_host, to_host"
    ).toPandas()
    offsets = clocks.estimate(bounds)
    rows = [(host, float(offset)) for host, offset in offsets.items()]
    spark.createDataFrame(rows, "host string, offset_ms double").createOrReplaceTempView("offsets")
    progress("their stages")
    stages = ", ".join(
        f"({name}_ms - sent_ms{_SHIFT if there else ''}) AS {name}"
        for name, there in STAGES.items()
    )
    spark.sql(
        "SELECT /*+ BROADCAST(f, t) */ from_host, coalesce(to_host, '') AS to_host,"
        " coalesce(queue, destination) AS queue, bytes,"
        f" timestamp_millis(sent_ms - sent_ms % 3600000) AS hour, {stages} FROM ledger"
        " LEFT JOIN offsets f ON from_host = f.host LEFT JOIN offsets t ON to_host = t.host"
        " WHERE sent_ms IS NOT NULL AND (to_host IS NOT NULL OR acked_ms IS NOT NULL)"
    ).createOrReplaceTempView("stages")
    points = ", ".join(map(str, _POINTS))
    figures = ", ".join(
        f"percentile_approx({name}, array({points}), 1000) AS {name}" for name in STAGES
    )

    def by(*columns: str) -> Frame:
        found = spark.sql(
            f"SELECT {', '.join(columns)}, count(*) AS messages, sum(bytes) AS bytes, {figures},"
            " count_if(accepted < 0) AS before_sent FROM stages"
            f" GROUP BY {', '.join(columns)}"
        ).toPandas()
        for name in STAGES:
            for at, point in enumerate(_POINTS):
                found[f"{name}_p{int(point * 100)}_ms"] = [
                    None if each is None else each[at] for each in found[name]
                ]
        return found.drop(columns=list(STAGES))

    try:
        result = {
            "by_route": by("from_host", "to_host").sort_values(
                "accepted_p95_ms", ascending=False, ignore_index=True
            ),
            "by_queue": by("to_host", "queue").sort_values(
                "received_p95_ms", ascending=False, ignore_index=True
            ),
            "route_hours": by("from_host", "to_host", "hour"),
            "by_hour": by("hour").sort_values("hour", ignore_index=True),
            "clocks": pd.DataFrame(rows, columns=["host", "offset_ms"]).sort_values(
                "offset_ms", key=abs, ascending=False, ignore_index=True
            ),
        }
    finally:
        table.unpersist()
    slow = result["by_route"].dropna(subset=["accepted_p95_ms"]).head(SLOW_ROUTES)
    hours = result["route_hours"]
    result["route_hours"] = hours.merge(slow[["from_host", "to_host"]]).sort_values(
        ["from_host", "to_host", "hour"], ignore_index=True
    )
    return result
