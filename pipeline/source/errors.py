"""What the data source refuses, with the place, the reason and what to do in one line.

Spark shows a Python error as its traceback's last line; so the text says all of it.
"""

from __future__ import annotations

from typing import Any

from qmd.client import ClientError


class SourceError(Exception):
    """An option, a column or a file that cannot be, or a queue manager that refuses."""


def option_error(option: str, why: str) -> SourceError:
    return SourceError(f'qmd: option "{option}" {why}')


def at(endpoint: Any, error: ClientError) -> SourceError:
    """What a queue manager, or nobody, answered there."""
    name = f" ({error.id})" if error.id else ""
    return SourceError(f"qmd at {endpoint}: {error}{name}")
