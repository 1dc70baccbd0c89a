"""Mutation tests: one-line faults in the code, each of which the simulator must detect.

    make mutants                        tries all mutants
    make mutants ARGS='17 order'        tries those with this number or name
    make mutants ARGS='100-'            tries those from a number on; 100-120 ends the range
    JOBS=1 make mutants                 uses one processor

mutant_list.py lists them.  Each mutant is a copy of the code below `build/mutants`.
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
PACKAGES = (
    *("protocol", "storage", "qmd"),
    *(f"tests/{folder}" for folder in ("simulation", "unit", "integration", "process")),
)
FILES = ("pyproject.toml", "tests/*.py")
PASSING_SEEDS = 10
SEEDS_MAX = 300
SECONDS_MAX = 900
WAIT_S_MAX = 30  # of a test for an event that the fault may prevent
PYTEST = (
    *("pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "pytest_timeout"),
    f"--timeout={4 * WAIT_S_MAX}",
)
JOBS = int(os.environ.get("JOBS", 0)) or os.cpu_count() or 1


def main(wanted: list[str]) -> int:
    chosen = [
        (number, mutant)
        for number, mutant in enumerate(MUTANTS, 1)
        if not wanted or any(_is_chosen(word, number, mutant) for word in wanted)
    ]
    # All mutants are made of one copy of the code, which must pass without mutant.
    original = COPIES / "original"
    _copy(ROOT, original)
    run = _simulate(original, PASSING_SEEDS)
    if run.returncode != 0:
        print(f"the code fails without mutant:\n{run.stdout}{run.stderr}")
        return 1
    undetected = 0
    for number, mutant in chosen:
        started = time.monotonic()
        print(f"{number:3} {mutant.name} ... ", end="", flush=True)
        verdict, is_detected = _try(original, number, mutant)
        undetected += not is_detected
        print(f"{verdict} ({time.monotonic() - started:.0f} s)", flush=True)
    print(f"{len(chosen)} mutants, {undetected} not detected")
    return bool(undetected)


def _is_chosen(word: str, number: int, mutant: Mutant) -> bool:
    found = re.fullmatch(r"(\d+)(-?)(\d*)", word)
    if found is None:
        return word in mutant.name
    first, dash, last = found.groups()
    return int(first) <= number <= (int(last or number) if dash else int(first))


def _try(original: Path, number: int, mutant: Mutant) -> tuple[str, bool]:
    """Try a mutant; return a verdict, and whether it was detected."""
    source = (original / mutant.file).read_text()
    if source.count(mutant.old) != 1:
        return f"DOES NOT APPLY: {source.count(mutant.old)} places", False
    copy = COPIES / str(number)
    _copy(original, copy)
    (copy / mutant.file).write_text(source.replace(mutant.old, mutant.new))
    if mutant.test:
        try:
            run = _run(copy, [*PYTEST, mutant.test])
        except subprocess.TimeoutExpired:
            return f"NOT DETECTED in time by {mutant.test}", False
        if run.returncode != 1:
            verdict = "NOT DETECTED" if run.returncode == 0 else "NOT TRIED"
            return f"{verdict} by {mutant.test}", False
        shutil.rmtree(copy)
        failures = [line[1:].strip() for line in run.stdout.splitlines() if line.startswith("E  ")]
        return f"detected by {mutant.test}: {failures[0][:90] if failures else '?'}", True
    try:
        run = _simulate(copy, SEEDS_MAX)
    except subprocess.TimeoutExpired:
        return "NOT DETECTED in time", False
    found = re.search(r"seed (\d+): (.*)", run.stdout)
    if found is None:
        problem = run.stderr.strip().splitlines()[-1:] or ["no seed failed"]
        return f"NOT DETECTED: {problem[0]}", False
    shutil.rmtree(copy)
    seeds = re.search(r"(\d+) seeds, ", run.stdout)
    return f"detected after {seeds[1] if seeds else '?'} seeds: {found[2][:90]}", True


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
    # Other plugins of pytest would take most of the time of a short test to be imported.
    environment = {
        "PYTHONPATH": str(folder),
        "QMD_TESTS_END_S": str(WAIT_S_MAX),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    return subprocess.run(
        [sys.executable, "-m", *module],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
