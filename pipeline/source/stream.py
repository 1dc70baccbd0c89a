"""Reading a queue as a stream, exactly once, although reading a queue empties it.

    latestOffset   reserves a range in the queue manager, and says how far it goes
    (Spark writes that down)
    partitions, read   give the reserved messages, as often as Spark asks: always the same ones
    (the sink commits, Spark writes that down)
    commit         consumes them: from now on they have been received

The range is fixed before Spark logs it.  So a driver that dies in between gets the same messages
again, and whatever it logged can be read again.  Each run of a query has a higher fence than those
before it: an older driver that wakes up can neither reserve nor consume.

Spark tells the last batch's commit only when it plans the next one; see checkpoint.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from pipeline.source.batch import Stretch, expand, read_stretch
from pipeline.source.connecting import Connected
from pipeline.source.decode.rows import Place
from pipeline.source.errors import SourceError, plainly
from pipeline.source.offsets import Offset, ends_of, offset_of
from pipeline.source.options import Options
from qmd.client.pipeline import ReadQueue, Run

EVERYTHING = 1 << 62
RESERVED_AT_ONCE = 65_536


@dataclass(slots=True)
class OpenQueue:
    """One queue of this run."""

    at: Connected
    run: Run
    queue: ReadQueue
    place: Place
    target: int = EVERYTHING  # of Trigger.AvailableNow


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in one process on the driver as long as its query; `read` runs on executors."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.reader = options.reader_id
        self.columns = options.columns("messages")
        self.messages_max = options.messages_a_trigger
        self.bytes_max = options.bytes_a_trigger
        self._open_queues: dict[str, OpenQueue] | None = None

    # -- on the driver --

    @plainly
    def initialOffset(self) -> Offset:
        """What the reader has consumed: where a query without a checkpoint begins."""
        return self._offset({queue: one.queue.position for queue, one in self._queues().items()})

    def getDefaultReadLimit(self) -> Any:
        return ReadMaxRows(self.messages_max)

    @plainly
    def prepareForTriggerAvailableNow(self) -> None:
        """What is there now, and no more, will be read.

        Counted, not looked up: others may take some of it, and then as many that came later.
        """
        for one in self._queues().values():
            there = one.at.run(one.at.qm.pipeline.split_range(one.queue.queue, 1)).messages
            one.target = max(one.queue.position, one.queue.reserved * one.queue.shared) + there

    @plainly
    def latestOffset(self, start: Offset, limit: Any) -> Offset:
        """Reserve what comes behind `start`, as much as the limit allows."""
        queues = self._queues()
        begun = {queue: end for queue, (_, end) in self._ends(start).items()}
        ends = {queue: begun.get(queue, one.queue.position) for queue, one in queues.items()}
        messages, size = self._limits(limit)
        # All queues get their share, and then the first ones what others have left of it.
        waiting, is_first_round = list(queues.values()), True
        while waiting and messages > 0 and size > 0:
            share = max(1, messages // len(waiting))
            portion = max(1, size // len(waiting))
            hungry: list[OpenQueue] = []
            for one in waiting:
                queue = one.queue.queue
                most = min(share, messages, one.target - ends[queue], RESERVED_AT_ONCE)
                if most <= 0 or size <= 0:
                    continue
                given = one.at.run(
                    one.at.qm.pipeline.reserve(
                        one.run,
                        queue,
                        ends[queue],
                        messages_max=most,
                        bytes_max=0 if size >= EVERYTHING else min(portion, size),
                        # Each queue moves, and what is left over is no reason for more.
                        one_always=is_first_round,
                    )
                )
                messages -= given.messages
                size -= given.bytes
                if given.more and given.end > ends[queue]:
                    hungry.append(one)
                ends[queue] = given.end
            waiting, is_first_round = hungry, False
        if all(begun.get(queue) == end for queue, end in ends.items()):
            return start  # word for word: anything else would be a batch
        # A queue that is not read any more keeps its place.
        kept = {queue: pair for queue, pair in self._ends(start).items() if queue not in queues}
        return self._offset(ends, kept)

    def _limits(self, limit: Any) -> tuple[int, int]:
        """Of this batch: messages and bytes."""
        size = self.bytes_max or EVERYTHING
        if isinstance(limit, ReadMaxRows):
            return limit.max_rows, size
        if isinstance(limit, ReadMaxBytes):
            return EVERYTHING, limit.max_bytes
        if isinstance(limit, ReadAllAvailable):  # Trigger.Once: all of it in one batch
            return EVERYTHING, EVERYTHING
        return self.messages_max, size

    @plainly
    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """In the order of the queues, and of their messages."""
        queues = self._queues()
        begun = self._ends(start)
        found: list[InputPartition] = []
        for queue, (_, last) in self._ends(end).items():
            first = begun[queue][1] if queue in begun else 0
            if first == last:
                continue
            if queue not in queues:
                raise SourceError(
                    f"qmd: a batch that was begun reads the queue {queue} from {first} to {last},"
                    " and the query does not name it any more; name it until that batch is done."
                    " If it was deleted (and perhaps made anew, which gives another id), what that"
                    " batch had is gone: begin with a new checkpoint",
                    code="queue_of_batch_missing",
                )
            one = queues[queue]
            first = first if queue in begun else one.queue.position
            found += [
                Stretch(one.at.endpoint, one.place, queue, low, high)
                for low, high in parts(first, last, self.options.partitions)
            ]
        return found

    @plainly
    def commit(self, end: Offset) -> None:
        """All of it is in the sink."""
        queues = self._queues()
        for queue, (_, last) in self._ends(end).items():
            if queue in queues:
                one = queues[queue]
                one.at.run(one.at.qm.pipeline.consume(one.run, {queue: last}))

    def stop(self) -> None:
        queues, self._open_queues = self._open_queues or {}, None
        for at in {id(one.at): one.at for one in queues.values()}.values():
            at.close()

    def _queues(self) -> dict[str, OpenQueue]:
        """By id; the first call begins this run, and shuts out those before it."""
        if self._open_queues is None:
            found: dict[str, OpenQueue] = {}
            for wanted in self.options.sources():
                at = Connected(wanted.endpoint, patient=True)
                names = expand(at, wanted.queues)
                run = at.run(
                    at.qm.pipeline.open_reader(
                        self.reader, names, shared=self.options.shared, start=self.options.start
                    )
                )
                for name, queue in zip(names, run.queues, strict=True):
                    place = Place(at.qm.name, at.qm.id, name)
                    found[queue.queue] = OpenQueue(at, run, queue, place)
            self._open_queues = found
        return self._open_queues

    def _ends(self, offset: Offset) -> dict[str, tuple[str, int]]:
        """Raises SourceError for an offset of another reader: its positions are other messages."""
        if offset.get("reader", self.reader) != self.reader:
            raise SourceError(
                f"qmd: the checkpoint is of the reader {offset['reader']}, and the query's readerId"
                f' is {self.reader}; name it .option("readerId", "{offset["reader"]}"), or give the'
                " new reader a checkpoint of its own",
                code="checkpoint_of_other_reader",
            )
        return ends_of(offset)

    def _offset(
        self, ends: dict[str, int], kept: dict[str, tuple[str, int]] | None = None
    ) -> Offset:
        queues = self._queues()
        places = {queue: (str(queues[queue].at.endpoint), end) for queue, end in ends.items()}
        return offset_of(self.reader, {**(kept or {}), **places})

    # -- on executors --

    @plainly
    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Stretch)
        found = 0
        for batch in read_stretch(
            partition, self.columns, bodies=self.options.bodies, reader=self.reader
        ):
            found += batch.num_rows
            yield batch
        wanted = partition.until - partition.after
        if found != wanted:
            # Nobody takes away what is reserved, except with `qmd pipeline release`, or when a
            # packet on the disk is damaged and set aside.
            told = (
                f"qmd at {partition.endpoint}: of the {wanted} messages that reader {self.reader}"
                f" has reserved in {partition.place.queue} from {partition.after} to"
                f" {partition.until} only {found} are there; the reader was released, or messages"
                " were damaged (qmd check says so)"
            )
            if self.options.gap_fails:
                raise SourceError(
                    f'{told}.  To go on without them: .option("onGap", "warn")',
                    code="messages_missing",
                )
            warnings.warn(told, stacklevel=1)

    def __getstate__(self) -> dict[str, Any]:
        """Executors get no connections."""
        return {**self.__dict__, "_open_queues": None}


def parts(after: int, until: int, count: int) -> list[tuple[int, int]]:
    """The range behind `after` up to `until` in at most so many parts, none of them empty."""
    size = until - after
    count = min(count, size)
    cuts = [after + size * part // count for part in range(count + 1)] if count else []
    return list(pairwise(cuts))
