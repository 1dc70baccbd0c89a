"""Whole runs that are killed at changes of files, and two runs at once, by either engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra qmd-msmq[spark] is not installed")
pytest.importorskip("duckdb", reason="the extra qmd-msmq[spark] is not installed")

from pipeline.generator import Fleet, generate, parse_faults

ROOT = Path(__file__).resolve().parents[2]
SOAK = bool(os.environ.get("QMD_SOAK"))  # `make soak-pipeline`: at each change, and with Spark
#: The changes of files at which a run dies; the last one is never reached.
DEATHS = [*range(1, 60), 10_000] if SOAK else [25, 10_000]

pytestmark = pytest.mark.timeout(1800)

ENGINES = [
    "embedded",
    pytest.param("spark", marks=pytest.mark.skipif(not SOAK, reason="make soak-pipeline")),
]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dying") / "logs"
    faults = parse_faults("lost=2,duplicated=1")
    generate(Fleet(hosts=3, streams=4, messages=120, days=2, seed=4, faults=faults), folder)
    return folder


def command(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *words], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "job",
    ["audit", pytest.param("traffic", marks=pytest.mark.skipif(not SOAK, reason="make soak"))],
)
def test_a_run_that_dies_anywhere_leaves_results_and_the_next_run_is_right(
    job: str, engine: str, logs: Path, tmp_path: Path
) -> None:
    deaths = [1, 20, 30, 10_000] if engine == "spark" else DEATHS
    module = ("-m", "tests.pipeline.dying_runs")
    done = command(*module, job, engine, str(logs), str(tmp_path), *map(str, deaths))
    out, errors = done.communicate()
    assert done.returncode == 0, errors
    before, rows = json.loads(out)

    wanted: list[Any] = rows[-1][2]
    assert wanted
    assert wanted != before
    for ended, then, after in rows:
        assert ended in (0, -signal.SIGKILL)
        assert then in (before, wanted)
        assert after == wanted
    assert rows[-1][0] == 0
    assert rows[0][0] == -signal.SIGKILL


@pytest.mark.skipif(not SOAK, reason="takes a minute: make soak-pipeline")
@pytest.mark.parametrize("engine", ["embedded", "spark"])
def test_of_two_runs_at_once_one_is_refused_and_the_other_is_right(
    engine: str, logs: Path, tmp_path: Path
) -> None:
    words = ("-m", "qmd", "pipeline", "run", "audit", "--input", str(logs), "--output",
             str(tmp_path / "out"), "--engine", engine, "--json")  # fmt: skip
    both = [command(*words) for _ in range(2)]
    ended = [each.communicate() for each in both]

    codes = sorted(each.returncode for each in both)
    # If one has ended before the other began, both are right.
    assert codes in ([1, 1], [1, 4]), ended
    third = command(*words)
    out, _ = third.communicate()
    assert third.returncode == 1
    found = [json.loads(each[0])["findings"] for each in ended if each[0].strip()]
    assert all(each == json.loads(out)["findings"] for each in found)


@pytest.mark.parametrize("job", ["audit", *["latency", "traffic", "dead-letters"] * SOAK])
def test_a_disk_that_is_full_at_any_write_leaves_the_last_results(
    job: str, logs: Path, tmp_path: Path
) -> None:
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("only root can make a small disk")
    free_kb = [*range(0, 1200, 4 if SOAK else 600), 100_000]
    module = ("-m", "tests.pipeline.full_disks", job, str(logs), str(tmp_path))
    done = subprocess.run(
        ["unshare", "--mount", sys.executable, *module, *map(str, free_kb)], cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    before, rows = json.loads(done.stdout)

    wanted: list[Any] = rows[-1][2]
    assert wanted
    assert wanted != before
    failed = 70 if job == "audit" else 1
    for (code, said), then, after in rows:
        if then == before:
            assert (code, "cannot be written" in said) == (failed, True), said
        else:  # it was published; only what other programs read may be of the run before
            assert then == wanted
        assert after == wanted
    assert rows[0][1] == before
    assert rows[-1][1] == wanted
