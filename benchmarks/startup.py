"""A start with a long backlog: its time and memory, and the time of `qmd status`.

    python -m benchmarks.startup [--messages 10000,100000,1000000]
        [--kinds local,outgoing,awaiting,delayed,dead-letters] [--folder FOLDER] [--json]

The kinds are messages in a queue, for a computer that is away, at another queue manager where
no application has received them (they wait for their final acknowledgments), for tomorrow, and
with a dead-letter queue of their application.

The daemon is killed with the messages in its folder and started again.  The figures are the seconds
to the first answer, the processor seconds of the daemon up to then, its memory in MB, and the
seconds of the command `qmd status` and of its request alone.  `--folder` keeps the filled folders
there, and uses those that are there already.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import pair

WINDOW_MESSAGES = 4096
BODY = bytes(1000)
KINDS = ("local", "outgoing", "awaiting", "delayed", "dead-letters")
# Nothing listens there: the discard port of a loopback address.
AWAY = "DIRECT=TCP:127.0.0.9:9\\private$\\backlog"
#: Destination, further properties, and the figure of `qmd status` that counts the messages.
SENT: dict[str, tuple[str, dict[str, Any], str]] = {
    "local": ("backlog", {}, "messages"),
    "outgoing": (AWAY, {}, "outgoing_messages"),
    "delayed": ("backlog", {"delay_s": 86_400.0}, "delayed_messages"),
    "dead-letters": (AWAY, {"dead_letter_queue": "failed"}, "outgoing_messages"),
    "awaiting": ("", {"delivery": "transactional", "dead_letter": True}, "awaiting_messages"),
}


async def measure(kind: str, messages: int, folder: Path) -> dict[str, Any]:
    """Return the figures of a start with so many messages of this kind."""
    daemon = pair.Daemon(folder / f"{kind}-{messages}", kind)
    async with pair.stopped_at_end(daemon):
        if not daemon.folder.exists():
            await daemon.create()
            await daemon.start()
            await _fill(daemon, kind, messages)
            await daemon.kill()
        began = time.monotonic()
        await daemon.start()
        async with daemon.client() as qm:
            status = await qm.status()
            start_s = time.monotonic() - began
            cpu_s, megabytes = daemon.cpu_s(), daemon.rss_mb()
            name = SENT[kind][2]
            assert status[name] == messages, f"{status[name]} messages are there"
            began = time.monotonic()
            await qm.status()
            request_s = time.monotonic() - began
        command_s = await _status_command(daemon)
    return {
        "kind": kind,
        "messages": messages,
        "start_s": round(start_s, 2),
        "cpu_s": round(cpu_s, 2),
        "memory_mb": round(megabytes),
        "status_request_s": round(request_s, 4),
        "status_command_s": round(command_s, 2),
    }


async def _fill(daemon: pair.Daemon, kind: str, messages: int) -> None:
    destination, properties, name = SENT[kind]
    other = pair.Daemon(daemon.folder.with_name(f"{daemon.folder.name}-other"), "other")
    async with pair.stopped_at_end(other):
        if not destination:
            await other.create()
            await other.start()
            async with other.client() as there:
                await there.create_queue("backlog", transactional=True)
            destination = other.destination("backlog")
        async with daemon.client() as qm:
            await qm.create_queue("backlog")
            await qm.create_queue("failed")
            async with qm.sender(destination, window=WINDOW_MESSAGES) as sender:
                for _ in range(messages):
                    await sender.send(BODY, **{"delivery": "recoverable"} | properties)
            while True:
                if (await qm.status())[name] >= messages:
                    return
                await asyncio.sleep(pair.POLL_S)


async def _status_command(daemon: pair.Daemon) -> float:
    began = time.monotonic()
    command = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "qmd", "--config", str(daemon.config), "status"),
        stdout=asyncio.subprocess.DEVNULL,
    )
    assert await command.wait() == 0
    return time.monotonic() - began


async def measure_all(kinds: list[str], counts: list[int], folder: Path) -> list[dict[str, Any]]:
    """Return the figures of each kind and count, in this order."""
    return [await measure(kind, count, folder) for kind in kinds for count in counts]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", default="10000,100000,1000000")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    counts = [int(each) for each in given.messages.split(",")]
    with tempfile.TemporaryDirectory(prefix="qmd-bench-") as temporary:
        folder = given.folder or Path(temporary)
        figures = pair.run(measure_all(given.kinds.split(","), counts, folder))
    for each in figures:
        print(json.dumps(each) if given.json else each)


if __name__ == "__main__":
    main()
