"""Locks: messages that a client has taken over HTTP, until it settles them or their time is over.

A lock belongs to the session of its client. It ends with the control connection, and the message
returns to its place: a door that is killed gives all of its messages back.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import TYPE_CHECKING

from qmd.client.errors import ClientError
from qmd.doors.http.problems import Problem

if TYPE_CHECKING:
    from qmd.client.receiver import Taken

LOCKS_MAX = 10_000  # of one client


class Lock:
    """One locked message."""

    def __init__(self, taken: Taken, timer: asyncio.TimerHandle) -> None:
        self.taken = taken
        self.timer = timer


class Locks:
    """The locked messages of one client, by the ids of their locks."""

    def __init__(self) -> None:
        self._locks: dict[str, Lock] = {}
        self._giving_back: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._locks)

    def check_room(self, count: int) -> None:
        """Raise Problem if the client would have too many locks."""
        if len(self._locks) + count > LOCKS_MAX:
            raise Problem(429, "http_too_many_locks")

    def add(self, taken: Taken, lock_s: float) -> str:
        """Lock a taken message for some seconds; return the id of the lock."""
        lock_id = secrets.token_urlsafe(18)
        timer = asyncio.get_running_loop().call_later(lock_s, self._expired, lock_id)
        self._locks[lock_id] = Lock(taken, timer)
        return lock_id

    def renew(self, lock_id: str, lock_s: float) -> None:
        """Let a lock last for some seconds from now.  Raises Problem."""
        lock = self._locks.get(lock_id)
        if lock is None or lock.taken.is_lost:
            self._locks.pop(lock_id, None)
            raise Problem(410, "http_no_such_lock")
        lock.timer.cancel()
        loop = asyncio.get_running_loop()
        lock.timer = loop.call_later(lock_s, self._expired, lock_id)

    def end(self, lock_id: str) -> Taken:
        """End a lock, to settle its message; return the taken message.  Raises Problem."""
        lock = self._locks.pop(lock_id, None)
        if lock is None:
            raise Problem(410, "http_no_such_lock")
        lock.timer.cancel()
        return lock.taken

    def _expired(self, lock_id: str) -> None:
        lock = self._locks.pop(lock_id, None)
        if lock is not None:
            task = asyncio.get_running_loop().create_task(self._give_back(lock.taken))
            self._giving_back.add(task)
            task.add_done_callback(self._giving_back.discard)

    async def _give_back(self, taken: Taken) -> None:
        with contextlib.suppress(ClientError):  # a connection that ends gives it back as well
            await taken.give_back()
