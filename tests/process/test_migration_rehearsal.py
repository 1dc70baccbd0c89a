"""The drain plan of docs/migration.md, followed with a fleet of three stand-ins under load.

Each of three old hosts sends to the queues of all three, all the time.  One after the other is
replaced by a daemon; one of them is cut back first, and replaced again.  Programs must receive
everything once, and in the order of each sender.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import windows_files
from tests.patience import END_S
from tests.process.harness import Daemon, Hosts, body
from tests.process.old_host import OldHost

QUEUE = "private$\\orders"
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
            time.sleep(0.02)

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

    def export(self, owner: OldHost) -> str:
        with self.turn:
            return str(owner.export(self.folder / f"{owner.name}.messages.jsonl"))

    def take(self, owner: OldHost) -> None:
        """Let the program at the new host receive all messages that are there."""
        found = self.new[owner.name].receive("orders")
        self.received[owner.name].extend(body(each) for each in found)

    # -- the steps of the manual --

    def import_definitions(self, owner: OldHost) -> None:
        file = self.folder / f"{owner.name}.json"
        queue = windows_files.queue("orders", journal=True)
        file.write_text(json.dumps(windows_files.collection(queue, computer=owner.name.upper())))
        daemon = self.new[owner.name]
        daemon.cli("migrate", "windows", "apply", str(file), "--yes")
        assert daemon.json("migrate", "windows", "plan", str(file)) == []

    def send_to_both(self, owner: OldHost) -> None:
        self.set_way(owner, "both")
        self.wait_for_load(owner)

    def compare(self, owner: OldHost, *options: str) -> bool:
        daemon = self.new[owner.name]
        arguments = ["migrate", "windows", "compare", self.export(owner), QUEUE, *options]
        return daemon.cli(*arguments, check=False).returncode == 0

    def cut_over(self, owner: OldHost) -> None:
        self.wait(lambda: self.compare(owner, "--later"))
        with self.turn:
            owner.receives = False
        self.wait_for_load(owner)
        self.set_way(owner, "new")
        self.wait_for_load(owner)
        daemon = self.new[owner.name]
        daemon.cli("migrate", "windows", "align", self.export(owner), QUEUE, "--yes")
        assert self.compare(owner, "--later")
        self.take(owner)
        self.wait_for_load(owner)
        self.take(owner)

    def cut_back(self, owner: OldHost) -> None:
        self.set_way(owner, "paused")
        with self.turn:
            owner.queue.clear()
        daemon = self.new[owner.name]
        count = daemon.count("orders")
        assert count, "some messages are not received yet"
        daemon.cli("resend", QUEUE, "--all", "--yes", "--to", owner.listener.destination("orders"))
        with self.turn:
            owner.accept(count)
        self.wait(lambda: not any(row["messages"] for row in daemon.json("outgoing", "list")))
        assert daemon.count("orders") == 0
        with self.turn:
            owner.receives = True
        self.set_way(owner, "old")
        self.wait_for_load(owner)


def owner_counts(fleet: Fleet, owner: OldHost) -> list[int]:
    return [sender.sent_to(owner) for sender in fleet.old]


@pytest.mark.slow
def test_three_hosts_are_replaced_under_load(hosts: Hosts, tmp_path: Path):
    fleet = Fleet(hosts, tmp_path)
    first, second, third = fleet.old
    for each in fleet.old:
        fleet.new[each.name] = hosts.daemon(delivery=QUICK)

    with fleet.load():
        for owner in (first, second, third):
            fleet.import_definitions(owner)
            fleet.send_to_both(owner)
            fleet.cut_over(owner)
            if owner is second:
                fleet.wait_for_load(owner)
                fleet.cut_back(owner)
                fleet.send_to_both(owner)
                fleet.cut_over(owner)
        fleet.wait_for_load(third)

    for sender in fleet.old:
        sender.settle()
    for owner in fleet.old:
        fleet.take(owner)
        for sender in fleet.old:
            prefix = f"{sender.name} ".encode()
            mine = [each for each in fleet.received[owner.name] if each.startswith(prefix)]
            assert mine == [prefix + b"%d" % n for n in range(1, sender.sent_to(owner) + 1)]
