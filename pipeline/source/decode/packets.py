"""Decoding of packets into columns, thousands at once.

    rows.py        messages as a queue manager sends them
    headers.py     positions of the headers: numpy reads one field of all packets
    columns.py     the columns from these positions; Arrow cuts values of variable length
    fallback.py    the other packets, by the parser of `protocol`

The fast path takes less than a microsecond a message; the parser and a `Message` take forty.
Packets that the fast path does not handle (rare headers, names that are not direct, inconsistent
sizes) go to the parser, which is authoritative: both must agree on every packet, and a
property test compares them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.source import schema
from pipeline.source.decode.columns import fast_columns
from pipeline.source.decode.fallback import parsed_columns
from pipeline.source.decode.headers import Headers
from pipeline.source.decode.rows import Place, Rows


def batch_of(rows: Rows, place: Place, columns: Sequence[str]) -> Any:
    """Return an Arrow record batch of these columns of `schema.MESSAGE`.

    Raises MalformedPacket for a packet that is no user message.
    """
    arrays = arrays_of(rows, columns)
    for name in ("host", "queue_manager", "queue"):
        if name in columns:
            arrays[name] = pa.repeat(pa.scalar(getattr(place, name), pa.string()), len(rows))
    return schema.record_batch("messages", columns, [arrays[name] for name in columns])


def arrays_of(rows: Rows, columns: Sequence[str]) -> dict[str, Any]:
    """Return the columns of the messages themselves, without those of `Place`."""
    wanted = [name for name in columns if name not in ("host", "queue_manager", "queue")]
    if not len(rows):
        empty = schema.arrow_schema("messages", columns)
        return {name: pa.array([], empty.field(name).type) for name in wanted}
    aligned = rows.aligned()
    headers = Headers(aligned)
    fast = headers.readable(frozenset(wanted))
    if fast.all():
        return fast_columns(headers, wanted)
    quick, slow = np.flatnonzero(fast), np.flatnonzero(~fast)
    parsed = parsed_columns(rows.chosen(slow), wanted)
    if not len(quick):
        return parsed
    read = fast_columns(Headers(rows.chosen(quick).aligned()), wanted)
    back = np.empty(len(rows), np.int64)
    back[np.concatenate((quick, slow))] = np.arange(len(rows))
    order = pa.array(back)
    return {name: pa.concat_arrays([read[name], parsed[name]]).take(order) for name in wanted}
