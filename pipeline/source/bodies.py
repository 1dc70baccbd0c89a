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
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.source.ddl import is_type
from pipeline.source.errors import SourceError, option_error
from qmd.bodies.content import plain, read_content
from qmd.bodies.errors import UnreadableBody

DOTNET = ("xml", "binary", "activex")
NEEDED = ("id", "body", "body_type")  # columns that decoding reads

_MICRO = timedelta(microseconds=1)
_DIGITS = re.compile(r"[+-]?\d+", re.ASCII)
_FLOAT32_MAX = 3.4028235677973366e38  # larger ones round to infinity

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
        for body, body_type in zip(bodies, types, strict=True):
            value, error = None, None
            try:
                value = decode(body, body_type)
            except (UnreadableBody, _Unfit, ValueError, RecursionError) as fault:
                error = str(fault) or type(fault).__name__
            values.append(value)
            errors.append(error)
        content = _content(values, errors, type_)
        # A reason quotes the body, which may have halves of characters.
        texts = [error and error.encode(errors="replace").decode() for error in errors]
        for at, error in enumerate(texts if self.fails else ()):
            if error is not None:
                name = batch.column("id")[at].as_py()
                raise SourceError(
                    f"qmd: the body of message {name} is not {self.format}: {error};"
                    ' .option("onBadBody", "null") continues without its content',
                    code="body_unreadable",
                )
        return {"content": content, "content_error": pa.array(texts, pa.string())}

    def _function(self, type_: Any) -> Callable[[bytes, int], Any]:
        match self.format:
            case "text":
                return _text
            case "json":
                number = Decimal if _has_decimals(type_) else _finite
                return lambda body, body_type: fitted(_json(_text(body, body_type), number), type_)
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


def _content(values: list[Any], errors: list[str | None], type_: Any) -> Any:
    """Return the values as an array.  One that Arrow refuses becomes null, and gets an error.

    No body may end the query: a stream would find it again at each start.
    """
    try:
        return pa.array(values, type_)
    except (pa.ArrowException, ValueError, OverflowError, TypeError):
        for at, value in enumerate(values):
            try:
                pa.array([value], type_)
            except (pa.ArrowException, ValueError, OverflowError, TypeError) as fault:
                values[at], errors[at] = None, f"a value does not fit its column: {fault}"
        return pa.array(values, type_)


def content_ddl(format: str, body_schema: str, avro_schema: str) -> str:
    """Return the type of the column `content` as Spark DDL.  Raises SourceError."""
    if format == "avro":
        return _avro_ddl(_parsed_avro(avro_schema))
    if format == "text" or not body_schema.strip():
        return "string"
    text = body_schema.strip()
    return text if is_type(text) else f"struct<{text}>"


def check_type(type_: Any, option: str, path: str = "") -> None:
    """Refuse a type of which no value can be read.  `type_` is Arrow's.  Raises SourceError."""
    if pa.types.is_struct(type_) and not any(
        b"variant" in (field.metadata or ()) for field in type_
    ):
        for field in type_:
            check_type(field.type, option, f"{path}.{field.name}")
    elif pa.types.is_list(type_):
        check_type(type_.value_type, option, f"{path}[]")
    elif pa.types.is_map(type_) and pa.types.is_string(type_.key_type):
        check_type(type_.item_type, option, f"{path}{{}}")
    elif not any(is_one(type_) for is_one, _, _ in _CONVERSIONS):
        raise option_error(
            option,
            f"has {path.lstrip('.') or 'a type'} as {type_}; there are string, boolean, numbers,"
            " decimal, binary, timestamp, timestamp_ntz, date, struct, array, and map with keys of"
            " string",
        )


def _text(body: bytes, body_type: int) -> str:
    value = read_content(body, body_type, "text").value
    assert isinstance(value, str)
    return value


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:40]} is larger than every number of 64 bits")
    return number


def _has_decimals(type_: Any) -> bool:
    if pa.types.is_decimal(type_):
        return True
    return any(_has_decimals(type_.field(at).type) for at in range(type_.num_fields))


def _json(text: str, number: Callable[[str], Any]) -> Any:
    """Return a value of JSON; `number` makes those of its numbers that are not whole."""

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is no value of JSON")

    try:
        return json.loads(text, parse_constant=refuse, parse_float=number)
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


DECIMAL_DIGITS_MAX = 38
_AVRO_DDL = {
    "boolean": "boolean", "int": "int", "long": "bigint", "float": "float", "double": "double",
    "bytes": "binary", "string": "string", "null": "string", "enum": "string", "fixed": "binary",
}  # fmt: skip
_LOGICAL_DDL = {
    "date": "date", "timestamp-millis": "timestamp", "timestamp-micros": "timestamp",
    "uuid": "string", "local-timestamp-millis": "timestamp_ntz",
    "local-timestamp-micros": "timestamp_ntz",
}  # fmt: skip


def _avro_ddl(schema: Any, named: dict[str, str] | None = None) -> str:
    """Return Spark's type for a schema of Avro.  Raises SourceError.

    `named` has the types that were defined before; one that is being defined is "".
    """
    named = {} if named is None else named
    if isinstance(schema, list):
        kinds = [one for one in schema if one != "null"]
        if len(kinds) == 1:
            return _avro_ddl(kinds[0], named)
        raise option_error(
            "avroSchema", f"has a union of {len(kinds)} types besides null; Spark has none for it"
        )
    if isinstance(schema, str):
        found = _AVRO_DDL.get(schema) or named.get(schema)
        if not found:
            raise option_error("avroSchema", f"has {schema} in itself, and Spark has no such type")
        return found
    kind, logical = schema["type"], schema.get("logicalType")
    if isinstance(kind, dict | list):
        return _avro_ddl(kind, named)
    name = schema.get("name", "")
    named[name] = ""
    if logical == "decimal":
        if schema["precision"] > DECIMAL_DIGITS_MAX:
            raise option_error(
                "avroSchema",
                f"has a decimal of {schema['precision']} digits; Spark has {DECIMAL_DIGITS_MAX}",
            )
        found = f"decimal({schema['precision']},{schema.get('scale', 0)})"
    elif logical in _LOGICAL_DDL:
        found = _LOGICAL_DDL[logical]
    elif kind == "record":
        fields = (f"`{one['name']}`: {_avro_ddl(one['type'], named)}" for one in schema["fields"])
        found = f"struct<{', '.join(fields)}>"
    elif kind == "array":
        found = f"array<{_avro_ddl(schema['items'], named)}>"
    elif kind == "map":
        found = f"map<string, {_avro_ddl(schema['values'], named)}>"
    else:
        found = _avro_ddl(kind, named)
    named[name] = found
    return found


# -- Values of a type --


def fitted(
    value: Any, type_: Any, path: str = "", *, from_text: bool = False, nullable: bool = True
) -> Any:
    """Return a value as Arrow takes it for this type.  Raises _Unfit if it is of another type.

    Only conversions without loss are made: no number becomes a text, and a text becomes a number or
    a truth value only with `from_text` (XML has texts only).
    """

    def inner(one: Any, field: Any, name: str) -> Any:
        found = f"{path}{name}"
        return fitted(one, field.type, found, from_text=from_text, nullable=field.nullable)

    if value is None:
        if not nullable:
            raise _Unfit(f"{path.lstrip('.')} is missing, and the schema has it as NOT NULL")
        return None
    if pa.types.is_struct(type_):
        if not isinstance(value, dict):
            raise _unfit(value, "an object", path)
        return {
            field.name: inner(value.get(field.name), field, f".{field.name}") for field in type_
        }
    if pa.types.is_list(type_):
        if not isinstance(value, list):
            raise _unfit(value, "a list", path)
        return [inner(one, type_.value_field, f"[{at}]") for at, one in enumerate(value)]
    if pa.types.is_map(type_):
        if not isinstance(value, dict):
            raise _unfit(value, "an object", path)
        return [(key, inner(one, type_.item_field, f".{key}")) for key, one in value.items()]
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
        if pa.types.is_integer(type_) and _DIGITS.fullmatch(text.strip()):
            return int(text)
        if pa.types.is_floating(type_) and "_" not in text:
            return float(text)
    except ValueError:
        pass
    return text


def _unfit(value: Any, name: str, path: str) -> _Unfit:
    text = (
        value if isinstance(value, Decimal) else json.dumps(value, default=str, ensure_ascii=False)
    )
    shown = str(text)[:40]
    return _Unfit(f"{path.lstrip('.') or 'the body'} is {shown}, and not {name}")


def _string(value: Any, type_: Any) -> str | None:
    return value if isinstance(value, str) else None


def _boolean(value: Any, type_: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _integer(value: Any, type_: Any) -> int | None:
    if isinstance(value, time):  # of Avro: milliseconds in an int, microseconds in a long
        passed = datetime.combine(date.min, value) - datetime.min
        return passed // timedelta(milliseconds=1) if type_.bit_width == 32 else passed // _MICRO
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    pa.scalar(value, type_)  # raises if it is too large
    return value


def _floating(value: Any, type_: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    number = float(value)
    limit = _FLOAT32_MAX if type_.bit_width == 32 else math.inf
    is_infinite = isinstance(value, float) and math.isinf(value)
    return number if is_infinite or not abs(number) >= limit else None


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
    if type_.tz is None:
        return None if value.tzinfo else value
    return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)


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
