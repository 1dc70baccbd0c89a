"""The steps of docs/migration.md, followed with a fleet of three stand-ins under load.

The commands are those of the manual, in its order.  Each of three old hosts sends to the queues of
all three, all the time.  One after the other is replaced by a daemon; on the way the ways back are
gone, too.  Programs must receive everything once, and in the order of each sender, although many
messages have the same text.
"""

from __future__ import annotations

import json
import re
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import windows_files
from tests.patience import END_S, LOOK_S
from tests.process.harness import Daemon, Hosts, body
from tests.process.migration_manual import CUT_BACK, printed_steps, read_steps
from tests.process.old_host import OldHost, body_of

ASKING = ("apply", "align", "resend", "purge", "delete")  # commands that ask for a yes
QUICK = {"resend": ["500ms"], "retry_first": "20ms", "retry_max": "100ms"}


class Fleet:
    """Three stand-ins, their senders in a thread, and the ways of their messages."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self.hosts, self.folder = hosts, folder
        self.old = [OldHost(name, hosts) for name in ("hosta", "hostb", "hostc")]
        self.new: dict[str, Daemon] = {}
        self.way = {each.name: "old" for each in self.old}  # "old", "both", "new" or "paused"
        self.received: dict[str, list[bytes]] = {each.name: [] for each in self.old}
        self.turn = threading.Lock()
        self.failure: BaseException | None = None
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._load)

    @contextmanager
    def load(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._ends.set()
            self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _load(self) -> None:
        try:
            while not self._ends.wait(0.02):
                with self.turn:
                    self._tick()
        except BaseException as failure:
            self.failure = failure

    def _tick(self) -> None:
        for owner in self.old:
            way = self.way[owner.name]
            for sender in self.old if way != "paused" else ():
                new = self.new[owner.name] if way in ("both", "new") else None
                sender.send(owner, old=way in ("old", "both"), new=new)
            for _ in range(4):  # one more than arrive, so that the queue is emptied
                if (received := owner.receive()) is not None:
                    self.received[owner.name].append(received)

    def wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + END_S
        while not condition():
            if self.failure is not None:
                raise self.failure
            assert time.monotonic() < deadline
            time.sleep(LOOK_S)

    def wait_for_load(self, owner: OldHost) -> None:
        """Wait until every sender has sent to a host some more."""
        before = owner_counts(self, owner)
        self.wait(
            lambda: all(
                now >= then + 3 for now, then in zip(owner_counts(self, owner), before, strict=True)
            )
        )

    def set_way(self, owner: OldHost, way: str) -> None:
        with self.turn:
            self.way[owner.name] = way
            for sender in self.old:
                sender.settle()

    # -- what the manual says --

    def follow(self, owner: OldHost, *numbers: int) -> None:
        """Follow steps of the manual, with what its text says besides the commands."""
        for number in numbers:
            commands = STEPS[number].commands
            if number == 3:
                self.wait(lambda commands=commands: all(self.run(owner, each) for each in commands))
                continue
            if number == 4:
                with self.turn:
                    owner.receives = False
                self.wait_for_load(owner)
            if number == CUT_BACK:
                self._cut_back(owner)
                continue
            for each in commands:
                assert self.run(owner, each), each
            if number == 7:
                self.take(owner)
                self.wait_for_load(owner)
                self.take(owner)

    def go_back(self, owner: OldHost, number: int) -> None:
        """Go the way back from a step."""
        if number == 2:
            self.set_way(owner, "old")
        if number == 4:
            with self.turn:
                owner.receives = True
        for each in STEPS[number].back:
            assert self.run(owner, each), each
        if number == 2:
            self.wait_for_load(owner)

    def _cut_back(self, owner: OldHost) -> None:
        self.set_way(owner, "paused")
        with self.turn:
            owner.queue.clear()
        count = self.new[owner.name].count("orders")
        assert count, "some messages are not received yet"
        resend, listed = STEPS[CUT_BACK].commands
        assert self.run(owner, resend)
        with self.turn:
            owner.accept(count)
        assert self.run(owner, listed)
        assert self.new[owner.name].count("orders") == 0
        self.set_way(owner, "old")
        with self.turn:
            owner.receives = True
        self.wait_for_load(owner)

    def run(self, owner: OldHost, command: str) -> bool:
        """Do what a command of the manual does; return whether it succeeds."""
        if command.startswith("DIRECT="):
            hosts = set(re.findall(r"OS:(host[an])\\", command))
            way = {("hosta", "hostn"): "both", ("hostn",): "new"}[tuple(sorted(hosts))]
            self.set_way(owner, way)
            self.wait_for_load(owner)
        elif command.startswith("qmd "):
            return self._run_here(owner, shlex.split(command)[1:])
        elif match := re.fullmatch(r"\.\\(\S+) (?:-Queue (.+) )?-Output (\S+)", command):
            script, queues, file = match.groups()
            if script == "Export-MsmqDefinition.ps1":
                self._collect(owner, self._file(owner, file))
            else:
                names = [each.strip(" '") for each in queues.split(",")]
                with self.turn:
                    parts = [each.removeprefix(".\\private$\\") for each in names]
                    owner.export(self._file(owner, file), parts)
        elif command.startswith("Get-MsmqQueue -Name 'orders'"):
            assert "| Set-MsmqQueue -Journaling $true -JournalQuota" in command
            with self.turn:
                owner.journals = True
        else:  # the stand-ins have no quota, and their senders are settled
            assert command.split()[0] in ("Set-MsmqQueueManager", "Get-MsmqOutgoingQueue"), command
        return True

    def _run_here(self, owner: OldHost, arguments: list[str]) -> bool:
        daemon = self.new[owner.name]
        there = f"DIRECT=TCP:127.0.0.1:{owner.listener.port}\\"
        arguments = [each.replace("DIRECT=OS:hosta\\", there) for each in arguments]
        arguments = [
            str(self._file(owner, each)) if each.startswith("hosta.") else each
            for each in arguments
        ]
        if arguments == ["outgoing", "list"]:
            self.wait(lambda: not any(row["messages"] for row in daemon.json(*arguments)))
            return True
        if set(ASKING) & set(arguments) and "--dry-run" not in arguments:
            arguments.append("--yes")
        done = daemon.cli(*arguments, check=False)
        # The senders send the same text again and again, so that the manual says: go on.
        return done.returncode == 0 or b"was sent at another time" in done.stdout

    def _file(self, owner: OldHost, name: str) -> Path:
        return self.folder / name.replace("hosta", owner.name)

    def _collect(self, owner: OldHost, file: Path) -> None:
        queue = windows_files.queue("orders", journal=owner.journals)
        file.write_text(json.dumps(windows_files.collection(queue, computer=owner.name.upper())))

    def take(self, owner: OldHost) -> None:
        """Let the program at the new host receive all messages that are there."""
        found = self.new[owner.name].receive("orders")
        self.received[owner.name].extend(body(each) for each in found)


def owner_counts(fleet: Fleet, owner: OldHost) -> list[int]:
    return [sender.sent_to(owner) for sender in fleet.old]


STEPS = read_steps()


@pytest.mark.parametrize("number", range(1, CUT_BACK + 1))
def test_the_drain_plan_has_the_commands_of_the_manual(number: int) -> None:
    assert printed_steps()[number] == STEPS[number]


def test_the_manual_has_no_other_steps() -> None:
    assert sorted(STEPS) == list(range(1, CUT_BACK + 1))
    assert all(part.commands for number, part in STEPS.items() if number != 4)
    assert [number for number, part in STEPS.items() if part.back] == [1, 2, 6]


@pytest.mark.slow
def test_three_hosts_are_replaced_under_load(hosts: Hosts, tmp_path: Path):
    fleet = Fleet(hosts, tmp_path)
    first, second, third = fleet.old
    for each in fleet.old:
        fleet.new[each.name] = hosts.daemon(delivery=QUICK)

    with fleet.load():
        for number in (1, 2, 4, 6):  # with each way back
            fleet.follow(first, number)
            fleet.go_back(first, number)
            fleet.follow(first, number)
            if number in (2, 4):
                fleet.follow(first, number + 1)
        fleet.follow(first, 7)
        fleet.follow(second, 1, 2, 3, 4, 5, 6, CUT_BACK, 2, 3, 4, 5, 6, 7)
        fleet.follow(third, 1, 2, 3, 4, 5, 6, 7)
        fleet.wait_for_load(third)

    for sender in fleet.old:
        sender.settle()
    for owner in fleet.old:
        fleet.take(owner)
        for sender in fleet.old:
            prefix = f"{sender.name} ".encode()
            mine = [each for each in fleet.received[owner.name] if each.startswith(prefix)]
            assert mine == [body_of(sender.name, n) for n in range(1, sender.sent_to(owner) + 1)]
