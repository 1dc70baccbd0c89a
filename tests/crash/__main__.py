"""All crash tests: `make crashes`.

    python -m tests.crash [--cycles N] [--lives N] [--workers N]
    python -m tests.crash CYCLE ...      runs the cycles that a failed run has printed

The exit code is 1 when a promise was broken; the output names the command that repeats it.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from tests.crash import shim
from tests.crash.failed_sync import broken_after_a_failed_sync
from tests.crash.forge import Forge
from tests.crash.machine import Machine
from tests.crash.matrix import EVERYTHING, TURNS, Bench, Cycle, failures, kills, scratch
from tests.crash.replay import Replay
from tests.crash.shim import Fault
from tests.crash.workload import Workload

BAR_CHARACTERS = 30
SYNCS_MAX = 55  # of one life


class Site:
    """A worker's machine and its scratch folder."""

    def __init__(self) -> None:
        self.folder = scratch()
        self._forge = Forge()
        self.machine = Machine(self._forge, self.folder / "machine")

    def close(self) -> None:
        self.machine.close()
        self._forge.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Run:
    """The work of several sites in parallel, and its results."""

    def __init__(self, workers: int) -> None:
        self.broken: list[str] = []
        self.died = 0
        self.states = 0
        self._sites: dict[int, Site] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(workers)

    def phase(self, name: str, work: Sequence[Callable[[Site], str | None]]) -> None:
        started = time.monotonic()
        waiting = [self._pool.submit(self._do, each) for each in work]
        for done, future in enumerate(as_completed(waiting), 1):
            problem = future.result()
            if problem is not None:
                self.broken.append(problem)
                print(f"\r\x1b[KBROKEN {problem}" if sys.stdout.isatty() else f"BROKEN {problem}")
            _draw(name, done, len(work), started)
        print(f"{name}: {len(work)} in {time.monotonic() - started:.0f} s")

    def _do(self, work: Callable[[Site], str | None]) -> str | None:
        try:
            return work(self._site())
        except Exception as error:
            return f"{error!r}"

    def _site(self) -> Site:
        """Return the site of this thread."""
        worker = threading.get_ident()
        if worker not in self._sites:
            self._sites[worker] = Site()
        return self._sites[worker]

    def close(self) -> None:
        self._pool.shutdown()
        for site in self._sites.values():
            site.close()

    def _count(self, *, died: int = 0, states: int = 0) -> None:
        with self._lock:
            self.died += died
            self.states += states

    # Units of work.

    def cycle(self, cycle: Cycle) -> Callable[[Site], str | None]:
        def work(site: Site) -> str | None:
            try:
                died = Bench(site.machine).run(cycle)
            except AssertionError as error:
                return f"{error}\n  again: python -m tests.crash {cycle}"
            self._count(died=died)
            return None

        return work

    def life(self, seed: int, fault: Fault | None = None) -> Callable[[Site], str | None]:
        """Check every state after a loss of power, in a life with a crash in its middle."""

        def work(site: Site) -> str | None:
            machine = site.machine
            machine.wipe()
            with Workload(machine, seed) as workload:
                if not workload.run(fault):
                    workload.verify()
            replay = Replay(
                list(machine.log.records()),
                machine.data,
                site.folder,
                nowhere_port=workload.nowhere_port,
                seed=seed,
            )
            replay.run()
            self._count(states=replay.count)
            if replay.broken:
                return f"life {seed}, {fault}: {len(replay.broken)} times: {replay.broken[0]}"
            return None

        return work

    def failed_sync(self, fault: Fault) -> Callable[[Site], str | None]:
        def work(site: Site) -> str | None:
            broken = broken_after_a_failed_sync(site.machine, site.folder, fault)
            return f"{fault}: {len(broken)} times: {broken[0]}" if broken else None

        return work


def _draw(name: str, done: int, total: int, started: float) -> None:
    if not sys.stdout.isatty():
        return
    filled = done * BAR_CHARACTERS // total
    bar = "█" * filled + "░" * (BAR_CHARACTERS - filled)
    left_s = (time.monotonic() - started) / done * (total - done)
    print(f"\r\x1b[K{name} {bar} {done} of {total}, {left_s:.0f} s left", end="\r", flush=True)


def plan(cycles: int) -> list[Cycle]:
    """Plan at least this many cycles.

    They are all acts of the first life with its writes, then the turns of others.
    """
    site = Site()
    try:
        bench = Bench(site.machine)
        found: list[Cycle] = []
        seed = 0
        while len(found) < cycles:
            kinds = TURNS if seed else EVERYTHING
            found += kills(seed, bench.acts(seed, kinds), kinds)
            found += failures(seed, 500)
            seed += 1
        return found[:cycles]
    finally:
        site.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash")
    parser.add_argument("cycle", nargs="*", type=Cycle.parse)
    parser.add_argument("--cycles", type=int, default=2000)
    parser.add_argument("--lives", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    if why := shim.missing():
        print(why)
        return 1
    run = Run(options.workers)
    try:
        if options.cycle:
            run.phase("cycles", [run.cycle(each) for each in options.cycle])
        else:
            run.phase("crash cycles", [run.cycle(each) for each in plan(options.cycles)])
            faults = [None, *(Fault("kill", 20 + 7 * each, "s") for each in range(5))]
            run.phase(
                "lives, with the power gone at every act",
                [run.life(seed, faults[seed % len(faults)]) for seed in range(options.lives)],
            )
            run.phase(
                "failed syncs",
                [
                    run.failed_sync(Fault("eio", at, "s", times=times))
                    for at in range(1, SYNCS_MAX)
                    for times in (0, 1)
                ],
            )
    finally:
        run.close()
    print(f"{run.died} died in a cycle; {run.states} losses of power; {len(run.broken)} broken")
    return 1 if run.broken else 0


if __name__ == "__main__":
    sys.exit(main())
