"""Take protections out of the code, one at a time: the tests that SECURITY.md names must fail.

    make unprotected                      tries all
    make unprotected ARGS='backup ping'   tries those whose attack, file or test has one of the words
    make unprotected ARGS='100-120'       tries those with these numbers
    make unprotected ARGS='--resume'      leaves out those that the record has as noticed
    JOBS=2 make unprotected               tries two at a time, of tests in different files

The modules beside this one list the removals.  The tests of a file run on the intact code first,
where they have to pass.  Then each of their removals is made in a copy of the code below
`build/unprotected`, where the test has to fail by an assertion of its own: a time limit of pytest,
an error at the start, or a mistake in the text of the removal shows nothing.  The output of pytest
is kept beside the copy, and the copy itself if the removal is not noticed.

`build/unprotected/record.tsv` has a line for each trial.  A line counts for `--resume` as long as
its removal, the files that it changes, and the file of its test are the same.
"""

from __future__ import annotations

import asyncio.timeouts
import csv
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.attack.removals.catalogue import ALL
from tests.attack.removals.prepared import Runs
from tests.attack.removals.removal import Removal

ROOT = Path(__file__).resolve().parents[3]
COPIES = ROOT / "build" / "unprotected"
RECORD = COPIES / "record.tsv"
FIELDS = ("number", "attack", "file", "test", "intact", "removed", "reason", "seconds", "key")
NOT_COPIED = {".git", ".venv", "build"}
REASON_CHARACTERS = 300  # of a failure in the record
WAIT_S_MAX = 20  # of a test for an event that the removal may prevent
SECONDS_MAX = 600
PYTEST = (
    *("-q", "-rA", "-p", "no:cacheprovider", "-p", "pytest_timeout", "-p", "xdist.plugin"),
    *(f"--timeout={8 * WAIT_S_MAX}", "-o", "timeout_func_only=true"),
)
JOBS = int(os.environ.get("JOBS", "1"))
#: How a test fails that looked at the effect: by an assertion, by the rules or the end of a
#: connection of `tests.process`, by `pytest.raises`, or by a wait of its own that ends; and by too
#: deep a recursion, which limits of depth prevent.
PROOFS = (
    *("AssertionError", "Violation", "Failed", "TimeoutError"),
    *("Closed", "EOFError", "RecursionError"),
)
#: Where the time limit of a whole test of several hosts ends it: `asyncio.timeout`.
LIMIT_OF_SCENARIOS = asyncio.timeouts.__file__
#: Errors of a removal that is badly written, in the test or in the log of a process; and processes
#: that do not start, for such an error or for want of time.
MISTAKES = re.compile(
    r"\b(?:Name|Attribute|Import|ModuleNotFound|UnboundLocal|Syntax|Indentation)Error: .*"
    r"|did not start"
)
RUNS = Runs()
RECORD_LOCK = threading.Lock()


class Outcome(NamedTuple):
    """How a run of a test ended: `passed`, `failed`, or why it shows nothing; and the failure."""

    result: str
    reason: str
    seconds: float


def main(words: list[str]) -> int:
    """Try the chosen removals; return 1 if one was not noticed."""
    is_resumed = "--resume" in words
    words = [word for word in words if word != "--resume"]
    known = _noticed_before() if is_resumed else set()
    chosen: dict[str, list[tuple[int, Removal]]] = {}
    for number, removal in enumerate(ALL, 1):
        if words and not any(_is_chosen(word, number, removal) for word in words):
            continue
        if _key(removal) not in known:
            chosen.setdefault(removal.test.partition("::")[0], []).append((number, removal))
    with ThreadPoolExecutor(JOBS) as pool:
        unnoticed = [line for lines in pool.map(_try_file, chosen.values()) for line in lines]
    count = sum(map(len, chosen.values()))
    print(f"{count} removals, {len(unnoticed)} not noticed; the record is {RECORD}")
    print(*unnoticed, sep="\n")
    return bool(unnoticed)


def _is_chosen(word: str, number: int, removal: Removal) -> bool:
    found = re.fullmatch(r"(\d+)(-?)(\d*)", word)
    if found is None:
        return any(word in text for text in (removal.attack, removal.file, removal.test))
    first, dash, last = found.groups()
    return int(first) <= number <= (int(last or len(ALL)) if dash else int(first))


def _try_file(removals: list[tuple[int, Removal]]) -> list[str]:
    """Try all chosen removals of the tests of a file; return a line for each that is not noticed."""
    tests = list(dict.fromkeys(removal.test for _, removal in removals))
    output, run = _run(ROOT, *tests)
    unnoticed = []
    for number, removal in removals:
        intact = run._replace(result=_result_of(removal.test, output))
        if intact.result == "passed":
            removed = _take_out(number, removal)
        else:
            removed = Outcome("not tried", f"on intact code: {intact.reason}", 0)
        _write(number, removal, intact, removed)
        text = f"{number:3} {removal.attack[:40]:40} {removal.test.rpartition('::')[2][:60]:60}"
        verdict = "noticed" if removed.result == "failed" else f"NOT NOTICED ({removed.result})"
        times = f"{intact.seconds:.0f} s, {removed.seconds:.0f} s"
        line = f"{text} {verdict}: {removed.reason[:100]} ({times})"
        print(line, flush=True)
        if removed.result != "failed":
            unnoticed.append(line)
    return unnoticed


def _take_out(number: int, removal: Removal) -> Outcome:
    """Take one protection out in a copy of the code, and run its test there."""
    for each in removal.changes:
        if (count := (ROOT / each.file).read_text().count(each.old)) != 1:
            return Outcome("does not apply", f"{count} places of {each.file}", 0)
    COPIES.mkdir(parents=True, exist_ok=True)
    copy = Path(tempfile.mkdtemp(prefix=f"{number}-", dir=COPIES))
    # The files are links to those of the original; those that change are written anew, and
    # compiled anew, for their time is another.
    parts = [path for path in ROOT.iterdir() if path.name not in NOT_COPIED]
    subprocess.run(["cp", "-al", *parts, copy], check=True)
    for each in removal.changes:
        changed = copy / each.file
        source = changed.read_text()
        changed.unlink()
        changed.write_text(source.replace(each.old, each.new))
    output, outcome = _run(copy, "-x", removal.test)
    copy.with_suffix(".out").write_text(output)
    if outcome.result == "failed":
        shutil.rmtree(copy)
    return outcome


def _run(folder: Path, *arguments: str) -> tuple[str, Outcome]:
    """Run tests in a folder; return what pytest printed, and the outcome."""
    began = time.monotonic()
    # Other plugins of pytest would take most of the time of a short test to be imported.
    environment = {
        "QMD_TESTS_END_S": str(WAIT_S_MAX),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    try:
        run = RUNS.run(folder, [*PYTEST, *arguments], environment, SECONDS_MAX)
    except subprocess.TimeoutExpired:
        return "", Outcome("does not end", f"{SECONDS_MAX} s", SECONDS_MAX)
    outcome = Outcome(*_judge(run.returncode, run.stdout), time.monotonic() - began)
    return run.stdout, outcome


def _result_of(test: str, output: str) -> str:
    """Return the result of one test, with all its parameters, in the output of a run of several."""
    results = set(re.findall(rf"^([A-Z]+) {re.escape(test)}(?:\[| |$)", output, re.MULTILINE))
    if results & {"FAILED", "ERROR"}:
        return "failed"
    return "passed" if "PASSED" in results else "skipped"


def _judge(code: int, output: str) -> tuple[str, str]:
    """Return the result of a run, and the line of the failure, with the place of it."""
    last = (output.splitlines() or [""])[-1]
    if code == 0:
        return ("passed", "") if " passed" in last else ("skipped", last)
    if code != 1 or " failed" not in last:
        return "broken", f"pytest ended with {code}: {last}"
    failures = [line[1:].strip() for line in output.splitlines() if line.startswith("E  ")]
    # `tests/unit/test_this.py:12: AssertionError` ends a traceback.
    ends = re.findall(r"^(\S+\.py:\d+): (\w+)$", output, re.MULTILINE)
    place, kind = ends[-1] if ends else ("?", "?")
    reason = f"{place}: {kind}: {failures[0][:REASON_CHARACTERS] if failures else '?'}"
    if found := MISTAKES.search(output):
        return "another reason", f"{reason}; {found[0][:REASON_CHARACTERS]}"
    is_limit = "Timeout (>" in output if kind == "Failed" else place.startswith(LIMIT_OF_SCENARIOS)
    return ("failed" if kind in PROOFS and not is_limit else "another reason"), reason


def _key(removal: Removal) -> str:
    """Return a hash of a removal, the files that it changes, and the file of its test."""
    parts = [repr(removal)]
    files = {each.file for each in removal.changes} | {removal.test.partition("::")[0]}
    parts += [(ROOT / file).read_text() for file in sorted(files)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _noticed_before() -> set[str]:
    if not RECORD.exists():
        return set()
    with RECORD.open(newline="") as file:
        lines = list(csv.DictReader(file, dialect="excel-tab"))
    return {line["key"] for line in lines if line["removed"] == "failed"}


def _write(number: int, removal: Removal, intact: Outcome, removed: Outcome) -> None:
    seconds = f"{intact.seconds:.1f} {removed.seconds:.1f}"
    values = (
        *(number, removal.attack, removal.file, removal.test),
        *(intact.result, removed.result, removed.reason, seconds, _key(removal)),
    )
    with RECORD_LOCK:
        COPIES.mkdir(parents=True, exist_ok=True)
        is_new = not RECORD.exists()
        with RECORD.open("a", newline="") as file:
            writer = csv.writer(file, dialect="excel-tab")
            if is_new:
                writer.writerow(FIELDS)
            writer.writerow(values)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
