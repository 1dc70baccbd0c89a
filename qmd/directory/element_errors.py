"""Errors of names with several elements: each names the element that is not understood."""

from __future__ import annotations

from protocol.names.format_name import FormatName, MultipleName
from qmd.directory.interface import NoDirectory
from qmd.errors import Refusal, placed

TARGETS_MAX = 10_000  # of one name; the limit of a header, protocol/names/multi_queue.py


def no_directory(name: object) -> NoDirectory:
    """Return the error about a name of the directory where there is none."""
    return NoDirectory(
        f"{name} needs a directory, and this queue manager has none",
        "Use a direct name, for example DIRECT=OS:host\\private$\\orders.",
    )


class AtElement:
    """Context manager that names the element in errors, with its index if there are several."""

    def __init__(self, count: int, index: int, element: object) -> None:
        self._where = f"element {index + 1} of {count}, {element}" if count > 1 else ""
        self._element = str(element)

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if not isinstance(error, Refusal):
            return
        if self._where:
            raise placed(error, self._where) from error
        if self._element not in error.text:
            raise placed(error, self._element) from error


def at(name: FormatName, index: int, element: object) -> AtElement:
    """Return a context in which errors name an element, with its place among several."""
    count = len(name.elements) if isinstance(name, MultipleName) else 1
    return AtElement(count, index, element)


def too_many(name: FormatName) -> Refusal:
    """Return the error about a name with more targets than a header can hold."""
    return Refusal(
        "too_many_targets",
        f"{str(name)[:80]} stands for more than {TARGETS_MAX} queues",
        "Send to parts of it.",
    )
