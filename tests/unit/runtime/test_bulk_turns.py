"""Turns of large packets: one at a time, with rests while others have little work."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from qmd.runtime.bulk_turns import (
    ACTIVE_S,
    BYTES_MAX,
    EXCESS_REST,
    ORDINARY_COMMITS,
    REST,
    BulkTurns,
)
from qmd.runtime.fair_scheduler import Light


class World:
    """A loop and a storage whose time and commits the test controls."""

    def __init__(self) -> None:
        self.now = 100.0
        self.bytes_waiting = 0
        self.ordinary_commit_s = 0.01
        self.soon: list[Callable[[], None]] = []
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.durable: list[Callable[[], None]] = []
        self.served: list[str] = []
        self.light = Light()
        services: Any = SimpleNamespace(
            loop=SimpleNamespace(
                time=lambda: self.now,
                call_soon=self.soon.append,
                call_later=lambda delay_s, act: self.later.append((self.now + delay_s, act)),
            ),
            storage=self,
        )
        self.batch = SimpleNamespace(when_durable=self.durable.append)
        self.turns = BulkTurns(services, self.light)

    def wait(self, name: str, owner: str, size: int = 1_000_000) -> None:
        def take_turn(_: float, __: int) -> None:
            self.served.append(name)
            self.bytes_waiting += size

        member: Any = SimpleNamespace(take_turn=take_turn)
        self.turns.wait(member, owner)

    def run(self) -> None:
        """Run the callbacks of the loop until none is due."""
        while self.soon:
            self.soon.pop(0)()

    def commit(self) -> None:
        self.bytes_waiting = 0
        callbacks, self.durable[:] = list(self.durable), []
        for each in callbacks:
            each()
        self.run()

    def advance(self, seconds: float) -> None:
        self.now += seconds
        due = [act for at, act in self.later if at <= self.now]
        self.later = [each for each in self.later if each[0] > self.now]
        for act in due:
            act()
        self.run()


def test_owners_take_turns_and_not_their_connections() -> None:
    world = World()
    for number in range(3):
        world.wait(f"a{number}", "a")
    world.wait("b0", "b")

    world.run()

    assert world.served == ["a0", "b0", "a1", "a2"]


def test_without_others_only_bytes_that_are_not_durable_limit_them() -> None:
    world = World()
    for number in range(4):
        world.wait(str(number), "a", BYTES_MAX // 2)

    world.run()
    assert world.served == ["0", "1"]

    world.commit()
    assert world.served == ["0", "1", "2", "3"]


def test_while_others_have_work_each_waits_for_the_commit_and_a_rest() -> None:
    world = World()
    world.wait("first", "a")
    world.wait("second", "b")
    world.light.at = world.now

    world.run()
    assert world.served == ["first"]

    world.now += 0.02
    world.light.at = world.now
    world.commit()
    assert world.served == ["first"]

    while world.now < 100.02 + REST * 0.02 - ACTIVE_S:
        world.light.at = world.now
        world.advance(ACTIVE_S / 2)
        assert world.served == ["first"]
    world.advance(2 * ACTIVE_S)
    assert world.served == ["first", "second"]


def test_a_packet_that_takes_longer_than_ordinary_commits_rests_longer() -> None:
    world = World()
    world.ordinary_commit_s = 0.001
    world.wait("first", "a")
    world.wait("second", "b")
    world.light.at = world.now
    world.run()
    took_s = 0.005
    world.now += took_s
    world.light.at = world.now
    world.commit()

    end = world.now + 0.9 * EXCESS_REST * (took_s - ORDINARY_COMMITS * 0.001)
    while world.now + ACTIVE_S / 2 < end:
        world.light.at = world.now
        world.advance(ACTIVE_S / 2)
        assert world.served == ["first"]
    world.advance(2 * ACTIVE_S)
    assert world.served == ["first", "second"]


def test_the_rest_ends_when_others_have_no_work() -> None:
    world = World()
    world.wait("first", "a")
    world.wait("second", "b")
    world.light.at = world.now
    world.run()
    world.now += 1.0
    world.light.at = world.now
    world.commit()

    world.advance(2 * ACTIVE_S)

    assert world.served == ["first", "second"]
