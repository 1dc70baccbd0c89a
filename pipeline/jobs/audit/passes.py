"""The two passes of the audit over the logs, as tasks of an engine with Arrow and numpy.

fingerprints    each piece of a log as some rows for each stream
suspect_facts   the single events that the rules need, shuffled once by their message's source, or
                by the message if a source has many
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.engines.engine import Engine
from pipeline.events import LogFile, Unreadable, read_piece, text_hashes
from pipeline.jobs.audit import presence, stream_parts
from pipeline.jobs.audit.epochs import Epochs, epoch_of
from pipeline.jobs.audit.facts import (
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
from pipeline.jobs.audit.fingerprints import (
    SCHEMA,
    fingerprint,
    first_of_each,
    mixed,
    unreadable,
    with_joined_ranges,
)
from pipeline.jobs.audit.settled import Numbers, Stretches, ends, in_pairs
from pipeline.jobs.audit.state import State
from pipeline.jobs.audit.survey import Survey
from pipeline.jobs.incremental.known_events import no_stretches
from pipeline.jobs.incremental.new_events import OnceReader, work_of

Frame = Any

Piece = tuple[str, int, int]

#: Log bytes for each step by which the clock sample gets sparser; some 100,000 samples suffice.
_SAMPLE_BYTES = 4 << 20
_ARROW_FACTS = pa.schema([(name, pa.int64()) for name in Facts._fields])


def tasks_for(engine: Engine, files: Sequence[LogFile]) -> int:
    size = sum(file.size for file in files)
    return max(engine.parallelism * 2, size // (32 << 20), 1)


def fingerprints(
    engine: Engine, files: Sequence[LogFile], tasks: int, read: Stretches, epochs: Epochs
) -> Frame:
    """Return the `fingerprints.SCHEMA` rows of all files, except events `read` before."""
    # A power of two: the samples of two runs overlap.
    sample_every = 1 << (sum(file.size for file in files) // _SAMPLE_BYTES).bit_length()

    work, shared = work_of(files, tasks)

    def each(parts: Iterator[Piece]) -> Iterator[Any]:
        return print_rows(parts, sample_every, read, shared, epochs)

    return engine.collect(work, each, SCHEMA).to_pandas()


def print_rows(
    parts: Iterator[Piece],
    sample_every: int,
    read: Stretches,
    shared: Collection[str] = (),
    epochs: Epochs | None = None,
) -> Iterator[Any]:
    """Yield the fingerprints of pieces; files in `shared` may contain events of each other."""
    once = OnceReader(no_stretches())
    named: set[int] = set()
    hosts: set[tuple[int, str]] = set()
    held: list[Any] = []
    for part in parts:
        of_part: list[Any] = []
        try:
            for table in read_piece(part, COLUMNS):
                if part[0] in shared:
                    table, _ = once.new_ones(table)
                fresh: dict[int, str] = {}
                facts = facts_of(table, fresh)
                if epochs is not None:
                    facts = epochs.raised(facts, part[0])
                of_epochs: Any = epoch_of(part[0]) if epochs is None else epochs.of(facts, part[0])
                if (known := read.holds(facts)).any():
                    chosen = np.flatnonzero(~known)
                    facts, table = facts.where(chosen), table.take(pa.array(chosen))
                    of_epochs = of_epochs if epochs is None else of_epochs[chosen]
                new_hosts = _hosts_of(table, facts)
                new_hosts = {each: new_hosts[each] for each in new_hosts if each not in hosts}
                hosts |= new_hosts.keys()
                names = {key: text for key, text in fresh.items() if key not in named}
                named |= names.keys()
                of_part += fingerprint(facts, names, new_hosts, sample_every, of_epochs)
        except Unreadable as broken:
            # Exclude all of it: it is read again when the file is intact.
            of_part = [unreadable(broken.path, broken.why)]
        held += of_part
    if held:
        rows = with_joined_ranges(pa.Table.from_batches(held))
        yield from rows.combine_chunks().to_batches()
    else:
        yield pa.RecordBatch.from_pylist([], schema=SCHEMA)


def _hosts_of(table: Any, facts: Facts) -> dict[tuple[int, str], int]:
    """Return the names of the logging queue managers, and the first block of each name."""
    if len(table) == 0:
        return {}
    both = mixed(facts.host, text_hashes(table.column("host")))
    first = [0] if (both == both[0]).all() else first_of_each(both)
    names = table.column("host")
    return {
        (int(facts.host[at]), names[int(at)].as_py() or ""): int(facts.block[at]) for at in first
    }


@dataclass(frozen=True)
class EventSelection:
    """The messages of which the rules need the events.  Pairs are `mixed`; everything is sorted."""

    full: bool
    streams: Any  # source and stream
    stream_halves: Any  # the streams alone, for a quick first selection
    plain: Any  # sources
    queues: Any  # host and queue
    messages: Any  # source and number
    message_ids: Any  # the same as text
    again_hosts: Any  # with messages that have left their place before
    again_places: Numbers
    again_numbers: Numbers
    unarrived_hosts: Any  # with messages that left a place, and never came there as far as known
    unarrived: Numbers

    @classmethod
    def of(cls, found: Survey, carried: Frame, *, full: bool) -> EventSelection:
        """Select what `found` suspects; `carried`: events of messages that are still open."""
        numbers = _single(found, carried)
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
            np.sort(mixed(numbers.source.to_numpy(np.int64), numbers.number.to_numpy(np.int64))),
            pa.array(ids, pa.string()),
            np.unique(found.again_places.frame.source.to_numpy(np.int64)),
            found.again_places,
            found.again_numbers,
            np.unique(found.unarrived.frame.source.to_numpy(np.int64)),
            found.unarrived,
        )

    def nothing(self) -> bool:
        return not self.full and not any(
            map(
                len,
                (
                    self.streams,
                    self.plain,
                    self.queues,
                    self.messages,
                    self.again_hosts,
                    self.unarrived_hosts,
                ),
            )
        )

    def probe(self, table: Any) -> Any:
        """Select by the columns `PROBE`: quick, and never too few rows."""
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
        if len(self.again_hosts) or len(self.unarrived_hosts):
            host = text_hashes(table.column("queue_manager"))
            leaves = coded(table.column("kind"), _LEAVING, 0) == 1
            chosen |= leaves & (_in(host, self.again_hosts) | _in(host, self.unarrived_hosts))
        return chosen

    def choose(self, f: Facts) -> Any:
        """Select exactly the wanted events."""
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
            | ((f.role == Role.LEFT) & (f.source != f.host))
            | (moves & is_suspect)
            | (f.role == Role.IMPORTED)
            | ((moves | left) & _in(mixed(f.source, f.number), self.messages))
            | (left & _in(mixed(f.host, f.queue), self.queues))
            | (left & (f.place >= 0) & self.left_wrongly(f))
        )

    def left_wrongly(self, f: Facts) -> Any:
        """Return which left a place that they had left before, or to which they never came."""
        again = self.again_places.have(f.host, f.arrival, express=False)
        again &= self.again_numbers.have(f.source, f.number, express=False)
        return again | (
            (f.source != f.host) & self.unarrived.have(f.host, f.arrival, express=False)
        )


def _roles(*roles: Role) -> Any:
    table = np.zeros(len(Role), bool)
    table[list(roles)] = True
    return table


_MOVES = _roles(
    *(Role.SENT, Role.ACCEPTED, Role.ORDER_ACKED, Role.SESSION_ACKED, Role.RELAYED, Role.PASSED),
    Role.IMPORTED,
)
_ENDS = _roles(Role.ENDED, Role.REFUSED, Role.DEAD_LATER)
_LEAVES = _roles(Role.RECEIVED, Role.LEFT)
PROBE = ("kind", "queue_manager", "queue", "message_id", "sequence_id")
_ENDING = dict.fromkeys(ENDING_KINDS, 1)
_PLAIN = dict.fromkeys(("sent", "accepted", "session_acknowledged", "relayed"), 1)
_LEAVING = dict.fromkeys(("received", *ENDING_KINDS), 1)


#: Repeated events are one: each place and each number is given once, also if one event has two
#: cursors.  Times are compared too: a restored backup gives blocks and places again.
_SAME = (
    *("source", "number", "role", "host", "block", "at_ms"),
    f"if(role IN ({Role.SENT}, {Role.ACCEPTED}), 0, index)",
    f"if(role = {Role.ACCEPTED} AND place >= 0, place & {ARRIVAL_MAX}, 0)",
)


def suspect_facts(
    engine: Engine,
    files: Sequence[LogFile],
    tasks: int,
    found: Survey,
    state: State,
    *,
    full: bool,
) -> bool:
    """Create table `facts`: the events that the rules need, with those kept of earlier runs.

    Return whether there are any.
    """
    selection = EventSelection.of(found, state.carried, full=full)
    kept = _kept(found, state)
    if selection.nothing() and not len(kept):
        return False
    read, epochs = Stretches(state.covered), Epochs(state.epochs)
    whole = [] if selection.nothing() else [f for f in files if f.path not in found.unreadable]
    work, shared = work_of(whole, tasks)

    def select(parts: Iterator[Piece]) -> Iterator[Any]:
        once = OnceReader(no_stretches())
        for part in parts:
            for table in read_piece(part, COLUMNS, PROBE, selection.probe):
                if part[0] in shared:
                    table, _ = once.new_ones(table)
                facts = epochs.raised(facts_of(table), part[0])
                some = facts.where(np.flatnonzero(selection.choose(facts) & ~read.holds(facts)))
                yield pa.RecordBatch.from_arrays(
                    [pa.array(column.astype(np.int64)) for column in some], schema=_ARROW_FACTS
                )

    parts = stream_parts.parts_of(found)
    more = pa.Table.from_pandas(kept[list(Facts._fields)], _ARROW_FACTS, preserve_index=False)
    engine.create(
        "facts",
        work,
        select,
        more,
        by=("source", "number") if parts else ("source",),
        partitions=parts,
        distinct=_SAME if found.twice else (),
    )
    return True


def _kept(found: Survey, state: State) -> Frame:
    """Return the events of earlier runs: of judged streams, and of all open messages."""
    segments = found.segments[in_pairs(found.segments, found.judged_streams)]
    of_segments = ends(segments)
    # Events that are read now, or kept, must not appear twice.
    sent = state.carried[state.carried.role == Role.SENT]
    of_segments = of_segments[~_in(_ids(of_segments), np.unique(_ids(sent)))]
    # Of single messages, the events in these files are read too (`EventSelection.messages`).
    single = np.unique(_ids(_single(found, state.carried)))
    before = Stretches(state.covered).holds(
        Facts(*(of_segments[name].to_numpy(np.int64) for name in Facts._fields))
    )
    of_segments = of_segments[before | ~_in(_ids(of_segments), single)]
    return pd.concat([state.carried, of_segments]).astype(np.int64)


def _single(found: Survey, carried: Frame) -> Frame:
    """Return the messages (source, number) that are examined whatever their streams show."""
    dead = found.dead.rename(columns={"key_first": "number"})
    imported = found.imported.rename(columns={"key_first": "number"})
    missed = presence.missed_on_the_way(found)
    some = (dead, imported, carried, missed)
    numbers = pd.concat([each[["source", "number"]] for each in some])
    return numbers.drop_duplicates()


def _ids(frame: Frame) -> Any:
    return mixed(frame.source.to_numpy(np.int64), frame.number.to_numpy(np.int64))


def _pair(pairs: Iterable[tuple[int, int]]) -> Any:
    listed = list(pairs)
    left = np.array([left for left, _ in listed], np.int64)
    return mixed(left, np.array([right for _, right in listed], np.int64))


def _in(values: Any, among: Any) -> Any:
    """Return whether each of `values` is in the sorted array `among`."""
    if len(among) == 0:
        return np.zeros(len(values), bool)
    at = np.minimum(np.searchsorted(among, values), len(among) - 1)
    return among[at] == values
