"""Real daemons for benchmarks and the demo: processes of their own, each in its own folder."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import sys
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from qmd.client import QueueManager, connect
from qmd.client.queue_manager import RECONNECT_S

T = TypeVar("T")

READY_TIMEOUT_S = 30.0
POLL_S = 0.02
LAST_WORDS_CHARACTERS = 2000
# Below the range of outgoing connections, so that a killed daemon finds its port free.
PORTS = range(10_000, 32_000)
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run like `uvloop.run`, but end cleanly on SIGTERM and SIGHUP too, as on Ctrl-C.

    Raises KeyboardInterrupt or CancelledError then.
    """

    async def ended_by_signals() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, task.cancel)
        return await work

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(ended_by_signals())


def free_port() -> int:
    """Return a free TCP port of the loopback address."""
    for port in random.sample(PORTS, 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise RuntimeError("no free port was found")


@contextlib.asynccontextmanager
async def stopped_at_end(*daemons: Daemon) -> AsyncIterator[None]:
    """Stop all daemons at the end, whatever happens within."""
    try:
        yield
    finally:
        await asyncio.gather(*(daemon.kill() for daemon in daemons))


async def nothing_is_left(*clients: QueueManager) -> None:
    """Wait until no queue and no outgoing queue of these clients holds a message."""
    while True:
        states = [await client.status() for client in clients]
        if not any(state["messages"] or state["outgoing_messages"] for state in states):
            return
        await asyncio.sleep(POLL_S)


@dataclass
class Daemon:
    """One queue manager; it can be started, stopped and killed repeatedly."""

    folder: Path
    name: str
    port: int = field(default_factory=free_port)
    environment: dict[str, str] = field(default_factory=dict)  # QMD_<SECTION>_<KEY>
    process: asyncio.subprocess.Process | None = None
    address: str = "127.0.0.1"  # to listen on
    python: tuple[str, ...] = ()  # options of the interpreter that runs `qmd serve`
    prefix: tuple[str, ...] = ()  # a command that runs `qmd serve`, for example in another network

    async def create(self) -> None:
        """Create its folder and its configuration."""
        self.folder.mkdir(mode=0o700, parents=True)
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "qmd", "init", str(self.folder)),
                *("--listen", f"{self.address}:{self.port}", "--name", self.name),
                stdout=log,
                stderr=log,
            )
        if await self.process.wait():
            raise RuntimeError(f"qmd init {self.folder} failed:\n{self.last_words}")
        self.process = None

    async def start(self) -> None:
        """Start it and wait until it serves.  Raises RuntimeError with the end of its log."""
        ready = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        with ready, self.log.open("ab") as log:
            path = self.folder / "ready.sock"
            path.unlink(missing_ok=True)
            ready.bind(str(path))
            ready.setblocking(False)
            self.process = await asyncio.create_subprocess_exec(
                *(*self.prefix, sys.executable, *self.python, "-m", "qmd"),
                *("--config", str(self.config), "serve"),
                env=os.environ
                | {"QMD_QUEUE_MANAGER_RUN_AS_ROOT": "true", "NOTIFY_SOCKET": str(path)}
                | self.environment,
                stdout=log,
                stderr=log,
            )
            is_ready = asyncio.create_task(_told_ready(ready))
            is_over = asyncio.create_task(self.process.wait())
            try:
                await asyncio.wait(
                    (is_ready, is_over),
                    timeout=READY_TIMEOUT_S,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if not is_ready.done():
                    raise RuntimeError(f"{self.name} did not start:\n{self.last_words}")
            finally:
                is_ready.cancel()
                is_over.cancel()

    async def kill(self) -> None:
        """Kill it with SIGKILL: no shutdown, no flush."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """Stop it with SIGTERM, and wait."""
        await self._end(signal.SIGTERM)

    def client(self, *, reconnect_s: float = RECONNECT_S) -> QueueManager:
        return connect(self.control_socket, reconnect_s=reconnect_s)

    def destination(self, queue: str, *, port: int | None = None) -> str:
        """Return the name of its queue for others; `port`: another port that leads to it."""
        return f"DIRECT=TCP:{self.address}:{port or self.port}\\private$\\{queue}"

    def cpu_s(self) -> float:
        """Return user and system time since its start, in seconds."""
        fields = self._proc("stat").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S

    def thread_cpu_s(self) -> dict[int, float]:
        """Return the CPU time of each of its threads by thread id, in seconds."""
        threads = Path(f"/proc/{self.pid}/task").iterdir()
        return {
            int(thread.name): int((thread / "schedstat").read_text().split()[0]) / 1e9
            for thread in threads
        }

    def rss_mb(self) -> float:
        return int(self._proc("statm").split()[1]) * _PAGE_BYTES / 1e6

    def pss_uss_mb(self) -> tuple[float, float]:
        """Return its memory with its part of shared pages, and that of its own pages alone."""
        kib = {
            line.split(":")[0]: int(line.split()[1])
            for line in self._proc("smaps_rollup").splitlines()[1:]
        }
        own = kib["Private_Clean"] + kib["Private_Dirty"]
        return kib["Pss"] * 1024 / 1e6, own * 1024 / 1e6

    def peak_rss_mb(self) -> float:
        line = next(line for line in self._proc("status").splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024 / 1e6

    @property
    def pid(self) -> int:
        assert self.process is not None, "it does not run"
        return self.process.pid

    @property
    def control_socket(self) -> Path:
        return self.folder / "qmd.sock"

    @property
    def config(self) -> Path:
        return self.folder / "qmd.toml"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-LAST_WORDS_CHARACTERS:]

    def _proc(self, file: str) -> str:
        return Path(f"/proc/{self.pid}/{file}").read_text()

    async def _end(self, number: signal.Signals) -> None:
        process = self.process
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        await process.wait()
        self.process = None


async def _told_ready(ready: socket.socket) -> None:
    while b"READY=1" not in await asyncio.get_running_loop().sock_recv(ready, 4096):
        pass
