"""`qmd check` tells the truth of folders that were killed, and of damaged ones: a few of each.

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
def test_what_is_said_of_the_folders_of_a_killed_storage_is_true():
    outcome = folders.search(SEED, FOLDERS)

    assert outcome.wrong == []
    assert outcome.folders == FOLDERS
    assert outcome.wounds > 0
    assert sum(tally.certain for tally in outcome.tallies) > 0


@pytest.mark.timeout(300)
def test_what_is_said_of_a_daemons_folder_is_true_whenever_the_power_goes(
    machine: Machine, folder: Path
):
    outcome = folders.of_a_life(machine, folder, SEED, states=10)

    assert outcome.wrong == []
    assert outcome.folders == 10


@pytest.mark.timeout(300)
def test_what_is_said_of_the_folders_of_a_simulated_world_is_true():
    outcome = folders.of_a_world(SEED, states=6)

    assert outcome.wrong == []
    assert outcome.folders > 0
