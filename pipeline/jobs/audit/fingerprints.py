"""The fingerprint of a log: what agrees on both sides is told in a few rows for each stream.

Messages of one stream that follow each other without a gap, and were accepted in this order, are
one *run*: its first and last key, and the arrival numbers of these.  Two sides whose runs cover the
same keys have the same messages, in order and once: this is no estimate.  That it is the same
message under each number is told by a sum of hashes.  What does not agree is looked at in full
(`rules.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from pipeline.jobs.audit.facts import EXPRESS, HALF, Facts, Role

Array = Any


class What(IntEnum):
    """What a row of the fingerprint is about."""

    SENT = 1  # a run
    ACCEPTED = 2  # a run
    PLAIN = 3  # sums over what has no stream; `key_first` is the role
    DEAD = 4  # one message that ended at its source; `key_first` is its number, `key_last` the role
    LEFT = 5  # sums over what left a queue
    CAME = 6  # sums over what came there
    COVERED = 7  # a stretch of the log of a host without a gap
    NAME = 8  # of a hash, in `key_first`
    HOST = 9  # the name that the queue manager `host` has
    ROUTE = 10  # to which queue manager (`source`) a queue of `host` leads
    SAMPLE = 11  # when something became of a message, for clocks; `stream` is the role
    UNREADABLE = 12  # a file; `text` is its path and what is wrong with it
    TOLD = 13  # from which key to which, or number, others speak of messages than sent or stored
    NUMBERS = 14  # that a source has given, without a gap; `stream` says whether to express ones


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
SPARK_SCHEMA = ", ".join([*(f"{name} bigint" for name in Row._fields), "text string"])

_MULTIPLIER = np.uint64(0x9E37_79B9_7F4A_7C15)
_OTHER = np.uint64(0xC2B2_AE3D_27D4_EB4F)


def mixed(left: Array, right: Array) -> Array:
    """64 bits of two numbers each, such that their sums tell sets apart."""
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
) -> Iterator[Any]:
    """Record batches of `SCHEMA` for what one piece of a log says.

    `names` are those behind hashes; `hosts` those of queue managers, each with its first block.

    One message of `sample_every` tells about clocks.
    """
    rows = [row for row in _rows(facts, sample_every) if row is not None and len(row.what)]
    if rows:
        yield _batch(rows)
    if names:
        known = np.array(list(names), np.int64)
        row = Row(np.full(len(known), What.NAME), key_first=known)
        yield _batch([row], list(names.values()))
    if hosts:
        known = np.array([host for host, _ in hosts], np.int64)
        row = Row(np.full(len(known), What.HOST), host=known,
                  block_first=np.array(list(hosts.values()), np.int64))  # fmt: skip
        yield _batch([row], [name for _, name in hosts])


def _rows(facts: Facts, sample_every: int) -> Iterator[Row | None]:
    # Of each role its rows once: the columns are taken by number, which is quick where few are.
    at = {role: np.flatnonzero(facts.role == role) for role in Role}

    def of(*roles: Role) -> Facts:
        return facts.where(np.concatenate([at[role] for role in roles]))

    yield _covered(facts)
    sent, accepted = of(Role.SENT), of(Role.ACCEPTED)
    of_streams = sent.where(sent.stream >= 0)
    yield _runs(What.SENT, of_streams, of_streams.key)
    of_streams = accepted.where(accepted.stream >= 0)
    yield _runs(What.ACCEPTED, of_streams, of_streams.arrival)
    for part in (sent, accepted):
        plain = part.where(part.stream < 0)
        numbers = mixed(plain.number, plain.source)
        yield _sums(What.PLAIN, plain, plain.source, plain.role, numbers)
    timed = np.concatenate(
        [at[role] for role in (Role.SENT, Role.ACCEPTED, Role.ORDER_ACKED, Role.SESSION_ACKED)]
    )
    yield _told(of(Role.ORDER_ACKED, Role.SESSION_ACKED, Role.RELAYED, Role.PASSED))
    given = of(Role.SENT, Role.PUT)
    yield _numbers(given.where(given.source == given.host))
    some = timed[facts.number[timed] % sample_every == 0]
    yield Row(
        np.full(len(some), What.SAMPLE), facts.source[some], facts.role[some],
        key_first=facts.number[some], host=facts.host[some], at_first=facts.at_ms[some],
    )  # fmt: skip
    dead = of(Role.ENDED, Role.REFUSED, Role.DEAD_LATER)
    yield Row(np.full(len(dead.role), What.DEAD), dead.source,
              key_first=dead.number, key_last=dead.role)  # fmt: skip
    left = of(Role.RECEIVED, Role.LEFT)
    yield _sums(What.LEFT, left, left.host, left.queue, mixed(left.place, left.host))
    came = of(Role.ACCEPTED, Role.PUT)
    yield _sums(What.CAME, came, came.host, came.queue, mixed(came.place, came.host))
    handed = at[Role.HANDED]
    host, queue, peer = facts.host[handed], facts.queue[handed], facts.peer[handed]
    first = first_of_each(mixed(mixed(host, queue), peer))
    yield Row(np.full(len(first), What.ROUTE), peer[first], host=host[first], queue=queue[first])


def unreadable(path: str, why: str) -> Any:
    """A batch of one row, about a file that is broken."""
    row = dict.fromkeys(Row._fields, 0) | {"what": int(What.UNREADABLE), "text": f"{path}\n{why}"}
    return pa.RecordBatch.from_pylist([row], schema=SCHEMA)


def first_of_each(values: Array) -> Array:
    """Where each value stands first."""
    return np.flatnonzero(~pd.Series(values).duplicated().to_numpy())


def _runs(what: What, facts: Facts, place: Array) -> Row | None:
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
        np.add.reduceat(mixed(f.number, f.key), first),
        np.add.reduceat(f.at_ms, first),
        f.at_ms[first],
        f.at_ms[last],
        np.minimum.reduceat(f.at_ms, first),
        np.maximum.reduceat(f.at_ms, first),
        f.number[first],
        f.number[last],
    )


def _told(f: Facts) -> Row | None:
    """For each stream, and each source of messages without one: the first and the last of them."""
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
        np.full(len(first), What.TOLD), f.source[order[first]], f.stream[order[first]],
        np.minimum.reduceat(value, first), np.maximum.reduceat(value, first),
    )  # fmt: skip


def _numbers(f: Facts) -> Row | None:
    """Which numbers a source has given to messages, in stretches without a gap."""
    n = len(f.role)
    if n == 0:
        return None
    is_express = (f.grade == EXPRESS).astype(np.int64)
    order = np.lexsort((f.number, is_express, f.source))
    source, is_express, number = f.source[order], is_express[order], f.number[order]
    begins = np.ones(n, bool)
    begins[1:] = (
        (source[1:] != source[:-1])
        | (is_express[1:] != is_express[:-1])
        | (number[1:] > number[:-1] + 1)
    )
    first = np.flatnonzero(begins)
    last = np.append(first[1:], n) - 1
    return Row(
        np.full(len(first), What.NUMBERS), source[first], is_express[first],
        number[first], number[last],
    )  # fmt: skip


def follows(key: Array, next_: Array) -> Array:
    """Whether nothing is between two keys: the next number, or the first of the next sequence."""
    return (next_ == key + 1) | (
        ((next_ >> HALF) == (key >> HALF) + 1) & ((next_ & 0xFFFF_FFFF) == 1)
    )


def _sums(what: What, facts: Facts, group: Array, part: Array, hashes: Array) -> Row | None:
    """For each of `group` and `part`: of plain messages source and role, else host and queue."""
    n = len(group)
    if n == 0:
        return None
    # There are few groups: numbering them and sorting small numbers is quicker than sorting hashes.
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
    if what is What.PLAIN:
        return Row(
            np.full(len(first), what), group[first], key_first=part[first], count=count,
            hashes=sums, key_last=np.maximum.reduceat(facts.number[order], first),
        )  # fmt: skip
    return Row(
        np.full(len(first), what), host=group[first], queue=part[first], count=count, hashes=sums
    )


def _covered(facts: Facts) -> Row | None:
    """Stretches of blocks without a gap; `count` blocks begin there.

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
        np.full(len(first), What.COVERED),
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
    """How much earlier than one before it of its host each event is, at most."""
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
