"""The console: a queue of a million messages, and fifty pages that stay open.

    python -m benchmarks.console [--messages 1000000] [--pages 50] [--seconds 4] [--rounds 5]

The promises: each page of the queue opens in less than a second, also the last one; fifty open
pages cost the daemon less than 2 % of its throughput.  The second is measured by turns: an
application sends and receives while the pages are open, then while none is, in one run.  A page
does what its script does: it reads the stream of its changes, which come every two seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from benchmarks.http import _processor_s
from qmd.client import blocking, new_message
from tests.process.console_program import Console
from tests.process.harness import Daemon

BATCH = 5000
REFRESH_S = 2.0
STEP_S = 0.5
LARGE_BYTES = 4_000_000
PROMISE_S, PROMISE_PART = 1.0, 0.02
PAGES = ("/", "/hosts/local", "/hosts/local/queues", "/hosts/local/queue?name=work",
         "/hosts/local/outgoing", "/dead-letters")  # fmt: skip


def fill(daemon: Daemon, messages: int) -> None:
    """Send messages to the queue `big`."""
    with blocking.connect(daemon.folder / "qmd.sock") as qm:
        for start in range(0, messages, BATCH):
            count = min(BATCH, messages - start)
            qm.send_many(
                [
                    new_message("big", b"<order/>", label=f"order {start + at}")
                    for at in range(count)
                ]
            )


def opening(console: Console) -> dict[str, float]:
    """Return the seconds that each page of the long queue takes."""
    client = console.client("vera")
    base = "/hosts/local/queue?" + urlencode({"name": "big"})
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


def work(daemon: Daemon, seconds: float) -> tuple[int, float]:
    """Send and receive for some time; return the messages, and the daemon's processor seconds."""
    count, before = 0, _processor_s(daemon.pid)
    with blocking.connect(daemon.folder / "qmd.sock") as qm:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            qm.send_many([new_message("work", b"x" * 200) for _ in range(50)])
            count += len(qm.receive_many("work", 50))
    return count, _processor_s(daemon.pid) - before


def open_pages(console: Console, pages: int, stop: threading.Event) -> list[threading.Thread]:
    """Open pages, each of which reads the stream of its changes until `stop` is set."""
    user = console.client("vera")
    headers = {"accept": "text/event-stream", "cookie": user.cookie}

    def one(number: int) -> None:
        path = PAGES[number % len(PAGES)]
        stop.wait(REFRESH_S * number / pages)
        connection = http.client.HTTPConnection("127.0.0.1", user.port, timeout=STEP_S)
        connection.request("GET", path, headers=headers)
        stream = connection.sock
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("content-type")) == (200, headers["accept"])
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                assert stream.recv(1 << 16), "the stream has ended"
        connection.close()

    threads = [threading.Thread(target=one, args=(number,)) for number in range(pages)]
    for thread in threads:
        thread.start()
    return threads


def cost(console: Console, pages: int, seconds: float, rounds: int) -> dict[str, Any]:
    """Return the processor seconds for a thousand messages, with and without open pages."""
    spent: dict[bool, list[float]] = {False: [], True: []}
    rates: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(2 * rounds):
        is_watched = turn % 2 == 1
        stop = threading.Event()
        threads = open_pages(console, pages, stop) if is_watched else []
        time.sleep(REFRESH_S if is_watched else 0.2)
        messages, processor_s = work(console.daemon, seconds)
        stop.set()
        for thread in threads:
            thread.join()
        spent[is_watched].append(1000 * processor_s / messages)
        rates[is_watched].append(messages / seconds)
    without, within = (statistics.median(spent[each]) for each in (False, True))
    # Of turns that follow each other: other work on the machine changes more slowly.
    quotients = [b / a for a, b in zip(spent[False], spent[True], strict=True)]
    return {
        "processor_s_for_1000": round(without, 4),
        "processor_s_for_1000_with_pages": round(within, 4),
        "cost": round(statistics.median(quotients) - 1, 4),
        "quotients": [round(each, 3) for each in quotients],
        "messages_a_second": round(statistics.median(rates[False])),
        "messages_a_second_with_pages": round(statistics.median(rates[True])),
    }


def alone(console: Console, pages: int, seconds: float) -> float:
    """Return the part of a processor that the daemon uses for open pages, without other work."""
    pid = console.daemon.pid

    def used() -> float:
        before = _processor_s(pid)
        time.sleep(seconds)
        return (_processor_s(pid) - before) / seconds

    idle, stop = used(), threading.Event()
    threads = open_pages(console, pages, stop)
    time.sleep(REFRESH_S)
    within = used()
    stop.set()
    for thread in threads:
        thread.join()
    return round(within - idle, 4)


def measure(messages: int, pages: int, seconds: float, rounds: int) -> dict[str, Any]:
    """Return all figures of one run."""
    with tempfile.TemporaryDirectory(prefix="qmd-bench-") as folder:
        daemon = Daemon(Path(folder) / "qmd", warm=False)
        console = Console(daemon, refresh="2s")
        try:
            daemon.start()
            daemon.create("big", "work", "large")
            console.start()
            fill(daemon, messages)
            return {
                "messages": messages,
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
    parser.add_argument("--pages", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = measure(given.messages, given.pages, given.seconds, given.rounds)
    if given.json:
        print(json.dumps(found))
        return
    for name, seconds in found["opens_in_s"].items():
        print(f"{name}: {seconds} s (promise: below {PROMISE_S} s)")
    print(
        f"{given.pages} open pages: {found['cost']:+.1%} of the daemon's processor time for a"
        f" message (promise: below {PROMISE_PART:.0%}); {found['messages_a_second']:,} messages a"
        f" second without, {found['messages_a_second_with_pages']:,} with them; the pages alone"
        f" take {found['pages_alone']:.1%} of a processor of the daemon"
    )


if __name__ == "__main__":
    main()
