"""A day of steady work: client, A, B, client, with memory, files and latency over time.

    python -m benchmarks.steady [--hours 24] [--rate 10000] [--points 24]
        [--events 256MiB] [--outcomes 1h] [--write]

The sender keeps to its schedule as long as fewer than a thousand of its messages are unconfirmed.
The receiver checks the body and the order of each message, and removes it.  Each point is measured
over an equal part of the time.  At the end the last quarter is compared with the second one, since
caches and logs fill up before: memory and files may not have grown by more than a tenth,
and the rate must be kept.  Otherwise the program names the failed figures and ends with status 1.

The event log and the results of requests grow until they reach their limits.  A shorter run needs
smaller limits: `--events` (size) and `--outcomes` (age).  `--write` draws
docs/images/scale-steady.svg and puts the table into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import json
import math
import os
import statistics
import struct
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import structlog
import uvloop

from benchmarks import pair
from benchmarks.meter import Point
from benchmarks.scale import section
from benchmarks.scale_plots import write
from qmd.client import Taken, connect

QUEUE = "steady"
BODY_BYTES = 1024
WINDOW_MESSAGES = 1000  # sent and not yet confirmed
TAKE_MESSAGES = 250
TAKES_AHEAD = 4  # takes with an unfinished removal
TICK_S = 0.01  # between two groups of messages
PATIENCE_S = 30.0  # without a message: the sender has ended
STEP = 1.02  # the width of a class of latencies
GROWTH = 1.1
KEPT_RATE = 0.95

_HEAD = struct.Struct(">QQ")  # number, time of sending in ns
_FLAT = ("memory of A, MB", "memory of B, MB", "files of A, MB", "files of B, MB")


class Latencies:
    """Latencies in classes of 2 %, so that a day needs no more memory than a minute."""

    def __init__(self) -> None:
        self._classes: Counter[int] = Counter()

    def add(self, took_ms: float) -> None:
        self._classes[math.ceil(math.log(max(took_ms, 0.001), STEP))] += 1

    @property
    def count(self) -> int:
        return self._classes.total()

    def quantile(self, part: float) -> float:
        """Return the upper end of the class in which this part of the latencies ends, in ms."""
        left = math.ceil(part * self.count)
        for each in sorted(self._classes):
            left -= self._classes[each]
            if left <= 0:
                return float(STEP**each)
        raise ValueError("there are no latencies")


async def send(socket: Path, destination: str, *, seconds: float, rate: float) -> None:
    """Send at a steady pace for so long, and print the number of messages."""
    rest = bytes(BODY_BYTES - _HEAD.size)
    sent, began_s = 0, time.monotonic()
    async with connect(socket) as here, here.sender(destination, window=WINDOW_MESSAGES) as sender:
        while (passed_s := time.monotonic() - began_s) < seconds:
            while sent < passed_s * rate:
                body = _HEAD.pack(sent, time.monotonic_ns()) + rest
                await sender.send(body, delivery="transactional")
                sent += 1
            await asyncio.sleep(TICK_S)
    print(json.dumps({"sent": sent}), flush=True)


async def receive(socket: Path, *, every_s: float) -> None:
    """Take, check and remove until no more come; print a line for each part of the time."""
    received, reported_s, latencies = 0, time.monotonic(), Latencies()
    removals: deque[asyncio.Task[None]] = deque()

    def report(*, last: bool) -> None:
        nonlocal latencies, reported_s
        now_s = time.monotonic()
        line: dict[str, Any] = {"received": received, "last": last}
        if latencies.count:
            line["messages/s"] = round(latencies.count / (now_s - reported_s))
            line["p50, ms"] = round(latencies.quantile(0.5), 2)
            line["p99, ms"] = round(latencies.quantile(0.99), 2)
        print(json.dumps(line), flush=True)
        latencies, reported_s = Latencies(), now_s

    async with connect(socket) as there:
        print("{}", flush=True)  # connected
        while taken := await there.take(QUEUE, TAKE_MESSAGES, timeout_s=PATIENCE_S):
            now_ns = time.monotonic_ns()
            for message in taken.messages:
                number, at_ns = _HEAD.unpack_from(message.body)
                if number != received:
                    raise RuntimeError(f"message {number} came, {received} was the next")
                latencies.add((now_ns - at_ns) / 1e6)
                received += 1
            removals.append(asyncio.create_task(_remove(taken)))
            while len(removals) > TAKES_AHEAD:
                await removals.popleft()
            if time.monotonic() - reported_s >= every_s:
                report(last=False)
        for removal in removals:
            await removal
        report(last=True)


async def _remove(taken: Taken) -> None:
    await taken.remove()


async def measure(*, hours: float, rate: float, points: int, limits: dict[str, str]) -> list[Point]:
    """Return the points, and print each when it is complete.  `limits`: settings of the daemons.

    Raises RuntimeError if a message is missing, doubled or out of order.
    """
    every_s, curve = hours * 3600 / points, list[Point]()
    with tempfile.TemporaryDirectory(prefix="qmd-steady-") as folder:
        a, b = (pair.Daemon(Path(folder, name), name, environment=limits) for name in ("a", "b"))
        async with pair.stopped_at_end(a, b):
            for daemon in (a, b):
                await daemon.create()
                await daemon.start()
            async with b.client() as there:
                await there.create_queue(QUEUE, transactional=True)
            async with (
                _program("receive", b, f"--every-s={every_s}") as receiver,
                _program(
                    *("send", a, f"--to={b.destination(QUEUE)}"),
                    *(f"--seconds={hours * 3600}", f"--rate={rate}"),
                ) as sender,
            ):
                await _line(receiver)
                cpu_s, received = a.cpu_s() + b.cpu_s(), 0
                while not (line := await _line(receiver))["last"]:
                    point = {"hours": round((len(curve) + 1) * every_s / 3600, 3)}
                    point |= {name: line[name] for name in ("messages/s", "p50, ms", "p99, ms")}
                    before_s, cpu_s = cpu_s, a.cpu_s() + b.cpu_s()
                    messages, received = line["received"] - received, line["received"]
                    point["CPU µs a message"] = round((cpu_s - before_s) / messages * 1e6, 1)
                    for daemon in (a, b):
                        name = daemon.name.upper()
                        point[f"memory of {name}, MB"] = round(daemon.rss_mb(), 1)
                        point[f"files of {name}, MB"] = round(_files_mb(daemon.folder), 1)
                    curve.append(point)
                    print(
                        "  ".join(f"{name} {value:,}" for name, value in point.items()), flush=True
                    )
                sent = (await _line(sender))["sent"]
                if sent != line["received"]:
                    raise RuntimeError(f"{sent} messages were sent, {line['received']} came")
                print(f"all {sent:,} messages came once and in order", flush=True)
    return curve


def grown(curve: list[Point], rate: float) -> list[str]:
    """Compare the last quarter with the second one; return a sentence for each failed figure."""
    quarter = max(len(curve) // 4, 1)
    second, last = curve[quarter : 2 * quarter] or curve[:1], curve[-quarter:]
    found = []
    for name in _FLAT:
        before, after = (statistics.median(each[name] for each in part) for part in (second, last))
        if after > before * GROWTH:
            found.append(f"{name}: {after:,.1f} in the last quarter, {before:,.1f} in the second")
    kept = statistics.median(point["messages/s"] for point in last)
    if kept < rate * KEPT_RATE:
        found.append(f"messages/s: {kept:,.0f} in the last quarter, {rate:,.0f} were due")
    return found


def _files_mb(folder: Path) -> float:
    """Return the bytes of all files of a folder; a file may go meanwhile."""
    total = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += file.stat().st_size
    return total / 1e6


@contextlib.asynccontextmanager
async def _program(
    role: str, daemon: pair.Daemon, *more: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.steady", "--role", role),
        *("--socket", str(daemon.control_socket), *more),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _line(program: asyncio.subprocess.Process) -> dict[str, Any]:
    assert program.stdout is not None
    line = await program.stdout.readline()
    if not line:
        raise RuntimeError("a client failed: see above")
    found: dict[str, Any] = json.loads(line)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--rate", type=float, default=10_000.0, help="messages a second")
    parser.add_argument("--points", type=int, default=24, help="parts of the time, at least 4")
    parser.add_argument("--events", default="256MiB", help="size of each event log")
    parser.add_argument("--outcomes", default="1h", help="age of the results of requests")
    parser.add_argument("--write", action="store_true")
    for of_a_client in ("--role", "--socket", "--to"):
        parser.add_argument(of_a_client, help=argparse.SUPPRESS)
    for of_a_client in ("--seconds", "--every-s"):
        parser.add_argument(of_a_client, type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.role == "send":
        return uvloop.run(
            send(Path(given.socket), given.to, seconds=given.seconds, rate=given.rate)
        )
    if given.role == "receive":
        return uvloop.run(receive(Path(given.socket), every_s=given.every_s))
    if given.points < 4:
        parser.error("the second and the last quarter are compared: give at least 4 points")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    before = os.getloadavg()[0]
    limits = {
        "QMD_EVENTS_SIZE": given.events,
        "QMD_TRANSACTIONS_OUTCOME_AGE": given.outcomes,
    }
    curve = pair.run(
        measure(hours=given.hours, rate=given.rate, points=given.points, limits=limits)
    )
    about = (
        f"{datetime.datetime.now(datetime.UTC).date()}, `--hours {given.hours:g} --rate"
        f" {given.rate:g} --events {given.events} --outcomes {given.outcomes}`,"
        f" {os.cpu_count()} processors, load average {before:.1f} before and"
        f" {os.getloadavg()[0]:.1f} after it."
    )
    print(about)
    if given.write:
        write({"steady": section("steady", curve, about)})
    found = grown(curve, given.rate)
    print("\n".join(found) or "memory and files stayed flat, and the rate was kept")
    if found:
        raise SystemExit(1)
    return None


if __name__ == "__main__":
    main()
