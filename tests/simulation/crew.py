"""Many seeds at once: each in a process of its own, which is forked from one that waits for it.

A process that dies, or does not come to an end, costs its seed and nobody else's.
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

from tests.simulation.life import Life, live

SEED_S_MAX = 600.0  # of real time; then it is killed, and has failed
SEED_CPU_S_MAX = 90.0  # likewise; some ten are the most that a sound one has taken
_LOOK_S = 5.0

# Forked from a process that has only imported this: nothing of pytest's is inherited.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([__name__])


def live_all(seeds: Iterable[int], jobs: int) -> Iterator[Life]:
    """One life for each seed, in the order in which they end."""
    left = iter(seeds)
    crew = [_Worker() for _ in range(jobs)]
    try:
        for worker in crew:
            worker.begin(next(left, None))
        while any(worker.seed is not None for worker in crew):
            ready = wait([worker.pipe for worker in crew if worker.seed is not None], _LOOK_S)
            for worker in crew:
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
        for worker in crew:
            worker.kill()


class _Worker:
    """A process and the seed that it has."""

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

    def result(self) -> Life:
        try:
            life: Life = self.pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            if self._process.exitcode == -signal.SIGPROF:
                return self.give_up(f"no end after {SEED_CPU_S_MAX:g} s of processor time")
            return self.give_up(f"its process died with exit code {self._process.exitcode}")
        return life

    def give_up(self, reason: str) -> Life:
        assert self.seed is not None
        self.kill()
        self._start()
        return Life(self.seed, [reason])

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self.pipe.close()


def _work(pipe: Connection[Any, Any]) -> None:
    _die_with_parent()
    gc.collect()
    gc.freeze()  # what was imported stays shared with the processes below
    while True:
        try:
            seed = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        # A process of its own: when it ends, nobody has to clear up after the world.
        child = os.fork()
        if child == 0:
            _live_and_end(seed, pipe)
        _, status = os.waitpid(child, 0)
        if status:
            if os.WIFSIGNALED(status):
                os.kill(os.getpid(), os.WTERMSIG(status))
            return


def _live_and_end(seed: int, pipe: Connection[Any, Any]) -> NoReturn:
    _die_with_parent()
    try:
        started = time.process_time()
        # Whatever turns round for ever in one callback hears no exception: it is killed.
        signal.setitimer(signal.ITIMER_PROF, SEED_CPU_S_MAX)
        life = live(seed, is_last=True)
        life.cpu_s = time.process_time() - started
    except KeyboardInterrupt:
        os._exit(0)
    except BaseException as error:
        life = Life(seed, [f"the simulation itself failed: {error!r}"])
    pipe.send(life)
    os._exit(0)


def _die_with_parent() -> None:
    """A world that never ends would go on, and grow, when nobody waits for it any more."""
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
