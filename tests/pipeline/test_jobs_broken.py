"""Jobs with broken files or unwritable folders: they report the fault, and continue."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra qmd-msmq[spark] is not installed")
pytest.importorskip("pandas", reason="the extra qmd-msmq[spark] is not installed")

import pyarrow as pa
from click.testing import CliRunner, Result
from pyarrow import parquet

from pipeline import events
from pipeline.commands.job import LOCK
from pipeline.events import find_files
from pipeline.generator import Fleet, generate, parse_faults
from pipeline.jobs.archive import Archive
from pipeline.jobs.audit.findings import AuditSettings
from pipeline.jobs.audit.job import audit
from pipeline.jobs.audit.state import State
from qmd.cli import main
from qmd.cli.program import ExitCode

pytestmark = pytest.mark.timeout(1800)

DAY = "day=2026-09-21"


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the logs of five hosts without faults."""
    folder = tmp_path_factory.mktemp("healthy") / "logs"
    faults = parse_faults("expired=4,discarded=2")
    generate(Fleet(hosts=5, streams=12, messages=1200, days=1, seed=3, faults=faults), folder)
    return folder


@pytest.fixture
def logs(healthy: Path, tmp_path: Path) -> Path:
    """Return a copy of these logs, for a test that damages them."""
    folder = tmp_path / "logs"
    subprocess.run(["cp", "-r", str(healthy), str(folder)], check=True)
    return folder


def of_host(logs: Path, number: int) -> Path:
    (file,) = (logs / DAY / f"host=host00{number}").iterdir()
    return file


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def spoil(file: Path, group: int = 0) -> None:
    """Damage the middle of a file; its end, with the list of its parts, stays intact."""
    column = parquet.ParquetFile(file).metadata.row_group(group)
    at = next(
        column.column(n).data_page_offset
        for n in range(column.num_columns)
        if column.column(n).path_in_schema == "at_ms"
    )
    data = bytearray(file.read_bytes())
    data[at : at + 60] = b"\xff" * 60
    file.write_bytes(data)


def run(job: str, logs: Path, out: Path, *words: str) -> Result:
    asked = ["pipeline", "run", job, "--input", str(logs), "--output", str(out), *words]
    return CliRunner().invoke(main, asked, standalone_mode=True)


# The other jobs use the same function.
@pytest.mark.parametrize("job", ["traffic", "trace"])
def test_a_broken_file_is_named_and_the_others_are_read(
    engine: Any, logs: Path, tmp_path: Path, job: str
) -> None:
    table = parquet.read_table(of_host(logs, 1), columns=["kind", "message_id"])
    message = next(row["message_id"] for row in table.to_pylist() if row["kind"] == "sent")
    words = ("--message", message) if job == "trace" else ()
    broken = [2, 3] if job == "traffic" else [2]  # a trace skips unreadable parts
    cut(of_host(logs, 2))
    if 3 in broken:
        spoil(of_host(logs, 3))

    done = run(job, logs, tmp_path / "out", *words, "--json")

    assert done.exit_code == 0, done.output
    reported = json.loads(done.stdout)
    assert reported["broken_files"] == [str(of_host(logs, each)) for each in broken]
    assert all(rows for name, rows in reported["rows"].items() if name != "broken_files")
    page = (tmp_path / "out" / "report.html").read_text()
    assert "of host002" in page
    assert "could not be read" in page
    assert "ALL WELL" not in page
    table = parquet.read_table(tmp_path / "out" / "broken_files.parquet")
    assert table.column("host").to_pylist() == [f"host00{each}" for each in broken]


def test_a_file_with_truncated_lines_is_broken(logs: Path) -> None:
    lines = logs / "lines.ndjson"
    rows = parquet.read_table(of_host(logs, 4)).to_pylist()
    text = "\n".join(json.dumps(row, default=str) for row in rows)

    lines.write_text(text)
    events.check(str(lines))
    lines.write_text(text[:-30])

    with pytest.raises(events.Unreadable, match=f"line {len(rows)} is not an event"):
        events.check(str(lines))
    for line in ("17", '{"kind": "sent"}'):
        lines.write_text(line)
        with pytest.raises(events.Unreadable, match="line 1 "):
            events.check(str(lines))


def test_files_of_older_and_newer_releases(engine: Any, logs: Path, tmp_path: Path) -> None:
    old, more, newer = (of_host(logs, number) for number in (1, 2, 3))
    table = parquet.read_table(old)
    parquet.write_table(table.drop_columns(["schema", "label", "correlation_id", "peer"]), old)
    table = parquet.read_table(more)
    parquet.write_table(table.append_column("colour", pa.array(["red"] * len(table))), more)
    table = parquet.read_table(newer)
    at = table.schema.get_field_index("schema")
    parquet.write_table(table.set_column(at, "schema", pa.array([2] * len(table))), newer)

    done = run("dead-letters", logs, tmp_path / "out", "--json")
    audited = audit(engine, find_files([str(logs)]), State(), AuditSettings(tasks=2))

    assert json.loads(done.stdout)["broken_files"] == [str(newer)]
    assert "the events have version 2" in (tmp_path / "out" / "report.html").read_text()
    broken = audited.findings[audited.findings.kind == "broken_file"]
    assert broken.host.to_list() == ["host003"]
    assert "the events have version 2" in broken.detail.iloc[0]
    assert set(audited.findings.kind) <= {"broken_file", "no_log"}


def test_no_event_of_a_long_broken_file_is_used(
    engine: Any, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "SPLIT_BYTES", 20_000)  # several tasks read one file
    long, end = of_host(logs, 0), of_host(logs, 1)
    whole = parquet.read_table(long)
    parquet.write_table(whole, long, row_group_size=len(whole) // 4)
    assert long.stat().st_size > events.SPLIT_BYTES
    good = long.read_bytes()
    spoil(long, group=3)
    cut(end)
    state = State()

    files = find_files([str(logs)])
    broken = audit(engine, files, state, AuditSettings(tasks=4)).findings
    long.write_bytes(good)
    os.utime(long, (1, 1))
    mended = audit(engine, state.unseen(find_files([str(logs)])), state, AuditSettings(tasks=4))

    assert set(broken[broken.kind == "broken_file"].host) == {"host000", "host001"}
    assert set(broken.kind) <= {"broken_file", "no_log"}
    # If the first audit had kept the events of the good parts, they would now be present twice.
    assert set(mended.findings.kind) <= {"broken_file", "no_log"}


def test_a_day_of_the_archive_is_made_without_the_broken_file(engine: Any, tmp_path: Path) -> None:
    day = tmp_path / "lake" / "journal" / "day=2026-01-02" / "host=a"
    day.mkdir(parents=True)
    for number in range(3):
        rows = {
            "queue_manager": ["q"], "queue": ["orders"], "position": [number], "body": [b"x"],
        }  # fmt: skip
        parquet.write_table(pa.table(rows), day / f"orders-{number}.parquet")
    broken = day / "orders-1.parquet"
    whole = broken.read_bytes()
    cut(broken)
    archive, lake = Archive(str(tmp_path / "archive")), str(tmp_path / "lake")
    from datetime import date

    (first,) = archive.compact(engine, lake, today=date(2026, 1, 5))
    broken.write_bytes(whole)
    (second,) = archive.compact(engine, lake, today=date(2026, 1, 5))
    (third,) = archive.compact(engine, lake, today=date(2026, 1, 5))

    assert [Path(file) for file, _ in first.broken] == [broken]
    assert (first.rows, second.rows, third.rows) == (2, 3, 3)
    assert third.was_done
    assert not second.broken


def test_a_job_without_files_reports_that(engine: Any, logs: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for file in logs.rglob("*.parquet"):
        cut(file)

    missing = run("traffic", tmp_path / "nowhere", tmp_path / "out")
    empty = run("traffic", tmp_path / "empty", tmp_path / "out")
    broken = run("traffic", logs, tmp_path / "out")

    assert [each.exit_code for each in (missing, empty, broken)] == [3, 3, 3]
    assert "does not exist" in missing.stderr
    assert "no .parquet and no .ndjson" in empty.stderr
    assert "none of 5 files can be read" in broken.stderr


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=20k", "none", str(folder)], capture_output=True
    )
    if made.returncode:
        pytest.skip("only root can make a small disk")
    yield folder
    subprocess.run(
        ["umount", "--lazy", str(folder)], check=True
    )  # a worker may have it as its current folder


def test_a_full_disk_leaves_the_last_results_as_they_were(
    engine: Any, logs: Path, tmp_path: Path, small_disk: Path
) -> None:
    out = small_disk / "out"
    out.mkdir()
    (out / "report.html").write_text("the last one")
    (out / "findings.parquet").write_text("and its table")

    done = run("audit", logs, out)

    assert done.exit_code == ExitCode.NOT_DONE
    assert "No space left" in done.stderr
    assert (out / "report.html").read_text() == "the last one"
    assert (out / "findings.parquet").read_text() == "and its table"
    names = {each.name for each in out.iterdir()}
    assert names == {LOCK, "findings.parquet", "report.html"}


def test_a_folder_that_cannot_be_written_is_reported_before_the_work(
    logs: Path, tmp_path: Path
) -> None:
    taken = tmp_path / "taken"
    taken.write_text("a file")

    # The exit code 1 of an audit means findings.
    for job, code in (("audit", ExitCode.NOT_DONE), ("latency", ExitCode.FAILED)):
        done = run(job, logs, taken / "out")

        assert done.exit_code == code
        assert "cannot be written" in done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("value", ["nan", "1e999", "-1", "a second"])
@pytest.mark.parametrize("words", [("run", "audit", "--clock-tolerance"), ("watch", "--every")])
def test_a_time_that_is_no_number_of_seconds_is_refused(
    words: tuple[str, ...], value: str, tmp_path: Path
) -> None:
    more = ("--input", str(tmp_path), "--output", str(tmp_path / "out"))
    done = CliRunner().invoke(main, ["pipeline", *words, value, *more])

    assert done.exit_code == 2, done.output
    assert f"Invalid value for '{words[-1]}'" in done.output
    assert not (tmp_path / "out").exists()
