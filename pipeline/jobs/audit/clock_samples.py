"""Bounds of the differences of clocks, from samples of the times of messages."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.jobs.audit.clock_spans import SLOT_MS, narrowed
from pipeline.jobs.audit.facts import Role

Frame = Any

#: Times of events of messages; `stream` is the role.
SAMPLES = ["source", "stream", "key_first", "host", "at_first"]
_SAMPLES_MAX = 100_000
_CLOCK_RIGHT_MS = 1000


def clock_bounds(samples: Frame, holes: Frame) -> tuple[Frame, Frame]:
    """Return bounds of how far the receiver's clock is ahead of the sender's, and samples.

    The samples are those that await events not yet read; the newest if there are many.
    """

    def of(*roles: Role) -> Frame:
        some = samples[samples.stream.isin(roles)].rename(columns={"key_first": "number"})
        # An event that happened twice shows nothing about clocks; a copy of one event is harmless.
        some = some.drop_duplicates(["source", "number", "host", "at_first"])
        return some.drop_duplicates(["source", "number"], keep=False)[
            ["source", "number", "host", "at_first"]
        ]

    both = of(Role.SENT).merge(of(Role.ACCEPTED), on=["source", "number"], suffixes=("_sent", ""))
    acked = of(Role.ORDER_ACKED, Role.SESSION_ACKED)[["source", "number", "at_first"]]
    both = both.merge(acked, on=["source", "number"], how="left", suffixes=("", "_acked"))
    # An acknowledged message may have come earlier, in a stretch that was not read.
    is_unsure = np.zeros(len(both), bool)
    begin = both.at_first_sent.to_numpy(np.float64) - _CLOCK_RIGHT_MS
    end = both.at_first_acked.astype("Float64").to_numpy(np.float64, na_value=-np.inf)
    for hole in holes.itertuples():
        is_unsure |= (
            (both.host == hole.host).to_numpy()
            & (hole.at_first <= end + _CLOCK_RIGHT_MS)
            & (hole.at_last >= begin)
        )
    both["at_from"] = (both.at_first - both.at_first_acked.astype("Int64")).mask(is_unsure)
    both["at_to"] = (both.at_first - both.at_first_sent).astype("Int64")
    bounds = both.rename(columns={"at_first_acked": "seen_from", "at_first_sent": "seen_to"})
    bounds["slot"] = bounds.seen_to // SLOT_MS
    bounds = narrowed(bounds, bounds[:0])
    done = both[~is_unsure][["source", "number"]].rename(columns={"number": "key_first"})
    rest = samples.merge(done.assign(done=True), on=["source", "key_first"], how="left")
    rest = rest[rest.done.isna()].sort_values("at_first").tail(_SAMPLES_MAX)
    waiting = rest[SAMPLES].astype(np.int64).reset_index(drop=True)
    return bounds, waiting
