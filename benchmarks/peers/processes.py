"""Servers as trees of processes: what each costs in time, memory and written bytes, from /proc."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 20.0
POLL_S = 0.05
LAST_WORDS_CHARACTERS = 1500
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

# Runs a command in another Debian tree, with that tree's view of /proc and /dev.  The mounts belong
# to a namespace of their own, which ends with the server.
_IN_TREE = (
    'mount --make-rprivate / && mount --rbind /dev "$0/dev" && mount -t proc proc "$0/proc" &&'
    ' mkdir -p "$0/$1" && mount --bind "$1" "$0/$1" && root=$0 && shift && exec chroot "$root" "$@"'
)


class CannotStart(Exception):
    """A server did not start; the text has the end of its output."""


def in_tree(tree: Path | None, folder: Path, command: list[str]) -> list[str]:
    """Return a command that runs `command` in a Debian tree which shows `folder` at its path."""
    if tree is None:
        return command
    return ["unshare", "--mount", "sh", "-c", _IN_TREE, str(tree), str(folder), *command]


class Server:
    """One server: a process, its children, and its log."""

    def __init__(
        self,
        name: str,
        command: list[str],
        *,
        folder: Path,
        port: int,
        environment: dict[str, str] | None = None,
        tree: Path | None = None,
    ) -> None:
        """Start it and wait until it accepts connections.  Raises CannotStart."""
        self.name, self._log = name, folder / f"{name}.log"
        clean = {"HOME": str(folder), "LANG": "C.UTF-8", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                in_tree(tree, folder, command),
                env=clean | (environment or {}),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C comes to the benchmark, which ends its servers
            )
        try:
            self._wait_for(port)
        except BaseException:
            self.stop()
            raise

    def _wait_for(self, port: int) -> None:
        end_s = time.monotonic() + START_TIMEOUT_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return
            if time.monotonic() > end_s or self._process.poll() is not None:
                last = self._log.read_text(errors="replace")[-LAST_WORDS_CHARACTERS:]
                raise CannotStart(f"{self.name} did not start:\n{last}")
            time.sleep(POLL_S)

    def cpu_s(self) -> float:
        """Return the seconds that the tree has spent, with those of ended children."""
        ticks = 0
        for pid in self._tree():
            fields = _read(pid, "stat").rpartition(")")[2].split()
            ticks += sum(int(each) for each in fields[11:15]) if fields else 0
        return ticks / _TICKS_PER_S

    def written_bytes(self) -> int:
        """Return what the tree has caused to be written to disks (`write_bytes`)."""
        return sum(_number(_read(pid, "io"), "write_bytes:") for pid in self._tree())

    def rss_mb(self) -> float:
        return sum(_number(_read(pid, "status"), "VmRSS:") for pid in self._tree()) / 1024

    def peak_rss_mb(self) -> float:
        return sum(_number(_read(pid, "status"), "VmHWM:") for pid in self._tree()) / 1024

    def forget_peak(self) -> None:
        """Let the next peak be that of the time from now on."""
        for pid in self._tree():
            with contextlib.suppress(OSError):
                Path(f"/proc/{pid}/clear_refs").write_text("5")

    def stop(self) -> None:
        """End the processes of the tree, by their ids."""
        tree = self._tree()
        for pid in reversed(tree):
            _signal(pid, signal.SIGTERM)
        end_s = time.monotonic() + STOP_TIMEOUT_S
        while any(_is_running(pid) for pid in tree) and time.monotonic() < end_s:
            self._process.poll()
            time.sleep(POLL_S)
        for pid in filter(_is_running, tree):
            _signal(pid, signal.SIGKILL)
        self._process.wait()

    def _tree(self) -> list[int]:
        found = [self._process.pid]
        for pid in found:  # grows meanwhile
            for thread in _threads(pid):
                found += [int(each) for each in _read(pid, f"task/{thread}/children").split()]
        return found


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def _read(pid: int, file: str) -> str:
    try:
        return Path(f"/proc/{pid}/{file}").read_text()
    except OSError:
        return ""


def _number(text: str, label: str) -> int:
    for line in text.splitlines():
        if line.startswith(label):
            return int(line.split()[1])
    return 0


def _is_running(pid: int) -> bool:
    state = _read(pid, "stat").rpartition(")")[2].split()
    return bool(state) and state[0] != "Z"


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
