"""The console: a queue of a million messages, and fifty pages that stay open.

    python -m benchmarks.console [--messages 1000000] [--outgoing 100000] [--pages 50]
        [--seconds 4] [--rounds 40]

The promises: each page of the queue opens in less than a second, also the last one, and so do those
of `--outgoing` messages for a host that is away; fifty open pages cost the daemon less than 2 % of
its throughput.  The second is measured by turns: an application sends and receives while the
console works, then while it is stopped by a signal, with the same open pages.  A page does what its
script does: it reads the stream of its changes, which come every two seconds.

The daemon's processor time for a message is compared, not messages a second: other work on the
machine takes time, but hardly changes that.  The pages ask as often on a busy machine as on an idle
one, so what they cost is a part of a processor; a daemon at its limit uses one.  Turns follow each
other until that part is known well enough, or there were `--rounds` of each kind.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import multiprocessing
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from benchmarks.http import _processor_s
from qmd.client import blocking, new_message
from tests.process.console_program import Console
from tests.process.harness import Daemon

BATCH = 5000
REFRESH_S = 2.0
EVENTS = "text/event-stream"
ANSWER_S = 120.0  # of a page on a busy machine
ROUNDS_MIN = 6
ENOUGH = 0.003  # the 95 % interval of the cost ends so far from it, as a part of a processor
LARGE_BYTES = 4_000_000
AWAY = "DIRECT=TCP:127.0.0.9:9\\private$\\big"  # nothing listens at the discard port
PROMISE_S, PROMISE_PART = 1.0, 0.02
PAGES = ("/", "/hosts/local", "/hosts/local/queues", "/hosts/local/queue?name=work",
         "/hosts/local/outgoing", "/dead-letters")  # fmt: skip


def fill(daemon: Daemon, destination: str, messages: int) -> None:
    """Send messages to a queue."""
    with blocking.connect(daemon.folder / "qmd.sock") as qm:
        for start in range(0, messages, BATCH):
            count = min(BATCH, messages - start)
            qm.send_many(
                [
                    new_message(destination, b"<order/>", label=f"order {start + at}")
                    for at in range(count)
                ]
            )


def opening(console: Console) -> dict[str, float]:
    """Return the seconds that each page of the long queue takes."""
    client = console.client("vera")
    base = "/hosts/local/queue?" + urlencode({"name": "big"})
    outgoing = "/hosts/local/destination?" + urlencode({"name": AWAY})
    with blocking.connect(console.daemon.folder / "qmd.sock") as qm:
        ends = [qm.look("big", which) for which in ("first", "last")]
        qm.send("large", b"<order id='1'><item/></order>" * (LARGE_BYTES // 29), label="large")
        large = qm.look("large", "first")
    assert large is not None
    message = "/hosts/local/message?" + urlencode({"queue": "large", "id": large.lookup_id})
    assert ends[0] is not None
    assert ends[1] is not None
    middle = (ends[0].lookup_id + ends[1].lookup_id) // 2
    figures = {}
    for name, path in {
        "the first page": base,
        "a page in the middle": f"{base}&from={middle}",
        "the last page": f"{base}&last=1",
        "one step of a search": f"{base}&text=nothing&part=label&part=body",
        "the queues": "/hosts/local/queues",
        "the oldest messages": "/oldest",
        "the first page of an outgoing queue": outgoing,
        "one step of a search in an outgoing queue": f"{outgoing}&text=nothing",
        "a body of 4 MB": message,
        "a body of 4 MB, as much as is shown": f"{message}&all=1",
    }.items():
        times = []
        for _ in range(5):
            began = time.perf_counter()
            answer = client.get(path)
            times.append(time.perf_counter() - began)
            assert answer.status == 200, path
        figures[name] = round(statistics.median(times), 3)
    return figures


class Turn(NamedTuple):
    """The work of an application for some time."""

    messages: int
    processor_s: float  # of the daemon
    seconds: float


def work(daemon: Daemon, seconds: float) -> Turn:
    """Send and receive for some time."""
    count, before, began = 0, _processor_s(daemon.pid), time.monotonic()
    with blocking.connect(daemon.folder / "qmd.sock") as qm:
        while time.monotonic() < began + seconds:
            qm.send_many([new_message("work", b"x" * 200) for _ in range(50)])
            count += len(qm.receive_many("work", 50))
    return Turn(count, _processor_s(daemon.pid) - before, time.monotonic() - began)


@contextlib.contextmanager
def open_pages(console: Console, pages: int) -> Iterator[None]:
    """Open pages, each of which reads the stream of its changes; close them at the end.

    A process of its own reads them: it must not share the interpreter of the application.
    """
    user, context = console.client("vera"), multiprocessing.get_context("spawn")
    opened = context.Semaphore(0)
    reader = context.Process(
        target=_read_pages, args=(user.port, user.cookie, pages, opened), daemon=True
    )
    reader.start()
    try:
        for _ in range(pages):
            assert opened.acquire(timeout=ANSWER_S), "a page did not open"
        yield
        assert reader.is_alive(), "a stream has ended"
    finally:
        reader.kill()
        reader.join()


def _read_pages(port: int, cookie: str, pages: int, opened: Any) -> None:
    async def one(number: int) -> None:
        await asyncio.sleep(REFRESH_S * number / pages)  # users do not begin together
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"GET {PAGES[number % len(PAGES)]} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n"
        writer.write(f"{head}cookie: {cookie}\r\naccept: {EVENTS}\r\n\r\n".encode())
        answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        assert answer.startswith("http/1.1 200"), answer
        assert f"content-type: {EVENTS}" in answer, answer
        opened.release()
        while await reader.read(1 << 16):
            pass
        raise AssertionError("the stream has ended")

    async def every() -> None:
        await asyncio.gather(*map(one, range(pages)))

    asyncio.run(every())


def cost(console: Console, pages: int, seconds: float, rounds: int) -> dict[str, Any]:
    """Return the part of a processor that open pages cost, and the rates of messages."""
    watched: list[Turn] = []
    unwatched: list[Turn] = []
    parts: list[float] = []
    with open_pages(console, pages):
        work(console.daemon, seconds)
        while len(parts) < rounds:
            for turns in (unwatched, watched) if len(parts) % 2 else (watched, unwatched):
                with contextlib.nullcontext() if turns is watched else stopped(console):
                    turns.append(work(console.daemon, seconds))
            within, without = watched[-1], unwatched[-1]
            for_messages_s = within.messages * without.processor_s / without.messages
            parts.append((within.processor_s - for_messages_s) / within.seconds)
            if len(parts) >= ROUNDS_MIN:
                low, high = interval(parts)
                if high - low < 2 * ENOUGH:
                    break
    low, high = interval(parts)

    def for_1000_s(turns: list[Turn]) -> float:
        return statistics.median(1000 * each.processor_s / each.messages for each in turns)

    def rate(turns: list[Turn]) -> int:
        return round(statistics.median(each.messages / each.seconds for each in turns))

    return {
        "rounds": len(parts),
        "cost": round(statistics.median(parts), 4),
        "cost_low": round(low, 4),
        "cost_high": round(high, 4),
        "processor_s_for_1000": round(for_1000_s(unwatched), 4),
        "processor_s_for_1000_with_pages": round(for_1000_s(watched), 4),
        "messages_a_second": rate(unwatched),
        "messages_a_second_with_pages": rate(watched),
    }


@contextlib.contextmanager
def stopped(console: Console) -> Iterator[None]:
    """Stop the console by a signal, so that its pages ask nothing."""
    assert console.process is not None
    os.kill(console.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(console.process.pid, signal.SIGCONT)


def interval(parts: list[float]) -> tuple[float, float]:
    """Return the interval that has the true median with 95 %, by the order of the values."""
    ordered, count = sorted(parts), len(parts)
    skipped = max(0, math.floor((count - 1.96 * math.sqrt(count)) / 2))
    return ordered[skipped], ordered[count - 1 - skipped]


def alone(console: Console, pages: int, seconds: float) -> float:
    """Return the part of a processor that the daemon uses for open pages, without other work."""
    pid = console.daemon.pid

    def used() -> float:
        before = _processor_s(pid)
        time.sleep(seconds)
        return (_processor_s(pid) - before) / seconds

    idle = used()
    with open_pages(console, pages):
        time.sleep(REFRESH_S)
        within = used()
    return round(within - idle, 4)


def measure(
    messages: int, outgoing: int, pages: int, seconds: float, rounds: int
) -> dict[str, Any]:
    """Return all figures of one run."""
    with tempfile.TemporaryDirectory(prefix="qmd-bench-") as folder:
        daemon = Daemon(Path(folder) / "qmd", warm=False)
        console = Console(daemon, refresh="2s")
        try:
            daemon.start()
            daemon.create("big", "work", "large")
            console.start()
            fill(daemon, "big", messages)
            fill(daemon, AWAY, outgoing)
            return {
                "messages": messages,
                "outgoing": outgoing,
                "pages": pages,
                "opens_in_s": opening(console),
                "pages_alone": alone(console, pages, 4 * seconds),
                **cost(console, pages, seconds, rounds),
            }
        finally:
            console.kill()
            daemon.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--outgoing", type=int, default=100_000)
    parser.add_argument("--pages", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = measure(given.messages, given.outgoing, given.pages, given.seconds, given.rounds)
    if given.json:
        print(json.dumps(found))
        return
    for name, seconds in found["opens_in_s"].items():
        print(f"{name}: {seconds} s (promise: below {PROMISE_S} s)")
    print(
        f"{given.pages} open pages cost the daemon {found['cost']:.1%} of a processor"
        f" ({found['cost_low']:.1%} to {found['cost_high']:.1%}, {found['rounds']} rounds; promise:"
        f" below {PROMISE_PART:.0%}); {found['messages_a_second']:,} messages a second without,"
        f" {found['messages_a_second_with_pages']:,} with them; without other work the pages take"
        f" {found['pages_alone']:.1%}"
    )


if __name__ == "__main__":
    main()
