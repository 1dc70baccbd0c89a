"""Night after night, in any parts, an audit ends with what one run over everything says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra qmd-msmq[spark] is not installed")
pytest.importorskip("duckdb", reason="the extra qmd-msmq[spark] is not installed")

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
