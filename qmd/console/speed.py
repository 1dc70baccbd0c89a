"""Speed of a host: how long its commits, its event loop and its destinations take at present.

The daemon counts durations since its start; two samples give the mean of the time between them.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from qmd.client import ClientError, NotConnected, QueueManager
from qmd.control_protocol.figures import (
    OLDEST_MAX,
    DestinationFigures,
    HostFigures,
    OldestMessages,
)

MEAN_S = 60.0  # the time of which means are taken
#: Durations above these are slow.
COMMIT_S, LAG_S, ANSWER_S, ROUND_TRIP_S, BACKLOG_S = 0.1, 0.1, 0.5, 2.0, 300.0
#: Places of columns in a row of `DestinationFigures`.
NAME, STATE, MESSAGES, ROUND_TRIP = 0, 1, 2, 8


class Sample(NamedTuple):
    """The durations since the start of the daemon: their sum and their number."""

    at: float
    commits: tuple[float, int]
    lags: tuple[float, int]


class Speed(NamedTuple):
    """The speed of a host; None: unknown, because nothing happened or a right is missing."""

    commit_s: float | None = None
    lag_s: float | None = None
    round_trip_s: float | None = None  # of the slowest destination that is connected
    slowest: str = ""  # its name
    backlog_s: float | None = None  # age of the oldest message for another host; 0: there is none
    oldest: str = ""  # its destination

    def reasons(self, answer_s: float) -> list[str]:
        """Return why the host is slow, as sentences; none if it is not."""
        found = []
        if (self.commit_s or 0.0) > COMMIT_S:
            found.append(f"A commit takes {_ms(self.commit_s)}: the disk is slow.")
        if (self.lag_s or 0.0) > LAG_S:
            found.append(
                f"The event loop is {_ms(self.lag_s)} late: the daemon or its computer has too"
                " much work."
            )
        if answer_s > ANSWER_S:
            found.append(f"It answers the console in {_ms(answer_s)}.")
        if (self.round_trip_s or 0.0) > ROUND_TRIP_S:
            found.append(
                f"{self.slowest} acknowledges after {_ms(self.round_trip_s)}: the network or the"
                " other host is slow."
            )
        if (self.backlog_s or 0.0) > BACKLOG_S:
            found.append(f"A message for {self.oldest} waits for {round(self.backlog_s or 0)} s.")
        return found


class SpeedMeter:
    """Measures the speed of one host, by two requests for figures."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque()

    async def measure(self, qm: QueueManager) -> Speed:
        """Return the speed.  Raises NotConnected; a missing right leaves parts unknown."""
        ask = qm.caller.ask
        host: Any
        page: Any
        host, page = await asyncio.gather(
            ask(HostFigures), ask(DestinationFigures), return_exceptions=True
        )
        for part in (host, page):
            if isinstance(part, NotConnected) or (
                isinstance(part, BaseException) and not isinstance(part, ClientError)
            ):
                raise part
        commit_s = lag_s = None
        if not isinstance(host, BaseException):
            commit_s, lag_s = self.means(host, time.monotonic())
        if isinstance(page, BaseException):
            return Speed(commit_s, lag_s)
        rows: Sequence[Sequence[Any]] = page["rows"]
        trips = [(row[ROUND_TRIP], row[NAME]) for row in rows if row[ROUND_TRIP] is not None]
        round_trip_s, slowest = max(trips, default=(None, ""))
        backlog_s, oldest = await _backlog(qm, rows)
        return Speed(commit_s, lag_s, round_trip_s, slowest, backlog_s, oldest)

    def means(self, host: Mapping[str, Any], now: float) -> tuple[float | None, float | None]:
        """Return the mean times of a commit and of a lag, in seconds, of the last minute."""
        latest = Sample(now, _sums(host["commits"]), _sums(host["loop_lags"]))
        samples = self._samples
        if samples and latest.lags[1] < samples[-1].lags[1]:
            samples.clear()  # the daemon has started again
        samples.append(latest)
        while len(samples) > 2 and now - samples[1].at > MEAN_S:
            samples.popleft()
        first = samples[0] if len(samples) > 1 else Sample(now, (0.0, 0), (0.0, 0))
        return _mean(first.commits, latest.commits), _mean(first.lags, latest.lags)


async def _backlog(qm: QueueManager, rows: Sequence[Sequence[Any]]) -> tuple[float | None, str]:
    """Return the age of the oldest message for another host, and its destination."""
    fullest = sorted((row for row in rows if row[MESSAGES]), key=lambda row: -row[MESSAGES])
    names = [row[NAME] for row in fullest[:OLDEST_MAX]]
    if not names:
        return 0.0, ""
    try:
        answer = await qm.caller.ask(OldestMessages, [], names)
    except NotConnected:
        raise
    except ClientError:
        return None, ""
    times = [
        (at_ms, name)
        for at_ms, name in zip(answer["destinations"], names, strict=True)
        if at_ms is not None
    ]
    if not times:
        return 0.0, ""
    at_ms, name = min(times)
    return max(0.0, time.time() - at_ms / 1000), name


def _sums(histogram: Mapping[str, Any]) -> tuple[float, int]:
    return float(histogram["sum"]), sum(histogram["counts"])


def _mean(first: tuple[float, int], last: tuple[float, int]) -> float | None:
    count = last[1] - first[1]
    return (last[0] - first[0]) / count if count > 0 else None


def _ms(seconds: float | None) -> str:
    return f"{round(1000 * (seconds or 0.0)):,} ms"
