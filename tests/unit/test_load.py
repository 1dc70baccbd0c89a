"""The background load for tests: it ends with the process that started it, in all cases."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.load import Load
from tests.patience import END_S

ROOT = Path(__file__).resolve().parents[2]

STARTS = """
from tests.load import Load
with Load(1) as load:
    print(*load.pids, flush=True)
    input()
"""


def is_there(pid: int) -> bool:
    """Return whether the process runs; a zombie does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def all_end(pids: list[int]) -> bool:
    end = time.monotonic() + END_S
    while any(map(is_there, pids)) and time.monotonic() < end:
        time.sleep(0.02)
    return not any(map(is_there, pids))


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_load_has_the_given_number_of_processes_and_ends() -> None:
    with Load(2) as load:
        pids = load.pids
        assert len(pids) == 2 * len(os.sched_getaffinity(0))
        assert all(map(is_there, pids))
    assert not any(map(is_there, pids))


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_load_ends_with_the_process_that_started_it(how: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTS], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, preexec_fn=heed_ctrl_c,
    ) as starter:  # fmt: skip
        assert starter.stdout is not None
        pids = [int(each) for each in starter.stdout.readline().split()]
        assert pids
        starter.send_signal(how)
        starter.wait(END_S)
    assert all_end(pids)


def test_pytest_starts_one_load_for_all_its_workers(tmp_path: Path) -> None:
    """No process of the load survives Ctrl-C."""
    (tmp_path / "test_it.py").write_text("import time\ndef test_it(): time.sleep(1000)\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.load", "--load", "1", "-n", "2",
               "-p", "no:cacheprovider", str(tmp_path)]  # fmt: skip
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, preexec_fn=heed_ctrl_c,
    ) as running:  # fmt: skip
        wanted = len(os.sched_getaffinity(0))
        end = time.monotonic() + END_S
        while len(busy := [pid for pid in children(running.pid) if is_busy(pid)]) < wanted:
            assert time.monotonic() < end
            assert running.poll() is None
            time.sleep(0.02)
        running.send_signal(signal.SIGINT)
        running.wait(END_S)
    assert len(busy) == wanted
    assert all_end(busy)


def heed_ctrl_c() -> None:
    """Undo what a shell does to its background jobs: they ignore Ctrl-C, and so would pytest."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def is_busy(pid: int) -> bool:
    try:
        return b"PR_SET_PDEATHSIG" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
