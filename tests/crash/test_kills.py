"""A daemon that is killed at an act keeps every promise; `make crashes` tries all acts."""

from __future__ import annotations

import itertools

import pytest

from tests.crash.matrix import TURNS, Bench, kills
from tests.crash.shim import Fault

CYCLES = 24
EVERY = 7  # acts between two kills


def test_promises_survive_a_kill_at_any_act(bench: Bench):
    acts = bench.acts(0, TURNS)
    died = [bench.run(cycle) for cycle in itertools.islice(kills(0, acts, TURNS), 0, None, EVERY)]

    assert len(died) >= CYCLES - 6
    assert died.count(True) >= len(died) * 0.9


@pytest.mark.parametrize(
    "fault",
    [
        Fault("enospc", 150, "w", times=1),
        Fault("enospc", 300, "w", times=0),
        Fault("eio", 250, "w", times=1),
        Fault("short", 350, "w", times=3),
    ],
    ids=str,
)
def test_promises_survive_a_failing_disk(bench: Bench, fault: Fault):
    from tests.crash.matrix import Cycle

    bench.run(Cycle(1, fault))
