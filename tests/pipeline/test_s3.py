"""A lake and results in a bucket: shipped, audited night after night, read by other programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("duckdb", reason="the extra qmd-msmq[spark] is not installed")

import duckdb
import fsspec
import pandas as pd

from pipeline.generator import Fleet, generate, parse_faults
from pipeline.results.runs import Results, RunSuperseded
from qmd.client import blocking
from tests.optional import needs
from tests.pipeline.s3 import S3
from tests.process.harness import Daemon

pytestmark = [
    pytest.mark.process,
    needs("s3fs", reason="the extra qmd-msmq[s3] is not installed"),
    needs("moto", reason="moto, the server of the bucket, is not installed"),
]
LAKE, AUDIT = "s3://lake/qmd", "s3://lake/audit"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with S3(tmp_path_factory.mktemp("s3")) as s3:
        yield s3


@pytest.fixture
def bucket(server: S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    system = fsspec.filesystem("s3", skip_instance_cache=True)
    system.mkdir("lake")
    yield system
    system.rm("lake", recursive=True)
    fsspec.get_filesystem_class("s3").clear_instance_cache()


def run(*words: str) -> dict[str, Any]:
    """Run a job as a process; return what it printed, with its exit code."""
    done = subprocess.run(
        [sys.executable, "-m", "qmd", "pipeline", "run", *words, "--json"],
        capture_output=True,
        text=True,
        env=dict(os.environ),
        timeout=300,
        check=False,
    )
    assert done.stdout, done.stderr[-3000:]
    return {"exit": done.returncode, **json.loads(done.stdout.splitlines()[-1])}


def audit() -> dict[str, Any]:
    return run("audit", "--input", LAKE, "--output", AUDIT)


def upload(system: Any, folder: Path) -> None:
    for each in sorted(folder.rglob("*.parquet")):
        system.put(str(each), f"lake/qmd/{each.relative_to(folder)}")


def test_nights_in_a_bucket_find_the_faults_and_others_read_them(
    bucket: Any, tmp_path: Path
) -> None:
    faults = parse_faults("lost=2,reordered=1")
    fleet = Fleet(hosts=3, streams=4, messages=300, days=2, seed=7, faults=faults)
    generate(fleet, tmp_path / "logs")
    upload(bucket, tmp_path / "logs")

    nights = [audit(), audit()]

    assert [night["exit"] for night in nights] == [1, 1]
    assert [night["findings"] for night in nights] == [{"lost": 2, "reordered": 1}] * 2
    assert [night["files"] > 0 for night in nights] == [True, False]  # nothing is read again
    bucket.invalidate_cache()
    with bucket.open("lake/audit/findings.parquet", "rb") as file:
        found = pd.read_parquet(file)
    assert sorted(found.kind) == ["lost", "lost", "reordered"]
    with duckdb.connect() as db:
        db.register_filesystem(bucket)
        [(count,)] = db.sql("select count(*) from 's3://lake/audit/findings.parquet'").fetchall()
    assert count == 3
    assert b"<html" in bucket.cat_file("lake/audit/report.html")


def test_of_two_runs_at_once_one_publishes_nothing_in_a_bucket(bucket: Any) -> None:
    first, second = Results(AUDIT).begin("job"), Results(AUDIT).begin("job")
    for draft, text in ((first, "first"), (second, "second")):
        draft.put_page("report.html", text)
    first.commit()

    with pytest.raises(RunSuperseded, match="run it again"):
        second.commit()
    second.discard()

    assert bucket.cat_file("lake/audit/report.html") == b"first"
    assert Results(AUDIT).numbers() == [1]


def test_a_host_ships_its_log_into_a_bucket(bucket: Any, tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "qmd")
    daemon.start()
    try:
        daemon.create("orders", transactional=True)
        with blocking.connect(daemon.folder / "qmd.sock") as qm:
            for part in range(2):
                for number in range(50):
                    qm.send("orders", b"%d" % number)
                assert len(qm.receive_many("orders", 50, timeout_s=5)) == 50
                notes = str(tmp_path / "notes")
                shipped = daemon.cli("ship", "--to", LAKE, "--notes", notes)
                assert shipped.returncode == 0, (part, shipped.stderr)
    finally:
        daemon.terminate()

    result = audit()

    assert (result["exit"], result["findings"]) == (0, {})
    assert result["files"] == 2  # one of each run
    assert result["events"] >= 200  # each message was accepted and received
