"""The crash matrix: the workload with a death at every act, and the recovery from each.

python -m tests.crash.matrix [CYCLES]      `make crashes`; the exit code is 1 for a broken promise
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.crash.machine import Machine
from tests.crash.shim import Fault
from tests.crash.workload import Lost, Workload

#: Acts that change what a crash leaves behind; without the writes in between, of which there are
#: ten times as many.
TURNS = "ctsduk"
EVERYTHING = "cwtsduk"
START_ACTS_MAX = 30  # a start after a crash has about as many


class Cycle(NamedTuple):
    """One life of a machine: its fault, and the acts that kill its next starts.

    As text `SEED:DO:AT:KINDS:TIMES` and a `:AT` for each of those starts.
    """

    seed: int
    fault: Fault
    deaths: tuple[int, ...] = ()

    def __str__(self) -> str:
        fault = self.fault
        return ":".join(
            map(str, (self.seed, fault.do, fault.at, fault.kinds, fault.times, *self.deaths))
        )

    @classmethod
    def parse(cls, text: str) -> Cycle:
        seed, do, at, kinds, times, *deaths = text.split(":")
        return cls(int(seed), Fault(do, int(at), kinds, int(times)), tuple(map(int, deaths)))


class Bench:
    """A machine that runs one cycle after the other."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def acts(self, seed: int, kinds: str) -> int:
        """Count the acts of a life without a fault."""
        self.machine.wipe()
        with Workload(self.machine, seed) as workload:
            if not workload.run(Fault("kill", at=0, kinds=kinds)):
                raise Lost(f"without any fault it does not come to its end: {self.machine.said()}")
            acts = self.machine.count.value
            workload.verify()
            return acts

    def run(self, cycle: Cycle) -> bool:
        """Run a cycle; return whether the daemon died at the planned act.  Raises Lost.

        It may have had fewer acts this time.
        """
        self.machine.wipe()
        with Workload(self.machine, cycle.seed) as workload:
            try:
                came_to_its_end = workload.run(cycle.fault)
                self._check_death(cycle, came_to_its_end)
                workload.verify([Fault("kill", at, EVERYTHING) for at in cycle.deaths])
            except Exception as error:
                raise Lost(f"{cycle}: {error!r}\n{self.machine.said()}") from error
            return not came_to_its_end

    def _check_death(self, cycle: Cycle, came_to_its_end: bool) -> None:
        if not came_to_its_end and cycle.fault.do == "kill":
            process = self.machine.process
            code = self.machine.last_code if process is None else process.wait()
            if code != -9:
                raise Lost(f"it was to be killed, and ended with {code}")


def kills(seed: int, acts: int, kinds: str) -> Iterator[Cycle]:
    """Return a cycle for each act; every third dies in its next start as well, some more often."""
    rng = random.Random(seed)
    for at in range(1, acts + 1):
        starts = rng.choice((1, 1, 2, 3)) if at % 3 == 0 else 0
        yield Cycle(
            seed,
            Fault("kill", at, kinds),
            tuple(rng.randrange(1, START_ACTS_MAX) for _ in range(starts)),
        )


def failures(seed: int, writes: int) -> Iterator[Cycle]:
    """Return cycles in which the disk fails once or for good, at some of the writes and syncs."""
    rng = random.Random(seed)
    for at in range(1, writes, 6):
        do, kinds = rng.choice([("enospc", "w"), ("eio", "w"), ("short", "w"), ("eio", "s")])
        at_most = at if kinds == "w" else 1 + at % 50
        yield Cycle(seed, Fault(do, at_most, kinds, rng.choice((0, 1, 3))))


def scratch() -> Path:
    """Return a folder in memory, if there is one: syncs cost nothing there."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="qmd-crash-", dir=memory if memory.is_dir() else None))
