"""`python -m tests.simulation`: live through many seeds, or through one with a trace.

    make simulate SEEDS=1000 FIRST=1     that many seeds, on all processors
    SEED=17 make simulate                one of them, line by line

Ends with exit code 0 only if every promise was kept in every world.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.simulation.life import Life, live

REPORTS = Path("build/simulation")  # a file for each failing seed
TRACE_LINES_MAX = 400  # of such a report: the end is where it shows
BAR_CHARACTERS = 30
SEEDS_PER_PROCESS = 500  # then a new one takes its place: memory stays bounded
RARE = 3  # what happened in fewer seeds is pointed out


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
    life = live(seed, trace=True)
    try:
        print(*life.trace, sep="\n")
        for failure in life.failures:
            print(f"FAILED {failure}")
    except BrokenPipeError:  # enough was read
        sys.stderr.close()
    return bool(life.failures)


def search(seeds: range, *, jobs: int, stop_at_failure: bool) -> int:
    started, cpu_started = time.monotonic(), _cpu_s()
    failing: list[int] = []
    total = Life(0, [])
    seen_in: Counter[str] = Counter()
    for done, life in enumerate(_live_all(seeds, jobs), 1):
        total.messages += life.messages
        total.received += life.received
        total.deliveries += life.deliveries
        total.seconds += life.seconds
        seen_in.update(life.seen.keys())
        if life.failures:
            failing.append(life.seed)
            print(f"\r\033[Kseed {life.seed}: {life.failures[0]}", flush=True)
            print(f"  {_replay_command(life.seed)}", flush=True)
            _report(life.seed)
        _show_progress(done, len(seeds), len(failing), time.monotonic() - started)
        if failing and stop_at_failure:
            break
    cpu_s = max(_cpu_s() - cpu_started, 1e-9)
    print(
        f"\r\033[K{done} seeds, {len(failing)} failed; {done / cpu_s:.1f} seeds,"
        f" {total.received / cpu_s:,.0f} messages received and {total.deliveries / cpu_s:,.0f}"
        f" pieces delivered in a second of CPU; {total.messages:,} messages,"
        f" {total.seconds / 3600:.1f} simulated hours"
    )
    if done > 100:
        rare = [what for what, count in sorted(seen_in.items()) if count < RARE]
        if rare:
            print(f"hardly ever seen: {', '.join(rare)}")
    return bool(failing)


def _live_all(seeds: range, jobs: int) -> Iterator[Life]:
    if jobs == 1:
        yield from map(live, seeds)
        return
    context = multiprocessing.get_context("fork")
    with context.Pool(jobs, maxtasksperchild=SEEDS_PER_PROCESS) as pool:
        yield from pool.imap_unordered(live, seeds)


def _report(seed: int) -> None:
    """Live through it again, this time with a trace."""
    life = live(seed, trace=True)
    REPORTS.mkdir(parents=True, exist_ok=True)
    lines = [line for line in life.trace if " net " not in line][-TRACE_LINES_MAX:]
    text = "\n".join([f"# {_replay_command(seed)}", *life.failures, "", *lines, ""])
    (REPORTS / f"{seed}.txt").write_text(text)


def _replay_command(seed: int) -> str:
    return f"SEED={seed} make simulate"


def _show_progress(done: int, of: int, failed: int, elapsed_s: float) -> None:
    if not sys.stdout.isatty():
        return
    filled = BAR_CHARACTERS * done // of
    left_s = elapsed_s / done * (of - done)
    bar = "#" * filled + "." * (BAR_CHARACTERS - filled)
    print(f"\r\033[K[{bar}] {done}/{of}, {failed} failed, {left_s:.0f} s left", end="", flush=True)


def _cpu_s() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
