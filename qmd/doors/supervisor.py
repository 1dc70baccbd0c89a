"""The supervisor of doors: it starts each enabled door, and starts one that has ended again.

It is a process of its own with one thread, so that neither a door nor it can delay the daemon.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess  # nosec B404: own program, no shell
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

import structlog

log = structlog.get_logger()

FIRST_PAUSE_S, LAST_PAUSE_S = 0.5, 30.0  # before a door that has ended is started again
STABLE_S = 60.0  # a door that has served so long is started again at once
STOP_S = 10.0
POLL_S = 0.2
LASTING = (2, 78)  # wrong usage or configuration: a restart does not help
PR_SET_PDEATHSIG = 1
# Variables for the daemon alone.
_OF_THE_SERVICE = ("NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "WATCHDOG_USEC",
                   "WATCHDOG_PID")  # fmt: skip


class _Door:
    """One door: its process, or when it is started again."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.process: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0
        self.start_at: float | None = 0.0  # None: it is not started again
        self.pause_s = FIRST_PAUSE_S


class Supervisor:
    """The doors of one queue manager."""

    def __init__(self, config: Path, names: list[str]) -> None:
        self._config = config
        self._doors = [_Door(name) for name in names]
        self._must_stop = False

    def run(self) -> None:
        """Supervise the doors until SIGTERM or SIGINT, then stop them."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        try:
            while not self._must_stop:
                for door in self._doors:
                    self._look_at(door)
                time.sleep(POLL_S)
        finally:
            self._end()

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._must_stop = True

    def _look_at(self, door: _Door) -> None:
        now = time.monotonic()
        if door.process is None:
            if door.start_at is not None and now >= door.start_at:
                door.process = start(self._config, "door", door.name)
                door.started_at = now
            return
        code = door.process.poll()
        if code is None:
            return
        door.process = None
        if code in LASTING:
            door.start_at = None
            return
        if now - door.started_at >= STABLE_S:
            door.pause_s = FIRST_PAUSE_S
        log.warning(
            "door_ended", door=door.name, exit_code=code, reason="", again_in_s=door.pause_s
        )
        door.start_at = now + door.pause_s
        door.pause_s = min(2 * door.pause_s, LAST_PAUSE_S)

    def _end(self) -> None:
        processes = [door.process for door in self._doors if door.process is not None]
        for process in processes:
            process.terminate()
        deadline = time.monotonic() + STOP_S
        for process in processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def start(config: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a command of qmd that ends with this process.

    This process must have one thread: the call between fork and exec is not safe otherwise.
    """
    command = [sys.executable, "-m", "qmd", "--config", str(config), *arguments]
    return subprocess.Popen(  # nosec B603: own program, no shell
        command, stdin=subprocess.DEVNULL, env=_environment(os.environ), preexec_fn=_end_with_parent
    )


def stop(process: subprocess.Popen[bytes]) -> None:
    """Stop a process that `start` has started."""
    process.terminate()
    try:
        process.wait(STOP_S + 5.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in _OF_THE_SERVICE}


def _end_with_parent() -> None:
    """Let the kernel send SIGTERM when the parent ends, also by SIGKILL.  prctl(2)"""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
