"""`make model`: spin checks the model within its bounds, and must find every planted bug.

Each check runs spin, gcc and the generated verifier over every reachable state.  There are three
kinds:

    holds   no state breaks an assertion, and, with fairness, every message ends
    found   a bug is planted with BUG_..., and must be found
    fails   a promise that exactly-once does not make: the model shows how it breaks
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

MODEL = Path(__file__).parent / "exactly_once.pml"
CHECK_S_MAX = 300
MEMORY_MB_MAX = 4000
DEPTH_MAX = 2_000_000

HOLDS, FOUND, FAILS = "holds", "found", "fails"


class Check(NamedTuple):
    """A run: its purpose, its bounds and its expected end."""

    text: str
    defines: str
    expected: str = HOLDS
    fair: bool = False  # weak fairness: a step that stays possible is taken


class Result(NamedTuple):
    check: Check
    ended: str
    states: int
    seconds: float
    output: str


END = "PATIENT LOSSES=1 DOUBLES=1"

CHECKS = (
    Check("3 messages, 2 crashes of each end", "CRASHES=2"),
    Check("3 messages, 3 packets each way", "SLOTS=3"),
    Check("4 messages", "MESSAGES=4 CRASHES=0"),
    Check("a message expires", "EXPIRIES=1"),
    Check("two messages expire", "EXPIRIES=2 CRASHES=0"),
    Check("the receiver loses its disk", "DISK_LOSSES=1 CRASHES=0"),
    Check("the receiver loses its disk, both ends crash", "MESSAGES=2 DISK_LOSSES=1"),
    Check(
        "the sender is restored, and begins anew", "MESSAGES=2 RESTORES=1 REMEDY_GREATER_SEQUENCE"
    ),
    Check("every message ends", f"{END} CRASHES=0", fair=True),
    Check("every message ends, after crashes", f"{END} MESSAGES=2", fair=True),
    Check("every message ends, one expired", f"{END} MESSAGES=2 EXPIRIES=1 CRASHES=0", fair=True),
    Check(
        "every message ends, a disk lost", f"{END} MESSAGES=2 DISK_LOSSES=1 CRASHES=0", fair=True
    ),
    *(
        Check(name.replace("_", " ").lower(), f"BUG_{name} {bounds}", FOUND, "PATIENT" in bounds)
        for name, bounds in (
            ("ACK_BEFORE_COMMIT", ""),
            ("POSITION_WITHOUT_MESSAGES", ""),
            ("TRANSMITTED_BEFORE_COMMIT", ""),
            ("NEW_SEQUENCE_TOO_EARLY", ""),
            ("ACK_OF_ANOTHER_SEQUENCE", ""),
            ("RELEASED_ONE_TOO_MANY", ""),
            ("EVERYTHING_IS_ACCEPTED", ""),
            ("PREVIOUS_IS_IGNORED", ""),
            ("ALWAYS_LINKED_TO_NOTHING", ""),
            ("LINKED_BEFORE_REMOVAL", "EXPIRIES=1"),
            ("NEVER_LINKED_ANEW", f"{END} EXPIRIES=1 CRASHES=0"),
            ("NEVER_LINKED_ANEW", f"{END} MESSAGES=2 DISK_LOSSES=1 CRASHES=0"),
            ("REJECTED_IN_SILENCE", f"{END} MESSAGES=2 CRASHES=0"),
        )
    ),
    Check("what expired was not delivered", "CLAIM_EXPIRED_MEANS_NOT_DELIVERED EXPIRIES=1", FAILS),
    Check(
        "a lost disk loses nothing", "CLAIM_DISK_LOSS_LOSES_NOTHING DISK_LOSSES=1 CRASHES=0", FAILS
    ),
    Check("a restored sender loses nothing", "RESTORES=1 CRASHES=0", FAILS),
    Check(
        "a restored sender doubles nothing",
        "RESTORES=1 CRASHES=0 REMEDY_GREATER_SEQUENCE CLAIM_RESTORE_DOUBLES_NOTHING",
        FAILS,
    ),
)


def main() -> int:
    missing = [tool for tool in ("spin", "gcc") if shutil.which(tool) is None]
    if missing:
        print(
            f"the model was not checked: {' and '.join(missing)} not found (apt install spin gcc)"
        )
        return 0
    started = time.monotonic()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(run, CHECKS))
    for result in results:
        wrong = "" if result.ended == result.check.expected else "   <-- WRONG"
        print(
            f"{result.ended:6} {result.check.text:46} {result.states:>10,} states"
            f" {result.seconds:6.1f} s{wrong}"
        )
        if wrong:
            print(result.output[-3000:])
    states = sum(result.states for result in results)
    wrong_count = sum(result.ended != result.check.expected for result in results)
    print(f"{len(results)} checks, {states:,} states, {time.monotonic() - started:.0f} s", end=", ")
    print(f"{wrong_count} WRONG" if wrong_count else "as expected")
    return 1 if wrong_count else 0


def run(check: Check) -> Result:
    """Generate, compile and run one verifier."""
    started = time.monotonic()
    defines = [f"-D{define}" for define in check.defines.split()]
    with tempfile.TemporaryDirectory(prefix="qmd-model-") as folder:
        output = _call(["spin", "-a", *defines, str(MODEL)], folder)
        kind = "-DNFAIR=4" if check.fair else "-DSAFETY"
        memory = f"-DMEMLIM={MEMORY_MB_MAX}"
        speed = "-O2" if check.expected == HOLDS else "-O0"  # which compiles faster
        output += _call(["gcc", "-w", speed, kind, memory, "-o", "pan", "pan.c"], folder)
        fair = ["-a", "-f"] if check.fair else []
        output += _call(["./pan", f"-m{DEPTH_MAX}", "-w22", *fair], folder)
    found = re.search(r"([\d.e+]+) states, stored", output)
    states = int(float(found[1])) if found else 0
    return Result(check, _ending(check, output), states, time.monotonic() - started, output)


def _ending(check: Check, output: str) -> str:
    errors = re.search(r"errors: (\d+)", output)
    incomplete = re.search(r"max search depth too small|out of memory|Search not completed", output)
    if errors is None:
        return "broken"
    if int(errors[1]):
        return FOUND if check.expected == FOUND else FAILS
    return "broken" if incomplete else HOLDS


def _call(command: list[str], folder: str) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=CHECK_S_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{command[0]} took more than {CHECK_S_MAX} s\n"
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
