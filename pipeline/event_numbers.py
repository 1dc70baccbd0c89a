"""The numbers of events, within limits: a damaged or hostile log may have any 64-bit number.

A size that no packet has is unknown.  A time that the tables cannot show is the nearest one that
they can.  A number of a block or in a block that no queue manager assigns, or none at all, is
damage: blocks show which parts of a log were read.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

#: The times of tables and pages: years that numpy, pandas and Python's dates all have.
EARLIEST_MS = int(datetime(1678, 1, 1, tzinfo=UTC).timestamp()) * 1000
LATEST_MS = int(datetime(2262, 1, 1, tzinfo=UTC).timestamp()) * 1000
SIZE_MAX = (1 << 32) - 1  # of a packet: its size is a field of 32 bits
BLOCK_MAX = (1 << 42) - 1  # the audit adds 20 bits of the number in the block
INDEX_MAX = (1 << 32) - 1
#: Columns of a place in the log, with their largest number.
PLACES = {"block": BLOCK_MAX, "index": INDEX_MAX}
REQUIRED = (*PLACES, "at_ms")


def within_limits(table: Any) -> Any:
    """Return a table of events with numbers that all jobs can calculate with.

    Raises ValueError for an event that has no place in a log, or no time.
    """
    import pyarrow as pa

    for at, field in enumerate(table.schema):
        if field.name not in ("at_ms", "bytes", *PLACES):
            continue
        column = table.column(at)
        if field.name in PLACES:
            checked = _places(column, field.name)
        else:
            checked = _times(column) if field.name == "at_ms" else _sizes(column)
        if checked is not column:
            table = table.set_column(at, pa.field(field.name, pa.int64()), checked)
    return table


def check_place(name: str, least: Any, most: Any, nulls: int) -> None:
    """Raise ValueError if a column of `REQUIRED` has nulls, or such a least or largest number."""
    if nulls:
        raise ValueError(f"an event has no {name}")
    for number in (least, most) if name in PLACES else ():
        if number is not None and not 0 <= number <= PLACES[name]:
            raise ValueError(f"an event has the {name} {number}, which no queue manager assigns")


def _places(column: Any, name: str) -> Any:
    check_place(name, *_ends(column), column.null_count)
    return _whole(column)


def _times(column: Any) -> Any:
    import pyarrow.compute as pc

    least, most = _ends(column)
    check_place("at_ms", least, most, column.null_count)
    if least is not None and (least < EARLIEST_MS or most > LATEST_MS):
        column = pc.max_element_wise(pc.min_element_wise(column, LATEST_MS), EARLIEST_MS)
    return _whole(column)


def _sizes(column: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    least, most = _ends(column)
    if least is not None and (least < 0 or most > SIZE_MAX):
        is_size = pc.and_(pc.greater_equal(column, 0), pc.less_equal(column, SIZE_MAX))
        column = pc.if_else(is_size, column, pa.scalar(None, column.type))
    return _whole(column)


def _ends(column: Any) -> tuple[Any, Any]:
    import pyarrow.compute as pc

    found = pc.min_max(column)
    return found["min"].as_py(), found["max"].as_py()


def _whole(column: Any) -> Any:
    import pyarrow as pa

    return column if column.type == pa.int64() else column.cast(pa.int64())
