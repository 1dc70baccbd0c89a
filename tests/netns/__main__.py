"""`python -m tests.netns`: real daemons in a hostile network, for a given time.

    python -m tests.netns --seconds 3600 [--seed N]

Exit code 0: every promise was kept.  1: the errors are listed, and the data stays.
2: this machine cannot make such a network.

"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.pair import run
from benchmarks.verdict import reasons
from tests.netns.network import Network, why_not
from tests.netns.world import Report, World

SETTLE_S = 300.0
LISTED_MAX = 40


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.netns")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--quiet", action="store_true", help="only the result")
    chosen = parser.parse_args(arguments)
    if why := why_not():
        print(f"hostile networks skipped: {why}")
        return 2
    folder = Path(tempfile.mkdtemp(prefix="qmd-netns-"))
    started = time.monotonic()
    report = _lived(folder, chosen.seed, chosen.seconds, quiet=chosen.quiet)
    print(*report.lines, sep="\n")
    print(
        f"seed {chosen.seed}: {report.kills} kills; "
        + ", ".join(f"{count} {name}" for name, count in sorted(report.harm.items()))
        + f"; {report.harmed_packets:,} packets lost or refused"
    )
    print(
        f"since the last starts {report.resent:,} resent, {report.duplicates_refused:,} duplicates"
        f" refused; settled {report.settled_s:.1f} s after the harm;"
        f" {time.monotonic() - started:.0f} s in all"
    )
    if not report.wrong:
        shutil.rmtree(folder, ignore_errors=True)
        return 0
    print("THIS IS WRONG:", *report.wrong[:LISTED_MAX], sep="\n  ")
    print(f"{len(report.wrong)} wrong; logs and data are in {folder}")
    print(f"again: python -m tests.netns --seconds {chosen.seconds:g} --seed {chosen.seed}")
    return 1


def _lived(folder: Path, seed: int, seconds: float, *, quiet: bool) -> Report:
    network = Network()
    report = Report()

    async def live() -> None:
        nonlocal report
        world = World(network, folder, seed, log=(lambda _: None) if quiet else _log)
        report = world.report
        await world.run(seconds, settle_s=SETTLE_S)

    try:
        network.open()
        run(live())
    except Exception as failure:
        report.wrong += reasons(failure)
    finally:
        network.close()
    return report


def _log(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
