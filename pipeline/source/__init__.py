"""The data source `qmd`: `spark.read.format("qmd")`, `readStream`, `write` and `writeStream`.

    options.py     options and their errors
    schema.py      the columns
    batch.py       batch reads of live queues and events
    files.py       reads of exported files
    stream.py      a queue as a stream, exactly once
    sink.py        rows as messages, exactly once
    decode/        packets into Arrow columns: packets, rows, headers, columns, fallback
    bodies.py      bodies into columns: text, JSON, Avro, .NET
    service_bus.py headers of NServiceBus, Rebus and MassTransit into a column
    where.py       conditions of a read; filters.py: those that the queue manager applies
    bounds.py      positions and times at which a read begins and ends
    tables.py      options of tables of SQL

docs/pipeline.md is the manual; docs/decisions/0021 gives the reasons.
"""

from __future__ import annotations

import warnings
from typing import Any

from pyspark.sql.datasource import DataSource

from pipeline.source import schema
from pipeline.source.errors import SourceError, plainly
from pipeline.source.option_names import (
    READ,
    SCHEMA,
    STREAM,
    STREAM_WRITE,
    TABLE,
    WRITE,
    is_option,
)
from pipeline.source.option_values import GivenOptions
from pipeline.source.options import ADDED, SERVICE_BUS, Options
from pipeline.source.tables import (
    check_any,
    is_new_table,
    of_use,
    only_of,
    options_of_table,
    table_ddl,
    with_table_options,
)


class DefaultSource(DataSource):
    """The data source that Spark finds in `pyspark_qmd`."""

    @classmethod
    def name(cls) -> str:
        return "qmd"

    @plainly
    def schema(self) -> str:
        if not is_new_table(self.options):
            return self._ddl(dict(self.options))
        given = options_of_table(self.options)
        GivenOptions(given, TABLE)
        if any(not is_option(name.lower(), SCHEMA) for name in given):
            Options(of_use(given, WRITE), WRITE).check()
        return table_ddl(self._ddl(of_use(given, SCHEMA)), given)

    def _ddl(self, given: dict[str, str]) -> str:
        options = Options(given, SCHEMA).check()
        kind = options.kind
        if options.path:
            from pipeline.source.files import kind_of

            kind = kind_of(options)
        columns = options.columns(kind)
        types = _types_of_added(options) if kind == "messages" else {}
        return ", ".join(
            f"`{name}` {types[name]}" if name in ADDED else schema.ddl(kind, [name])
            for name in columns
        )

    @plainly
    def reader(self, schema: Any) -> Any:
        options = self._options(READ, schema)
        if options.path:
            from pipeline.source.files import FileReader

            return FileReader(options, schema)
        from pipeline.source.batch import LiveReader

        if options.pushdown:
            warnings.warn(
                'qmd: option "pushdown" has no effect, because Spark 4.3 uses the filters of one'
                ' query for others of the same DataFrame; name conditions with the option "where"',
                stacklevel=1,
            )
        return LiveReader(options, schema)

    def streamReader(self, schema: Any) -> Any:
        """Return the reader of a stream; one that only raises, if the options are wrong.

        Spark 4.3 loses an exception that is raised here, and reports an UnboundLocalError.
        """
        try:
            from pipeline.source.stream import StreamReader

            return StreamReader(self._options(STREAM, schema), schema)
        except Exception as error:
            from pipeline.source.refused import RefusedReader

            return RefusedReader(error)

    @plainly
    def writer(self, schema: Any, overwrite: bool) -> Any:
        from pipeline.source.sink import BatchWriter

        if overwrite:
            raise SourceError(
                'qmd: a queue cannot be overwritten; write with mode("append"), and purge the queue'
                " before (qmd queue purge) if it should be empty"
            )
        return BatchWriter(self._options(WRITE, schema), _fields(schema))

    @plainly
    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        from pipeline.source.sink import StreamWriter

        if overwrite:
            raise SourceError('qmd: queues take new messages only; use outputMode("append")')
        return StreamWriter(self._options(STREAM_WRITE, schema), _fields(schema))

    def _options(self, use: str, schema: Any) -> Options:
        given = with_table_options(self.options, schema, use)
        check_any(given)
        if use == WRITE:
            given = only_of(given, use)  # a view of SQL has options for reading too
        return Options(given, use).check()


def _types_of_added(options: Options) -> dict[str, str]:
    """Return the Spark types of the columns that options add."""
    from pipeline.source.bodies import content_ddl
    from pipeline.source.service_bus import DDL

    types = {SERVICE_BUS: DDL, "content_error": "string"}
    if options.body_format:
        types["content"] = content_ddl(
            options.body_format, options.body_schema, options.avro_schema
        )
    return types


def _fields(schema: Any) -> list[tuple[str, str]]:
    """Return the names and Spark types of the rows to write."""
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]
