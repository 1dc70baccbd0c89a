"""Turns: few pages are made at a time, of each user and of all."""

from __future__ import annotations

import asyncio

import pytest

from qmd.console import turns
from qmd.console.turns import PAGES, PAGES_OF_USER, NoTurn, Turns


class Pages:
    """Requests for pages, which are made until `ended` is set."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.made: list[str] = []
        self.ended = asyncio.Event()

    async def ask(self, user: str) -> None:
        async with self.turns.of(user):
            self.made.append(user)
            await self.ended.wait()


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_user_has_few_turns_and_leaves_the_others_to_others() -> None:
    async def scenario() -> None:
        pages = Pages()
        users = [name for name in "abcdef" for _ in range(PAGES_OF_USER + 3)]
        tasks = [asyncio.create_task(pages.ask(user)) for user in users]
        await settled()
        assert len(pages.made) == PAGES
        assert {pages.made.count(user) for user in "abcd"} == {PAGES_OF_USER}
        assert not {"e", "f"} & set(pages.made)

        pages.ended.set()
        await asyncio.gather(*tasks)
        assert sorted(pages.made) == users

    asyncio.run(scenario())


def test_a_request_without_a_turn_in_time_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        pages = Pages()
        tasks = [asyncio.create_task(pages.ask("a")) for _ in range(PAGES_OF_USER)]
        await settled()
        monkeypatch.setattr(turns, "WAIT_S", 0.0)
        with pytest.raises(NoTurn):
            await pages.ask("a")
        pages.ended.set()
        await asyncio.gather(*tasks)
        await pages.ask("a")

    asyncio.run(scenario())
