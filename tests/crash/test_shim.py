"""The shim itself: its log is complete, and its faults happen at the chosen acts."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.crash.disk import Loss, PowerlessDisk
from tests.crash.machine import Machine
from tests.crash.shim import Fault, WriteLog
from tests.crash.workload import Workload

# The reasons of SQLite in a commit, and those of the system in a checkpoint.
EIO = ("disk I/O error", "Input/output error")
ENOSPC = ("database or disk is full", "No space left on device")

NOT_LOGGED = {"lock", "reserve", "mark"}  # the mark is written through a memory mapping


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.name not in NOT_LOGGED and not path.name.endswith("-shm")
    }


@pytest.mark.parametrize("at", [40, 400])
def test_the_log_matches_the_disk(machine: Machine, folder: Path, at: int):
    with Workload(machine, seed=1) as workload:
        workload.run(Fault("kill", at, "w"))
    disk = PowerlessDisk(machine.data)
    for record in machine.log.records():
        if record.kind not in "km":
            disk.feed(record)

    (folder / "again").mkdir()
    disk.write(folder / "again", Loss.NOTHING, random.Random(1))

    assert files(folder / "again") == files(machine.data)
    assert len(files(machine.data)) >= 2


def test_a_process_is_killed_at_the_chosen_act(machine: Machine):
    with Workload(machine, seed=1) as workload:
        assert not workload.run(Fault("kill", 30, "s"))

    assert machine.ended() == -9
    assert machine.count.value == 30
    assert sum(record.kind == "s" for record in machine.log.records()) == 29


@pytest.mark.parametrize(
    ("fault", "reasons"),
    [
        (Fault("eio", 18, "s", times=0), EIO),
        (Fault("eio", 24, "s", times=0), EIO),
        (Fault("eio", 260, "w", times=0), EIO),
        (Fault("enospc", 260, "w", times=0), ENOSPC),
        (Fault("short", 260, "w", times=0), ENOSPC),
    ],
)
def test_a_failing_disk_stops_the_daemon_with_a_reason(
    machine: Machine, fault: Fault, reasons: tuple[str, ...]
):
    with Workload(machine, seed=1) as workload:
        assert not workload.run(fault)

    assert machine.ended() == 1
    (event,) = [event for event in machine.events() if event["level"] == "critical"]
    assert event["event"] == "storage_failed"
    assert any(words in str(event["reason"]) for words in reasons)
    assert "Nothing that was acknowledged is lost" in str(event["remedy"])


def test_an_incomplete_record_is_left_out(tmp_path: Path):
    log = WriteLog(tmp_path / "log")
    log.mark("before")
    whole = log.path.read_bytes()
    for cut in range(1, len(whole)):
        log.path.write_bytes(whole + whole[:cut] + whole)

        assert [json.loads(record.data) for record in log.records()] == ["before"] * 2, cut

    log.path.write_bytes(whole + whole[:-1])
    assert len(list(log.records())) == 1
