"""The time of a take-over: from the kill of the active daemon to the first answer of the standby.

Also the processor time of the standby in it, which other work on the machine does not stretch.

python -m benchmarks.bench_standby [--messages N] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import pair
from qmd.client.errors import NotConnected

WINDOW_MESSAGES = 4096
BODY = bytes(1500)


async def measure(messages: int) -> dict[str, float]:
    """Return the seconds of the take-over with so many stored messages."""
    with tempfile.TemporaryDirectory() as folder:
        active = pair.Daemon(Path(folder) / "daemon", "standby")
        await active.create()
        await active.start()
        async with active.client() as qm:
            await qm.create_queue("backlog")
            async with qm.sender("backlog", window=WINDOW_MESSAGES) as sender:
                for _ in range(messages):
                    await sender.send(BODY, delivery="recoverable")
        other = pair.Daemon(active.folder, "standby")
        with active.log.open("ab") as log:
            standby = other.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "qmd", "--config", str(active.config)),
                *("serve", "--standby"),
                env=os.environ | {"QMD_QUEUE_MANAGER_RUN_AS_ROOT": "true"},
                stdout=log,
                stderr=log,
            )
        try:
            await asyncio.sleep(3)  # until it waits
            began, cpu_s = time.monotonic(), other.cpu_s()
            await active.kill()
            status = await _first_answer(active)
            taken_s, cpu_s = time.monotonic() - began, other.cpu_s() - cpu_s
            assert status["messages"] == messages, "a message is missing"
        finally:
            standby.kill()
            await standby.wait()
    return {"messages": messages, "take_over_s": taken_s, "standby_cpu_s": cpu_s}


async def _first_answer(daemon: pair.Daemon) -> dict[str, Any]:
    """Connect until a daemon answers; return its status."""
    while True:
        try:
            async with daemon.client() as qm:
                return dict(await qm.status())
        except NotConnected:
            await asyncio.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_standby")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    figures = pair.run(measure(chosen.messages))
    print(json.dumps(figures) if chosen.json else figures)


if __name__ == "__main__":
    main()
