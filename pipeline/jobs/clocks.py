"""Clocks of hosts, from messages that went between them.

A message that was sent at s, stored at a and acknowledged at k, by the sender's, the receiver's and
the sender's clock, says of how far the receiver's clock is ahead: at least a - k, at most a - s.
The narrowest bounds of many messages are a pair's; offsets of hosts have to fit all pairs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

Frame = Any
BOUNDS = ["source", "host", "day", "at_from", "at_to"]
_DAYS = 7  # before the last one, of each pair: clocks are set right


def narrowed(old: Frame, new: Frame) -> Frame:
    """Of what was known before and is known now, for each day; of the last days."""
    both = pd.concat([old[BOUNDS].astype("Int64"), new[BOUNDS].astype("Int64")])
    both = both.groupby(["source", "host", "day"], as_index=False).agg(
        at_from=("at_from", "max"), at_to=("at_to", "min")
    )
    last = both.groupby(["source", "host"]).day.transform("max")
    return _whole(both[both.day > last - _DAYS].reset_index(drop=True))


def _whole(bounds: Frame) -> Frame:
    return bounds.astype({"source": np.int64, "host": np.int64})


def islands(bounds: Frame) -> dict[int, int]:
    """Of each host one that stands for all whose clocks can be compared with its own."""
    parent: dict[int, int] = {}

    def root(host: int) -> int:
        while parent.setdefault(host, host) != host:
            host = parent[host]
        return host

    for source, host in bounds[["source", "host"]].drop_duplicates().itertuples(index=False):
        parent[root(int(source))] = root(int(host))
    return {host: root(host) for host in list(parent)}


def solve(bounds: Frame, tolerance_ms: float) -> tuple[dict[int, float], set[int]]:
    """The offset of each host's clock (ms, positive: ahead), and which hosts are wrong.

    A host is wrong when its pairs cannot all be within `tolerance_ms`; of two that disagree it is
    the one that disagrees with more others.  A host about which nothing is known has no offset.
    """
    bounds = _whole(bounds).astype({"at_from": "Float64", "at_to": "Float64"})
    bounds = bounds.groupby(["source", "host"], as_index=False).agg(
        at_from=("at_from", "max"), at_to=("at_to", "min")
    )
    bounds = bounds[bounds.source != bounds.host]
    hosts = set(bounds.source) | set(bounds.host)
    offset = dict.fromkeys(hosts, 0.0)
    wrong: set[int] = set()
    if not hosts:
        return offset, wrong
    source, host = bounds.source.to_numpy(), bounds.host.to_numpy()
    # Without an ack only the upper bound is known.
    least = bounds.at_from.fillna(-np.inf).to_numpy(np.float64)
    most = bounds.at_to.fillna(np.inf).to_numpy(np.float64)
    flipped = least > most  # the clock was set meanwhile
    least, most = np.where(flipped, most, least), np.where(flipped, least, most)
    for _ in range(len(hosts)):
        shift = np.array([offset[b] - offset[a] for a, b in zip(source, host, strict=True)])
        disagree = ((least - shift) > tolerance_ms) | ((most - shift) < -tolerance_ms)
        disagree &= np.array(
            [a not in wrong or b not in wrong for a, b in zip(source, host, strict=True)]
        )
        if not disagree.any():
            break
        votes: dict[int, int] = {}
        for a, b in zip(source[disagree], host[disagree], strict=True):
            for each in (int(a), int(b)):
                if each not in wrong:
                    votes[each] = votes.get(each, 0) + 1
        pairs = {each: int(((source == each) | (host == each)).sum()) for each in votes}
        worst = max(votes, key=lambda each: (votes[each] / pairs[each], votes[each], each))
        lows = [
            *(least[host == worst] + [offset[int(a)] for a in source[host == worst]]),
            *(-most[source == worst] + [offset[int(b)] for b in host[source == worst]]),
        ]
        highs = [
            *(most[host == worst] + [offset[int(a)] for a in source[host == worst]]),
            *(-least[source == worst] + [offset[int(b)] for b in host[source == worst]]),
        ]
        low, high = np.median(lows), np.median(highs)
        if np.isinf(low) or np.isinf(high):
            low = high = high if np.isinf(low) else low
        offset[worst] = float((low + high) / 2)
        wrong.add(worst)
    return offset, wrong


def estimate(bounds: Frame, rounds: int = 100) -> dict[Any, float]:
    """The offset of each host's clock from the middle one: the best that all pairs agree on.

    No better than half of the fastest way there and back of each pair.
    """
    bounds = bounds.dropna(subset=["at_to"])
    hosts = sorted({*bounds.source, *bounds.host})
    offset = dict.fromkeys(hosts, 0.0)
    near: dict[Any, list[tuple[Any, float, float]]] = {host: [] for host in hosts}
    for a, b, least, most in bounds[["source", "host", "at_from", "at_to"]].itertuples(index=False):
        most = float(most)
        least = most - 1000.0 if pd.isna(least) else float(least)
        weight = 1.0 / (1.0 + abs(most - least))
        middle = (least + most) / 2
        near[b].append((a, middle, weight))
        near[a].append((b, -middle, weight))
    for _ in range(rounds):
        for host in hosts:
            weights = sum(weight for *_, weight in near[host])
            offset[host] = sum((offset[a] + by) * weight for a, by, weight in near[host]) / weights
    middle = float(np.median(list(offset.values()))) if offset else 0.0
    return {host: each - middle for host, each in offset.items()}
