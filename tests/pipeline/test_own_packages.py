"""A job in a folder with files that have the names of packages of qmd."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]


def test_workers_use_the_packages_of_qmd(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="the extra qmd-msmq[spark] is not installed")
    from pipeline.spark.session import NoJava, require_java

    try:
        require_java()
    except NoJava as none:
        pytest.skip(str(none))
    for name in ("protocol", "storage", "pipeline"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong one')\n")

    def qmd(*words: str) -> str:
        done = subprocess.run(
            (sys.executable, "-m", "qmd", "pipeline", *words),
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    qmd("generate", "fleet", "--hosts", "2", "--streams", "2", "--messages", "200")

    assert "the wrong one" not in qmd("run", "traffic", "--input", "fleet", "--output", "out")
    assert any((tmp_path / "out").iterdir())
