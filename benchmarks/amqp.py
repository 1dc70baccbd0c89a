"""Rates of the door for AMQP, by turns with another server of AMQP 1.0.

    python -m benchmarks.amqp [--messages N] [--rounds N] [--other URL --other-queue ADDRESS
                              --other-pid PID ...]

A real daemon and a door serve the reactor client of qpid-proton: it sends durable messages of
1 KiB with a window of 1,000 until all are accepted, then another one receives and accepts them.
With `--other`, a running server such as RabbitMQ does the same in the same rounds; `--other-pid`
names its processes, for the processor seconds.  The figures are medians of all rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.amqp.door import AmqpDoor
from tests.process.harness import Hosts

CLIENT = """
import sys
from proton import Message
from proton.handlers import MessagingHandler
from proton.reactor import Container

class Sender(MessagingHandler):
    def __init__(self):
        super().__init__()
        self.sent = self.accepted = 0
        self.message = Message(body=b"x" * 1024, durable=True, inferred=True)
    def on_start(self, event):
        self.connection = event.container.connect(URL)
        event.container.create_sender(self.connection, QUEUE)
    def on_sendable(self, event):
        while event.sender.credit and self.sent < COUNT and self.sent - self.accepted < 1000:
            event.sender.send(self.message)
            self.sent += 1
    def on_accepted(self, event):
        self.accepted += 1
        if self.accepted == COUNT:
            self.connection.close()
        else:
            self.on_sendable(event)

class Receiver(MessagingHandler):
    def __init__(self):
        super().__init__(prefetch=1000)
        self.got = 0
    def on_start(self, event):
        self.connection = event.container.connect(URL)
        event.container.create_receiver(self.connection, QUEUE)
    def on_message(self, event):
        self.got += 1
        if self.got == COUNT:
            self.accept(event.delivery)
            self.connection.close()

URL, QUEUE, COUNT = sys.argv[2], sys.argv[3], int(sys.argv[4])
Container({"send": Sender, "receive": Receiver}[sys.argv[1]]()).run()
"""


def processor_s(processes: list[int]) -> float:
    """Return the processor seconds that processes have used."""
    ticks = os.sysconf("SC_CLK_TCK")
    total = 0.0
    for process in processes:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / ticks
    return total


class Side:
    """One server: its address, its queue, and its processes."""

    def __init__(self, name: str, url: str, queue: str, processes: Callable[[], list[int]]) -> None:
        self.name, self.url, self.queue, self.processes = name, url, queue, processes
        self.rates: dict[str, list[float]] = {"send": [], "receive": []}
        self.processor: dict[str, list[float]] = {"send": [], "receive": []}

    def turn(self, kind: str, count: int) -> None:
        """Let the client send or receive `count` messages, and note the figures."""
        used, began = processor_s(self.processes()), time.monotonic()
        arguments = [kind, self.url, self.queue, str(count)]
        subprocess.run([sys.executable, "-c", CLIENT, *arguments], check=True)
        self.rates[kind].append(count / (time.monotonic() - began))
        used = processor_s(self.processes()) - used
        self.processor[kind].append(1000 * used / count)

    def show(self) -> None:
        for kind, rates in self.rates.items():
            used = statistics.median(self.processor[kind])
            print(f"{self.name:10} {kind:8} {statistics.median(rates):10,.0f} messages/s"
                  f" {used:8.3f} processor s for 1,000")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--other")
    parser.add_argument("--other-queue", default="/queue/bench")
    parser.add_argument("--other-pid", type=int, action="append", default=[])
    options = parser.parse_args()
    hosts = Hosts(warm=False)
    try:
        daemon = hosts.daemon()
        daemon.create("bench")
        daemon.cli("acl", "grant", "anonymous", "full", "bench")
        door = AmqpDoor(daemon).start()
        assert door.process is not None
        print(f"the door, idle: {door.memory_bytes / 1e6:.0f} MB")
        pids = [daemon.pid, door.process.pid]
        sides = [Side("qmd", door.url, "bench", lambda: pids)]
        if options.other:
            pids_of_other = list(options.other_pid)
            sides.append(Side("other", options.other, options.other_queue, lambda: pids_of_other))
        for _ in range(options.rounds):
            for side in sides:
                for kind in ("send", "receive"):
                    side.turn(kind, options.messages)
        for side in sides:
            side.show()
        door.kill()
    finally:
        hosts.close()


if __name__ == "__main__":
    main()
