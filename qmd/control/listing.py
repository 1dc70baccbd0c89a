"""Answers that list things: many of them are described in parts, between other work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from qmd.control.components import Components
    from qmd.control.server import ControlConnection

Value = dict[str, Any]
T = TypeVar("T")

FEW = 200  # things that are described at once: some 2 ms


def answer_list(
    connection: ControlConnection,
    number: int,
    things: Sequence[T],
    shown: Callable[[T], Value | None],
) -> None:
    """Answer with each of the things that is shown; many of them take turns with other work."""
    if len(things) > FEW:
        connection.look(number, _list_in_parts(connection.components, things, shown))
    else:
        connection.done(number, [each for each in map(shown, things) if each is not None])


async def _list_in_parts(
    components: Components, things: Sequence[T], shown: Callable[[T], Value | None]
) -> list[Value]:
    found: list[Value] = []
    async for some in components.work_parts.of(len(things)):
        found += [each for each in map(shown, things[some]) if each is not None]
    return found
