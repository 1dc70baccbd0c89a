"""The archive of journals: a slice is replayed in order and once, although the job is killed."""

from __future__ import annotations

import datetime
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")
pytest.importorskip("sqlglot")

import pyarrow as pa
from click.testing import CliRunner
from pyarrow import parquet

from pipeline.engines.engine import WrongQuery
from pipeline.engines.local import LocalEngine
from pipeline.jobs.archive import Archive
from pipeline.jobs.archived_rows import rows_of
from pipeline.jobs.replay import Replay, ReplayFailed
from pipeline.ship.destination import Target
from pipeline.ship.shipment import Notes, Ship
from pipeline.source import schema
from qmd.cli import main
from qmd.client import blocking
from tests.process.harness import Daemon


class Killed(BaseException):
    """The job is killed here."""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path / "qmd")
    daemon.start()
    yield daemon
    daemon.terminate()


@pytest.fixture
def qm(daemon: Daemon) -> Iterator[blocking.Blocking]:
    with blocking.connect(daemon.folder / "qmd.sock") as qm:
        yield qm


def job(daemon: Daemon, *words: str) -> Any:
    """Run `qmd pipeline run ... --json` in this process; return its output."""
    command = ["--config", str(daemon.config), "pipeline", "run", *words, "--json"]
    done = CliRunner().invoke(main, command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def journaled(qm: blocking.Blocking, first: int, count: int) -> list[bytes]:
    """Send and receive messages; return the bodies in the order of the journal."""
    for number in range(first, first + count):
        qm.send(
            "orders",
            b"%d" % number,
            label="red" if number % 2 else "green",
            priority=number % 8,
            application_tag=number,
            correlation_id=bytes(19) + bytes([number % 256]),
            extension=b"more",
        )
    received = qm.receive_many("orders", count, timeout_s=5)
    assert len(received) == count
    return [message.body for message in received]


def die_after(batches: int) -> Callable[[int, int], None]:
    """Return a progress callback that kills the job after so many batches."""
    left = batches

    def count(sent: int, rows: int) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise Killed

    return count


def test_a_slice_is_replayed_in_order_and_once_with_all_properties(
    engine: LocalEngine, daemon: Daemon, qm: blocking.Blocking, tmp_path: Path
) -> None:
    qm.create_queue("orders", journal=True)
    qm.create_queue("again", transactional=True)
    qm.create_queue("green")
    lake, tomorrow = str(tmp_path / "lake"), datetime.date.today() + datetime.timedelta(days=2)
    archive = Archive(str(tmp_path / "archive"))

    def ship() -> None:
        Ship(qm, Target(lake), Notes(tmp_path / "notes", lake)).journal(
            "orders;journal", reader="ship", remove=True
        )

    bodies = journaled(qm, 0, 20)
    ship()
    assert archive.compact(engine, lake, today=datetime.date(2000, 1, 1)) == []
    assert sum(day.rows for day in archive.compact(engine, lake, today=tomorrow)) == 20
    bodies += journaled(qm, 20, 10)  # these messages are late
    ship()
    assert sum(day.rows for day in archive.compact(engine, lake, today=tomorrow)) == 30
    assert all(day.was_done for day in archive.compact(engine, lake, today=tomorrow))
    assert len(list((tmp_path / "archive").glob("day=*/run=*"))) == len(archive.manifests())

    def replay() -> Replay:
        return Replay(engine, archive, "test-1", batch_rows=7)

    for batches in (1, 3):
        with pytest.raises(Killed):
            replay().run(qm, "again", progress=die_after(batches))
        plan = archive.plan("test-1")
        assert plan is not None
        plan["done"] -= 1  # the job was killed before it recorded its last batch
        archive.write_plan("test-1", plan)
    replay().run(qm, "again")
    messages = qm.peek("again", 0, 100)
    assert [message.body for message in messages] == bodies
    assert [b"%d" % message.application_tag for message in messages] == bodies
    assert {message.extension for message in messages} == {b"more"}
    assert all((message.label == "red") == (int(message.body) % 2) for message in messages)

    green = Replay(engine, archive, "test-2", where="label = 'green'")
    assert green.count() == 15
    assert green.run(qm, "green").sent == 15
    assert len(qm.peek("green", 0, 100)) == 15
    assert {each.priority for each in qm.peek("green", 0, 100)} == {0, 2, 4, 6}
    with pytest.raises(ReplayFailed) as other:
        Replay(engine, archive, "test-2", where="label = 'red'").run(qm, "green")
    assert other.value.code == "job_was_other"

    replay_with_jobs(daemon, qm, tmp_path, lake)
    assert sum(len(each) for each in archive.plan_days(lake, today=tomorrow).values()) == 0


def replay_with_jobs(daemon: Daemon, qm: blocking.Blocking, folder: Path, lake: str) -> None:
    """Replay half of the archive with jobs of the command line, with tables and pages."""
    qm.create_queue("red")
    where, report = str(folder / "archive"), folder / "report"
    asked = ("replay", "--input", where, "--output", str(report), "--to", "red", "--job-id", "3")
    red = (*asked, "--where", "label = 'red'")
    assert job(daemon, *red, "--dry-run")["messages"] == 15
    assert not report.exists()
    report.write_text("a file")
    unwritable = CliRunner().invoke(main, ["--config", str(daemon.config), "pipeline", "run", *red])
    assert (unwritable.exit_code, qm.peek("red", 0, 100)) == (1, [])
    report.unlink()
    assert job(daemon, *red)["sent"] == 15
    assert job(daemon, *red)["sent"] == 0
    assert len(qm.peek("red", 0, 100)) == 15
    sent = parquet.read_table(report / "slice.parquet")
    assert sum(sent.column("messages").to_pylist()) == 15
    assert "red has 15 messages: all of the slice" in (report / "report.html").read_text()
    days = job(daemon, "archive", "--input", lake, "--output", where)["days"]
    assert all(
        day["was_done"] for day in days
    )  # today is not over, and all earlier days are archived
    page = (folder / "archive" / "_report" / "report.html").read_text()
    assert "30 messages of" in page


CONDITIONS = [
    "", "label = 'red'", "label LIKE 'r\\\\_%' OR label == 'grün'", "label NOT LIKE '%e%'",
    "queue = 'private$\\\\orders;journal' AND position BETWEEN 2 AND 7", "sequence.number > 3",
    "array_contains(acknowledge, 'positive_arrival')", "sequence <=> NULL", "label RLIKE '^g.*n$'",
    "arrived_at >= '2038-01-19 03:14:15'", "arrived_at < timestamp'2038-01-19 03:14:10'",
    "cast(body AS string) = 'xxx'", 'label = "red" OR id IN (\'g\\\\2\')',
]  # fmt: skip


def journals(lake: Path) -> None:
    """Write journals of one day: two files with rows in common, and one of an older release."""
    names = schema.default_columns("messages")
    of_rows = schema.arrow_schema("messages", names)
    folder = lake / "journal" / "day=2038-01-19" / "host=a"
    folder.mkdir(parents=True)
    begin = datetime.datetime(2038, 1, 19, 3, 14, 7, tzinfo=datetime.UTC)
    empty = {"string": "", "bool": False, "binary": b"", "list<element: string>": []}

    def row(at: int, number: int) -> dict[str, Any]:
        plain = {field.name: empty.get(str(field.type), 0) for field in of_rows}
        return plain | {
            "queue_manager": "g", "queue": "private$\\orders;journal", "position": at,
            "id": f"g\\{number}", "label": ("red", "grün", "r_")[number % 3], "body": b"x" * at,
            "sent_at": begin, "arrived_at": begin + datetime.timedelta(seconds=at),
            "acknowledge": ["positive_arrival"] * (number % 2), "correlation_id": None,
            "sequence": {"id": 2**64 - 1, "number": at, "previous": 0} if at % 2 else None,
        }  # fmt: skip

    def write(name: str, rows: list[dict[str, Any]], columns: list[str]) -> None:
        table = pa.Table.from_pylist(rows, of_rows).select(columns)
        parquet.write_table(table, folder / f"{name}.parquet", row_group_size=4)

    write("a", [row(n, n) for n in range(10)], list(names))
    # Positions that a restored backup has assigned again, to other messages.
    write("b", [row(n, n) for n in range(5, 15)] + [row(3, 99), row(4, 98)], list(names))
    write("c", [row(20, 20)], [name for name in names if name != "response_queues"])


def test_positions_that_are_assigned_again_are_other_messages(
    engine: LocalEngine, tmp_path: Path
) -> None:
    journals(tmp_path / "lake")
    archive = Archive(str(tmp_path / "archive"))

    [day] = archive.compact(engine, str(tmp_path / "lake"), today=datetime.date(2040, 1, 1))

    assert (day.rows, day.files) == (18, 3)
    rows = [*rows_of(engine).ordered(archive.runs(), "", ("position", "id"))]
    assert [(each["position"], each["id"]) for each in rows[3:7]] == [
        (3, "g\\3"), (3, "g\\99"), (4, "g\\4"), (4, "g\\98"),
    ]  # fmt: skip
    assert rows[3]["sequence"] == {"id": 2**64 - 1, "number": 3, "previous": 0}
    assert rows[-1]["response_queues"] is None
    with pytest.raises(ReplayFailed, match="no condition on the columns of messages"):
        Replay(engine, archive, "test", where="labl = 'red'").count()


def test_spark_and_this_process_archive_and_select_the_same(
    spark: Any, engine: LocalEngine, tmp_path: Path
) -> None:
    journals(tmp_path / "lake")
    today, order = datetime.date(2040, 1, 1), ("arrived_at", "position", "id")
    archives = [Archive(str(tmp_path / name)) for name in ("embedded", "spark")]
    for archive, by in zip(archives, (engine, spark), strict=True):
        archive.compact(by, str(tmp_path / "lake"), today=today)
    assert archives[0].contents(engine).equals(archives[1].contents(spark))

    # Each reads what the other one has written; their contents are the same.
    for archive, conditions in zip(archives, (CONDITIONS, CONDITIONS[-1:]), strict=True):
        for where in conditions:
            ours = [*rows_of(engine).ordered(archive.runs(), where, order)]
            theirs = [*rows_of(spark).ordered(archive.runs(), where, order)]
            assert [each["id"] for each in ours] == [each["id"] for each in theirs], where
            assert rows_of(engine).count(archive.runs(), where) == len(ours)
            assert 0 < len(ours) < 18 or not where, where
            for mine, other in zip(ours, theirs, strict=True):
                same = {name: value for name, value in mine.items() if not name.endswith("_at")}
                assert {name: plain(other[name]) for name in same} == same
    for wrong in ("labl = 1", "label = ", "label = 'a'; DROP TABLE b"):
        for by in (engine, spark):
            with pytest.raises(WrongQuery):
                rows_of(by).count(archives[0].runs(), wrong)


def plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray) else value


def test_a_second_run_into_an_archive_is_refused_while_one_is_at_work(tmp_path: Path) -> None:
    lake, where = tmp_path / "lake", tmp_path / "archive"
    journals(lake)
    day = lake / "journal" / "day=2020-01-19"  # in the past, so that the job takes it
    (lake / "journal" / "day=2038-01-19").rename(day)
    late = day / "host=a" / "d.parquet"
    os.mkfifo(late)  # the first run waits for its content
    words = ["pipeline", "run", "archive", "--input", str(lake), "--output", str(where)]
    first = subprocess.Popen([sys.executable, "-m", "qmd", *words])
    try:
        deadline = time.monotonic() + 120
        while not is_locked(where / ".lock"):
            assert first.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        second = CliRunner().invoke(main, words)
        planned = CliRunner().invoke(main, [*words, "--dry-run"])
    finally:
        first.kill()
        first.wait()
    late.unlink()
    third = CliRunner().invoke(main, words, catch_exceptions=False)

    assert second.exit_code == 4
    assert "QM-1820" in second.stderr
    assert f"another run writes to {where}" in second.stderr
    assert planned.exit_code == 0
    assert third.exit_code == 0, third.output
    assert Archive(str(where)).manifests()["2020-01-19"]["rows"] == 18


def is_locked(path: Path) -> bool:
    if not path.exists():
        return False
    with path.open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
