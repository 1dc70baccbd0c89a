"""Fingerprints of logs: a few rows for each stream, enough to compare both sides.

Messages of one stream that follow each other without a gap and were accepted in this order are one
*run*: its first and last key, and their arrival numbers.  Two sides with runs over the same keys
have the same messages, in order and once; this is exact, not an estimate.  A sum of hashes shows
that each number is the same message on both sides.  Streams that do not agree are examined message
by message (`rules/`).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from pipeline.jobs.audit.facts import EXPRESS, GONE, HALF, Facts, Role

Array = Any


class RowKind(IntEnum):
    """Kinds of rows of the fingerprint: the values of its column `what`, which is stored."""

    SENT = 1  # a run
    ACCEPTED = 2  # a run
    PLAIN = 3  # sums over messages without a stream; `key_first` is the role
    DEAD = 4  # one message that ended at its source; `key_first` is its number, `key_last` the role
    LEFT = 5  # sums over messages that left a queue
    CAME = 6  # sums over messages that entered it
    COVERED = 7  # a stretch of a host's log without a gap
    NAME = 8  # the name of a hash, which is in `key_first`
    HOST = 9  # the name of the queue manager `host`
    ROUTE = 10  # the queue manager (`source`) to which a queue of `host` leads
    SAMPLE = 11  # the time of an event of a message, for clocks; `stream` is the role
    UNREADABLE = 12  # a file; `text` is its path and the error
    ACKNOWLEDGED = 13  # first and last key, or number, of acknowledged or relayed messages
    NUMBERS = 14  # given by a source without a gap; `stream` is 1 for express messages, else 0
    DEPARTED = (
        15  # arrival numbers of a host whose messages left their queues; `source` is the host
    )
    DEPARTED_NUMBERS = 16  # numbers of a source whose messages did so; `stream` is the role
    ARRIVED = 17  # arrival numbers of a host that other events name; `source` is the host
    IMPORTED = 18  # one message that was read from a file; `key_first` is its number
    MISSED = 21  # one message that its queue manager misses in `queue`; `key_first` is its number
    RESTORED = 22  # `host` logged at `at_first` that its folder was restored from a backup
    # A start of `host` at `at_last` with the run `source`; `at_first`: the event before it; -1: not
    # known.
    STARTED = 23
    # `host` met the run `source` of another queue manager; `place_first` is the event's index.
    MET = 24
    PLAIN_QUEUE = 20  # sums over messages without a stream; `queue` as its host names it
    WAITS = 19  # one message in a queue; `key_first` is its number, `stream` the epoch of the log


class Row(NamedTuple):
    what: Any
    source: Any = 0
    stream: Any = 0
    key_first: Any = 0
    key_last: Any = 0
    place_first: Any = 0
    place_last: Any = 0
    block_first: Any = 0
    block_last: Any = 0
    host: Any = 0
    queue: Any = 0
    count: Any = 0
    hashes: Any = 0
    at_sum: Any = 0
    at_first: Any = 0
    at_last: Any = 0
    at_min: Any = 0
    at_max: Any = 0
    number_first: Any = 0
    number_last: Any = 0


SCHEMA = pa.schema([*((name, pa.int64()) for name in Row._fields), ("text", pa.string())])

_MULTIPLIER = np.uint64(0x9E37_79B9_7F4A_7C15)
_OTHER = np.uint64(0xC2B2_AE3D_27D4_EB4F)


def mixed(left: Array, right: Array) -> Array:
    """Hash pairs of numbers to 64 bits, so that sums of hashes distinguish sets."""
    with np.errstate(over="ignore"):
        x = left.astype(np.uint64) * _MULTIPLIER ^ (right.astype(np.uint64) + _OTHER) * _OTHER
        x ^= x >> np.uint64(29)
        x *= _MULTIPLIER
        x ^= x >> np.uint64(32)
    return x.astype(np.int64)


def fingerprint(
    facts: Facts,
    names: dict[int, str],
    hosts: dict[tuple[int, str], int],
    sample_every: int = 1,
    epoch: Any = 1,
) -> Iterator[Any]:
    """Yield record batches of `SCHEMA` for one piece of a log.

    `names` maps hashes to names; `hosts` maps queue managers (hash, name) to their first block.
    One message of `sample_every` is a sample for clocks.  `epoch` is that of the log, or of each
    event.
    """
    rows = [row for row in _rows(facts, sample_every, epoch) if row is not None and len(row.what)]
    if rows:
        yield _batch(rows)
    if names:
        known = np.array(list(names), np.int64)
        row = Row(np.full(len(known), RowKind.NAME), key_first=known)
        yield _batch([row], list(names.values()))
    if hosts:
        known = np.array([host for host, _ in hosts], np.int64)
        row = Row(np.full(len(known), RowKind.HOST), host=known,
                  block_first=np.array(list(hosts.values()), np.int64))  # fmt: skip
        yield _batch([row], [name for _, name in hosts])


def _rows(facts: Facts, sample_every: int, epoch: Any) -> Iterator[Row | None]:
    # Each role's rows once: selecting by number is quick if there are few.
    at = {role: np.flatnonzero(facts.role == role) for role in Role}

    def of(*roles: Role) -> Facts:
        return facts.where(np.concatenate([at[role] for role in roles]))

    yield _covered(facts)
    sent, accepted = of(Role.SENT), of(Role.ACCEPTED)
    of_streams = sent.where(sent.stream >= 0)
    yield _runs(RowKind.SENT, of_streams, of_streams.key)
    of_streams = accepted.where(accepted.stream >= 0)
    yield _runs(RowKind.ACCEPTED, of_streams, of_streams.arrival)
    for part in (sent, accepted):
        plain = part.where(part.stream < 0)
        numbers = mixed(mixed(plain.number, plain.source), plain.size)
        yield _sums(RowKind.PLAIN, plain, plain.source, plain.role, numbers)
        yield _sums(RowKind.PLAIN_QUEUE, plain, plain.source, plain.queue, numbers)
    timed = np.concatenate(
        [at[role] for role in (Role.SENT, Role.ACCEPTED, Role.ORDER_ACKED, Role.SESSION_ACKED)]
    )
    yield _acknowledged(of(Role.ORDER_ACKED, Role.SESSION_ACKED, Role.RELAYED, Role.PASSED))
    given = of(Role.SENT, Role.PUT)  # imported ones bear the numbers of their first life
    yield _numbers(given.where(given.source == given.host))
    some = timed[facts.number[timed] % sample_every == 0]
    yield Row(
        np.full(len(some), RowKind.SAMPLE), facts.source[some], facts.role[some],
        key_first=facts.number[some], host=facts.host[some], at_first=facts.at_ms[some],
    )  # fmt: skip
    dead = of(Role.ENDED, Role.REFUSED, Role.DEAD_LATER)
    yield Row(np.full(len(dead.role), RowKind.DEAD), dead.source,
              key_first=dead.number, key_last=dead.role)  # fmt: skip
    left = of(Role.RECEIVED, Role.LEFT)
    yield _sums(RowKind.LEFT, left, left.host, left.queue, mixed(left.place, left.host))
    placed = left.where(left.place >= 0)
    yield _ranges(RowKind.DEPARTED, placed.host, np.zeros(len(placed.host), np.int64),
                  placed.arrival)  # fmt: skip
    gone = of(*GONE)
    yield _ranges(RowKind.DEPARTED_NUMBERS, gone.source, gone.role.astype(np.int64), gone.number)
    there = _waiting(facts)
    waits = facts.where(there)
    of_waits = epoch[there] if isinstance(epoch, np.ndarray) else epoch
    yield Row(
        np.full(len(waits.role), RowKind.WAITS), waits.source, of_waits, key_first=waits.number,
        block_first=waits.block, host=waits.host, queue=waits.queue, at_first=waits.at_ms,
    )  # fmt: skip
    named = facts.where(
        np.flatnonzero((facts.place >= 0) & ~np.isin(facts.role, (Role.RECEIVED, Role.LEFT)))
    )
    yield _ranges(RowKind.ARRIVED, named.host, np.zeros(len(named.host), np.int64), named.arrival)
    imported = of(Role.IMPORTED)
    yield Row(np.full(len(imported.role), RowKind.IMPORTED), imported.source,
              key_first=imported.number)  # fmt: skip
    missed = of(Role.MISSED)
    yield Row(
        np.full(len(missed.role), RowKind.MISSED), missed.source, key_first=missed.number,
        block_first=missed.block, host=missed.host, queue=missed.queue, at_first=missed.at_ms,
    )  # fmt: skip
    put_back = of(Role.RESTORED)
    yield Row(np.full(len(put_back.role), RowKind.RESTORED), host=put_back.host,
              at_first=put_back.at_ms)  # fmt: skip
    yield _starts(facts, at[Role.STARTED])
    yield _met(of(Role.MET))
    came = of(Role.ACCEPTED, Role.PUT, Role.IMPORTED)
    yield _sums(RowKind.CAME, came, came.host, came.queue, mixed(came.place, came.host))
    handed = at[Role.HANDED]
    host, queue, peer = facts.host[handed], facts.queue[handed], facts.peer[handed]
    first = first_of_each(mixed(mixed(host, queue), peer))
    yield Row(np.full(len(first), RowKind.ROUTE), peer[first], host=host[first], queue=queue[first])


def _met(f: Facts) -> Row:
    """Return the runs that hosts have met."""
    return Row(np.full(len(f.role), RowKind.MET), f.peer, block_first=f.block, host=f.host,
               place_first=f.index, at_first=f.at_ms)  # fmt: skip


def _starts(f: Facts, at: Array) -> Row | None:
    """Return the starts, each with the time of the event before it in the log of its host."""
    if len(at) == 0:
        return None
    order = np.lexsort((f.index, f.block, f.host))
    place = np.flatnonzero(np.isin(order, at))
    start, before = order[place], order[np.maximum(place - 1, 0)]
    is_next = (place > 0) & (f.host[before] == f.host[start])
    is_next &= f.block[before] >= f.block[start] - 1
    return Row(
        np.full(len(start), RowKind.STARTED), f.peer[start], block_first=f.block[start],
        host=f.host[start],
        at_first=np.where(is_next, f.at_ms[before], -1), at_last=f.at_ms[start],
    )  # fmt: skip


def _waiting(facts: Facts) -> Array:
    """Return the numbers of the rows of messages that arrived here, and did not leave here."""
    came = np.isin(facts.role, (Role.ACCEPTED, Role.PUT, Role.IMPORTED))
    at = np.flatnonzero(came & (facts.grade >= 0) & (facts.grade != EXPRESS))
    gone = np.flatnonzero(np.isin(facts.role, GONE))
    ids = [mixed(mixed(facts.host[each], facts.source[each]), facts.number[each])
           for each in (at, gone)]  # fmt: skip
    return at[~np.isin(*ids)]


#: Kinds of rows that are ranges of numbers of one source, and nothing else.
RANGES = (RowKind.NUMBERS, RowKind.DEPARTED, RowKind.DEPARTED_NUMBERS, RowKind.ARRIVED)


def with_joined_ranges(rows: Any) -> Any:
    """Return a table of `SCHEMA` in which the ranges of its pieces are joined.

    The messages of a source leave queues at many hosts, each of which has every tenth number or
    so.  Without this, the driver would get a row for some three messages.
    """
    is_range = np.isin(rows.column("what").to_numpy(), RANGES)
    of, ends = ["what", "source", "stream"], ["key_first", "key_last"]
    some = rows.filter(pa.array(is_range)).select([*of, *ends]).to_pandas()
    some = some.sort_values([*of, "key_first"], ignore_index=True)
    reached = some.groupby(of).key_last.cummax()
    before = reached.groupby([some[name] for name in of]).shift(fill_value=-2)
    begins = np.flatnonzero((some.key_first > before + 1).to_numpy())
    if len(begins) == len(some):
        return rows
    last = np.maximum.reduceat(some.key_last.to_numpy(), begins)
    first = (some[name].to_numpy()[begins] for name in (*of, "key_first"))
    joined = _batch([Row(**dict(zip((*of, "key_first"), first, strict=True)), key_last=last)])
    return pa.concat_tables([rows.filter(pa.array(~is_range)), pa.Table.from_batches([joined])])


def unreadable(path: str, why: str) -> Any:
    """Return a batch of one row, for a damaged file."""
    row = dict.fromkeys(Row._fields, 0) | {
        "what": int(RowKind.UNREADABLE),
        "text": f"{path}\n{why}",
    }
    return pa.RecordBatch.from_pylist([row], schema=SCHEMA)


def first_of_each(values: Array) -> Array:
    """Return the position of the first occurrence of each value."""
    return np.flatnonzero(~pd.Series(values).duplicated().to_numpy())


def _runs(what: RowKind, facts: Facts, place: Array) -> Row | None:
    n = len(facts.role)
    if n == 0:
        return None
    order = np.lexsort((place, facts.key, facts.stream, facts.source))
    f = facts.where(order)
    place = place[order]
    begins = np.ones(n, bool)
    begins[1:] = (
        (f.source[1:] != f.source[:-1])
        | (f.stream[1:] != f.stream[:-1])
        | ~follows(f.key[:-1], f.key[1:])
        | (place[1:] <= place[:-1])
        | (f.host[1:] != f.host[:-1])
        | (f.queue[1:] != f.queue[:-1])
    )
    first = np.flatnonzero(begins)
    last = np.append(first[1:], n) - 1
    return Row(
        np.full(len(first), what),
        f.source[first],
        f.stream[first],
        f.key[first],
        f.key[last],
        place[first],
        place[last],
        f.block[first],
        f.block[last],
        f.host[first],
        f.queue[first],
        last - first + 1,
        np.add.reduceat(mixed(mixed(f.number, f.key), f.size), first),
        np.add.reduceat(f.at_ms, first),
        f.at_ms[first],
        f.at_ms[last],
        np.minimum.reduceat(f.at_ms, first),
        np.maximum.reduceat(f.at_ms, first),
        f.number[first],
        f.number[last],
    )


def _acknowledged(f: Facts) -> Row | None:
    """Return the first and last message of each stream, and of each source without streams."""
    n = len(f.role)
    if n == 0:
        return None
    codes, _ = pd.factorize(mixed(f.source, f.stream))
    codes = codes.astype(np.uint16 if codes.max() < 1 << 16 else np.uint32)
    order = np.argsort(codes, kind="stable")
    codes = codes[order]
    begins = np.ones(n, bool)
    begins[1:] = codes[1:] != codes[:-1]
    first = np.flatnonzero(begins)
    value = np.where(f.stream >= 0, f.key, f.number)[order]
    return Row(
        np.full(len(first), RowKind.ACKNOWLEDGED), f.source[order[first]], f.stream[order[first]],
        np.minimum.reduceat(value, first), np.maximum.reduceat(value, first),
    )  # fmt: skip


def _numbers(f: Facts) -> Row | None:
    """Return the numbers that a source has given to messages, as ranges without gaps."""
    return _ranges(RowKind.NUMBERS, f.source, (f.grade == EXPRESS).astype(np.int64), f.number)


def _ranges(what: RowKind, source: Array, kind: Array, number: Array) -> Row | None:
    """Return the numbers of each `source` and `kind`, as ranges without gaps."""
    n = len(source)
    if n == 0:
        return None
    order = np.lexsort((number, kind, source))
    source, kind, number = source[order], kind[order], number[order]
    begins = np.ones(n, bool)
    begins[1:] = (
        (source[1:] != source[:-1]) | (kind[1:] != kind[:-1]) | (number[1:] > number[:-1] + 1)
    )
    first = np.flatnonzero(begins)
    last = np.append(first[1:], n) - 1
    return Row(np.full(len(first), what), source[first], kind[first], number[first], number[last])


def follows(key: Array, next_: Array) -> Array:
    """Return whether no key is between two: the next number, or the next sequence's first."""
    return (next_ == key + 1) | (
        ((next_ >> HALF) == (key >> HALF) + 1) & ((next_ & 0xFFFF_FFFF) == 1)
    )


def _sums(what: RowKind, facts: Facts, group: Array, part: Array, hashes: Array) -> Row | None:
    """Sum by `group` and `part`: source and role, or queue, of plain ones; or host and queue."""
    n = len(group)
    if n == 0:
        return None
    # There are few groups, and sorting small numbers is quicker than sorting hashes.
    codes, _ = pd.factorize(mixed(group, part.astype(np.int64)))
    codes = codes.astype(np.uint16 if codes.max() < 1 << 16 else np.uint32)
    order = np.argsort(codes, kind="stable")
    codes, group, part = codes[order], group[order], part[order].astype(np.int64)
    hashes = hashes[order]
    begins = np.ones(n, bool)
    begins[1:] = codes[1:] != codes[:-1]
    first = np.flatnonzero(begins)
    count = np.diff(np.append(first, n))
    sums = np.add.reduceat(hashes, first)
    if what is RowKind.PLAIN:
        return Row(
            np.full(len(first), what), group[first], key_first=part[first], count=count,
            hashes=sums, key_last=np.maximum.reduceat(facts.number[order], first),
        )  # fmt: skip
    if what is RowKind.PLAIN_QUEUE:
        role = facts.role[order][first].astype(np.int64)
        return Row(
            np.full(len(first), what), group[first], key_first=role, queue=part[first],
            count=count, hashes=sums,
        )  # fmt: skip
    return Row(
        np.full(len(first), what), host=group[first], queue=part[first], count=count, hashes=sums
    )


def _covered(facts: Facts) -> Row | None:
    """Return stretches of blocks without a gap; `count` is the number of blocks that begin there.

    `at_sum` is by how much the clock went back, if it was set.
    """
    n = len(facts.role)
    if n == 0:
        return None
    host, block, at_ms, index = facts.host, facts.block, facts.at_ms, facts.index
    is_sorted = (host == host[0]).all() and (block[1:] >= block[:-1]).all()
    if not is_sorted:
        order = np.lexsort((block, host))
        host, block, at_ms, index = host[order], block[order], at_ms[order], index[order]
    begins = np.ones(n, bool)
    begins[1:] = (host[1:] != host[:-1]) | (block[1:] > block[:-1] + 1)
    first = np.flatnonzero(begins)
    last = np.append(first[1:], n) - 1
    return Row(
        np.full(len(first), RowKind.COVERED),
        host=host[first],
        block_first=block[first],
        block_last=block[last],
        count=np.add.reduceat((index == 0).astype(np.int64), first),
        at_sum=np.maximum.reduceat(_back(host, at_ms), first),
        at_first=np.minimum.reduceat(at_ms, first),
        at_last=np.maximum.reduceat(at_ms, first),
        key_last=last - first + 1,
    )


def _back(host: Array, at_ms: Array) -> Array:
    """Return by how much each event is earlier than the latest one before it of its host."""
    if (host == host[0]).all():
        return np.maximum.accumulate(at_ms) - at_ms
    return pd.Series(at_ms).groupby(host).cummax().to_numpy(np.int64) - at_ms


def _batch(rows: list[Row], texts: list[str] | None = None) -> Any:
    sizes = [len(row.what) for row in rows]
    arrays = []
    for at in range(len(Row._fields)):
        parts = [
            np.full(size, row[at], np.int64) if np.isscalar(row[at]) else row[at]
            for row, size in zip(rows, sizes, strict=True)
        ]
        arrays.append(pa.array(np.concatenate(parts).astype(np.int64, copy=False)))
    text = pa.array(texts, pa.string()) if texts else pa.nulls(sum(sizes), pa.string())
    return pa.RecordBatch.from_arrays([*arrays, text], schema=SCHEMA)
