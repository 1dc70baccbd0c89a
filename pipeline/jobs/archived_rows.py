"""Messages of journals as rows: read, selected, sorted and written by Spark or in this process.

The condition of a selection is in the SQL of Spark, on either engine.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import compute as pc
from pyarrow import parquet

from pipeline.engines.duckdb_sql import condition_for_duckdb
from pipeline.engines.engine import WrongQuery
from pipeline.engines.local import LocalEngine
from pipeline.source import schema
from pipeline.stores import store_at

Frame = Any

#: The order of an archive; rows with the same values are one message.  A restored backup assigns
#: positions again, so the position alone does not identify one.
ORDER = ("queue_manager", "queue", "position", "id")
FILE_ROWS = 1_000_000
FILE_BYTES = 256 << 20  # of rows in memory, for one file
_BATCH_BYTES = 16 << 20

CONTENTS = ("day", "queue_manager", "queue", "messages", "bytes", "first", "last")
_CONTENTS = """
SELECT {day} AS day, queue_manager, queue, count(*) AS messages,
  CAST(sum(octet_length(body)) AS bigint) AS bytes, min(arrived_at) AS first,
  max(arrived_at) AS last
FROM {rows} AS chosen GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""


class Rows(Protocol):
    """The rows of Parquet files; `paths` are files or folders, as paths or URLs."""

    def compact(self, paths: Sequence[str], folder: str) -> int:
        """Write the rows to `folder`, in `ORDER` and each once; return their number."""

    def count(self, paths: Sequence[str], where: str = "") -> int:
        """Return the number of rows that fulfil a condition.  Raises WrongQuery."""

    def contents(self, paths: Sequence[str], where: str = "") -> Frame:
        """Return the amounts by day of arrival, host and queue (`CONTENTS`)."""

    def ordered(
        self, paths: Sequence[str], where: str, order: Sequence[str]
    ) -> Iterator[Mapping[str, Any]]:
        """Yield the rows in an order.  Raises WrongQuery."""


def rows_of(given: Any) -> Rows:
    """Return the rows as `given` reads them: a Spark session, or the embedded engine."""
    return LocalRows(given) if isinstance(given, LocalEngine) else SparkRows(given)


class SparkRows:
    """Rows on the executors of a session."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def compact(self, paths: Sequence[str], folder: str) -> int:
        rows = self._read(paths)
        rows = rows.dropDuplicates([name for name in ORDER if name in rows.columns])
        order = [name for name in ORDER if name in rows.columns]
        (
            rows.repartitionByRange(*order)
            .sortWithinPartitions(*order)
            .write.mode("overwrite")
            .option("maxRecordsPerFile", FILE_ROWS)
            .parquet(folder)
        )
        return int(self._session.read.parquet(folder).count())

    def count(self, paths: Sequence[str], where: str = "") -> int:
        return int(self._selected(paths, where).count())

    def contents(self, paths: Sequence[str], where: str = "") -> Frame:
        if not paths:
            return pd.DataFrame(columns=CONTENTS)
        self._selected(paths, where).createOrReplaceTempView("archived")
        day = "date_format(arrived_at, 'yyyy-MM-dd')"
        return self._session.sql(_CONTENTS.format(day=day, rows="archived")).toPandas()

    def ordered(
        self, paths: Sequence[str], where: str, order: Sequence[str]
    ) -> Iterator[Mapping[str, Any]]:
        for row in self._selected(paths, where).sort(*order).toLocalIterator():
            yield row.asDict(recursive=True)

    def _read(self, paths: Sequence[str]) -> Any:
        return self._session.read.option("mergeSchema", "true").parquet(*paths)

    def _selected(self, paths: Sequence[str], where: str) -> Any:
        from pyspark.errors import AnalysisException, ParseException

        rows = self._read(paths)
        try:
            return rows.where(where) if where else rows
        except (AnalysisException, ParseException) as error:
            raise WrongQuery(str(error).strip().splitlines()[0]) from error


class LocalRows:
    """Rows in this process: DuckDB sorts them, with a temporary folder for large ones."""

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine

    def compact(self, paths: Sequence[str], folder: str) -> int:
        from pipeline.results.places import Place

        files = _Files(paths)
        place = Place(folder)
        for left in place.names(""):  # of a run that died
            place.remove(left)
        parts = _Parts(_once(self._sorted(files, "", ORDER)), files.schema)
        while parts.has_more:
            place.write(f"part-{parts.number:05}.parquet", parts.write)
        return parts.rows

    def count(self, paths: Sequence[str], where: str = "") -> int:
        query = "SELECT count(*) AS n FROM ({rows})"
        with self._over(_Files(paths), query, where) as found:
            return int(found.read_all().column("n")[0].as_py())

    def contents(self, paths: Sequence[str], where: str = "") -> Frame:
        if not paths:
            return pd.DataFrame(columns=CONTENTS)
        query = _CONTENTS.format(day="strftime(arrived_at, '%Y-%m-%d')", rows="({rows})")
        with self._over(_Files(paths), query, where) as found:
            table = found.read_all().to_pandas()
        return table.astype({"first": "datetime64[ns]", "last": "datetime64[ns]"})

    def ordered(
        self, paths: Sequence[str], where: str, order: Sequence[str]
    ) -> Iterator[Mapping[str, Any]]:
        for batch in self._sorted(_Files(paths), where, order):
            yield from batch.to_pylist()

    def _sorted(self, files: _Files, where: str, order: Sequence[str]) -> Iterator[Any]:
        by = ", ".join(f'"{name}"' for name in order if name in files.schema.names)
        with self._over(files, f"{{rows}} ORDER BY {by}", where) as found:
            for batch in found:
                yield from pa.Table.from_batches([batch]).cast(files.schema).to_batches()

    def _over(self, files: _Files, query: str, where: str) -> Any:
        """Execute a query over `{rows}`: those that fulfil a condition."""
        condition = f" WHERE {condition_for_duckdb(where)}" if where else ""
        rows = f"SELECT * FROM archive{condition}"
        return self._engine.over("archive", files.reader(), query.replace("{rows}", rows))


class _Files:
    """Parquet files of several releases as one stream of rows, with the columns of all."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._files = [each for path in paths for each in _files_in(path)]
        of_files = [self._schema_of(*each) for each in self._files]
        known = schema.arrow_schema("messages", schema.column_names("messages"))
        self.schema = pa.schema([
            pa.field(field.name, known.field(field.name).type if field.name in known.names
                     else field.type)
            for field in pa.unify_schemas([_nullable(each) for each in of_files],
                                          promote_options="permissive")
        ])  # fmt: skip

    @staticmethod
    def _schema_of(system: Any, path: str) -> Any:
        with system.open(path, "rb") as opened, parquet.ParquetFile(opened) as file:
            return file.schema_arrow.remove_metadata()

    def reader(self) -> Any:
        """Return the rows with times that DuckDB compares as UTC."""
        plain = _without_zones(self.schema)
        return pa.RecordBatchReader.from_batches(plain, self._batches(plain))

    def _batches(self, plain: Any) -> Iterator[Any]:
        for system, path in self._files:
            with system.open(path, "rb") as opened, _parquet(opened) as file:
                size = sum(file.metadata.row_group(n).total_byte_size
                           for n in range(file.metadata.num_row_groups))  # fmt: skip
                each = max(size // max(file.metadata.num_rows, 1), 1)
                rows = int(np.clip(_BATCH_BYTES // each, 1, 65_536))
                for batch in file.iter_batches(batch_size=rows):
                    yield _completed(batch, plain)


def _parquet(opened: Any) -> Any:
    # Spark writes times in the old form of 96 bits.
    return parquet.ParquetFile(opened, coerce_int96_timestamp_unit="us")


def _files_in(path: str) -> Iterator[tuple[Any, str]]:
    system, root, _ = store_at(path)
    names = [root] if not system.isdir(root) else sorted(system.glob(f"{root}/*.parquet"))
    for name in names:
        if not posixpath.basename(name).startswith(("_", ".")):
            yield system, name


def _nullable(found: Any) -> Any:
    """Return a schema whose times are all of one type, and whose fields may be null."""
    return pa.schema([
        pa.field(field.name, schema.MOMENT if pa.types.is_timestamp(field.type) else field.type)
        for field in found
    ])  # fmt: skip


def _without_zones(found: Any) -> Any:
    return pa.schema([
        pa.field(each.name, pa.timestamp("us") if pa.types.is_timestamp(each.type) else each.type)
        for each in found
    ])  # fmt: skip


def _completed(batch: Any, wanted: Any) -> Any:
    """Return a batch with the columns `wanted`; those that an older release lacks are null."""
    columns = [
        batch.column(field.name).cast(field.type) if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in wanted
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def _once(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield sorted batches without the rows that are those before them again."""
    last: Any = None
    for batch in batches:
        keys = [name for name in ORDER if name in batch.schema.names]
        own = batch.select(keys)
        before = pa.Table.from_batches([own if last is None else last, own]).combine_chunks()
        start = before.num_rows - own.num_rows
        same = np.ones(own.num_rows, bool)
        for name in keys:
            values = before.column(name)
            equal = pc.equal(values.slice(start), values.slice(start - 1, own.num_rows))
            same &= pc.fill_null(equal, False).to_numpy()
        if last is None:
            same[:1] = False
        last = own.slice(own.num_rows - 1) if own.num_rows else last
        yield batch.filter(pa.array(~same))


class _Parts:
    """Batches, written to one file after another; to one file without rows, if there is none."""

    def __init__(self, batches: Iterator[Any], of_files: Any) -> None:
        self._batches = batches
        self._next: Any = next(batches, None)
        if self._next is None:
            self._next = pa.RecordBatch.from_pylist([], of_files)
        self.number = self.rows = 0

    @property
    def has_more(self) -> bool:
        return self._next is not None

    def write(self, file: Any) -> None:
        """Write one file."""
        rows = size = 0
        with parquet.ParquetWriter(file, self._next.schema, compression="zstd") as writer:
            while self._next is not None and rows < FILE_ROWS and size < FILE_BYTES:
                writer.write_batch(self._next)
                rows, size = rows + self._next.num_rows, size + self._next.nbytes
                self._next = next(self._batches, None)
        self.number, self.rows = self.number + 1, self.rows + rows
