"""The audit log of a real daemon: requests, results, kills, and changes of its database."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.process.harness import Daemon


@pytest.fixture
def daemon(tmp_path: Path) -> Any:
    daemon = Daemon(tmp_path / "qmd").start()
    yield daemon
    daemon.kill()


def entries(daemon: Daemon) -> list[dict[str, Any]]:
    return daemon.json("audit-log", "show", "--all")


def requests(daemon: Daemon) -> list[str]:
    return [each["verb"] for each in entries(daemon) if each["kind"] == "request"]


def test_requests_of_operators_are_recorded_with_their_results(daemon: Daemon) -> None:
    daemon.create("orders", "other")
    daemon.send("orders", b"secret body", "--label", "secret label")
    daemon.cli("move", "orders", "other", "--all")
    daemon.cli("queue", "purge", "other", "--yes", "--dry-run")
    daemon.cli("queue", "delete", "nothing", "--yes", check=False)
    daemon.cli("queue", "create", "private$\\orders", check=False)

    found = entries(daemon)

    assert requests(daemon) == [
        "create_queue",
        "create_queue",
        "move",
        "delete_queue",
        "create_queue",
    ]
    results = {each["request"]: each for each in found if each["kind"] == "result"}
    outcomes = [
        (results[each["request"]]["result"], results[each["request"]]["code"])
        for each in found
        if each["kind"] == "request"
    ]
    assert outcomes == [
        ("done", ""),
        ("done", ""),
        ("done", ""),
        ("refused", "no_such_queue"),
        ("refused", "queue_exists"),
    ]
    (first, *_) = found
    assert first["arguments"]["name"] == "private$\\orders"
    assert "user" in first["who"]
    assert "process" in first["from"]
    assert "secret" not in json.dumps(found)


def test_a_request_that_was_answered_is_recorded_although_the_daemon_is_killed(
    daemon: Daemon,
) -> None:
    daemon.create("orders")
    daemon.kill()
    daemon.start()

    assert requests(daemon) == ["create_queue"]
    assert b"are intact" in daemon.cli("audit-log", "verify").stdout


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE audit_entry SET entry = replace(entry, 'orders', 'others') WHERE number = 1",
        "DELETE FROM audit_entry WHERE number = 2",
        "DELETE FROM audit_entry WHERE number > 2",
        "DELETE FROM audit_entry",
    ],
)
def test_a_changed_removed_or_replaced_entry_is_found(daemon: Daemon, change: str) -> None:
    daemon.create("orders", "other")
    (shown,) = daemon.json("audit-log", "verify")
    assert shown["intact"]
    assert daemon.cli("audit-log", "verify", "--head", shown["head"]).returncode == 0
    daemon.terminate()
    with closing(sqlite3.connect(daemon.folder / "data" / "queues.db")) as db, db:
        db.execute(change)
    daemon.start()

    result = daemon.cli("audit-log", "verify", "--head", shown["head"], check=False)

    assert result.returncode == 1
    assert b"was changed" in result.stderr


def test_a_level_of_the_log_changes_while_the_daemon_runs(daemon: Daemon) -> None:
    assert daemon.json("log", "level") == [{"default": "info", "names": {}}]
    daemon.create("first")
    assert "queue_created" in daemon.tail()

    (levels,) = daemon.json("log", "level", "qmd.operations", "error")
    assert levels == {"default": "info", "names": {"qmd.operations": "error"}}
    daemon.create("second")
    daemon.cli("log", "level", "qmd.operations", "default")
    daemon.create("third")

    created = [line for line in daemon.tail(100_000).splitlines() if "queue_created" in line]
    assert [("first" in line, "third" in line) for line in created] == [
        (True, False),
        (False, True),
    ]
    assert daemon.cli("log", "level", "qmd.nothing", "debug", check=False).returncode != 0
    assert "set_log_level" in requests(daemon)
