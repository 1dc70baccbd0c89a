"""Usage: the bytes of stored packets, counted at every change and compared with their quota."""

from __future__ import annotations

from collections.abc import Callable

#: Thresholds of a quota. Each is reported once when it is reached, and again after the use fell
#: clearly below it.
NOTICED_PERCENT = (70, 85, 95)
LEFT_PERCENT = 5  # a use that is so far below a threshold is clearly below it

_NEVER = 1 << 64


class Gauge:
    """The bytes of the packets in one place, and their limit (None: no limit).

    `notice` is called when one of the thresholds is reached. Counting takes one comparison more
    than an addition.
    """

    def __init__(self, quota_bytes: int | None, notice: Callable[[Gauge], None]) -> None:
        self.bytes = 0
        # The highest threshold that was reached and is not clearly left.
        self.noticed_percent = 0
        self._notice = notice
        self.set_quota(quota_bytes)

    @property
    def used_percent(self) -> int | None:
        """The used part of the quota, rounded down; None without a limit."""
        if self.quota_bytes is None:
            return None
        return self.bytes * 100 // self.quota_bytes if self.quota_bytes else 100

    def has_room(self, size: int) -> bool:
        """Return whether `size` more bytes fit."""
        return self.quota_bytes is None or self.bytes + size <= self.quota_bytes

    def set_quota(self, quota_bytes: int | None) -> None:
        """Change the limit; messages that are above the new limit stay."""
        self.quota_bytes = quota_bytes
        self.noticed_percent = 0
        self._look()

    def grow(self, size: int) -> None:
        """Count `size` more bytes."""
        self.bytes += size
        if self.bytes >= self._notice_at:
            self._look()

    def shrink(self, size: int) -> None:
        """Count `size` fewer bytes."""
        self.bytes -= size
        if self.bytes < self._left_below:
            self._look()

    def _look(self) -> None:
        """Find the current threshold, and the bytes between which it cannot change."""
        quota, thresholds = self.quota_bytes, NOTICED_PERCENT
        if not quota:  # there is no limit, or no room at all
            self._notice_at, self._left_below = _NEVER, -1
            return
        before = self.noticed_percent
        reached = max((each for each in thresholds if self.bytes * 100 >= each * quota), default=0)
        if reached >= before:
            now = reached
        else:  # the highest threshold that is not clearly left
            now = max(
                (
                    each
                    for each in thresholds
                    if each <= before and self.bytes * 100 >= (each - LEFT_PERCENT) * quota
                ),
                default=0,
            )
        self.noticed_percent = now
        above = next((each for each in thresholds if each > now), None)
        self._notice_at = _NEVER if above is None else -(-above * quota // 100)
        self._left_below = -(-(now - LEFT_PERCENT) * quota // 100) if now else -1
        if now > before:
            self._notice(self)


class Usage(Gauge):
    """All packets of all queues; `express_bytes` counts those of express messages, in memory."""

    def __init__(
        self, quota_bytes: int | None = None, notice: Callable[[Gauge], None] = lambda gauge: None
    ) -> None:
        super().__init__(quota_bytes, notice)
        self.express_bytes = 0
        self.set_aside = 0  # bytes that do not count, because they have a budget of their own

    def has_room(self, size: int) -> bool:
        """Return whether `size` more bytes fit."""
        return self.quota_bytes is None or self.bytes - self.set_aside + size <= self.quota_bytes


class Measured(Gauge):
    """A queue; its bytes count towards the usage of the computer.

    The bytes of a subqueue count towards `within`, the queue that it belongs to, as well.
    """

    def __init__(
        self,
        usage: Usage,
        size: int,
        quota_bytes: int | None = None,
        notice: Callable[[Gauge], None] = lambda gauge: None,
        within: Measured | None = None,
    ) -> None:
        super().__init__(quota_bytes, notice)
        self.usage = usage
        self._within = within
        self.grow(size)

    def grow(self, size: int) -> None:
        """Count `size` more bytes here and in all that contains this queue."""
        # Both gauges in one call, because this is called for every message.
        usage, within = self.usage, self._within
        self.bytes += size
        if self.bytes >= self._notice_at:
            self._look()
        if within is not None:
            within.grow(size)
            return
        usage.bytes += size
        if usage.bytes >= usage._notice_at:
            usage._look()

    def shrink(self, size: int) -> None:
        """Count `size` fewer bytes here and in all that contains this queue."""
        usage, within = self.usage, self._within
        self.bytes -= size
        if self.bytes < self._left_below:
            self._look()
        if within is not None:
            within.shrink(size)
            return
        usage.bytes -= size
        if usage.bytes < usage._left_below:
            usage._look()
