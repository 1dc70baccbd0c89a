"""Power losses at every act of a daemon's life, in five ways, and faults that must be detected."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.crash.machine import Machine
from tests.crash.replay import Replay
from tests.crash.workload import Workload

#: `make soak` tries every write.
IS_FULL = os.environ.get("CRASH") == "full"
EVERY_WRITE, STATES_MIN = (1, 2000) if IS_FULL else (3, 800)


def life(machine: Machine, folder: Path, *changes: str, seed: int = 0) -> Replay:
    machine.changes = ["hurry", *changes]
    with Workload(machine, seed) as workload:
        assert workload.run(), machine.said()
    return Replay(
        list(machine.log.records()), machine.data, folder, nowhere_port=workload.nowhere_port
    )


def test_promises_survive_a_power_loss_at_any_act(machine: Machine, folder: Path):
    replay = life(machine, folder)

    replay.run(every_write=EVERY_WRITE)

    assert replay.broken == []
    assert replay.count >= STATES_MIN
    assert replay.promises.confirmed >= 40


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("sync_at_checkpoints_only", "is lost"),
        ("never_sync", "is lost"),
        ("promise_early", "is lost"),
        ("move_on_later", "was refused, and is in"),
        ("delete_later", "was removed, and is in"),
    ],
)
def test_a_broken_promise_is_detected(machine: Machine, folder: Path, change: str, expected: str):
    replay = life(machine, folder, change)

    # The first act that shows it is enough.
    is_detected = any(
        any(expected in each for each in replay.broken) for _ in replay.steps(every_write=5)
    )

    assert is_detected, replay.broken[:5]
