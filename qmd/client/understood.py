"""Ids and codes as applications write them, read before anything leaves the application."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from qmd.client.errors import BadName

T = TypeVar("T")


def understood(parse: Callable[[str], T], given: str, what: str) -> T:
    """`parse(given)`.  Raises BadName for what is none: as every refusal, a ClientError."""
    from protocol.errors import InvalidName  # pulls in the codec: not at import

    try:
        return parse(given)
    except InvalidName as error:
        text = f"{given!r} is no {what}: {error.rule}"
        raise BadName(text, code="name_not_understood") from error
