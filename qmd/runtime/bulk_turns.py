"""Turns of large packets and requests: one at a time, with rests while others have little work.

A packet of 4 MB takes some milliseconds of the event loop, and a commit that contains it takes ten
times as long as others; fifty senders of such packets made others wait for seconds. While light
connections are active (qmd/runtime/fair_scheduler.py), one large packet is therefore processed and
committed, and the next one waits for a multiple of the time that this has taken. Otherwise large
packets are limited only by the bytes that are not durable yet. Owners (hosts, accounts) take turns,
and so do the connections of one owner.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qmd.runtime.fair_scheduler import Light, Member
    from qmd.runtime.services import Services

# Larger packets and requests are processed in these turns; so many bytes take as long as some small
# packets.
LARGE_BYTES = 64 * 1024
# The same for requests of applications: a batch of 128 messages of 1 KiB is ordinary work.
LARGE_REQUEST_BYTES = 256 * 1024
TURN_BYTES = 256 * 1024  # of one connection in a turn, unless its first packet is larger
PACKETS_MAX = 256
# Pause after a large packet while light connections are active, as a multiple of its time, and of
# the part of it that exceeds the time of some ordinary commits: of a hundred commits of a busy
# light connection, at most one should wait for a large packet so long that it notices. The second
# pause has a limit, so that large packets are never stopped: 4 MB each 0.8 s.
REST = 15
EXCESS_REST, EXCESS_REST_MAX_S = 100, 0.8
ORDINARY_COMMITS = 3  # waiting, the packet's own commit with a small one, and its turn
REST_MIN_S = 0.001
ACTIVE_S = 0.05  # as in the fair scheduler
# Each large packet explains so much small work of the same connection, such as acknowledgments and
# removals, within this time: it is no reason for large packets to rest. A connection that does more
# is light, whatever else it exchanges.
EXPLAINED, EXPLAINED_MAX, EXPLAINED_S = 4, 256, 2.0
SHARED_BYTES = 256 * 1024  # not durable yet; with more a large packet waits for the disk
BYTES_MAX = 8 * 1024 * 1024  # the same while no light connection is active


class LargeExchange:
    """The large packets, requests and answers of one connection."""

    __slots__ = ("_explained", "_until")

    def __init__(self) -> None:
        self._explained = 0  # small work that may follow
        self._until = float("-inf")  # loop time

    def note(self, now: float, count: int = 1) -> None:
        """Note large packets, in either direction."""
        self._explained = min(self._explained + EXPLAINED * count, EXPLAINED_MAX)
        self._until = now + EXPLAINED_S

    def explains(self, now: float) -> bool:
        """Return whether small work of the connection probably follows from large packets."""
        if not self._explained or now > self._until:
            self._explained = 0
            return False
        self._explained -= 1
        return True


class BulkTurns:
    """The connections with a large packet that waits for its turn."""

    def __init__(self, services: Services, light: Light) -> None:
        self._services = services
        self._light = light
        self._waiting: dict[Hashable, deque[Member]] = {}  # by owner, the next one first
        self._is_planned = False  # a callback or a timer will serve the next one
        self._rest_until = float("-inf")  # loop time

    def wait(self, member: Member, owner: Hashable) -> None:
        """Queue a member; its `take_turn` is called when it is its turn."""
        self._waiting.setdefault(owner, deque()).append(member)
        self._plan()

    @property
    def _is_shared(self) -> bool:
        return self._services.loop.time() - self._light.at < ACTIVE_S

    def _plan(self) -> None:
        if self._is_planned or not self._waiting:
            return
        self._is_planned = True
        loop, storage = self._services.loop, self._services.storage
        shared = self._is_shared
        rest_s = self._rest_until - loop.time()
        if storage.bytes_waiting >= (SHARED_BYTES if shared else BYTES_MAX):
            storage.batch.when_durable(self._again)
        elif shared and rest_s > 0:
            # The light connections may become idle before; then there is no need for a rest.
            loop.call_later(max(min(rest_s, ACTIVE_S), REST_MIN_S), self._again)
        else:
            loop.call_soon(self._serve)

    def _again(self) -> None:
        self._is_planned = False
        self._plan()

    def _serve(self) -> None:
        self._is_planned = False
        if not self._waiting:
            return
        owner, members = next(iter(self._waiting.items()))
        del self._waiting[owner]
        member = members.popleft()
        if members:
            self._waiting[owner] = members
        loop, storage = self._services.loop, self._services.storage
        shared, began = self._is_shared, loop.time()
        member.take_turn(began, PACKETS_MAX)
        if shared and storage.bytes_waiting:
            self._is_planned = True
            storage.batch.when_durable(lambda: self._committed(began))
        else:
            self._plan()

    def _committed(self, began: float) -> None:
        now = self._services.loop.time()
        took_s = now - began
        excess_s = took_s - ORDINARY_COMMITS * self._services.storage.ordinary_commit_s
        rest_s = max(REST * took_s, min(EXCESS_REST * excess_s, EXCESS_REST_MAX_S))
        self._rest_until = now + rest_s
        self._again()
