"""Random fleets with a host of which a snapshot was put back, night after night."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra qmd-msmq[spark] is not installed")
pytest.importorskip("duckdb", reason="the extra qmd-msmq[spark] is not installed")

from pipeline.events import find_files
from pipeline.jobs.audit.findings import AuditSettings
from pipeline.jobs.audit.job import audit
from pipeline.jobs.audit.state import State
from tests.pipeline.foreign_snapshots import Snapshot
from tests.pipeline.nights import about_messages, shown

SEEDS = range(int(os.environ.get("QMD_SOAK_SEEDS", "1")) * 2)
SETTINGS = AuditSettings(tasks=1)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_restored_host_is_accused_of_its_losses_alone(
    engine: Any, tmp_path: Path, seed: int
) -> None:
    every, here, state = tmp_path / "all", tmp_path / "here", State()
    every.mkdir()
    here.mkdir()
    fleet = Snapshot(seed)
    fleet.write(every)
    true = fleet.f.findings

    whole = audit(engine, find_files([str(every)]), State(), SETTINGS)

    assert about_messages(whole) == true
    files = sorted(every.iterdir())
    random.Random(seed).shuffle(files)
    for night in (files[:3], files[3:5], files[5:]):
        for file in night:
            shutil.copy(file, here)
        found = find_files([str(here)])
        last = audit(engine, state.unseen(found), state, SETTINGS, earlier=state.seen(found))
        assert not about_messages(last) - true
    # The sums of streams are added up when a run publishes.
    assert shown(last) | {"streams": []} == shown(whole) | {"streams": []}
