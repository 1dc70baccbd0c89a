"""A pool of worker processes that run seeds in parallel.

Each seed runs in a process of its own, which a worker forks.  A process that dies or does not end
fails its own seed only.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import time
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

from tests.simulation.seed_run import SeedResult, run_seed

SEED_S_MAX = 600.0  # of real time; a longer run is killed and has failed
SEED_CPU_S_MAX = 90.0  # likewise; successful runs need about ten at most
_POLL_S = 5.0

# Workers are forked from a process that has only imported this module, not from pytest.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([__name__])


def run_seeds(seeds: Iterable[int], jobs: int) -> Iterator[SeedResult]:
    """Run seeds; yield their results in the order in which they end."""
    left = iter(seeds)
    workers = [_Worker() for _ in range(jobs)]
    try:
        for worker in workers:
            worker.begin(next(left, None))
        while any(worker.seed is not None for worker in workers):
            ready = wait([worker.pipe for worker in workers if worker.seed is not None], _POLL_S)
            for worker in workers:
                if worker.seed is None:
                    continue
                if worker.pipe in ready:
                    yield worker.result()
                elif time.monotonic() - worker.began_at > SEED_S_MAX:
                    yield worker.give_up(f"no end after {SEED_S_MAX:g} s")
                else:
                    continue
                worker.begin(next(left, None))
    finally:
        for worker in workers:
            worker.kill()


class _Worker:
    """A worker process and the seed that it runs."""

    def __init__(self) -> None:
        self.seed: int | None = None
        self.began_at = 0.0
        self._start()

    def _start(self) -> None:
        self.pipe, far = _context.Pipe()
        self._process = _context.Process(target=_work, args=(far,), daemon=True)
        self._process.start()
        far.close()

    def begin(self, seed: int | None) -> None:
        self.seed, self.began_at = seed, time.monotonic()
        if seed is not None:
            self.pipe.send(seed)

    def result(self) -> SeedResult:
        try:
            result: SeedResult = self.pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            if self._process.exitcode == -signal.SIGPROF:
                return self.give_up(f"no end after {SEED_CPU_S_MAX:g} s of processor time")
            return self.give_up(f"its process died with exit code {self._process.exitcode}")
        return result

    def give_up(self, reason: str) -> SeedResult:
        assert self.seed is not None
        self.kill()
        self._start()
        return SeedResult(self.seed, [reason])

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self.pipe.close()


def _work(pipe: Connection[Any, Any]) -> None:
    _die_with_parent()
    gc.collect()
    gc.freeze()  # imported modules stay shared with the forked processes
    while True:
        try:
            seed = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        # In a process of its own, so that the world need not be destroyed.
        child = os.fork()
        if child == 0:
            _run_and_exit(seed, pipe)
        _, status = os.waitpid(child, 0)
        if status:
            if os.WIFSIGNALED(status):
                os.kill(os.getpid(), os.WTERMSIG(status))
            return


def _run_and_exit(seed: int, pipe: Connection[Any, Any]) -> NoReturn:
    _die_with_parent()
    try:
        started = time.process_time()
        # A callback that never ends catches no exception: a signal kills the process.
        signal.setitimer(signal.ITIMER_PROF, SEED_CPU_S_MAX)
        result = run_seed(seed, is_last=True)
        result.cpu_s = time.process_time() - started
    except KeyboardInterrupt:
        os._exit(0)
    except BaseException as error:
        result = SeedResult(seed, [f"the simulation itself failed: {error!r}"])
    pipe.send(result)
    os._exit(0)


def _die_with_parent() -> None:
    """Let the kernel kill this process with its parent; a world without end would grow."""
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
