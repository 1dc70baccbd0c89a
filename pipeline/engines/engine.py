"""The interface of engines: tasks over pieces of logs, and queries over what the tasks return.

Rules are written once, in the SQL of Spark.  `duckdb_sql` translates them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

Frame = Any
Piece = tuple[str, int, int]
Batches = Iterator[Any]
#: A task: from pieces of logs to record batches.
Task = Callable[[Iterator[Piece]], Batches]


class WrongQuery(Exception):
    """A query, or the condition in it, cannot be executed; the text gives the engine's reason."""


@runtime_checkable
class Engine(Protocol):
    """An engine; `close` ends only what the engine itself has started."""

    name: str
    parallelism: int
    in_parts: bool  # it holds the rows of aggregations and windows in memory

    def spare_memory(self) -> None:
        """Hold less of the tables in memory until `release`, and more of them in files."""

    def collect(self, work: Sequence[list[Piece]], task: Task, schema: Any) -> Any:
        """Apply `task` to each element of `work`; return an Arrow table of `schema`."""

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
        """Create table `name`: the rows of all tasks, and those of `more` (an Arrow table).

        The table is partitioned by the columns `by`, into `partitions` or more.  With `distinct`
        (expressions), it has one row for each value of them.
        """

    def keep(self, name: str, *queries: str) -> None:
        """Create table `name` from the rows of all queries, one after the other; computed once."""

    def keep_mapped(
        self, name: str, query: str, function: Callable[[Iterable[Any]], Batches], schema: Any
    ) -> None:
        """Create table `name`: `function` applied to each partition of a query's rows, once."""

    def view(self, name: str, query: str) -> None:
        """Give a query a name."""

    def put(self, name: str, table: Any) -> None:
        """Give an Arrow table a name."""

    def query(self, query: str) -> Any:
        """Return the rows of a query, as an Arrow table."""

    def mapped(self, query: str, function: Callable[[Iterable[Any]], Batches], schema: Any) -> Any:
        """Apply `function` to each partition of a query's rows; return an Arrow table."""

    def release(self) -> None:
        """Drop all tables."""


def types_of(schema: Any) -> str:
    """Return an Arrow schema as column definitions of SQL."""
    return ", ".join(f"`{field.name}` {_sql(field.type)}" for field in schema)


def _sql(kind: Any) -> str:
    import pyarrow as pa

    if pa.types.is_list(kind):
        return f"array<{_sql(kind.value_type)}>"
    names = {pa.int64(): "bigint", pa.int32(): "int", pa.string(): "string",
             pa.binary(): "binary", pa.bool_(): "boolean", pa.float64(): "double"}  # fmt: skip
    return names[kind]


def whole_numbers(table: Any) -> Frame:
    """Return an Arrow table as a pandas table: integers with nulls keep all of their 64 bits."""
    import pandas as pd
    import pyarrow as pa

    kinds = {pa.int64(): pd.Int64Dtype(), pa.int32(): pd.Int32Dtype()}
    return table.to_pandas(types_mapper=kinds.get)


def plain_numbers(table: Any) -> Frame:
    """Return an Arrow table without nulls as a pandas table."""
    return table.to_pandas().astype(np.int64)
