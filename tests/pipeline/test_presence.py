"""Messages that vanish: rows that are deleted, and backups that are restored, at real daemons.

Each test ships logs and inventories as `qmd ship` does, and audits them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra qmd-msmq[spark] is not installed")
pytest.importorskip("duckdb", reason="the extra qmd-msmq[spark] is not installed")

from pipeline.engines.local import LocalEngine
from pipeline.events import find_files
from pipeline.jobs.audit import presence
from pipeline.jobs.audit.findings import AuditResult, AuditSettings
from pipeline.jobs.audit.job import audit
from pipeline.jobs.audit.state import State
from pipeline.ship.destination import Target
from pipeline.ship.shipment import Notes, Ship
from qmd.client import blocking, new_message
from tests.patience import END_S
from tests.process.harness import Daemon

SOAK = bool(os.environ.get("QMD_SOAK"))  # `make soak-pipeline`

pytestmark = [pytest.mark.process, pytest.mark.timeout(1800)]


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + END_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def vanished(daemon: Daemon) -> int:
    """Return the number of messages whose rows a daemon misses."""
    rows: int = daemon.json("status")[0]["vanished_messages"]
    return rows


class Pair:
    """A sender and a receiver that ship to one lake."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lake = folder / "lake"
        self.sender, self.receiver = Daemon(folder / "sender"), Daemon(folder / "receiver")
        self.daemons = (self.sender, self.receiver)
        for daemon in self.daemons:
            daemon.start()
        self.receiver.create("orders", transactional=True)
        self.receiver.create("plain")
        self.state = State()

    def to(self, queue: str) -> str:
        return f"DIRECT=TCP:127.0.0.1:{self.receiver.port}\\private$\\{queue}"

    def send(self, queue: str, count: int) -> list[str]:
        """Send messages, and wait until the sender has none left; return their ids."""
        with blocking.connect(self.sender.folder / "qmd.sock") as qm:
            kind = "transactional" if queue == "orders" else "recoverable"
            sent = qm.send_many(
                [new_message(self.to(queue), f"{queue} {n}", delivery=kind) for n in range(count)]
            )
            until(lambda: not any(each["messages"] for each in qm.list_outgoing()))
        return [str(each) for each in sent]

    def receive(self, queue: str, count: int) -> list[str]:
        with blocking.connect(self.receiver.folder / "qmd.sock") as qm:
            return [str(each.id) for each in qm.receive_many(queue, count, timeout_s=30)]

    def ship(self, *some: Daemon, new_epoch: Daemon | None = None) -> None:
        for daemon in some or self.daemons:
            with blocking.connect(daemon.folder / "qmd.sock") as qm:
                notes = Notes(self.folder / f"notes of {daemon.folder.name}", str(self.lake))
                Ship(qm, Target(str(self.lake)), notes, new_epoch=daemon is new_epoch).events()

    def audit(self, state: State | None = None) -> AuditResult:
        state = state or State()
        files = state.unseen(find_files([str(self.lake)]))
        with LocalEngine(threads=1) as engine:
            settings, found = AuditSettings(tasks=2), presence.find([str(self.lake)])
            return audit(engine, files, state, settings, inventories=found)

    def close(self) -> None:
        for daemon in self.daemons:
            with contextlib.suppress(AssertionError):  # the log names rows that a test deleted
                daemon.kill()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.close()


def found(result: AuditResult) -> set[tuple[str, str]]:
    return set(zip(result.findings.kind, result.findings.message_id, strict=True))


def delete(daemon: Daemon, table: str, message: str) -> None:
    """Delete a row of a stopped daemon as a program does that changes its database."""
    number = int(message.rpartition("\\")[2]).to_bytes(4, "little")
    with closing(sqlite3.connect(daemon.folder / "data" / "queues.db")) as db, db:
        gone = db.execute(f"DELETE FROM {table} WHERE substr(packet, 57, 4) = ?", (number,))
        assert gone.rowcount == 1


def test_rows_that_are_deleted_are_found_in_any_night(pair: Pair) -> None:
    orders, plain = pair.send("orders", 6), pair.send("plain", 6)
    assert pair.receive("orders", 2) == orders[:2]
    pair.receiver.cli("queue", "purge", "private$\\plain", "--yes")
    plain = pair.send("plain", 4)
    pair.ship()
    nights = State()
    assert found(pair.audit(nights)) == set()

    pair.receiver.terminate()
    deleted_ms = int(time.time() * 1000)
    delete(pair.receiver, "message", orders[3])
    delete(pair.receiver, "message", plain[1])
    with blocking.connect(pair.sender.folder / "qmd.sock") as qm:
        waiting = [str(qm.send(pair.to("orders"), "x", delivery="transactional")) for _ in range(3)]
    pair.sender.terminate()
    delete(pair.sender, "outgoing", waiting[2])
    for daemon in pair.daemons:
        daemon.start()
    with blocking.connect(pair.receiver.folder / "qmd.sock") as qm:
        until(lambda: qm.show_queue("orders")["messages"] >= 4)
    until(lambda: vanished(pair.receiver) == 2)  # it counts soon after its start
    until(lambda: vanished(pair.sender) == 1)
    pair.ship()

    lost = {("vanished", each) for each in (orders[3], plain[1], waiting[2])}
    assert found(pair.audit()) == lost
    assert found(pair.audit(nights)) == lost
    assert found(pair.audit(nights)) == lost  # without a new file

    # The daemons have missed the rows themselves, and logged it: no inventory is needed.
    for path in pair.lake.glob("inventory/day=*/host=*/*.parquet"):
        path.unlink()
    seen = pair.audit().findings
    assert set(zip(seen.kind, seen.message_id, strict=True)) == lost
    where = {row.message_id: (row.queue, row.at_ms) for row in seen.itertuples()}
    assert where[orders[3]][0] == where[waiting[2]][0] == "private$\\orders"
    assert where[plain[1]][0] == "private$\\plain"
    assert all(at_ms >= deleted_ms for _, at_ms in where.values())


def backup_of(daemon: Daemon, to: Path) -> Path:
    """Stop a daemon, copy its folder, and start it again."""
    daemon.terminate()
    shutil.copytree(daemon.folder, to)
    daemon.start()
    return to


def restore(daemon: Daemon, backup: Path, peer: Daemon) -> None:
    """Replace the folder of a daemon by a backup; `peer` accepts it again."""
    daemon.kill()
    shutil.rmtree(daemon.folder)
    shutil.copytree(backup, daemon.folder)
    daemon.start()
    with blocking.connect(daemon.folder / "qmd.sock") as qm:
        own = str(qm.id)
    peer.cli("peer", "forget", own, "--yes")


@pytest.mark.parametrize("queue", ["orders"] + ["plain"] * SOAK)
def test_messages_that_a_restored_receiver_lost_are_named(
    pair: Pair, queue: str, tmp_path: Path
) -> None:
    pair.send(queue, 5)
    backup = backup_of(pair.receiver, tmp_path / "backup")
    rolled_back = pair.send(queue, 30)
    pair.receive(queue, 8)  # the five of before, and three that were received in time
    pair.ship()
    nights = State()
    assert found(pair.audit(nights)) == set()

    restore(pair.receiver, backup, pair.sender)
    pair.send(queue, 20)
    pair.ship(new_epoch=pair.receiver)

    lost = {("rolled_back", each) for each in rolled_back[3:]} | {("restored", None)}
    assert found(pair.audit()) == lost
    assert found(pair.audit(nights)) == lost


@pytest.mark.parametrize("queue", ["plain"] + ["orders"] * SOAK)
def test_messages_that_a_restored_sender_lost_are_named(
    pair: Pair, queue: str, tmp_path: Path
) -> None:
    pair.send(queue, 5)
    backup = backup_of(pair.sender, tmp_path / "backup")
    pair.send(queue, 20)
    pair.receiver.terminate()
    with blocking.connect(pair.sender.folder / "qmd.sock") as qm:
        kind = "transactional" if queue == "orders" else "recoverable"
        sent = [new_message(pair.to(queue), "lost", delivery=kind) for _ in range(7)]
        lost = [str(each) for each in qm.send_many(sent)]
    pair.ship(pair.sender)
    pair.sender.kill()
    pair.receiver.start()

    restore(pair.sender, backup, pair.receiver)
    pair.send(queue, 20)
    pair.ship(new_epoch=pair.sender)

    assert found(pair.audit()) == {("restored", None), *(("vanished", each) for each in lost)}


def test_exported_logs_show_a_restored_receiver_by_their_content(
    pair: Pair, tmp_path: Path
) -> None:
    pair.lake.mkdir()

    def export(daemon: Daemon, name: str) -> None:
        path = pair.lake / f"{name}.parquet"
        daemon.cli("events", "export", str(path), "--format", "parquet")

    twice = pair.send("orders", 5)
    backup = backup_of(pair.receiver, tmp_path / "backup")
    pair.send("orders", 30)
    pair.receive("orders", 8)
    export(pair.receiver, "before")
    restore(pair.receiver, backup, pair.sender)
    pair.send("orders", 20)
    pair.receive("orders", 10)
    export(pair.receiver, "after")
    export(pair.sender, "sender")

    # The backup still had the first five, so they were received again.
    assert found(pair.audit()) == {("restored", None), *(("ended_twice", each) for each in twice)}
