"""The longest time for which large work keeps a small request waiting.

    python -m benchmarks.stalls [--messages N] [--queues N] [--only WORD]

A client of its own asks the daemon for its release, which needs neither the disk nor a queue, again
and again: its longest wait is the longest time for which the event loop was held.  Meanwhile the
daemon does one piece of large work: a request or a transaction with many messages, their expiry,
their resending after a reconnect, `why` about one of them, the status with many queues.  The goal
is at most 50 ms.  The quiet figure is that of a second without work, on the same machine.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable

from benchmarks.attacks import go_first
from tests.process.control_client import ControlClient
from tests.process.harness import Daemon, Hosts

PAUSE_S = 0.0005
GOAL_MS = 50
LONG_S = 600.0
MOST = 65_536  # messages in one request
PLAIN = "private$\\plain"
PART = 8192  # messages in a request, where the requests are not measured


Act = Callable[[], object]


class Bystander:
    """A client that asks for the release of the daemon all the time, on a thread of its own."""

    def __init__(self, daemon: Daemon) -> None:
        self._client = ControlClient(daemon.folder / "qmd.sock")
        self._client.sock.settimeout(LONG_S)
        self.waits: list[float] = []
        self._ends = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ends:
            began = time.monotonic()
            self._client.done("hello")
            self.waits.append(time.monotonic() - began)
            time.sleep(PAUSE_S)

    def end(self) -> list[float]:
        """Return the waits in milliseconds, ascending."""
        self._ends = True
        self._thread.join()
        self._client.close()
        return sorted(1000 * each for each in self.waits)


def measured(daemon: Daemon, name: str, work: Act) -> None:
    """Do the work, and print how long it took and how long the bystander waited."""
    bystander = Bystander(daemon)
    began = time.monotonic()
    work()
    took_s = time.monotonic() - began
    waits = bystander.end()
    over = "  more than the goal" if waits[-1] > GOAL_MS else ""
    p99 = waits[int(0.99 * (len(waits) - 1))]
    print(f"{name:44} {took_s:8.2f} s {p99:8.1f} {waits[-1]:8.1f} ms{over}", flush=True)


class Work:
    """The pieces of large work on one daemon."""

    def __init__(self, hosts: Hosts, messages: int, queues: int) -> None:
        self.messages, self.queues, self._created = messages, queues, 0
        quotas = {"queue": "2GB", "computer": "8GB"}
        self.daemon, self.other = hosts.daemon(quotas=quotas), hosts.daemon(quotas=quotas)
        self.daemon.create("plain", "expired")
        self.daemon.create("strict", transactional=True)
        self.other.create("there", transactional=True)
        go_first(self.daemon)
        self.client = ControlClient(self.daemon.folder / "qmd.sock")
        self.client.sock.settimeout(LONG_S)

    def send(self, count: int, queue: str, *properties: object, part: int = PART) -> str:
        """Send messages of 100 bytes; return the id of the first."""
        first = ""
        for at in range(0, count, part):
            some = min(part, count - at)
            row = [queue, bytes(100), *properties]
            ids = self.client.done("send", [row] * some)
            first = first or ids[0]
        return first

    def run(self, only: str) -> None:
        """Prepare, do and measure each piece of work with `only` in its name."""
        count, queues = self.messages, self.queues
        for name, prepare in (
            ("nothing", lambda: lambda: time.sleep(1)),
            ("a request of 65,536 messages", lambda: lambda: self.send(MOST, PLAIN, part=MOST)),
            ("a transaction of 65,536 messages", self._transaction),
            (f"why, among {count} messages", self._why),
            (f"expiry of {count} messages", self._expiry),
            (f"{count} messages after a reconnect", self._resend),
            (f"status with {queues} queues", lambda: self._listing("status")),
            (f"list of {queues} queues", lambda: self._listing("list_queues")),
        ):
            if only in name:
                measured(self.daemon, name, prepare())

    def _transaction(self) -> Act:
        transaction = os.urandom(16)
        self.client.done("begin", transaction)
        for _ in range(MOST // PART):
            rows = [["private$\\strict", bytes(100)]] * PART
            self.client.done("send", rows, b"", transaction)
        return lambda: self.client.done("commit", transaction)

    def _why(self) -> Act:
        first = self.send(self.messages, PLAIN)

        def ask() -> None:
            for _ in range(10):
                self.client.done("why", first)

        return ask

    def _expiry(self) -> Act:
        queue = "private$\\expired"
        began = time.monotonic()
        live_s = 10 + self.messages // 2000
        self.send(self.messages, queue, "", 1, 3, None, live_s)

        def expire() -> None:
            while self.client.done("show_queue", queue)["messages"]:
                time.sleep(0.05)

        time.sleep(max(began + live_s - time.monotonic(), 0))
        return expire

    def _resend(self) -> Act:
        there = f"DIRECT=TCP:127.0.0.1:{self.other.port}\\private$\\there"
        self.other.kill()
        self.send(self.messages, there, "", 2)

        def deliver() -> None:
            self.other.start()
            while self.client.done("status")["outgoing_messages"]:
                time.sleep(0.05)

        return deliver

    def _listing(self, verb: str) -> Act:
        numbers = [
            self.client.send("create_queue", f"private$\\many{number}")
            for number in range(self.queues - self._created)
        ]
        for number in numbers:
            self.client.reply(number)
        self._created = self.queues

        def ask() -> None:
            for _ in range(10):
                self.client.done(verb)

        return ask


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stalls")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--only", default="", help="work with this in its name")
    chosen = parser.parse_args(arguments)
    print(f"{'work':44} {'took':>10} {'p99':>8} {'longest wait':>8}")
    hosts = Hosts()
    try:
        Work(hosts, chosen.messages, chosen.queues).run(chosen.only)
    finally:
        hosts.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
