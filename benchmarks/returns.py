"""How soon a host that was away is used again, and how fast what waited for it is delivered.

    python -m benchmarks.returns [--away SECONDS] [--messages N] [--rounds N]

Daemon B is killed, an application sends messages to its queue over A, and B starts again after a
while.  The first figure is the time from B's readiness until an application at B has the first
message; goal: 2 s.  The second is the rate at which the others follow.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from benchmarks.pair import Daemon, run, stopped_at_end
from qmd.client.new_message import new_message

QUEUE = "orders"
BATCH = 500
BODY = bytes(1024)
GOAL_S = 2.0
PATIENCE_S = 60.0


async def away(a: Daemon, b: Daemon, seconds: float, messages: int) -> tuple[float, float]:
    """Return the seconds until the first message after a return, and the messages a second."""
    await b.kill()
    began_s = time.monotonic()
    async with a.client() as here:
        for begin in range(0, messages, BATCH):
            count = min(BATCH, messages - begin)
            row = new_message(b.destination(QUEUE), BODY, delivery="transactional")
            await here.send_many([row] * count)
    await asyncio.sleep(max(began_s + seconds - time.monotonic(), 0))
    await b.start()
    ready_s = time.monotonic()
    async with b.client() as there:
        left, first_s = messages, 0.0
        while left:
            taken = await there.take(QUEUE, BATCH, timeout_s=PATIENCE_S)
            if not taken:
                raise SystemExit(f"{left} of {messages} messages did not come")
            first_s = first_s or time.monotonic()
            await taken.remove()
            left -= len(taken.messages)
    return first_s - ready_s, messages / (time.monotonic() - first_s)


async def measure(seconds: list[float], messages: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory(prefix="qmd-returns-") as folder:
        a, b = (Daemon(Path(folder) / name, name) for name in "ab")
        async with stopped_at_end(a, b):
            for daemon in (a, b):
                await daemon.create()
                await daemon.start()
            async with b.client() as there:
                await there.create_queue(QUEUE, transactional=True)
            await away(a, b, 0.0, 1)  # their first session
            print(f"{'away, s':>8}{'first message, s':>18}{'then messages/s':>17}")
            for each in seconds * rounds:
                first_s, rate = await away(a, b, each, messages)
                missed = "  later than the goal" if first_s > GOAL_S else ""
                print(f"{each:8.0f}{first_s:18.2f}{rate:17,.0f}{missed}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--away", type=float, nargs="+", default=[3.0, 10.0, 25.0], metavar="S")
    parser.add_argument("--messages", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    run(measure(given.away, given.messages, given.rounds))


if __name__ == "__main__":
    main()
