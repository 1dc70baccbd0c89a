"""`python -m tests.crash.folders --folders 2000`: checks what `qmd check` says of data folders.

The folders are those that `kill -9` leaves: traffic on a real storage is stopped at any moment, and
its files are copied.  SQLite calls each of them intact, and so must `check`, with the same counts.
Then a copy is damaged: a repair may bring back no removed message, and lose none in intact pages
(folder_judge.py).  Further folders are those of real daemons that lose their power at any act, and
of the hosts of simulated worlds.

The exit code is 1 when anything was wrong; the folder is then kept.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from tests.crash.disk import Loss
from tests.crash.folder_judge import Tally, copy, judge_sound, judge_wounded, read_truth
from tests.crash.forge import Forge
from tests.crash.machine import Machine
from tests.crash.replay import Replay
from tests.crash.workload import Workload
from tests.crash.wounds import DATABASE, LOG
from tests.simulation.disk import PowerLoss, SimulatedDisk
from tests.simulation.seed_run import run_seed

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "build" / "folders"  # folders with errors
FOLDERS_OF_ONE = 40  # of one storage, one after the other
STATES_OF_A_LIFE, STATES_OF_A_WORLD = 100, 10
STEPS_MAX = 12  # between two of them
WOUND_PROBABILITY = 0.5
SHOWN = 5 * FOLDERS_OF_ONE


class Outcome(NamedTuple):
    folders: int
    wounds: int
    wrong: list[str]
    tallies: list[Tally]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.folders")
    parser.add_argument("--folders", type=int, default=2000)
    parser.add_argument("--lives", type=int, default=0, help="of real daemons, 100 folders each")
    parser.add_argument("--worlds", type=int, default=0, help="simulated ones, 10 folders each")
    parser.add_argument("--first", type=int, default=1, help="the seed to begin with")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args(arguments)
    started = time.monotonic()
    seeds = range(chosen.first, chosen.first + -(-chosen.folders // FOLDERS_OF_ONE))
    total = Outcome(0, 0, [], [])
    with ProcessPoolExecutor(chosen.workers) as pool:
        outcomes = chain(
            pool.map(search, seeds),
            pool.map(_life, range(chosen.first, chosen.first + chosen.lives)),
            pool.map(_world, range(chosen.first, chosen.first + chosen.worlds)),
        )
        for outcome in outcomes:
            for each in outcome.wrong:
                print(f"WRONG {each}", flush=True)
            total = Outcome(*(a + b for a, b in zip(total, outcome, strict=True)))  # type: ignore[operator]
            if total.folders % SHOWN == 0:
                print(f"{total.folders} folders, {total.wounds} damaged", flush=True)
    print(_summary(total, time.monotonic() - started))
    return bool(total.wrong)


def _summary(total: Outcome, seconds: float) -> str:
    certain, doubted, unharmed, returned = (
        (sum(each) for each in zip(*total.tallies, strict=True)) if total.tallies else (0,) * 4
    )
    return (
        f"{total.folders} folders, {total.wounds} damaged ones, in {seconds:.0f} s:"
        f" {len(total.wrong)} wrong.  Of the damaged ones {certain} messages were certain,"
        f" {doubted} in doubt, {unharmed} not certain though their pages are whole, {returned}"
        " of pages that were replaced by others, which cannot be detected"
    )


def _life(seed: int) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="folders-") as name:
        forge = Forge()
        machine = Machine(forge, Path(name) / "machine")
        try:
            return of_a_life(machine, Path(name), seed, states=STATES_OF_A_LIFE)
        finally:
            machine.close()
            forge.close()


def _world(seed: int) -> Outcome:
    return of_a_world(seed, states=STATES_OF_A_WORLD)


def of_a_life(machine: Machine, scratch: Path, seed: int, *, states: int) -> Outcome:
    """Check a real daemon's folder after a kill or a loss of power at any act of its life."""
    rng = random.Random(seed)
    with Workload(machine, seed) as workload:
        assert workload.run(), machine.said()
    records = list(machine.log.records())
    replay = Replay(records, machine.data, scratch, nowhere_port=workload.nowhere_port, seed=seed)
    chosen = set(rng.sample(range(len(records) // 4, len(records)), states))
    total = Outcome(0, 0, [], [])
    for index in replay.feeds():
        if index in chosen:
            state = scratch / f"state-{index}"
            loss = rng.choice(list(Loss))
            replay.write_now(state, loss)
            where = f"life {seed}, act {index}, {loss.value}"
            total = _added(total, state, scratch, rng, where)
    return total


def of_a_world(seed: int, *, states: int) -> Outcome:
    """Check folders of a simulated world's hosts, after a daemon died or the power was lost."""
    rng = random.Random(seed)
    total = Outcome(0, 0, [], [])
    with tempfile.TemporaryDirectory(prefix="folders-") as name:
        scratch = Path(name)
        found = _folders_of_a_world(seed, scratch)
        for folder in rng.sample(found, min(states, len(found))):
            total = _added(total, folder, scratch, rng, f"world {seed}, {folder.name}")
    return total


def _folders_of_a_world(seed: int, scratch: Path) -> list[Path]:
    found: list[Path] = []

    def keep(disk: SimulatedDisk) -> None:
        for path, file in disk.files.items():
            if path.endswith(f"/{DATABASE}") and file.exists and file.contents.size():
                folder = scratch / f"{disk.name}-{len(found)}"
                folder.mkdir()
                (folder / DATABASE).write_bytes(bytes(file.contents.content))
                log = disk.files.get(f"{path}-wal")
                if log is not None and log.exists:
                    (folder / LOG).write_bytes(bytes(log.contents.content))
                found.append(folder)

    died, lost = SimulatedDisk.process_died, SimulatedDisk.lose_power

    def process_died(disk: SimulatedDisk) -> None:
        died(disk)
        keep(disk)

    def lose_power(disk: SimulatedDisk, kind: PowerLoss) -> None:
        lost(disk, kind)
        keep(disk)

    with (
        mock.patch.object(SimulatedDisk, "process_died", process_died),
        mock.patch.object(SimulatedDisk, "lose_power", lose_power),
    ):
        run_seed(seed)
    return found


def _added(total: Outcome, folder: Path, scratch: Path, rng: random.Random, where: str) -> Outcome:
    tallies: list[Tally] = []
    wrong, wounds = examine(folder, folder, scratch, rng, tallies)
    if wrong:
        _keep(folder, where.replace(" ", "-"))
    shutil.rmtree(folder)
    wrong = [f"{where}: {each}" for each in wrong]
    return Outcome(
        total.folders + 1, total.wounds + wounds, total.wrong + wrong, total.tallies + tallies
    )


def _keep(folder: Path, name: str) -> None:
    KEPT.mkdir(parents=True, exist_ok=True)
    shutil.copytree(folder, KEPT / name, dirs_exist_ok=True)


def search(seed: int, folders: int = FOLDERS_OF_ONE) -> Outcome:
    """Check the folders of one storage."""
    rng = random.Random(seed)
    wrong: list[str] = []
    tallies: list[Tally] = []
    count = wounds = 0
    with tempfile.TemporaryDirectory(prefix="folders-") as name:
        scratch = Path(name)
        earlier: Path | None = None
        for folder in snapshots(scratch / "data", seed, rng, folders):
            found, made = examine(folder, earlier or folder, scratch, rng, tallies)
            count += 1
            wounds += made
            wrong += [f"seed {seed}, folder {count}: {each}" for each in found]
            if found:
                _keep(folder, f"{seed}-{count}")
            if earlier is not None:
                shutil.rmtree(earlier)
            earlier = folder
    return Outcome(count, wounds, wrong, tallies)


def examine(
    folder: Path,
    earlier: Path,
    scratch: Path,
    rng: random.Random,
    tallies: list[Tally],
    *,
    wound_probability: float = WOUND_PROBABILITY,
) -> tuple[list[str], int]:
    """Return all errors in the handling of a folder, and how often it was damaged."""
    try:
        truth = read_truth(folder, scratch / "truth")
    except AssertionError as error:
        return [str(error)], 0
    if truth is None:
        return [], 0
    pristine = copy(folder, scratch / "pristine")
    wrong = judge_sound(pristine, truth)
    shutil.rmtree(pristine)
    wounds = int(rng.random() < wound_probability)
    for _ in range(wounds):
        state = rng.randrange(1 << 60)
        try:
            name, found = judge_wounded(
                folder, earlier, truth, scratch, random.Random(state), tallies
            )
        except Exception as error:  # a crash is an error like others
            name, found = "damaged", [f"{error!r}"]
        wrong += [f"wound {state}, {name}: {each}" for each in found]
    return wrong, wounds


def snapshots(folder: Path, seed: int, rng: random.Random, count: int) -> Iterator[Path]:
    """Copy a storage's files at single moments, with the process stopped meanwhile."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.crash.traffic", str(folder), str(seed)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        for number in range(count):
            for _ in range(rng.randrange(1, STEPS_MAX)):
                assert process.stdout.readline(), "the traffic has ended by itself"
            time.sleep(rng.random() * 0.02)
            process.send_signal(signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)
            copied = copy(folder, folder.with_name(f"folder-{number}"))
            process.send_signal(signal.SIGCONT)
            yield copied
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
