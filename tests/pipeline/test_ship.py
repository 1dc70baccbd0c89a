"""Shipments: every record once, and no removal before the record is at the target."""

from __future__ import annotations

import datetime
import json
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("fsspec")

from pipeline.commands.ship import _summary
from pipeline.ship.destination import Target
from pipeline.ship.shipment import Notes, Ship, ShipFailed, Shipped
from qmd.client import blocking
from tests.process.harness import Daemon

JOURNAL = "orders;journal"


class Killed(BaseException):
    """The run is killed here."""


class Deadly(Target):
    """A target at which a run dies: before or after it wrote file number `at`."""

    def __init__(self, where: str, at: int, *, after: bool) -> None:
        super().__init__(where)
        self._left = at
        self._after = after

    def write(self, name: str, table: Any) -> int:
        self._left -= 1
        if self._left == 0 and not self._after:
            raise Killed
        size = super().write(name, table)
        if self._left == 0:
            raise Killed
        return size


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path_factory.mktemp("ship") / "qmd")
    daemon.start()
    yield daemon
    daemon.terminate()


@pytest.fixture
def qm(daemon: Daemon) -> Iterator[blocking.Blocking]:
    with blocking.connect(daemon.folder / "qmd.sock") as qm:
        yield qm


def pass_through(qm: blocking.Blocking, queue: str, first: int, count: int) -> None:
    """Send messages and receive them, so that they are in the journal."""
    for number in range(first, first + count):
        qm.send(queue, b"%d" % number, label=f"order {number}")
    assert len(qm.receive_many(queue, count, timeout_s=5)) == count


def ship_all(qm: blocking.Blocking, target: Target, notes: Notes) -> None:
    ship = Ship(qm, target, notes)
    ship.events()
    ship.journal(JOURNAL, reader="ship", remove=True)


def table_of(target: Target, kind: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name in target.names(f"{kind}/day=*/host=*/*.parquet"):
        rows += target.read(name).to_pylist()
    return rows


def test_every_event_and_message_is_shipped_once_with_any_kill(
    qm: blocking.Blocking, tmp_path: Path
) -> None:
    qm.create_queue("orders", journal=True)
    where = str(tmp_path / "lake")
    notes = Notes(tmp_path / "notes", where)
    sent = 0
    for cycle in range(8):
        pass_through(qm, "orders", sent, 5)
        sent += 5
        deadly = Deadly(where, 1 + cycle % 2, after=cycle % 4 >= 2)
        with pytest.raises(Killed):
            ship_all(qm, deadly, notes)
        if cycle == 5:  # its progress is no longer known
            for path in (tmp_path / "notes").glob("*.json"):
                path.unlink()
    ship_all(qm, Target(where), notes)

    target = Target(where)
    messages = table_of(target, "journal")
    assert [each["body"] for each in sorted(messages, key=lambda each: each["position"])] == [
        b"%d" % number for number in range(sent)
    ]
    assert qm.show_queue(JOURNAL)["messages"] == 0
    events = table_of(target, "events")
    keys = [(each["block"], each["index"]) for each in events]
    assert len(keys) == len(set(keys))
    known = {(each["block"], each["index"]) for each in qm.events_each()}
    newest = max(block for block, _ in keys)
    assert set(keys) == {key for key in known if key[0] <= newest}
    assert sum(each["kind"] == "sent" for each in events) == sent


def test_a_journal_that_is_only_read_is_not_changed(qm: blocking.Blocking, tmp_path: Path) -> None:
    qm.create_queue("kept", journal=True)
    pass_through(qm, "kept", 0, 4)
    where = str(tmp_path / "lake")
    for _ in range(2):
        Ship(qm, Target(where), Notes(tmp_path / "notes", where)).journal(
            "kept;journal", reader="look", remove=False
        )
        pass_through(qm, "kept", 4, 1) if len(table_of(Target(where), "journal")) == 4 else None
    assert [each["body"] for each in table_of(Target(where), "journal")] == [
        b"0", b"1", b"2", b"3", b"4"
    ]  # fmt: skip
    assert qm.show_queue("kept;journal")["messages"] == 5


def test_files_at_the_target_are_kept_by_age_and_not_shipped_again(
    qm: blocking.Blocking, tmp_path: Path
) -> None:
    where = str(tmp_path / "lake")
    notes = Notes(tmp_path / "notes", where)
    ship = Ship(qm, Target(where), notes)
    ship.events()
    first = ship.done.files
    assert first
    today = datetime.datetime.now(datetime.UTC).date()
    ship.retire(7, today=today)
    assert ship.done.removed_files == 0
    ship.retire(7, today=today + datetime.timedelta(days=9))
    assert ship.done.removed_files == first
    again = Ship(qm, Target(where), notes)
    again.events()
    assert not any(each["kind"] == "started" for each in table_of(Target(where), "events"))


def test_events_go_into_an_object_store_as_well(qm: blocking.Blocking, tmp_path: Path) -> None:
    where = f"memory://lake-{random.randrange(1 << 40)}"
    ship = Ship(qm, Target(where), Notes(tmp_path / "notes", where))
    ship.events()
    assert len(table_of(Target(where), "events")) == ship.done.events > 0


def test_the_command_ships_the_remains_of_killed_runs(
    daemon: Daemon, qm: blocking.Blocking, tmp_path: Path
) -> None:
    qm.create_queue("busy", journal=True)
    words = ("ship", "--to", str(tmp_path / "lake"), "--notes", str(tmp_path / "notes"))
    words += ("--journal", "busy;journal", "--remove", "--reader", "command")
    sent = 0
    for cycle in range(4):
        pass_through(qm, "busy", sent, 5)
        sent += 5
        process = daemon.spawn_cli(*words)
        time.sleep(0.4 + 0.2 * cycle)
        process.kill()
        process.communicate()
    daemon.cli(*words)
    assert b"0 messages shipped" in daemon.cli(*words).stdout
    target = Target(str(tmp_path / "lake"))
    rows = [each for each in table_of(target, "journal") if "busy" in each["queue"]]
    assert sorted(int(each["body"]) for each in rows) == list(range(sent))
    keys = [(each["block"], each["index"]) for each in table_of(target, "events")]
    assert len(keys) == len(set(keys))
    assert not list((tmp_path / "lake").rglob("*.part"))


def test_events_wait_for_their_shipping_if_configured(tmp_path: Path) -> None:
    settings = {"events": {"keep_unshipped": True, "age": "1m", "size": "1MB"}}
    daemon = Daemon(tmp_path / "qmd", settings=settings)
    daemon.start()
    with blocking.connect(daemon.folder / "qmd.sock") as qm:
        assert qm.pipeline.mark_shipped(1) == 1
        assert qm.pipeline.mark_shipped(0) == 1
    daemon.terminate()


def put_back(daemon: Daemon, backup: Path) -> None:
    """Restore the data of the backup, and start the daemon with them."""
    daemon.terminate()
    shutil.rmtree(daemon.folder / "data")
    shutil.copytree(backup, daemon.folder / "data")
    daemon.start()


def shipped(daemon: Daemon, lake: Path, *more: str, notes: str = "notes") -> Shipped:
    """Run one shipment of events and of the journal of `orders`."""
    folder = lake.with_name(notes)
    with blocking.connect(daemon.folder / "qmd.sock") as qm:
        noted = Notes(folder, str(lake))
        run = Ship(qm, Target(str(lake)), noted, new_epoch="new epoch" in more)
        run.events()
        if "journal" in more:
            run.journal(JOURNAL, reader="ship", remove=True)
        return run.done


@pytest.fixture
def own_daemon(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path / "qmd")
    daemon.start()
    yield daemon
    daemon.terminate()


@pytest.mark.parametrize("after", ["few", "as many", "many"])
@pytest.mark.parametrize("lost", ["nothing", "the notes", "the files"])
def test_a_restored_backup_is_detected_and_shipped_beside_the_existing_files(
    own_daemon: Daemon, tmp_path: Path, after: str, lost: str
) -> None:
    daemon, lake, backup = own_daemon, tmp_path / "lake", tmp_path / "backup"
    with blocking.connect(daemon.folder / "qmd.sock") as qm:
        qm.create_queue("orders", journal=True)
        pass_through(qm, "orders", 0, 5)
    assert shipped(daemon, lake, "journal").events
    daemon.terminate()
    shutil.copytree(daemon.folder / "data", backup)
    daemon.start()
    with blocking.connect(daemon.folder / "qmd.sock") as qm:
        pass_through(qm, "orders", 5, 10)
    assert shipped(daemon, lake, "journal").messages == 10
    before = {path: path.read_bytes() for path in lake.rglob("*.parquet")}
    if lost == "the notes":
        shutil.rmtree(tmp_path / "notes")
    if lost == "the files":
        shutil.rmtree(lake)

    put_back(daemon, backup)
    count = {"few": 1, "as many": 10, "many": 60}[after]
    with blocking.connect(daemon.folder / "qmd.sock") as qm:
        pass_through(qm, "orders", 100, count)
    with pytest.raises(ShipFailed) as refused:
        shipped(daemon, lake)
    assert refused.value.code == "ship_log_changed"
    assert "--new-epoch" in str(refused.value)
    reported = daemon.cli(
        "ship", "--to", str(lake), "--notes", str(tmp_path / "notes"), check=False
    )
    assert reported.returncode == 1
    assert b"a backup was restored" in reported.stderr

    done = shipped(daemon, lake, "journal", "new epoch")
    assert done.messages == count
    again = shipped(daemon, lake, "journal")  # and continues there, without a further report
    with blocking.connect(daemon.folder / "qmd.sock") as qm:
        pass_through(qm, "orders", 900, 3)
        known = {(each["block"], each["index"], each["at_ms"]) for each in qm.events_each()}
    assert shipped(daemon, lake, "journal").messages == 3

    kept = {path: path.read_bytes() for path in before if path.exists()}
    assert kept == ({} if lost == "the files" else before)  # nothing was overwritten
    assert again.messages == 0
    target = Target(str(lake))
    events = [(each["block"], each["index"], each["at_ms"]) for each in table_of(target, "events")]
    assert known <= set(events)
    assert len(events) == len(set(events))
    bodies = {int(each["body"]) for each in table_of(target, "journal")}
    assert bodies >= {*range(100, 100 + count), *range(900, 903)}


def test_notes_of_the_previous_release_are_read(daemon: Daemon, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    assert shipped(daemon, lake).events
    (note,) = (tmp_path / "notes").glob("*.json")
    reported = {key: each["last"] for key, each in json.loads(note.read_text()).items()}
    note.write_text(json.dumps(reported))

    assert shipped(daemon, lake).events == 0


def test_the_summary_counts_in_singular_and_plural() -> None:
    one = Shipped(events=1, messages=1, files=1, removed_files=1)
    assert _summary(one, dry_run=False) == (
        "1 event and 1 message shipped in 1 file, 1 old file removed"
    )
    assert _summary(Shipped(events=2), dry_run=True) == "2 events and 0 messages would be shipped"
