"""Closing a stream that has ended: what its last batch has read is received.

Spark tells a source that a batch is committed only when it plans the next one.  After a query was
stopped, or has read all that was there, the messages of its last batch are in the sink and still in
the queue: reserved, neither lost nor read again, but there.  The checkpoint knows better:

    commits/N   batch N is in the sink
    offsets/N   how far batch N has read: a line with the version, one of Spark's own, and one for
                each source of the query

So the newest batch that has both is consumed, from the checkpoint alone.  A query that is running
meanwhile would be shut out, and fail with its next batch; nothing would be lost by that either.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from pipeline.source.connecting import Connected
from pipeline.source.errors import SourceError
from pipeline.source.offsets import ends_of
from pipeline.source.options import Endpoint


@dataclass(frozen=True, slots=True)
class Finished:
    """What was closed at one queue manager."""

    endpoint: str
    reader: str
    batch: int
    queues: int
    messages: int  # that left their queues now


def finish(
    checkpoint: str, secrets: Endpoint | None = None, *, dry_run: bool = False
) -> list[Finished]:
    """Consume what the last committed batch of this checkpoint has read.

    `secrets`: token and CA for endpoints over TLS, and, where its address is not empty, where to
    ask instead of the endpoint in the checkpoint.  Done again it does nothing.  Raises SourceError.
    """
    batch, offsets = last_committed(checkpoint)
    given = secrets or Endpoint("")
    done = []
    for offset in offsets:
        ends = ends_of(offset)
        for address in sorted({at for at, _ in ends.values()}):
            mine = {queue: end for queue, (at, end) in ends.items() if at == address}
            endpoint = replace(given, address=given.address or address)
            with Connected(endpoint) as at:
                # The reader is asked which of its queues there still are: one that was deleted has
                # nothing left to consume.
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
                    Finished(str(endpoint), str(offset["reader"]), batch, len(there), messages)
                )
    return done


def last_committed(checkpoint: str) -> tuple[int, list[dict[str, Any]]]:
    """Number and offsets (of queues only) of the newest batch that is in the sink.

    (-1, []) where none is.  Raises SourceError for a folder that is no checkpoint.
    """
    import fsspec

    system, root = fsspec.core.url_to_fs(checkpoint)
    if not system.isdir(f"{root}/offsets"):
        raise SourceError(
            f"qmd: {checkpoint} is no checkpoint of a streaming query: it has no folder offsets;"
            ' name what .option("checkpointLocation", ...) named',
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
            f"qmd: {name} is of the form {lines[0]!r}, which this release does not know; start the"
            " query once more instead, and it closes its batches by itself",
            code="not_a_checkpoint",
        )
    offsets = [json.loads(line) for line in lines[2:] if line.startswith("{")]
    return batch, [one for one in offsets if isinstance(one, dict) and "qmd" in one]


def _numbers(system: Any, folder: str) -> list[int]:
    if not system.isdir(folder):
        return []
    names = [str(one).rpartition("/")[2] for one in system.ls(folder, detail=False)]
    return [int(name) for name in names if name.isdigit()]
