"""A daemon that is killed at one act or another keeps every promise.  All acts: `make crashes`."""

from __future__ import annotations

import itertools

import pytest

from tests.crash.matrix import TURNS, Bench, kills
from tests.crash.shim import Fault

CYCLES = 40


def test_whatever_a_daemon_promised_is_kept_wherever_it_is_killed(bench: Bench):
    acts = bench.acts(0, TURNS)
    died = [bench.run(cycle) for cycle in itertools.islice(kills(0, acts, TURNS), 0, None, 4)]

    assert len(died) >= CYCLES - 10
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
def test_whatever_a_daemon_promised_is_kept_when_its_disk_fails(bench: Bench, fault: Fault):
    from tests.crash.matrix import Cycle

    bench.run(Cycle(1, fault))
