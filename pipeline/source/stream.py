"""Reading a queue as a stream, exactly once, although reading a queue empties it.

    latestOffset   reserves a range in the queue manager, and returns its end
    (Spark logs the offset)
    partitions, read   return the reserved messages, as often as Spark asks: always the same ones
    (the sink commits, and Spark logs the commit)
    commit         consumes the messages: only now are they received

The range is fixed before Spark logs it.  So a driver that dies in between gets the same messages
again, and every logged range can be read again.  Each run of a query has a higher fence than the
runs before it: an older driver that resumes can neither reserve nor consume.

Spark reports the last batch's commit only when it plans the next batch; see checkpoint.py.

Large consumptions, and large reservations of shared readers, go on while Spark processes a batch
(behind.py): each call of the driver first waits for them, and raises their error.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from pipeline.source.backlog import backlogs, progress_of
from pipeline.source.batch import QueueRange, read_range
from pipeline.source.behind import Behind
from pipeline.source.bounds import POSITION_MAX
from pipeline.source.connection import say
from pipeline.source.errors import SourceError, plainly
from pipeline.source.offsets import Offset, ends_of, offset_of, secrets_of
from pipeline.source.open_queues import OpenQueue, OpenQueues
from pipeline.source.options import Options
from pipeline.source.output import output_of
from qmd.client.pipeline import Reserved

EVERYTHING = 1 << 62
RESERVED_AT_ONCE = 65_536
#: The size of a batch from which on its work goes on behind Spark: it takes some 30 ms.
BEHIND_MIN = 10_000

Ends = dict[str, int]  # positions by the ids of queues


class _Limits(NamedTuple):
    """The limits of a batch."""

    messages: int
    bytes: int


class _Next(NamedTuple):
    """The reservation of one batch."""

    ends: Ends
    is_full: bool  # a limit of the batch was reached


class _Ahead(NamedTuple):
    """A reservation that was begun before Spark asked for it."""

    begun: Ends
    limits: _Limits
    found: Future[_Next]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream reader: one driver process for each query; `read` runs on executors."""

    def __init__(self, options: Options, given: Any = None) -> None:
        self.options = options
        self.reader = options.reader_id
        self.output = output_of(options, "messages", given)
        self.messages_max = options.messages_a_trigger
        self.bytes_max = options.bytes_a_trigger
        self._opened: OpenQueues | None = None
        self._is_available_now = False
        self._batch_at = time.monotonic()
        self._behind = Behind()
        self._consumed: Ends = {}
        self._planned: Ends = {}  # the ends of the last batch
        self._wanted: tuple[Ends, _Limits] | None = None  # the start of a batch to reserve ahead
        self._ahead: _Ahead | None = None

    # -- on the driver --

    @plainly
    def initialOffset(self) -> Offset:
        """Return the consumed positions, at which a query without a checkpoint begins."""
        return self._offset({queue: one.queue.position for queue, one in self._queues().items()})

    def getDefaultReadLimit(self) -> Any:
        return ReadMaxRows(self.messages_max)

    @plainly
    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the ends: read only the messages that are in the queues now."""
        self._is_available_now = True
        for one in self._queues().values():
            now = one.at.run(one.at.qm.pipeline.split_range(one.queue.queue, 1)).until
            one.last = max(now - 1, 1)  # `now` is the number of the next message

    @plainly
    def latestOffset(self, start: Offset, limit: Any) -> Offset:
        """Reserve the messages behind `start`, as many as the limit allows."""
        self._behind.wait()
        if not self._is_available_now:
            self._discovered()
        queues = self._queues()
        begun = {queue: end for queue, (_, end) in self._ends(start).items()}
        ends = {queue: begun.get(queue, one.queue.position) for queue, one in queues.items()}
        if self._waits_for_more(ends):
            return start
        limits = self._limits(limit)
        found = self._reserved_ahead(ends, limits) or self._reserve(ends, limits)
        count = sum(found.ends[queue] - end for queue, end in ends.items())
        ends = found.ends
        is_large = found.is_full and count >= BEHIND_MIN
        self._wanted = (ends, limits) if is_large and self._is_shared() else None
        ends = {queue: end for queue, end in ends.items() if queue in queues}
        if all(begun.get(queue) == end for queue, end in ends.items()):
            return start  # unchanged text: any other text would start a batch
        self._batch_at = time.monotonic()
        self._planned = ends
        # A queue that the query no longer reads keeps its position.
        kept = {queue: pair for queue, pair in self._ends(start).items() if queue not in queues}
        return self._offset(ends, kept, start.get("secrets") if kept else None)

    def _is_shared(self) -> bool:
        """Return whether all messages stay in their queues: none is kept from other receivers
        longer because it was reserved ahead."""
        return all(one.queue.shared for one in self._queues().values())

    def _reserved_ahead(self, begun: Ends, limits: _Limits) -> _Next | None:
        """Return the batch that was reserved ahead, if it is the one and has no room left."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or (ahead.begun, ahead.limits) != (begun, limits):
            return None
        found = ahead.found.result()
        return found if found.is_full else None  # more messages may have arrived since

    def _reserve(self, begun: Ends, limits: _Limits) -> _Next:
        """Reserve the messages behind these positions, up to the limits.

        Each queue gets its share; the first queues then get the rest that others did not use.
        """
        queues = list(self._queues().values())
        ends, (messages, size) = dict(begun), limits
        waiting, is_first_round = queues, True
        while waiting and messages > 0 and size > 0:
            share = max(1, messages // len(waiting))
            portion = max(1, size // len(waiting))
            hungry: list[OpenQueue] = []
            for one in waiting:
                queue = one.queue.queue
                most = min(share, messages, RESERVED_AT_ONCE)
                if most <= 0 or size <= 0:
                    continue
                given = self._reserved(
                    one,
                    ends[queue],
                    most,
                    0 if size >= EVERYTHING else min(portion, size),
                    # Each queue progresses, but the second round must not exceed the rest.
                    one_always=is_first_round,
                )
                if given is None:
                    continue
                messages -= given.messages
                size -= given.bytes
                if given.more and given.end > ends[queue]:
                    hungry.append(one)
                ends[queue] = given.end
            waiting, is_first_round = hungry, False
        return _Next(ends, messages <= 0 or size <= 0)

    def _reserved(
        self, one: OpenQueue, start: int, most: int, size: int, *, one_always: bool
    ) -> Reserved | None:
        """Reserve messages of one queue; None if it was deleted and that may be ignored."""
        last = self.options.ending
        until, end_ms = last.of(one.named), last.time_of(one.named)
        if isinstance(until, int) and until <= 1:  # nothing lies before the first number of arrival
            return None
        end = min(until - 1 if isinstance(until, int) else POSITION_MAX, one.last)
        try:
            return one.at.run(
                one.at.qm.pipeline.reserve(
                    one.run,
                    one.queue.queue,
                    start,
                    messages_max=most,
                    bytes_max=size,
                    one_always=one_always,
                    until=0 if end == POSITION_MAX else end,
                    until_ms=None if end_ms is None else max(0, end_ms - 1),
                )
            )
        except SourceError as error:
            if self._is_passed_over(one, error):
                return None
            raise

    def _is_passed_over(self, one: OpenQueue, error: SourceError) -> bool:
        """Return whether the stream goes on without a queue that was deleted."""
        if error.code != "no_such_queue" or self.options.gap_fails:
            return False
        say(f"{error}; the stream goes on without it (onGap=warn)")
        assert self._opened is not None
        self._opened.forget(one)
        return True

    def _waits_for_more(self, ends: Mapping[str, int]) -> bool:
        """Return whether fewer messages are there than `minRowsPerTrigger`, and it is not late."""
        least = self.options.rows_a_trigger_min
        if not least or self._is_available_now:
            return False
        if time.monotonic() - self._batch_at >= self.options.trigger_delay_s:
            return False
        assert self._opened is not None
        latest = backlogs(self.reader, self._opened, with_age=False)
        return sum(max(0, each.latest - ends[queue]) for queue, each in latest.items()) < least

    @plainly
    def reportLatestOffset(self) -> Offset | None:
        """Return the ends of the queues, with backlog, lag and age, for the query's progress."""
        self._behind.wait()
        self._queues()
        assert self._opened is not None
        found = backlogs(self.reader, self._opened, with_age=True)
        return progress_of(self.reader, self._opened, found, self._planned)

    def _limits(self, limit: Any) -> _Limits:
        """Return the limits of this batch."""
        size = self.bytes_max or EVERYTHING
        if isinstance(limit, ReadMaxRows):
            return _Limits(limit.max_rows, size)
        if isinstance(limit, ReadMaxBytes):
            return _Limits(EVERYTHING, limit.max_bytes)
        if isinstance(limit, ReadAllAvailable):  # Trigger.Once: all messages in one batch
            return _Limits(EVERYTHING, EVERYTHING)
        return _Limits(self.messages_max, size)

    @plainly
    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Return the partitions in the order of the queues and of their messages."""
        queues = self._queues()
        begun = self._ends(start)
        found: list[InputPartition] = []
        for queue, (_, last) in self._ends(end).items():
            first = begun[queue][1] if queue in begun else 0
            if first == last:
                continue
            if queue not in queues:
                if not self.options.gap_fails:
                    say(f"qmd: the queue {queue} is gone; positions {first} to {last} are skipped")
                    continue
                raise SourceError(
                    f"qmd: an unfinished batch reads the queue {queue} from {first} to {last}, and"
                    " the query no longer names it; name it until that batch is complete."
                    " If it was deleted (and perhaps created again, with another id), the messages"
                    " of that batch are lost: begin with a new checkpoint",
                    code="queue_of_batch_missing",
                )
            one = queues[queue]
            first = first if queue in begun else one.queue.position
            found += [
                QueueRange(one.at.endpoint, one.place, queue, low, high)
                for low, high in parts(first, last, self._part_count(last - first))
            ]
        self._reserve_ahead()
        return found

    def _reserve_ahead(self) -> None:
        """Begin to reserve the batch behind the one that Spark processes now."""
        wanted, self._wanted = self._wanted, None
        if wanted is not None:
            self._ahead = _Ahead(*wanted, self._behind.start(partial(self._reserve, *wanted)))

    def _part_count(self, messages: int) -> int:
        most = self.options.rows_a_partition
        return max(self.options.partitions, -(-messages // most) if most else 1)

    @plainly
    def commit(self, end: Offset) -> None:
        """Consume the messages up to `end`: the sink has committed them."""
        self._behind.wait()
        queues = self._queues()
        for queue, (_, last) in self._ends(end).items():
            if queue in queues:
                self._consume(queues[queue], last)

    def _consume(self, one: OpenQueue, end: int) -> None:
        """Consume the messages of one queue, many of them behind Spark."""
        queue = one.queue.queue
        count = end - self._consumed.get(queue, one.queue.position)
        self._consumed[queue] = end

        def consume() -> None:
            one.at.run(one.at.qm.pipeline.consume(one.run, {queue: end}))

        def forgives(failure: BaseException) -> bool:
            return isinstance(failure, SourceError) and self._is_passed_over(one, failure)

        if count >= BEHIND_MIN and not one.queue.shared:
            self._behind.start(consume, forgives)
            return
        try:
            consume()
        except SourceError as error:
            if not forgives(error):
                raise

    def stop(self) -> None:
        self._behind.close()
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def _queues(self) -> dict[str, OpenQueue]:
        """Return the open queues by id; the first call begins this run and fences earlier runs."""
        if self._opened is None:
            self._opened = OpenQueues(self.options)
        return self._opened.by_id

    def _discovered(self) -> None:
        """Add new queues of patterns, if it is time to look for them."""
        self._queues()
        assert self._opened is not None
        for name in self._opened.discover():
            say(f"qmd: the stream of reader {self.reader} also reads the new queue {name}")

    def _ends(self, offset: Offset) -> dict[str, tuple[str, int]]:
        """Return the ends of an offset.  Raises SourceError for an offset of another reader."""
        if offset.get("reader", self.reader) != self.reader:
            raise SourceError(
                f"qmd: the checkpoint is of the reader {offset['reader']}, and the query's readerId"
                f' is {self.reader}; name it .option("readerId", "{offset["reader"]}"), or give the'
                " new reader a checkpoint of its own",
                code="checkpoint_of_other_reader",
            )
        return ends_of(offset)

    def _offset(
        self,
        ends: dict[str, int],
        kept: dict[str, tuple[str, int]] | None = None,
        old: dict[str, dict[str, str]] | None = None,
    ) -> Offset:
        queues = self._queues()
        places = {queue: (str(queues[queue].at.endpoint), end) for queue, end in ends.items()}
        endpoints = [one.at.endpoint for one in queues.values()]
        secrets = {str(one): found for one in endpoints if (found := secrets_of(one))}
        return offset_of(self.reader, {**(kept or {}), **places}, {**(old or {}), **secrets})

    # -- on executors --

    @plainly
    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, QueueRange)
        found = 0
        for batch in read_range(
            partition, self.output.decoded, bodies=self.options.bodies, reader=self.reader
        ):
            found += batch.num_rows
            yield self.output.of(batch)
        wanted = partition.until - partition.after
        if found != wanted:
            # Reserved messages disappear only with `qmd pipeline release`, or if a packet on the
            # disk is damaged and quarantined.
            text = (
                f"qmd at {partition.endpoint}: of the {wanted} messages that reader {self.reader}"
                f" has reserved in {partition.place.queue} from {partition.after} to"
                f" {partition.until} only {found} are there; the reader was released, or messages"
                " were damaged (see qmd check)"
            )
            if self.options.gap_fails:
                raise SourceError(
                    f'{text}.  To go on without them: .option("onGap", "warn")',
                    code="messages_missing",
                )
            warnings.warn(text, stacklevel=1)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for executors, without connections."""
        return {**self.__dict__, "_opened": None, "_behind": Behind(), "_ahead": None}


def parts(after: int, until: int, count: int) -> list[tuple[int, int]]:
    """Divide the range behind `after` up to `until` into at most `count` non-empty parts."""
    size = until - after
    count = min(count, size)
    cuts = [after + size * part // count for part in range(count + 1)] if count else []
    return list(pairwise(cuts))
