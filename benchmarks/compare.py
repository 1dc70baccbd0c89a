"""A commit beside the present state, by turns: did a change make anything slower?

    python -m benchmarks.compare BASE [--rounds N] [--messages N] [--without-costs]

BASE is checked out into a folder of its own, and both states are measured by the benchmarks of the
present one.  The rounds alternate, and every second one begins with the other state, so that other
work on the machine meets both.  A ratio above 1 is more of that figure than at BASE; its spread is
that of the rounds.  The counts of `benchmarks.costs` need one round.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import pair

ROOT = Path(__file__).resolve().parents[1]
#: Figures of the end-to-end benchmark, and whether more of it is better.
FIGURES = {"messages_per_s": True, "daemons_cpu_s_per_1000": False}
DELIVERIES = ("transactional", "recoverable")
NOISE = 0.05  # ratios nearer to 1 are not commented

Figures = dict[str, Any]


@contextlib.contextmanager
def checked_out(base: str) -> Iterator[Path]:
    """Yield a folder with the state of a commit and the present benchmarks."""
    with tempfile.TemporaryDirectory(prefix="qmd-base-") as folder:
        tree = Path(folder) / "base"
        git = ("git", "-C", str(ROOT), "worktree")
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), base], check=True)
        try:
            shutil.rmtree(tree / "benchmarks")
            shutil.copytree(ROOT / "benchmarks", tree / "benchmarks")
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


async def run(tree: Path, module: str, *arguments: str) -> Figures:
    """Run a benchmark with the code of a folder, and return its figures."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", f"benchmarks.{module}", "--json", *arguments),
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree)},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        output, _ = await process.communicate()
    except asyncio.CancelledError:
        process.terminate()
        await process.wait()
        raise
    if process.returncode:
        raise SystemExit(f"benchmarks.{module} failed in {tree}")
    found: Figures = json.loads(output)
    return found


def ratio_line(name: str, ratios: list[float], *, more_is_better: bool) -> str:
    """Return a line of the table: the median of the ratios, the least and the most."""
    median = statistics.median(ratios)
    worse = median < 1 - NOISE if more_is_better else median > 1 + NOISE
    better = median > 1 + NOISE if more_is_better else median < 1 - NOISE
    comment = "  WORSE" if worse else "  better" if better else ""
    return f"{name:52}{median:8.2f}{min(ratios):8.2f}{max(ratios):8.2f}{comment}"


def flat(costs: Figures) -> dict[str, float]:
    """Return the counts of `benchmarks.costs` by scenario and count."""
    return {f"{name}, {cost}": each for name, of in costs.items() for cost, each in of.items()}


async def measure(
    tree: Path, base: str, rounds: int, messages: int, *, with_costs: bool
) -> list[str]:
    """Measure the folder of the commit `base` and the present state; return the table."""
    lines = [f"{'present state against ' + base:52}{'ratio':>8}{'least':>8}{'most':>8}"]
    if with_costs:
        before, now = flat(await run(tree, "costs")), flat(await run(ROOT, "costs"))
        lines += [
            ratio_line(name, [now[name] / before[name]], more_is_better=False)
            for name in now
            if before.get(name)
        ]
    ratios: dict[tuple[str, str], list[float]] = {}
    for number in range(rounds):
        for delivery in DELIVERIES:
            found = {}
            for folder in (tree, ROOT) if number % 2 else (ROOT, tree):
                load = ("--messages", str(messages), "--delivery", delivery)
                found[folder] = await run(folder, "bench_end_to_end", *load, "--throughput-only")
            for figure in FIGURES:
                ratio = found[ROOT][figure] / found[tree][figure]
                ratios.setdefault((delivery, figure), []).append(ratio)
        print(f"... round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    return lines + [
        ratio_line(f"{delivery}, {figure}", each, more_is_better=FIGURES[figure])
        for (delivery, figure), each in ratios.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base", help="a commit, such as HEAD~1 or main")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--without-costs", action="store_true")
    given = parser.parse_args()
    with checked_out(given.base) as tree:
        load = tree, given.base, given.rounds, given.messages
        lines = pair.run(measure(*load, with_costs=not given.without_costs))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
