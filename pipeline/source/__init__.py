"""The data source `qmd`: `spark.read.format("qmd")`, `readStream`, `write` and `writeStream`.

    options.py     what can be said, and what is said of mistakes
    schema.py      the columns
    batch.py       queues and events that are there     files.py    those that were written down
    stream.py      a queue as a stream, exactly once    sink.py     rows as messages, exactly once
    decoding.py    packets into Arrow columns, with rows.py, headers.py, quickly.py, one_by_one.py
    filters.py     what is not even asked for

docs/pipeline.md is the manual, docs/decisions/0021 says why.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource

from pipeline.source import schema
from pipeline.source.errors import SourceError, plainly
from pipeline.source.options import Options


class DefaultSource(DataSource):
    """What Spark finds in `pyspark_qmd`."""

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
                'qmd: a queue cannot be overwritten; write with mode("append"), and purge it before'
                " (qmd queue purge) if that is meant"
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
    """Names and types of the rows that are written."""
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]
