"""The backlog of a stream, for `StreamingQueryProgress` and for Prometheus.

Spark shows the offset of `reportLatestOffset` as `latestOffset` of the source.  It has the shape of
the other offsets, so that `end` minus the `end` of `endOffset` is the lag, and further facts:

    backlog    messages that are not consumed yet, also those of the present batch
    lag        those of them that no batch has read yet
    age_s      seconds since the oldest of them arrived
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.source.offsets import VERSION, Offset
from pipeline.source.open_queues import OpenQueue, OpenQueues


@dataclass(frozen=True, slots=True)
class Backlog:
    """The messages of one queue for the reader."""

    latest: int  # the position that its last message would get
    backlog: int
    lag: int
    age_s: float | None  # None: not measured, or nothing waits


def backlogs(reader: str, opened: OpenQueues, *, with_age: bool) -> dict[str, Backlog]:
    """Return the backlog of each open queue, by its id."""
    found: dict[str, Backlog] = {}
    for at in opened.connections:
        for row in at.run(at.qm.pipeline.list_readers()):
            one = opened.by_id.get(row["queue"])
            if row["reader"] != reader or one is None or one.at is not at:
                continue
            ready, reserved = int(row["ready"]), int(row["messages"])
            if row["shared"]:  # consumed messages stay, so `ready` has them too
                ready = _behind(one, int(row["arrival"]))
            age = _age_s(one, row) if with_age and ready + reserved else None
            found[row["queue"]] = Backlog(
                int(row["reserved"]) + ready, reserved + ready, ready, age
            )
    return found


def progress_of(
    reader: str, opened: OpenQueues, found: dict[str, Backlog], planned: Mapping[str, int]
) -> Offset:
    """Return the offset that Spark shows as the latest one.

    `planned` are the ends of the last batch: some of the messages behind it may be reserved, too.
    """
    queues: dict[str, dict[str, Any]] = {}
    for queue in sorted(found):
        one, each = opened.by_id[queue], found[queue]
        queues[queue] = {
            "at": str(one.at.endpoint),
            "end": each.latest,
            "name": one.queue.name,
            "backlog": each.backlog,
            "lag": max(0, each.latest - planned[queue]) if queue in planned else each.lag,
            "age_s": 0.0 if each.age_s is None else round(each.age_s, 1),
        }
    return {"qmd": VERSION, "reader": reader, "queues": queues}


def _behind(one: OpenQueue, arrival: int) -> int:
    split = one.at.run(one.at.qm.pipeline.split_range(one.queue.queue, 1, after=arrival))
    return split.messages


def _age_s(one: OpenQueue, row: dict[str, Any]) -> float | None:
    """Return the age of the oldest message that is not consumed, by this host's clock."""
    queue = one.queue.queue
    pipeline = one.at.qm.pipeline
    if row["messages"]:
        first = pipeline.read_range(
            queue, row["position"], row["position"] + 1, reader=row["reader"], limit=1, bodies=False
        )
    else:
        after = int(row["arrival"]) if row["shared"] else 0
        first = pipeline.read_range(queue, after, limit=1, bytes_max=1, bodies=False)
    rows = one.at.run(first)
    if not rows.count:
        return None
    (arrived_at_ms,) = struct.unpack_from("<q", rows.arrived_at_ms)
    return max(0.0, time.time() - int(arrived_at_ms) / 1000)
