"""Reads of exported files: event logs of `qmd events export`, queues of `qmd export`.

Events are Parquet or NDJSON, messages NDJSON, also compressed (.gz, .bz2, .xz).  The kind is
detected from the beginning of a file, so a folder may be named without a kind.  Names that begin
with `.` or `_` are skipped: such files are incomplete, or belong to another tool.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import IO, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pipeline.source.decode.packets import batch_of
from pipeline.source.decode.rows import Place, Rows
from pipeline.source.errors import SourceError, option_error, plainly
from pipeline.source.events import event_batch, event_rows
from pipeline.source.options import Options
from pipeline.source.output import output_of
from pipeline.stores import StoreFailed, StoreUnknown, store_at
from qmd.client.archive import BrokenLine, read_line

LINES_A_BATCH = 5_000
ROWS_A_BATCH = 65_536
_OF_EACH_EVENT = {"block", "index", "kind"}  # columns


@dataclass(frozen=True)
class File(InputPartition):
    path: str
    row_groups: tuple[int, ...] | None = None  # of a Parquet file


class FileReader(DataSourceReader):
    """One partition for each file, or for each row group of a Parquet file."""

    def __init__(self, options: Options, given: Any = None) -> None:
        self.options = options
        self.kind = kind_of(options)
        self.output = output_of(options, self.kind, given)
        self.columns = self.output.decoded

    @plainly
    def partitions(self) -> list[InputPartition]:
        found: list[InputPartition] = []
        for path in files_of(self.options.path):
            if path.endswith(".parquet"):
                if self.kind == "messages":
                    raise SourceError(
                        f"qmd: {path} is Parquet, and messages are read from lines of JSON (qmd"
                        " export); read a table of your own with spark.read.parquet"
                    )
                file = _parquet(path)
                if _OF_EACH_EVENT - set(file.schema_arrow.names):
                    raise SourceError(
                        f"qmd: {path} is Parquet without the columns of events; in a lake of qmd"
                        " ship the events are in the folder events, and journals and inventories"
                        " are read with spark.read.parquet"
                    )
                groups = file.num_row_groups
                found += [File(path, (group,)) for group in range(groups)]
            else:
                found.append(File(path))
        return found

    @plainly
    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, File):  # Spark's own empty partition
            return iter(())
        if partition.row_groups is not None:
            batches = self._read_parquet(partition.path, partition.row_groups)
        elif self.kind == "events":
            batches = self._read_events(partition.path)
        else:
            batches = self._read_messages(partition.path)
        return map(self.output.of, batches)

    def _read_parquet(self, path: str, groups: tuple[int, ...]) -> Iterator[Any]:
        file = _parquet(path)
        there = [name for name in self.columns if name in file.schema_arrow.names]
        for batch in file.iter_batches(ROWS_A_BATCH, row_groups=groups, columns=there or ["host"]):
            yield event_rows(batch, self.columns)

    def _read_events(self, path: str) -> Iterator[Any]:
        for first, lines in _lines(path):
            events = []
            for number, line in enumerate(lines, first):
                try:
                    event = json.loads(line)
                    if event["schema"] != 1:
                        raise SourceError(
                            f"qmd: line {number} of {path} has version {event['schema']}, and"
                            " this qmd reads version 1; install the newer release"
                        )
                except (ValueError, TypeError, KeyError) as error:
                    raise SourceError(
                        f"qmd: line {number} of {path} is not an event ({error}); such files"
                        " come from qmd events export"
                    ) from error
                events.append(event)
            yield event_batch(events, self.columns)

    def _read_messages(self, path: str) -> Iterator[Any]:
        for first, lines in _lines(path):
            messages, beside = [], []
            for number, line in enumerate(lines, first):
                try:
                    messages.append(read_line(line))
                except BrokenLine as error:
                    raise SourceError(
                        f"qmd: line {number} of {path} is not a message: {error}; such files"
                        " come from"
                        " qmd export"
                    ) from error
                beside.append(json.loads(line))
            count = len(messages)
            rows = Rows(
                np.arange(first, first + count, dtype=np.int64),
                np.array([each.get("lookup_id", 0) for each in beside], np.int64),
                np.array([each.arrived_at_ms for each in messages], np.int64),
                np.array([each.abort_count for each in messages], np.int32),
                np.array([each.move_count for each in messages], np.int32),
                np.cumsum([0, *(len(each.packet) for each in messages)], dtype=np.int64),
                b"".join(each.packet for each in messages),
                [each.reason for each in messages],
            )
            batch = batch_of(rows, Place("", "", ""), self.columns)
            if "queue" in self.columns:
                queues = pa.array([each.get("queue") or "" for each in beside], pa.string())
                batch = batch.set_column(
                    self.columns.index("queue"), batch.schema.field("queue"), queues
                )
            yield batch


def kind_of(options: Options) -> str:
    """Return "messages" or "events": from the options, or detected from the first file."""
    if options.kind:
        return options.kind
    first = next(iter(files_of(options.path)))
    if first.endswith(".parquet"):
        return "events"
    with _open(first) as file:
        line = file.readline()
    try:
        fields = json.loads(line or b"{}")
    except ValueError:
        fields = {}
    if isinstance(fields, dict):
        if "qmd_message" in fields:
            return "messages"
        if "cursor" in fields and "kind" in fields:
            return "events"
    raise SourceError(
        f"qmd: {first} has neither events nor messages in its first line; such files come from"
        ' qmd events export and qmd export.  For an empty file set .option("kind", ...)'
    )


def files_of(path: str) -> list[str]:
    """Return the files of a path, a folder or a pattern, sorted.  Raises SourceError."""
    try:
        system, root, _ = store_at(path)
        if any(sign in root for sign in "*?["):
            found = [one for one in system.glob(root) if not system.isdir(one)]
        elif system.isdir(root):
            found = list(system.find(root))
        else:
            found = [root] if system.exists(root) else []
    except (StoreUnknown, StoreFailed) as error:
        raise option_error("path", f"cannot be read: {error}") from error
    shown = sorted(one for one in found if not one.rpartition("/")[2].startswith((".", "_")))
    if not shown:
        raise option_error("path", f"is {path!r}, and no file matches it")
    return [system.unstrip_protocol(one) if "://" in path else one for one in shown]


def _open(path: str) -> IO[bytes]:
    import fsspec

    opened: IO[bytes] = fsspec.open(path, "rb", compression="infer").open()
    return opened


def _parquet(path: str) -> Any:
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(_open(path))
    except (OSError, pa.ArrowInvalid) as error:
        raise SourceError(f"qmd: {path} cannot be read as Parquet: {error}") from error


def _lines(path: str) -> Iterator[tuple[int, Sequence[bytes]]]:
    """Yield blocks of non-empty lines, each with the number of its first line."""
    with _open(path) as file:
        first = 1
        while lines := list(islice(file, LINES_A_BATCH)):
            yield first, [line for line in lines if line.strip()]
            first += len(lines)
