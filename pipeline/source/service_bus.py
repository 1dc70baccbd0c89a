"""The column `service_bus`: headers of NServiceBus, Rebus and MassTransit, and their meaning.

A read has the column with the option `serviceBus`.  `with_service_bus` adds it to rows that were
read before: an archive, or a table that a stream has written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from pipeline.source.errors import SourceError
from pipeline.source.schema import MOMENT, TEXTS
from qmd.bodies.bus_headers import BusHeaders, read_bus_headers
from qmd.properties.block import read_extension

SERVICE_BUS = "service_bus"
NEEDED = ("extension", "body")

DDL = (
    "struct<framework: string, message_id: string, correlation_id: string,"
    " conversation_id: string, related_to: string, message_types: array<string>,"
    " content_type: string, intent: string, control: boolean, return_address: string,"
    " failed_queue: string, error: string, retries: int, sent_at: timestamp,"
    " failed_at: timestamp, headers: map<string, string>>"
)
ARROW = pa.struct(
    [
        ("framework", pa.string()),
        ("message_id", pa.string()),
        ("correlation_id", pa.string()),
        ("conversation_id", pa.string()),
        ("related_to", pa.string()),
        ("message_types", TEXTS),
        ("content_type", pa.string()),
        ("intent", pa.string()),
        ("control", pa.bool_()),
        ("return_address", pa.string()),
        ("failed_queue", pa.string()),
        ("error", pa.string()),
        ("retries", pa.int32()),
        ("sent_at", MOMENT),
        ("failed_at", MOMENT),
        ("headers", pa.map_(pa.string(), pa.string())),
    ]
)


def bus_column(batch: Any) -> Any:
    """Return the column for a record batch: null where no service bus has written the message.

    Without the column `body`, headers in the envelope of MassTransit are missing.
    """
    extensions = batch.column("extension").to_pylist()
    has_bodies = "body" in batch.schema.names
    bodies = batch.column("body").to_pylist() if has_bodies else [b""] * len(extensions)
    values = [_value(*both) for both in zip(extensions, bodies, strict=True)]
    return pa.array(values, ARROW)


def with_service_bus(frame: Any) -> Any:
    """Return a DataFrame with the column `service_bus` behind its own columns.

    It needs the columns `extension` and `body` as a read returns them.  Raises SourceError.
    """
    from pyspark.sql.types import StructType

    missing = [name for name in NEEDED if name not in frame.columns]
    if missing or SERVICE_BUS in frame.columns:
        fault = f"lacks the column {missing[0]}" if missing else "has such a column already"
        raise SourceError(
            f"qmd: the column {SERVICE_BUS} is made of the columns extension and body, and the"
            f" DataFrame {fault}",
            code="source_option",
        )
    added = StructType.fromDDL(f"{SERVICE_BUS} {DDL}")
    return frame.mapInArrow(_added, StructType([*frame.schema.fields, *added.fields]))


def _added(batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        yield pa.record_batch(
            [*batch.columns, bus_column(batch)], names=[*batch.schema.names, SERVICE_BUS]
        )


def _value(extension: bytes | None, body: bytes | None) -> dict[str, Any] | None:
    properties, rest = read_extension(extension or b"")
    found = read_bus_headers(rest, body or b"", properties.content_type)
    if found is None:
        return None
    value = {name: _text(each) for name, each in found.to_json().items()}
    return value | _own(found)


def _own(found: BusHeaders) -> dict[str, Any]:
    """Return the fields whose values in Arrow differ from those in JSON."""
    return {
        "message_types": [_text(each) for each in found.message_types],
        "sent_at": _moment(found.sent_at),
        "failed_at": _moment(found.failed_at),
        "headers": [(_text(name), _text(text)) for name, text in found.headers.items()],
    }


def _text(value: Any) -> Any:
    """Return a text without halves of characters, which JSON can have and Arrow cannot."""
    if not isinstance(value, str):
        return value
    return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _moment(time: datetime | None) -> datetime | None:
    """Return a time in UTC; one without a zone is taken for UTC, one outside the calendar None."""
    if time is None or time.tzinfo is None:
        return None if time is None else time.replace(tzinfo=UTC)
    try:
        return time.astimezone(UTC)
    except OverflowError:
        return None
