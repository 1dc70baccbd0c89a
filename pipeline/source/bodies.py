"""Decoding of bodies into the columns `content` and `content_error`, as the options say.

    text     a string: UTF-8, or UTF-16 if the body shows that
    json     a value of the type `bodySchema`; missing fields are null, further ones are ignored
    avro     a value of the type of `avroSchema`, binary and without a container
    dotnet   bodies of .NET's and COM's formatters: JSON as a string, or a value of `bodySchema`

A body that cannot be decoded gives a null in `content` and the reason in `content_error`, or fails
the query (`onBadBody=fail`).
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.source.errors import SourceError, option_error
from qmd.bodies.content import plain, read_content
from qmd.bodies.errors import UnreadableBody

DOTNET = ("xml", "binary", "activex")
NEEDED = ("id", "body", "body_type")  # columns that decoding reads

# Confluent's framing: a zero byte and the id of a schema in a registry, before the value.
_FRAME_BYTES = 5


@dataclass(frozen=True, slots=True)
class BodyDecoder:
    """The decoder for one read; it is sent to executors."""

    format: str
    avro_schema: str = ""
    fails: bool = False

    def columns(self, batch: Any, type_: Any) -> dict[str, Any]:
        """Return the arrays `content`, of this Arrow type, and `content_error`."""
        decode = self._function(type_)
        values: list[Any] = []
        errors: list[str | None] = []
        bodies = batch.column("body").to_pylist()
        types = batch.column("body_type").to_pylist()
        for at, (body, body_type) in enumerate(zip(bodies, types, strict=True)):
            value, error = None, None
            try:
                value = decode(body, body_type)
            except (UnreadableBody, _Unfit, ValueError, RecursionError) as fault:
                error = f"{type(fault).__name__}: {fault}" if not str(fault) else str(fault)
            if error is not None and self.fails:
                name = batch.column("id")[at].as_py()
                raise SourceError(
                    f"qmd: the body of message {name} is not {self.format}: {error};"
                    ' .option("onBadBody", "null") continues without its content',
                    code="body_unreadable",
                )
            values.append(value)
            errors.append(error)
        return {
            "content": pa.array(values, type_),
            "content_error": pa.array(errors, pa.string()),
        }

    def _function(self, type_: Any) -> Callable[[bytes, int], Any]:
        match self.format:
            case "text":
                return _text
            case "json":
                return lambda body, body_type: fitted(_json(_text(body, body_type)), type_)
            case "dotnet":
                if pa.types.is_string(type_):
                    return lambda body, body_type: json.dumps(
                        plain(_dotnet(body, body_type)), ensure_ascii=False
                    )
                return lambda body, body_type: fitted(
                    plain(_dotnet(body, body_type)), type_, from_text=True
                )
        schema = _parsed_avro(self.avro_schema)
        return lambda body, body_type: fitted(_avro(body, schema), type_)


class _Unfit(Exception):
    """A value that does not have the type of its column."""


def content_ddl(format: str, body_schema: str, avro_schema: str) -> str:
    """Return the type of the column `content` as Spark DDL.  Raises SourceError."""
    if format == "avro":
        return _avro_ddl(_parsed_avro(avro_schema))
    if format == "text" or not body_schema.strip():
        return "string"
    text = body_schema.strip()
    first = text.split(None, 1)[0].split("<", 1)[0].lower()
    is_type = " " not in text or (first in ("struct", "array", "map") and "<" in text)
    return text if is_type else f"struct<{text}>"


def _text(body: bytes, body_type: int) -> str:
    value = read_content(body, body_type, "text").value
    assert isinstance(value, str)
    return value


def _json(text: str) -> Any:
    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is no value of JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None


def _dotnet(body: bytes, body_type: int) -> Any:
    content = read_content(body, body_type)
    if content.format not in DOTNET:
        raise ValueError(
            f"no formatter of .NET or COM has written it; it looks like {content.format}"
        )
    return content.value


# -- Avro --


@lru_cache(maxsize=16)
def _parsed_avro(given: str) -> Any:
    """Return the parsed schema of the option: JSON, or the path of a file.  Raises SourceError."""
    try:
        import fastavro
    except ImportError as error:
        raise SourceError(
            'qmd: option "bodyFormat" is avro, which needs the package fastavro:'
            " pip install '.[avro]'",
            code="pipeline_extra_missing",
        ) from error
    text = given.strip()
    try:
        if not text.startswith(("{", "[", '"')):
            text = Path(text).read_text()
        return fastavro.parse_schema(json.loads(text))
    except OSError as error:
        raise option_error(
            "avroSchema",
            f"is {given!r}; it is a schema in JSON, or a readable file ({error.strerror})",
        ) from error
    except Exception as error:
        raise option_error("avroSchema", f"is no schema of Avro: {error}") from error


def _avro(body: bytes, schema: Any) -> Any:
    import fastavro

    for start in (0, _FRAME_BYTES) if body[:1] == b"\0" else (0,):
        stream = io.BytesIO(body[start:])
        try:
            value = fastavro.schemaless_reader(stream, schema, None)
        except Exception as error:  # fastavro raises many kinds for data that do not fit
            fault: str = str(error) or type(error).__name__
            continue
        if not stream.read(1):
            return value
        fault = "bytes follow the value"
    raise ValueError(f"not of this schema of Avro: {fault}")


_AVRO_DDL = {
    "boolean": "boolean", "int": "int", "long": "bigint", "float": "float", "double": "double",
    "bytes": "binary", "string": "string", "null": "string", "enum": "string", "fixed": "binary",
}  # fmt: skip
_LOGICAL_DDL = {
    "date": "date", "timestamp-millis": "timestamp", "timestamp-micros": "timestamp",
    "uuid": "string",
}  # fmt: skip


def _avro_ddl(schema: Any, within: tuple[str, ...] = ()) -> str:
    """Return Spark's type for a schema of Avro.  Raises SourceError."""
    if isinstance(schema, list):
        kinds = [one for one in schema if one != "null"]
        if len(kinds) == 1:
            return _avro_ddl(kinds[0], within)
        raise option_error("avroSchema", "has a union of several types, for which Spark has none")
    if isinstance(schema, str):
        if schema in _AVRO_DDL:
            return _AVRO_DDL[schema]
        raise option_error("avroSchema", f"refers to {schema} again; write the type out")
    kind, logical = schema["type"], schema.get("logicalType")
    if isinstance(kind, dict | list):
        return _avro_ddl(kind, within)
    if logical == "decimal":
        return f"decimal({schema['precision']},{schema.get('scale', 0)})"
    if logical in _LOGICAL_DDL:
        return _LOGICAL_DDL[logical]
    if kind == "record":
        fields = (f"`{one['name']}`: {_avro_ddl(one['type'])}" for one in schema["fields"])
        return f"struct<{', '.join(fields)}>"
    if kind == "array":
        return f"array<{_avro_ddl(schema['items'])}>"
    if kind == "map":
        return f"map<string, {_avro_ddl(schema['values'])}>"
    return _avro_ddl(kind)


# -- Values of a type --


def fitted(value: Any, type_: Any, path: str = "", *, from_text: bool = False) -> Any:
    """Return a value as Arrow takes it for this type.  Raises _Unfit if it is of another type.

    Only conversions without loss are made: no number becomes a text, and a text becomes a number or
    a truth value only with `from_text` (XML has texts only).
    """
    if value is None:
        return None
    if pa.types.is_struct(type_):
        if not isinstance(value, dict):
            raise _unfit(value, "an object", path)
        return {
            field.name: fitted(
                value.get(field.name), field.type, f"{path}.{field.name}", from_text=from_text
            )
            for field in type_
        }
    if pa.types.is_list(type_):
        if not isinstance(value, list):
            raise _unfit(value, "a list", path)
        return [
            fitted(one, type_.value_type, f"{path}[{at}]", from_text=from_text)
            for at, one in enumerate(value)
        ]
    if pa.types.is_map(type_):
        if not isinstance(value, dict):
            raise _unfit(value, "an object", path)
        return [
            (key, fitted(one, type_.item_type, f"{path}.{key}", from_text=from_text))
            for key, one in value.items()
        ]
    if from_text and isinstance(value, str):
        value = _from_text(value, type_)
    for is_one, convert, name in _CONVERSIONS:
        if is_one(type_):
            try:
                converted = convert(value, type_)
            except (ValueError, OverflowError, InvalidOperation, pa.ArrowInvalid) as error:
                raise _unfit(value, name, path) from error
            if converted is None:
                raise _unfit(value, name, path)
            return converted
    raise _Unfit(f"{path.lstrip('.') or 'the body'} has the type {type_}, which is not supported")


def _from_text(text: str, type_: Any) -> Any:
    """Return the number or truth value that a text of XML is, or the text itself."""
    if pa.types.is_boolean(type_):
        return {"true": True, "false": False, "1": True, "0": False}.get(text, text)
    try:
        if pa.types.is_integer(type_):
            return int(text)
        if pa.types.is_floating(type_):
            return float(text)
    except ValueError:
        pass
    return text


def _unfit(value: Any, name: str, path: str) -> _Unfit:
    shown = json.dumps(value, default=str, ensure_ascii=False)[:40]
    return _Unfit(f"{path.lstrip('.') or 'the body'} is {shown}, and not {name}")


def _string(value: Any, type_: Any) -> str | None:
    return value if isinstance(value, str) else None


def _boolean(value: Any, type_: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _integer(value: Any, type_: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    pa.scalar(value, type_)  # raises if it is too large
    return value


def _floating(value: Any, type_: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _decimal(value: Any, type_: Any) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        return None
    number = Decimal(str(value))
    found = number.quantize(Decimal(1).scaleb(-type_.scale))
    pa.scalar(found, type_)
    return found if found == number else None


def _binary(value: Any, type_: Any) -> bytes | None:
    if isinstance(value, bytes):
        return value
    return base64.b64decode(value, validate=True) if isinstance(value, str) else None


def _moment(value: Any, type_: Any) -> datetime | None:
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if not isinstance(value, datetime):
        return None
    return value if value.tzinfo else value.replace(tzinfo=UTC)


def _day(value: Any, type_: Any) -> date | None:
    if isinstance(value, str):
        value = date.fromisoformat(value)
    return value if isinstance(value, date) and not isinstance(value, datetime) else None


_CONVERSIONS: Iterable[tuple[Callable[[Any], bool], Callable[[Any, Any], Any], str]] = (
    (pa.types.is_string, _string, "a text"),
    (pa.types.is_boolean, _boolean, "true or false"),
    (pa.types.is_integer, _integer, "a whole number of this size"),
    (pa.types.is_floating, _floating, "a number"),
    (pa.types.is_decimal, _decimal, "a number of this precision"),
    (pa.types.is_binary, _binary, "bytes (base64)"),
    (pa.types.is_timestamp, _moment, "a time in ISO 8601"),
    (pa.types.is_date, _day, "a day in ISO 8601"),
)
