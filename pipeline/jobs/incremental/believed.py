"""Times that count: an event that is dated after tomorrow moves no window of a job.

Such a date is that of a wrong clock, by the clock of the run.  It would end the wait for messages
of real days, let logs seem complete until then, and leave the last days empty.
"""

from __future__ import annotations

import time
from typing import Any

from pipeline.jobs.incremental.known_events import DAY_MS

Frame = Any
Array = Any


def last_day(times_ms: Array, now_ms: int | None = None) -> int:
    """Return the last day that counts, in days since 1970: tomorrow.

    If all `times_ms` are later, the clock of this host is wrong: then it is the day of the newest.
    `now_ms` is the time of the run; that of this host unless given.
    """
    tomorrow = (int(time.time() * 1000) if now_ms is None else now_ms) // DAY_MS + 1
    if len(times_ms) and int(times_ms.min()) // DAY_MS > tomorrow:
        return int(times_ms.max()) // DAY_MS
    return tomorrow


def believed(stretches: Frame, now_ms: int | None = None) -> tuple[Frame, int]:
    """Return stretches (`known_events.STRETCH`) without later times, and the last day that counts.

    A stretch in which a clock was ahead counts to its beginning; one that begins too late has no
    times (NaN).
    """
    day = last_day(stretches.at_first.to_numpy(), now_ms)
    times = stretches[["at_first", "at_last"]].astype("float64")
    times = times.where(times // DAY_MS <= day)
    last = times.at_last.fillna(times.at_first)
    return stretches.assign(at_first=times.at_first, at_last=last), day
