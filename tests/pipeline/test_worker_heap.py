"""Python's garbage collector in the workers of Spark."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("pyspark", reason="the extra qmd-msmq[spark] is not installed")

PROGRAM = """
import gc, sys
from importlib.util import find_spec

sys.modules["__main__"].__spec__ = find_spec(sys.argv[1])
from pipeline.source.worker_heap import begin_read

class Loop:
    def __init__(self):
        self.me = self

for _ in range(3):
    begin_read()
    garbage = Loop(); del garbage
    print(gc.get_freeze_count() > 10_000, gc.collect() > 0)
"""


def reads(main: str) -> list[str]:
    """Return whether modules are left out, and garbage is found, in three reads of a process."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, main], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_modules_are_left_out_from_the_second_read_of_a_worker_on():
    assert reads("pyspark.daemon") == ["False True", "True True", "True True"]


def test_other_processes_keep_their_collector():
    assert reads("pipeline.cli") == ["False True"] * 3
