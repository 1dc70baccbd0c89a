"""The embedded engine: tasks in threads of this process, queries in DuckDB.

It needs no Java and starts in a fraction of a second.  Tables that do not fit in memory go to a
temporary folder.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pipeline.engines.duckdb_sql import for_duckdb
from pipeline.engines.engine import Batches, Piece, Task, WrongQuery

_ROWS_HELD = 50_000
MEMORY = "2GB"  # of DuckDB; more goes to the temporary folder
SPARED_MB = 192  # for each thread, while memory is spared


class LocalEngine:
    """An engine in this process.  Use it in a `with` block, or call `close`."""

    name = "embedded"
    in_parts = True

    def __init__(self, threads: int = 0, folder: str | None = None) -> None:
        import duckdb

        self.parallelism = threads or max(len(os.sched_getaffinity(0)), 1)
        self._folder = tempfile.TemporaryDirectory(prefix="qmd-pipeline-", dir=folder)
        settings: dict[str, str | bool | int | float | list[str]] = {
            "threads": self.parallelism,
            "memory_limit": MEMORY,
            "temp_directory": self._folder.name,
            # No order of rows is needed; keeping it costs memory.
            "preserve_insertion_order": False,
            # Nothing but what qmd was installed with.
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
        self._db = duckdb.connect(config=settings)
        self._tables: list[str] = []
        self._is_spared = False

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()
        self._folder.cleanup()

    def spare_memory(self) -> None:
        self._db.execute(f"SET memory_limit = '{SPARED_MB * self.parallelism}MB'")
        self._is_spared = True

    def _spare_no_memory(self) -> None:
        self._db.execute(f"SET memory_limit = '{MEMORY}'")
        self._is_spared = False

    def _execute(self, statement: str) -> None:
        self._with_memory(lambda: self._db.execute(statement))

    def _with_memory(self, run: Callable[[], Any]) -> Any:
        """Run a query, once more with all of the memory if it needs that."""
        import duckdb

        try:
            return run()
        except duckdb.OutOfMemoryException:
            if not self._is_spared:
                raise
            self._spare_no_memory()
            return run()

    def collect(self, work: Sequence[list[Piece]], task: Task, schema: Any) -> Any:
        import pyarrow as pa

        batches = [batch for part in self._results(work, task) for batch in part]
        return pa.Table.from_batches(batches, schema)

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
        import pyarrow as pa

        self._drop(name)
        self._insert(name, more.slice(0, 0), is_new=True)
        lock = threading.Lock()
        held: list[Any] = []

        def add(batch: Any) -> None:
            with lock:
                held.append(batch)
                # Many files give a few rows each, and each insertion costs milliseconds.
                if sum(map(len, held)) >= _ROWS_HELD:
                    self._insert(name, pa.Table.from_batches(held))
                    held.clear()
                    pa.default_memory_pool().release_unused()

        self._each(work, task, add)
        if held:
            self._insert(name, pa.Table.from_batches(held))
        held.clear()
        if len(more):
            self._insert(name, more)
        pa.default_memory_pool().release_unused()  # what the files were read with
        if distinct:
            self._execute(
                f"CREATE OR REPLACE TABLE {name} AS"
                f" SELECT DISTINCT ON ({for_duckdb(', '.join(distinct))}) * FROM {name}"
            )
        self._tables.append(name)

    def _insert(self, name: str, table: Any, *, is_new: bool = False) -> None:
        if not is_new and len(table) == 0:
            return
        self._db.register("rows_to_add", table)
        start = f"CREATE TABLE {name} AS" if is_new else f"INSERT INTO {name}"
        self._execute(f"{start} SELECT * FROM rows_to_add")
        self._db.unregister("rows_to_add")

    def keep(self, name: str, *queries: str) -> None:
        self._drop(name)
        start = f"CREATE TABLE {name} AS"
        for query in queries:
            self._execute(f"{start} {for_duckdb(query)}")
            start = f"INSERT INTO {name}"
        self._tables.append(name)

    def keep_mapped(
        self, name: str, query: str, function: Callable[[Iterable[Any]], Batches], schema: Any
    ) -> None:
        self._drop(name)
        self._insert(name, schema.empty_table(), is_new=True)
        # A cursor of its own: the rows of its query are read while others are inserted.
        with self._db.cursor() as rows:
            for batch in function(rows.sql(for_duckdb(query)).to_arrow_reader()):
                self._insert(name, _as_table(batch))
        self._tables.append(name)

    def view(self, name: str, query: str) -> None:
        self._drop(name)
        self._db.execute(f"CREATE VIEW {name} AS {for_duckdb(query)}")
        self._tables.append(name)

    def put(self, name: str, table: Any) -> None:
        self._drop(name)
        self._insert(name, table, is_new=True)
        self._tables.append(name)

    def query(self, query: str) -> Any:
        return self._with_memory(lambda: self._db.sql(for_duckdb(query)).to_arrow_table())

    def over(self, name: str, rows: Any, query: str) -> Any:
        """Return a query in DuckDB's SQL over a stream of rows, as a stream that is to be closed.

        The rows are read once, while the result is read.  Raises WrongQuery.
        """
        import duckdb

        # A cursor of its own: several streams may be read by turns.
        cursor = self._db.cursor()
        cursor.register(name, rows)
        try:
            return _Stream(cursor, cursor.sql(query).to_arrow_reader())
        except (duckdb.BinderException, duckdb.ParserException, duckdb.CatalogException) as error:
            cursor.close()
            raise WrongQuery(str(error).splitlines()[0]) from error

    def mapped(self, query: str, function: Callable[[Iterable[Any]], Batches], schema: Any) -> Any:
        import pyarrow as pa

        return pa.Table.from_batches(list(function(self.query(query).to_batches())), schema)

    def release(self) -> None:
        for name in reversed(self._tables):
            self._drop(name)
        self._tables = []
        if self._is_spared:
            self._spare_no_memory()

    def _drop(self, name: str) -> None:
        found = self._db.execute(
            "SELECT table_type FROM information_schema.tables WHERE table_name = ?", [name]
        ).fetchone()
        if found is not None:
            kind = "VIEW" if found[0] == "VIEW" else "TABLE"
            self._db.execute(f"DROP {kind} {name} CASCADE")

    def _results(self, work: Sequence[list[Piece]], task: Task) -> Iterator[list[Any]]:
        with ThreadPoolExecutor(self.parallelism) as threads:
            yield from threads.map(lambda parts: list(task(iter(parts))), work)

    def _each(self, work: Sequence[list[Piece]], task: Task, use: Callable[[Any], None]) -> None:
        def run(parts: list[Piece]) -> None:
            for batch in task(iter(parts)):
                use(batch)

        with ThreadPoolExecutor(self.parallelism) as threads:
            for _ in threads.map(run, work):
                pass


class _Stream:
    """Record batches of a query, whose cursor is closed with them."""

    def __init__(self, cursor: Any, reader: Any) -> None:
        self._cursor, self._reader = cursor, reader

    def __enter__(self) -> Any:
        return self._reader

    def __exit__(self, *_: object) -> None:
        self._cursor.close()


def _as_table(batch: Any) -> Any:
    import pyarrow as pa

    return pa.Table.from_batches([batch])
