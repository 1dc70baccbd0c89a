"""Away hosts: those that do not answer.  They are probed often enough to be used soon after their
return, and rarely enough that a thousand of them cost little.

A probe is an attempt to connect.  A probe that gets no answer ends early: the system sends its
packet again after one second, two and four, so that a host that returns in between would wait
longer and longer.  Every few probes one waits for the whole time limit, for a path with a long
round trip.
"""

from __future__ import annotations

import errno
from collections import OrderedDict
from collections.abc import Hashable
from zlib import crc32

PROBES_PER_S = 50  # of all away hosts together
PROBE_S = 2.0  # for which a probe waits: the system sends its packet twice
PATIENT_PROBES = 8  # every such probe waits for the whole time limit
PAUSE_MIN_S = 0.1
KEPT_S = 120.0  # a host counts as away for this time after its last probe
JITTER = 0.25  # part of a pause, so that hosts that vanished together are not probed together

_AWAY = frozenset(
    (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ETIMEDOUT, errno.ENETDOWN)
)


def is_away(error: OSError | UnicodeError) -> bool:
    """Return whether an attempt to connect failed because nothing answers, or nothing listens."""
    if isinstance(error, (ConnectionRefusedError, TimeoutError)):
        return True
    return isinstance(error, OSError) and error.errno in _AWAY


def probe_s(limit_s: float, failures: int) -> float:
    """Return for how long the next attempt waits, after so many successive failures."""
    if failures % PATIENT_PROBES == 0:
        return limit_s
    return min(limit_s, PROBE_S)


class AwayHosts:
    """The hosts that were probed lately; `pause_s` is the time from one probe to the next."""

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._probed: OrderedDict[Hashable, float] = OrderedDict()

    def pause_s(self, name: str, failures: int, took_s: float, now: float) -> float:
        """Return the longest pause before the next probe of a host.

        `took_s` is the duration of the probe that has failed now.
        """
        probed = self._probed
        probed[name] = now
        probed.move_to_end(name)
        while now - next(iter(probed.values())) > KEPT_S:
            probed.popitem(last=False)
        interval_s = max(self._pause_s, len(probed) / PROBES_PER_S)
        part = crc32(f"{name} {failures}".encode()) / 2**32
        return max(interval_s * (1 - JITTER * part) - took_s, PAUSE_MIN_S)
