"""Offsets that Spark logs for a stream: the reader, and how far it has read each queue.

    {"qmd": 1, "reader": "lake", "queues": {"<queue id>": {"at": "/run/qmd/qmd.sock", "end": 700}}}

The checkpoint stores it as text.  A queue is identified by its id, not by its name: a queue that
was deleted and created again is another queue.  Reader and endpoint are included so that
`qmd pipeline finish` needs only the checkpoint.  A restarted query ignores the endpoint, which may
have changed.  It refuses the checkpoint of another reader, because its positions mean other
messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.source.errors import SourceError

VERSION = 1
Offset = dict[str, Any]


def offset_of(reader: str, ends: Mapping[str, tuple[str, int]]) -> Offset:
    """Return the offset for `ends` (queue id -> endpoint, position); equal ends give equal text."""
    return {
        "qmd": VERSION,
        "reader": reader,
        "queues": {queue: {"at": ends[queue][0], "end": ends[queue][1]} for queue in sorted(ends)},
    }


def ends_of(offset: Offset) -> dict[str, tuple[str, int]]:
    """Return queue id -> (endpoint, position).  Raises SourceError for another version."""
    if offset.get("qmd") != VERSION:
        raise SourceError(
            f"qmd: the checkpoint has an offset of version {offset.get('qmd')!r}, and this qmd"
            f" reads version {VERSION}; continue it with the release that wrote it",
            code="not_a_checkpoint",
        )
    return {queue: (str(each["at"]), int(each["end"])) for queue, each in offset["queues"].items()}
