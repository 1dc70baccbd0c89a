"""The two passes of the audit over the log: in Spark's tasks, with Arrow and numpy.

fingerprints    each piece as some rows for each stream
suspect_facts   the single events that the rules need, shuffled once, by their message's source
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.events import LogFile, Unreadable, pieces, read_piece, text_hashes
from pipeline.jobs.facts import (
    ARRIVAL_MAX,
    COLUMNS,
    ENDING_KINDS,
    Facts,
    Role,
    coded,
    facts_of,
    halves,
    ids_of,
)
from pipeline.jobs.runs import SCHEMA, SPARK_SCHEMA, fingerprint, first_of_each, mixed, unreadable
from pipeline.jobs.state import State
from pipeline.jobs.survey import Survey

Frame = Any

Piece = tuple[str, int, int]

#: For each so many bytes of logs one message less tells about clocks: some 100,000 are enough.
_SAMPLE_BYTES = 4 << 20
_FACT_SCHEMA = ", ".join(f"{name} bigint" for name in Facts._fields)
_ARROW_FACTS = pa.schema([(name, pa.int64()) for name in Facts._fields])


def tasks_for(spark: Any, files: Sequence[LogFile]) -> int:
    size = sum(file.size for file in files)
    return max(int(spark.sparkContext.defaultParallelism) * 2, size // (32 << 20), 1)


def _map(spark: Any, files: Sequence[LogFile], tasks: int, function: Any, schema: str) -> Any:
    """`function` of each piece of the files, as a table of `schema`."""
    # By number, and not as a table of paths, which Spark would have to sort into partitions.
    work = pieces(files, tasks)

    def each(batches: Iterable[Any]) -> Iterator[Any]:
        numbers = [n for batch in batches for n in batch.column(0).to_pylist()]
        yield from function(part for n in numbers for part in work[n])

    return spark.range(0, len(work), 1, max(len(work), 1)).mapInArrow(each, schema)


def fingerprints(spark: Any, files: Sequence[LogFile], tasks: int) -> Frame:
    """The rows of `runs.SCHEMA` of all files."""
    sample_every = max(1, sum(file.size for file in files) // _SAMPLE_BYTES)

    def each(parts: Iterator[Piece]) -> Iterator[Any]:
        return print_rows(parts, sample_every)

    return _map(spark, files, tasks, each, SPARK_SCHEMA).toPandas()


def print_rows(parts: Iterator[Piece], sample_every: int) -> Iterator[Any]:
    told: set[int] = set()
    hosts: set[tuple[int, str]] = set()
    held: list[Any] = []
    for part in parts:
        of_part: list[Any] = []
        try:
            for table in read_piece(part, COLUMNS):
                fresh: dict[int, str] = {}
                facts = facts_of(table, fresh)
                new_hosts = _hosts_of(table, facts)
                new_hosts = {each: new_hosts[each] for each in new_hosts if each not in hosts}
                hosts |= new_hosts.keys()
                names = {key: text for key, text in fresh.items() if key not in told}
                told |= names.keys()
                of_part += fingerprint(facts, names, new_hosts, sample_every)
        except Unreadable as broken:
            # What was read of it stays out as well: it is read again when it is whole.
            of_part = [unreadable(broken.path, broken.why)]
        held += of_part
    if held:
        yield from pa.Table.from_batches(held).combine_chunks().to_batches()
    else:
        yield pa.RecordBatch.from_pylist([], schema=SCHEMA)


def _hosts_of(table: Any, facts: Facts) -> dict[tuple[int, str], int]:
    """Which names the queue managers that tell bear, and since which block."""
    if len(table) == 0:
        return {}
    both = mixed(facts.host, text_hashes(table.column("host")))
    first = [0] if (both == both[0]).all() else first_of_each(both)
    names = table.column("host")
    return {
        (int(facts.host[at]), names[int(at)].as_py() or ""): int(facts.block[at]) for at in first
    }


@dataclass(frozen=True)
class Wanted:
    """Of which messages the rules need the events.  Pairs are `mixed`, all is sorted."""

    full: bool
    streams: Any  # source and stream
    stream_halves: Any  # the streams alone: to tell what is of none of them at once
    plain: Any  # sources
    queues: Any  # host and queue
    messages: Any  # source and number
    message_ids: Any  # the same as texts

    @classmethod
    def of(cls, found: Survey, dead: Frame, *, full: bool) -> Wanted:
        numbers = dead[["source", "key_first"]].drop_duplicates()
        ids = [
            f"{found.names.get(int(source), '')}\\{int(number)}"
            for source, number in numbers.itertuples(index=False)
        ]
        return cls(
            full,
            np.sort(_pair(found.suspect_streams)),
            np.unique(np.array([stream for _, stream in found.suspect_streams], np.int64)),
            np.array(sorted(found.suspect_plain), np.int64),
            np.sort(_pair(found.suspect_queues)),
            np.sort(mixed(numbers.source.to_numpy(np.int64), numbers.key_first.to_numpy(np.int64))),
            pa.array(ids, pa.string()),
        )

    def nothing(self) -> bool:
        return not self.full and not any(
            map(len, (self.streams, self.plain, self.queues, self.messages))
        )

    def probe(self, table: Any) -> Any:
        """Which rows may be wanted, by the columns `PROBE`: quickly, and none too few."""
        n = len(table)
        if self.full:
            return np.ones(n, bool)
        chosen = coded(table.column("kind"), _ENDING, 0) == 1
        high, _, has_sequence = halves(table.column("sequence_id").combine_chunks())
        if len(self.stream_halves):
            at = np.flatnonzero(has_sequence & _in(high, self.stream_halves))
            source, _, _ = ids_of(table.column("message_id").combine_chunks().take(pa.array(at)))
            chosen[at] |= _in(mixed(source, high[at]), self.streams)
        if len(self.plain):
            chosen |= ~has_sequence & (coded(table.column("kind"), _PLAIN, 0) == 1)
        if len(self.message_ids):
            same = pc.is_in(table.column("message_id"), self.message_ids)
            chosen |= same.to_numpy()
        if len(self.queues):
            at = np.flatnonzero(coded(table.column("kind"), _LEAVING, 0) == 1)
            host = text_hashes(table.column("queue_manager"))[at]
            chosen[at] |= _in(mixed(host, text_hashes(table.column("queue"))[at]), self.queues)
        return chosen

    def choose(self, f: Facts) -> Any:
        """Which are."""
        moves, left, ends = _MOVES[f.role], _LEAVES[f.role], _ENDS[f.role]
        if self.full:
            return moves | ends | left
        is_suspect = np.where(
            f.stream >= 0,
            _in(mixed(f.source, f.stream), self.streams),
            _in(f.source, self.plain),
        )
        return (
            ends
            | (moves & is_suspect)
            | ((moves | left) & _in(mixed(f.source, f.number), self.messages))
            | (left & _in(mixed(f.host, f.queue), self.queues))
        )


def _roles(*roles: Role) -> Any:
    table = np.zeros(len(Role), bool)
    table[list(roles)] = True
    return table


_MOVES = _roles(
    Role.SENT, Role.ACCEPTED, Role.ORDER_ACKED, Role.SESSION_ACKED, Role.RELAYED, Role.PASSED
)
_ENDS = _roles(Role.ENDED, Role.REFUSED, Role.DEAD_LATER)
_LEAVES = _roles(Role.RECEIVED, Role.LEFT)
PROBE = ("kind", "queue_manager", "queue", "message_id", "sequence_id")
_ENDING = dict.fromkeys(ENDING_KINDS, 1)
_PLAIN = dict.fromkeys(("sent", "accepted", "session_acknowledged", "relayed"), 1)
_LEAVING = dict.fromkeys(("received", *ENDING_KINDS), 1)


def suspect_facts(
    spark: Any,
    files: Sequence[LogFile],
    tasks: int,
    found: Survey,
    state: State,
    *,
    full: bool,
) -> Any:
    """The events that the rules need, with what was carried over; None where they need none."""
    wanted = Wanted.of(found, pd.concat([found.dead, state.dead]), full=full)
    if wanted.nothing() and not len(state.carried):
        return None

    def select(parts: Iterator[Piece]) -> Iterator[Any]:
        for part in parts:
            for table in read_piece(part, COLUMNS, PROBE, wanted.probe):
                facts = facts_of(table)
                some = facts.where(np.flatnonzero(wanted.choose(facts)))
                yield pa.RecordBatch.from_arrays(
                    [pa.array(column.astype(np.int64)) for column in some], schema=_ARROW_FACTS
                )

    whole = [file for file in files if file.path not in found.unreadable]
    facts = _map(spark, whole, tasks, select, _FACT_SCHEMA)
    if len(state.carried):
        facts = facts.unionByName(spark.createDataFrame(state.carried, _FACT_SCHEMA))
    facts = facts.repartition(max(spark.sparkContext.defaultParallelism * 2, 4), "source")
    if found.twice or len(state.carried):
        # What was carried over has no index any more: a place is given once, and so is a number.
        facts = facts.selectExpr(
            "*",
            f"if(role IN ({Role.SENT}, {Role.ACCEPTED}), 0, index) AS nth",
            f"if(role = {Role.ACCEPTED} AND place >= 0, place & {ARRIVAL_MAX}, 0) AS arrival",
        )
        # By time as well: who was put back from a backup gives blocks and places once more.
        same = ["source", "number", "role", "host", "block", "at_ms", "nth", "arrival"]
        facts = facts.dropDuplicates(same).drop("nth", "arrival")
    return facts


def _pair(pairs: Iterable[tuple[int, int]]) -> Any:
    listed = list(pairs)
    left = np.array([left for left, _ in listed], np.int64)
    return mixed(left, np.array([right for _, right in listed], np.int64))


def _in(values: Any, among: Any) -> Any:
    """Whether each of `values` is among the sorted ones."""
    if len(among) == 0:
        return np.zeros(len(values), bool)
    at = np.minimum(np.searchsorted(among, values), len(among) - 1)
    return among[at] == values
