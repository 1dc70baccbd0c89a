"""Closing an ended stream: consume the messages that its last batch has read.

Spark notifies a source of a batch's commit only when it plans the next batch.  After a query was
stopped, or has read all messages, the messages of its last batch are in the sink and still in the
queue: reserved, neither lost nor read again, but not removed.  The checkpoint shows which batch was
committed:

    commits/N   exists if batch N is in the sink
    offsets/N   how far batch N has read: a line with the version, a line of Spark's own, and one
                line for each source of the query

So the newest batch that has both files is consumed, from the checkpoint alone.  A query that is
running meanwhile is fenced off and fails with its next batch; no message is lost by that.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from pipeline.source.connection import Connection
from pipeline.source.errors import SourceError
from pipeline.source.offsets import endpoint_of, ends_of, secrets_of
from pipeline.source.options import Endpoint
from pipeline.stores import StoreFailed, StoreUnknown, store_at


@dataclass(frozen=True, slots=True)
class FinishedBatch:
    """The result at one queue manager."""

    endpoint: str
    reader: str
    batch: int
    queues: int
    messages: int  # removed from their queues now


def finish(
    checkpoint: str, secrets: Endpoint | None = None, *, dry_run: bool = False
) -> list[FinishedBatch]:
    """Consume the messages that the last committed batch of this checkpoint has read.

    The checkpoint has the endpoints, and the names of the files with their tokens and certificates.
    `secrets` replaces those names if it has any, and the endpoints if its address is not empty.
    A repeated call does nothing.  Raises SourceError.
    """
    batch, offsets = last_committed(checkpoint)
    given = secrets or Endpoint("")
    done = []
    for offset in offsets:
        ends = ends_of(offset)
        for address in sorted({at for at, _ in ends.values()}):
            mine = {queue: end for queue, (at, end) in ends.items() if at == address}
            endpoint = given if secrets_of(given) else endpoint_of(offset, address)
            endpoint = replace(endpoint, address=given.address or address)
            with Connection(endpoint) as at:
                # Ask the reader which of its queues still exist: a deleted queue has nothing left
                # to consume.
                known = {
                    one["queue"]: one
                    for one in at.run(at.qm.pipeline.list_readers())
                    if one["reader"] == offset["reader"]
                }
                there = {queue: end for queue, end in mine.items() if queue in known}
                messages = 0
                if dry_run:
                    messages = sum(
                        max(0, end - int(known[queue]["position"])) for queue, end in there.items()
                    )
                elif there:
                    shared = bool(known[next(iter(there))]["shared"])
                    run = at.run(
                        at.qm.pipeline.open_reader(offset["reader"], list(there), shared=shared)
                    )
                    messages = at.run(at.qm.pipeline.consume(run, there)).messages
                done.append(
                    FinishedBatch(str(endpoint), str(offset["reader"]), batch, len(there), messages)
                )
    return done


def last_committed(checkpoint: str) -> tuple[int, list[dict[str, Any]]]:
    """Return number and offsets (of queues only) of the newest batch that is in the sink.

    Returns (-1, []) if no batch is.  Raises SourceError for a folder that is no checkpoint.
    """
    try:
        system, root, _ = store_at(checkpoint)
        is_checkpoint = system.isdir(f"{root}/offsets")
    except (StoreUnknown, StoreFailed) as error:
        raise SourceError(f"qmd: the checkpoint cannot be read: {error}") from error
    if not is_checkpoint:
        raise SourceError(
            f"qmd: {checkpoint} is not a checkpoint of a streaming query: it has no folder offsets;"
            ' name the folder of .option("checkpointLocation", ...)',
            code="not_a_checkpoint",
        )
    committed = _numbers(system, f"{root}/commits")
    if not committed:
        return -1, []
    batch = max(committed)
    name = f"{root}/offsets/{batch}"
    try:
        lines = system.cat_file(name).decode().split("\n")
    except OSError as error:
        raise SourceError(f"qmd: {name} cannot be read: {error}") from error
    if lines[0] not in ("v1", "v2"):
        raise SourceError(
            f"qmd: {name} has the format {lines[0]!r}, which this release does not know; start the"
            " query once more instead: it then closes its batches itself",
            code="not_a_checkpoint",
        )
    offsets = [json.loads(line) for line in lines[2:] if line.startswith("{")]
    return batch, [one for one in offsets if isinstance(one, dict) and "qmd" in one]


def _numbers(system: Any, folder: str) -> list[int]:
    if not system.isdir(folder):
        return []
    names = [str(one).rpartition("/")[2] for one in system.ls(folder, detail=False)]
    return [int(name) for name in names if name.isdigit()]
