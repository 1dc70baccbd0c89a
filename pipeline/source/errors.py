"""Errors of the data source: place, reason and remedy, in one line.

Spark shows a Python error below its traceback; of these errors it shows only the text (see
`plainly`), because the text is complete.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

from qmd.client import ClientError

P = ParamSpec("P")
T = TypeVar("T")


class SourceError(Exception):
    """An impossible option, column or file, or a refusal of the queue manager.

    `code` is its cause in `qmd.catalogue`.
    """

    code = "source_refused"

    def __init__(self, text: str, *, code: str = "") -> None:
        super().__init__(text)
        if code:
            self.code = code


_LONGEST = 600  # characters of the reason


def option_error(option: str, why: str) -> SourceError:
    """Return the error of an option; `why` quotes its value first, which may be of any length."""
    if len(why) > _LONGEST:
        why = f"{why[: _LONGEST // 4]} ... {why[-_LONGEST // 2 :]}"
    return SourceError(f'qmd: option "{option}" {why}', code="source_option")


def at(endpoint: Any, error: ClientError) -> SourceError:
    """Return the error for a failed call at this endpoint, with its code."""
    name = f" ({error.id})" if error.id else ""
    named = SourceError(f"qmd at {endpoint}: {error}{name}")
    named.code = error.code
    return named


def plainly(entry: Callable[P, T]) -> Callable[P, T]:
    """Decorate a method that Spark calls: show only the text of a SourceError.

    The traceback through qmd's code does not help the author of a query; unexpected errors keep
    theirs.
    """

    @functools.wraps(entry)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            found = entry(*args, **kwargs)
        except SourceError as error:
            raise _shown_alone(error) from None
        return _each_plainly(found) if isinstance(found, Iterator) else found  # type: ignore[return-value]

    return called


def _each_plainly(items: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from items
    except SourceError as error:
        raise _shown_alone(error) from None


def _shown_alone(error: SourceError) -> SourceError:
    # Spark's Python workers read this variable when they report an error, and then exit.
    if os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER":
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
    return error
