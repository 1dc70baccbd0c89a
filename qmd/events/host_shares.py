"""Host shares: the part of the event log that other hosts can fill at will.

A message that is refused, or that came before, changes little, but its event takes space in the
log, which is limited: a flood of such messages would push out the history of all others.  Each host
therefore has an allowance of bytes for these events, refilled over a day.  When it is used up, the
events are only counted, and the next one that is listed has their number in its reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qmd.events.header import EventHeader

LOG_PART = 8  # divisor of the size of the log, for the allowance of one host
REFILL_S = 86_400.0
HOSTS_MAX = 10_000  # with an allowance in memory
#: Bytes of an event besides its texts, with its block and its range; and of one more message in it.
EVENT_BYTES, MESSAGE_BYTES = 160, 24


class _Allowance:
    """The bytes that one host may still fill."""

    __slots__ = ("at", "left", "left_out", "left_out_in_all")

    def __init__(self, left: float, at: float) -> None:
        self.left = left
        self.at = at
        self.left_out = 0  # events since the last listed one
        self.left_out_in_all = 0


class HostShares:
    """The allowances of all hosts; `log_bytes` is the size of the log."""

    def __init__(self, log_bytes: int) -> None:
        self._full = log_bytes / LOG_PART
        self._hosts: dict[str, _Allowance] = {}
        #: Events that were only counted, since the start.
        self.left_out = 0

    def take(
        self, host: str, header: EventHeader, now: float, *, is_new: bool, events: int = 1
    ) -> int | None:
        """Return the number of events before this one that were not listed; None: nor is this.

        `is_new`: no open event has this header, so that one begins. `events` is the number of
        events that the message causes.
        """
        allowance = self._hosts.get(host)
        if allowance is None:
            if len(self._hosts) >= HOSTS_MAX:
                self._hosts.pop(next(iter(self._hosts)))
            allowance = self._hosts[host] = _Allowance(self._full, now)
        refilled = allowance.left + (now - allowance.at) * self._full / REFILL_S
        allowance.left, allowance.at = min(refilled, self._full), now
        size = MESSAGE_BYTES
        if is_new or allowance.left_out:
            size += EVENT_BYTES + len(header.reason) + len(header.queue) + len(header.to_queue)
        size *= events
        if size > allowance.left:
            allowance.left_out += 1
            allowance.left_out_in_all += 1
            self.left_out += 1
            return None
        allowance.left -= size
        before, allowance.left_out = allowance.left_out, 0
        return before

    def limited(self, host: str) -> int:
        """Return how many events of a host were only counted."""
        allowance = self._hosts.get(host)
        return 0 if allowance is None else allowance.left_out_in_all
