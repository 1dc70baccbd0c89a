"""The longest 1 % of messages at 200 a second, by cause.

    python -m benchmarks.tail [--seconds N] [--rate N] [--real-time]

With `--real-time` (as root) the daemons and the clients go before all other processes: the rest is
what qmd and the disk do themselves.

Client, A, B, client, as in the end-to-end benchmark; the daemons note their commits
(`tail_hooks.py`), and this program reads how long each thread has waited for a processor.  The way
of a message has legs, from the application's send to the application that has it; their medians are
printed.  The time is divided among these causes:

    disk             COMMIT has waited: the fdatasync
    rows             the rest of the commit's processor time
    history          the part of it for events and results
    interpreter      the commit has waited for the interpreter, or for the hand-over between threads
    processor        a thread was ready and had no processor: other work on the machine
    checkpoint, vacuum, garbage collection
    work             the rest: the event loops, the sockets and the clients
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import threading
import time
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks import pair
from benchmarks.bench_end_to_end import QUEUE, _client, _report, fdatasync_ms

SAMPLE_S = 0.001
WARM_UP = 400
CAUSES = (
    *("disk", "rows", "history", "interpreter", "processor"),
    *("checkpoint", "vacuum", "garbage collection", "work"),
)

#: The legs of a message, each from the end of the one before it.
LEGS = (
    "client to A's read",
    *("A: read to commit", "A: rows", "A: COMMIT", "A: COMMIT to packet", "hop to B's read"),
    *("B: read to commit", "B: rows", "B: COMMIT", "B: COMMIT to answer", "hop to the client"),
)
#: The points of a daemon before and after its commit.
POINTS = (("request", "sent"), ("packet", "answer"))

Span = dict[str, Any]
Causes = Counter[str]


class Waits:
    """How long some threads have waited for a processor, sampled by a thread of this program."""

    def __init__(self, pids: list[int]) -> None:
        self._files = [os.open(f"/proc/{pid}/schedstat", os.O_RDONLY) for pid in pids]
        self.times: list[int] = []
        self.waited: list[list[int]] = [[] for _ in pids]
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ends.wait(SAMPLE_S):
            self.times.append(time.monotonic_ns())
            for file, found in zip(self._files, self.waited, strict=True):
                try:
                    found.append(int(os.pread(file, 100, 0).split()[1]))
                except OSError:  # it has ended
                    found.append(found[-1] if found else 0)

    def end(self) -> None:
        self._ends.set()
        self._thread.join()
        for file in self._files:
            os.close(file)

    def between(self, which: int, begin: int, end: int) -> float:
        """Return how long a thread has waited between two times, in ns, as far as is sampled."""
        first = max(bisect_left(self.times, begin) - 1, 0)
        last = min(bisect_left(self.times, end), len(self.times) - 1)
        if last <= first:
            return 0.0
        waited = self.waited[which][last] - self.waited[which][first]
        return min(waited, end - begin)


@dataclass
class Daemon:
    """Spans that one daemon has noted."""

    commits: list[Span] = field(default_factory=list)
    others: list[Span] = field(default_factory=list)  # checkpoints, collections, ...
    points: dict[str, list[int]] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> Daemon:
        found = cls()
        for line in file.read_text().splitlines():
            span = json.loads(line)
            if "points" in span:
                found.points[span["name"]] = span["points"]
                continue
            (found.commits if span["name"] == "write" else found.others).append(span)
        found.commits.sort(key=lambda span: int(span["queued"]))
        return found

    def commit_after(self, at: int) -> Span | None:
        """Return the first commit that was submitted at `at` or later."""
        index = bisect_left(self.commits, at, key=lambda span: int(span["queued"]))
        return self.commits[index] if index < len(self.commits) else None

    def divide(self, begin: int, end: int, causes: Causes) -> float:
        """Divide the part of a time in which other commits and spans were running; return it."""
        covered = 0.0
        index = bisect_left(self.commits, begin, key=lambda span: int(span["heard"]))
        for span in self.commits[index : index + 3]:
            first, last = max(begin, span["queued"]), min(end, span["heard"])
            if last > first:
                covered += last - first
                share = (last - first) / (span["heard"] - span["queued"])
                for cause, ns in parts(span, self.others).items():
                    causes[cause] += ns * share
        for span in self.others:
            if span["name"].startswith("collection"):
                common = overlap(span, begin, end)
                covered += common
                causes["garbage collection"] += common
        return min(covered, end - begin)


def overlap(span: Span, begin: int, end: int) -> float:
    return max(0, min(end, span["ended"]) - max(begin, span["begun"]))


def parts(commit: Span, others: list[Span]) -> Causes:
    """Divide the time of a commit, from its submission until the event loop hears of it, in ns."""
    zero = (0, 0, 0)
    wall, on, waited = commit.get("all", zero)
    disk_wall, disk_on, disk_waited = commit.get("disk", zero)
    history, vacuum = commit.get("history", zero), commit.get("vacuum", zero)
    found: Causes = Counter()
    found["disk"] = max(disk_wall - disk_on - disk_waited, 0)
    found["history"] = history[1]
    found["vacuum"] = vacuum[0]
    found["rows"] = max(on - history[1] - vacuum[1], 0)
    found["processor"] = waited
    found["interpreter"] = max(wall - on - waited - found["disk"] - vacuum[0] + vacuum[1], 0)
    queued = commit["begun"] - commit["queued"]
    for span in others:  # on the same thread before it
        if span["name"] in ("checkpoint", "vacuum"):
            common = overlap(span, commit["queued"], commit["begun"])
            found[span["name"]] += common
            queued -= common
    found["interpreter"] += max(queued, 0) + max(commit["heard"] - commit["ended"], 0)
    return found


def legs_of(sent: int, given: int, daemons: list[Daemon]) -> list[int] | None:
    """Return the duration of each leg in ns; None: a point of the message is not known."""
    ends = [sent]
    for daemon, (before, after) in zip(daemons, POINTS, strict=True):
        read = _next(daemon.points[before], ends[-1])
        commit = None if read is None else daemon.commit_after(read)
        if read is None or commit is None:
            return None
        ended = commit["ended"]
        written = _next(daemon.points[after], ended)
        if written is None or written > given:
            return None
        disk = commit.get("disk", (0, 0, 0))[0]
        ends += [read, commit["begun"], ended - disk, ended, written]
    ends.append(given)
    return [end - begin for begin, end in pairwise(ends)]


def _next(times: list[int], at: int) -> int | None:
    """Return the first of sorted times that is not before `at`."""
    index = bisect_left(times, at)
    return times[index] if index < len(times) else None


def causes_of(
    sent: int, given: int, daemons: list[Daemon], waits: Waits, threads: list[int]
) -> Causes:
    """Divide the time of a message, in ns; `threads` are the indexes of the daemons' loops."""
    causes: Causes = Counter()
    at = sent
    for daemon, loop in zip(daemons, threads, strict=True):
        commit = daemon.commit_after(at)
        if commit is None or commit["heard"] > given:
            break
        covered = daemon.divide(at, commit["queued"], causes)
        _rest(causes, at, commit["queued"], covered, waits, loop)
        hand_over = commit["heard"] - commit["ended"]
        for cause, ns in parts(commit, daemon.others).items():
            causes[cause] += ns
        waited = min(waits.between(loop, commit["ended"], commit["heard"]), hand_over)
        causes["interpreter"] -= waited  # the loop had no processor
        causes["processor"] += waited
        at = commit["heard"]
    _rest(causes, at, given, 0.0, waits, len(waits.waited) - 1)
    return causes


def _rest(causes: Causes, begin: int, end: int, covered: float, waits: Waits, thread: int) -> None:
    rest = max(end - begin - covered, 0)
    waited = min(waits.between(thread, begin, end), rest)
    causes["processor"] += waited
    causes["work"] += rest - waited


async def measure(
    seconds: float, rate: float, *, after: int = 0
) -> tuple[list[tuple[int, Causes]], list[list[int]], Causes]:
    """Return the time of each message in ns with its causes, legs, and the counts of spans."""
    with tempfile.TemporaryDirectory(prefix="qmd-tail-") as name:
        folder = Path(name)
        daemons = [
            pair.Daemon(
                folder / each,
                each,
                python=("-m", "benchmarks.tail_hooks", str(folder / f"{each}.spans")),
            )
            for each in "ab"
        ]
        a, b = daemons
        async with pair.stopped_at_end(a, b):
            for daemon in daemons:
                await daemon.create()
                await daemon.start()
            async with b.client() as there:
                await there.create_queue(QUEUE, transactional=True)
            if after:
                burst = ("--messages", str(after), "--body-bytes", "1024")
                async with (
                    _client("receive", b, QUEUE, *burst) as receiver,
                    _client("send", a, b.destination(QUEUE), *burst) as sender,
                ):
                    await _report(sender)
                    await _report(receiver)
            times = folder / "times"
            count = int(seconds * rate) + WARM_UP
            common = ("--messages", str(count), "--body-bytes", "1024")
            async with (
                _client("receive", b, QUEUE, *common, "--times", str(times)) as receiver,
                _client(
                    *("send", a, b.destination(QUEUE), *common, "--rate-per-s", str(rate))
                ) as sender,
            ):
                waits = Waits([a.pid, b.pid, receiver.pid])
                try:
                    await _report(sender)
                    await _report(receiver)
                finally:
                    waits.end()
            await asyncio.gather(a.stop(), b.stop())
        noted = [Daemon.read(folder / f"{each}.spans") for each in "ab"]
        messages = json.loads(times.read_text())[WARM_UP:]
    counts = Counter(span["name"] for daemon in noted for span in daemon.others)
    divided = [
        (given - sent, causes_of(sent, given, noted, waits, [0, 1])) for sent, given in messages
    ]
    legs = [legs_of(sent, given, noted) for sent, given in messages]
    return divided, [each for each in legs if each is not None], counts


def table(messages: list[tuple[int, Causes]]) -> list[str]:
    """Return a table of the longest 1 %, and of all messages, by cause."""
    ranked = sorted(messages, key=lambda each: -each[0])
    tail = ranked[: max(len(ranked) // 100, 1)]
    lines = [f"{'cause':20}{'longest 1 %: ms':>18}{'share':>8}{'largest of':>12}{'all: ms':>10}"]
    largest = Counter(max(causes, key=lambda cause: causes[cause]) for _, causes in tail)
    total = sum(took for took, _ in tail) or 1
    for cause in CAUSES:
        ns = sum(causes[cause] for _, causes in tail)
        everywhere = statistics.fmean(causes[cause] for _, causes in ranked) / 1e6
        lines.append(
            f"{cause:20}{ns / len(tail) / 1e6:18.2f}{ns / total:8.0%}{largest[cause]:12}"
            f"{everywhere:10.2f}"
        )
    mean, of_all = total / len(tail) / 1e6, statistics.fmean(took for took, _ in ranked) / 1e6
    lines.append(f"{'all':20}{mean:18.2f}{'':8}{len(tail):12}{of_all:10.2f}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=200.0, help="messages a second")
    parser.add_argument("--real-time", action="store_true")
    parser.add_argument(
        "--after", type=int, default=0, help="messages that are sent before, as fast as possible"
    )
    given = parser.parse_args()
    if given.real_time:  # and all children
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    load, sync = os.getloadavg()[0], fdatasync_ms()
    messages, legs, counts = pair.run(measure(given.seconds, given.rate, after=given.after))
    took_ms = sorted(took / 1e6 for took, _ in messages)
    print(
        f"{len(took_ms)} messages: p50 {took_ms[len(took_ms) // 2]:.1f} ms,"
        f" p99 {took_ms[int(len(took_ms) * 0.99)]:.1f} ms, longest {took_ms[-1]:.1f} ms;"
        f" load average {load:.1f}, an fdatasync {sync[0]} ms (p99 {sync[1]})"
    )
    print("in both daemons: " + (", ".join(f"{n} of {name}" for name, n in counts.items()) or "-"))
    print(f"medians of the legs of {len(legs)} messages, µs")
    for name, column in zip(LEGS, zip(*legs, strict=True), strict=True):
        print(f"    {name:24}{statistics.median(column) / 1e3:8.0f}")
    print("\n".join(table(messages)))


if __name__ == "__main__":
    main()
