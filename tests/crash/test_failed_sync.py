"""After a failed sync, nothing is promised that the power can take."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.failed_sync import broken_after_a_failed_sync
from tests.crash.machine import Machine
from tests.crash.shim import Fault


# Those from 10 on come after the first start.
@pytest.mark.parametrize("at", [1, 4, 8, *range(10, 48, 4)])
def test_after_failed_syncs_nothing_is_promised_that_the_power_can_take(
    machine: Machine, folder: Path, at: int
):
    fault = Fault("eio", at, "s", times=0)

    assert broken_after_a_failed_sync(machine, folder, fault) == []


@pytest.mark.parametrize("at", range(11, 47, 5))
def test_a_single_failed_sync_does_no_more_harm(machine: Machine, folder: Path, at: int):
    """That of a checkpoint stops the daemon as well: what it should have brought into the database
    is in the log, and the next checkpoint brings it again."""
    assert broken_after_a_failed_sync(machine, folder, Fault("eio", at, "s")) == []


def test_without_writing_the_log_again_it_would_be_lost(machine: Machine, folder: Path):
    """Not always: a checkpoint at the start may save it by chance."""
    assert any(
        "is lost" in broken
        for at in range(12, 46)
        for broken in broken_after_a_failed_sync(
            machine, folder, Fault("eio", at, "s", times=0), changes=["trust_the_log"]
        )
    )


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_folder_that_cannot_be_synced_keeps_the_daemon_from_starting(machine: Machine, at: int):
    """SQLite does not mind; but the name of the log would be lost with the power."""
    assert not machine.start(Fault("eio", at, "d", times=0))
    assert machine.ended() == 1
    (event,) = [each for each in machine.events() if each["level"] == "critical"]
    assert event["event"] == "start_failed"
