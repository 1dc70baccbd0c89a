"""Operations of selectors on values: comparison, arithmetic, and logic with three values.

None is the unknown value.  A comparison of values of different kinds (a text with a number) is
false, and one with the unknown value is unknown (clause 3.8.1.3).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

Value = bool | int | float | str | None
Lookup = Callable[[str], Value]
Node = Callable[[Lookup], Value]

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
EQUALITIES = ("=", "<>")


def is_number(value: Value) -> bool:
    """Return whether a value is a number; a bool is none."""
    return type(value) in (int, float)


def compare(sign: str, left: Value, right: Value) -> bool | None:
    """Return the result of a comparison."""
    if left is None or right is None:
        return None
    if is_number(left) and is_number(right):
        return _COMPARISONS[sign](left, right)
    if type(left) is not type(right) or sign not in EQUALITIES:
        return False
    return _COMPARISONS[sign](left, right)


def comparison(sign: str, left: Node, right: Node) -> Node:
    return lambda lookup: compare(sign, left(lookup), right(lookup))


def between(value: Node, low: Node, high: Node) -> Node:
    def evaluate(lookup: Lookup) -> Value:
        middle = value(lookup)
        above = compare(">=", middle, low(lookup))
        if above is False:
            return False
        below = compare("<=", middle, high(lookup))
        return False if below is False else (None if above is None or below is None else True)

    return evaluate


def negation(node: Node) -> Node:
    def evaluate(lookup: Lookup) -> Value:
        value = node(lookup)
        return not value if isinstance(value, bool) else None

    return evaluate


def conjunction(nodes: list[Node]) -> Node:
    """Return AND of the nodes: false if one is false, else unknown if one is unknown."""
    return _junction(nodes, decisive=False)


def disjunction(nodes: list[Node]) -> Node:
    """Return OR of the nodes: true if one is true, else unknown if one is unknown."""
    return _junction(nodes, decisive=True)


def _junction(nodes: list[Node], *, decisive: bool) -> Node:
    def evaluate(lookup: Lookup) -> Value:
        result: Value = not decisive
        for node in nodes:
            value = node(lookup)
            if value is decisive:
                return decisive
            if not isinstance(value, bool):
                result = None
        return result

    return evaluate


def chain(first: Node, rest: list[tuple[str, Node]]) -> Node:
    """Return the arithmetic of operators of one rank, from the left to the right."""

    def evaluate(lookup: Lookup) -> Value:
        value = first(lookup)
        for sign, node in rest:
            value = calculate(sign, value, node(lookup))
            if value is None:
                return None
        return value

    return evaluate


def calculate(sign: str, left: Any, right: Any) -> Value:
    """Return the result of an arithmetic operation; unknown if an operand is no number.

    The quotient of two integers is an integer, as in Java; a division by 0 is unknown.
    """
    if not is_number(left) or not is_number(right):
        return None
    try:
        if sign == "+":
            return left + right  # type: ignore[no-any-return]
        if sign == "-":
            return left - right  # type: ignore[no-any-return]
        if sign == "*":
            return left * right  # type: ignore[no-any-return]
        if type(left) is int and type(right) is int:
            quotient = abs(left) // abs(right)
            return quotient if (left < 0) == (right < 0) else -quotient
        return left / right  # type: ignore[no-any-return]
    except ArithmeticError:
        return None


def minus(node: Node) -> Node:
    def evaluate(lookup: Lookup) -> Value:
        value: Any = node(lookup)
        return -value if is_number(value) else None

    return evaluate


def plus(node: Node) -> Node:
    def evaluate(lookup: Lookup) -> Value:
        value = node(lookup)
        return value if is_number(value) else None

    return evaluate


def is_among(value: Node, texts: frozenset[str]) -> Node:
    def evaluate(lookup: Lookup) -> Value:
        found = value(lookup)
        return None if found is None else isinstance(found, str) and found in texts

    return evaluate


def is_like(value: Node, matches: Callable[[str], bool | None]) -> Node:
    def evaluate(lookup: Lookup) -> Value:
        found = value(lookup)
        if found is None:
            return None
        return matches(found) if isinstance(found, str) else False

    return evaluate


def is_null(value: Node) -> Node:
    return lambda lookup: value(lookup) is None
