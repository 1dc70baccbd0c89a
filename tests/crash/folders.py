"""`python -m tests.crash.folders --folders 2000`: does `qmd check` tell the truth of them?

Folders as `kill -9` leaves them: traffic on a real storage, stopped at any moment, its files
copied.  Each is one that SQLite calls sound, and so must `check`, with the same counts; then a copy
of it is damaged, and a repair may bring nothing back that was removed, and lose nothing that
stands in pages that are whole (folder_judge.py).  Further folders are those of real daemons that
lose their power at any act, and of the hosts of simulated worlds that do.

Ends with exit code 1 when anything was wrong, and keeps the folder.
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
from pathlib import Path
from typing import NamedTuple

from tests.crash.folder_judge import Tally, copy, judge_sound, judge_wounded, read_truth

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "build" / "folders"  # those with which something was wrong
FOLDERS_OF_ONE = 40  # of one storage, one after the other
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
    parser.add_argument("--first", type=int, default=1, help="the seed to begin with")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args(arguments)
    started = time.monotonic()
    seeds = range(chosen.first, chosen.first + -(-chosen.folders // FOLDERS_OF_ONE))
    total = Outcome(0, 0, [], [])
    with ProcessPoolExecutor(chosen.workers) as pool:
        for outcome in pool.map(search, seeds):
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
        " of pages that were replaced by others, which nobody can tell"
    )


def search(seed: int, folders: int = FOLDERS_OF_ONE) -> Outcome:
    """The folders of one storage."""
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
                KEPT.mkdir(parents=True, exist_ok=True)
                shutil.copytree(folder, KEPT / f"{seed}-{count}", dirs_exist_ok=True)
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
    """All that is wrong with what is made of a folder, and how often it was damaged."""
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
        except Exception as error:  # a crash is a finding like others
            name, found = "damaged", [f"{error!r}"]
        wrong += [f"wound {state}, {name}: {each}" for each in found]
    return wrong, wounds


def snapshots(folder: Path, seed: int, rng: random.Random, count: int) -> Iterator[Path]:
    """Copies of a storage's files, each of one moment: the process is stopped meanwhile."""
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
