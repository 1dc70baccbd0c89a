"""Offsets between the clocks of hosts, from messages between them.

A message has three times: sent at s and acknowledged at k by the sender's clock, stored at a by the
receiver's clock.  They bound how far the receiver's clock is ahead: at least a - k, at most a - s.
The narrowest bounds over many messages are those of a pair; the offsets of hosts must fit all
pairs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

import numpy as np
import pandas as pd

Frame = Any
BOUNDS = ["source", "host", "day", "at_from", "at_to"]


def _whole(bounds: Frame) -> Frame:
    return bounds.astype({"source": np.int64, "host": np.int64})


def solve(
    bounds: Frame, tolerance_ms: float, known: Collection[int] = ()
) -> tuple[dict[int, float], dict[int, int]]:
    """Return the offset of each host's clock (ms; positive: ahead), and the wrong hosts.

    Pairs with a host in `known`, a clock that is known to be wrong, show nothing.

    A host is wrong if its pairs cannot all be within `tolerance_ms`.  Of two hosts that disagree,
    the one that disagrees with more hosts is wrong.  The second mapping gives for each wrong host
    the other host if the data do not show which of the two is wrong, and else 0.  A host without
    data has no offset.
    """
    bounds = _whole(bounds).astype({"at_from": "Float64", "at_to": "Float64"})
    bounds = bounds.groupby(["source", "host"], as_index=False).agg(
        at_from=("at_from", "max"), at_to=("at_to", "min")
    )
    bounds = bounds[bounds.source != bounds.host]
    bounds = bounds[~(bounds.source.isin(list(known)) | bounds.host.isin(list(known)))]
    hosts = set(bounds.source) | set(bounds.host)
    offset = dict.fromkeys(hosts, 0.0)
    wrong: dict[int, int] = {}
    if not hosts:
        return offset, wrong
    source, host = bounds.source.to_numpy(), bounds.host.to_numpy()
    # Without an ack there is only the upper bound.
    least = bounds.at_from.fillna(-np.inf).to_numpy(np.float64)
    most = bounds.at_to.fillna(np.inf).to_numpy(np.float64)
    flipped = least > most  # the clock was set meanwhile
    was_set = least > most + tolerance_ms
    least, most = np.where(flipped, most, least), np.where(flipped, least, most)
    for _ in range(len(hosts)):
        shift = np.array([offset[b] - offset[a] for a, b in zip(source, host, strict=True)])
        # A pair that disagrees with a clock that was found to be wrong shows nothing more.
        counts = ~(np.isin(source, list(wrong)) | np.isin(host, list(wrong)))
        disagree = ((least - shift) > tolerance_ms) | ((most - shift) < -tolerance_ms)
        disagree &= counts
        if not disagree.any():
            break
        disagreeing = {int(each) for each in (*source[disagree], *host[disagree])} - wrong.keys()
        # Of two that disagree, blame the one that set its clock, as its other pairs show.
        against = counts & (disagree | was_set)
        of = {each: (source == each) | (host == each) for each in disagreeing}
        votes = {each: int((of[each] & against).sum()) for each in disagreeing}
        pairs = {each: int((of[each] & counts).sum()) for each in disagreeing}
        worst = max(votes, key=lambda each: (votes[each] / pairs[each], votes[each], each))
        beside = (set(source[of[worst] & disagree]) | set(host[of[worst] & disagree])) - {worst}
        doubtful = [
            int(each)
            for each in beside & disagreeing
            if votes[each] == votes[worst]
            and (votes[worst] < pairs[worst] or votes[each] == pairs[each])
        ]
        lows = [
            *(least[host == worst] + [offset[int(a)] for a in source[host == worst]]),
            *(-most[source == worst] + [offset[int(b)] for b in host[source == worst]]),
        ]
        highs = [
            *(most[host == worst] + [offset[int(a)] for a in source[host == worst]]),
            *(-least[source == worst] + [offset[int(b)] for b in host[source == worst]]),
        ]
        # Without an acknowledgment one side is unbounded: the other side is the estimate.
        finite = [[each for each in side if np.isfinite(each)] for side in (lows, highs)]
        low, high = (np.median(side or finite[0] or finite[1] or [0.0]) for side in finite)
        if not finite[0]:
            low = high
        offset[worst] = float((low + high) / 2)
        wrong[worst] = max(doubtful, default=0)
    return offset, wrong


def solve_over_time(bounds: Frame, tolerance_ms: float) -> tuple[dict[int, float], dict[int, int]]:
    """Return the same as `solve`, also for clocks that were right on other days.

    All days together hide a clock that goes wrong later: both of its offsets fit then.  A single
    day has fewer messages, so only pairs with both bounds count there, and hosts that a day shows
    without doubt come before those that disagree with one other host alone.
    """
    offset, wrong = solve(bounds, tolerance_ms)
    certain = bounds[bounds.at_from.notna() & bounds.at_to.notna()]
    days = [of_day for _, of_day in sorted(certain.groupby("day"), key=lambda each: -each[0])]
    for is_doubtful in (False, True):
        for of_day in days:
            on_day, wrong_then = solve(of_day, tolerance_ms, wrong)
            for host, other in wrong_then.items():
                if (other != 0) == is_doubtful:
                    wrong[host], offset[host] = other, on_day[host]
    for of_day in days:
        for host, other, size in _set_on(of_day, tolerance_ms, wrong):
            wrong[host], offset[host] = other, size
    return offset, wrong


def _set_on(of_day: Frame, tolerance_ms: float, known: Collection[int]) -> list[Any]:
    """Return clocks that had two offsets on one day: (host, another that may be it or 0, ms).

    A message shows an offset that a later one excludes, and both are beyond the tolerance apart.
    """
    known = set(known)
    pairs = [
        (int(row.source), int(row.host), float(row.at_from), float(row.at_to))
        for row in of_day.itertuples()
        if row.source != row.host and row.at_from > row.at_to + tolerance_ms
        and not known & {int(row.source), int(row.host)}
    ]  # fmt: skip
    votes = Counter(host for pair in pairs for host in pair[:2])
    found: dict[int, tuple[int, float]] = {}
    for source, host, least, most in pairs:
        worst = max(source, host, key=lambda each: (votes[each], each))
        other = source + host - worst
        sign = 1.0 if worst == host else -1.0
        if worst in found or other in found:
            continue
        apart = max(least, most, key=abs)
        found[worst] = (other if votes[other] == votes[worst] else 0, sign * apart)
    return [(host, *each) for host, each in found.items()]


def estimate(bounds: Frame, rounds: int = 100) -> dict[Any, float]:
    """Return the offset of each host's clock from the median, the best fit for all pairs.

    The precision is no better than half of the fastest round trip of each pair.
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
