"""Housekeeping of the daemon: failed acts are logged and retried, and do not stop the daemon."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from qmd.control import status as overview
from qmd.maintenance import disk_watch
from qmd.maintenance.expiry import Expiry
from qmd.maintenance.loop import MaintenanceLoop
from storage import Disk
from storage.errors import NoRoomForIt, StorageError
from tests.integration.managers import Host, Hosts, hosted, until

PASSING = [
    NoRoomForIt(),
    StorageError("a read failed"),
    OSError(5, "Input/output error"),
    MemoryError(),
]


@contextlib.contextmanager
def reaping(host: Host) -> Iterator[asyncio.Task[None]]:
    reaper = asyncio.create_task(host.maintenance.run())
    try:
        yield reaper
    finally:
        reaper.cancel()


@hosted
async def test_a_failed_round_is_retried(
    hosts: Hosts,
) -> None:
    """Each act fails at first: ending expired messages, making room, trimming events, vacuum."""
    a = await hosts.start()
    for error in PASSING:
        with pytest.MonkeyPatch.context() as monkeypatch:
            await fail_for_a_while(a, error, monkeypatch)


async def fail_for_a_while(a: Host, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = {"on": True}

    def faulty(act: Any) -> Any:
        async def attempted(*arguments: object) -> object:
            if failing["on"]:
                raise error
            return await act(*arguments)

        return attempted

    monkeypatch.setattr("qmd.maintenance.loop.INTERVAL_S", 0.01)
    monkeypatch.setattr("qmd.maintenance.loop.RETENTION_INTERVAL_S", 0.0)
    monkeypatch.setattr(Expiry, "reap", faulty(Expiry.reap))
    monkeypatch.setattr(MaintenanceLoop, "_give_back", faulty(MaintenanceLoop._give_back))
    monkeypatch.setattr(MaintenanceLoop, "_make_room", faulty(MaintenanceLoop._make_room))
    for name, task in a.retention.tasks.items():
        monkeypatch.setitem(a.retention.tasks, name, faulty(task))
    names = {"end expired messages", "make room", "give pages back", *a.retention.tasks}

    with structlog.testing.capture_logs() as lines, reaping(a) as reaper:
        await until(lambda: names <= a.housekeeping.failing.keys(), "the round fails")
        shown = overview.status(a.components)["housekeeping_failing"]
        failing["on"] = False
        await until(lambda: not a.housekeeping.failing, "all of it is done")

        assert not reaper.done()
    assert {each["act"] for each in shown} >= names
    said = [line["act"] for line in lines if line["event"] == "housekeeping_failed"]
    assert set(said) >= names
    assert len(said) == len(set(said)), "one that fails again and again is said once a minute"
    assert {line["act"] for line in lines if line["event"] == "housekeeping_done"} == set(said)


@hosted
async def test_a_bug_in_a_deferrable_act_is_logged_and_does_not_stop_the_daemon(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    a.world.forgives_bugs = True

    async def fail() -> None:
        raise ZeroDivisionError

    with structlog.testing.capture_logs() as lines:
        assert await a.housekeeping.attempt("trim", fail, otherwise=None) is None
        with pytest.raises(ZeroDivisionError):  # strict: this act ends messages
            await a.housekeeping.attempt("reap", fail, otherwise=None, is_strict=True)

    (line,) = [line for line in lines if line["event"] == "housekeeping_failed"]
    assert line["act"] == "trim"
    assert "Report this" in line["remedy"]


class LittleRoom(Disk):
    free = 1 << 40

    def free_bytes(self, folder: Path) -> int:
        return self.free


@hosted
async def test_a_full_disk_is_logged_at_its_begin_during_it_and_at_its_end(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    with pytest.MonkeyPatch.context() as monkeypatch:
        await fill_and_clear(a, monkeypatch)


async def fill_and_clear(a: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(a.storage._reserve, "_disk", little := LittleRoom())
    monkeypatch.setattr("storage.engine.reserve.ROOM_CHECK_INTERVAL_S", 0.0)
    watch = a.disk_watch

    with structlog.testing.capture_logs() as lines:
        watch.look()
        assert (watch.full_s, lines) == (None, [])
        little.free = 0
        watch.look()
        watch.look()
        watch.look()
        begun = [line["event"] for line in lines]
        assert begun == ["disk_full"]
        assert overview.status(a.components)["disk_full_s"] == 0
        monkeypatch.setattr(disk_watch, "REPEATED_S", 0.0)
        watch.look()
        assert len(lines) == 2
        little.free = 1 << 40
        watch.look()
        assert len(lines) == 2, "it may be full again in a moment"
        monkeypatch.setattr(disk_watch, "OVER_S", 0.0)
        watch.look()
        watch.look()
        assert [line["event"] for line in lines] == ["disk_full", "disk_full", "disk_has_room"]
    assert overview.status(a.components)["disk_full_s"] is None
    await a.settled()
    page = await a.event_log.read(
        cursor="", limit=100, last=0, queue="", kinds=["disk_full", "disk_has_room"],
        since_ms=0, until_ms=0, wait_s=0,
    )  # fmt: skip
    reported = [(event["kind"], event["message_id"]) for event in page["events"]]
    assert reported == [("disk_full", ""), ("disk_has_room", "")]
