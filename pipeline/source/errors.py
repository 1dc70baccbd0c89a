"""What the data source refuses, with the place, the reason and what to do in one line.

Spark shows a Python error as its traceback's last line; so the text says all of it.
"""

from __future__ import annotations

from typing import Any

from qmd.client import ClientError


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
