"""The power goes at every act of a daemon's life, in five ways; and what would be noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.machine import Machine
from tests.crash.replay import Replay
from tests.crash.workload import Workload

STATES_MIN = 2000


def life(machine: Machine, folder: Path, *changes: str, seed: int = 0) -> Replay:
    machine.changes = ["hurry", *changes]
    with Workload(machine, seed) as workload:
        assert workload.run(), machine.said()
    return Replay(
        list(machine.log.records()), machine.data, folder, nowhere_port=workload.nowhere_port
    )


def test_what_was_promised_survives_a_loss_of_power_at_any_act(machine: Machine, folder: Path):
    replay = life(machine, folder)

    replay.run()

    assert replay.broken == []
    assert replay.count >= STATES_MIN
    assert replay.promises.told >= 40


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
def test_a_daemon_that_breaks_its_promises_is_found_out(
    machine: Machine, folder: Path, change: str, expected: str
):
    replay = life(machine, folder, change)

    replay.run(every_write=5)

    assert any(expected in each for each in replay.broken), replay.broken[:5]
