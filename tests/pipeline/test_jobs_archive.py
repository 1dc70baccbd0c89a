"""The archive of journals: a slice is replayed in order and once, although the job is killed."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from click.testing import CliRunner
from pyarrow import parquet

from pipeline.jobs.archive import Archive
from pipeline.jobs.replay import Replay, ReplayFailed
from pipeline.ship.destination import Target
from pipeline.ship.shipment import Notes, Ship
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
    spark: Any, daemon: Daemon, qm: blocking.Blocking, tmp_path: Path
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
    assert archive.compact(spark, lake, today=datetime.date(2000, 1, 1)) == []
    assert sum(day.rows for day in archive.compact(spark, lake, today=tomorrow)) == 20
    bodies += journaled(qm, 20, 10)  # these messages are late
    ship()
    assert sum(day.rows for day in archive.compact(spark, lake, today=tomorrow)) == 30
    assert all(day.was_done for day in archive.compact(spark, lake, today=tomorrow))
    assert len(list((tmp_path / "archive").glob("day=*/run=*"))) == len(archive.manifests())

    def replay() -> Replay:
        return Replay(spark, archive, "test-1", batch_rows=7)

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

    green = Replay(spark, archive, "test-2", where="label = 'green'")
    assert green.count() == 15
    assert green.run(qm, "green").sent == 15
    assert len(qm.peek("green", 0, 100)) == 15
    assert {each.priority for each in qm.peek("green", 0, 100)} == {0, 2, 4, 6}
    with pytest.raises(ReplayFailed) as other:
        Replay(spark, archive, "test-2", where="label = 'red'").run(qm, "green")
    assert other.value.code == "job_was_other"

    # The same with jobs of the command line, with tables and pages.
    qm.create_queue("red")
    where, report = str(tmp_path / "archive"), tmp_path / "report"
    asked = ("replay", "--input", where, "--output", str(report), "--to", "red", "--job-id", "3")
    red = (*asked, "--where", "label = 'red'")
    assert job(daemon, *red, "--dry-run")["messages"] == 15
    assert not report.exists()
    assert job(daemon, *red)["sent"] == 15
    assert job(daemon, *red)["sent"] == 0
    assert len(qm.peek("red", 0, 100)) == 15
    sent = parquet.read_table(report / "slice.parquet")
    assert sum(sent.column("messages").to_pylist()) == 15
    assert "All 15 messages of the slice are in red" in (report / "report.html").read_text()
    days = job(daemon, "archive", "--input", lake, "--output", where)["days"]
    assert all(
        day["was_done"] for day in days
    )  # today is not over, and all earlier days are archived
    page = (tmp_path / "archive" / "_report" / "report.html").read_text()
    assert "30 messages of" in page
    assert sum(len(each) for each in archive.plan_days(lake, today=tomorrow).values()) == 0
