"""Fair scheduler: connections that read large packets, and work that a slice starts, rest too."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from qmd.runtime.bulk_turns import EXPLAINED, EXPLAINED_MAX, EXPLAINED_S, BulkTurns, LargeExchange
from qmd.runtime.fair_scheduler import (
    INDIVISIBLE,
    READING_S,
    READING_SHARE,
    REST,
    SHARED_LEAST,
    SHARED_PACKETS,
    Class,
    FairScheduler,
    Light,
)


class World:
    """A loop and a processor whose times the test controls."""

    def __init__(self) -> None:
        self.now = 100.0
        self.busy_s = 0.0
        self.soon: list[Callable[[], None]] = []
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.served: list[str] = []
        self.light = Light()
        storage = SimpleNamespace(patience=self._patience, pressure=0)
        services: Any = SimpleNamespace(
            loop=SimpleNamespace(
                time=lambda: self.now,
                call_soon=lambda act: self.soon.append(act),
                call_later=lambda delay_s, act: self.later.append((self.now + delay_s, act)),
            ),
            storage=storage,
            environment=SimpleNamespace(busy_time=lambda: self.busy_s),
        )
        self.turns = FairScheduler(
            services, self.light, BulkTurns(services, self.light), beside_the_disk=False
        )

    @contextlib.contextmanager
    def _patience(self, _: bool) -> Iterator[None]:
        yield

    def wait(self, name: str, kind: Class, act: Callable[[], None] = lambda: None) -> None:
        def take_turn(_: float, __: int) -> None:
            self.served.append(name)
            act()

        member: Any = SimpleNamespace(take_turn=take_turn)
        self.turns.wait(member, kind)

    def advance(self, seconds: float, *, others_are_active: bool) -> None:
        """Let time pass in small steps, and run the callbacks that become due."""
        end = self.now + seconds
        while self.now < end:
            if others_are_active:
                self.light.at = self.now
            due = [act for at, act in self.later if at <= self.now]
            self.later = [each for each in self.later if each[0] > self.now]
            ready, self.soon = [*self.soon, *due], []
            for each in ready:
                each()
            self.now += 0.0005


def test_much_reading_rests_while_others_are_active() -> None:
    world = World()
    world.light.at = world.now
    assert world.turns.has_time_to_read()
    world.turns.spend_reading(READING_S)
    world.turns.spend_reading(READING_S)
    assert not world.turns.has_time_to_read()
    world.wait("reader", Class.READER)

    world.advance(0.9 * READING_S / READING_SHARE, others_are_active=True)
    assert world.served == []
    world.advance(0.3 * READING_S / READING_SHARE + 0.002, others_are_active=True)
    assert world.served == ["reader"]


def test_a_read_that_cannot_be_divided_rests_longer() -> None:
    world = World()
    world.turns.spend_reading(2 * READING_S)
    world.wait("reader", Class.READER)

    world.advance(0.9 * INDIVISIBLE * READING_S / READING_SHARE, others_are_active=True)

    assert world.served == []


def test_reading_does_not_rest_when_no_other_connection_has_work() -> None:
    world = World()
    world.turns.spend_reading(100 * READING_S)
    world.wait("reader", Class.READER)

    world.advance(0.005, others_are_active=False)

    assert world.served == ["reader"]


@pytest.mark.parametrize(
    ("waiting", "packets"), [(1, SHARED_PACKETS), (8, SHARED_PACKETS // 8), (1000, SHARED_LEAST)]
)
def test_light_connections_share_the_packets_of_a_turn_and_each_gets_a_few(
    waiting: int, packets: int
) -> None:
    world, granted = World(), []
    for _ in range(waiting):
        member: Any = SimpleNamespace(take_turn=lambda _, most: granted.append(most))
        world.turns.wait(member, Class.LIGHT)

    world.advance(0.0005, others_are_active=True)

    assert granted == [packets] * waiting


def test_the_work_that_a_slice_has_started_counts_for_its_rest() -> None:
    world = World()
    world.light.at = world.now
    world.wait("accepts", Class.UNTRUSTED, lambda: world.turns.charge(0.001))
    world.advance(0.0005, others_are_active=True)
    assert world.served == ["accepts"]
    world.wait("next", Class.UNTRUSTED)

    world.advance(0.9 * REST * 0.001, others_are_active=True)
    assert world.served == ["accepts"]
    world.advance(0.3 * REST * 0.001, others_are_active=True)
    assert world.served == ["accepts", "next"]


def test_a_connection_that_has_work_is_light() -> None:
    world = World()
    assert not world.turns.is_shared

    assert world.turns.has_time(LargeExchange())

    assert world.turns.is_shared


def test_small_work_after_large_packets_makes_no_connection_light() -> None:
    world, large = World(), LargeExchange()
    large.note(world.now, 2)

    for _ in range(2 * EXPLAINED):
        assert world.turns.has_time(large)
        assert not world.turns.is_shared

    world.turns.has_time(large)  # it has other work, too
    assert world.turns.is_shared


def test_large_packets_explain_nothing_later() -> None:
    world, large = World(), LargeExchange()
    large.note(world.now)

    world.now += 1.01 * EXPLAINED_S
    world.turns.has_time(large)

    assert world.turns.is_shared


def test_large_packets_explain_a_limited_number() -> None:
    large = LargeExchange()
    large.note(0.0, 10 * EXPLAINED_MAX)

    assert sum(large.explains(1.0) for _ in range(2 * EXPLAINED_MAX)) == EXPLAINED_MAX
