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

_CALL = re.compile(r"\b(exists|filter|transform|array|array_max|named_struct|struct|inline)\(")
_INDEX = re.compile(r"\b(r)\[(\d+)\]")
_LAMBDA = re.compile(r"\s*(\w+)\s*->")
_COMMENT = re.compile(r"--[^\n]*")


@cache
def for_duckdb(query: str) -> str:
    """Return the query for DuckDB.  Raises ValueError if parentheses do not match."""
    query = _COMMENT.sub("", query)
    return _calls(_INDEX.sub(lambda found: f"{found[1]}[{int(found[2]) + 1}]", query))


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
