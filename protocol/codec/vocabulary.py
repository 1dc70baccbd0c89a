"""The words of the layout language: descriptions of constructs, which `layout.py` makes on use.

A process that parses and builds packets with the derived functions needs the records, but neither
construct nor their layouts.  So a declaration like

    count: Annotated[int, Rebuild(Int16ul, len_(this.name))]

only notes the names and the arguments.  `made` in `layout.py` replaces each description by the
construct of that name, of construct or of `marks.py` and `layout.py`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any


class Term:
    """A construct by its name: an object, or with arguments a call."""

    __slots__ = ("arguments", "name", "named")

    def __init__(
        self, name: str, arguments: tuple[Any, ...] = (), named: dict[str, Any] | None = None
    ) -> None:
        self.name = name
        self.arguments = arguments
        self.named = named  # None: the object itself


class Expression:
    """A value that depends on the fields of a record, as `this.count * 2`.

    Its parts are `parts_of(expression)`: any attribute is a field.
    """

    __slots__ = ("__operands", "__operation")

    def __init__(self, operation: Callable[..., Any] | None, *operands: Any) -> None:
        self.__operation = operation
        self.__operands = operands

    def __getattr__(self, field: str) -> Expression:
        if field.startswith("__"):
            raise AttributeError(field)
        return Expression(getattr, self, field)

    def __getitem__(self, field: str) -> Expression:
        return Expression(operator.getitem, self, field)

    def __add__(self, other: Any) -> Expression:
        return Expression(operator.add, self, other)

    def __sub__(self, other: Any) -> Expression:
        return Expression(operator.sub, self, other)

    def __mul__(self, other: Any) -> Expression:
        return Expression(operator.mul, self, other)

    def __floordiv__(self, other: Any) -> Expression:
        return Expression(operator.floordiv, self, other)

    def __and__(self, other: Any) -> Expression:
        return Expression(operator.and_, self, other)

    def __or__(self, other: Any) -> Expression:
        return Expression(operator.or_, self, other)

    def __eq__(self, other: object) -> Any:
        return Expression(operator.eq, self, other)

    def __ne__(self, other: object) -> Any:
        return Expression(operator.ne, self, other)

    def __gt__(self, other: Any) -> Expression:
        return Expression(operator.gt, self, other)

    def __ge__(self, other: Any) -> Expression:
        return Expression(operator.ge, self, other)

    def __lt__(self, other: Any) -> Expression:
        return Expression(operator.lt, self, other)

    def __le__(self, other: Any) -> Expression:
        return Expression(operator.le, self, other)

    __hash__ = object.__hash__


def parts_of(expression: Expression) -> tuple[Callable[..., Any] | None, tuple[Any, ...]]:
    """Return the operation of an expression and its operands; None: the record itself."""
    return expression._Expression__operation, expression._Expression__operands  # type: ignore[return-value]


def len_(of: Expression) -> Expression:
    """Return the length of a field."""
    return Expression(len, of)


def _calls(name: str) -> Callable[..., Term]:
    def call(*arguments: Any, **named: Any) -> Term:
        return Term(name, arguments, named)

    return call


this = Expression(None)

# Those of construct.
Int8ul, Int16ul, Int32ul, Int64ul = map(Term, ("Int8ul", "Int16ul", "Int32ul", "Int64ul"))
Rebuild, Switch = map(_calls, ("Rebuild", "Switch"))

# Those of layout.py and marks.py.
ABSENT = Term("ABSENT")
Octets, ScannedText, WideText = map(_calls, ("Octets", "ScannedText", "WideText"))
Aligned, Present, Refuse, Within = map(_calls, ("Aligned", "Present", "Refuse", "Within"))
Repeat, layout = map(_calls, ("Repeat", "layout"))
Align, AlignTo, Reserved = map(_calls, ("Align", "AlignTo", "Reserved"))
Bound, Unbound, NothingLeft = map(_calls, ("Bound", "Unbound", "NothingLeft"))
Measured, Rule = map(_calls, ("Measured", "Rule"))
