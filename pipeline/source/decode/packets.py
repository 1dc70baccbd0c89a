"""Packets into columns, thousands at once.

    rows.py        what comes from a queue manager
    headers.py     where the headers of each packet stand: numpy reads one field of all packets
    quickly.py     the columns out of that: what is of variable length Arrow cuts out of the bytes
    one_by_one.py  the rest, by the parser of `protocol`

The quick way takes less than a microsecond a message, where the parser and a `Message` take forty.
What it does not know (rare headers, names that are not direct, anything that does not add up) it
leaves to that parser, whose word is final: both have to say the same of every packet, and a
property test compares them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.source import schema
from pipeline.source.decode.columns import quickly
from pipeline.source.decode.headers import Headers
from pipeline.source.decode.one_by_one import one_by_one
from pipeline.source.decode.rows import Place, Rows


def batch_of(rows: Rows, place: Place, columns: Sequence[str]) -> Any:
    """An Arrow record batch of these columns of `schema.MESSAGE`.

    Raises MalformedPacket for a packet that is no user message.
    """
    arrays = arrays_of(rows, columns)
    for name in ("host", "queue_manager", "queue"):
        if name in columns:
            arrays[name] = pa.repeat(pa.scalar(getattr(place, name), pa.string()), len(rows))
    return schema.record_batch("messages", columns, [arrays[name] for name in columns])


def arrays_of(rows: Rows, columns: Sequence[str]) -> dict[str, Any]:
    """The columns that the messages themselves have; those of `Place` are left out."""
    wanted = [name for name in columns if name not in ("host", "queue_manager", "queue")]
    if not len(rows):
        empty = schema.arrow_schema("messages", columns)
        return {name: pa.array([], empty.field(name).type) for name in wanted}
    aligned = rows.aligned()
    fast = Headers(aligned).readable(frozenset(wanted))
    if fast.all():
        return quickly(aligned, wanted)
    quick, slow = np.flatnonzero(fast), np.flatnonzero(~fast)
    parsed = one_by_one(rows.chosen(slow), wanted)
    if not len(quick):
        return parsed
    read = quickly(rows.chosen(quick).aligned(), wanted)
    back = np.empty(len(rows), np.int64)
    back[np.concatenate((quick, slow))] = np.arange(len(rows))
    order = pa.array(back)
    return {name: pa.concat_arrays([read[name], parsed[name]]).take(order) for name in wanted}
