"""Events as columns, with the schema of `qmd events export`.  docs/events.md"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from pipeline.source import schema


def event_batch(events: Sequence[dict[str, Any]], columns: Sequence[str]) -> Any:
    """Convert events (dicts, as in the client and in NDJSON); a missing field becomes null."""
    types = schema.arrow_schema("events", columns)
    arrays = []
    for name in columns:
        if name == "time":
            # The field `time` is the same moment as text, for people.
            moments = pa.array([event.get("at_ms") for event in events], pa.int64())
            arrays.append(moments.cast(pa.timestamp("ms", "UTC")).cast(schema.MOMENT))
            continue
        values = [event.get(name) for event in events]
        if name == "sequence_id":
            values = [None if value is None else Decimal(value) for value in values]
        arrays.append(pa.array(values, types.field(name).type))
    return pa.record_batch(arrays, schema=types)


def event_rows(table: Any, columns: Sequence[str]) -> Any:
    """Convert a table of a Parquet file of events to a record batch with these columns.

    The schema of such files grows: a missing column becomes null, and other columns are dropped.
    """
    types = schema.arrow_schema("events", columns)
    arrays = [
        table.column(name).cast(types.field(name).type)
        if name in table.schema.names
        else pa.nulls(table.num_rows, types.field(name).type)
        for name in columns
    ]
    return pa.record_batch(arrays, schema=types)
