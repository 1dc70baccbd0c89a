"""A real daemon notices messages that another program deletes from its database."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from typing import Any

import pytest

from tests.patience import END_S
from tests.process.harness import Daemon, Hosts

pytestmark = pytest.mark.process


def delete(daemon: Daemon, message: str) -> None:
    number = int(message.rpartition("\\")[2]).to_bytes(4, "little")
    with closing(sqlite3.connect(daemon.folder / "data" / "queues.db", timeout=30)) as db, db:
        gone = db.execute("DELETE FROM message WHERE substr(packet, 57, 4) = ?", (number,))
        assert gone.rowcount == 1


def vanished(daemon: Daemon, count: int) -> dict[str, Any]:
    """Wait until the status has so many vanished messages."""
    end = time.monotonic() + END_S
    while True:
        (status,) = daemon.json("status")
        if status["vanished_messages"] == count:
            return status
        assert time.monotonic() < end
        time.sleep(0.2)


def test_a_deleted_row_is_reported_while_the_daemon_runs_and_at_its_start(hosts: Hosts) -> None:
    daemon = hosts.daemon()
    daemon.create("orders")
    sent = daemon.send_all("private$\\orders", [b"%d" % n for n in range(5)])
    assert vanished(daemon, 0)["vanished_at_s"] is None

    delete(daemon, sent[1])
    assert vanished(daemon, 1)["vanished_at_s"]
    assert vanished(daemon, 1)["messages"] == 4, "the counts in memory follow"
    daemon.terminate()  # compares the log of events with the tables
    delete(daemon, sent[3])
    daemon.start()
    assert vanished(daemon, 2)["messages"] == 3, "the start took its counts from the tally"

    events = daemon.json("events", "tail", "--kind", "vanished")
    assert [each["message_id"] for each in events] == [sent[1], sent[3]]
    assert all(each["queue"] == "private$\\orders" for each in events)
    found = daemon.json("doctor", "--problems", check=False)
    assert any("have vanished" in each["text"] for each in found if each["check"] == "database")
    assert b"it was missed: its row had vanished" in daemon.cli("why", sent[1]).stdout
    log = daemon.log.read_text()
    assert log.count('"rows_vanished"') == 2
    assert all(json.dumps(sent[at]) in log for at in (1, 3))

    daemon.restart()
    vanished(daemon, 2)
    assert daemon.log.read_text().count('"rows_vanished"') == 2, "once for each"
