"""A sender that is restored from a backup: no duplicates, and no loss without a report.

The receiver refuses sessions of the earlier run until an operator makes it forget the later one.
Then a sequence continues by itself where that is certain, and by a command where it is not.

"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.process.harness import DEADXACT, Hosts

# Short, so that the tests do not wait, and backups differ in their times.
SETTINGS = {"delivery": {"retry_first": "200ms", "retry_max": "500ms", "resend": ["1s"]}}


def eventually(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"no end within the time: {what}"
        time.sleep(0.1)


class Pair:
    """A sender with a folder that is copied and restored, and a receiver."""

    def __init__(self, hosts: Hosts) -> None:
        self.receiver = hosts.daemon()
        self.receiver.create("orders", transactional=True)
        self.sender = hosts.daemon(**SETTINGS)
        self.backup = self.sender.folder.with_name("backup")
        self.destination = f"DIRECT=TCP:127.0.0.1:{self.receiver.port}\\private$\\orders"

    def send(self, *bodies: bytes) -> None:
        for body in bodies:
            self.sender.send(self.destination, body, "--transactional")

    def outgoing(self) -> dict[str, Any]:
        (facts,) = self.sender.json("outgoing", "list")
        return facts

    def drained(self) -> None:
        eventually(lambda: self.outgoing()["messages"] == 0, "everything was acknowledged")

    def back_up(self) -> None:
        """Copy the folder of a stopped sender, which then continues."""
        self.sender.terminate()
        shutil.copytree(self.sender.folder, self.backup)

    def put_back(self) -> None:
        self.sender.terminate()
        # Sequence ids begin with the time in seconds. A backup is older than a second.
        time.sleep(1)
        shutil.rmtree(self.sender.folder)
        shutil.copytree(self.backup, self.sender.folder)
        self.sender.start()

    def forget(self) -> None:
        """Forget the later run at the receiver, as the status of the sender advises."""
        eventually(lambda: self.sender.json("status")[0]["two_of_one_identity"], "it is refused")
        (conflict,) = self.sender.json("status")[0]["two_of_one_identity"]
        assert "qmd session forget" in conflict["remedy"]
        assert "qmd session forget" in self.outgoing()["explanation"]
        self.receiver.cli("session", "forget", conflict["queue_manager"])

    def in_doubt(self) -> str:
        eventually(lambda: self.outgoing()["in_doubt"], "it is known to be in doubt")
        return str(self.outgoing()["explanation"])

    def restart(self, *options: str) -> dict[str, Any]:
        (done,) = self.sender.json("outgoing", "restart", self.destination, "--yes", *options)
        return done

    def arrived(self) -> list[bytes]:
        return self.receiver.bodies("orders")

    def dead(self) -> list[bytes]:
        return self.sender.bodies(DEADXACT)


@pytest.fixture
def pair(hosts: Hosts) -> Pair:
    return Pair(hosts)


def test_a_backup_without_unacknowledged_messages_continues_by_itself(pair: Pair) -> None:
    pair.send(b"1", b"2")
    pair.drained()
    pair.back_up()
    pair.sender.start()
    pair.send(b"3", b"4", b"5")
    pair.drained()

    pair.put_back()
    pair.send(b"6", b"7")
    pair.forget()
    pair.drained()
    pair.send(b"8")
    pair.drained()

    assert pair.arrived() == [b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"8"]
    assert pair.dead() == []
    assert pair.sender.json("status")[0]["two_of_one_identity"] == [], "it is over"


def hidden(pair: Pair) -> None:
    """Back up two unacknowledged messages, while the receiver is down."""
    pair.receiver.terminate()
    pair.send(b"2", b"3")
    pair.back_up()
    pair.receiver.start()
    pair.sender.start()
    pair.drained()


def same_sequence(pair: Pair) -> None:
    """Bring the receiver further in the sequence of the backup."""
    pair.receiver.terminate()
    pair.send(b"2", b"3")
    pair.back_up()
    pair.sender.start()
    pair.send(b"4", b"5")  # in the sequence of the waiting messages
    pair.receiver.start()
    pair.drained()


def later_sequence(pair: Pair) -> None:
    """Bring the receiver to a sequence that is not in the backup."""
    hidden(pair)
    pair.send(b"4", b"5")
    pair.drained()


@pytest.mark.parametrize("meanwhile", [same_sequence, later_sequence])
@pytest.mark.parametrize("send_again", [False, True], ids=["dead letters", "send again"])
def test_the_operator_decides_about_possibly_delivered_messages(
    pair: Pair, meanwhile: Callable[[Pair], None], send_again: bool
) -> None:
    pair.send(b"1")
    pair.drained()
    meanwhile(pair)
    pair.put_back()
    pair.forget()
    pair.send(b"6", b"7")

    said = pair.in_doubt()
    identity = pair.sender.send(pair.destination, b"8", "--transactional")
    assert "restored from a backup" in said
    assert "qmd outgoing restart" in said
    (why,) = pair.sender.json("why", identity, "--only-here")
    assert any("in doubt" in sentence for sentence in why["sentences"])
    assert any("qmd outgoing restart" in remedy for remedy in why["remedies"])
    status = pair.sender.cli("status", "--check", check=False)
    assert status.returncode == 1
    assert b"qmd outgoing restart" in status.stdout
    assert "sequence_in_doubt" in pair.sender.tail(100_000)
    assert pair.arrived() == [b"1", b"2", b"3", b"4", b"5"], "nothing was taken for something else"

    done = pair.restart(*(["--send-again"] if send_again else []))
    pair.drained()
    pair.send(b"9")
    pair.drained()

    assert done["in_doubt"] == 2
    again = [b"2", b"3"] if send_again else []
    assert pair.arrived() == [*again, b"6", b"7", b"8", b"9"]
    assert pair.dead() == ([] if send_again else [b"2", b"3"])
    assert pair.outgoing()["in_doubt"] is False
    assert pair.sender.cli("status", "--check").returncode == 0


def test_unacknowledged_messages_that_were_not_accepted_are_sent_by_themselves(pair: Pair) -> None:
    """Restore the backup before any of its messages was sent."""
    pair.send(b"1")
    pair.drained()
    pair.receiver.terminate()
    pair.send(b"2", b"3")
    pair.back_up()
    pair.sender.start()
    pair.put_back()
    pair.send(b"4")
    pair.receiver.start()
    pair.drained()

    assert pair.arrived() == [b"1", b"2", b"3", b"4"]
    assert pair.dead() == []


def test_a_kill_leaves_the_old_sequence_or_the_new_one(pair: Pair, tmp_path: Path) -> None:
    pair.send(b"1")
    pair.drained()
    later_sequence(pair)
    pair.put_back()
    pair.forget()
    pair.in_doubt()
    pair.send(b"6", b"7")

    for _ in range(3):
        pair.restart()
        pair.sender.restart()
    pair.drained()

    # A kill may precede the order ack of a delivered message.  The next command has no record of
    # the delivery, and makes a dead letter of that message too, as its reason says.
    arrived, dead = pair.arrived(), pair.dead()
    assert arrived == sorted(set(arrived)), "in order, and none twice"
    assert dead == sorted(set(dead)), "in order, and none twice"
    assert {b"1", b"2", b"3", b"4", b"5"} <= set(arrived)
    assert {b"2", b"3"} <= set(dead) <= {b"2", b"3", b"6", b"7"}
    assert {*arrived, *dead} == {b"%d" % number for number in range(1, 8)}, "none is lost"

    done = pair.restart()
    assert done["in_doubt"] == 0, "what was order-acknowledged is in doubt no more"
    assert (pair.arrived(), pair.dead()) == ([], []), "nothing more since"
