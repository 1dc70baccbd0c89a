"""New events: process each event of new files once, without those that were read before.

Files that may share blocks, by their footers, are read by one task, one after the other, which
also skips the events of earlier runs.  So no shuffle is needed, and files that do not overlap are
read in parallel.
"""

from __future__ import annotations

import pickle  # nosec B403: only for rows of our own tasks
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute

from pipeline.engines.engine import Engine
from pipeline.engines.local import LocalEngine
from pipeline.events import (
    LogFile,
    Unreadable,
    hash_of,
    open_parquet,
    pieces,
    read_piece,
    text_hashes,
)
from pipeline.jobs.incremental.known_events import (
    KnownEvents,
    overlapping,
    parts_of,
    stretches_of,
)

Frame = Any
Piece = tuple[str, int, int]
#: Queue manager (a hash; None: any), first and last block of a part of a file.
Box = tuple[int | None, int, int]

#: The columns of each event that are read besides the job's own.
PLACE = ("queue_manager", "block", "index", "at_ms")
_ANY: Box = (None, -(1 << 62), 1 << 62)
_READERS = 8
#: The column in which a task returns the stretches that it has read, and the names of hashes.
NOTE = "note"

#: Converts a table of new events to batches of the job's columns; `names` gets each hash's text.
Work = Callable[[Any, dict[int, str]], Iterable[Any]]


class NewEvents:
    """The results of the tasks: rows, stretches and names."""

    def __init__(self, notes: Iterable[tuple[Frame, dict[int, str]]]) -> None:
        self.stretches: list[Frame] = []
        self.names: dict[int, str] = {}
        for stretches, names in notes:
            self.stretches.append(stretches)
            self.names |= names

    def to_pandas(self) -> Frame:
        """Return all rows."""
        raise NotImplementedError

    def view(self, engine: Engine, name: str) -> None:
        """Give the rows a name in the engine that has read them."""
        raise NotImplementedError

    def close(self) -> None:
        """Release the rows."""


class SparkEvents(NewEvents):
    """Rows that stay on the executors: `rows`."""

    def __init__(self, table: Any) -> None:
        from pyspark import StorageLevel

        self._table = table.persist(StorageLevel.DISK_ONLY)
        noted = self._table.where(f"{NOTE} IS NOT NULL").select(NOTE).collect()
        # nosec B301: written by our own tasks in this job
        super().__init__(pickle.loads(row[0]) for row in noted)  # nosec B301
        self.rows = self._table.where(f"{NOTE} IS NULL").drop(NOTE)

    def to_pandas(self) -> Frame:
        return self.rows.toPandas()

    def view(self, engine: Engine, name: str) -> None:
        self.rows.createOrReplaceTempView(name)

    def close(self) -> None:
        self._table.unpersist()


class LocalEvents(NewEvents):
    """Rows in this process."""

    def __init__(self, table: Any) -> None:
        is_note = pa.compute.is_valid(table.column(NOTE))
        noted = table.filter(is_note).column(NOTE).to_pylist()
        super().__init__(pickle.loads(each) for each in noted)  # nosec B301: as above
        self._rows = table.filter(pa.compute.invert(is_note)).drop_columns([NOTE])

    def to_pandas(self) -> Frame:
        return self._rows.to_pandas()

    def view(self, engine: Engine, name: str) -> None:
        engine.put(name, self._rows)

    def close(self) -> None:
        self._rows = self._rows.slice(0, 0)


def each_once(
    spark: Any,
    files: Sequence[LogFile],
    seen: Frame,
    columns: Sequence[str],
    schema: str,
    work: Work,
) -> NewEvents:
    """Apply `work` to the events of `files` that are not in `seen`; its rows have `schema`.

    `spark` is a session, or the embedded engine: then the rows are in this process.
    """
    is_local = isinstance(spark, LocalEngine)
    cores = spark.parallelism if is_local else int(spark.sparkContext.defaultParallelism)
    tasks = _tasks(cores, files, seen)
    wanted = list(dict.fromkeys((*PLACE, *columns)))
    arrow = _arrow_schema(schema)
    if is_local:
        with ThreadPoolExecutor(cores) as threads:
            done = threads.map(lambda task: list(_task(task, wanted, work, arrow)), tasks)
            batches = [batch for each in done for batch in each]
        return LocalEvents(
            pa.Table.from_batches(batches, arrow.append(pa.field(NOTE, pa.binary())))
        )

    def each(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from _task(tasks[number], wanted, work, arrow)

    rows = spark.range(0, len(tasks), 1, max(len(tasks), 1)).mapInArrow(
        each, f"{schema}, {NOTE} binary"
    )
    return SparkEvents(rows)


def _task(
    parts: list[tuple[list[Piece], Frame]], columns: list[str], work: Work, arrow: Any
) -> Iterator[Any]:
    names: dict[int, str] = {}
    noted_stretches: list[Frame] = []
    for some, known in parts:
        reader = OnceReader(known)
        for piece in some:
            for events in read_piece(piece, columns):
                table, stretches = reader.new_ones(events)
                if len(table) == 0:
                    continue
                noted_stretches.append(stretches)
                for batch in work(table, names):
                    noted = pa.nulls(batch.num_rows, pa.binary())
                    yield pa.RecordBatch.from_arrays(
                        [*(batch.column(name).cast(arrow.field(name).type)
                           for name in arrow.names), noted],
                        names=[*arrow.names, NOTE],
                    )  # fmt: skip
    if noted_stretches:
        note = pickle.dumps((pd.concat(noted_stretches, ignore_index=True), names))
        nothing = [pa.nulls(1, field.type) for field in arrow]
        yield pa.RecordBatch.from_arrays(
            [*nothing, pa.array([note], pa.binary())], names=[*arrow.names, NOTE]
        )


class OnceReader:
    """Reader of tables that may share events with each other and with known stretches."""

    def __init__(self, known: Frame) -> None:
        self._seen = KnownEvents(known)
        self._held: list[Frame] = []  # read, but not yet in `_seen`, which is rarely needed
        self._top: dict[int, int] = {}  # the highest block of each host there

    def new_ones(self, table: Any) -> tuple[Any, Frame]:
        host = text_hashes(table.column("queue_manager"))
        block, index, at_ms = (
            table.column(name).to_numpy().astype(np.int64, copy=False)
            for name in ("block", "index", "at_ms")
        )
        hosts = np.unique(host).tolist()
        if any(block[host == each].min() <= self._top.get(each, -1) for each in hosts):
            for each in self._held:
                self._seen.add_parts(each)
            self._held, self._top = [], {}
        known = self._seen.holds(host, block, index, at_ms)
        rises = (block[1:] > block[:-1]) | ((block[1:] == block[:-1]) & (index[1:] > index[:-1]))
        if len(hosts) > 1 or not rises.all():
            events = pd.DataFrame({"h": host, "b": block, "i": index, "t": at_ms})
            known |= events.duplicated().to_numpy()
        if known.any():
            at = np.flatnonzero(~known)
            table = table.take(pa.array(at))
            host, block, index, at_ms = host[at], block[at], index[at], at_ms[at]
        parts = parts_of(host, block, index, at_ms)
        stretches = stretches_of(parts)
        if len(stretches):
            self._held.append(parts)
            last = stretches.groupby("host").block_last.max()
            for each, top in last.items():
                self._top[each] = max(top, self._top.get(each, -1))
        return table, stretches


def work_of(files: Sequence[LogFile], tasks: int) -> tuple[list[list[Piece]], set[str]]:
    """Return the pieces of files for each task, and the paths of files that may share events.

    Files that may share events are read by one task.
    """
    cut = [piece for part in pieces(files, len(files) or 1) for piece in part]
    with ThreadPoolExecutor(_READERS) as readers:
        boxes = list(readers.map(readable_boxes, cut))
    groups = together(boxes)
    sizes = {file.path: max(file.size, 1) for file in files}
    total = sum(sizes[path] for path, *_ in cut)
    work: list[list[Piece]] = [[] for _ in range(min(tasks, len(groups)))]
    reached = 0
    for group in groups:
        work[min(len(work) - 1, reached * len(work) // max(total, 1))] += [cut[at] for at in group]
        reached += sum(sizes[cut[at][0]] for at in group)
    shared = {cut[at][0] for group in groups if len(group) > 1 for at in group}
    return [each for each in work if each], shared


def readable_boxes(piece: Piece) -> list[Box]:
    """Return the boxes of a piece; none for a damaged file, which no task will read."""
    try:
        return _boxes(piece)
    except (OSError, ValueError, TypeError, ArithmeticError, Unreadable):
        return []


def _tasks(
    cores: int, files: Sequence[LogFile], seen: Frame
) -> list[list[tuple[list[Piece], Frame]]]:
    """Return for each task the pieces to read in sequence, and the known stretches of each."""
    wanted = max(cores * 2, sum(file.size for file in files) // (32 << 20), 1)
    cut = [piece for part in pieces(files, len(files) or 1) for piece in part]
    with ThreadPoolExecutor(_READERS) as readers:
        boxes = list(readers.map(_boxes, cut))
    groups = together(boxes)
    sizes = {file.path: file.size for file in files}
    total = sum(sizes[path] for path, *_ in cut)
    found: list[list[tuple[list[Piece], Frame]]] = [[] for _ in range(min(wanted, len(groups)))]
    reached = 0
    for group in groups:
        everything = any(host is None for at in group for host, *_ in boxes[at])
        known = (
            seen
            if everything
            else overlapping(
                seen, ((host, a, b) for at in group for host, a, b in boxes[at] if host is not None)
            )
        )
        found[min(len(found) - 1, reached * len(found) // max(total, 1))].append(
            ([cut[at] for at in group], known)
        )
        reached += sum(sizes[cut[at][0]] for at in group)
    return [each for each in found if each]


def together(boxes: Sequence[Sequence[Box]]) -> list[list[int]]:
    """Group the numbers of pieces with boxes that may share events; groups keep the order."""
    parent = list(range(len(boxes)))

    def root(at: int) -> int:
        while parent[at] != at:
            parent[at] = parent[parent[at]]
            at = parent[at]
        return at

    def join(a: int, b: int) -> None:
        low, high = sorted((root(a), root(b)))
        parent[high] = low

    flat = [(host, first, last, at) for at, each in enumerate(boxes) for host, first, last in each]
    anywhere = [box for box in flat if box[0] is None]
    for host in {box[0] for box in flat if box[0] is not None}:
        mine = sorted(box[1:] for box in flat if box[0] == host)
        reach, owner = mine[0][1], mine[0][2]
        for first, last, at in mine[1:]:
            if first <= reach:
                join(owner, at)
            if last > reach:
                reach, owner = last, at
    for _, first, last, at in anywhere:
        for _, other_first, other_last, other in flat:
            if first <= other_last and other_first <= last:
                join(at, other)
    groups: dict[int, list[int]] = {}
    for at in range(len(boxes)):
        groups.setdefault(root(at), []).append(at)
    return list(groups.values())


def _boxes(piece: Piece) -> list[Box]:
    """Return the boxes of a piece: from a Parquet footer, or by reading the lines."""
    path, first, last = piece
    if not path.endswith(".parquet"):
        return _boxes_of_lines(path)
    found: set[Box] = set()
    with open_parquet(path) as file:
        names = file.schema_arrow.names
        at = [names.index(name) for name in ("queue_manager", "block")]
        for number in range(first, file.metadata.num_row_groups if last < 0 else last):
            group = file.metadata.row_group(number)
            hosts, blocks = (group.column(each).statistics for each in at)
            if hosts is None or blocks is None or not (hosts.has_min_max and blocks.has_min_max):
                return [_ANY]
            host = hash_of(hosts.min) if hosts.min == hosts.max else None
            found.add((host, int(blocks.min), int(blocks.max)))
    hosts_there = {host for host, *_ in found}
    if len(hosts_there) == 1:  # row groups of one log follow each other
        return [(hosts_there.pop(), min(box[1] for box in found), max(box[2] for box in found))]
    return sorted(found, key=str)


def _boxes_of_lines(path: str) -> list[Box]:
    found: dict[int, tuple[int, int]] = {}
    for table in read_piece((path, 0, -1), ("queue_manager", "block")):
        block = table.column("block").to_numpy()
        host = text_hashes(table.column("queue_manager"))
        for each in np.unique(host):
            mine = block[host == each]
            low, high = found.get(int(each), (1 << 62, -1))
            found[int(each)] = min(low, int(mine.min())), max(high, int(mine.max()))
    return [(host, first, last) for host, (first, last) in found.items()]


def _arrow_schema(schema: str) -> Any:
    types = {"bigint": pa.int64(), "string": pa.string(), "int": pa.int32(), "binary": pa.binary()}
    fields = [each.split() for each in schema.replace("`", "").split(",")]
    return pa.schema([(name, types[kind]) for name, kind in fields])
