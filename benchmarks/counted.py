"""A daemon that makes all small commits at once, however slow the disk is: for counts of calls.

    python -m cProfile -o FILE -m benchmarks.counted -m qmd --config CONFIG serve

Otherwise the speed of the disk would decide which thread makes them, and the profile has the calls
of one thread.
"""

from __future__ import annotations

import runpy
import sys

from storage.engine import writer

ALWAYS_S = 1000.0


def main() -> None:
    _, _, module, *rest = sys.argv
    writer.AT_ONCE_S = ALWAYS_S
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
