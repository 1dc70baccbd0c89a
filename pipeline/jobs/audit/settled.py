"""Results of earlier audit runs that are settled, and how to join them with new files.

A *segment* is a part of a stream without open messages or findings: its numbers follow each other,
each was sent once and stored once, in this order, and no unread stretch of either log lies inside
it.  So everything that is read later lies before or behind all of it, and its first and its last
message (`ends`) can represent it.  The events of all other messages are kept unchanged.
docs/decisions/0025
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from pipeline.jobs.audit.facts import ARRIVAL_MAX, Facts, Role
from pipeline.jobs.audit.fingerprints import follows

Frame = Any
Array = Any

SEGMENT = [
    *("source", "stream", "sent_queue", "key_first", "key_last", "number_first", "number_last"),
    *("sent_block_first", "sent_block_last", "sent_at_first", "sent_at_last"),
    *("sent_at_min", "sent_at_max", "host", "queue", "place_first", "place_last"),
    *("block_first", "block_last", "at_first", "at_last", "at_min", "at_max"),
]
COVERED = ["host", "block_first", "block_last", "at_first", "at_last", "count", "at_sum"]
NUMBERS = ["source", "is_express", "first", "last"]
#: Departures that an earlier run has read once, and a later run once more.
AGAIN = ["source", "number", "host", "queue", "place", "at_ms"]
#: Messages that `joined` keeps between segments; -1: it was not sent, or not accepted.
OTHERS = ["source", "stream", "key", "sent_block", "host", "place"]
#: `index` of an event that represents a segment; no event of a log has it.
OF_SEGMENT = -1


class Stretches:
    """Stretches of logs that were read without a gap: `settled.COVERED`, merged."""

    def __init__(self, covered: Frame) -> None:
        covered = covered.sort_values(["host", "block_first"], ignore_index=True)
        self._hosts = np.unique(covered.host.to_numpy(np.int64))
        self._code = np.searchsorted(self._hosts, covered.host.to_numpy(np.int64))
        self._block_last = covered.block_last.to_numpy(np.int64)
        self._at_first = covered.at_first.to_numpy(np.int64)
        self._at_last = covered.at_last.to_numpy(np.int64)
        self._starts = _two(self._code, covered.block_first.to_numpy(np.int64))

    def of(self, hosts: Array, blocks: Array) -> Array:
        """Return the stretch of each block; -1: the block was not read."""
        if len(self._starts) == 0:
            return np.full(len(hosts), -1)
        code = np.minimum(np.searchsorted(self._hosts, hosts), len(self._hosts) - 1)
        at = np.searchsorted(self._starts, _two(code, blocks), side="right") - 1
        there = (
            (at >= 0)
            & (self._hosts[code] == hosts)
            & (self._code[at] == code)
            & (blocks <= self._block_last[at])
        )
        return np.where(there, at, -1)

    def holds(self, facts: Facts) -> Array:
        """Return which events were read before, by their blocks and their times.

        The times are needed because a restored backup gives the same blocks again.
        """
        at = self.of(facts.host, facts.block)
        if len(self._starts) == 0:
            return at >= 0
        return (at >= 0) & (facts.at_ms >= self._at_first[at]) & (facts.at_ms <= self._at_last[at])


def _two(left: Array, right: Array) -> Array:
    return left.astype(np.int64) << np.int64(43) | right.astype(np.int64)


class Numbers:
    """The numbers that each source has given to messages, as far as its log was read."""

    def __init__(self, frame: Frame) -> None:
        frame = frame.sort_values(["source", "is_express", "first"], ignore_index=True)
        if len(frame):
            by = [frame.source, frame.is_express]
            before = frame.groupby(["source", "is_express"])["last"].cummax()
            before = before.groupby(by).shift(fill_value=-2)
            run = (frame["first"] > before + 1).cumsum()
            frame = frame.groupby(run.to_numpy(), sort=False).agg(
                source=("source", "first"),
                is_express=("is_express", "first"),
                first=("first", "min"),
                last=("last", "max"),
            )
        self.frame = frame[NUMBERS].astype(np.int64).reset_index(drop=True)

    def have(self, sources: Array, numbers: Array, *, express: bool) -> Array:
        return self.of_kind(sources, numbers, int(express))

    def of_kind(self, sources: Array, numbers: Array, kind: int) -> Array:
        """Return which of the numbers are there; `kind` is the value of column `is_express`."""
        part = self.frame[self.frame.is_express == kind]
        if len(part) == 0 or len(sources) == 0:
            return np.zeros(len(sources), bool)
        known = np.unique(part.source.to_numpy())
        code = np.minimum(np.searchsorted(known, sources), len(known) - 1)
        starts = _two(np.searchsorted(known, part.source.to_numpy()), part["first"].to_numpy())
        at = np.searchsorted(starts, _two(code, numbers), side="right") - 1
        source, last = part.source.to_numpy()[at], part["last"].to_numpy()[at]
        return (at >= 0) & (source == sources) & (numbers <= last)

    def without(self, other: Numbers) -> Numbers:
        """Return the numbers that `other` does not have, of the same source and kind."""
        by = ["source", "is_express"]
        theirs = {pair: part for pair, part in other.frame.groupby(by)}
        found = []
        for pair, part in self.frame.groupby(by):
            known = theirs.get(pair)
            starts = known["first"].to_numpy() if known is not None else np.zeros(0, np.int64)
            ends_ = known["last"].to_numpy() if known is not None else starts
            for row in part.itertuples():
                begin = row.first
                for at in range(np.searchsorted(ends_, row.first), len(starts)):
                    if starts[at] > row.last:
                        break
                    if starts[at] > begin:
                        found.append((*pair, begin, starts[at] - 1))
                    begin = max(begin, ends_[at] + 1)
                if begin <= row.last:
                    found.append((*pair, begin, row.last))
        return Numbers(pd.DataFrame(found, columns=NUMBERS, dtype=np.int64))

    def and_in(self, other: Numbers) -> Numbers:
        """Return the numbers that both have, of the same source and kind."""
        found = []
        by = ["source", "is_express"]
        ours = dict(list(self.frame.groupby(by)))
        for pair, theirs in other.frame.groupby(by):
            mine = ours.get(pair)
            if mine is None:
                continue
            first, last = mine["first"].to_numpy(), mine["last"].to_numpy()
            for row in theirs.itertuples():
                for at in range(np.searchsorted(last, row.first), len(first)):
                    if first[at] > row.last:
                        break
                    found.append((*pair, max(row.first, first[at]), min(row.last, last[at])))
        return Numbers(pd.DataFrame(found, columns=NUMBERS, dtype=np.int64))


def joined(
    segments: Frame, stretches: Stretches, others: Frame, *, each_apart: bool = False
) -> Frame:
    """Join adjacent segments if no message and no unread stretch of a log can lie between them.

    `others` are known messages of no segment (`OTHERS`).  The end of a sequence is followed by the
    next sequence, with perhaps some of `others` between them.  A message that was sent or accepted
    between two segments under a number inside one of them (a number that was given twice, a
    repetition) keeps them apart: a joined segment would seem to contain it.  With `each_apart`,
    each of `others` between them does: `segments` are not all of a stream, and another one may have
    the number.
    """
    if len(segments) == 0:
        return segments
    s = segments.sort_values(["source", "stream", "key_first"], ignore_index=True)
    same = np.zeros(len(s), bool)
    a, b = s.iloc[:-1], s.iloc[1:]

    def is_read(host: str, last: str, first: str) -> Array:
        one = stretches.of(a[host].to_numpy(), a[last].to_numpy())
        other = stretches.of(b[host].to_numpy(), b[first].to_numpy())
        return (one == other) & (one >= 0)

    same[1:] = (
        (a.source.values == b.source.values)
        & (a.stream.values == b.stream.values)
        & (a.host.values == b.host.values)
        & (a.queue.values == b.queue.values)
        & (a.sent_queue.values == b.sent_queue.values)
        & follows(a.key_last.values, b.key_first.values)
        & (b.place_first.values > a.place_last.values)
        & (b.sent_block_first.values >= a.sent_block_last.values)
        & (b.block_first.values >= a.block_last.values)
        & is_read("source", "sent_block_last", "sent_block_first")
        & is_read("host", "block_last", "block_first")
    )
    if len(others) and same.any():
        same &= ~_are_apart(s, same, others, each_apart=each_apart)
    if not same.any():
        return s
    how = {
        name: "last" if name.endswith("_last")
        else "min" if name.endswith("_min")
        else "max" if name.endswith("_max")
        else "first"
        for name in SEGMENT
    }  # fmt: skip
    return s.groupby(np.cumsum(~same), sort=False).agg(how).reset_index(drop=True)


def _are_apart(s: Frame, same: Array, others: Frame, *, each_apart: bool) -> Array:
    """Return which of the sorted segments one of `others` keeps apart from the one before it."""
    parts = {pair: part for pair, part in others.groupby(["source", "stream"])}
    apart = np.zeros(len(s), bool)
    for pair, settled in s.groupby(["source", "stream"]):
        at = settled.index.to_numpy()
        at = at[same[at]]
        if pair not in parts or len(at) == 0:
            continue
        part = again = parts[pair]
        if not each_apart:
            again = part[_inside(part.key, settled.key_first, settled.key_last)]
        before, after = s.iloc[at - 1], s.iloc[at]
        begins = (after.key_first.to_numpy() & 0xFFFF_FFFF) == 1
        apart[at] = begins & _have(part.key, before.key_last, after.key_first)
        apart[at] |= _have(
            again.sent_block[again.sent_block >= 0], before.sent_block_last, after.sent_block_first
        )
        for host in after.host.unique():
            places = again.place[(again.place >= 0) & (again.host == host)]
            is_there = (after.host == host).to_numpy()
            apart[at] |= is_there & _have(places, before.place_last, after.place_first)
    return apart


def _inside(values: Frame, first: Frame, last: Frame) -> Array:
    """Return which values are in one of the ranges, which are sorted."""
    at = np.searchsorted(first.to_numpy(np.int64), values.to_numpy(np.int64), side="right") - 1
    return (at >= 0) & (values.to_numpy(np.int64) <= last.to_numpy(np.int64)[np.maximum(at, 0)])


def settled_inside(segments: Frame, others: Frame) -> bool:
    """Return whether one of `others` has the key of a message in one of `segments`."""
    parts = {pair: part for pair, part in segments.groupby(["source", "stream"])}
    for pair, some in others.groupby(["source", "stream"]):
        if pair in parts:
            part = parts[pair].sort_values("key_first")
            if _inside(some.key, part.key_first, part.key_last).any():
                return True
    return False


def _have(values: Frame, first: Array, last: Array) -> Array:
    """Return which ranges, `first` to `last`, have one of the values."""
    known = np.sort(values.to_numpy(np.int64))
    return np.searchsorted(known, first) < np.searchsorted(known, last, side="right")


def ends(segments: Frame) -> Frame:
    """Return the first and the last message of each segment, as `Facts`."""
    parts = []
    for end in ("first", "last"):
        some = segments if end == "first" else segments[segments.key_first != segments.key_last]
        same = {
            "index": OF_SEGMENT,
            "source": some.source,
            "number": some[f"number_{end}"],
            "stream": some.stream,
            "key": some[f"key_{end}"],
            "peer": 0,
            "grade": 0,
            "size": 0,
        }
        parts.append(
            pd.DataFrame(
                same
                | {
                    "role": int(Role.SENT),
                    "host": some.source,
                    "block": some[f"sent_block_{end}"],
                    "at_ms": some[f"sent_at_{end}"],
                    "place": -1,
                    "queue": some.sent_queue,
                }
            )
        )
        parts.append(
            pd.DataFrame(
                same
                | {
                    "role": int(Role.ACCEPTED),
                    "host": some.host,
                    "block": some[f"block_{end}"],
                    "at_ms": some[f"at_{end}"],
                    "place": some[f"place_{end}"],
                    "queue": some.queue,
                }
            )
        )
    found = pd.concat(parts, ignore_index=True)
    return found[list(Facts._fields)].astype(np.int64)


def resent(kept: Frame, known: Any) -> Frame:
    """Return the settled messages (source, number) that were sent once more, among `kept` events.

    `known` is the state before these events were read.  Its source had given the number, and its
    sending was not kept: so it was stored.  Afterwards its second sending is kept, as if it were
    open.
    """
    by = ["source", "number"]
    sent = kept[kept.role == Role.SENT][by].drop_duplicates()
    was_open = pd.MultiIndex.from_frame(known.carried[known.carried.role == Role.SENT][by])
    source, number = (sent[name].to_numpy(np.int64) for name in by)
    ids = pd.MultiIndex.from_frame(sent)
    is_new = Numbers(known.numbers).have(source, number, express=False) & ~ids.isin(was_open)
    before = ids.isin(pd.MultiIndex.from_frame(known.resent))
    return sent[is_new | before].reset_index(drop=True)


def position_of(segments: Frame, source: int, number: int) -> tuple[int, int] | None:
    """Return the stream and the key of a settled message, if its segment shows them."""
    s = segments[
        (segments.source == source)
        & (segments.number_first <= number)
        & (number <= segments.number_last)
    ]
    for row in s.itertuples():
        if number == row.number_last:
            return int(row.stream), int(row.key_last)
        # Numbers of messages of other streams may lie between those of this one.
        if (
            number == row.number_first
            or row.key_last - row.key_first == row.number_last - row.number_first
        ):
            return int(row.stream), int(row.key_first) + number - int(row.number_first)
    return None


def others_of(carried: Frame) -> Frame:
    """Return the messages of streams among these events (`Facts`), for `joined`."""
    some = carried[(carried.stream >= 0) & carried.role.isin((Role.SENT, Role.ACCEPTED))]
    is_sent = (some.role == Role.SENT).to_numpy()
    block, index, place = (some[name].to_numpy(np.int64) for name in ("block", "index", "place"))
    arrival = np.where(place >= 0, place & ARRIVAL_MAX, block << 20 | index)
    return some.assign(
        sent_block=np.where(is_sent, block, -1), place=np.where(is_sent, -1, arrival)
    )[OTHERS]


def pairs_of(frame: Frame) -> set[tuple[int, int]]:
    return set(zip(frame.source.tolist(), frame.stream.tolist(), strict=True))


def in_pairs(frame: Frame, pairs: Iterable[tuple[int, int]]) -> Array:
    """Return which rows belong to one of these streams."""
    pairs = pairs if isinstance(pairs, set | frozenset) else set(pairs)
    return np.fromiter(
        (pair in pairs for pair in zip(frame.source.tolist(), frame.stream.tolist(), strict=True)),
        bool,
        len(frame),
    )
