"""What Spark writes down of a stream: how far each queue was read, and by whom.

    {"qmd": 1, "reader": "lake", "queues": {"<queue id>": {"at": "/run/qmd/qmd.sock", "end": 700}}}

It lies in the checkpoint as text.  A queue is its id and not its name: one that was deleted and
made anew is another.  Reader and endpoint are there so that `qmd pipeline finish` needs nothing but
the checkpoint.  The endpoint is not looked at when a query begins again, and may have changed; of
another reader a checkpoint is refused, because its positions mean other messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.source.errors import SourceError

VERSION = 1
Offset = dict[str, Any]


def offset_of(reader: str, ends: Mapping[str, tuple[str, int]]) -> Offset:
    """`ends`: queue id -> endpoint and position.  The same ends give the very same text."""
    return {
        "qmd": VERSION,
        "reader": reader,
        "queues": {queue: {"at": ends[queue][0], "end": ends[queue][1]} for queue in sorted(ends)},
    }


def ends_of(offset: Offset) -> dict[str, tuple[str, int]]:
    """Raises SourceError for what this release did not write."""
    if offset.get("qmd") != VERSION:
        raise SourceError(
            f"qmd: the checkpoint has an offset of version {offset.get('qmd')!r}, and this qmd"
            f" reads {VERSION}; begin it with the release that wrote it",
            code="not_a_checkpoint",
        )
    return {queue: (str(each["at"]), int(each["end"])) for queue, each in offset["queues"].items()}
