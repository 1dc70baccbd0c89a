"""Take protections out of the code, one at a time: the tests that SECURITY.md names must fail.

    make unprotected                      tries all
    make unprotected ARGS='backup ping'   tries those whose attack, file or test has one of the words
    make unprotected ARGS='100-120'       tries those with these numbers
    JOBS=2 make unprotected               tries two at a time

The modules beside this one list the removals.  Each is tried in a copy of the code below
`build/unprotected`; a copy with a removal that no test noticed is kept there.  A test that failed
runs on the intact code, too: on a busy machine it may have failed for want of time.
"""

from __future__ import annotations

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

from tests.attack.removals.catalogue import ALL
from tests.attack.removals.removal import Removal

ROOT = Path(__file__).resolve().parents[3]
COPIES = ROOT / "build" / "unprotected"
NOT_COPIED = shutil.ignore_patterns(".git", ".venv", "build", "__pycache__", ".*_cache", "*.so")
WAIT_S_MAX = 20  # of a test for an event that the removal may prevent
SECONDS_MAX = 600
PYTEST = ("pytest", "-x", "-q", "-rs", "-p", "no:cacheprovider", f"--timeout={8 * WAIT_S_MAX}")
JOBS = int(os.environ.get("JOBS", "1"))

#: Whether a test passes on the intact code; each is tried once.
INTACT: dict[str, bool] = {}
INTACT_LOCK = threading.Lock()


def main(words: list[str]) -> int:
    """Try the chosen removals; return 1 if one was not noticed."""
    chosen = [
        (number, each)
        for number, each in enumerate(ALL, 1)
        if not words or any(_is_chosen(word, number, each) for word in words)
    ]
    unnoticed: list[str] = []

    def try_one(item: tuple[int, Removal]) -> None:
        number, removal = item
        began = time.monotonic()
        verdict, is_noticed = _try(number, removal)
        if not is_noticed:
            unnoticed.append(f"{number} {removal.attack}: {removal.test}: {verdict}")
        took_s = time.monotonic() - began
        text = f"{number:3} {removal.attack[:40]:40} {removal.test.rpartition('::')[2][:60]:60}"
        print(f"{text} {verdict} ({took_s:.0f} s)", flush=True)

    with ThreadPoolExecutor(JOBS) as pool:
        list(pool.map(try_one, chosen))
    print(f"{len(chosen)} removals, {len(unnoticed)} not noticed")
    print(*unnoticed, sep="\n")
    return bool(unnoticed)


def _is_chosen(word: str, number: int, removal: Removal) -> bool:
    found = re.fullmatch(r"(\d+)(-?)(\d*)", word)
    if found is None:
        return any(word in text for text in (removal.attack, removal.file, removal.test))
    first, dash, last = found.groups()
    return int(first) <= number <= (int(last or len(ALL)) if dash else int(first))


def _try(number: int, removal: Removal) -> tuple[str, bool]:
    """Take one protection out, and run its test; return a verdict, and whether it failed."""
    for each in removal.changes:
        if (count := (ROOT / each.file).read_text().count(each.old)) != 1:
            return f"DOES NOT APPLY: {count} places of {each.file}", False
    COPIES.mkdir(parents=True, exist_ok=True)
    copy = Path(tempfile.mkdtemp(prefix=f"{number}-", dir=COPIES))
    # The files are links to those of the original; those that change are written anew.
    shutil.copytree(
        ROOT, copy, ignore=NOT_COPIED, copy_function=os.link, symlinks=True, dirs_exist_ok=True
    )
    for each in removal.changes:
        changed = copy / each.file
        source = changed.read_text()
        changed.unlink()
        changed.write_text(source.replace(each.old, each.new))
    try:
        run = _run(copy, removal.test)
    except subprocess.TimeoutExpired:
        if not _passes_on_intact_code(removal.test):
            return "NOT TRIED: the test fails on intact code, too", False
        return "noticed: it does not end", True
    (copy / "pytest.out").write_text(run.stdout + run.stderr)
    if run.returncode == 0:
        is_skipped = " skipped" in run.stdout.splitlines()[-1] and " passed" not in run.stdout
        return "NOT TRIED: skipped" if is_skipped else "NOT NOTICED", False
    if run.returncode != 1:
        return f"NOT TRIED: pytest ended with {run.returncode}", False
    lines = [line for line in run.stdout.splitlines() if line.startswith("E  ")]
    if not _passes_on_intact_code(removal.test):
        return "NOT TRIED: the test fails on intact code, too", False
    shutil.rmtree(copy)
    return f"noticed: {lines[0][1:].strip()[:70] if lines else '?'}", True


def _passes_on_intact_code(test: str) -> bool:
    with INTACT_LOCK:
        if test not in INTACT:
            try:
                INTACT[test] = _run(ROOT, test).returncode == 0
            except subprocess.TimeoutExpired:
                INTACT[test] = False
        return INTACT[test]


def _run(folder: Path, test: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *PYTEST, test],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder), "QMD_TESTS_END_S": str(WAIT_S_MAX)},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
