"""Places: the clients that may be connected at once, and which one leaves for another.

Clients belong to accounts (a local user, a token), and inside of an account to processes. When all
places are taken, a newcomer gets the place of

    a client that has never sent a request ──► of the account with the most such clients
    another one                            ──► of the account with the most clients, if it has more
                                               than the newcomer's would have; an idle one first

Some places are for operators only (root, the user of the daemon, users and tokens that administer),
as PostgreSQL has `superuser_reserved_connections`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from qmd.runtime.shares import Owner, Shares

# A client sends its first request at once. After this time it has no claim to a place that another
# client needs.
SILENT_S = 1.0


class Client(Protocol):
    """A connection of a client."""

    connected_at: float  # loop time

    @property
    def is_idle(self) -> bool:
        """Whether it waits for no answer."""
        ...

    def abort(self) -> None:
        """End the connection at once, without a further answer."""


C = TypeVar("C", bound=Client)


class Places(Generic[C]):
    """The clients of one server."""

    def __init__(self, limit: int, reserved: int, clock: Callable[[], float]) -> None:
        """Create the places: `limit` for all clients, and `reserved` more for operators."""
        self._limit = limit
        self._reserved = reserved
        self._clock = clock
        self._silent: Shares[C] = Shares()
        self._active: Shares[C] = Shares()

    def __len__(self) -> int:
        return len(self._silent) + len(self._active)

    def admit(self, client: C, owner: Owner, *, is_operator: bool) -> bool:
        """Give a client a place; return False if there is none. Another client may be ended."""
        if len(self) >= self._limit + (self._reserved if is_operator else 0):
            victim = self._victim(owner, is_operator=is_operator)
            if victim is None:
                return False
            self.leave(victim)
            victim.abort()
        self._silent.add(client, owner)
        return True

    def requested(self, client: C) -> None:
        """Record that a client has sent a request."""
        owner = self._silent.owner(client)
        if owner is not None:
            self._silent.remove(client)
            self._active.add(client, owner)

    def leave(self, client: C) -> None:
        """Free the place of a client that has ended."""
        self._silent.remove(client)
        self._active.remove(client)

    def _victim(self, owner: Owner, *, is_operator: bool) -> C | None:
        silent = self._silent.candidate()
        if silent is not None and (
            is_operator
            or self._clock() - silent.connected_at > SILENT_S
            or self._silent.is_smaller(owner, silent)
        ):
            return silent
        active = self._active.candidate()
        if active is None or not self._active.is_smaller(owner, active):
            return None
        return next((each for each in self._active.fellows(active) if each.is_idle), active)
