"""A computer with one queue manager: its folder, its daemon under the shim, its history."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests.crash import changes
from tests.crash.control import Control, Ended
from tests.crash.forge import Forge
from tests.crash.shim import ALL_KINDS, Counter, Fault, WriteLog
from tests.forks import Process
from tests.patience import END_S

READY_S = END_S

CONFIGURATION = """\
[queue_manager]
name = "crashes"
run_as_root = true
[listen]
address = "127.0.0.1"
port = 0
[quotas]
disk_reserve = "1MB"
[delivery]
resend = ["200ms"]
retry_first = "5ms"
retry_max = "20ms"
[storage]
checkpoint_pages = 100
[log]
format = "json"
"""


class Machine:
    """A computer: `start` starts its daemon, `wipe` replaces it by a new one.

    `log` has all acts of its disk, and all bytes that it sends.
    """

    def __init__(self, forge: Forge, base: Path, *, configuration: str = CONFIGURATION) -> None:
        self._forge = forge
        self.base = base
        self.home = base / "home"
        self.data = self.home / "data"
        self.config = self.home / "qmd.toml"
        self.socket = self.home / "qmd.sock"
        self.output = base / "output"
        self.home.mkdir(parents=True)
        self.config.write_text(configuration)
        self.count = Counter(base / "count")
        self.log = WriteLog(base / "log")
        self.process: Process | None = None
        self.last_code: int | None = None
        self.controls: list[Control] = []
        self.changes: Sequence[str] = ("hurry",)
        self.skipped_s = 0  # time that passes before the next start
        self._clock_origin = time.time()
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notify.bind(str(base / "notify"))

    def start(self, fault: Fault | None = None) -> bool:
        """Start the daemon; return False if it ended before it was ready."""
        assert self.process is None
        while select.select([self._notify], [], [], 0)[0]:
            self._notify.recv(4096)
        environment = {
            "NOTIFY_SOCKET": str(self.base / "notify"),
            "SHIM_FOLDER": str(self.data),
            "SHIM_COUNT": str(self.count.path),
            "SHIM_LOG": str(self.log.path),
            "SHIM_KINDS": ALL_KINDS,
            "SHIM_AT": "0",
            changes.CLOCK_ORIGIN: str(self._clock_origin),
            changes.CLOCK_SKIPPED: str(self.skipped_s),
        } | (fault.environment() if fault else {})
        self.process = self._forge.start_daemon(self.config, self.output, environment, self.changes)
        return self._is_ready(self.process)

    def _is_ready(self, process: Process) -> bool:
        while True:
            readable, _, _ = select.select([self._notify, process.status], [], [], READY_S)
            if self._notify in readable:
                if b"READY=1" in self._notify.recv(4096).split(b"\n"):
                    return True
            elif process.status in readable:
                return False
            else:
                raise TimeoutError(f"the daemon is not ready after {READY_S} s:\n{self.said()}")

    def connect(self) -> Control:
        control = Control(self.socket)
        self.controls.append(control)
        return control

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def hears(self, listener: socket.socket, timeout_s: float = 0.01) -> bool:
        """Return whether the daemon accepts connections.  Raises Ended when it has ended."""
        has_ended = self.process is not None and self.process.returncode is not None
        ends = [self.process.status] if self.process is not None and not has_ended else []
        readable, _, _ = select.select([listener, *ends], [], [], timeout_s)
        if listener in readable:
            return True
        if readable or has_ended:
            raise Ended
        return False

    def ends(self) -> bool:
        """Return whether the daemon has ended or is about to end by itself."""
        if self.process is None:
            return True
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(READY_S)
        return self.process.returncode is not None

    def ended(self) -> int:
        """Wait for the daemon's own end, unless it has ended, and return its exit code."""
        if self.process is not None:
            self._over()
        assert self.last_code is not None, "it was never started"
        return self.last_code

    def terminate(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.ended()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self._over()

    def _over(self) -> None:
        assert self.process is not None
        self.last_code = self.process.wait()
        self.process = None
        for control in self.controls:
            control.close()
        self.controls.clear()

    def events(self) -> list[dict[str, object]]:
        """Return the log events of its daemons.

        A line that is no JSON is a traceback, and a failure.
        """
        lines = self.output.read_text().splitlines() if self.output.exists() else []
        return [json.loads(line) for line in lines]

    def said(self) -> str:
        return self.output.read_text(errors="replace")[-6000:] if self.output.exists() else ""

    def wipe(self) -> None:
        """Replace the machine by a new one."""
        self.kill()
        shutil.rmtree(self.data, ignore_errors=True)
        for path in (self.socket, self.output):
            path.unlink(missing_ok=True)
        self.log.close()
        os.unlink(self.log.path)
        self.log = WriteLog(self.log.path)
        self.count.reset()
        self.skipped_s = 0
        self._clock_origin = time.time()

    def close(self) -> None:
        self.kill()
        self.log.close()
        self._notify.close()
        shutil.rmtree(self.base, ignore_errors=True)
