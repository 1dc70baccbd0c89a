"""The columns of messages and of events: names, Spark types and Arrow types, in one place.

Spark types and Arrow types must agree exactly: Spark compares the first Arrow batch of a read with
its own schema, including names and order.  Names are those of `qmd peek --json` where it has the
same property.  docs/pipeline.md, "Columns".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa

POSITION = pa.struct(
    [
        # Unsigned 64-bit integer: Spark has no such type, and its values have at most 20 digits.
        pa.field("id", pa.decimal128(20, 0)),
        pa.field("number", pa.int64()),
        pa.field("previous", pa.int64()),
    ]
)
TEXTS = pa.list_(pa.field("element", pa.string()))
MOMENT = pa.timestamp("us", tz="UTC")
SEQUENCE_ID = pa.decimal128(20, 0)


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    ddl: str
    arrow: Any
    nullable: bool


def _columns(*rows: tuple[str, str]) -> tuple[Column, ...]:
    return tuple(
        Column(name, ddl, _ARROW[kind], nullable=kind == ddl)
        for name, ddl in rows
        for kind in [ddl.removesuffix(_NEVER_NULL)]
    )


# For nullable columns Java checks each value for null, twice: a seventh of its cost for 40
# columns.
_NEVER_NULL = " NOT NULL"


_ARROW: dict[str, Any] = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": MOMENT,
    "array<string>": TEXTS,
    "decimal(20,0)": SEQUENCE_ID,
    "struct<id: decimal(20,0), number: bigint, previous: bigint>": POSITION,
}

MESSAGE = _columns(
    ("host", "string NOT NULL"),  # the name of its queue manager
    ("queue_manager", "string NOT NULL"),  # its GUID
    ("queue", "string NOT NULL"),  # as the option spells it, or its own name if a pattern matched
    ("position", "bigint NOT NULL"),  # the order of arrival; in a stream, the reader's position
    ("lookup_id", "bigint NOT NULL"),
    ("id", "string NOT NULL"),
    ("label", "string NOT NULL"),
    ("body", "binary NOT NULL"),
    ("body_bytes", "bigint NOT NULL"),
    ("body_type", "bigint NOT NULL"),
    ("class", "string NOT NULL"),
    ("class_number", "int NOT NULL"),
    ("priority", "int NOT NULL"),
    ("delivery", "string NOT NULL"),
    ("sent_at", "timestamp NOT NULL"),
    ("arrived_at", "timestamp NOT NULL"),
    ("source", "string NOT NULL"),
    ("destination", "string"),
    ("correlation_id", "string"),
    ("sequence", "struct<id: decimal(20,0), number: bigint, previous: bigint>"),
    ("reason", "string"),
    ("application_tag", "bigint NOT NULL"),
    ("extension", "binary NOT NULL"),
    ("response_queue", "string"),
    ("admin_queue", "string"),
    ("acknowledge", "array<string> NOT NULL"),
    ("time_to_reach_queue", "bigint"),
    ("time_to_be_received", "bigint"),
    ("journal", "boolean NOT NULL"),
    ("dead_letter", "boolean NOT NULL"),
    ("abort_count", "int NOT NULL"),
    ("move_count", "int NOT NULL"),
    ("hops", "int NOT NULL"),
    ("sender_id", "string"),
    ("connector_type", "string"),
    ("traced", "boolean NOT NULL"),
    ("report_queue", "string"),
    ("destinations", "array<string> NOT NULL"),
    ("admin_queues", "array<string> NOT NULL"),
    ("response_queues", "array<string> NOT NULL"),
    ("packet", "binary NOT NULL"),  # the packet as on the wire; only if the columns name it
)

# docs/events.md; the schema of `qmd events export`.
EVENT = _columns(
    ("schema", "int"),
    ("host", "string"),
    ("queue_manager", "string"),
    ("cursor", "string"),
    ("block", "bigint"),
    ("index", "bigint"),
    ("time", "timestamp"),
    ("at_ms", "bigint"),
    ("kind", "string"),
    ("message_id", "string"),
    ("queue", "string"),
    ("peer", "string"),
    ("lookup_id", "bigint"),
    ("sequence_id", "decimal(20,0)"),
    ("sequence_number", "bigint"),
    ("class", "string"),
    ("delivery", "string"),
    ("bytes", "bigint"),
    ("reason", "string"),
    ("to_queue", "string"),
    ("transaction", "string"),
    ("label", "string"),
    ("correlation_id", "string"),
)

_KINDS = {"messages": MESSAGE, "events": EVENT}
ONLY_WHEN_ASKED_FOR = {"packet"}
BODIES = {"body", "packet"}  # columns that need more of a packet than its headers
# Headers behind the body: a packet cut at the body lacks them.
BEHIND_THE_BODY = {"report_queue", "destinations", "admin_queues", "response_queues"}


@cache
def column_names(kind: str) -> tuple[str, ...]:
    """Return all column names of a kind, "messages" or "events"."""
    return tuple(column.name for column in _KINDS[kind])


def default_columns(kind: str, *, bodies: bool = True) -> tuple[str, ...]:
    """Return the columns that are read if the options name none."""
    left_out = ONLY_WHEN_ASKED_FOR if bodies else BODIES | BEHIND_THE_BODY
    return tuple(name for name in column_names(kind) if name not in left_out)


def ddl(kind: str, columns: Sequence[str]) -> str:
    """Return the schema as Spark DDL."""
    return ", ".join(f"`{column.name}` {column.ddl}" for column in _of(kind, columns))


def arrow_schema(kind: str, columns: Sequence[str]) -> Any:
    return pa.schema(
        [
            pa.field(column.name, column.arrow, nullable=column.nullable)
            for column in _of(kind, columns)
        ]
    )


def record_batch(kind: str, columns: Sequence[str], arrays: Sequence[Any]) -> Any:
    """Return a record batch for Spark.  A null in a NOT NULL column would be read as a value."""
    batch = pa.record_batch(list(arrays), schema=arrow_schema(kind, columns))
    for field, array in zip(batch.schema, batch.columns, strict=True):
        assert field.nullable or not array.null_count, f"{field.name} has nulls"
    return batch


def _of(kind: str, columns: Sequence[str]) -> list[Column]:
    known = {column.name: column for column in _KINDS[kind]}
    return [known[name] for name in columns]


def moments(microseconds: Any) -> Any:
    """Convert integers (microseconds since 1970) to timestamps."""
    return pa.array(microseconds).cast(MOMENT)
