"""The rows that a read returns, made from those that it decodes.

decoded columns ──► where ──► content of bodies, headers of service buses ──► the columns and the
schema of the query
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipeline.source import schema, service_bus
from pipeline.source.bodies import NEEDED, BodyDecoder, check_type
from pipeline.source.errors import SourceError, option_error
from pipeline.source.options import ADDED, CONTENT, SERVICE_BUS, Options
from pipeline.source.where import Where, parse_where


@dataclass(frozen=True, slots=True)
class Output:
    """The last step of a read; it is sent to executors."""

    wanted: tuple[str, ...]
    decoded: tuple[str, ...]
    where: Where
    decoder: BodyDecoder | None
    arrow: Any = None  # the schema that Spark compares the rows with; None: that of the source

    def of(self, batch: Any) -> Any:
        """Return the rows of a decoded record batch for Spark."""
        batch = self.where.matching(batch)
        if self.decoder is None and self.wanted == self.decoded and self.arrow is None:
            return batch
        arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
        if self.decoder is not None and set(CONTENT) & set(self.wanted):
            type_ = pa.string() if self.arrow is None else self.arrow.field("content").type
            arrays |= self.decoder.columns(batch, type_)
        if SERVICE_BUS in self.wanted:
            arrays[SERVICE_BUS] = service_bus.bus_column(batch)
        if self.arrow is not None:
            return pa.record_batch([arrays[name] for name in self.wanted], schema=self.arrow)
        return pa.record_batch([arrays[name] for name in self.wanted], names=list(self.wanted))


def output_of(options: Options, kind: str, given: Any = None) -> Output:
    """Return the output of a read of messages or events.

    `given` is the schema of Spark for the rows: its types and nulls are those of a table that was
    created earlier, and it has the type of `content`.  None: the schema of the source.
    """
    wanted = options.columns(kind)
    where = parse_where(options.given.get("where", ""), kind)
    decoder = None
    needed = set(wanted) | where.columns
    if kind == "messages" and options.body_format:
        decoder = BodyDecoder(options.body_format, options.avro_schema, options.bad_body_fails)
        needed |= set(NEEDED)
        if given is not None and "content" in given.names:
            _check_content(given["content"].dataType, options)
    if SERVICE_BUS in wanted:
        needed |= {name for name in service_bus.NEEDED if options.bodies or name != "body"}
    base = tuple(name for name in wanted if name not in ADDED)
    more = [name for name in schema.column_names(kind) if name in needed and name not in base]
    decoded = (*base, *more) or schema.column_names(kind)[:1]
    return Output(wanted, decoded, where, decoder, _arrow(given, kind, wanted, decoded))


def _check_content(type_: Any, options: Options) -> None:
    """Refuse a type of `content` of which no body has a value.  Raises SourceError."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_type

    option = "avroSchema" if options.body_format == "avro" else "bodySchema"
    try:
        found = to_arrow_type(type_, timezone="UTC")
    except PySparkException as error:
        raise option_error(option, f"has a type that cannot be read: {error}") from error
    check_type(found, option)


def _arrow(given: Any, kind: str, wanted: tuple[str, ...], decoded: tuple[str, ...]) -> Any:
    if given is None:
        return None
    from pyspark.sql.pandas.types import to_arrow_schema

    names = [field.name for field in given.fields]
    if names != list(wanted):
        raise SourceError(
            f"qmd: the schema has the columns {', '.join(names)}, and the options choose"
            f' {", ".join(wanted)}; leave the schema out, and name columns with .option("columns")',
            code="source_option",
        )
    found = to_arrow_schema(given, timezone="UTC")
    own = {field.name: field for field in schema.arrow_schema(kind, decoded)}
    own[SERVICE_BUS] = pa.field(SERVICE_BUS, service_bus.ARROW)
    for field in found:
        if field.name in own and field.type != own[field.name].type:
            raise SourceError(
                f"qmd: the schema has {field.name} as {field.type}, and it is"
                f" {own[field.name].type}; leave the schema out",
                code="source_option",
            )
    if wanted == decoded and found.equals(schema.arrow_schema(kind, decoded)):
        return None
    return found
