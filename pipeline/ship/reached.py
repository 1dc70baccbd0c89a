"""How far the shipping of a log or journal is, and whether it is still the same log.

A queue manager numbers the blocks of its log, and one that was put back from a backup gives numbers
a second time.  So of the last block that was shipped a digest is kept: where the log ends before
that block, or has another one under its number, what is at the target is of another history.  What
comes then goes into another *epoch*: into files of other names, beside those that are there.
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

#: Of an event in a file, as far as a block's digest needs it.
DIGESTED = ("block", "index", "at_ms", "kind", "message_id", "queue")


@dataclass(frozen=True, slots=True, order=True)
class Reached:
    """The last block or position that was shipped, and in which epoch; 0: none was."""

    epoch: int = 1
    last: int = 0
    digest: str = ""  # of the events of block `last`; empty: not known

    @classmethod
    def of_note(cls, value: Any) -> Reached:
        """From a note, which was a number in older releases.  Raises ValueError, TypeError."""
        if isinstance(value, Mapping):
            return cls(int(value["epoch"]), int(value["last"]), str(value["digest"]))
        return cls(last=int(value))

    def note(self) -> dict[str, Any]:
        return asdict(self)

    def next_epoch(self, after: int) -> Reached:
        """Where another history begins, of which what goes to `after` is the same."""
        return Reached(self.epoch + 1, after)


def digest(events: Iterable[Mapping[str, Any]]) -> str:
    """What tells a block from another one of the same number."""
    rows = [
        (int(each["index"]), int(each["at_ms"]), each["kind"] or "", each["message_id"] or "",
         each["queue"] or "")
        for each in events
    ]  # fmt: skip
    return hashlib.blake2b(json.dumps(sorted(rows)).encode(), digest_size=16).hexdigest()


def digests(events: Iterable[Mapping[str, Any]]) -> dict[int, str]:
    """Of each block among `events`, which has all events of each."""
    blocks: dict[int, list[Mapping[str, Any]]] = {}
    for each in events:
        blocks.setdefault(int(each["block"]), []).append(each)
    return {block: digest(rows) for block, rows in blocks.items()}


def blocks_between(qm: Blocking, first: int, last: int) -> Iterator[dict[str, Any]]:
    """The events of these blocks, as far as the queue manager has them."""
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
    """The number of the last block of the log; 0 for an empty one."""
    events = qm.events(last=1)["events"]
    return int(events[-1]["block"]) if events else 0
