"""The jobs besides the audit without Java: nearly empty logs, and the same tables as by Spark."""

from __future__ import annotations

import datetime
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra qmd-msmq[spark] is not installed")
pytest.importorskip("duckdb", reason="the extra qmd-msmq[spark] is not installed")

import pandas as pd
import pyarrow as pa
from pyarrow import parquet

from pipeline.commands.jobs import run as commands
from pipeline.engines.local import LocalEngine
from pipeline.events import LogFile, Unreadable, check, find_files
from pipeline.generator import Fleet, generate, parse_faults
from pipeline.jobs.archive import Archive
from pipeline.jobs.dead_letters import dead_letters
from pipeline.jobs.incremental.memory import Memory
from pipeline.jobs.latency import latency
from pipeline.jobs.objectives import Objective
from pipeline.jobs.replay import Replay
from pipeline.jobs.slo import slo
from pipeline.jobs.trace import trace
from pipeline.jobs.traffic import traffic
from pipeline.report import page
from pipeline.report.archive_pages import archive_page
from pipeline.report.dead_letters_page import dead_letters_page
from pipeline.report.latency_page import latency_page
from pipeline.report.outcome import write_tables
from pipeline.report.slo_page import slo_page
from pipeline.report.trace_page import trace_page
from pipeline.report.traffic_page import traffic_page
from pipeline.results.runs import Results
from pipeline.source import schema
from tests.pipeline.foreign_fleet import DAY, MIDNIGHT
from tests.pipeline.test_odd_inputs import ABSURD_SIZES, GUID, INPUTS, SCHEMA, absurd, row

OBJECTIVE = Objective("stored", "accepted", 2000, 99.0, 30, "*", "*", "*")
WORK: dict[str, Any] = {
    "traffic": (partial(traffic, quota_bytes=10_000), traffic_page),
    "dead-letters": (dead_letters, dead_letters_page),
    "latency": (latency, latency_page),
    "slo": (partial(slo, objectives=[OBJECTIVE], now_ms=MIDNIGHT + DAY), slo_page),
}
MESSAGE = f"{GUID}\\7"


def run(
    engine: Any, job: str, files: list[LogFile], out: Path, *, is_drawn: bool = False
) -> dict[str, Any]:
    """Run a job on the files that it has not read, and publish its tables; draw its page."""
    work, drawn = WORK[job]
    draft = Results(out).begin(job)
    memory = Memory.load(draft)
    fresh = memory.unseen(files)
    tables: dict[str, Any] = work(engine, fresh, memory)
    write_tables(draft, tables, partial(drawn, tables) if is_drawn else lambda: "")
    memory.save(fresh)
    draft.commit()
    assert "could not be drawn" not in (out / "report.html").read_text()
    return tables


@pytest.mark.parametrize("job", WORK)
def test_logs_of_nearly_nothing_have_tables_and_a_page(job: str, tmp_path: Path) -> None:
    with LocalEngine(threads=1) as engine:
        for number, (name, rows) in enumerate(INPUTS.items()):
            logs, out = tmp_path / f"{number}", tmp_path / f"{number} out"
            logs.mkdir()
            parquet.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), logs / "events.parquet")
            files = find_files([str(logs)])
            once = run(engine, job, files, out, is_drawn=True)
            again = run(engine, job, files, out)  # nothing new
            assert same(once, again), name


#: Jobs with tests of their own: here, and in `test_odd_inputs.py`.
APART = {"audit", "trace", "archive", "replay"}


def test_every_job_and_every_page_is_tried_with_nearly_nothing() -> None:
    pages = {path.stem for path in Path(page.__file__).parent.glob("*_page*.py")}

    assert set(commands.commands) == WORK.keys() | APART
    assert pages == {
        *(f"{job.replace('-', '_')}_page" for job in WORK),
        *("audit_page", "trace_page", "archive_pages"),
    }


def test_an_archive_of_nearly_nothing_has_a_page(tmp_path: Path) -> None:
    """Journals without a row, with one, and with one in which everything is null."""
    names = schema.default_columns("messages")
    plain = schema.arrow_schema("messages", names)
    columns = pa.schema([field.with_nullable(True) for field in plain])
    arrived = datetime.datetime(2038, 1, 19, tzinfo=datetime.UTC)
    known = {"queue_manager": "g", "queue": "q;journal", "position": 1, "id": "g\\1"}
    inputs = {
        "nothing": [], "one": [known | {"arrived_at": arrived}], "nulls": [{}],
        "nulls and one": [{}, known | {"arrived_at": arrived}, {}],
    }  # fmt: skip
    with LocalEngine(threads=1) as engine:
        for name, rows in inputs.items():
            folder = tmp_path / name / "journal" / "day=2038-01-19" / "host=a"
            folder.mkdir(parents=True)
            full = [dict.fromkeys(columns.names) | each for each in rows]
            table = pa.Table.from_pylist(full, columns)
            parquet.write_table(table, folder / "a.parquet")
            archive = Archive(str(tmp_path / name / "archive"))
            tomorrow = datetime.date(2038, 1, 21)

            done = archive.compact(engine, str(tmp_path / name), today=tomorrow)
            queues = archive.contents(engine)
            replay = Replay(engine, archive, name.replace(" ", "-"), batch_rows=5)

            assert "<main>" in archive_page(archive.manifests(), queues, done), name
            assert replay.count() == sum(day.rows for day in done), name
            assert len(rows) - sum(day.rows for day in done) in (0, 1), name


def test_a_trace_of_nearly_nothing_has_a_page(tmp_path: Path) -> None:
    with LocalEngine(threads=1) as engine:
        for number, rows in enumerate(INPUTS.values()):
            path = tmp_path / f"{number}.parquet"
            parquet.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path)
            tables = trace(engine, find_files([str(path)]), MESSAGE)
            assert len(tables["events"]) <= len(rows)
            assert "<main>" in trace_page(tables, message=MESSAGE)


def test_sizes_and_times_that_no_message_has_are_unknown_or_the_nearest(
    engine: Any, tmp_path: Path
) -> None:
    path = tmp_path / "events.parquet"
    parquet.write_table(pa.Table.from_pylist(absurd(), schema=SCHEMA), path)
    files = find_files([str(path)])

    moved = run(engine, "traffic", files, tmp_path / "traffic")["by_hour"]
    took = run(engine, "latency", files, tmp_path / "latency")
    slo_tables = run(engine, "slo", files, tmp_path / "slo")

    messages = len(ABSURD_SIZES)
    assert moved.sent.sum() == moved.received.sum() == messages
    assert moved.sent_bytes.sum() == 700 + 300
    assert (moved.hour.min().year, moved.hour.max().year) == (1678, 2262)
    assert took["by_route"].messages.to_list() == [messages]
    assert took["by_route"].bytes.to_list() == [700 + 300]
    objective = slo_tables["objectives"].iloc[0]
    assert (objective.in_time, objective.after_tomorrow) == (3, 2)  # two of 2262


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("block", -1, "an event has the block -1, which no queue manager assigns"),
        ("block", 1 << 62, "which no queue manager assigns"),
        ("index", 1 << 32, "an event has the index 4294967296"),
        ("at_ms", None, "an event has no at_ms"),
    ],
)
@pytest.mark.parametrize("form", ["parquet", "ndjson"])
def test_a_log_with_an_event_without_a_place_or_a_time_is_broken(
    name: str, value: int | None, why: str, form: str, tmp_path: Path
) -> None:
    path = tmp_path / f"events.{form}"
    rows = [row("started"), row("accepted", **{name: value})]
    if form == "parquet":
        parquet.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path)
    else:
        path.write_text("\n".join(map(json.dumps, rows)))

    with pytest.raises(Unreadable, match=why):
        check(str(path), whole=True)


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        plain(one[name]) == plain(other[name]) for name in one
    )


def plain(table: Any) -> list[tuple[str, ...]]:
    """Return the rows of a table as texts, whatever the types of its columns."""
    table = table[sorted(table.columns)]
    return sorted(
        tuple("" if pd.isna(value) else f"{value:.6g}" if isinstance(value, float) else str(value)
              for value in row)
        for row in table.itertuples(index=False)
    )  # fmt: skip


def test_spark_and_this_process_have_the_same_tables(spark: Any, tmp_path: Path) -> None:
    fleet = Fleet(hosts=4, streams=6, messages=400, days=2, seed=3, faults=parse_faults("everyday"))
    generate(fleet, tmp_path / "logs")
    odd = tmp_path / "logs" / "odd.parquet"
    parquet.write_table(pa.Table.from_pylist(absurd(), schema=SCHEMA), odd)
    files = find_files([str(tmp_path / "logs")])
    half = len(files) // 2

    with LocalEngine() as engine:
        for job in WORK:
            # Only in latency is the part that continues after a night a query.
            for some in (files[:half], files) if job == "latency" else (files,):
                ours = run(engine, job, some, tmp_path / f"{job} embedded")
                theirs = run(spark, job, some, tmp_path / f"{job} spark")
                assert same(ours, theirs), job
        events = parquet.read_table(files[0].path, columns=["message_id"])
        usual = next(filter(None, events.column("message_id").to_pylist()))
        for message in (usual, f"{GUID}\\4"):
            assert same(trace(engine, files, message), trace(spark, files, message))
