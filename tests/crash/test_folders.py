"""`qmd check` on a few folders of killed daemons, and on damaged ones.

`make soak` does it with thousands: folders.py.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.crash import folders
from tests.crash.machine import Machine

SEED = int(os.environ.get("FOLDERS_SEED", "1"))
FOLDERS = 8


@pytest.mark.timeout(300)
def test_check_is_right_about_a_killed_storage():
    outcome = folders.search(SEED, FOLDERS)

    assert outcome.wrong == []
    assert outcome.folders == FOLDERS
    assert outcome.wounds > 0
    assert sum(tally.certain for tally in outcome.tallies) > 0


@pytest.mark.timeout(300)
def test_check_is_right_about_a_daemon_after_power_loss(machine: Machine, folder: Path):
    outcome = folders.of_a_life(machine, folder, SEED, states=10)

    assert outcome.wrong == []
    assert outcome.folders == 10


@pytest.mark.timeout(300)
def test_check_is_right_about_a_simulated_world():
    outcome = folders.of_a_world(SEED, states=6)

    assert outcome.wrong == []
    assert outcome.folders > 0
