"""The answers of the directory that one publication has collected."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from qmd.directory.resolver import MustAsk, Resolution
from qmd.errors import Refusal

if TYPE_CHECKING:
    from qmd.directory.resolver import Resolver
    from qmd.naming.destinations import Destinations

T = TypeVar("T")


class DirectoryAnswers:
    """The answers of the directory by name, which functions that look up names use."""

    def __init__(
        self,
        resolver: Resolver,
        destinations: Destinations,
        known: Mapping[str, Resolution | Refusal] | None = None,
    ) -> None:
        """`known`: answers that were collected before."""
        self._resolver = resolver
        self._destinations = destinations
        self._by_name: dict[str, Resolution | Refusal] = dict(known or {})

    def call(self, function: Callable[[], T]) -> T:
        """Return the result of `function`, which may look up names.

        Raises MustAsk if it needs a name that the directory has not answered yet.
        """
        before, self._destinations.answers = self._destinations.answers, self._by_name
        try:
            return function()
        finally:
            self._destinations.answers = before

    async def complete(self, function: Callable[[], T]) -> T:
        """Return the result of `function`; query the directory for each name that it needs.

        No other task runs between the last call of `function` and the return.
        """
        while True:
            try:
                return self.call(function)
            except MustAsk as ask:
                name = ask.name
            try:
                self._by_name[name] = await self._resolver.resolve_text(name)
            except Refusal as refusal:
                self._by_name[name] = refusal
