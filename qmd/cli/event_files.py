"""Files of events: NDJSON, or Parquet if pyarrow is installed.  docs/events.md

A file gets its final name after all of it is written and durable: a reader only finds complete
files.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

from qmd.cli.program import ExitCode, Failure

Event = dict[str, Any]

# Name, Arrow type, whether it may be null: in the order of docs/events.md.
FIELDS = (
    ("schema", "int32", False),
    ("host", "string", False),
    ("queue_manager", "string", False),
    ("cursor", "string", False),
    ("block", "int64", False),
    ("index", "int64", False),
    ("time", "timestamp", False),
    ("at_ms", "int64", False),
    ("kind", "string", False),
    ("message_id", "string", False),
    ("queue", "string", False),
    ("peer", "string", False),
    ("lookup_id", "int64", True),
    # A sequence id has 64 bits without a sign; Spark has no such type, and 20 digits always
    # suffice.
    ("sequence_id", "decimal", True),
    ("sequence_number", "int64", True),
    ("class", "string", True),
    ("delivery", "string", False),
    ("bytes", "int64", False),
    ("reason", "string", False),
    ("to_queue", "string", False),
    ("transaction", "string", False),
    ("label", "string", False),
    ("correlation_id", "string", False),
)


class Writer(Protocol):
    def write(self, events: Sequence[Event]) -> None:
        """Append events."""


def arrow_schema() -> Any:
    """Return the schema of a Parquet file of events.  Raises ImportError without pyarrow."""
    import pyarrow as arrow

    types = {
        "int32": arrow.int32(),
        "int64": arrow.int64(),
        "string": arrow.string(),
        "timestamp": arrow.timestamp("ms", tz="UTC"),
        "decimal": arrow.decimal128(20, 0),
    }
    return arrow.schema(
        [arrow.field(name, types[kind], nullable=nullable) for name, kind, nullable in FIELDS],
        metadata={"qmd.events.schema": "1"},
    )


@contextlib.contextmanager
def open_writer(path: Path | None, form: str) -> Iterator[Writer]:
    """Open a writer for a file, or for standard output when `path` is None.

    Raises Failure without the library for the form.
    """
    if path is None:
        yield _Ndjson(sys.stdout)
        sys.stdout.flush()
        return
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path.parent))
    opened = _open_parquet if form == "parquet" else _open_ndjson
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with opened(part) as writer:
            yield writer
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


class _Ndjson:
    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, events: Sequence[Event]) -> None:
        self._file.writelines(f"{json.dumps(event)}\n" for event in events)


@contextlib.contextmanager
def _open_ndjson(path: Path) -> Iterator[Writer]:
    with path.open("x", encoding="utf-8") as file:
        yield _Ndjson(file)


class _Parquet:
    """A Parquet file with one row group for each page of events."""

    def __init__(self, arrow: Any, writer: Any, schema: Any) -> None:
        self._arrow = arrow
        self._writer = writer
        self._schema = schema

    def write(self, events: Sequence[Event]) -> None:
        from datetime import UTC, datetime
        from decimal import Decimal

        if not events:
            return
        columns: dict[str, list[Any]] = {name: [] for name, _, _ in FIELDS}
        for event in events:
            for name, kind, _ in FIELDS:
                value = event[name]
                if kind == "timestamp":
                    value = datetime.fromtimestamp(event["at_ms"] / 1000, UTC)
                elif kind == "decimal" and value is not None:
                    value = Decimal(value)
                columns[name].append(value)
        self._writer.write_table(self._arrow.table(columns, schema=self._schema))


@contextlib.contextmanager
def _open_parquet(path: Path) -> Iterator[Writer]:
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError as error:
        raise Failure(
            ExitCode.FAILED,
            f"Parquet needs pyarrow, which cannot be loaded ({error}); install the extra:"
            " pip install '.[spark]', or use --format ndjson",
            "parquet_missing",
        ) from error
    schema = arrow_schema()
    # Created here with O_EXCL: the library would follow an existing link.
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    with (
        open(descriptor, "wb") as file,
        parquet.ParquetWriter(file, schema, compression="zstd") as writer,
    ):
        yield _Parquet(arrow, writer, schema)
