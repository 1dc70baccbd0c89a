"""Encrypted, incremental backups under load, restored on another host beside the original.

    python -m tests.process.clone_life --rounds 50 [--seed N]

Each round makes one to three backups of a sender while it sends, and kills some of them, or the
sender.  The last complete one is restored on a new host, after restorations that were killed.  Then
both send for a while, and the receiver may be killed.  The new host sends in the next round.

Checked are: nothing arrives twice; all of the backup and all that the new host accepted arrives, or
is a dead letter there; what the new host sends arrives in order; the original, which goes on as a
clone, is refused and says so.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import random
import subprocess
import threading
import time
from collections.abc import Iterator
from functools import partial

from tests.process.backup_life import LIFE_ROUNDS, PAUSE_MAX_S, SETTINGS, eventually
from tests.process.harness import DEADXACT, Daemon, Hosts, body


class Load(threading.Thread):
    """Sends messages with numbers in ascending order, and keeps those that were accepted."""

    def __init__(self, daemon: Daemon, destination: str, numbers: Iterator[int]) -> None:
        super().__init__(daemon=True)
        self._daemon, self._destination, self._numbers = daemon, destination, numbers
        self._ends = threading.Event()
        self.sent: list[int] = []
        self.start()

    def run(self) -> None:
        while not self._ends.is_set():
            taken = list(itertools.islice(self._numbers, 40))
            done = self._daemon.cli(
                *("send", self._destination, "--each-line", "--transactional", "--dead-letter"),
                input="".join(f"{number}\n" for number in taken).encode(),
                check=False,
            )
            if done.returncode == 0:  # otherwise the daemon was killed: some may be there
                self.sent += taken

    def end(self) -> None:
        self._ends.set()
        self.join()


class Lines:
    """The sender of each round, the receiver, and the messages that must arrive."""

    def __init__(self, hosts: Hosts, seed: int) -> None:
        self.random = random.Random(seed)
        self._hosts, self._next = hosts, 1
        self.receiver = hosts.daemon(**SETTINGS)
        self.receiver.create("orders", transactional=True)
        self.destination = f"DIRECT=TCP:127.0.0.1:{self.receiver.port}\\private$\\orders"
        self.sender = hosts.daemon(**SETTINGS)
        self.key = hosts.folder / "backup.key"
        self.sender.cli("storage", "key", str(self.key))
        self.target = hosts.folder / "backups"
        self.target.mkdir()
        self.accepted: list[int] = []
        self.counts = dict.fromkeys(("backups", "killed", "restored"), 0)

    def numbers(self) -> Iterator[int]:
        """Return numbers that no other load of this life uses."""
        self._next += 1_000_000
        return itertools.count(self._next)

    def round(self) -> None:
        load = Load(self.sender, self.destination, self.numbers())
        time.sleep(self.random.random())
        backup = None
        for _ in range(self.random.randint(1, 3)):
            backup = self._back_up(load) or backup
        if backup is None:
            load.end()
            self.accepted += load.sent
            return
        other = self._restored(backup[0])
        if self.random.random() < 0.4:
            self.receiver.restart()
            self.counts["killed"] += 1
        other.start()
        beside = Load(other, self.destination, self.numbers())
        time.sleep(2 * self.random.random())
        load.end()
        beside.end()
        self._settle(other)
        # It sends once more: without a message it would have no reason to connect.
        self.sender.send(self.destination, b"%d" % next(self.numbers()), "--transactional")
        status = partial(self.sender.json, "status")
        eventually(lambda: status()[0]["two_of_one_identity"], "the refusal of the clone")
        self.sender.kill()
        self.sender, self.accepted = other, backup[1] + beside.sent
        self._judge(beside.sent)

    def _back_up(self, load: Load) -> tuple[int, list[int]] | None:
        """Return the number of a complete backup, and what it must have."""
        before = self.accepted + load.sent
        options = ("--full",) if self.random.random() < 0.15 else ()
        words = ("backup", str(self.target), "--key", str(self.key), "--json", *options)
        command = self.sender.spawn_cli(*words)
        victim = self.random.choice(["none", "none", "backup", "daemon"])
        if victim != "none":
            self._after_a_while(command)
        if victim == "backup":
            command.kill()
        if victim == "daemon":
            self.sender.kill()
            command.wait()  # it locks the folder when no daemon has it
            self.sender.start()
        output, _ = command.communicate()
        if command.returncode:
            assert victim != "none", f"the backup failed: {output!r}"
            return None
        self.counts["backups"] += 1
        return json.loads(output)["number"], before

    def _restored(self, number: int) -> Daemon:
        """Return a new host with the backup; a restoration may be killed first."""
        other = self._hosts.daemon(start=False, **SETTINGS)
        words = ("restore", str(self.target), "--number", str(number), "--key", str(self.key))
        if self.random.random() < 0.5:
            command = other.spawn_cli(*words)
            self._after_a_while(command)
            command.kill()
            command.communicate()
        if not (other.folder / "data").exists():
            other.cli(*words)
        self.counts["restored"] += 1
        return other

    def _after_a_while(self, command: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            command.wait(self.random.random() * PAUSE_MAX_S)
        self.counts["killed"] += 1

    def _settle(self, daemon: Daemon) -> None:
        def is_settled() -> bool:
            rows = daemon.json("outgoing", "list")
            if any(row["in_doubt"] for row in rows):
                daemon.cli("outgoing", "restart", self.destination, "--yes")
            return not any(row["messages"] for row in rows)

        eventually(is_settled, "messages of the restored sender")

    def _judge(self, latest: list[int]) -> None:
        arrived = [int(body(message)) for message in self.receiver.peek("orders")]
        assert len(arrived) == len(set(arrived)), "twice"
        dead = {int(body(message)) for message in self.sender.peek(DEADXACT)}
        missing = set(self.accepted) - set(arrived) - dead
        assert not missing, f"{len(missing)} messages are lost, such as {min(missing)}"
        chosen = set(latest)
        ordered = [number for number in arrived if number in chosen]
        assert ordered == sorted(ordered), "out of order"


def live(seed: int, rounds: int) -> dict[str, int]:
    """Run a number of rounds with one seed; return how much happened."""
    hosts = Hosts()
    try:
        lines = Lines(hosts, seed)
        for _ in range(rounds):
            lines.round()
        return lines.counts
    except AssertionError as error:
        raise AssertionError(f"{error}\nseed {seed}\n{hosts.logs()}") from error
    finally:
        hosts.close()


def main() -> None:
    """Run lives of a few rounds each, because a receiver keeps all messages of its life."""
    parser = argparse.ArgumentParser(prog="python -m tests.process.clone_life")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 40))
    chosen = parser.parse_args()
    for first in range(0, chosen.rounds, LIFE_ROUNDS):
        seed = chosen.seed + first
        rounds = min(LIFE_ROUNDS, chosen.rounds - first)
        print(f"seed {seed}: {rounds} rounds, {live(seed, rounds)}", flush=True)


if __name__ == "__main__":
    main()
