"""Translation of queries from Spark's SQL to DuckDB's, for the constructs that the rules use.

    exists(list, r -> condition)               len(list_filter(list, lambda r: condition)) > 0
    filter(list, r -> ...), transform(...)     list_filter(...), list_transform(...)
    r[0]                                       r[1]: DuckDB counts from 1
    array(a, b), array_max(list)               [a, b], list_max(list)
    named_struct('a', x, 'b', y), struct(x, y) struct_pack(a := x, b := y), row(x, y)
    inline(list)                               unnest(list, recursive := true)

Other text is the same in both.  A lower-case name before a parenthesis is a call; the clause
FILTER (WHERE ...) is written in capitals.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

from pipeline.engines.engine import WrongQuery

_CALL = re.compile(r"\b(exists|filter|transform|array|array_max|named_struct|struct|inline)\(")
_INDEX = re.compile(r"\b(r)\[(\d+)\]")
_LAMBDA = re.compile(r"\s*(\w+)\s*->")
_COMMENT = re.compile(r"--[^\n]*")


@cache
def for_duckdb(query: str) -> str:
    """Return the query for DuckDB.  Raises ValueError if parentheses do not match."""
    query = _COMMENT.sub("", query)
    return _calls(_INDEX.sub(lambda found: f"{found[1]}[{int(found[2]) + 1}]", query))


def condition_for_duckdb(condition: str) -> str:
    """Return a condition that a user has written in Spark's SQL.  Raises WrongQuery.

    Times of the rows have no zone there, and are UTC.
    """
    import sqlglot
    from sqlglot import exp

    def as_here(node: Any) -> Any:
        if isinstance(node, exp.Like | exp.ILike) and not isinstance(node.parent, exp.Escape):
            # In patterns of Spark, a backslash takes the meaning of the next character away.
            return exp.Escape(this=node.copy(), expression=exp.Literal.string("\\"))
        if isinstance(node, exp.DataType) and node.this == exp.DataType.Type.TIMESTAMPTZ:
            return exp.DataType.build("timestamp")
        return node

    try:
        found = sqlglot.parse(condition, read="spark")
        if len(found) != 1 or found[0] is None:
            raise WrongQuery("it has to be one condition")
        text = str(found[0].transform(as_here).sql(dialect="duckdb"))
        # sqlglot drops what it does not know of some functions, and reports nothing.
        again = sqlglot.parse_one(text, read="duckdb")
        if found[0].find(exp.Lambda) or _names(found[0]) != _names(again):
            raise WrongQuery("it needs Spark: give --engine spark")
        return text
    except (sqlglot.errors.SqlglotError, ValueError) as error:
        # It underlines the place on a terminal.
        plain = str(error).replace("\x1b[4m", "").replace("\x1b[0m", "")
        raise WrongQuery(" ".join(plain.split())) from error


def _names(condition: Any) -> list[str]:
    """Return the columns and the texts of a condition."""
    from sqlglot import exp

    columns = [f"column {each.sql().casefold()}" for each in condition.find_all(exp.Column)]
    return sorted(columns + [
        f"text {each.this}" for each in condition.find_all(exp.Literal)
        if each.is_string and each.this != "\\"
    ])  # fmt: skip


def _calls(text: str) -> str:
    found = _CALL.search(text)
    if found is None:
        return text
    end = _closing(text, found.end())
    arguments = [_calls(each) for each in _arguments(text[found.end() : end])]
    return text[: found.start()] + _WRITE[found[1]](arguments) + _calls(text[end + 1 :])


def _closing(text: str, at: int) -> int:
    """Return the position of the parenthesis that closes the one before `at`."""
    depth, quoted = 1, False
    for position in range(at, len(text)):
        sign = text[position]
        if sign == "'":
            quoted = not quoted
        elif not quoted and sign in "([":
            depth += 1
        elif not quoted and sign in ")]":
            depth -= 1
            if depth == 0:
                return position
    raise ValueError(f"a parenthesis is not closed: {text[at : at + 60]}")


def _arguments(text: str) -> list[str]:
    """Split at the commas outside of parentheses and quotes."""
    found, depth, quoted, begin = [], 0, False, 0
    for position, sign in enumerate(text):
        if sign == "'":
            quoted = not quoted
        elif not quoted and sign in "([":
            depth += 1
        elif not quoted and sign in ")]":
            depth -= 1
        elif not quoted and sign == "," and depth == 0:
            found.append(text[begin:position].strip())
            begin = position + 1
    return [*found, text[begin:].strip()]


def _lambda(text: str) -> str:
    found = _LAMBDA.match(text)
    if found is None:
        raise ValueError(f"not a function of one argument: {text[:60]}")
    return f"lambda {found[1]}: {text[found.end() :].strip()}"


def _pairs(arguments: list[str]) -> str:
    names, values = arguments[::2], arguments[1::2]
    pairs = (f"{name[1:-1]} := {value}" for name, value in zip(names, values, strict=True))
    return f"struct_pack({', '.join(pairs)})"


_WRITE: dict[str, Callable[[list[str]], str]] = {
    "exists": lambda a: f"(len(list_filter({a[0]}, {_lambda(a[1])})) > 0)",
    "filter": lambda a: f"list_filter({a[0]}, {_lambda(a[1])})",
    "transform": lambda a: f"list_transform({a[0]}, {_lambda(a[1])})",
    "array": lambda a: f"[{', '.join(a)}]",
    "array_max": lambda a: f"list_max({a[0]})",
    "named_struct": _pairs,
    "struct": lambda a: f"row({', '.join(a)})",
    "inline": lambda a: f"unnest({a[0]}, recursive := true)",
}
