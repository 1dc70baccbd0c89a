"""The data source `qmd`: `spark.read.format("qmd")`, `readStream`, `write` and `writeStream`.

    options.py     options and their errors
    schema.py      the columns
    batch.py       batch reads of live queues and events
    files.py       reads of exported files
    stream.py      a queue as a stream, exactly once
    sink.py        rows as messages, exactly once
    decode/        packets into Arrow columns: packets, rows, headers, columns, fallback
    filters.py     filters that the queue manager applies

docs/pipeline.md is the manual; docs/decisions/0021 gives the reasons.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource

from pipeline.source import schema
from pipeline.source.errors import SourceError, plainly
from pipeline.source.options import Options


class DefaultSource(DataSource):
    """The data source that Spark finds in `pyspark_qmd`."""

    @classmethod
    def name(cls) -> str:
        return "qmd"

    @plainly
    def schema(self) -> str:
        options = self._options("schema")
        kind = options.kind
        if options.path:
            from pipeline.source.files import kind_of

            kind = kind_of(options)
        return schema.ddl(kind, options.columns(kind))

    @plainly
    def reader(self, schema: Any) -> Any:
        options = self._options("read")
        if options.path:
            from pipeline.source.files import FileReader

            return FileReader(options)
        from pipeline.source.batch import LiveReader, PushingReader

        return PushingReader(options) if options.pushdown else LiveReader(options)

    @plainly
    def streamReader(self, schema: Any) -> Any:
        from pipeline.source.stream import StreamReader

        return StreamReader(self._options("readStream"))

    @plainly
    def writer(self, schema: Any, overwrite: bool) -> Any:
        from pipeline.source.sink import BatchWriter

        if overwrite:
            raise SourceError(
                'qmd: a queue cannot be overwritten; write with mode("append"), and purge the queue'
                " before (qmd queue purge) if it should be empty"
            )
        return BatchWriter(self._options("write"), _fields(schema))

    @plainly
    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        from pipeline.source.sink import StreamWriter

        if overwrite:
            raise SourceError('qmd: queues take new messages only; use outputMode("append")')
        return StreamWriter(self._options("writeStream"), _fields(schema))

    def _options(self, use: str) -> Options:
        return Options(dict(self.options), use)


def _fields(schema: Any) -> list[tuple[str, str]]:
    """Return the names and Spark types of the rows to write."""
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]
