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
import gc
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
from qmd.daemon import GC_THRESHOLDS, SWITCH_INTERVAL_S
from qmd.operations.transaction import SETTLED_MAX
from tests.integration.managers import Hosts
from tests.process.control_client import ControlClient

RETRY = [3, None, 600.0]  # attempts, and seconds between them
DELIVERIES = ("express", "recoverable", "transactional", "automatic")
NACK_ALL = 0x0F  # positive and negative acknowledgments of arrival and of receipt
SILENT = "DIRECT=TCP:127.0.0.9\\private$\\away"  # no program listens there
LOCAL = "DIRECT=OS:.\\private$\\"
THREE = ("one", "two", "three")


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

    def __init__(
        self,
        socket: Path,
        there: str,
        back: tuple[Path, str],
        reap: Act,
        messages: int,
        turn: LongestTurn,
    ) -> None:
        """`there` is a queue of another queue manager; `back` is its socket, and the way to here.

        `back` ends with the path of a queue of here that is to be added.  `reap` ends the expired
        messages: the housekeeping that does so in a daemon is not running here.
        """
        self.messages, self.there = messages, there
        self._back, self._reap = back, reap
        self._socket, self._turn = socket, turn
        self.client = self._connect()
        for name in ("plain", *THREE, "acks", "bound", "journaled", "from_there"):
            self.client.done("create_queue", f"private$\\{name}")
        for name in ("strict", "strict_from_there"):
            self.client.done("create_queue", f"private$\\{name}", True)
        self.client.done("set_queue", "private$\\journaled", None, 4 << 30, True)
        for name in ("plain", "strict"):
            self.client.done("set_queue", f"private$\\{name}", *[None] * 6, RETRY)

    def _connect(self, socket: Path | None = None) -> ControlClient:
        client = ControlClient(socket or self._socket)
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
        row = self._row(queue, **properties)
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
        return queue, self._take_all(queue, *more)

    def _take_all(self, queue: str, *more: Any) -> list[int]:
        taken: list[int] = []
        while len(taken) < self.messages:
            taken += [each[0] for each in self.client.done("take", queue, PART, 0, *more)]
        return taken

    def run(self, only: str) -> None:
        """Prepare, do and measure each change with `only` in its name."""
        acknowledged = {"admin_queue": "private$\\acks", "acknowledge": NACK_ALL}
        arrived = {"admin_queue": "private$\\acks", "acknowledge": 0x01}
        for name, prepare in (
            ("nothing", lambda: lambda: time.sleep(1)),
            ("express to another host", lambda: self._send(self.there, delivery="express")),
            ("express to a host that is away", lambda: self._send(SILENT, delivery="express")),
            ("recoverable to another host", lambda: self._send(self.there)),
            ("each with a dead-letter queue", lambda: self._send(SILENT, dead_letter_queue="one")),
            ("copies for three queues", lambda: self._copies(delivery="recoverable")),
            ("express copies for three queues", lambda: self._copies(delivery="express")),
            ("copies of 1 KB for three queues", lambda: self._copies(body=bytes(1024))),
            ("copies for three queues, acknowledged", lambda: self._copies(**arrived)),
            ("copies with a dead-letter queue", lambda: self._copies(dead_letter_queue="one")),
            ("copies for three queues elsewhere", lambda: self._copies_elsewhere()),
            ("transactional copies elsewhere", lambda: self._copies_elsewhere("transactional")),
            ("copies for a thousand queues", self._copies_for_many),
            ("for a thousand queues in turn", self._in_turn),
            ("express and recoverable in turn", self._mixed),
            ("of different lifetimes", self._lifetimes),
            ("one of them delayed", self._one_delayed),
            ("delayed", lambda: self._send("private$\\plain", delay_ms=3_600_000)),
            ("copies that a queue refuses", self._misfits),
            ("with a report of each", lambda: self._reported()),
            ("rejected", lambda: self._rejected()),
            ("rejected by a commit", self._rejected_by_a_commit),
            ("failed, with a retry policy", self._failed),
            ("given back", self._given_back),
            ("received by a client that leaves", self._left),
            ("received in a transaction that aborts", self._aborted),
            ("received", lambda: self._removed()),
            ("received, acknowledged", lambda: self._removed(**acknowledged)),
            ("received, with a journal", lambda: self._removed("journaled")),
            ("received, journaled at their source", lambda: self._removed(journal=True)),
            (
                "received, from another host",
                lambda: self._removed_from_there("from_there", **acknowledged),
            ),
            (
                "received, confirmed to another host",
                lambda: self._removed_from_there(
                    "strict_from_there", delivery="transactional", journal=True
                ),
            ),
            ("received in a transaction, acknowledged", self._committed),
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
        for name in THREE:
            self.client.done("purge_queue", f"private$\\{name}")
        self.client.done("purge_queue", "private$\\acks")
        return self._send(",".join(LOCAL + name for name in THREE), **properties)

    def _copies_elsewhere(self, delivery: str = "recoverable") -> Act:
        several = ",".join(f"{SILENT}{name}" for name in THREE)
        return self._send(several, delivery=delivery)

    def _many(self) -> list[str]:
        names = [f"private$\\many{number}" for number in range(1000)]
        numbers = [self.client.send("create_queue", name) for name in names]
        for number in numbers:
            self.client.reply(number)  # an error if it exists already
        return [f"DIRECT=OS:.\\{name}" for name in names]

    def _copies_for_many(self) -> Act:
        row = self._row(",".join(self._many()))
        return lambda: self.client.done("send", [row] * (self.messages // 1000))

    def _in_turn(self) -> Act:
        rows = [self._row(name) for name in self._many()]
        return self._send_rows(rows)

    def _mixed(self) -> Act:
        rows = [self._row("private$\\two", delivery=each) for each in ("express", "recoverable")]
        return self._send_rows(rows)

    def _lifetimes(self) -> Act:
        rows = [self._row("private$\\two", time_to_be_received_s=9**9 + n) for n in range(1000)]
        return self._send_rows(rows)

    def _one_delayed(self) -> Act:
        row = self._row(",".join(LOCAL + name for name in THREE))
        delayed = self._row("private$\\plain", delay_ms=3_600_000)
        rows = [row] * (self.messages - 1)
        return lambda: self.client.done("send", [delayed, *rows])

    def _misfits(self) -> Act:
        strict = f"{LOCAL}strict,{LOCAL}plain"
        return self._send(strict, delivery="transactional")

    def _reported(self) -> Act:
        return self._send("private$\\two", report_queue="private$\\acks")

    def _row(self, queue: str, **properties: Any) -> tuple[Any, ...]:
        body = properties.pop("body", bytes(100))
        return msgspec.structs.astuple(self._changed(new_message(queue, body), properties))

    @staticmethod
    def _changed(new: Any, properties: dict[str, Any]) -> Any:
        if isinstance(properties.get("delivery"), str):
            kind = properties["delivery"]
            properties = properties | {"delivery": DELIVERIES.index(kind)}
        return msgspec.structs.replace(new, **properties)

    def _send_rows(self, rows: list[tuple[Any, ...]]) -> Act:
        """Send all messages in one request, which takes the properties of `rows` in turn."""
        all_rows = (rows * (self.messages // len(rows) + 1))[: self.messages]
        return lambda: self.client.done("send", all_rows)

    def _rejected(self, **properties: Any) -> Act:
        queue, taken = self._taken("plain", **properties)
        return lambda: self.client.done("reject", queue, taken, "no")

    def _removed(self, name: str = "plain", **properties: Any) -> Act:
        queue, taken = self._taken(name, **properties)
        return lambda: self.client.done("remove", queue, taken)

    def _removed_from_there(self, name: str, **properties: Any) -> Act:
        socket, here = self._back
        queue, before = f"private$\\{name}", self.client
        self.client = self._connect(socket)
        self.send(here + queue, part=PART, **properties)
        self.client.close()
        self.client = before
        taken = self._take_all(queue)
        return lambda: self.client.done("remove", queue, taken)

    def _committed(self) -> Act:
        transaction = self._begin()
        admin = {"admin_queue": "private$\\acks", "acknowledge": NACK_ALL}
        self._taken("strict", transaction, **admin)
        return lambda: self.client.done("commit", transaction)

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
                self._reap()

        time.sleep(max(began + live_s - time.monotonic(), 0))
        return expire

    def _expired_outside(self) -> Act:
        live_s = 5 + self.messages // 3000
        began = time.monotonic()
        self.send(SILENT + "2", part=PART, time_to_reach_queue_s=live_s, dead_letter=True)

        def expire() -> None:
            while self.client.done("show_outgoing", SILENT + "2")["messages"]:
                self._reap()

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
        back = other.socket, f"DIRECT=TCP:127.0.0.1:{host.port}\\"

        loop = asyncio.get_running_loop()

        def reap() -> None:
            asyncio.run_coroutine_threadsafe(hosts.reap(host), loop).result()
            time.sleep(0.05)  # until the deadline has passed

        def work() -> None:
            Changes(host.socket, there, back, reap, messages, turn).run(only)

        working = loop.run_in_executor(None, work)
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
    gc.set_threshold(*GC_THRESHOLDS)  # as in the daemon
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.freeze()
    with (
        tempfile.TemporaryDirectory() as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(measure(Path(folder), chosen.messages, chosen.only))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
