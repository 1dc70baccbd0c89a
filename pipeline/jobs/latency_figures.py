"""Percentiles of durations by groups, in the common SQL of both engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from pipeline.engines.engine import Engine
from pipeline.jobs.incremental.known_events import DAY_MS

Frame = Any

_POINTS = (0.5, 0.95, 0.99)


def day_of(at_ms: str) -> str:
    """Return the SQL of a day, in days since 1970."""
    return f"CAST(({at_ms} - {at_ms} % {DAY_MS}) / {DAY_MS} AS bigint)"


def durations(columns: str, stages_there: Sequence[int]) -> str:
    """Return a query: the cells with names, and durations corrected by the offsets of clocks.

    `columns` are those of the tables `histogram` and `cells`; `stages_there` are the numbers of the
    stages that the receiver's clock records.
    """
    at_other = ", ".join(map(str, stages_there))
    return (
        "SELECT /*+ BROADCAST(f, t, a, b, q) */ a.text AS from_host, coalesce(b.text, '') AS"
        " to_host, q.text AS queue, hour_ms, stage, messages, bytes,"
        f" raw_ms - CASE WHEN stage IN ({at_other})"
        " THEN coalesce(t.offset_ms, 0) - coalesce(f.offset_ms, 0) ELSE 0 END AS took_ms"
        f" FROM (SELECT {columns} FROM histogram"
        f" UNION ALL SELECT {columns} FROM cells WHERE NOT is_over) AS c"
        f" LEFT JOIN offsets f ON c.from_host = f.host AND {day_of('hour_ms')} = f.day"
        f" LEFT JOIN offsets t ON c.to_host = t.host AND {day_of('hour_ms')} = t.day"
        " LEFT JOIN texts a ON c.from_host = a.key LEFT JOIN texts b ON c.to_host = b.key"
        " LEFT JOIN texts q ON c.queue = q.key"
    )


def figures(
    engine: Engine, table: str, stages: Sequence[str], *sets: tuple[str, ...]
) -> list[Frame]:
    """Return the figures of `table` (`durations`) by each set of columns.

    Percentiles are exact, and interpolated as Spark's `percentile` does.
    """
    columns = list(dict.fromkeys(column for each in sets for column in each))
    listed = ", ".join(columns)

    # The columns that a row has not, as a number.  Spark's grouping_id wants an order of its own.
    bits = [f"grouping({name}) * {1 << n}" for n, name in enumerate(reversed(columns))]
    grouped = f"CAST({' + '.join(bits)} AS bigint) AS grouped"

    def groups(*more: str) -> str:
        return f"GROUP BY GROUPING SETS ({', '.join(_listed((*each, *more)) for each in sets)})"

    counts = engine.query(
        f"SELECT {listed}, {grouped},"
        " CAST(sum(messages) FILTER (WHERE stage = 0) AS bigint) AS messages,"
        " CAST(sum(bytes) AS bigint) AS bytes, CAST(coalesce("
        "sum(messages) FILTER (WHERE stage = 2 AND took_ms < 0), 0) AS bigint) AS before_sent"
        f" FROM {table} {groups()}"
    ).to_pandas()
    keys = ", ".join([*columns, "grouped", "stage"])
    # The values beside the place of each percentile: it may be between two.
    beside = ", ".join(
        f"min(took_ms) FILTER (WHERE upto > {which}((total - 1) * {point})) AS {which}_{n}"
        for n, point in enumerate(_POINTS)
        for which in ("floor", "ceil")
    )
    values = engine.query(
        f"WITH counts AS (SELECT {listed}, {grouped}, stage, took_ms, sum(messages) AS n"
        f" FROM {table} WHERE stage > 0 {groups('stage', 'took_ms')}),"
        " sums AS (SELECT *, sum(n) OVER (PARTITION BY"
        f" {keys} ORDER BY took_ms ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS upto,"
        f" sum(n) OVER (PARTITION BY {keys}) AS total FROM counts)"
        f" SELECT {keys}, CAST(max(total) AS bigint) AS total, {beside} FROM sums GROUP BY {keys}"
    ).to_pandas()
    found = _with_percentiles(counts, values, stages, [*columns, "grouped"])
    tables = []
    for each in sets:
        left_out = [column not in each for column in columns]
        mine = sum(bit << n for n, bit in enumerate(reversed(left_out)))
        part = found[found.grouped == mine].drop(columns="grouped")
        part = part.drop(columns=[column for column in columns if column not in each])
        if "hour_ms" in each:
            hours = pd.to_datetime(part.pop("hour_ms").astype(np.int64), unit="ms")
            part["hour"] = hours.astype("datetime64[ns]")
        first = ["hour" if name == "hour_ms" else name for name in each]
        tables.append(part[[*first, *(name for name in part.columns if name not in first)]])
    return tables


def _with_percentiles(
    counts: Frame, values: Frame, stages: Sequence[str], keys: list[str]
) -> Frame:
    """Add the percentiles of each stage, interpolated between the values beside their place."""
    at = values.total.to_numpy(np.float64) - 1
    for n, point in enumerate(_POINTS):
        low, high = values[f"floor_{n}"].to_numpy(), values[f"ceil_{n}"].to_numpy()
        values[f"p{n}"] = low + (high - low) * (at * point - np.floor(at * point))
    for stage, name in enumerate(stages, 1):
        mine = values[values.stage == stage][[*keys, *(f"p{n}" for n in range(len(_POINTS)))]]
        names = {f"p{n}": f"{name}_p{int(point * 100)}_ms" for n, point in enumerate(_POINTS)}
        counts = counts.merge(mine.rename(columns=names), on=keys, how="left")
        counts[list(names.values())] = counts[list(names.values())].astype(np.float64)
    return counts


def _listed(columns: tuple[str, ...]) -> str:
    return f"({', '.join(columns)})"
