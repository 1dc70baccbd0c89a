"""How much is stored, counted as it changes, and how near that is to what may be."""

from __future__ import annotations

from collections.abc import Callable

#: Of a quota: each is noticed once when it is reached, and anew after it was clearly left.
NOTICED_PERCENT = (70, 85, 95)
LEFT_PERCENT = 5  # so far below a threshold it is clearly left

_NEVER = 1 << 64


class Gauge:
    """The bytes of packets in something, and the most that they may be (None: no limit).

    `notice` is called when one of the thresholds is reached.  Counting costs one comparison more
    than an addition.
    """

    def __init__(self, quota_bytes: int | None, notice: Callable[[Gauge], None]) -> None:
        self.bytes = 0
        self.noticed_percent = 0  # the highest threshold that was reached and not clearly left
        self._notice = notice
        self.set_quota(quota_bytes)

    @property
    def used_percent(self) -> int | None:
        """Rounded down; None without a limit."""
        if self.quota_bytes is None:
            return None
        return self.bytes * 100 // self.quota_bytes if self.quota_bytes else 100

    def has_room(self, size: int) -> bool:
        return self.quota_bytes is None or self.bytes + size <= self.quota_bytes

    def set_quota(self, quota_bytes: int | None) -> None:
        """Another limit, from now on; what it makes too full stays."""
        self.quota_bytes = quota_bytes
        self.noticed_percent = 0
        self._look()

    def grow(self, size: int) -> None:
        self.bytes += size
        if self.bytes >= self._notice_at:
            self._look()

    def shrink(self, size: int) -> None:
        self.bytes -= size
        if self.bytes < self._left_below:
            self._look()

    def _look(self) -> None:
        """Find out where we are, and between which bytes there is nothing to be found out."""
        quota, thresholds = self.quota_bytes, NOTICED_PERCENT
        if not quota:  # nothing can be in what has no room at all
            self._notice_at, self._left_below = _NEVER, -1
            return
        before = self.noticed_percent
        reached = max((each for each in thresholds if self.bytes * 100 >= each * quota), default=0)
        if reached >= before:
            now = reached
        else:  # the highest that is not clearly left
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
    """All packets in all queues, and the express ones, which memory holds."""

    def __init__(
        self, quota_bytes: int | None = None, notice: Callable[[Gauge], None] = lambda gauge: None
    ) -> None:
        super().__init__(quota_bytes, notice)
        self.express_bytes = 0


class Measured(Gauge):
    """A queue whose bytes count towards the whole."""

    def __init__(
        self,
        usage: Usage,
        size: int,
        quota_bytes: int | None = None,
        notice: Callable[[Gauge], None] = lambda gauge: None,
    ) -> None:
        super().__init__(quota_bytes, notice)
        self.usage = usage
        self.grow(size)

    def grow(self, size: int) -> None:
        # Both gauges in one call: this is for every message.
        usage = self.usage
        self.bytes += size
        usage.bytes += size
        if self.bytes >= self._notice_at:
            self._look()
        if usage.bytes >= usage._notice_at:
            usage._look()

    def shrink(self, size: int) -> None:
        usage = self.usage
        self.bytes -= size
        usage.bytes -= size
        if self.bytes < self._left_below:
            self._look()
        if usage.bytes < usage._left_below:
            usage._look()
