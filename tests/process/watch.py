"""Invariants of a daemon under attack: it serves others, answers, and limits its memory.

`Watch` is a context manager around an attack.  Meanwhile a queue manager delivers messages one by
one, a client requests the status repeatedly, and the memory of the daemon is measured each time.
The invariants are asserted at the end.

"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from types import TracebackType

from tests.process.control_client import ControlClient
from tests.process.harness import Daemon
from tests.process.processes import resident_bytes
from tests.process.remote import RemoteQueueManager

MB = 1024 * 1024
DELIVER_EVERY_S = 0.01
STATUS_EVERY_S = 0.05
ANSWER_S_MAX = 5.0
LOG_BYTES_MAX = 64 * 1024
SIDE = "side"


@dataclass
class Figures:
    """The measurements, in seconds and bytes."""

    delivered: int = 0
    delivery_s: list[float] = field(default_factory=list)
    status_s: list[float] = field(default_factory=list)
    grown_bytes: int = 0
    log_bytes: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.seconds:.1f} s: {self.delivered} delivered"
            f" ({_ms(self.delivery_s, 0.5)} median, {_ms(self.delivery_s, 0.99)} p99),"
            f" status {_ms(self.status_s, 0.5)} median, {_ms(self.status_s, 1.0)} longest,"
            f" {self.grown_bytes / MB:+.0f} MB, {self.log_bytes} bytes of log"
        )


class Watch:
    """A watched daemon; it may grow by `grown_bytes_max` over its initial size."""

    def __init__(self, daemon: Daemon, *, grown_bytes_max: int = 64 * MB) -> None:
        self._daemon = daemon
        self._grown_bytes_max = grown_bytes_max
        self._stop = threading.Event()
        self._failures: list[BaseException] = []
        self.figures = Figures()

    def __enter__(self) -> Watch:
        daemon = self._daemon
        self._remote = RemoteQueueManager()
        self._peer = self._remote.connect(daemon.port)
        self._deliver_one()
        self._before = resident_bytes(daemon.pid)
        self._log_before = daemon.log.stat().st_size
        self._started = time.monotonic()
        self._threads = [
            threading.Thread(target=self._run, args=(act,))
            for act in (self._deliver_one, self._ask_for_status)
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        figures = self.figures
        figures.seconds = time.monotonic() - self._started
        self._remote.close()
        if error is not None:
            return
        daemon = self._daemon
        assert daemon.alive
        if self._failures:
            raise self._failures[0]
        figures.log_bytes = daemon.log.stat().st_size - self._log_before
        bodies = daemon.bodies(SIDE)
        print(figures)  # pytest shows this after a failure, and `make attack` always
        assert [int(text) for text in bodies] == list(range(figures.delivered))
        assert figures.delivered > 1
        assert max(figures.status_s) < ANSWER_S_MAX, figures
        assert figures.grown_bytes < self._grown_bytes_max, figures
        assert figures.log_bytes < LOG_BYTES_MAX, figures

    def _run(self, act: object) -> None:
        assert callable(act)
        try:
            while not self._stop.is_set():
                act()
        except BaseException as failure:
            self._failures.append(failure)

    def _deliver_one(self) -> None:
        started = time.monotonic()
        text = b"%d" % self.figures.delivered
        self._peer.send(self._remote.message(SIDE, text, recoverable=True), timeout_s=30)
        self._peer.wait_stored(30)
        self.figures.delivered += 1
        self.figures.delivery_s.append(time.monotonic() - started)
        self._stop.wait(DELIVER_EVERY_S)

    def _ask_for_status(self) -> None:
        """Request the status over a new connection each time, as the command does."""
        started = time.monotonic()
        with ControlClient(self._daemon.folder / "qmd.sock") as client:
            client.done("hello", 1)
            assert client.done("status")["queues"] >= 1
        self.figures.status_s.append(time.monotonic() - started)
        grown = resident_bytes(self._daemon.pid) - self._before
        self.figures.grown_bytes = max(self.figures.grown_bytes, grown)
        self._stop.wait(STATUS_EVERY_S)


def _ms(times_s: list[float], share: float) -> str:
    """Return a quantile as text."""
    if not times_s:
        return "none"
    ordered = sorted(times_s)
    return f"{1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]:.1f} ms"
