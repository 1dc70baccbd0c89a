"""Batch reads: the messages in queues of live queue managers, read once and not removed.

The driver asks each queue manager for its queues and fixes the end of each queue; executors then
read their ranges.  Nothing is reserved: messages that other receivers take in between are missing,
and messages that arrive after the plan are not read.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pipeline.source.connection import Connection
from pipeline.source.decode.packets import batch_of
from pipeline.source.decode.rows import Place, Rows
from pipeline.source.errors import plainly
from pipeline.source.events import event_batch
from pipeline.source.filters import PushedFilters, is_exact, pushed
from pipeline.source.options import Endpoint, Options
from qmd.control_protocol import bulk as pipeline_frames

EVENTS_A_PAGE = 5_000
PATTERN = "*?["
FAR_MS = 1 << 60  # stands for the end of time


@dataclass(frozen=True)
class QueueRange(InputPartition):
    """A range of one queue, by arrival number or by a reader's positions."""

    endpoint: Endpoint
    place: Place
    queue: str  # its id
    after: int
    until: int


@dataclass(frozen=True)
class EventLogRange(InputPartition):
    """The event log of one queue manager, up to its end when the query was planned."""

    endpoint: Endpoint
    queue: str
    last: tuple[int, int]  # block and index of its last event


class LiveReader(DataSourceReader):
    """Reader of live queues or event logs."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.kind = options.kind
        self.columns = options.columns(self.kind)
        self.pushed = PushedFilters()

    @plainly
    def partitions(self) -> list[InputPartition]:
        if self.pushed.nothing:
            return []
        found: list[InputPartition] = []
        for wanted in self.options.sources():
            with Connection(wanted.endpoint) as at:
                if not self._wants(at):
                    continue
                if self.kind == "events":
                    found += self._logs(at, wanted.queues)
                else:
                    found += self._ranges(at, wanted.queues)
        return found

    def _wants(self, at: Connection) -> bool:
        return self.pushed.has("host", at.qm.name) and self.pushed.has("queue_manager", at.qm.id)

    def _logs(self, at: Connection, queues: Iterable[str]) -> list[InputPartition]:
        newest = at.run(at.qm.events(last=1))["events"]
        if not newest:
            return []
        last = newest[-1]["block"], newest[-1]["index"]
        return [EventLogRange(at.endpoint, queue, last) for queue in queues or [""]]

    def _ranges(self, at: Connection, queues: Iterable[str]) -> list[InputPartition]:
        found: list[InputPartition] = []
        for queue in expand(at, queues):
            if not self.pushed.has("queue", queue):
                continue
            split = at.run(
                at.qm.pipeline.split_range(
                    queue,
                    self.options.partitions,
                    after=self.pushed.after,
                    until=0 if self.pushed.until >= (1 << 44) - 1 else self.pushed.until,
                )
            )
            place = Place(at.qm.name, at.qm.id, queue)
            found += [
                QueueRange(at.endpoint, place, split.queue, after, until)
                for after, until, _ in split.ranges
            ]
        return found

    @plainly
    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, EventLogRange):
            return self._read_log(partition)
        if isinstance(partition, QueueRange):
            return read_range(
                partition, self.columns, wanted=self.pushed.wanted, bodies=self.options.bodies
            )
        return iter(())  # Spark adds an empty partition if there is none

    def _read_log(self, log: EventLogRange) -> Iterator[Any]:
        first_ms, last_ms = self.pushed.moments
        kinds = [] if self.pushed.kinds is None else sorted(self.pushed.kinds)
        with Connection(log.endpoint, patient=True) as at:
            cursor, ended = "", False
            while not ended:
                page = at.run(
                    at.qm.events(
                        cursor,
                        limit=EVENTS_A_PAGE,
                        queue=log.queue,
                        kinds=kinds,
                        since=first_ms / 1000 if first_ms else None,
                        until=(last_ms + 1) / 1000 if last_ms < FAR_MS else None,
                    )
                )
                events = [
                    each for each in page["events"] if (each["block"], each["index"]) <= log.last
                ]
                ended = page["end"] or len(events) < len(page["events"])
                cursor = page["cursor"]
                if events:
                    yield event_batch(events, self.columns)


class PushingReader(LiveReader):
    """LiveReader for Spark with filter pushdown (spark.sql.python.filterPushdown.enabled)."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        self.pushed = pushed(filters)
        # Spark applies the returned filters again.
        return [one for one in filters if self.kind == "events" or not is_exact(one)]


def expand(at: Connection, queues: Iterable[str]) -> list[str]:
    """Return the selected queues, each once; a pattern is matched with the current names."""
    names: list[str] = []
    for queue in queues:
        if not any(sign in queue for sign in PATTERN):
            names.append(queue)
            continue
        known = [str(one["name"]) for one in at.run(at.qm.list_queues())]
        names += [
            name
            for name in known
            if fnmatch.fnmatchcase(name.casefold(), queue.casefold())
            or fnmatch.fnmatchcase(name.casefold(), f"private$\\{queue}".casefold())
        ]
    return list(dict.fromkeys(names))


def read_range(
    range_: QueueRange,
    columns: tuple[str, ...],
    *,
    wanted: pipeline_frames.Filter = pipeline_frames.EVERYTHING,
    bodies: bool = True,
    reader: str = "",
) -> Iterator[Any]:
    """Yield the Arrow record batches of a range; the next frame is fetched meanwhile.

    Without `bodies` the queue manager cuts every packet.  That is faster only with long bodies, so
    it is the user's choice (`body=false`).
    """
    with Connection(range_.endpoint, patient=True) as at:
        frames = at.qm.pipeline.read(
            range_.queue,
            range_.after,
            range_.until,
            reader=reader,
            wanted=wanted,
            bodies=bodies,
        )
        for frame in at.each(frames):
            yield batch_of(rows_of(frame, headers_only=not bodies), range_.place, columns)


def rows_of(frame: pipeline_frames.Rows, *, headers_only: bool) -> Rows:
    """Return a frame's columns as numpy arrays, without copying."""
    return Rows(
        np.frombuffer(frame.positions, "<i8"),
        np.frombuffer(frame.lookup_ids, "<i8"),
        np.frombuffer(frame.arrived_at_ms, "<i8"),
        np.frombuffer(frame.abort_counts, "<i4"),
        np.frombuffer(frame.move_counts, "<i4"),
        np.frombuffer(frame.offsets, "<i4").astype(np.int64),
        frame.packets,
        frame.reasons,
        headers_only,
    )
