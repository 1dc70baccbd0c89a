"""A load of processes beside the tests: `make test LOAD=1`, or `pytest -p tests.load --load 1`.

There are so many per processor that each process must wait for its turn.  They end with the process
that started them, however it ends: Linux kills them.

"""

from __future__ import annotations

import os
import subprocess
import sys
from types import TracebackType

import pytest

_LOADS = pytest.StashKey["Load"]()

# Request to be killed with the parent, and check that it has not ended before the request.
_BUSY = """
import ctypes, os, signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
parent = {parent}
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""


class Load:
    """While it is open, `per_core` processes per processor compute continuously."""

    def __init__(self, per_core: int) -> None:
        self._count = per_core * len(os.sched_getaffinity(0))
        self._busy: list[subprocess.Popen[bytes]] = []

    @property
    def pids(self) -> list[int]:
        return [each.pid for each in self._busy]

    def start(self) -> Load:
        program = _BUSY.format(parent=os.getpid())
        for _ in range(self._count):
            self._busy.append(subprocess.Popen([sys.executable, "-S", "-c", program]))
        return self

    def stop(self) -> None:
        for each in self._busy:
            each.kill()
        for each in self._busy:
            each.wait()
        self._busy.clear()

    def __enter__(self) -> Load:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--load", type=int, default=0, metavar="N", help="N busy processes for each processor."
    )


def pytest_configure(config: pytest.Config) -> None:
    # Workers of pytest-xdist are configured too; one load is enough.
    if (per_core := config.getoption("--load")) and not hasattr(config, "workerinput"):
        config.stash[_LOADS] = Load(per_core).start()


def pytest_unconfigure(config: pytest.Config) -> None:
    if (load := config.stash.get(_LOADS, None)) is not None:
        load.stop()
