"""Night after night, in any parts, an audit ends with what one run over everything says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra qmd-msmq[spark] is not installed")
pytest.importorskip("duckdb", reason="the extra qmd-msmq[spark] is not installed")

from pipeline.engines.local import LocalEngine
from tests.pipeline import many_fleets
from tests.pipeline.nights import check

pytestmark = pytest.mark.timeout(1800)


SOAK = bool(os.environ.get("QMD_SOAK"))


# `make soak-pipeline` runs hundreds of cases; these failed once, as 7 and 29 did: messages that
# left their place, died, came again, or had their number given again, after they were settled.
# In 305, and in all cases with an odd number, clocks drift.  In 910039 a night reads two more
# acceptances of a message that was stored before.
@pytest.mark.parametrize("seed", [36, 50, 305, 910039] if SOAK else [910039])
def test_the_last_of_many_runs_says_what_one_run_says(seed: int, tmp_path: Path) -> None:
    assert check(seed, tmp_path).problems == []


# One of each kind of fleet.  `make soak-pipeline` runs thousands.
@pytest.mark.parametrize("first", range(100, 160 if SOAK else 110, 10))
def test_no_night_accuses_one_of_many_small_fleets_falsely(first: int, tmp_path: Path) -> None:
    with LocalEngine(threads=1) as engine:
        assert many_fleets.check(engine, list(range(first, first + 10)), tmp_path) == {}
