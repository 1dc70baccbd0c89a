"""Turns: few pages are made at a time, of each user and of all.

A page may hold some messages of megabytes, and may take a thread; hundreds of connections could
ask for such pages at once.  Requests that wait for their turn hold nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

PAGES_OF_USER, PAGES = 4, 16  # at a time
WAIT_S = 60.0


class NoTurn(Exception):
    """A page could not be made in time, because too many others are being made."""

    def __init__(self) -> None:
        super().__init__(
            "Too many pages are asked for at once, or a queue manager answers slowly. Try again."
        )


@dataclass(slots=True)
class _User:
    """The turns of one user."""

    gate: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(PAGES_OF_USER))
    requests: int = 0


class Turns:
    """The turns of all users, in the order of their requests."""

    def __init__(self) -> None:
        self._gate = asyncio.Semaphore(PAGES)
        self._users: dict[str, _User] = {}

    @contextlib.asynccontextmanager
    async def of(self, name: str) -> AsyncIterator[None]:
        """Wait for a turn of a user, and hold it.  Raises NoTurn."""
        user = self._users.setdefault(name, _User())
        user.requests += 1
        try:
            async with contextlib.AsyncExitStack() as held:
                try:
                    async with asyncio.timeout(WAIT_S):
                        # A user that waits for its own turns takes none of the others.
                        await held.enter_async_context(user.gate)
                        await held.enter_async_context(self._gate)
                except TimeoutError as error:
                    raise NoTurn from error
                yield
        finally:
            user.requests -= 1
            if not user.requests:
                del self._users[name]
