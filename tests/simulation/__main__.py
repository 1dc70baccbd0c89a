"""`python -m tests.simulation`: run many seeds, or one with a trace.

    make simulate SEEDS=1000 FIRST=1     runs that many seeds on all processors
    SEED=17 make simulate                prints the trace of one

Exit code 0 means that every promise was kept in every world.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections import Counter
from pathlib import Path

from tests.simulation.seed_run import SeedResult, run_seed
from tests.simulation.worker_pool import run_seeds

REPORTS = Path("build/simulation")  # a file for each failing seed
#: Seeds that have failed once; pytest runs them from then on.
REGRESSIONS = Path(__file__).parent / "regressions.txt"
TRACE_LINES_MAX = 400  # the last lines of a report's trace
BAR_CHARACTERS = 30
RARE = 3  # events of fewer seeds are printed


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--stop-at-failure", action="store_true")
    parser.add_argument("--seed", type=int, help="only this one, with its trace")
    chosen = parser.parse_args(arguments)
    if chosen.seed is not None:
        return replay(chosen.seed)
    return search(
        range(chosen.first, chosen.first + chosen.seeds),
        jobs=chosen.jobs,
        stop_at_failure=chosen.stop_at_failure,
    )


def replay(seed: int) -> int:
    result = run_seed(seed, trace=True)
    try:
        print(*result.trace, sep="\n")
        for failure in result.failures:
            print(f"FAILED {failure}")
    except BrokenPipeError:  # the reader of the output has ended
        sys.stderr.close()
    return bool(result.failures)


def search(seeds: range, *, jobs: int, stop_at_failure: bool) -> int:
    started = time.monotonic()
    total = SeedResult(0, [])
    failing: list[int] = []
    seen_in: Counter[str] = Counter()
    done = 0
    try:
        for done, result in enumerate(run_seeds(seeds, jobs), 1):
            total.messages += result.messages
            total.received += result.received
            total.taken_over += result.taken_over
            total.seconds += result.seconds
            total.cpu_s += result.cpu_s
            seen_in.update(result.seen.keys())
            if result.failures:
                failing.append(result.seed)
                print(f"\r\033[Kseed {result.seed}: {result.failures[0]}", flush=True)
                print(f"  {_replay_command(result.seed)}", flush=True)
                if stop_at_failure:
                    break
                _report(result)
            _show_progress(done, len(seeds), len(failing), time.monotonic() - started)
    except KeyboardInterrupt:
        print("\r\033[Kinterrupted")
    cpu_s = max(total.cpu_s, 1e-9)
    print(
        f"\r\033[K{done} seeds, {len(failing)} failed; {total.messages:,} messages,"
        f" {total.seconds / 3600:.1f} simulated hours; {total.deliveries:,} deliveries:"
        f" {total.received:,} to applications, {total.taken_over:,} to queue managers;"
        f" {total.deliveries / cpu_s:,.0f} ({total.received / cpu_s:,.0f} to applications) and"
        f" {done / cpu_s:.1f} seeds in a second of CPU; {time.monotonic() - started:.0f} s"
    )
    if done > 100:
        rare = [event for event, count in sorted(seen_in.items()) if count < RARE]
        if rare:
            print(f"rare events: {', '.join(rare)}")
    return bool(failing) or done < len(seeds)


def regressions() -> list[int]:
    """Return the seeds that have failed once."""
    lines = REGRESSIONS.read_text().splitlines() if REGRESSIONS.exists() else []
    return [int(line.split()[0]) for line in lines if line and not line.startswith("#")]


def _report(result: SeedResult) -> None:
    """Run a failed seed again with a trace, write its report, and record the seed."""
    REPORTS.mkdir(parents=True, exist_ok=True)
    trace = shortened(run_seed(result.seed, trace=True).trace, result.failures[0])
    text = "\n".join([f"# {_replay_command(result.seed)}", *result.failures, "", *trace, ""])
    (REPORTS / f"{result.seed}.txt").write_text(text)
    if result.seed not in regressions():
        with REGRESSIONS.open("a") as file:
            file.write(f"{result.seed:<8}  {result.failures[0][:100]}\n")


def shortened(trace: list[str], failure: str) -> list[str]:
    """Return the trace lines of the world, and of the messages that the failure names."""
    named = set(re.findall(r"\b\d+\b", failure.partition(" s: ")[2]))
    lines = [
        line
        for line in trace
        if " net " not in line
        and (line.split()[1] not in ("send", "received") or named.intersection(line.split()[2:4]))
    ]
    return lines[-TRACE_LINES_MAX:]


def _replay_command(seed: int) -> str:
    return f"SEED={seed} make simulate"


def _show_progress(done: int, of: int, failed: int, elapsed_s: float) -> None:
    if not sys.stdout.isatty():
        return
    filled = BAR_CHARACTERS * done // of
    left_s = elapsed_s / done * (of - done)
    bar = "#" * filled + "." * (BAR_CHARACTERS - filled)
    print(f"\r\033[K[{bar}] {done}/{of}, {failed} failed, {left_s:.0f} s left", end="", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
