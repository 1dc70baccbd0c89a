"""The option `where`: conditions on columns, joined by AND, that a read applies exactly.

    label = 'order 17' AND priority >= 4 AND arrived_at >= '2026-01-31T08:00:00Z'
    queue IN ('orders', 'invoices') AND label LIKE 'urgent%' AND reason IS NOT NULL

The conditions belong to the DataFrame, so they hold for every use of it; the filters of a query do
not (docs/decisions/0021).  They are applied twice: the queue manager leaves out what it can
(`filters.py`), and the executor compares each row that is left.  As in SQL, a comparison with null
is not true.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.source import schema
from pipeline.source.bounds import moment_of
from pipeline.source.errors import SourceError, option_error
from pipeline.source.option_names import like

_TOKEN = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<number>-?\d+(?:\.\d+)?)(?![\w.])"
    r"|(?P<name>(?:`[^`]+`|[A-Za-z_]\w*)(?:\.(?:`[^`]+`|\w+))*)"
    r"|(?P<sign><=>|<=|>=|<>|!=|=|<|>|\(|\)|,))"
)
_PART = re.compile(r"`([^`]+)`|(\w+)")
_LIKE = re.compile(r"\\[\\%_]|.", re.DOTALL)
_SIGNS = {"=": "equal", "<>": "not_equal", "!=": "not_equal", "<": "less", "<=": "less_equal",
          ">": "greater", ">=": "greater_equal"}  # fmt: skip
_FILTERS = {"equal": "EqualTo", "less": "LessThan", "less_equal": "LessThanOrEqual",
            "greater": "GreaterThan", "greater_equal": "GreaterThanOrEqual"}  # fmt: skip
_EXAMPLE = "label = 'order 17' AND priority >= 4"


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition: `values` has one value, several for "in", and none for "null"."""

    path: tuple[str, ...]
    operation: str  # of `_SIGNS`, or "in", "like", "null"
    values: tuple[Any, ...]
    is_negated: bool = False


@dataclass(frozen=True, slots=True)
class Where:
    """All conditions of a read."""

    conditions: tuple[Condition, ...] = ()

    @property
    def columns(self) -> set[str]:
        return {one.path[0] for one in self.conditions}

    def matching(self, batch: Any) -> Any:
        """Return the rows of a record batch that fulfil all conditions."""
        mask = None
        for one in self.conditions:
            found = _evaluated(batch, one)
            mask = found if mask is None else pc.and_(mask, found)
        return batch if mask is None else batch.filter(mask)

    def filters(self) -> list[Any]:
        """Return Spark's filters for the conditions that `filters.pushed` knows."""
        from pyspark.sql import datasource as kinds

        found: list[Any] = []
        for one in self.conditions:
            if one.is_negated or any(_is_huge(value) for value in one.values):
                continue
            if one.operation in _FILTERS:
                found.append(getattr(kinds, _FILTERS[one.operation])(one.path, one.values[0]))
            elif one.operation == "in":
                found.append(kinds.In(one.path, one.values))
            elif one.operation == "like":
                longest = max(re.split(r"[%_]|\\.", one.values[0]), key=len)
                found += [kinds.StringContains(one.path, longest)] if longest else []
        return found


def parse_where(text: str, kind: str) -> Where:
    """Parse the conditions on columns of messages or events.  Raises SourceError."""
    if not text.strip():
        return Where()
    tokens = _Tokens(text)
    conditions = [_condition(tokens, kind)]
    while not tokens.at_end:
        tokens.expect("AND")
        conditions.append(_condition(tokens, kind))
    return Where(tuple(conditions))


class _Tokens:
    """The tokens of a text, from left to right: pairs of kind and text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._found: list[tuple[str, str]] = []
        at = 0
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if match is None:
                raise self.wrong(text[at:].strip())
            self._found.append((str(match.lastgroup), match.group(str(match.lastgroup))))
            at = match.end()

    @property
    def at_end(self) -> bool:
        return not self._found

    def next(self) -> tuple[str, str]:
        if not self._found:
            raise self.wrong("its end")
        return self._found.pop(0)

    def is_next(self, word: str) -> bool:
        """Take the next token if it is this word or sign."""
        if self._found and self._found[0][0] != "text" and self._found[0][1].upper() == word:
            self._found.pop(0)
            return True
        return False

    def expect(self, word: str) -> None:
        if not self.is_next(word):
            raise self.wrong(self._found[0][1] if self._found else "its end")

    def wrong(self, at: str) -> SourceError:
        return option_error(
            "where",
            f"cannot be read at {at!r}: it has conditions joined by AND, such as {_EXAMPLE}",
        )


def _condition(tokens: _Tokens, kind: str) -> Condition:
    sort, name = tokens.next()
    if sort != "name":
        raise tokens.wrong(name)
    path = tuple(quoted or plain for quoted, plain in _PART.findall(name))
    type_ = _type_of(path, kind)
    if tokens.is_next("IS"):
        negated = tokens.is_next("NOT")
        tokens.expect("NULL")
        return Condition(path, "null", (), negated)
    negated = tokens.is_next("NOT")
    if tokens.is_next("IN"):
        tokens.expect("(")
        values = [_value(tokens, path, type_)]
        while tokens.is_next(","):
            values.append(_value(tokens, path, type_))
        tokens.expect(")")
        return Condition(path, "in", tuple(values), negated)
    if tokens.is_next("LIKE"):
        if not pa.types.is_string(type_):
            raise option_error("where", f"has LIKE for {name}, which is no text")
        return Condition(path, "like", (_value(tokens, path, type_),), negated)
    sign = tokens.next()[1]
    if sign not in _SIGNS or negated:
        raise tokens.wrong(sign)
    return Condition(path, _SIGNS[sign], (_value(tokens, path, type_),))


def _type_of(path: tuple[str, ...], kind: str) -> Any:
    known = schema.column_names(kind)
    if path[0] not in known:
        raise option_error(
            "where", f"has {path[0]!r}, which {kind} do not have{like(path[0], known)}"
        )
    type_ = schema.arrow_schema(kind, [path[0]]).field(0).type
    if pa.types.is_struct(type_):
        fields = [type_.field(at).name for at in range(type_.num_fields)]
        if len(path) != 2 or path[1] not in fields:
            parts = ", ".join(f"{path[0]}.{one}" for one in fields)
            raise option_error("where", f"has {'.'.join(path)!r}; there are {parts}")
        return type_.field(path[1]).type
    if len(path) > 1 or pa.types.is_list(type_):
        raise option_error("where", f"cannot compare {'.'.join(path)}; filter it in Spark")
    return type_


def _value(tokens: _Tokens, path: tuple[str, ...], type_: Any) -> Any:
    """Return the next literal as a value of the column's type."""
    sort, text = tokens.next()
    name = ".".join(path)
    if sort == "name" and text.upper() == "TIMESTAMP":
        sort, text = tokens.next()
    if sort == "text":
        text = text[1:-1].replace("''", "'")
        if pa.types.is_string(type_):
            return text
        if pa.types.is_timestamp(type_):
            return moment_of("where", text)
        if pa.types.is_binary(type_):
            return text.encode()
    if sort == "number":
        number = Decimal(text)
        if pa.types.is_integer(type_) or pa.types.is_decimal(type_):
            if number != number.to_integral_value():
                raise option_error("where", f"compares {name} with {text}; it is a whole number")
            return int(number)
    if sort == "name" and text.upper() in ("TRUE", "FALSE") and pa.types.is_boolean(type_):
        return text.upper() == "TRUE"
    raise option_error("where", f"compares {name}, which is {_named(type_)}, with {text!r}")


def _named(type_: Any) -> str:
    for is_one, name in (
        (pa.types.is_string, "a text"),
        (pa.types.is_timestamp, "a time"),
        (pa.types.is_boolean, "true or false"),
        (pa.types.is_binary, "bytes"),
    ):
        if is_one(type_):
            return name
    return "a whole number"


def _evaluated(batch: Any, one: Condition) -> Any:
    """Return an array of booleans, without nulls."""
    column = batch.column(batch.schema.names.index(one.path[0]))
    for part in one.path[1:]:
        column = pc.struct_field(column, part)
    if one.operation == "null":
        found = pc.is_null(column)
        return pc.invert(found) if one.is_negated else found
    if one.operation == "in":
        found = pc.is_in(column, value_set=_fitting(one.values, column.type))
    elif one.operation == "like":
        found = pc.match_substring_regex(column, _expression(one.values[0]))
    else:
        known, beyond = _scalar(one, column.type)
        if beyond is not None:  # no value of this type is as large, or as small
            found = pa.repeat(pa.scalar(beyond), len(column))
        else:
            found = getattr(pc, one.operation)(column, known)
    if one.is_negated:
        found = pc.invert(found)
    return pc.and_(pc.fill_null(found, False), pc.is_valid(column))


def _is_huge(value: Any) -> bool:
    """Return whether a number does not fit into a request."""
    return isinstance(value, int) and abs(value) >= 1 << 62


def _expression(pattern: str) -> str:
    """Return a pattern of LIKE as a regular expression for all of a text.

    A backslash makes `%`, `_` and a backslash behind it stand for themselves.  Before any other
    character it is one itself, because names of queues have backslashes.  (Arrow's own LIKE takes
    two backslashes for two characters in some patterns, and for one in others.)
    """
    parts = []
    for sign in _LIKE.findall(pattern):
        parts.append({"%": ".*", "_": "."}.get(sign) or re.escape(sign[-1]))
    return f"(?s)^{''.join(parts)}\\z"


def _scalar(one: Condition, type_: Any) -> tuple[Any, bool | None]:
    try:
        return pa.scalar(_typed(one.values[0], type_), type_), None
    except (pa.ArrowInvalid, OverflowError):
        is_above = one.values[0] > 0
        above = one.operation in ("less", "less_equal", "not_equal")
        below = one.operation in ("greater", "greater_equal", "not_equal")
        return None, above if is_above else below


def _fitting(values: Sequence[Any], type_: Any) -> Any:
    """Return the values that a column of this type can have, as an array."""
    fitting = []
    for one in values:
        with contextlib.suppress(pa.ArrowInvalid, OverflowError):
            fitting.append(pa.scalar(_typed(one, type_), type_).as_py())
    return pa.array(fitting, type_)


def _typed(value: Any, type_: Any) -> Any:
    return Decimal(value) if pa.types.is_decimal(type_) else value
