"""`python -m tests.simulation`: live through many seeds, or through one with a trace.

    make simulate SEEDS=1000 FIRST=1     that many seeds, on all processors
    SEED=17 make simulate                one of them, line by line

Ends with exit code 0 only if every promise was kept in every world.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections import Counter
from pathlib import Path

from tests.simulation.crew import live_all
from tests.simulation.life import Life, live

REPORTS = Path("build/simulation")  # a file for each failing seed
#: Seeds that have failed once; pytest lives through them ever after.
REGRESSIONS = Path(__file__).parent / "regressions.txt"
TRACE_LINES_MAX = 400  # of such a report: the end is where it shows
BAR_CHARACTERS = 30
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
    started = time.monotonic()
    total = Life(0, [])
    failing: list[int] = []
    seen_in: Counter[str] = Counter()
    done = 0
    try:
        for done, life in enumerate(live_all(seeds, jobs), 1):
            total.messages += life.messages
            total.received += life.received
            total.taken_over += life.taken_over
            total.seconds += life.seconds
            total.cpu_s += life.cpu_s
            seen_in.update(life.seen.keys())
            if life.failures:
                failing.append(life.seed)
                print(f"\r\033[Kseed {life.seed}: {life.failures[0]}", flush=True)
                print(f"  {_replay_command(life.seed)}", flush=True)
                if stop_at_failure:
                    break
                _report(life)
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
        rare = [what for what, count in sorted(seen_in.items()) if count < RARE]
        if rare:
            print(f"hardly ever seen: {', '.join(rare)}")
    return bool(failing) or done < len(seeds)


def regressions() -> list[int]:
    """The seeds that have failed once."""
    lines = REGRESSIONS.read_text().splitlines() if REGRESSIONS.exists() else []
    return [int(line.split()[0]) for line in lines if line and not line.startswith("#")]


def _report(life: Life) -> None:
    """Live through it again, this time with a trace; and keep the seed."""
    REPORTS.mkdir(parents=True, exist_ok=True)
    trace = shortened(live(life.seed, trace=True).trace, life.failures[0])
    text = "\n".join([f"# {_replay_command(life.seed)}", *life.failures, "", *trace, ""])
    (REPORTS / f"{life.seed}.txt").write_text(text)
    if life.seed not in regressions():
        with REGRESSIONS.open("a") as file:
            file.write(f"{life.seed:<8}  {life.failures[0][:100]}\n")


def shortened(trace: list[str], failure: str) -> list[str]:
    """What happened to the world, and to the messages of which the failure speaks."""
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
