"""The want of room for messages of other hosts, which a handshake states: peer_instance.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qmd.core.peer_instance import Lack

# A sender whose session was closed comes again within half a minute by default.
STATED_S = 120.0


class Shortage:
    """For which want of room sessions were closed lately."""

    def __init__(self) -> None:
        self._lack: Lack | None = None
        self._noted_at = 0.0

    def note(self, lack: Lack, now: float) -> None:
        """Record that a session ends for want of room; `now` is the clock of the loop."""
        self._lack, self._noted_at = lack, now

    def lack(self, now: float) -> Lack | None:
        """Return the last want of room, if it was noted in the last two minutes."""
        return self._lack if now - self._noted_at < STATED_S else None
