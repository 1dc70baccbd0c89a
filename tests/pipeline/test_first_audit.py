"""docs/first-audit.md, followed literally: every command of it is run, in its order."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("duckdb", reason="the extra qmd-msmq[spark] is not installed")

from tests.process.command_line import ROOT
from tests.process.harness import free_port

MANUAL = ROOT / "docs" / "first-audit.md"

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is needed")
def test_every_command_of_the_page_works(tmp_path: Path) -> None:
    script = "\n".join(re.findall(r"```sh\n(.*?)```", MANUAL.read_text(), re.DOTALL))
    for port in ("1801", "1802"):  # another test may use them
        script = script.replace(port, str(free_port()))
    (tmp_path / "bin").mkdir()
    qmd = tmp_path / "bin" / "qmd"
    qmd.write_text(f'#!/bin/sh\nexec {sys.executable} -m qmd "$@"\n')
    qmd.chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    stop = "trap 'kill $(jobs -p) 2>/dev/null' EXIT\n"  # also if a command fails

    done = subprocess.run(
        ["bash", "-c", f"set -e -m\n{stop}{script}"],
        cwd=work,
        env={
            **os.environ,
            "PATH": f"{qmd.parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "HOME": str(tmp_path),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )

    assert "nothing was lost, doubled or reordered" in done.stdout, done.stdout
    assert "3 findings about messages" in done.stdout, done.stdout
    for folder in ("audit", "fleet-audit", "watch"):
        assert "<h1>" in (work / folder / "report.html").read_text()
