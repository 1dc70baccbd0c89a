"""`make fuzz`: runs every target for a while, each in a process of its own.

    python -m tests.fuzz [--seconds 60] [--inputs N] [--jobs 2] [TARGET ...]
    python -m tests.fuzz --replay FILE TARGET     runs one input again, with its traceback
    python -m tests.fuzz --keep                   copies the best of build/fuzz into the corpus

A run keeps new inputs in build/fuzz for the next one.  It writes a failing input to
build/fuzz/TARGET-crash-…, and its exit code is then 1.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.limits import INPUT_BYTES_MAX
from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).resolve().parents[2]
CORPUS = Path(__file__).parent / "corpus"
WORK = ROOT / "build" / "fuzz"
RSS_MB_MAX = 1024
# In real time: on a busy machine a fuzzer waits for the processor.  limits.py has the limit of an
# input's processor time.
HANG_S = 120
KEPT_BYTES_MAX = 16 * 1024  # of a target, in the repository
KEPT_INPUTS_MAX = 60
KEPT_INPUT_BYTES_MAX = 1024


class Run(NamedTuple):
    """The result of one target."""

    name: str
    inputs: int
    seconds: int
    failed: bool
    output: str


def main() -> int:
    arguments = _arguments()
    names = arguments.target or list(TARGETS)
    if arguments.replay:
        TARGETS[names[0]].check(arguments.replay.read_bytes())
        print("the target holds for this input")
        return 0
    if arguments.keep:
        for name in names:
            keep(name)
        return 0
    runs = run(names, arguments.seconds, arguments.inputs, arguments.jobs)
    for done in runs:
        rate = done.inputs // max(1, done.seconds)
        print(f"{done.name:16} {done.inputs:>11,} inputs {done.seconds:>6} s {rate:>8,}/s")
        if done.failed:
            print(done.output[-6000:])
    failed = [done.name for done in runs if done.failed]
    total = sum(done.inputs for done in runs)
    print(f"{total:,} inputs, " + (f"FAILED: {', '.join(failed)}" if failed else "nothing found"))
    return 1 if failed else 0


def run(names: list[str], seconds: int, inputs: int, jobs: int) -> list[Run]:
    """Fuzz these targets, `jobs` of them at a time, with at most so many inputs each; -1: any."""
    lines = [
        json.dumps([name, str(_output(name)), _options(name, seconds, inputs)]) for name in names
    ]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.engine", str(jobs)],
        cwd=ROOT,
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(done.stderr)
    codes = dict(line.split() for line in done.stdout.splitlines())
    return [_run(name, int(codes[name])) for name in names]


def _run(name: str, code: int) -> Run:
    output = _output(name).read_text(errors="replace")
    return Run(
        name,
        _stat(output, r"stat::number_of_executed_units: (\d+)"),
        _stat(output, r"Done \d+ runs in (\d+) second"),
        code != 0,
        output,
    )


def _options(name: str, seconds: int, inputs: int) -> list[str]:
    """Write the seeds of a target, and return the arguments for libFuzzer."""
    folder = WORK / name
    folder.mkdir(parents=True, exist_ok=True)
    for seed in TARGETS[name].seeds():
        (folder / hashlib.sha1(seed).hexdigest()).write_bytes(seed)
    return [
        str(folder),
        *([str(CORPUS / name)] if (CORPUS / name).is_dir() else []),
        f"-max_total_time={seconds}",
        f"-runs={inputs}",
        f"-max_len={INPUT_BYTES_MAX}",
        f"-rss_limit_mb={RSS_MB_MAX}",
        f"-timeout={HANG_S}",
        f"-artifact_prefix={WORK}/{name}-",
        "-print_final_stats=1",
    ]


def _output(name: str) -> Path:
    return WORK / f"{name}.log"


def keep(name: str) -> None:
    """Keep the smallest inputs of build/fuzz; each reached new code when it was found."""
    seeds = {hashlib.sha1(seed).hexdigest() for seed in TARGETS[name].seeds()}
    found = [file for file in (WORK / name).glob("*") if file.name not in seeds]
    kept = CORPUS / name
    for file in kept.glob("*"):
        found.append(file)
    inputs = sorted({file.read_bytes() for file in found}, key=lambda each: (len(each), each))
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    left = KEPT_BYTES_MAX
    for data in inputs[:KEPT_INPUTS_MAX]:
        left -= len(data)
        if left < 0 or len(data) > KEPT_INPUT_BYTES_MAX:
            break
        (kept / hashlib.sha1(data).hexdigest()[:16]).write_bytes(data)
    print(f"{name}: {len(list(kept.iterdir()))} inputs kept")


def _stat(output: str, pattern: str) -> int:
    found = re.findall(pattern, output)
    return int(found[-1]) if found else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("target", nargs="*", choices=[[], *TARGETS])
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--inputs", type=int, default=-1, help="at most so many for each target")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--replay", type=Path, metavar="FILE")
    parser.add_argument("--keep", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
