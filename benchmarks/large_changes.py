"""The longest turn of the event loop while many messages change at once.

    TMPDIR=/dev/shm python -m benchmarks.large_changes [--messages N] [--only WORD]

Requests that are not uniform, and messages that end: express messages that leave, copies for
several queues, rejections, failures that a retry policy moves, messages that expire, are purged, or
were received by a client that leaves.  Shown is the processor time of the longest turn, which does
not depend on other programs as a wait does.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from benchmarks.stalls import LONG_S, PART, Act
from qmd.client import new_message
from qmd.operations.transaction import SETTLED_MAX
from tests.integration.managers import Hosts
from tests.process.control_client import ControlClient

RETRY = [3, None, 600.0]  # attempts, and seconds between them
NACK_ALL = 0x0F  # positive and negative acknowledgments of arrival and of receipt
SILENT = "DIRECT=TCP:127.0.0.9\\private$\\away"  # no program listens there


class LongestTurn:
    """The processor time of the longest turn of this thread's event loop."""

    def __init__(self) -> None:
        self.seconds = 0.0

    async def watch(self, work: asyncio.Future[None]) -> None:
        """Look after each turn, until `work` is done."""
        last = time.thread_time()
        while not work.done():
            await asyncio.sleep(0.0005)
            now = time.thread_time()
            self.seconds = max(self.seconds, now - last)
            last = now


class Changes:
    """Changes of many messages, by a client on a thread of its own."""

    def __init__(self, socket: Path, there: str, messages: int, turn: LongestTurn) -> None:
        """`there` is a queue of another queue manager."""
        self.messages, self.there = messages, there
        self._socket, self._turn = socket, turn
        self.client = self._connect()
        for name in ("plain", "one", "two", "three", "acks", "bound"):
            self.client.done("create_queue", f"private$\\{name}")
        self.client.done("create_queue", "private$\\strict", True)
        for name in ("plain", "strict"):
            self.client.done("set_queue", f"private$\\{name}", *[None] * 6, RETRY)

    def _connect(self) -> ControlClient:
        client = ControlClient(self._socket)
        client.sock.settimeout(LONG_S)
        return client

    def _measure(self, name: str, work: Act) -> None:
        self._turn.seconds = 0.0
        began = time.monotonic()
        work()
        took_s = time.monotonic() - began
        print(f"{name:44} {took_s:8.2f} s {1000 * self._turn.seconds:8.1f} ms", flush=True)

    def send(self, queue: str, *more: Any, part: int = 0, **properties: Any) -> None:
        """Send all messages to a queue in requests of `part` messages, one if 0."""
        row = msgspec.structs.astuple(new_message(queue, bytes(100), **properties))
        part = part or self.messages
        for at in range(0, self.messages, part):
            self.client.done("send", [row] * min(part, self.messages - at), *more)

    def _filled(self, name: str, **properties: Any) -> str:
        queue = f"private$\\{name}"
        self.client.done("purge_queue", queue)
        self.send(queue, part=PART, **properties)
        return queue

    def _taken(self, name: str, *more: Any, **properties: Any) -> tuple[str, list[int]]:
        queue = self._filled(name, **properties)
        taken: list[int] = []
        while len(taken) < self.messages:
            taken += [each[0] for each in self.client.done("take", queue, PART, 0, *more)]
        return queue, taken

    def run(self, only: str) -> None:
        """Prepare, do and measure each change with `only` in its name."""
        acknowledged = {"admin_queue": "private$\\acks", "acknowledge": NACK_ALL}
        for name, prepare in (
            ("nothing", lambda: lambda: time.sleep(1)),
            ("express to another host", lambda: self._send(self.there, delivery="express")),
            ("express to a host that is away", lambda: self._send(SILENT, delivery="express")),
            ("recoverable to another host", lambda: self._send(self.there)),
            ("each with a dead-letter queue", lambda: self._send(SILENT, dead_letter_queue="one")),
            ("copies for three queues", lambda: self._copies(delivery="recoverable")),
            ("express copies for three queues", lambda: self._copies(delivery="express")),
            ("rejected", lambda: self._rejected()),
            ("rejected by a commit", self._rejected_by_a_commit),
            ("failed, with a retry policy", self._failed),
            ("given back", self._given_back),
            ("received by a client that leaves", self._left),
            ("received in a transaction that aborts", self._aborted),
            ("received, acknowledged", lambda: self._removed(**acknowledged)),
            ("purged, acknowledged", lambda: self._purged(**acknowledged)),
            ("of a queue that is deleted", lambda: self._deleted(**acknowledged)),
            ("expire, acknowledged", lambda: self._expired(**acknowledged)),
            ("expire on their way", self._expired_outside),
            ("purged on their way", self._purged_outside),
        ):
            if only in name:
                self._measure(name, prepare())
                self.client.settle()

    def _send(self, queue: str, **properties: Any) -> Act:
        return lambda: self.send(queue, **properties)

    def _copies(self, **properties: Any) -> Act:
        several = ",".join(f"DIRECT=OS:.\\private$\\{name}" for name in ("one", "two", "three"))
        return self._send(several, **properties)

    def _rejected(self, **properties: Any) -> Act:
        queue, taken = self._taken("plain", **properties)
        return lambda: self.client.done("reject", queue, taken, "no")

    def _removed(self, **properties: Any) -> Act:
        queue, taken = self._taken("plain", **properties)
        return lambda: self.client.done("remove", queue, taken)

    def _begin(self) -> bytes:
        transaction = os.urandom(16)
        self.client.done("begin", transaction)
        return transaction

    def _rejected_by_a_commit(self) -> Act:
        transaction = self._begin()
        queue, taken = self._taken("strict", transaction)
        self.client.done("settle", transaction, queue, taken[:SETTLED_MAX], "", "no")
        return lambda: self.client.done("commit", transaction)

    def _failed(self) -> Act:
        queue, taken = self._taken("plain")
        return lambda: self.client.done("give_back", queue, taken, True, "no")

    def _given_back(self) -> Act:
        queue, taken = self._taken("plain")
        return lambda: self.client.done("give_back", queue, taken)

    def _left(self) -> Act:
        self._taken("plain")

        def leave() -> None:
            self.client.close()
            self.client = self._connect()
            while self.client.done("show_queue", "private$\\plain").get("taken"):
                time.sleep(0.05)
            time.sleep(1)

        return leave

    def _aborted(self) -> Act:
        transaction = self._begin()
        self._taken("strict", transaction)
        return lambda: self.client.done("abort", transaction)

    def _purged(self, **properties: Any) -> Act:
        queue = self._filled("plain", **properties)
        return lambda: self.client.done("purge_queue", queue)

    def _deleted(self, **properties: Any) -> Act:
        queue = self._filled("bound", **properties)
        return lambda: self.client.done("delete_queue", queue)

    def _expired(self, **properties: Any) -> Act:
        live_s = 5 + self.messages // 3000
        began = time.monotonic()
        queue = self._filled("two", time_to_be_received_s=live_s, dead_letter=True, **properties)

        def expire() -> None:
            while self.client.done("show_queue", queue)["messages"]:
                time.sleep(0.05)

        time.sleep(max(began + live_s - time.monotonic(), 0))
        return expire

    def _expired_outside(self) -> Act:
        live_s = 5 + self.messages // 3000
        began = time.monotonic()
        self.send(SILENT + "2", part=PART, time_to_reach_queue_s=live_s, dead_letter=True)

        def expire() -> None:
            while self.client.done("show_outgoing", SILENT + "2")["messages"]:
                time.sleep(0.05)

        time.sleep(max(began + live_s - time.monotonic(), 0))
        return expire

    def _purged_outside(self) -> Act:
        self.send(SILENT + "3", part=PART, dead_letter=True)
        return lambda: self.client.done("purge_outgoing", SILENT + "3")


async def measure(folder: Path, messages: int, only: str) -> None:
    """Measure the changes on one of two queue managers of this process."""
    sections = {
        "quotas": {"queue_bytes": 2 << 30, "computer_bytes": 8 << 30},
        "transactions": {"messages_bytes_max": 1 << 30},
        "memory": {"transactions_bytes": 2 << 30},
    }
    async with Hosts(folder) as hosts:
        host, other = await hosts.start("a", **sections), await hosts.start("b", **sections)
        await other.create("there")
        turn = LongestTurn()
        there = f"DIRECT=TCP:127.0.0.1:{other.port}\\private$\\there"

        def work() -> None:
            Changes(host.socket, there, messages, turn).run(only)

        working = asyncio.get_running_loop().run_in_executor(None, work)
        await turn.watch(working)
        await working
        sys.stdout.flush()
        os._exit(0)  # many messages are on their way


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large_changes")
    parser.add_argument("--messages", type=int, default=65_536)
    parser.add_argument("--only", default="", help="changes with this in their name")
    chosen = parser.parse_args(arguments)
    print(f"{'change':44} {'took':>10} {'longest turn':>11}")
    with (
        tempfile.TemporaryDirectory() as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(measure(Path(folder), chosen.messages, chosen.only))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
