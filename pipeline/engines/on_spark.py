"""The engine for large fleets: tasks and queries of a Spark session."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from pipeline.engines.engine import Batches, Engine, Piece, Task, types_of


class SparkEngine:
    """An engine over a Spark session, which it does not stop."""

    name = "spark"
    in_parts = False

    def __init__(self, session: Any) -> None:
        self.session = session
        self.parallelism = int(session.sparkContext.defaultParallelism)
        self._kept: list[Any] = []

    def spare_memory(self) -> None:
        pass  # its tables are on disk

    def _map(self, work: Sequence[list[Piece]], task: Task, schema: Any) -> Any:
        # Pieces go by number: Spark would have to sort a table of paths into partitions.
        work = list(work)

        def each(batches: Iterable[Any]) -> Iterator[Any]:
            numbers = [n for batch in batches for n in batch.column(0).to_pylist()]
            yield from task(part for n in numbers for part in work[n])

        count = len(work)
        rows = self.session.range(0, count, 1, max(count, 1))
        return rows.mapInArrow(each, types_of(schema))

    def collect(self, work: Sequence[list[Piece]], task: Task, schema: Any) -> Any:
        if not work:
            return schema.empty_table()
        return self._map(work, task, schema).toArrow().cast(schema)

    def create(
        self,
        name: str,
        work: Sequence[list[Piece]],
        task: Task,
        more: Any,
        *,
        by: Sequence[str],
        partitions: int = 0,
        distinct: Sequence[str] = (),
    ) -> None:
        parts = [self._map(work, task, more.schema)] if work else []
        if len(more) or not parts:
            parts.append(self._table(more))
        table = parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])
        table = table.repartition(max(self.parallelism * 2, 4, partitions), *by)
        if distinct:
            named = [f"distinct_{n}" for n in range(len(distinct))]
            columns = [f"{text} AS {each}" for text, each in zip(distinct, named, strict=True)]
            table = table.selectExpr("*", *columns).dropDuplicates([*by, *named]).drop(*named)
        self._keep(name, table)

    def keep(self, name: str, *queries: str) -> None:
        self._keep(name, self.session.sql(" UNION ALL ".join(queries)))

    def _keep(self, name: str, table: Any) -> None:
        from pyspark import StorageLevel

        table = table.persist(StorageLevel.DISK_ONLY)
        self._kept.append(table)
        table.createOrReplaceTempView(name)

    def keep_mapped(
        self, name: str, query: str, function: Callable[[Iterable[Any]], Batches], schema: Any
    ) -> None:
        self._keep(name, self.session.sql(query).mapInArrow(function, types_of(schema)))

    def view(self, name: str, query: str) -> None:
        self.session.sql(query).createOrReplaceTempView(name)

    def put(self, name: str, table: Any) -> None:
        self._table(table).createOrReplaceTempView(name)

    def _table(self, table: Any) -> Any:
        return self.session.createDataFrame(table, types_of(table.schema))

    def query(self, query: str) -> Any:
        return self.session.sql(query).toArrow()

    def mapped(self, query: str, function: Callable[[Iterable[Any]], Batches], schema: Any) -> Any:
        return self.session.sql(query).mapInArrow(function, types_of(schema)).toArrow()

    def release(self) -> None:
        for table in reversed(self._kept):
            table.unpersist()
        self._kept = []


def engine_of(given: Any) -> Engine:
    """Return an engine: `given`, or one over it if it is a Spark session."""
    return given if isinstance(given, Engine) else SparkEngine(given)
