"""Ids and codes as applications write them, parsed before a request is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from qmd.client.errors import BadName

T = TypeVar("T")


def understood(parse: Callable[[str], T], given: str, what: str) -> T:
    """Return `parse(given)`.  Raises BadName, a ClientError, when `given` is not valid."""
    from protocol.errors import InvalidName  # imports the codec: not at import

    try:
        return parse(given)
    except InvalidName as error:
        text = f"{given!r} is not a valid {what}: {error.rule}"
        raise BadName(text, code="name_not_understood") from error
