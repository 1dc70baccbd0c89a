"""The costs of a daemon between two moments."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.pair import Daemon

#: Figures by name.
Point = dict[str, float]


class Meter:
    """The costs of a daemon between two moments."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        Path(f"/proc/{daemon.pid}/clear_refs").write_text("5")  # of the peak
        self.began_s, self._cpu_s = time.perf_counter(), sum(daemon.thread_cpu_s().values())
        self._written = self._bytes()

    def of(self, messages: int) -> Point:
        took_s = time.perf_counter() - self.began_s
        cpu_s = sum(self._daemon.thread_cpu_s().values()) - self._cpu_s
        return {
            "messages/s": round(messages / took_s),
            "CPU µs a message": round(cpu_s / messages * 1e6, 1),
            "bytes written a message": round((self._bytes() - self._written) / messages),
        }

    def _bytes(self) -> int:
        lines = Path(f"/proc/{self._daemon.pid}/io").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))
