"""Messages that the disk returns damaged: they are set aside and reported, the rest is served."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.process.connection import Closed
from tests.process.data_folder import database
from tests.process.harness import DEADLETTER, Daemon, Hosts, body
from tests.process.peer import Peer
from tests.process.remote import Listener
from tests.process.test_two_daemons import wait_sent

BODIES = [b"<%d>" % number for number in range(10)]
VICTIM = 4  # in the middle, so that another message follows

# One bit of the body; the packet is still a message.
FLIP = "CAST(replace(packet, CAST('<4>' AS BLOB), CAST('<5>' AS BLOB)) AS BLOB)"
# Unreadable bytes.
ZEROS = "zeroblob(length(packet))"


@pytest.fixture
def daemon(hosts: Hosts) -> Daemon:
    daemon = hosts.daemon(delivery={"retry_first": "5ms", "retry_max": "20ms"})
    daemon.create("plain")
    daemon.create("orders", transactional=True)
    return daemon


def spoil(daemon: Daemon, table: str, how: str) -> None:
    """Change the victim's packet in the database while the daemon is stopped; start it again."""
    daemon.kill()
    with contextlib.closing(sqlite3.connect(database(daemon.folder))) as db:
        changed = db.execute(
            f"UPDATE {table} SET packet = {how} WHERE instr(packet, CAST('<{VICTIM}>' AS BLOB))"
        )
        assert changed.rowcount == 1
        db.commit()
    daemon.start()


def events(daemon: Daemon) -> list[dict[str, Any]]:
    # On a slow machine, the debug mode of asyncio writes lines in between.
    lines = [json.loads(line) for line in daemon.tail(100_000).splitlines() if line[:1] == "{"]
    return [line for line in lines if line["event"] == "messages_damaged"]


def damaged(daemon: Daemon) -> list[str]:
    """Return the findings of `qmd check` after a stop of the daemon."""
    assert daemon.terminate() == 0
    report = json.loads(daemon.cli("check", "--json", check=False).stdout)
    findings: list[str] = report["findings"]
    return findings


LEFT = [each for number, each in enumerate(BODIES) if number != VICTIM]


@pytest.mark.parametrize("how", [FLIP, ZEROS])
@pytest.mark.parametrize("queue", ["plain", "orders"])
def test_a_message_that_was_damaged_in_a_queue_is_not_delivered(
    daemon: Daemon, queue: str, how: str
):
    daemon.send_all(queue, BODIES)

    spoil(daemon, "message", how)

    assert [body(each) for each in daemon.peek(queue)] == LEFT
    assert daemon.bodies(queue) == LEFT
    assert daemon.count(queue) == 0
    (event,) = events(daemon)
    assert event["queue"] == f"private$\\{queue}"
    assert event["count"] == 1
    (finding,) = damaged(daemon)
    assert "it was set aside" in finding


@pytest.mark.parametrize("how", [FLIP, ZEROS])
@pytest.mark.parametrize("delivery", ["--recoverable", "--transactional"])
def test_a_damaged_outgoing_message_is_not_sent_and_the_others_are(
    hosts: Hosts, daemon: Daemon, delivery: str, how: str
):
    remote = hosts.remote()
    listener = remote.listen()
    daemon.send_all(listener.destination("q"), BODIES, delivery)

    spoil(daemon, "outgoing", how)

    peer = accepted(listener)
    messages = peer.receive_many(len(LEFT))
    assert [message.body for message in messages] == LEFT
    last = messages[-1].transaction
    if last is not None:
        peer.order_ack(last.sequence_id, last.number)
    wait_sent(daemon)
    (event,) = events(daemon)
    assert event["queue"] == listener.destination("q")
    (finding,) = damaged(daemon)
    assert "it was set aside" in finding


def accepted(listener: Listener) -> Peer:
    """Accept a session; the first connection belongs to the killed daemon."""
    while True:
        with contextlib.suppress(Closed):
            return listener.accept()


@pytest.mark.parametrize("how", [FLIP, ZEROS])
@pytest.mark.parametrize("where", ["message", "outgoing"])
def test_a_damaged_expired_message_is_no_dead_letter(
    hosts: Hosts, daemon: Daemon, where: str, how: str
):
    if where == "message":
        daemon.send_all("plain", BODIES, "--time-to-be-received", "1s")
    else:
        nowhere = hosts.remote().listen().destination("q")
        daemon.send_all(nowhere, BODIES, "--recoverable", "--time-to-reach-queue", "1s")

    spoil(daemon, where, how)

    dead = daemon.wait_for(DEADLETTER, len(LEFT))
    assert [body(each) for each in dead] == LEFT
    assert len(events(daemon)) == 1
    assert daemon.count("plain") == 0
    assert not any(row["messages"] for row in daemon.json("outgoing", "list"))


def test_a_folder_with_damaged_messages_can_be_repaired(daemon: Daemon, tmp_path: Path):
    daemon.send_all("plain", BODIES)
    spoil(daemon, "message", FLIP)
    assert len(daemon.peek("plain")) == len(LEFT)
    daemon.terminate()
    file = tmp_path / "saved.ndjson"

    daemon.cli("check", "--repair", str(file), check=False)

    lines = [json.loads(line) for line in file.read_text().splitlines()]
    aside = [line for line in lines if line["problem"]]
    assert len(lines) == len(BODIES)
    assert [body(line) for line in aside] == [b"<5>"]  # the packet as the disk returned it
    (daemon.folder / "data").rename(daemon.folder / "damaged")
    (daemon.folder / "data.repaired").rename(daemon.folder / "data")
    assert daemon.cli("check").returncode == 0
    daemon.start()
    assert daemon.bodies("plain") == LEFT
