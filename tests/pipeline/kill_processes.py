"""The processes of a run with kills: the producer, and drivers with their descendants."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

from qmd.client import QueueManager, connect, new_message
from tests.process.command_line import ROOT

STREAMS = 5
BATCH_S = 420.0  # on a busy machine, a daemon and the first batch of a driver start slowly
BACKLOG = 2_000  # messages that wait in each queue


class NotJudged(Exception):
    """The run could not determine whether every message arrived once."""


class Producer(threading.Thread):
    """A sender of numbered messages of several streams to both queues, until its end."""

    def __init__(self, socket: Path, *, pause_s: float = 0.02) -> None:
        super().__init__(daemon=True)
        self.socket = socket
        self.pause_s = pause_s
        self.stopping = threading.Event()
        self.sent = 0  # messages of each stream in each queue
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            asyncio.run(self._send())
        except BaseException as failure:
            self.failure = failure

    async def _send(self) -> None:
        # The queue manager is killed meanwhile: the client determines the outcome of each request.
        async with connect(self.socket, reconnect_s=BATCH_S) as qm:
            while not self.stopping.is_set():
                await asyncio.sleep(self.pause_s)
                if await self._is_full(qm):
                    continue
                numbers = range(self.sent, self.sent + 5)
                await qm.send_many(
                    [
                        new_message(queue, str(number), label=f"stream {stream}")
                        for number in numbers
                        for stream in range(STREAMS)
                        for queue in ("to_lake", "to_copy")
                    ]
                )
                self.sent = numbers.stop

    async def _is_full(self, qm: QueueManager) -> bool:
        """Return whether enough messages wait: otherwise a run of kills would collect ever more."""
        waiting = [(await qm.show_queue(queue))["messages"] for queue in ("to_lake", "to_copy")]
        return min(waiting) > BACKLOG

    def end(self) -> int:
        """End the producer; return the number of messages of each stream."""
        self.stopping.set()
        self.join(BATCH_S)
        if self.failure is not None:
            raise NotJudged(f"the producer failed: {self.failure!r}")
        if self.is_alive():
            raise NotJudged("the producer does not end")
        return self.sent


class Driver:
    """A process of `kill_driver`, with all processes that it starts."""

    def __init__(self, command: list[str], log: Path, environment: dict[str, str]) -> None:
        self.log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.pipeline.kill_driver", *command],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env=environment,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    @property
    def is_ready(self) -> bool:
        """Return whether the driver can take over."""
        return self.is_alive and b"ready\n" in self.log.read_bytes()

    @property
    def application(self) -> str:
        """Return the name that Spark gave the driver, once it has one."""
        found = re.search(r"^application (\S+)$", self.log.read_text(errors="replace"), re.M)
        return found[1] if found else ""

    def go(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(b"go\n")
            self.process.stdin.flush()

    def kill(self) -> None:
        for pid in [self.pid, *descendants(self.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()


def descendants(pid: int) -> list[int]:
    """Return the ids of the processes that it has started, and of their descendants."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                parent = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(name))
    found, waiting = [], [pid]
    while waiting:
        mine = children.get(waiting.pop(), [])
        found += mine
        waiting += mine
    return found


def command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""
