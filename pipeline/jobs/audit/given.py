"""Numbers of a stream that its source gave to no message, but under which others were accepted.

A message that was sent in one stream can be accepted under a number of another.  That number is no
gap then.  The events themselves decide this: the runs of accepted messages continue from sequence
to sequence and do not show where each one ended, and a stream can have a sequence for each message,
so nothing may be kept for each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from pipeline.engines.engine import Engine
from pipeline.jobs.audit.facts import Role

Frame = Any

_STREAM = ["source", "stream"]
_ACCEPTED = f"SELECT source, stream, key FROM facts WHERE role = {Role.ACCEPTED}"
_COUNTS = pa.schema([("gap", pa.int64()), ("numbers", pa.int64())])


def without_given(rows: Frame, engine: Engine, *, are_apart: bool = False) -> Frame:
    """Drop the candidates of gaps in which a message was accepted under each number.

    If the events of a source `are_apart`, in several tasks, those of one number come into one.
    """
    is_gap = (rows.kind == "gap").to_numpy(bool)
    if not is_gap.any():
        return rows
    gaps = rows.loc[is_gap, [*_STREAM, "key", "until_key"]].astype(np.int64)
    gaps = gaps.sort_values("key")
    query = f"{_ACCEPTED} DISTRIBUTE BY source, stream, key" if are_apart else _ACCEPTED
    counted = engine.mapped(query, _counter(gaps.reset_index(drop=True)), _COUNTS).to_pandas()
    numbers = np.zeros(len(gaps), np.int64)
    np.add.at(numbers, counted.gap.to_numpy(np.int64), counted.numbers.to_numpy(np.int64))
    is_given = numbers == (gaps.until_key - gaps.key + 1).to_numpy()
    return rows.drop(index=gaps.index[is_given]).reset_index(drop=True)


def _counter(gaps: Frame) -> Any:
    """Return a function that counts the numbers in each gap; all of a number are in one task."""
    starts, until = gaps[[*_STREAM, "key"]].assign(gap=gaps.index), gaps.until_key.to_numpy()

    def count(batches: Iterable[Any]) -> Iterator[Any]:
        inside = [pd.DataFrame(columns=["gap", "key"], dtype=np.int64)]
        for batch in batches:
            accepted = pa.Table.from_batches([batch]).to_pandas().sort_values("key")
            # The gaps of a stream do not overlap: only the last one that begins before counts.
            found = pd.merge_asof(accepted, starts, on="key", by=_STREAM).dropna(subset=["gap"])
            found = found[["gap", "key"]].astype(np.int64)
            found = found[found.key.to_numpy() <= until[found.gap.to_numpy()]]
            inside.append(found.drop_duplicates())
        numbers = pd.concat(inside).drop_duplicates().groupby("gap").size()
        yield pa.RecordBatch.from_arrays(
            [pa.array(numbers.index, pa.int64()), pa.array(numbers.to_numpy(), pa.int64())],
            schema=_COUNTS,
        )

    return count
