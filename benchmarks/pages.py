"""Pages that one message changes: which tables they belong to, for one message at a time.

    python -m benchmarks.pages [--messages N] [--json]

SQLite writes each page that a commit changes into its log as a whole, so the number of these pages
decides how many bytes a single message costs.  The pages are read from the log, in the format of
sqlite.org/walformat.html, and the virtual table `dbstat` assigns them to tables and indexes.

    local send      a durable message to a queue of the same daemon
    local receive   its removal
    send, away      a transactional message to another daemon: its row, and its removal there
    arrival         the same message at that daemon
"""

from __future__ import annotations

import argparse
import json
import shutil
import sqlite3
import struct
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from benchmarks import pair
from qmd.client import QueueManager

DATABASE = "queues.db"
QUEUE = "pages"
BODY = bytes(1024)
MESSAGES = 256  # below the checkpoint
WARM_UP = 64

_LOG_HEADER = struct.Struct(">8xI4x8s8x")  # page size, salts
_FRAME_HEADER = struct.Struct(">II8s8x")  # page number, size after a commit, salts
_MAP_ENTRY_BYTES = 5  # of a pointer map page, which precedes the pages that it maps

#: Table or index -> pages for one message; "commits" and "bytes" of the log as well.
Pages = dict[str, float]


class Log:
    """The frames that the log of a running daemon gets from now on."""

    def __init__(self, daemon: pair.Daemon) -> None:
        self._folder = daemon.folder / "data"
        self._start = self._end()

    def _end(self) -> int:
        return sum(1 for _ in self._frames(0))

    def _frames(self, skip: int) -> Iterator[tuple[int, bool]]:
        """Yield page number and whether a commit ends, from the frame `skip` on."""
        with (self._folder / f"{DATABASE}-wal").open("rb") as log:
            page_bytes, salts = _LOG_HEADER.unpack(log.read(_LOG_HEADER.size))
            frame_bytes = _FRAME_HEADER.size + page_bytes
            log.seek(_LOG_HEADER.size + skip * frame_bytes)
            while len(frame := log.read(frame_bytes)) == frame_bytes:
                number, size, of_frame = _FRAME_HEADER.unpack_from(frame)
                if of_frame != salts:
                    return
                yield number, size > 0

    def pages(self, messages: int) -> Pages:
        """Return the pages written since the creation of this object, for one message."""
        with tempfile.TemporaryDirectory(prefix="qmd-pages-") as folder:
            copy = Path(folder) / DATABASE
            for suffix in ("", "-wal"):
                shutil.copy(self._folder / f"{DATABASE}{suffix}", f"{copy}{suffix}")
            with closing(sqlite3.connect(copy)) as db:
                (page_bytes,) = db.execute("PRAGMA page_size").fetchone()
                owners = dict(db.execute("SELECT pageno, name || ' ' || pagetype FROM dbstat"))
        owners[1] = "first page of the file"
        found: Counter[str] = Counter()
        for number, is_last in self._frames(self._start):
            is_map = (number - 2) % (page_bytes // _MAP_ENTRY_BYTES + 1) == 0
            found["map of the pages" if is_map else owners.get(number, "free page")] += 1
            found["commits"] += is_last
            found["bytes"] += page_bytes + _FRAME_HEADER.size
        return {name: round(count / messages, 3) for name, count in found.most_common()}


async def local(folder: Path, messages: int) -> dict[str, Pages]:
    daemon = pair.Daemon(folder / "local", "pages")
    await daemon.create()
    await daemon.start()
    async with pair.stopped_at_end(daemon), daemon.client() as client:
        await client.create_queue(QUEUE)
        await _send(client, QUEUE, WARM_UP, "recoverable")
        log = Log(daemon)
        await _send(client, QUEUE, messages, "recoverable")
        sent = log.pages(messages)
        log = Log(daemon)
        for _ in range(messages):
            await client.receive(QUEUE, timeout_s=10)
        return {"local send": sent, "local receive": log.pages(messages)}


async def away(folder: Path, messages: int) -> dict[str, Pages]:
    a, b = (pair.Daemon(folder / name, name) for name in "ab")
    for daemon in (a, b):
        await daemon.create()
        await daemon.start()
    async with pair.stopped_at_end(a, b), a.client() as sender, b.client() as receiver:
        await receiver.create_queue(QUEUE, transactional=True)
        await _transfer(sender, receiver, b, WARM_UP)
        logs = Log(a), Log(b)
        await _transfer(sender, receiver, b, messages)
        sent, arrived = (log.pages(messages) for log in logs)
        return {"send, away": sent, "arrival": arrived}


async def _transfer(
    sender: QueueManager, receiver: QueueManager, b: pair.Daemon, messages: int
) -> None:
    """Send one message after the other, each when the one before has left its outgoing queue."""
    for _ in range(messages):
        await _send(sender, b.destination(QUEUE), 1, "transactional")
        await pair.nothing_is_left(sender)


async def _send(client: QueueManager, queue: str, messages: int, delivery: str) -> None:
    for _ in range(messages):
        await client.send(queue, BODY, delivery=delivery)


async def measure(messages: int) -> dict[str, Pages]:
    """Return the pages that one message changes in each scenario."""
    with tempfile.TemporaryDirectory(prefix="qmd-pages-") as folder:
        return await local(Path(folder), messages) | await away(Path(folder), messages)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = pair.run(measure(given.messages))
    if given.json:
        print(json.dumps(found))
        return
    for scenario, pages in found.items():
        print(scenario)
        for name, count in pages.items():
            print(f"    {name:40}{count:>12,.3f}")


if __name__ == "__main__":
    main()
