"""Timelines: some findings of different kinds, each with the messages around it."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa

from pipeline.engines.engine import Engine, whole_numbers
from pipeline.jobs.audit.findings import KINDS, FindingTimeline
from pipeline.jobs.audit.rules.streams import NEAR

Frame = Any

_CHOSEN = pa.schema(
    [("n", pa.int32()), *((name, pa.int64()) for name in ("source", "stream", "wanted"))]
)


def timelines(engine: Engine, proved: Frame, most: int) -> list[FindingTimeline]:
    """Return some findings of different kinds, each with the messages around it."""
    some = proved[proved.key.notna() & (proved.stream >= 0)]
    chosen = [
        row for kind in KINDS for row in some[some.kind == kind].head(1).itertuples()
    ][:most]  # fmt: skip
    if not chosen:
        return []
    wanted = [(n, int(row.source), int(row.stream), int(row.key)) for n, row in enumerate(chosen)]
    engine.put(
        "chosen",
        pa.Table.from_pylist(
            [dict(zip(_CHOSEN.names, row, strict=True)) for row in wanted], _CHOSEN
        ),
    )
    near = whole_numbers(engine.query(NEAR)).sort_values(["n", "key", "number"])
    found = []
    for n, row in enumerate(chosen):
        messages = near[near.n == n].assign(
            is_bad=lambda each, row=row: (
                (each.key == row.key) if pd.isna(row.number) else each.number == row.number
            )
        )
        receiver = int(row.host) if pd.notna(row.host) else 0
        found.append(FindingTimeline(row.kind, int(row.source), receiver, int(row.key), messages))
    return found
