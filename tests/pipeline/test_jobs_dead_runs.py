"""A job that is killed at any moment leaves a usable state: the next run gives the same result."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra qmd-msmq[spark] is not installed")
pytest.importorskip("pandas", reason="the extra qmd-msmq[spark] is not installed")

from click.testing import CliRunner, Result
from pyarrow import parquet

from pipeline.events import find_files
from pipeline.generator import Fleet, generate, parse_faults
from pipeline.jobs.audit.findings import AuditResult, AuditSettings
from pipeline.jobs.audit.job import audit
from pipeline.jobs.audit.state import VERSION, State
from pipeline.report.outcome import write_audit
from qmd.cli import main
from tests.pipeline.foreign_fleet import DAY, HOUR, MIDNIGHT, Message, Stream
from tests.pipeline.foreign_fleet import Fleet as ForeignFleet
from tests.pipeline.foreign_parts import accused_falsely
from tests.pipeline.test_jobs import SEEDS, SOAK, any_fleet, begun, found

pytestmark = pytest.mark.timeout(1800)

ROOT = Path(__file__).resolve().parents[2]
#: Thousands of files are written durably: a disk would take minutes for it.
MEMORY = Path("/dev/shm")


@pytest.mark.parametrize("kind", ["audit", "traffic"])
def test_a_run_that_dies_at_any_write_of_its_state_leaves_the_old_one_or_the_new_one(
    kind: str, tmp_path: Path
) -> None:
    every = 1 if SOAK or kind == "traffic" else 4  # an audit writes one part after the other
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else tmp_path) as folder:
        done = subprocess.run(
            [sys.executable, "-m", "tests.pipeline.dying_states", kind, folder, str(every)],
            cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE,
            check=True,
        )  # fmt: skip

    *died, (whole, _, names) = json.loads(done.stdout)
    old, new = ([1], [1, 2]) if kind == "audit" else ([], [])
    states = [
        [[f"file {n}" for n in files], [{"source": value, "number": 7}]]
        for files, value in ((old, 1), (new, 2))
    ]
    shown = [[[value], f"page {value}"] for value in (1, 2)]
    assert whole == [*states[1], shown[1]]
    seen = [states.index(then[:2]) for then, *_ in died]
    # The complete old state, and from one moment on the complete new one.
    assert seen == sorted(seen)
    assert set(seen) == {0, 1}
    assert len(died) > 20
    # The files for other programs are of one run too, and never of one that has not published.
    others = [shown.index(then[2]) for then, *_ in died]
    assert others == sorted(others)
    assert all(other <= state for other, state in zip(others, seen, strict=True))
    for then, after, left in died:
        assert after[1:] == [[{"source": 3, "number": 7}], [[3], "page 3"]]
        assert after[0] == then[0] + ["file 3"] * (kind == "audit")
        # The remains are deleted; the number of runs that are kept differs by one.
        assert left <= names


def audited(engine: Any, folder: Path, files: list[Any], *, dies: bool = False) -> AuditResult:
    """Audit the new `files` of a night, with pages; the run may die before it saves its state."""
    draft = begun(folder)
    state = State.load(draft)
    fresh = state.unseen(sorted(files))
    result = audit(engine, fresh, state, AuditSettings(tasks=2, timelines=5))
    if not dies:
        write_audit(draft, result, state)
    return result


def nights(
    engine: Any, logs: Path, out: Path, seed: int, wanted: Any, deaths: float
) -> AuditResult:
    """Run several nights with files in any order; no page may contain a false finding."""
    chance = random.Random(seed)
    files = find_files([str(logs)])
    chance.shuffle(files)
    runs = chance.choice([3, 4, 5])
    for n in range(runs):
        here = [file for at, file in enumerate(files) if at % runs <= n]
        if chance.random() < deaths:
            audited(engine, out, here, dies=True)
        result = audited(engine, out, here)
        assert not accused_falsely(found(result), wanted)
        assert (out / "report.html").exists()
    return result


def test_a_message_without_a_known_number_is_omitted_from_a_page(
    engine: Any, tmp_path: Path
) -> None:
    """The message is sent and stored in files of the next night, and has no number until then."""
    f = ForeignFleet(random.Random(1))
    alpha, bravo = f.host("alpha of two days"), f.host("bravo of two days")
    stream = Stream(alpha)
    f.life(Message(alpha, bravo, "usual", stream), MIDNIGHT + HOUR)
    f.sent(m := Message(alpha, bravo, "usual", stream), MIDNIGHT + DAY - HOUR)
    f.accepted(m, MIDNIGHT + DAY - HOUR + 9)
    f.acked(m, MIDNIGHT + DAY + HOUR)
    for n in range(3):
        f.life(m := Message(alpha, bravo, "usual", stream), MIDNIGHT + DAY + (2 + n) * HOUR)
    f.accepted(m, MIDNIGHT + DAY + 6 * HOUR)
    f.wrong("duplicated", m)
    f.write(tmp_path / "logs", without=set(), hole=(alpha, 0, 0))
    files = find_files([str(tmp_path / "logs")])

    late = [file for file in files if "day=1" in file.path]
    assert 0 < len(late) < len(files)
    out = tmp_path / "out"
    audited(engine, out, late, dies=True)
    assert found(audited(engine, out, late)) == f.findings
    assert (out / "report.html").exists()
    assert found(audited(engine, out, files)) == f.findings


@pytest.mark.skipif(not SOAK, reason="takes minutes: make soak-pipeline")
@pytest.mark.parametrize("seed", range(SEEDS if SOAK else 1))
def test_any_fleet_night_after_night(engine: Any, tmp_path: Path, seed: int) -> None:
    wanted = any_fleet(tmp_path / "logs", seed)

    for n in range(4):
        nights(engine, tmp_path / "logs", tmp_path / f"out{n}", seed * 100 + n, wanted, deaths=0.3)


def run_audit(logs: Path, out: Path, *words: str) -> Result:
    asked = ["pipeline", "run", "audit", "--input", str(logs), "--output", str(out), *words]
    return CliRunner().invoke(main, asked, standalone_mode=True)


def test_an_audit_without_new_files_gives_the_same_and_failures_are_no_findings(
    tmp_path: Path,
) -> None:
    logs, out = tmp_path / "logs", tmp_path / "out"
    generate(
        Fleet(hosts=3, streams=4, messages=200, days=1, seed=5, faults=parse_faults("lost=2")), logs
    )
    first = run_audit(logs, out, "--json")
    assert first.exit_code == 1  # findings
    reported = json.loads(first.stdout)

    some = Path(find_files([str(logs)])[0].path).read_bytes()
    (logs / "copied.parquet").write_bytes(some)
    (logs / "empty.parquet").write_bytes(b"")
    (logs / "empty.ndjson").write_bytes(b"")
    (logs / "cut.parquet").write_bytes(some[: len(some) // 2])
    for broken in (2, 2):  # the second time only these are read
        again = run_audit(logs, out, "--json")
        assert again.exit_code == 1, again.output
        now = json.loads(again.stdout)
        assert now["findings"].pop("broken_file") == broken
        assert (now["findings"], now["messages"]) == (reported["findings"], reported["messages"])

    # Any other failure has another code, and leaves the tables unchanged.
    before = parquet.read_table(out / "findings.parquet")
    newest = sorted((out / "_commits").iterdir())[-1]
    state = out / json.loads(newest.read_text())["state"]
    whole = state.read_text()
    version = f'"version": {VERSION}'
    assert version in whole
    for spoilt in (
        whole.replace(version, '"version": 77'),
        whole.replace("carried-", "nowhere-"),
        whole[:99],
    ):
        state.write_text(spoilt)
        assert run_audit(logs, out).exit_code in (2, 70)
    state.write_text(whole)
    assert run_audit(tmp_path / "none", out).exit_code == 3
    assert run_audit(logs, out, "--conf", "nothing").exit_code == 2
    blocked = tmp_path / "a file"
    blocked.write_text("")
    assert run_audit(logs, blocked / "out").exit_code == 70
    assert parquet.read_table(out / "findings.parquet").equals(before)


def test_two_runs_into_one_folder_are_kept_apart(tmp_path: Path) -> None:
    import fcntl

    logs, out = tmp_path / "logs", tmp_path / "out"
    generate(Fleet(hosts=2, streams=1, messages=20, days=1, seed=5, faults={}), logs)
    out.mkdir()
    with (out / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        second = run_audit(logs, out)
        planned = run_audit(logs, out, "--dry-run")

    assert second.exit_code == 4
    assert "QM-1820" in second.stderr
    assert planned.exit_code == 0
