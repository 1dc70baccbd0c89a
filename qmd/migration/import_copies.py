"""The import of copied messages, each once, however often the import is run.

A file of the administrator keeps the ids of imported messages.  Before a batch is imported, its ids
and its token are written there; the daemon keeps the outcome of a token with the batch itself.  So
after a kill the next run knows for each batch whether it is in the queue.

    {"token": "…", "queue": "private$\\orders", "at_s": 1765000000, "ids": ["GUID\\1", …]}
    {"done": "…"}
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from qmd.migration.errors import BadSource
from qmd.migration.windows_message import LINE_BYTES_MAX, WindowsMessage, local_name, read_line

if TYPE_CHECKING:
    from qmd.client import QueueManager

BATCH_MESSAGES = 256
BATCH_BYTES = 8 * 1024 * 1024
#: The daemon forgets outcomes after `outcome_age`, an hour by default.
OUTCOME_AGE_S = 3000


def messages_of(file: IO[bytes]) -> Iterator[WindowsMessage]:
    """Iterate over the messages of a file.  Raises BadSource, with the number of the line."""
    number = 0
    while line := file.readline(LINE_BYTES_MAX + 1):
        number += 1
        if not line.strip():
            continue
        try:
            yield read_line(line)
        except BadSource as error:
            raise BadSource(f"line {number}: {error}") from error


class ImportLog:
    """The ids of imported messages, in a file that is appended to and synced."""

    def __init__(self, path: Path) -> None:
        """Read the file, if it exists.  Raises BadSource and OSError."""
        self._path = path
        self._done: set[tuple[str, str]] = set()
        self._open: dict[str, dict[str, Any]] = {}
        self._keep: int | None = None  # bytes before a torn line, which the next row replaces
        if path.exists():
            self._read(path.read_text(encoding="utf-8"))

    def _read(self, text: str) -> None:
        lines = text.split("\n")
        if torn := lines.pop():  # of a run that was killed while it wrote
            self._keep = len(text.encode()) - len(torn.encode())
        for number, line in enumerate(lines, 1):
            if not line:
                continue
            try:
                row = json.loads(line)
                if "done" in row:
                    self._finish(self._open.pop(row["done"]))
                else:
                    self._open[row["token"]] = {
                        "queue": str(row["queue"]),
                        "ids": [str(each) for each in row["ids"]],
                        "at_s": int(row["at_s"]),
                    }
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise BadSource(f"{self._path}, line {number}: it is not an import log") from error

    def _finish(self, row: dict[str, Any]) -> None:
        self._done.update((row["queue"], each) for each in row["ids"])

    @property
    def is_in_doubt(self) -> bool:
        """Return whether a batch has no known outcome."""
        return bool(self._open)

    def has(self, queue: str, message_id: str) -> bool:
        return (queue, message_id) in self._done

    async def settle(self, qm: QueueManager) -> None:
        """Ask the daemon for the outcome of batches in doubt.  Raises BadSource if it forgot."""
        for token, row in list(self._open.items()):
            if await qm.outcome(bytes.fromhex(token)) is not None:
                self.done(token)
            elif time.time() - row["at_s"] > OUTCOME_AGE_S:
                raise BadSource(
                    f"{self._path}: it is unknown whether {len(row['ids'])} messages, the first"
                    f" {row['ids'][0]}, were imported into {row['queue']}: see `qmd why"
                    f" '{row['ids'][0]}'`, and add the line {json.dumps({'done': token})} if they"
                    " were, or remove their line"
                )
            else:
                del self._open[token]

    def begin(self, queue: str, ids: list[str]) -> str:
        """Write a batch that is about to be imported; return its token."""
        token = hashlib.sha256(os.urandom(16)).hexdigest()[:32]
        row = {"queue": queue, "ids": ids, "at_s": int(time.time())}
        self._append({"token": token, **row})
        self._open[token] = row
        return token

    def done(self, token: str) -> None:
        """Write that a batch is imported."""
        self._append({"done": token})
        self._finish(self._open.pop(token))

    def _append(self, row: dict[str, Any]) -> None:
        descriptor = os.open(
            self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        with os.fdopen(descriptor, "ab") as file:
            if self._keep is not None:
                file.truncate(self._keep)
                self._keep = None
            file.write(json.dumps(row).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


async def import_copies(
    qm: QueueManager,
    messages: Iterable[WindowsMessage],
    import_log: ImportLog,
    *,
    dry_run: bool = False,
) -> dict[str, dict[str, int]]:
    """Import messages that the log does not have; return the numbers for each queue.

    The numbers: `imported` (in a dry run: that would be), and `known` from earlier runs.  Their
    order stays.  Raises BadSource and ClientError.
    """
    if not dry_run:
        await import_log.settle(qm)
    counts: dict[str, dict[str, int]] = {}
    for queue, batch, known in _batches(messages, import_log):
        row = counts.setdefault(queue, {"imported": 0, "known": 0})
        row["known"] += known
        row["imported"] += len(batch)
        if not batch:
            continue
        packets = [each.imported for each in batch]
        if dry_run:
            await qm.import_messages(queue, packets, dry_run=True)
            continue
        token = import_log.begin(queue, [each.id for each in batch])
        await qm.import_messages(queue, packets, token=bytes.fromhex(token))
        import_log.done(token)
    return counts


def _batches(
    messages: Iterable[WindowsMessage], import_log: ImportLog
) -> Iterator[tuple[str, list[WindowsMessage], int]]:
    """Yield (queue, messages, known ones between them): consecutive messages of one queue."""
    queue, size, known = "", 0, 0
    batch: list[WindowsMessage] = []
    seen: set[tuple[str, str]] = set()
    for message in messages:
        name = local_name(message.queue)
        if name != queue or len(batch) == BATCH_MESSAGES or size >= BATCH_BYTES:
            if batch or known:
                yield queue, batch, known
            queue, batch, size, known = name, [], 0, 0
        key = name, message.id
        if key in seen or import_log.has(*key):
            known += 1
            continue
        seen.add(key)
        batch.append(message)
        size += len(message.imported.packet)
    if batch or known:
        yield queue, batch, known
