"""Look-ups of the names of other hosts, in a few lanes that do not delay each other.

The resolver of the system blocks a thread for as long as the servers of DNS are silent, which may
be a minute.  Look-ups therefore have threads of their own, in lanes:

    QUICK  names that applications send to
    SLOW   names of which the last look-up did not end in time: known to be slow, they do not delay
           others, until one succeeds
    PEERS  names that messages of other hosts have caused

Each name is looked up once at a time, and a failure is remembered for a short time.
"""

from __future__ import annotations

import asyncio
import socket
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qmd.runtime.services import Services

NEGATIVE_S = 5.0  # for which a failure answers the next look-ups of the name
NEGATIVE_PEERS_S = 60.0  # the same if a message of another host has caused the look-up
QUICK_S = 1.0  # after which a look-up does not hold up the quick lane any more
OVERDUE_MAX = 32  # threads that wait for silent servers, beyond those of the lanes
NAMES_MAX = 10_000  # with a known failure

AddressInfo = tuple[Any, ...]  # of socket.getaddrinfo


class Lane(Enum):
    """A set of threads; the value is their number."""

    QUICK = 16
    SLOW = 6
    PEERS = 2


class _Failure:
    """The failure of the last look-up of a name."""

    __slots__ = ("at", "error", "is_slow")

    def __init__(self, error: OSError, at: float, *, is_slow: bool) -> None:
        self.error = error
        self.at = at
        self.is_slow = is_slow


class NameLookups:
    """Looks up names, each once at a time."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._free = {lane: asyncio.Semaphore(lane.value) for lane in Lane}
        self._running: dict[str, tuple[Lane, asyncio.Task[list[AddressInfo]]]] = {}
        self._begun: set[str] = set()  # names with a thread
        self._overdue = 0  # threads that have left the quick lane and are still busy
        self._failures: dict[str, _Failure] = {}

    def status(self) -> dict[str, int]:
        """Return the number of look-ups under way by lane, those that wait included."""
        counts = {lane.name.lower(): 0 for lane in Lane}
        for lane, _ in self._running.values():
            counts[lane.name.lower()] += 1
        return counts

    async def look_up(self, host: str, port: int, *, for_peers: bool) -> list[AddressInfo]:
        """Return the addresses of a name as `socket.getaddrinfo` does, within the time limit.

        `for_peers`: only messages of other hosts need it. Raises OSError, TimeoutError,
        UnicodeError.
        """
        key = host.casefold()
        failure = self._failures.get(key)
        now = self._services.loop.time()
        if failure is not None:
            kept_s = NEGATIVE_PEERS_S if for_peers else NEGATIVE_S
            if now < failure.at + kept_s and not failure.is_slow:
                raise failure.error
        lane = Lane.PEERS if for_peers else Lane.QUICK
        if failure is not None and failure.is_slow and not for_peers:
            lane = Lane.SLOW
        running = self._running.get(key)
        if running is None or (running[0] is Lane.PEERS and not for_peers):
            task = self._services.loop.create_task(self._run(key, port, lane))
            self._running[key] = lane, task
            # A caller that gives up does not cancel the thread, and does not free its place.
            task.add_done_callback(lambda done: self._ended(key, done))
        else:
            task = running[1]
        try:
            async with asyncio.timeout(self._services.settings.delivery.connect_timeout_s):
                return await asyncio.shield(task)
        except TimeoutError:
            reason = "the look-up of its name took too long"
            self._failed(key, OSError(reason), is_slow=key in self._begun)
            raise

    async def _run(self, host: str, port: int, lane: Lane) -> list[AddressInfo]:
        free: asyncio.Semaphore | None = self._free[lane]
        assert free is not None
        await free.acquire()
        began = self._services.loop.create_task(self._services.environment.look_up(host, port))
        self._begun.add(host)
        try:
            if lane is Lane.QUICK:
                await asyncio.wait({began}, timeout=QUICK_S)
                if not began.done() and self._overdue < OVERDUE_MAX:
                    free.release()  # names that wait in this lane do not wait for a silent server
                    free = None
                    self._overdue += 1
            found = await began
        except OSError as error:
            self._failed(host, error, is_slow=False)
            raise
        finally:
            self._begun.discard(host)
            if free is not None:
                free.release()
            else:
                self._overdue -= 1
        self._failures.pop(host, None)
        return found

    def _failed(self, key: str, error: OSError, *, is_slow: bool) -> None:
        before = self._failures.pop(key, None)
        if len(self._failures) >= NAMES_MAX:
            self._failures.pop(next(iter(self._failures)))
        is_temporary = isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN
        is_slow = is_slow or (before is not None and before.is_slow and is_temporary)
        self._failures[key] = _Failure(error, self._services.loop.time(), is_slow=is_slow)

    def _ended(self, key: str, task: asyncio.Task[list[AddressInfo]]) -> None:
        running = self._running.get(key)
        if running is not None and running[1] is task:
            del self._running[key]
        if not task.cancelled():
            task.exception()  # the callers have it, or have given up
