"""Accounts: the work of each local user and each token, over all of its connections.

The scheduler shares time between connections (qmd/runtime/fair_scheduler.py). An account with a
thousand connections would get a thousand shares, so that an account that uses much of the time is
served after the others, as long as there are others. The requests of an account that are not
answered yet are limited too: each occupies memory, and a request for messages may wait for hours.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

# Work of an account flows off at this rate, as a part of the time; an account with more work left
# than `BUSY_S` is busy. At most `WORK_MAX_S` is remembered, so that it is not busy for ever.
SHARE, BUSY_S, WORK_MAX_S = 0.1, 0.003, 0.5
REQUEST_S, BYTE_S = 0.000_04, 1.5e-9  # the work of a request that is not timed, and of each byte
WHOLE = 1.5  # all work for a request, as a multiple of the time until it has begun
ACTIVE_S = 0.1  # an account counts as active for this time after a request has arrived
# CPU time of one connection in one turn of the event loop: while no other account is active, of a
# busy account, and of another one.
TURN_S, BUSY_TURN_S, SHARED_TURN_S = 0.002, 0.000_25, 0.0005
REQUESTS_MAX = 20_000  # of one account, begun and not answered


class Account:
    """One account, as long as it has a connection."""

    __slots__ = ("_accounts", "_work_at", "_work_s", "connections", "name", "under_way", "used_at")

    def __init__(self, accounts: Accounts, name: Hashable) -> None:
        self._accounts = accounts
        self.name = name
        self.connections = 0
        #: Requests that have begun and are not answered.
        self.under_way = 0
        self.used_at = float("-inf")  # loop time
        self._work_s = 0.0  # left at `_work_at`
        self._work_at = 0.0  # loop time

    def received(self) -> None:
        """Record that a request has arrived: busier accounts wait from now on."""
        self.used_at = self._accounts.clock()

    def spend(self, requests: int, size: int, began_s: float) -> None:
        """Count requests, their bytes, and the time that it took to begin them, if it is known."""
        now = self._accounts.clock()
        self.used_at = now
        work_s = max(requests * REQUEST_S, WHOLE * began_s) + size * BYTE_S
        self._work_s, self._work_at = min(self._work_left(now) + work_s, WORK_MAX_S), now

    @property
    def must_wait(self) -> bool:
        """Whether it has used much time, while another account needs some."""
        now = self._accounts.clock()
        return self._work_left(now) > BUSY_S and self._accounts.has_another(self, now)

    @property
    def turn_s(self) -> float:
        """CPU time in which one of its connections begins requests before others follow."""
        now = self._accounts.clock()
        if not self._accounts.has_another(self, now):
            return TURN_S
        return BUSY_TURN_S if self._work_left(now) > BUSY_S else SHARED_TURN_S

    def _work_left(self, now: float) -> float:
        return max(self._work_s - SHARE * (now - self._work_at), 0.0)


class Accounts:
    """All accounts with connections."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._accounts: dict[Hashable, Account] = {}

    @property
    def connections(self) -> int:
        """The number of connections of all accounts."""
        return sum(each.connections for each in self._accounts.values())

    def open(self, name: Hashable) -> Account:
        """Return the account for a new connection; `close` ends the connection."""
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = Account(self, name)
        account.connections += 1
        return account

    def close(self, account: Account, unanswered: int) -> None:
        """Count a connection that has ended, with its requests that are not answered."""
        account.connections -= 1
        account.under_way -= unanswered
        if not account.connections:
            self._accounts.pop(account.name, None)

    def has_another(self, account: Account, now: float) -> bool:
        """Return whether another account was active recently."""
        if len(self._accounts) < 2:
            return False
        since = now - ACTIVE_S
        return any(each.used_at > since for each in self._accounts.values() if each is not account)
