"""Dial gate: bounds the connections that are made only because messages of peers ask for them.

Links that carry messages of applications dial at once.  A link that carries nothing but
acknowledgments waits here for its turn: few such links dial at a time, and one host causes at most
a quarter of them.  Each has a descriptor and waits for its time limit, so that without this bound a
hundred packets could use up all descriptors.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from qmd.queues.outgoing_queue import OutgoingQueue

HOST_PART = 4  # divisor of the turns that one host gets
SESSIONS_PART = 4  # divisor of all sessions, for those that only acknowledgments need
HOST_SESSIONS = 16  # that only acknowledgments for one host need
PAUSE_FIRST_S, PAUSE_MAX_S = 30.0, 3600.0  # after a failure; it doubles


class QueuesOfLink(Protocol):
    """A link to another queue manager, with its outgoing queues and the links that use it."""

    @property
    def queues(self) -> Iterable[OutgoingQueue]: ...

    @property
    def waiting_links(self) -> Iterable[QueuesOfLink]: ...


def asked_by(link: QueuesOfLink) -> str:
    """Return the host that asks for all that waits for a link; "": something else waits."""
    host = ""
    for each in (link, *link.waiting_links):
        for queue in each.queues:
            if queue.messages or queue.awaiting.messages:
                if queue.share is None:
                    return ""
                host = queue.share.host
    return host


def has_applications(link: QueuesOfLink | None) -> bool:
    """Return whether applications of this computer send messages over a link."""
    return link is not None and any(
        queue.share is None and not queue.for_others for queue in link.queues
    )


class DialGate:
    """Turns for links that carry only acknowledgments; `turns` are the links at once."""

    def __init__(self, *, turns: int, sessions_max: int) -> None:
        self._turns = turns
        self._host_turns = max(turns // HOST_PART, 1)
        self._sessions_max = max(sessions_max // SESSIONS_PART, 1)
        self._dialling: Counter[str] = Counter()
        self._sessions: dict[Hashable, str] = {}
        self._waiting: dict[Hashable, tuple[str, asyncio.Future[bool]]] = {}

    @property
    def dialling(self) -> int:
        """The number of links that have a turn."""
        return self._dialling.total()

    @property
    def waiting(self) -> int:
        """The number of links that wait for one."""
        return len(self._waiting)

    async def enter(self, link: Hashable, host: str) -> bool:
        """Wait for a turn of `link`, which `host` asks for; call `leave(host)` after it.

        Returns False without a turn if the link was let through, see `let_through`.
        """
        if self._may_begin(host) and not any(each == host for each, _ in self._waiting.values()):
            self._dialling[host] += 1
            return True
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[link] = host, turn
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.result():
                self.leave(host)
            raise
        finally:
            self._waiting.pop(link, None)

    def leave(self, host: str) -> None:
        """End a turn."""
        self._dialling[host] -= 1
        if not self._dialling[host]:
            del self._dialling[host]
        self._go_on()

    def let_through(self, link: Hashable) -> None:
        """Let a waiting link dial at once: it carries messages of applications now."""
        waiting = self._waiting.pop(link, None)
        if waiting is not None and not waiting[1].done():
            waiting[1].set_result(False)

    def connected(self, session: Hashable, host: str) -> None:
        """Count a connection that only acknowledgments need."""
        self._sessions[session] = host

    def closed(self, session: Hashable) -> None:
        """Count a session as closed, if it was counted."""
        if self._sessions.pop(session, None) is not None:
            self._go_on()

    def _may_begin(self, host: str) -> bool:
        return (
            self._dialling.total() < self._turns
            and self._dialling[host] < self._host_turns
            and sum(each == host for each in self._sessions.values()) < HOST_SESSIONS
            and len(self._sessions) + self._dialling.total() < self._sessions_max
        )

    def _go_on(self) -> None:
        """Give turns to the links that have waited longest and whose host may have one."""
        for link, (host, turn) in list(self._waiting.items()):
            if self._dialling.total() >= self._turns:
                return
            if not turn.done() and self._may_begin(host):
                del self._waiting[link]
                self._dialling[host] += 1
                turn.set_result(True)


def pause_s(failures: int) -> float:
    """Return the pause after so many successive failures of a link for acknowledgments."""
    return min(PAUSE_FIRST_S * 2.0 ** min(failures, 16), PAUSE_MAX_S)
