"""Batch reads: the messages in queues of live queue managers, read once and not removed.

The driver asks each queue manager for its queues and fixes the end of each queue; executors then
read their ranges.  Nothing is reserved: messages that other receivers take in between are missing,
and messages that arrive after the plan are not read.
"""

from __future__ import annotations

import heapq
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pipeline.source.bounds import POSITION_MAX
from pipeline.source.connection import Connection
from pipeline.source.decode.packets import batch_of
from pipeline.source.decode.rows import Place, Rows
from pipeline.source.errors import SourceError, option_error, plainly
from pipeline.source.events import event_batch
from pipeline.source.filters import PushedFilters, pushed, within
from pipeline.source.options import Endpoint, Options
from pipeline.source.output import output_of
from pipeline.source.worker_heap import begin_read
from qmd.control_protocol import bulk as pipeline_frames

EVENTS_A_PAGE = 5_000
PATTERN = "*"
FAR_MS = 1 << 60  # stands for the end of time


@dataclass(frozen=True)
class QueueRange(InputPartition):
    """A range of one queue, by arrival number or by a reader's positions."""

    endpoint: Endpoint
    place: Place
    queue: str  # its id
    after: int
    until: int
    named: str = ""  # the queue, or the pattern, as the options have it


@dataclass(frozen=True)
class EventLogRange(InputPartition):
    """The event log of one queue manager, up to its end when the query was planned."""

    endpoint: Endpoint
    queues: tuple[str, ...]  # none: all events
    last: tuple[int, int]  # block and index of its last event


class LiveReader(DataSourceReader):
    """Reader of live queues or event logs."""

    def __init__(self, options: Options, given: Any = None) -> None:
        self.options = options
        self.kind = options.kind
        self.output = output_of(options, self.kind, given)
        self._asked = pushed(self.output.where.filters(), self.kind)
        self.pushed = self._narrowed("")

    def _narrowed(self, queue: str) -> PushedFilters:
        """Return the filters with the times at which the read of a queue begins and ends."""
        found = self._asked
        first = self.options.starting.time_of(queue)
        last = self.options.ending.time_of(queue)
        least, most = found.moments
        moments = (
            least if first is None else max(least, first),
            most if last is None else min(most, last - 1),
        )
        return within(found, first, last, moments)

    @plainly
    def partitions(self) -> list[InputPartition]:
        if self.pushed.nothing:
            return []
        found: list[InputPartition] = []
        known: dict[str, Connection] = {}
        for wanted in self.options.sources():
            with Connection(wanted.endpoint, patient=self.options.is_patient) as at:
                check_other(at, known)
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
        names = tuple(expand(at, queues))
        if not newest or (queues and not names):
            return []
        last = newest[-1]["block"], newest[-1]["index"]
        return [EventLogRange(at.endpoint, names, last)]

    def _ranges(self, at: Connection, queues: Iterable[str]) -> list[InputPartition]:
        found: list[InputPartition] = []
        ids: set[str] = set()  # one queue may have several spellings, or a name and a pattern
        for queue, named in expand(at, queues).items():
            if not self.pushed.has("queue", queue):
                continue
            after, until = self._ends(named)
            if after >= until:
                continue
            place = Place(at.qm.name, at.qm.id, queue)
            parts = self.options.partitions
            try:
                split = at.run(
                    at.qm.pipeline.split_range(
                        queue, parts, after=after, until=0 if until >= POSITION_MAX else until
                    )
                )
            except SourceError as error:
                if error.code != "bad_range":
                    raise
                self._check_start(named, after, at)
                continue  # a condition on the position is behind the newest message
            if split.queue in ids:
                continue
            ids.add(split.queue)
            most = self.options.rows_a_partition
            if most and max((count for _, _, count in split.ranges), default=0) > most:
                split = at.run(
                    at.qm.pipeline.split_range(
                        queue, -(-split.messages // most), after=after, until=split.until
                    )
                )
            found += [
                QueueRange(at.endpoint, place, split.queue, after, until, named)
                for after, until, _ in split.ranges
            ]
        return found

    def _ends(self, queue: str) -> tuple[int, int]:
        """Return the arrival numbers after which and up to which a queue is read."""
        first, last = self.options.starting.of(queue), self.options.ending.of(queue)
        after = first - 1 if isinstance(first, int) else 0
        until = last - 1 if isinstance(last, int) else POSITION_MAX
        return max(self.pushed.after, after, 0), min(self.pushed.until, until)

    def _check_start(self, queue: str, after: int, at: Connection) -> None:
        """Refuse a start at a position that no message has had yet."""
        first = self.options.starting.of(queue)
        if isinstance(first, int) and first - 1 == after:
            raise option_error(
                "startingOffsets",
                f"begins {queue} at {first}, and no message of {at.endpoint} has that position yet;"
                " the positions are those of the column position",
            )

    @plainly
    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, EventLogRange):
            return self._read_log(partition)
        if isinstance(partition, QueueRange):
            batches = read_range(
                partition,
                self.output.decoded,
                wanted=self._narrowed(partition.named).wanted,
                bodies=self.options.bodies,
            )
            return map(self.output.of, batches)
        return iter(())  # Spark adds an empty partition if there is none

    def _read_log(self, log: EventLogRange) -> Iterator[Any]:
        with Connection(log.endpoint, patient=True) as at:
            logs = [self._events(at, log, queue) for queue in log.queues or ("",)]
            events = _each_once(heapq.merge(*logs, key=_place_in_log))
            while page := list(itertools.islice(events, EVENTS_A_PAGE)):
                yield self.output.of(event_batch(page, self.output.decoded))

    def _events(self, at: Connection, log: EventLogRange, queue: str) -> Iterator[dict[str, Any]]:
        """Yield the events of a queue, or all with "", in the order of the log."""
        first_ms, last_ms = self.pushed.moments
        kinds = [] if self.pushed.kinds is None else sorted(self.pushed.kinds)
        cursor, ended = "", False
        while not ended:
            try:
                page = at.run(
                    at.qm.events(
                        cursor,
                        limit=EVENTS_A_PAGE,
                        queue=queue,
                        kinds=kinds,
                        since=first_ms / 1000 if first_ms else None,
                        until=(last_ms + 1) / 1000 if last_ms < FAR_MS else None,
                    )
                )
            except SourceError as error:
                if error.code != "bad_event_kind":
                    raise
                kinds = []  # a condition names a kind that there is not: `where` compares it
                continue
            events = page["events"]
            there = [each for each in events if _place_in_log(each) <= log.last]
            ended = page["end"] or len(there) < len(events)
            cursor = page["cursor"]
            yield from there


def _place_in_log(event: dict[str, Any]) -> tuple[int, int]:
    return event["block"], event["index"]


def _each_once(events: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Leave out repeated events: one may be of two queues, and a queue has several spellings."""
    return (next(same) for _, same in itertools.groupby(events, _place_in_log))


def expand(at: Connection, queues: Iterable[str]) -> dict[str, str]:
    """Return the selected queues, each once, with the name or pattern that selects it."""
    names: dict[str, str] = {}
    known: list[str] | None = None
    for queue in queues:
        if not is_pattern(queue):
            names.setdefault(queue, queue)
            continue
        if known is None:
            known = [str(one["name"]) for one in at.run(at.qm.list_queues())]
        for name in known:
            if any(
                _matches(name.casefold(), pattern.casefold())
                for pattern in (queue, f"private$\\{queue}")
            ):
                names.setdefault(name, queue)
    return names


def is_pattern(queue: str) -> bool:
    return PATTERN in queue


def _matches(name: str, pattern: str) -> bool:
    parts = (re.escape(part) for part in pattern.split(PATTERN))
    return re.fullmatch(".*".join(parts), name, re.DOTALL) is not None


def check_other(at: Connection, known: dict[str, Connection]) -> None:
    """Refuse a queue manager that has another address, too: its rows would come twice.

    `known` has the connections by the ids of their queue managers, and gets this one.
    """
    other = known.setdefault(at.qm.id, at)
    if other is not at:
        raise option_error(
            "endpoint",
            f"names {at.endpoint} and {other.endpoint}, which are one queue manager; name it once",
        )


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
    begin_read()
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
