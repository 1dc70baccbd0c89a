"""The types of columns in the tables of all jobs: the same with rows and without.

Other programs read these tables, compare and append them.  A column without any value has no type
of its own in pandas.
"""

from __future__ import annotations

from typing import Any

_NAMES = {
    "string": (
        "command detail examples file from_host full_on host kind label message_class message_id"
        " objective path queue reason stage to_host to_queue"
    ),
    "int64": (
        "accepted accepted_bytes after_tomorrow at_ms before_sent bytes came days ended first_ms"
        " gone in_time last_ms late messages most_messages oldest_at_ms open received requeued sent"
        " sent_bytes sequence_number slowest_ms source stream undecided until_number waiting"
        " waiting_since_ms within_ms"
    ),
    "double": (
        "backlog_hours budget_used_percent burn_rate growth_bytes_a_day least_ms mean_ms most_ms"
        " offset_ms percent target_percent"
    ),
    "date32": "day",
}
_TYPE_OF = {name: kind for kind, names in _NAMES.items() for name in names.split()}


def typed(table: Any) -> Any:
    """Return an Arrow table with types for columns without values, and whole numbers as such."""
    import pyarrow as pa

    for at, field in enumerate(table.schema):
        kind = pa.type_for_alias(_TYPE_OF.get(field.name, "string"))
        column = table.column(at)
        if column.null_count == len(column):
            known = pa.types.is_null(field.type) or field.name in _TYPE_OF
            column = pa.nulls(len(column), kind) if known else column
        elif pa.types.is_floating(field.type) and pa.types.is_integer(kind):
            column = column.cast(kind)
        else:
            continue
        table = table.set_column(at, field.with_type(column.type), column)
    return table
