"""What the data source refuses, with the place, the reason and what to do in one line.

Spark shows a Python error behind the lines of code that it came through; of these it shows only the
text, which says all of it (`plainly`).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Generator, Iterator
from typing import Any, ParamSpec, TypeVar

from qmd.client import ClientError

P = ParamSpec("P")
T = TypeVar("T")


class SourceError(Exception):
    """An option, a column or a file that cannot be, or a queue manager that refuses.

    `code` is its cause in `qmd.catalogue`.
    """

    code = "source_refused"

    def __init__(self, text: str, *, code: str = "") -> None:
        super().__init__(text)
        if code:
            self.code = code


def option_error(option: str, why: str) -> SourceError:
    return SourceError(f'qmd: option "{option}" {why}', code="source_option")


def at(endpoint: Any, error: ClientError) -> SourceError:
    """What a queue manager, or nobody, answered there."""
    name = f" ({error.id})" if error.id else ""
    told = SourceError(f"qmd at {endpoint}: {error}{name}")
    told.code = error.code
    return told


def plainly(entry: Callable[P, T]) -> Callable[P, T]:
    """What Spark calls: of a SourceError nothing is shown but its text.

    The lines of ours that it came through say nothing to whoever wrote the query; those of an error
    that is not expected stay.
    """

    @functools.wraps(entry)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            found = entry(*args, **kwargs)
        except SourceError as error:
            raise _shown_alone(error) from None
        return _each_plainly(found) if isinstance(found, Generator) else found  # type: ignore[return-value]

    return called


def _each_plainly(items: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from items
    except SourceError as error:
        raise _shown_alone(error) from None


def _shown_alone(error: SourceError) -> SourceError:
    # Spark's Python processes look at this when they tell an error, and end then.
    if os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER":
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
    return error
