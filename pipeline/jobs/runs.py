"""The fingerprint of a log: what agrees on both sides is told in a few rows for each stream.

Messages of one stream that follow each other without a gap, and were accepted in this order, are
one *run*: its first and last key, and the arrival numbers of these.  Two sides whose runs cover the
same keys have the same messages, in order and once: this is no estimate.  That it is the same
message under each number is told by a sum of hashes.  What does not agree is looked at in full
(`audit.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.jobs.facts import HALF, Facts, Role

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


def fingerprint(facts: Facts, names: dict[int, str], hosts: dict[int, str]) -> Iterator[Any]:
    """Record batches of `SCHEMA` for what one piece of a log says."""
    yield from _batches(_covered(facts))
    sent = facts.where((facts.role == Role.SENT) & (facts.stream >= 0))
    yield from _batches(_runs(What.SENT, sent, sent.key))
    accepted = facts.where((facts.role == Role.ACCEPTED) & (facts.stream >= 0))
    yield from _batches(_runs(What.ACCEPTED, accepted, accepted.arrival))
    is_plain = (facts.stream < 0) & np.isin(
        facts.role, (Role.SENT, Role.ACCEPTED, Role.SESSION_ACKED)
    )
    plain = facts.where(is_plain)
    yield from _batches(
        _sums(What.PLAIN, plain, plain.source, plain.role, mixed(plain.number, plain.source))
    )
    dead = facts.where(np.isin(facts.role, (Role.ENDED, Role.REFUSED, Role.DEAD_LATER)))
    if len(dead.role):
        yield from _batches(Row(np.full(len(dead.role), What.DEAD), dead.source,
                                key_first=dead.number, key_last=dead.role))  # fmt: skip
    left = facts.where(np.isin(facts.role, (Role.RECEIVED, Role.LEFT)))
    yield from _batches(_sums(What.LEFT, left, left.host, left.queue, mixed(left.place, left.host)))
    came = facts.where(facts.role == Role.ACCEPTED)
    yield from _batches(_sums(What.CAME, came, came.host, came.queue, mixed(came.place, came.host)))
    handed = facts.where(facts.role == Role.HANDED)
    if len(handed.role):
        routes = np.unique(np.stack([handed.host, handed.queue, handed.peer]), axis=1)
        yield from _batches(
            Row(np.full(routes.shape[1], What.ROUTE), routes[2], host=routes[0], queue=routes[1])
        )
    for what, texts in ((What.NAME, names), (What.HOST, hosts)):
        known = np.array(list(texts), np.int64)
        row = Row(np.full(len(known), what), key_first=known, host=known)
        yield from _batches(row, list(texts.values()))


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
    )


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
    order = np.lexsort((part, group))
    group, part, hashes = group[order], part[order].astype(np.int64), hashes[order]
    begins = np.ones(n, bool)
    begins[1:] = (group[1:] != group[:-1]) | (part[1:] != part[:-1])
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
    """Stretches of blocks without a gap; `count` blocks begin there."""
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
        at_first=np.minimum.reduceat(at_ms, first),
        at_last=np.maximum.reduceat(at_ms, first),
        key_last=last - first + 1,
    )


def _batches(row: Row | None, texts: list[str] | None = None) -> Iterator[Any]:
    if row is None or len(row.what) == 0:
        return
    n = len(row.what)
    arrays = [
        pa.array(np.full(n, column, np.int64) if np.isscalar(column) else column.astype(np.int64))
        for column in row
    ]
    yield pa.RecordBatch.from_arrays(
        [*arrays, pa.array(texts, pa.string()) if texts else pa.nulls(n, pa.string())],
        schema=SCHEMA,
    )
