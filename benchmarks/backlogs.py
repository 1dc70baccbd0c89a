"""Operations on a long queue: move, export, import, purge, and resend of dead letters.

    python -m benchmarks.backlogs [--messages 1000000] [--json]

Each is the command that an operator runs, in a process of its own.  The figures are its seconds,
and the most memory that the command and the daemon had meanwhile, in MiB.
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

WINDOW_MESSAGES = 4096
TAKEN = 4096  # rejected in one commit
BODY = bytes(100)
MEBIBYTE = 1024 * 1024


async def measure(messages: int) -> dict[str, Any]:
    """Return the figures of each operation by its name."""
    found: dict[str, Any] = {"messages": messages}
    with tempfile.TemporaryDirectory(prefix="qmd-bench-") as folder:
        daemon = pair.Daemon(Path(folder) / "daemon", "backlogs")
        await daemon.create()
        async with pair.stopped_at_end(daemon):
            await daemon.start()
            await _fill(daemon, messages)
            found["move"] = await _command(daemon, "move", "orders", "later", "--all")
            file = str(Path(folder) / "orders.jsonl")
            found["export"] = await _command(daemon, "export", "later", file)
            purge = ("queue", "purge", "later", "--yes")
            found["purge"] = await _command(daemon, *purge)
            found["import"] = await _command(daemon, "import", "orders", file)
            await _reject(daemon, messages)
            found["resend"] = await _command(daemon, "dead-letter", "requeue", "--all")
            async with daemon.client() as qm:
                count = (await qm.show_queue("orders"))["messages"]
                assert count == messages, f"{count} messages are in the queue"
    return found


async def _fill(daemon: pair.Daemon, messages: int) -> None:
    async with daemon.client() as qm:
        for name in ("orders", "later"):
            await qm.create_queue(name)
        async with qm.sender("orders", window=WINDOW_MESSAGES) as sender:
            for _ in range(messages):
                await sender.send(BODY, delivery="recoverable", dead_letter=True)


async def _reject(daemon: pair.Daemon, messages: int) -> None:
    async with daemon.client() as qm:
        left = messages
        while left:
            async with await qm.take("orders", TAKEN) as taken:
                await taken.reject()
                left -= len(taken)


async def _command(daemon: pair.Daemon, *words: str) -> dict[str, float]:
    """Run a command; return its seconds, and the most memory of both processes."""
    assert daemon.process is not None
    began = time.monotonic()
    command = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "qmd", "--config", str(daemon.config), *words),
        stdout=asyncio.subprocess.DEVNULL,
    )
    most = {"command": 0, "daemon": 0}
    ended = asyncio.create_task(command.wait())
    while not ended.done():
        for name, process in (("command", command.pid), ("daemon", daemon.process.pid)):
            most[name] = max(most[name], _resident_bytes(process))
        await asyncio.wait([ended], timeout=0.2)
    assert ended.result() == 0, words
    return {
        "seconds": round(time.monotonic() - began, 1),
        "command_mib": round(most["command"] / MEBIBYTE),
        "daemon_mib": round(most["daemon"] / MEBIBYTE),
    }


def _resident_bytes(process: int) -> int:
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0  # it has ended
    return pages * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    figures = pair.run(measure(given.messages))
    if given.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:10} {value}")


if __name__ == "__main__":
    main()
