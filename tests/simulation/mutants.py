"""Faults put into the code on purpose, one line each: the simulator has to notice every one.

    make mutants                        all of them
    make mutants ARGS='17 order'        those whose number or name is given
    make mutants ARGS='100-'            those from there on; or to there, as in 100-120
    JOBS=1 make mutants                 on one processor

They are listed in faults.py.  Mutants live in copies below `build/mutants`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.simulation.mutant_list import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parent.parent.parent
COPIES = ROOT / "build" / "mutants"
PACKAGES = ("protocol", "storage", "qmd", "tests/simulation", "tests/unit", "tests/process")
FILES = ("pyproject.toml", "tests/*.py")
SOUND_SEEDS = 10
SEEDS_MAX = 300
SECONDS_MAX = 900
JOBS = int(os.environ.get("JOBS", 0)) or os.cpu_count() or 1


def main(wanted: list[str]) -> int:
    chosen = [
        (number, mutant)
        for number, mutant in enumerate(MUTANTS, 1)
        if not wanted or any(_is_meant(word, number, mutant) for word in wanted)
    ]
    # One state of the code for all, whatever is edited meanwhile; and a sound one.
    original = COPIES / "original"
    _copy(ROOT, original)
    run = _simulate(original, SOUND_SEEDS)
    if run.returncode != 0:
        print(f"the code fails without any fault of ours:\n{run.stdout}{run.stderr}")
        return 1
    unnoticed = 0
    for number, mutant in chosen:
        started = time.monotonic()
        print(f"{number:3} {mutant.name} ... ", end="", flush=True)
        verdict, is_noticed = _try(original, number, mutant)
        unnoticed += not is_noticed
        print(f"{verdict} ({time.monotonic() - started:.0f} s)", flush=True)
    print(f"{len(chosen)} mutants, {unnoticed} not noticed")
    return bool(unnoticed)


def _is_meant(word: str, number: int, mutant: Mutant) -> bool:
    found = re.fullmatch(r"(\d+)(-?)(\d*)", word)
    if found is None:
        return word in mutant.name
    first, dash, last = found.groups()
    return int(first) <= number <= (int(last or number) if dash else int(first))


def _try(original: Path, number: int, mutant: Mutant) -> tuple[str, bool]:
    """What became of the mutant, and whether that is well."""
    source = (original / mutant.file).read_text()
    if source.count(mutant.old) != 1:
        return f"DOES NOT APPLY: {source.count(mutant.old)} places", False
    copy = COPIES / str(number)
    _copy(original, copy)
    (copy / mutant.file).write_text(source.replace(mutant.old, mutant.new))
    if mutant.test:
        run = _run(copy, ["pytest", "-x", "-q", "-p", "no:cacheprovider", mutant.test])
        if run.returncode != 1:
            verdict = "NOT NOTICED" if run.returncode == 0 else "NOT TRIED"
            return f"{verdict} by {mutant.test}", False
        shutil.rmtree(copy)
        return f"noticed by {mutant.test}", True
    try:
        run = _simulate(copy, SEEDS_MAX)
    except subprocess.TimeoutExpired:
        return "NOT NOTICED in time", False
    found = re.search(r"seed (\d+): (.*)", run.stdout)
    if found is None:
        problem = run.stderr.strip().splitlines()[-1:] or ["no seed failed"]
        return f"NOT NOTICED: {problem[0]}", False
    shutil.rmtree(copy)
    seeds = re.search(r"(\d+) seeds, ", run.stdout)
    return f"noticed after {seeds[1] if seeds else '?'} seeds: {found[2][:90]}", True


def _copy(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    for package in PACKAGES:
        shutil.copytree(
            source / package, target / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    for pattern in FILES:
        for file in source.glob(pattern):
            shutil.copy(file, target / file.relative_to(source))


def _simulate(folder: Path, seeds: int) -> subprocess.CompletedProcess[str]:
    options = (f"--seeds={seeds}", "--stop-at-failure", f"--jobs={JOBS}")
    return _run(folder, ["tests.simulation", *options])


def _run(folder: Path, module: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *module],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
