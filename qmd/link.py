"""The way to one remote queue manager: its sessions, and when to try again.

A link is named by an address that we dial (`host:port`), or by a queue
manager's GUID: then any session with it will do, and we dial only where its
address is known as well.
All outgoing queues of one address share its one session.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from protocol.identifiers import guid_text
from qmd.core.retry import QueueState, Retry
from qmd.unreachable import explain

if TYPE_CHECKING:
    from qmd.connection import PeerConnection
    from qmd.manager import QueueManager
    from qmd.outgoing_queue import OutgoingQueue

PUMP_BYTES_MAX = 1024 * 1024  # handed to a session before they are written
PUMP_MESSAGES_MAX = 64  # of one queue before the next one of the same address has its turn


class Link:
    """All that is on its way to one remote queue manager."""

    def __init__(
        self, manager: QueueManager, *, address: tuple[str, int] | None, guid: bytes | None
    ) -> None:
        assert address is not None or guid is not None
        settings = manager.settings.delivery
        self._manager = manager
        self._dialling: asyncio.Task[None] | None = None
        self._retry_timer: asyncio.TimerHandle | None = None
        self.address = address
        self.guid = guid
        self.remote_id = guid
        self.queues: dict[OutgoingQueue, None] = {}  # whoever had its turn goes to the end
        self.connection: PeerConnection | None = None  # with an open session
        self.attempt: PeerConnection | None = None  # dialled, the handshake is under way
        self.retry = Retry(first_s=settings.retry_first_s, max_s=settings.retry_max_s)

    @property
    def hosts(self) -> tuple[str, ...]:
        """By which names and addresses the other end is known."""
        connection = self.connection
        known = () if self.address is None else (self.address[0],)
        return known if connection is None else (*known, connection.host)

    @property
    def name(self) -> str:
        if self.guid is not None:
            return guid_text(self.guid)
        assert self.address is not None
        host, port = self.address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def peer(self) -> str:
        """The queue manager at the other end, or where it is while that is not known."""
        return self.connection.peer if self.connection is not None else self.name

    def state(self, queue: OutgoingQueue) -> QueueState:
        if queue.paused:
            return QueueState.PAUSED
        if self.connection is not None:
            return QueueState.CONNECTED
        return QueueState.WAITING if queue.messages else QueueState.INACTIVE

    def wake(self) -> None:
        """Something is there to be sent."""
        if self.connection is not None:
            self.connection.flush_soon()
        elif self.has_work:
            self.connect()

    def connect(self) -> None:
        """Dial, unless that is under way or it is too early."""
        if (
            self.address is None
            or self._dialling is not None
            or self._manager.stopping
            or self.attempt is not None
            or self.connection is not None
        ):
            return
        loop = self._manager.loop
        wait_s = self.retry.next_attempt - loop.time()
        if wait_s > 0:
            if self._retry_timer is None:
                self._retry_timer = loop.call_later(wait_s, self._retry_now)
            return
        self._dialling = loop.create_task(self._dial())

    @property
    def may_dial(self) -> bool:
        """Whether a session may come of `connect` now."""
        return self.address is not None and (
            self._dialling is not None
            or self.attempt is not None
            or self.retry.next_attempt <= self._manager.loop.time()
        )

    def kick(self) -> None:
        """Try at once, whatever the back-off says."""
        self.retry.kick(self._manager.loop.time())
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = None
        self.connect()

    def opened(self, connection: PeerConnection) -> None:
        """A session is there: whatever is in doubt goes again, from the first message on."""
        if self.attempt is connection:
            self.attempt = None
        self.connection = connection
        connection.links[self] = None
        assert connection.session is not None
        self.remote_id = connection.session.remote_id
        self.retry.succeeded(self._manager.loop.time(), f"{connection.host}:{connection.port}")
        for queue in self.queues:
            queue.new_pass("a new session began", transactional_only=False)
        self.wake()

    def closed(self, connection: PeerConnection, reason: str, *, whole: bool) -> None:
        """The session, or the attempt at one, is over; `whole`: because it was not needed."""
        if self.attempt is connection:
            self.attempt = None
        if self.connection is connection:
            self.connection = None
            for queue in self.queues:
                queue.new_pass("the session ended", transactional_only=False)
        if not whole:
            where = f"{connection.host}:{connection.port}" if connection.host else self.name
            self.retry.failed(self._manager.loop.time(), reason, where)
        self._manager.asking.sessions_changed()
        if self.has_work:
            self.connect()

    def stop(self) -> None:
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = None
        if self._dialling is not None:
            self._dialling.cancel()

    @property
    def has_work(self) -> bool:
        # What waits to hear of its receipt: who can tell may not be able to reach us.
        return any(
            (queue.messages or queue.awaiting.messages) and not queue.paused
            for queue in self.queues
        )

    def pump(self) -> None:
        """Give the session as much as its window takes, each queue in its turn."""
        connection = self.connection
        if connection is None or connection.session is None:
            return
        manager = self._manager
        now, now_s = manager.loop.time(), manager.clock.now_s
        wall_s = int(manager.environment.time())
        manager.clock.compare(wall_s, now_s)
        budget = PUMP_BYTES_MAX
        waiting = deque(queue for queue in self.queues if queue.messages and not queue.paused)
        while waiting and (room := connection.room) > 0:
            if budget <= 0:
                connection.flush_soon()  # the rest when these are on their way
                break
            queue = waiting.popleft()
            sent, size = queue.transmit(
                connection.session,
                min(room, PUMP_MESSAGES_MAX),
                budget,
                now,
                now_s,
                wall_s,
                connection.packet_bytes_max,
            )
            manager.recorder.transmitted(queue)
            if queue.expired:
                expired, queue.expired = queue.expired, []
                manager.undelivered.expire(queue, expired)
                connection.flush_soon()  # there may be more behind them
            if queue.too_large:
                too_large, queue.too_large = queue.too_large, []
                manager.undelivered.end_too_large(queue, too_large, connection)
                connection.flush_soon()
            if queue.traced:
                traced, queue.traced = queue.traced, []
                manager.tracing.sent(traced, connection.host)
            if queue.window.wants_refill or queue.window.needs_refill:
                manager.outgoing.refill(queue)
            if sent:
                budget -= size
                manager.outgoing.transmitted_count += sent
                manager.outgoing.arm_resend(queue)
                waiting.append(queue)
                del self.queues[queue]
                self.queues[queue] = None

    def _retry_now(self) -> None:
        self._retry_timer = None
        if self.has_work:
            self.connect()

    async def _dial(self) -> None:
        from qmd.connection import PeerConnection

        assert self.address is not None
        host, port = self.address
        manager = self._manager
        try:
            async with asyncio.timeout(manager.settings.delivery.connect_timeout_s):
                await manager.loop.create_connection(
                    lambda: PeerConnection(manager, self), host, port
                )
        except (OSError, TimeoutError, UnicodeError) as error:
            waited_s = manager.settings.delivery.connect_timeout_s
            why = explain(error, waited_s=waited_s)
            self.retry.failed(manager.loop.time(), why.text, self.name)
            manager.log_limited(
                "peer_unreachable", self.name, address=self.name, error=why.text, code=why.code
            )
        finally:
            self._dialling = None
            manager.asking.sessions_changed()
        if self.attempt is None and self.connection is None and self.has_work:
            self.connect()  # no handshake is under way: plan the next attempt
