"""Failed logins: a client that guesses passwords must wait."""

from __future__ import annotations

import time
from collections import deque

from qmd.runtime.loopback_user import End, user_of_end
from qmd.runtime.shares import address_of, owner_of

WINDOW_S = 60.0
NAMES_PER_ADDRESS = 10  # an address that tries many names has so many times the limit
KEPT_MAX = 10_000  # names and addresses with failures; the oldest are forgotten


def client_of(address: str, there: End | None, here: End | None) -> tuple[str, bool]:
    """Return the name under which the failed logins of a client count, and whether that is a user.

    All users of this computer have the addresses of loopback: one of them must not keep the others
    out.  A program there is named by its user, which the kernel states as long as its end is open,
    and one on another computer by its address, or by its network of IPv6, which it has whole.
    """
    found = address_of(address)
    if found is None or not found.is_loopback:
        return f"address {owner_of(address).name}", False
    user = None if there is None or here is None else user_of_end(there, here)
    return ("a user that is not known", False) if user is None else (f"user {user}", True)


def local_user(there: End | None, here: End | None) -> int | None:
    """Return the user of this computer that has the end `there` of a connection, or None."""
    if there is None or here is None:
        return None
    found = address_of(there[0])
    return user_of_end(there, here) if found is not None and found.is_loopback else None


class Attempts:
    """The failed logins of the last minute, by client (`client_of`) and user."""

    def __init__(self, failures_max: int) -> None:
        self._failures_max = failures_max
        self._failed: dict[tuple[str, str], deque[float]] = {}

    def may_try(self, address: str, name: str) -> bool:
        """Return whether a client at `address` may log in as `name` now."""
        return (
            self._count(address, name) < self._failures_max
            and self._count(address, "") < self._failures_max * NAMES_PER_ADDRESS
        )

    def failed(self, address: str, name: str) -> None:
        """Note a wrong login."""
        for key in ((address, name), (address, "")):
            times = self._failed.pop(key, None)
            if times is None:
                times = deque(maxlen=self._failures_max * NAMES_PER_ADDRESS)
            times.append(time.monotonic())
            self._failed[key] = times
        while len(self._failed) > KEPT_MAX:
            del self._failed[next(iter(self._failed))]

    def succeeded(self, address: str, name: str) -> None:
        """Forget the failures of a user that has logged in."""
        self._failed.pop((address, name), None)

    def _count(self, address: str, name: str) -> int:
        times = self._failed.get((address, name))
        if times is None:
            return 0
        since = time.monotonic() - WINDOW_S
        while times and times[0] < since:
            times.popleft()
        if not times:
            del self._failed[address, name]
        return len(times)
