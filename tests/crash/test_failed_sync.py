"""After a failed sync, the daemon confirms nothing that a loss of power can take."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.failed_sync import broken_after_a_failed_sync
from tests.crash.machine import Machine
from tests.crash.shim import Fault


# Acts from 10 on follow the first start.
@pytest.mark.parametrize("at", [1, 4, 8, *range(10, 48, 4)])
def test_confirmed_messages_survive_failed_syncs_and_power_loss(
    machine: Machine, folder: Path, at: int
):
    fault = Fault("eio", at, "s", times=0)

    assert broken_after_a_failed_sync(machine, folder, fault) == []


@pytest.mark.parametrize("at", range(11, 47, 5))
def test_a_failed_sync_of_a_checkpoint_stops_the_daemon(machine: Machine, folder: Path, at: int):
    """Check that a failed sync of a checkpoint stops the daemon as well.

    The log still has the pages of the failed sync, and the next checkpoint writes them again.
    """
    assert broken_after_a_failed_sync(machine, folder, Fault("eio", at, "s")) == []


def test_messages_are_lost_without_rewriting_the_log(machine: Machine, folder: Path):
    """Without the remedy messages are lost, except when a checkpoint at the start saves them."""
    assert any(
        "is lost" in broken
        for at in range(12, 46)
        for broken in broken_after_a_failed_sync(
            machine, folder, Fault("eio", at, "s", times=0), changes=["trust_the_log"]
        )
    )


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_failed_sync_of_the_folder_prevents_the_start(machine: Machine, at: int):
    """SQLite ignores the error, but a loss of power would remove the name of the log."""
    assert not machine.start(Fault("eio", at, "d", times=0))
    assert machine.ended() == 1
    (event,) = [each for each in machine.events() if each["level"] == "critical"]
    assert event["event"] == "start_failed"
