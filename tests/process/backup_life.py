"""Two daemons under load, with backups, restorations and kills at any moment.

    python -m tests.process.backup_life --rounds 50 [--seed N]

A sender hands transactional messages to a receiver, which keeps them in its queue.  Each round
makes a backup at one end while messages flow, and kills the backup, the daemon or the restoration
at a random moment; then it may restore the last complete backup of an end, or of both.

Checked are: a backup has every message that was in the queue before it began; after a restored
sender nothing arrives twice or out of order, and nothing of its backup is lost silently; after a
restored receiver, later messages are taken, in order.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.patience import END_S
from tests.process.harness import DEADXACT, Daemon, Hosts, body

SETTINGS = {"delivery": {"retry_first": "50ms", "retry_max": "300ms", "resend": ["1s"]}}
PAUSE_MAX_S = 0.8
LIFE_ROUNDS = 5


def eventually(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + END_S
    while not condition():
        assert time.monotonic() < deadline, f"no end within the time: {what}"
        time.sleep(0.1)


class Load(threading.Thread):
    """Sends messages with ascending numbers, and remembers those that were accepted."""

    def __init__(self, life: Life) -> None:
        super().__init__(daemon=True)
        self._life = life
        self._ends = threading.Event()
        self.start()

    def run(self) -> None:
        life = self._life
        while not self._ends.is_set():
            first = life.next_number
            life.next_number += 50
            lines = [b"%d" % number for number in range(first, first + 50)]
            sent = life.sender.cli(
                *("send", life.destination, "--each-line", "--transactional", "--dead-letter"),
                input=b"\n".join(lines) + b"\n",
                check=False,
            )
            if sent.returncode == 0:  # otherwise the daemon was killed: some may be there
                life.sent += range(first, first + 50)

    def end(self) -> None:
        self._ends.set()
        self.join()


class Life:
    """A sender and a receiver, and the required end of each message."""

    def __init__(self, hosts: Hosts, seed: int) -> None:
        self.random = random.Random(seed)
        self.receiver = hosts.daemon(**SETTINGS)
        self.receiver.create("orders", transactional=True)
        self.sender = hosts.daemon(**SETTINGS)
        self.destination = f"DIRECT=TCP:127.0.0.1:{self.receiver.port}\\private$\\orders"
        self.next_number = 1
        self.sent: list[int] = []  # in the history of the sender's folder
        self.lost: set[int] = set()  # with the folder of a receiver
        self.counts = dict.fromkeys(("backups", "killed", "restored"), 0)
        #: The last complete backup of each end: its number, and the messages that it must have.
        self.backups: dict[Daemon, tuple[int, list[int]]] = {}

    def target(self, daemon: Daemon) -> Path:
        target = daemon.folder.with_name(f"{daemon.folder.name}-backups")
        target.mkdir(exist_ok=True)
        return target

    def arrived(self) -> list[int]:
        return [int(body(message)) for message in self.receiver.peek("orders")]

    def round(self) -> None:
        load = Load(self)
        ends = [self.sender, self.receiver]
        for daemon in self.random.sample(ends, self.random.randint(1, 2)):
            self.back_up(daemon)
        load.end()
        restored = [each for each in ends if each in self.backups and self.random.random() < 0.6]
        if self.sender in restored:
            self.restore(self.sender)
            self.sent = list(self.backups[self.sender][1])
        if self.receiver in restored:
            self.restore_receiver()
        self.settle()

    def back_up(self, daemon: Daemon) -> None:
        """Make a backup under load; kill it, or its daemon, at some moment."""
        before = list(self.sent) if daemon is self.sender else self.arrived()
        options = ("--full",) if self.random.random() < 0.2 else ()
        command = daemon.spawn_cli("backup", str(self.target(daemon)), "--json", *options)
        victim = self.random.choice(["none", "none", "backup", "daemon"])
        if victim != "none":
            with contextlib.suppress(subprocess.TimeoutExpired):
                command.wait(self.random.random() * PAUSE_MAX_S)
            self.counts["killed"] += 1
        if victim == "backup":
            command.kill()
        if victim == "daemon":
            daemon.kill()
            self.start(daemon)
        output, _ = command.communicate(timeout=END_S)
        if command.returncode == 0:
            self.counts["backups"] += 1
            number = int(output.decode().partition('"number": ')[2].partition(",")[0])
            self.backups[daemon] = number, before
        else:
            assert victim != "none", f"the backup failed: {output!r}"

    def start(self, daemon: Daemon) -> None:
        """Start a daemon, as a service manager does: a backup locks the folder for a moment."""
        for _ in range(20):
            with contextlib.suppress(AssertionError):
                daemon.start()
                return
            assert "data_folder_in_use" in daemon.tail(), daemon.tail()
        raise AssertionError("the folder remains locked")

    def restore(self, daemon: Daemon) -> None:
        """Restore the last complete backup; a restoration may be killed first."""
        daemon.kill()
        number, _ = self.backups[daemon]
        arguments = ("restore", str(self.target(daemon)), "--number", str(number), "--replace")
        if self.random.random() < 0.5:
            command = daemon.spawn_cli(*arguments)
            with contextlib.suppress(subprocess.TimeoutExpired):
                command.wait(self.random.random() * PAUSE_MAX_S)
            command.kill()
            command.communicate()
        daemon.cli(*arguments)
        for left in daemon.folder.glob("data.replaced-*"):
            shutil.rmtree(left)
        self.start(daemon)
        self.counts["restored"] += 1

    def restore_receiver(self) -> None:
        _, before = self.backups[self.receiver]
        self.sender.kill()  # so that nothing arrives before the look at the queue
        present = self.arrived()
        self.restore(self.receiver)
        found = self.arrived()
        assert set(before) <= set(found), "a message of the backup is lost"
        assert found == present[: len(found)] or set(found) <= set(present), "made up"
        self.lost |= set(range(1, self.next_number)) - set(found)
        self.start(self.sender)

    def settle(self) -> None:
        """Wait until all messages have ended, with the command of the operator where needed."""
        while True:
            rows = self.sender.json("outgoing", "list")
            if not any(row["messages"] for row in rows):
                break
            if any(row["in_doubt"] for row in rows):
                self.sender.cli("outgoing", "restart", self.destination, "--yes")
            time.sleep(0.1)
        self.judge()

    def judge(self) -> None:
        arrived = self.arrived()
        assert arrived == sorted(set(arrived)), "twice, or out of order"
        dead = {int(body(each)) for each in self.sender.peek(DEADXACT)}
        missing = set(self.sent) - set(arrived) - dead - self.lost
        assert not missing, f"{len(missing)} messages are lost, such as {min(missing)}"
        assert self.sender.json("status")[0]["two_of_one_identity"] == []

    def end(self) -> None:
        """Check that both ends still take messages after all that."""
        last = self.next_number
        self.next_number += 1
        self.sender.send(self.destination, b"%d" % last, "--transactional")
        self.settle()
        assert self.arrived()[-1] == last


def live(seed: int, rounds: int) -> dict[str, int]:
    """Run a number of rounds with one seed; return how much happened."""
    hosts = Hosts()
    try:
        life = Life(hosts, seed)
        for _ in range(rounds):
            life.round()
        life.end()
        return life.counts
    except AssertionError as error:
        raise AssertionError(f"{error}\nseed {seed}\n{hosts.logs()}") from error
    finally:
        hosts.close()


def main() -> None:
    """Run lives of a few rounds each, because a receiver keeps all messages of its life."""
    parser = argparse.ArgumentParser(prog="python -m tests.process.backup_life")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 40))
    chosen = parser.parse_args()
    for first in range(0, chosen.rounds, LIFE_ROUNDS):
        seed = chosen.seed + first
        rounds = min(LIFE_ROUNDS, chosen.rounds - first)
        print(f"seed {seed}: {rounds} rounds, {live(seed, rounds)}", flush=True)


if __name__ == "__main__":
    main()
