"""Answers of the directory: a function is called again until all of its names are answered."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from qmd.bulk.directory_answers import DirectoryAnswers
from qmd.directory.resolver import MustAsk
from qmd.errors import Refusal


class World:
    """Destinations that need the answers for some names."""

    def __init__(self) -> None:
        self.destinations: Any = SimpleNamespace(answers={})
        self.queries: list[str] = []
        resolver: Any = SimpleNamespace(resolve_text=self.resolve)
        self.answers = DirectoryAnswers(resolver, self.destinations)

    async def resolve(self, name: str) -> Any:
        self.queries.append(name)
        if name == "unknown":
            raise Refusal("no_such_queue", "it is unknown")
        return f"target of {name}"

    def look_up(self, *names: str) -> list[Any]:
        for name in names:
            if name not in self.destinations.answers:
                raise MustAsk(name)
        return [self.destinations.answers[name] for name in names]


def test_each_name_is_queried_once() -> None:
    world = World()

    found = asyncio.run(world.answers.complete(lambda: world.look_up("a", "b", "a")))
    assert found == ["target of a", "target of b", "target of a"]
    assert world.answers.call(lambda: world.look_up("b")) == ["target of b"]
    assert world.queries == ["a", "b"]
    assert world.destinations.answers == {}


def test_a_refusal_is_an_answer() -> None:
    world = World()

    (found,) = asyncio.run(world.answers.complete(lambda: world.look_up("unknown")))
    assert isinstance(found, Refusal)


def test_the_answers_are_withdrawn_after_an_error() -> None:
    world = World()
    with pytest.raises(MustAsk):
        world.answers.call(lambda: world.look_up("a"))

    assert world.destinations.answers == {}
    assert world.queries == []
