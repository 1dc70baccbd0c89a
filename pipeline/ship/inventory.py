"""The inventory of a queue manager: the ids of all stored messages at one position of its log.

An audit compares it with the log: a message that arrived, that nothing ended, and that is not
there, has vanished.  Ids are written as ranges of numbers for each queue and source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from qmd.client.errors import QueueManagerError

if TYPE_CHECKING:
    from qmd.client.blocking import Blocking

#: A row for each range; an inventory without messages has one row without a source.
SCHEMA = pa.schema(
    [
        ("host", pa.string()),
        ("queue_manager", pa.string()),
        ("epoch", pa.int64()),
        ("block", pa.int64()),  # the newest of the log when the messages were there
        ("at_ms", pa.int64()),
        ("table", pa.string()),  # message, outgoing or awaiting
        ("queue", pa.string()),
        ("source", pa.string()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("taken_at_ms", pa.int64()),  # the log contains everything from before; 0: not known
    ]
)


@dataclass(frozen=True)
class Inventory:
    """The answer of a queue manager."""

    host: str
    queue_manager: str
    block: int
    at_ms: int
    queues: list[dict[str, Any]]
    taken_at_ms: int = 0

    @property
    def messages(self) -> int:
        return sum(len(each["numbers"]) // 4 for each in self.queues)

    def table(self, epoch: int) -> Any:
        """Return it as a table of `SCHEMA`."""
        rows: list[dict[str, Any]] = []
        about = {
            "host": self.host,
            "queue_manager": self.queue_manager,
            "epoch": epoch,
            "block": self.block,
            "at_ms": self.at_ms,
            "taken_at_ms": self.taken_at_ms,
        }
        for each in self.queues:
            numbers = np.unique(np.frombuffer(each["numbers"], "<u4")).astype(np.int64)
            begins = np.append(True, np.diff(numbers) > 1)
            first = np.flatnonzero(begins)
            last = np.append(first[1:], len(numbers)) - 1
            where = {name: each[name] for name in ("table", "queue", "source")}
            rows += [
                about | where | {"first": int(numbers[a]), "last": int(numbers[b])}
                for a, b in zip(first, last, strict=True)
            ]
        return pa.Table.from_pylist(rows or [about], schema=SCHEMA)


def take(qm: Blocking) -> Inventory | None:
    """Return the inventory of now; None of a queue manager that cannot or may not give one."""
    try:
        answer = qm.pipeline.inventory()
    except QueueManagerError as error:
        if error.code in ("unknown_verb", "inventory_too_large", "bad_request"):
            return None
        raise
    if not answer["block"]:
        return None
    return Inventory(**answer)
