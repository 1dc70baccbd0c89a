"""The expiry with registered sweepers: pieces, limits and the wait for the commit."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from qmd.maintenance.expiry import EXPIRED_ROWS, Expiry


class Sweeper:
    """A sweeper with a number of expired messages."""

    def __init__(self, express: int = 0, stored: int = 0) -> None:
        self.express, self.stored = express, stored
        self.limits: list[int] = []

    def sweep_express(self, now_s: int, rows_max: int) -> int:
        self.limits.append(rows_max)
        ended = min(self.express, rows_max)
        self.express -= ended
        return ended

    async def sweep_stored(self, now_s: int, rows_max: int) -> tuple[int, bool]:
        ended = min(self.stored, rows_max)
        self.stored -= ended
        return ended, ended == rows_max


class World:
    def __init__(self, *sweepers: Sweeper, earliest: int | None = 5) -> None:
        self.barriers = 0
        self.clock_needed: bool | None = None
        services: Any = SimpleNamespace(
            clock=SimpleNamespace(now_s=10, look=self.look),
            storage=SimpleNamespace(read=self.read, batch=SimpleNamespace(barrier=self.barrier)),
        )
        self.earliest = earliest
        confirmations: Any = SimpleNamespace(expire=self.no_confirmations, any=False)
        self.expiry = Expiry(services, confirmations, sweepers)

    def reap(self) -> bool:
        return asyncio.run(self.expiry.reap())

    def look(self, *, is_needed: bool) -> None:
        self.clock_needed = is_needed

    async def read(self, work: object) -> int | None:
        return self.earliest

    async def barrier(self) -> None:
        self.barriers += 1

    async def no_confirmations(self, rows_max: int) -> bool:
        return False


def test_express_messages_share_one_limit() -> None:
    first, second = Sweeper(express=60), Sweeper(express=60)

    assert World(first, second, earliest=None).reap()
    assert (first.limits, second.limits) == ([EXPIRED_ROWS], [EXPIRED_ROWS - 60])
    assert second.express == 20


def test_stored_messages_end_if_the_earliest_has_expired() -> None:
    for earliest, left in ((None, 3), (10, 3), (9, 0)):
        sweeper = Sweeper(stored=3)
        world = World(sweeper, earliest=earliest)
        assert not world.reap()
        assert sweeper.stored == left
        assert world.barriers == (0 if left else 2)
        assert world.clock_needed is (earliest is not None)


def test_a_full_piece_of_any_sweeper_means_that_there_may_be_more() -> None:
    assert World(Sweeper(stored=EXPIRED_ROWS), Sweeper()).reap()
    assert World(Sweeper(), Sweeper(stored=EXPIRED_ROWS)).reap()
    assert not World(Sweeper(stored=1), Sweeper(stored=1)).reap()
