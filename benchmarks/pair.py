"""Real daemons for benchmarks and the demo: processes of their own, in a folder of their own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path

from qmd.client import QueueManager, connect

READY_TIMEOUT_S = 30.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")


def free_port() -> int:
    """A TCP port of the loopback address that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Daemon:
    """One queue manager, `start`ed and stopped or killed as often as wanted."""

    folder: Path
    name: str
    port: int = field(default_factory=free_port)
    process: asyncio.subprocess.Process | None = None

    async def create(self, *changes: tuple[str, str]) -> None:
        """Write its configuration, with lines of it changed: (key, value)."""
        init = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "qmd", "init", str(self.folder)),
            *("--listen", f"127.0.0.1:{self.port}", "--name", self.name),
            stdout=asyncio.subprocess.DEVNULL,
        )
        if await init.wait():
            raise RuntimeError(f"qmd init {self.folder} failed")
        lines = self.config.read_text().splitlines()
        for key, value in (("run_as_root", "true"), *changes):
            index = next(n for n, line in enumerate(lines) if line.lstrip("# ").startswith(f"{key} ="))
            lines[index] = f"{key} = {value}"
        self.config.write_text("\n".join(lines) + "\n")

    async def start(self) -> None:
        """Returns when it serves.  Raises RuntimeError with its last words when it does not."""
        loop = asyncio.get_running_loop()
        ready = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        with ready, self.log.open("ab") as log:
            path = self.folder / "ready.sock"
            path.unlink(missing_ok=True)
            ready.bind(str(path))
            ready.setblocking(False)
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "qmd", "--config", str(self.config), "serve"),
                env=os.environ | {"NOTIFY_SOCKET": str(path)},
                stdout=log,
                stderr=log,
            )
            try:
                async with asyncio.timeout(READY_TIMEOUT_S):
                    while b"READY=1" not in await loop.sock_recv(ready, 4096):
                        pass
            except TimeoutError:
                raise RuntimeError(
                    f"{self.name} did not start:\n{self.log.read_text()[-2000:]}"
                ) from None

    async def kill(self) -> None:
        """SIGKILL: no goodbye, no flush."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """SIGTERM, and wait."""
        await self._end(signal.SIGTERM)

    def client(self) -> QueueManager:
        return connect(self.folder / "qmd.sock")

    def destination(self, queue: str) -> str:
        """How others name a queue of it."""
        return f"DIRECT=TCP:127.0.0.1:{self.port}\\private$\\{queue}"

    def cpu_s(self) -> float:
        """User and system time so far."""
        assert self.process is not None
        text = Path(f"/proc/{self.process.pid}/stat").read_text()
        fields = text.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S

    def rss_mb(self) -> float:
        assert self.process is not None
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * _PAGE_BYTES / 1e6

    @property
    def config(self) -> Path:
        return self.folder / "qmd.toml"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    async def _end(self, number: signal.Signals) -> None:
        process, self.process = self.process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)
            await process.wait()
