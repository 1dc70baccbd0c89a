"""Known events: which single events were read before, for jobs that count.

An event is identified by its host, its block, its number in the block, and its time (a restored
backup gives blocks again).  Consecutive events are one *stretch*: blocks without a gap, each from
its first event, on one day (UTC).  `ends` is the number of the last event of each block, because an
export may omit some events (`--kind`, `--queue`), and another export may contain them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

Frame = Any
Array = Any

DAY_MS = 86_400_000
#: A part of a block without a gap: its first and last event, and their times.
PART = ["host", "block", "first", "last", "at_first", "at_last"]
STRETCH = ["host", "block_first", "index_first", "block_last", "at_first", "at_last", "ends"]


def no_stretches() -> Frame:
    return pd.DataFrame({name: pd.Series(dtype=np.int64) for name in STRETCH[:-1]} | {
        "ends": pd.Series(dtype=object)
    })  # fmt: skip


def parts_of(host: Array, block: Array, index: Array, at_ms: Array) -> Frame:
    """Return the gapless parts of blocks (`PART`) that distinct events are in."""
    order = np.lexsort((index, block, host))
    host, block, index, at_ms = host[order], block[order], index[order], at_ms[order]
    n = len(host)
    if n == 0:
        return pd.DataFrame({name: pd.Series(dtype=np.int64) for name in PART})
    begins = np.ones(n, bool)
    begins[1:] = (host[1:] != host[:-1]) | (block[1:] != block[:-1]) | (index[1:] != index[:-1] + 1)
    first = np.flatnonzero(begins)
    last = np.append(first[1:], n) - 1
    at = (np.minimum.reduceat(at_ms, first), np.maximum.reduceat(at_ms, first))
    columns = (host[first], block[first], index[first], index[last], *at)
    return pd.DataFrame(dict(zip(PART, columns, strict=True)))


def stretches_of(parts: Frame) -> Frame:
    """Return the stretches of `parts`, which `parts_of` has made."""
    n = len(parts)
    if n == 0:
        return no_stretches()
    host, block, start, end, least, most = (parts[name].to_numpy() for name in PART)
    day = least // DAY_MS
    begins = np.ones(n, bool)
    begins[1:] = (
        (host[1:] != host[:-1])
        | (block[1:] != block[:-1] + 1)
        | (start[1:] != 0)
        | (day[1:] != day[:-1])
    )
    first = np.flatnonzero(begins)
    behind = np.append(first[1:], n)
    return pd.DataFrame(
        {
            "host": host[first],
            "block_first": block[first],
            "index_first": start[first],
            "block_last": block[behind - 1],
            "at_first": np.minimum.reduceat(least, first),
            "at_last": np.maximum.reduceat(most, first),
            "ends": [_packed(end[a:b]) for a, b in zip(first, behind, strict=True)],
        }
    )


def merged(parts: Iterable[Frame]) -> Frame:
    """Merge stretches that continue each other, day by day."""
    found = [part for part in parts if len(part)]
    if not found:
        return no_stretches()
    both = pd.concat(found).sort_values(
        ["host", "block_first", "index_first", "at_first"], ignore_index=True
    )
    ends: list[Array] = [_unpacked(each) for each in both.ends]
    last_index = np.array([each[-1] for each in ends], np.int64)
    host, first, start, last = (
        both[name].to_numpy(np.int64) for name in ("host", "block_first", "index_first",
                                                   "block_last")
    )  # fmt: skip
    day = both.at_first.to_numpy(np.int64) // DAY_MS
    is_next = (first[1:] == last[:-1] + 1) & (start[1:] == 0)
    in_block = (first[1:] == last[:-1]) & (start[1:] == last_index[:-1] + 1)
    goes_on = np.zeros(len(both), bool)
    goes_on[1:] = (host[1:] == host[:-1]) & (day[1:] == day[:-1]) & (is_next | in_block)
    if not goes_on.any():
        return both
    cuts_block = np.append(False, in_block)
    heads = np.flatnonzero(~goes_on)
    behind = np.append(heads[1:], len(both))
    packed = []
    for a, b in zip(heads, behind, strict=True):
        if b == a + 1:
            packed.append(both.ends.iloc[a])
            continue
        pieces = [ends[a]]
        for at in range(a + 1, b):
            if cuts_block[at]:
                pieces[-1] = pieces[-1][:-1]
            pieces.append(ends[at])
        packed.append(_packed(np.concatenate(pieces)))
    at_first, at_last = both.at_first.to_numpy(np.int64), both.at_last.to_numpy(np.int64)
    return pd.DataFrame(
        {
            "host": host[heads],
            "block_first": first[heads],
            "index_first": start[heads],
            "block_last": last[behind - 1],
            "at_first": np.minimum.reduceat(at_first, heads),
            "at_last": np.maximum.reduceat(at_last, heads),
            "ends": packed,
        }
    )


def overlapping(stretches: Frame, boxes: Iterable[tuple[int, int, int]]) -> Frame:
    """Return the stretches that share a block with one of `boxes` (host, first, last block)."""
    if len(stretches) == 0:
        return stretches
    host, first, last = (
        stretches[name].to_numpy(np.int64) for name in ("host", "block_first", "block_last")
    )
    found = np.zeros(len(stretches), bool)
    for box_host, box_first, box_last in boxes:
        found |= (host == box_host) & (first <= box_last) & (last >= box_first)
    return stretches[found].reset_index(drop=True)


class KnownEvents:
    """Membership test: whether each event was read before."""

    def __init__(self, stretches: Frame) -> None:
        self._parts: list[Frame] = []
        self.add(stretches)

    def add(self, stretches: Frame) -> None:
        if len(stretches) == 0:
            return
        ends = [_unpacked(each) for each in stretches.ends]
        sizes = np.array([len(each) for each in ends])
        heads = np.append(0, np.cumsum(sizes)[:-1])
        count = int(sizes.sum())
        repeated = {
            name: np.repeat(stretches[name].to_numpy(np.int64), sizes)
            for name in ("host", "block_first", "at_first", "at_last")
        }
        index_first = np.zeros(count, np.int64)
        index_first[heads] = stretches.index_first.to_numpy(np.int64)
        self.add_parts(
            pd.DataFrame(
                {
                    "host": repeated["host"],
                    "block": repeated["block_first"] + np.arange(count) - np.repeat(heads, sizes),
                    "first": index_first,
                    "last": np.concatenate(ends).astype(np.int64),
                    "at_first": repeated["at_first"],
                    "at_last": repeated["at_last"],
                }
            )
        )

    def add_parts(self, parts: Frame) -> None:
        """Add parts of blocks (`PART`).

        Their times are exact: two histories of one host may have the same blocks.
        """
        self._parts.append(parts)

    def holds(self, host: Array, block: Array, index: Array, at_ms: Array) -> Array:
        held = np.zeros(len(host), bool)
        if not self._parts or len(host) == 0:
            return held
        if len(self._parts) > 1:
            self._parts = [pd.concat(self._parts, ignore_index=True)]
        (known,) = self._parts
        for one in np.unique(host):
            part = known[known.host == one].sort_values("block", kind="stable")
            mine = np.flatnonzero(host == one)
            blocks = part.block.to_numpy()
            low = np.searchsorted(blocks, block[mine], side="left")
            high = np.searchsorted(blocks, block[mine], side="right")
            first, last, at_first, at_last = (
                part[name].to_numpy() for name in ("first", "last", "at_first", "at_last")
            )
            while len(mine):
                there = low < high
                mine, low, high = mine[there], low[there], high[there]
                held[mine] |= (
                    (index[mine] >= first[low])
                    & (index[mine] <= last[low])
                    & (at_ms[mine] >= at_first[low])
                    & (at_ms[mine] <= at_last[low])
                )
                low = low + 1
        return held


class Chains:
    """Chains of blocks: whether a log was read between two blocks without a gap, and its end."""

    def __init__(self, stretches: Frame) -> None:
        s = stretches.sort_values(["host", "block_first", "index_first"])
        self._host, self._first, self._last, at_last = (
            s[name].to_numpy(np.int64) for name in ("host", "block_first", "block_last", "at_last")
        )
        goes_on = np.zeros(len(s), bool)
        goes_on[1:] = (self._host[1:] == self._host[:-1]) & (self._first[1:] <= self._last[:-1] + 1)
        self._chain = np.cumsum(~goes_on)
        until = pd.Series(at_last).groupby(self._chain).max()
        self._until = until.reindex(self._chain).to_numpy(np.int64)
        self._hosts, at = np.unique(self._host, return_index=True)
        self._begin = at
        self._end = np.append(at[1:], len(s))

    def of(self, host: Array, block: Array) -> tuple[Array, Array]:
        """Return the chain of each block (0: not read), and the end time of that chain."""
        chain, until = np.zeros(len(host), np.int64), np.zeros(len(host), np.int64)
        for n, one in enumerate(self._hosts):
            mine = np.flatnonzero(host == one)
            if len(mine) == 0:
                continue
            begin, end = self._begin[n], self._end[n]
            at = begin + np.searchsorted(self._first[begin:end], block[mine], side="right") - 1
            there = (at >= begin) & (block[mine] <= self._last[np.maximum(at, begin)])
            mine, at = mine[there], at[there]
            chain[mine], until[mine] = self._chain[at], self._until[at]
        return chain, until


def _packed(ends: Array) -> bytes:
    return zlib.compress(ends.astype("<u4").tobytes(), 6)


def _unpacked(ends: bytes) -> Array:
    return np.frombuffer(zlib.decompress(ends), "<u4")
