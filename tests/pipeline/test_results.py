"""Results of runs: one commit each, at any address; a failed page stops nothing."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra qmd-msmq[spark] is not installed")
pytest.importorskip("pandas", reason="the extra qmd-msmq[spark] is not installed")

import fsspec
import pandas as pd
import pyarrow as pa
from click.testing import CliRunner, Result
from pyarrow import parquet

from pipeline.events import find_files
from pipeline.generator import Fleet, generate, parse_faults
from pipeline.report import outcome
from pipeline.results.runs import (
    KEEP_RUNS,
    KEEP_STATES,
    Results,
    RunSuperseded,
    WrongResults,
)
from qmd.cli import main


@pytest.fixture(params=["folder", "store"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "folder":
        return str(tmp_path / "out")
    return f"memory://results-{secrets.token_hex(8)}"


def publish(where: str, value: int) -> None:
    draft = Results(where).begin("job")
    draft.put_table("values", pa.table({"value": [value]}))
    draft.put_page("report.html", f"page {value}")
    part = draft.put_part("numbers", pa.table({"n": [value]}))
    draft.put_state({"value": value}, [part])
    draft.summary["value"] = value
    draft.commit()


def read(where: str, name: str) -> Any:
    with fsspec.open(f"{where}/{name}", "rb") as file:
        return file.read()


def test_each_run_is_one_commit_and_the_last_ones_are_kept(where: str) -> None:
    for value in range(KEEP_RUNS + 3):
        publish(where, value)
    results = Results(where)
    newest = results.latest()

    assert newest is not None
    assert newest.number == KEEP_RUNS + 3
    assert results.numbers() == list(range(4, KEEP_RUNS + 4))  # time travel
    for number in (4, newest.number):
        commit = results.commit(number)
        table = results.place.read_table(commit.files["values.parquet"])
        assert table.column("value").to_pylist() == [number - 1] == [commit.summary["value"]]
    assert len(results.place.names("state")) == 2 * KEEP_STATES
    assert len(results.place.names("runs")) == KEEP_RUNS
    assert results.begin("job").state() == {"value": newest.number - 1}
    # Others read the newest run under constant names.
    assert read(where, "report.html") == f"page {newest.number - 1}".encode()
    with fsspec.open(f"{where}/values.parquet", "rb") as file:
        assert pd.read_parquet(file).value.to_list() == [newest.number - 1]


def test_of_two_runs_at_once_the_later_one_publishes_nothing(where: str) -> None:
    publish(where, 1)
    first, second = Results(where).begin("job"), Results(where).begin("job")
    for draft, text in ((first, "first"), (second, "second")):
        draft.put_page("report.html", text)
    first.commit()

    with pytest.raises(RunSuperseded, match="run it again"):
        second.commit()
    second.discard()

    assert read(where, "report.html") == b"first"
    assert Results(where).numbers() == [1, 2]
    assert len(Results(where).place.names("runs")) == 2


def test_links_follow_the_newest_run_although_a_run_died_before_it_moved_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(str(tmp_path), 1)
    with monkeypatch.context() as dying:
        dying.setattr("pipeline.results.runs._publish", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            publish(str(tmp_path), 2)
    assert (tmp_path / "report.html").read_text() == "page 1"
    assert parquet.read_table(tmp_path / "values.parquet").to_pylist() == [{"value": 1}]

    Results(tmp_path).publish()

    assert (tmp_path / "report.html").read_text() == "page 2"


def test_a_file_system_without_links_gets_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    for value in (1, 2):
        publish(str(tmp_path), value)

    assert (tmp_path / "report.html").read_text() == "page 2"
    assert json.loads((tmp_path / "latest.json").read_text())["run"] == 2


def test_results_of_another_job_are_refused(where: str) -> None:
    publish(where, 1)

    with pytest.raises(WrongResults, match="results of job"):
        Results(where).begin("audit")


def audit(logs: Path, out: str, *words: str) -> Result:
    asked = ["pipeline", "run", "audit", "--input", str(logs), "--output", out, "--json", *words]
    return CliRunner().invoke(main, asked, standalone_mode=True)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    faults = parse_faults("lost=2")
    generate(Fleet(hosts=3, streams=4, messages=200, days=1, seed=5, faults=faults),
             tmp_path / "logs")  # fmt: skip
    return tmp_path / "logs"


def test_an_audit_writes_to_any_store(logs: Path, where: str, tmp_path: Path) -> None:
    first, second = audit(logs, where), audit(logs, where)

    assert [first.exit_code, second.exit_code] == [1, 1], first.output
    reported = [json.loads(each.stdout) for each in (first, second)]
    assert [each["findings"] for each in reported] == [{"lost": 2}] * 2
    assert [each["files"] > 0 for each in reported] == [True, False]
    with fsspec.open(f"{where}/findings.parquet", "rb") as file:
        assert sorted(pd.read_parquet(file).kind) == ["lost", "lost"]
    assert b"<html" in read(where, "report.html")
    assert not list(Path.cwd().glob("memory:*"))


def test_results_below_the_logs_are_not_taken_for_logs(logs: Path) -> None:
    where, before = logs / "audit", find_files([str(logs)])
    reported = [json.loads(audit(logs, str(where), "--again").stdout) for _ in range(2)]
    copied = where / "live" / "events.parquet"
    copied.parent.mkdir()
    copied.write_bytes(b"")
    for name in ("latest.json", "announced.json"):  # of a store without links; of an alert
        (where / name).write_text("{}")
    found = find_files([str(logs)])

    assert [each["findings"] for each in reported] == [{"lost": 2}] * 2
    assert {each.path for each in found} == {each.path for each in before} | {str(copied)}


def test_an_address_that_nothing_knows_is_refused(logs: Path) -> None:
    done = audit(logs, "nowhere://lake/audit")

    assert done.exit_code == 2
    assert "nowhere" in done.stderr
    assert not Path("nowhere:").exists()


@pytest.mark.parametrize(("asked", "out"), [("", "out"), ("logs", "")])
def test_an_empty_address_is_not_the_working_directory(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str, out: str
) -> None:
    monkeypatch.chdir(tmp_path)

    done = CliRunner().invoke(main, ["pipeline", "run", "audit", "--input", asked, "--output", out])

    assert (done.exit_code, "is empty" in done.stderr) == (2, True)
    assert not (tmp_path / "_commits").exists()


def test_a_store_that_fails_is_one_sentence_with_its_address(
    logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoCredentials(Exception):
        """As those of the libraries of stores: no OSError."""

    def fail(*_: Any, **__: Any) -> None:
        raise NoCredentials("Unable to locate\n credentials")

    store = f"memory://results-{secrets.token_hex(8)}"
    monkeypatch.setattr(fsspec.get_filesystem_class("memory"), "ls", fail)
    done = audit(logs, store)

    assert done.exit_code == 70
    assert f"{store}: Unable to locate credentials" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_page_that_cannot_be_drawn_does_not_stop_an_audit(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> str:
        raise RuntimeError("no ink")

    monkeypatch.setattr(outcome, "audit_page", fail)

    done = audit(logs, str(tmp_path / "out"))

    assert done.exit_code == 1  # findings, and no failure
    assert "no ink" in (tmp_path / "out" / "report.html").read_text()
    assert parquet.read_table(tmp_path / "out" / "findings.parquet").num_rows == 2
