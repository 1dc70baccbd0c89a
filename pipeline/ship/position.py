"""Progress of shipping a log or journal, and the test whether it is still the same log.

A queue manager numbers the blocks of its log, and a restored backup uses numbers again.  So a
digest of the last shipped block is kept.  If the log ends before that block, or has another block
with its number, the files at the target belong to another history.  New events then go into another
*epoch*: into files with other names, beside the existing ones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qmd.client.blocking import Blocking

PAGE_EVENTS = 4096

#: The columns of an event that a block's digest covers.
DIGESTED = ("block", "index", "at_ms", "kind", "message_id", "queue")


@dataclass(frozen=True, slots=True, order=True)
class ShippedPosition:
    """The last shipped block or position, and its epoch; 0: nothing was shipped."""

    epoch: int = 1
    last: int = 0
    digest: str = ""  # of the events of block `last`; empty: not known

    @classmethod
    def of_note(cls, value: Any) -> ShippedPosition:
        """Parse a note; older releases wrote a number.  Raises ValueError, TypeError."""
        if isinstance(value, Mapping):
            return cls(int(value["epoch"]), int(value["last"]), str(value["digest"]))
        return cls(last=int(value))

    def note(self) -> dict[str, Any]:
        return asdict(self)

    def next_epoch(self, after: int) -> ShippedPosition:
        """Return the start of a new history that equals the old one up to `after`."""
        return ShippedPosition(self.epoch + 1, after)


def digest(events: Iterable[Mapping[str, Any]]) -> str:
    """Return a digest that distinguishes blocks with the same number."""
    rows = [
        (int(each["index"]), int(each["at_ms"]), each["kind"] or "", each["message_id"] or "",
         each["queue"] or "")
        for each in events
    ]  # fmt: skip
    return hashlib.blake2b(json.dumps(sorted(rows)).encode(), digest_size=16).hexdigest()


def digests(events: Iterable[Mapping[str, Any]]) -> dict[int, str]:
    """Return the digest of each block in `events`, which must contain complete blocks."""
    blocks: dict[int, list[Mapping[str, Any]]] = {}
    for each in events:
        blocks.setdefault(int(each["block"]), []).append(each)
    return {block: digest(rows) for block, rows in blocks.items()}


def blocks_between(qm: Blocking, first: int, last: int) -> Iterator[dict[str, Any]]:
    """Yield the events of these blocks, as far as the queue manager still has them."""
    cursor = f"{first}.0"
    while True:
        page = qm.events(cursor, limit=PAGE_EVENTS)
        for event in page["events"]:
            if int(event["block"]) > last:
                return
            yield event
        cursor = page["cursor"]
        if page["end"]:
            return


def newest_block(qm: Blocking) -> int:
    """Return the number of the last block of the log; 0 for an empty log."""
    events = qm.events(last=1)["events"]
    return int(events[-1]["block"]) if events else 0
