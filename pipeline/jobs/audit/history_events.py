"""The begins of histories, from all events of the doubtful hosts: computed where the events are.

The events stay in the engine, on executors or in files of DuckDB: the driver gets some rows for
each host.  `histories.py` says what they mean.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from pipeline.engines.engine import Engine, Piece
from pipeline.events import Unreadable, hash_of, read_piece, text_hashes
from pipeline.jobs.audit.epochs import EPOCHS_MAX, assigned
from pipeline.jobs.audit.facts import coded

Frame = Any
Array = Any

#: An event: its host, block, number in the block and time; `restored` is 1 if it is the first one
#: after a restoration, and 2 if it is a start that names its run.
EVENTS = pa.schema([(name, pa.int64()) for name in ("host", "block", "index", "at_ms", "restored")])
#: Stretches of events that were read and are gone: blocks `block` to `last`, until `at_last`.
GONE = pa.schema([(name, pa.int64()) for name in ("host", "block", "last", "at_last")])

_PLACE = ("queue_manager", "block", "index", "at_ms", "kind", "peer")
_ASSIGNED = ("queue_manager", "at_ms", "kind", "queue", "lookup_id")
_SAME = ("host", "index", "at_ms")
_RESTORED = {"restored": 1, "started": 2}
_APART_MS = 1000  # a clock is not set back so far in normal operation
_LOWEST = pa.schema([(name, pa.int64()) for name in ("host", "history", "lowest")])
_BEGUN = pa.schema([(name, pa.int64()) for name in ("host", "at_ms")])
_FROM = pa.schema([("host", pa.int64()), ("since", pa.int64()), ("latest", pa.int64())])
_STEPS = pa.schema([(name, pa.int64()) for name in ("host", "step", "ended", "latest")])
_TASKS = 64  # at most
_NEVER = -(1 << 62)
_NO_RUN = hash_of("")

#: Of the events with one place, each was logged before the restoration, and the next one after it.
#: Of those before at one time, the next that came first decides.
_PAIRS = """
    SELECT host, before, min(at_ms) AS after FROM (
        SELECT host, at_ms,
            LAG(at_ms) OVER (PARTITION BY host, block, index ORDER BY at_ms) AS before
        FROM history_events) each
    WHERE before IS NOT NULL GROUP BY host, before
    UNION ALL
    SELECT e.host, g.at_last AS before, min(e.at_ms) AS after
    FROM history_events e JOIN history_gone g ON e.host = g.host
    WHERE e.block BETWEEN g.block AND g.last AND e.at_ms > g.at_last
    GROUP BY e.host, g.at_last
"""
#: A history that the log itself shows explains the pairs around its begin.
_UNEXPLAINED = """
    SELECT p.host, p.before, p.after FROM history_all_pairs p WHERE NOT EXISTS (
        SELECT 1 FROM history_begun b
        WHERE b.host = p.host AND b.at_ms > p.before AND b.at_ms <= p.after)
"""
_LATEST = """
    SELECT p.host, min(p.after) AS latest FROM history_pairs p JOIN history_from f
    ON p.host = f.host WHERE p.before >= f.since GROUP BY p.host
"""
_ENDED = """
    SELECT p.host, max(p.before) AS ended FROM history_pairs p JOIN history_from f
    ON p.host = f.host WHERE p.before >= f.since AND p.before < f.latest GROUP BY p.host
"""
#: The time of the first event between `ended` and `latest` with a lower place than one before it.
#: The stretch is divided into parts, so that no task has to sort all of it.
_PART = "CAST(floor((e.at_ms - s.ended) * 1024.0 / (s.latest - s.ended + 1)) AS BIGINT)"
_EVENT_PLACE = "CAST(e.block AS DECIMAL(38, 0)) * 4294967296 + e.index"
_INSIDE = f"""
    SELECT e.host, s.step, e.at_ms, {_PART} AS part, {_EVENT_PLACE} AS place
    FROM history_events e JOIN history_steps s ON e.host = s.host
    WHERE e.at_ms > s.ended AND e.at_ms <= s.latest
"""  # nosec B608: constants
_TOPS = f"""
    SELECT s.host, s.step, CAST(-1 AS BIGINT) AS part, max({_EVENT_PLACE}) AS top
    FROM history_events e JOIN history_steps s ON e.host = s.host
    WHERE e.at_ms <= s.ended GROUP BY s.host, s.step
    UNION ALL
    SELECT host, step, part, max(place) AS top FROM history_inside GROUP BY host, step, part
"""  # nosec B608
_FIRST_LOWER = """
    SELECT host, step, min(at_ms) AS at_ms FROM (
        SELECT i.host, i.step, i.at_ms, i.place, b.reached, max(i.place) OVER (
            PARTITION BY i.host, i.step, i.part ORDER BY i.at_ms, i.place
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS top
        FROM history_inside i JOIN history_reached b
        ON i.host = b.host AND i.step = b.step AND i.part = b.part) each
    WHERE place < reached OR place < top GROUP BY host, step
"""
_REACHED = """
    SELECT host, step, part, max(top) OVER (PARTITION BY host, step ORDER BY part
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS reached
    FROM history_tops
"""
_HAVE_EARLIER = "SELECT host, step FROM history_tops WHERE part = -1"


#: Hosts with an event that has a lower place than an earlier one of the same history.
_BACK = f"""
    SELECT DISTINCT host FROM (
        SELECT e.host, {_EVENT_PLACE} AS place, max({_EVENT_PLACE}) OVER (
            PARTITION BY e.host, f.since ORDER BY e.at_ms
            RANGE BETWEEN UNBOUNDED PRECEDING AND {_APART_MS} PRECEDING) AS reached
        FROM history_events e JOIN history_from f
        ON e.host = f.host AND e.at_ms >= f.since AND e.at_ms < f.latest) each
    WHERE place < reached
"""  # nosec B608


def read_events(engine: Engine, paths: Sequence[str], hosts: Collection[int]) -> None:
    """Create table `history_events`: the events of `hosts` in these files, each once."""
    wanted = np.array(sorted(hosts), np.int64)

    def select(parts: Iterator[Piece]) -> Iterator[Any]:
        for path, *_ in parts:
            for table in _tables(path, _PLACE):
                host = text_hashes(table.column("queue_manager"))
                at = np.flatnonzero(np.isin(host, wanted))
                restored = coded(table.column("kind"), _RESTORED, 0)
                restored[(restored == 2) & (text_hashes(table.column("peer")) == _NO_RUN)] = 0
                columns = [
                    host, *(table.column(name).to_numpy() for name in _PLACE[1:4]), restored
                ]  # fmt: skip
                yield pa.RecordBatch.from_arrays(
                    [pa.array(each[at].astype(np.int64)) for each in columns], schema=EVENTS
                )

    create_events(engine, _work(paths), select, EVENTS.empty_table())


def create_events(engine: Engine, work: Sequence[list[Piece]], task: Any, more: Any) -> None:
    """Create table `history_events` from tasks, and the rows `more`."""
    engine.create("history_events", work, task, more, by=("block",), distinct=("block", *_SAME))


def begins(engine: Engine, gone: Frame | None = None) -> dict[int, list[int]]:
    """Return the times at which the histories of each host in `history_events` begin.

    The first one of each host is left out.  `gone` has the columns `GONE`.
    """
    none = GONE.empty_table()
    engine.put("history_gone", none if gone is None else _table(gone, GONE))
    begun = engine.query("SELECT DISTINCT host, at_ms FROM history_events WHERE restored = 1")
    engine.put("history_begun", begun.cast(_BEGUN))
    engine.view("history_all_pairs", _PAIRS)
    engine.keep("history_pairs", _UNEXPLAINED)
    found: dict[int, set[int]] = {}
    for host, at_ms in begun.to_pandas().itertuples(index=False):
        found.setdefault(int(host), set()).add(int(at_ms))
    for host, at_ms in _refined(engine, _steps(engine)):
        found.setdefault(host, set()).add(at_ms)
    return {host: sorted(times) for host, times in found.items()}


def side_by_side(engine: Engine, begun: Mapping[int, Sequence[int]]) -> set[int]:
    """Return the hosts in `history_events` of which two copies ran at one time.

    A history begins with a start, and its places grow in the course of time.  Events of two copies
    alternate.  Only the logs of hosts that name their runs show that.
    """
    starts = engine.query("SELECT DISTINCT host, at_ms FROM history_events WHERE restored > 0")
    named = engine.query("SELECT DISTINCT host FROM history_events WHERE restored = 2")
    known = set(starts.to_pandas().itertuples(index=False, name=None))
    hosts = {int(host) for host in named.to_pandas().host} & begun.keys()
    found = {host for host in hosts if not {(host, at_ms) for at_ms in begun[host]} <= known}
    stretches = [
        (host, since, until) for host in hosts - found
        for since, until in pairwise([_NEVER, *begun[host], -_NEVER])
    ]  # fmt: skip
    table = pd.DataFrame(stretches, columns=_FROM.names)
    engine.put("history_from", _table(table, _FROM))
    return found | {int(host) for host in engine.query(_BACK).to_pandas().host}


#: Of each block of a host: how many copies of it have logged one, and its first time.
_COPIES = """
    SELECT host, block, max(copies) AS copies, min(at_ms) AS at_ms FROM (
        SELECT host, block, index, count(*) AS copies, min(at_ms) AS at_ms
        FROM history_events GROUP BY host, block, index) each
    GROUP BY host, block
"""
#: The blocks from the first one on that two copies have; `apart` counts those that are missing.
_OF_BOTH = """
    SELECT b.host, b.block, b.copies, b.at_ms, b.block - f.first
        - (row_number() OVER (PARTITION BY b.host ORDER BY b.block) - 1) AS apart
    FROM history_copies b JOIN (
        SELECT host, min(block) AS first FROM history_copies WHERE copies > 1 GROUP BY host) f
    ON b.host = f.host WHERE b.block >= f.first
"""
_UNTIL = """
    SELECT host, max(at_ms) AS until FROM (
        SELECT host, at_ms, max(if(copies <> 2 OR apart <> 0, 1, 0)) OVER (
            PARTITION BY host ORDER BY block
            ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS is_behind
        FROM history_of_both) each
    WHERE is_behind = 0 AND host NOT IN (SELECT host FROM history_copies WHERE copies > 2)
    GROUP BY host
"""


def both_until(engine: Engine) -> dict[int, int]:
    """Return until when the logs of both copies of a host in `history_events` are there.

    All blocks from the copy on are there twice, up to one: what either copy did before the first
    of the two times of that block is in one of both logs.  Hosts with more copies are left out.
    """
    engine.keep("history_copies", _COPIES)
    engine.view("history_of_both", _OF_BOTH)
    rows = engine.query(_UNTIL).to_pandas()
    return {int(host): int(until) for host, until in rows.itertuples(index=False)}


def _steps(engine: Engine) -> Frame:
    """Return for each begin the last time before it, and the first one behind it: `_STEPS`."""
    hosts = engine.query("SELECT DISTINCT host FROM history_pairs").to_pandas()
    since = hosts.astype(np.int64).assign(since=_NEVER, latest=0)
    steps = [pd.DataFrame(columns=_STEPS.names)]
    for step in range(EPOCHS_MAX):
        if len(since) == 0:
            break
        engine.put("history_from", _table(since, _FROM))
        latest = engine.query(_LATEST).to_pandas().astype(np.int64)
        since = since[["host", "since"]].merge(latest, on="host")
        engine.put("history_from", _table(since, _FROM))
        ended = engine.query(_ENDED).to_pandas().astype(np.int64)
        steps.append(since.merge(ended, on="host").assign(step=step)[_STEPS.names])
        since = since.assign(since=since.latest)
    return pd.concat(steps).astype(np.int64)


def _refined(engine: Engine, steps: Frame) -> Iterator[tuple[int, int]]:
    """Yield each host and begin: not only between which two times it is."""
    if len(steps) == 0:
        return
    engine.put("history_steps", _table(steps, _STEPS))
    engine.keep("history_inside", _INSIDE)
    engine.keep("history_tops", _TOPS)
    engine.view("history_reached", _REACHED)
    earlier = engine.query(_HAVE_EARLIER).to_pandas().assign(is_known=True)
    lower = engine.query(_FIRST_LOWER).to_pandas().merge(earlier, on=["host", "step"])
    both = steps.merge(lower, on=["host", "step"], how="left")
    for row in both.itertuples():
        yield int(row.host), int(row.latest if pd.isna(row.at_ms) else row.at_ms)


def lowest_assigned(
    engine: Engine, paths: Sequence[str], begun: Mapping[int, Sequence[int]]
) -> dict[tuple[int, int], int]:
    """Return the lowest arrival number that each host assigned in each history, by its number.

    The history before the first begin has number 0.
    """

    def lowest(parts: Iterator[Piece]) -> Iterator[Any]:
        least: dict[tuple[int, int], int] = {}
        for path, *_ in parts:
            for table in _tables(path, _ASSIGNED):
                for host, history, arrival in _lowest_of(table, begun):
                    before = least.get((host, history), arrival)
                    least[host, history] = min(before, arrival)
        rows = [[*key, value] for key, value in least.items()]
        columns = np.array(rows, np.int64).reshape(len(rows), 3).T
        yield pa.RecordBatch.from_arrays(list(map(pa.array, columns)), schema=_LOWEST)

    rows = engine.collect(_work(paths), lowest, _LOWEST).to_pandas()
    least = rows.groupby(["host", "history"]).lowest.min()
    return {(int(host), int(history)): int(value) for (host, history), value in least.items()}


def _lowest_of(
    table: Any, begun: Mapping[int, Sequence[int]]
) -> Iterator[tuple[int, int, int]]:  # fmt: skip
    arrival, at_ms = assigned(table), table.column("at_ms").to_numpy()
    hosts = text_hashes(table.column("queue_manager"))
    for host in np.unique(hosts).tolist():
        at = np.flatnonzero((hosts == host) & (arrival >= 0))
        history = np.searchsorted(np.array(begun.get(host, ())), at_ms[at], side="right")
        for number in np.unique(history).tolist() if host in begun else ():
            yield host, number, int(arrival[at][history == number].min())


def _work(paths: Sequence[str]) -> list[list[Piece]]:
    work: list[list[Piece]] = [[] for _ in range(min(len(paths), _TASKS))]
    for number, path in enumerate(paths):
        work[number % _TASKS].append((path, 0, -1))
    return work


def _tables(path: str, columns: Sequence[str]) -> Iterable[Any]:
    try:
        yield from read_piece((path, 0, -1), columns)
    except (Unreadable, FileNotFoundError):
        return  # the passes over the files report it


def _table(frame: Frame, schema: Any) -> Any:
    return pa.Table.from_pandas(frame[schema.names].astype(np.int64), schema, preserve_index=False)
