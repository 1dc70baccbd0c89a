"""The way to one remote queue manager: its sessions, and when to try again.

A link is named by an address that we dial (`host:port`), or by a queue
manager's GUID: then any session with it will do, and we dial only where its
address is known as well.
All outgoing queues of one address share its one session.

Where routes lead over other queue managers (qmd/peers/next_hop.py) a link does not dial itself: it
*rides* on the session of one of its *carriers*, the links to these, tried in turn:

    link to hostd ──rides on──► link to gate-a ──dials──► gate-a
                 └─ or, when that fails, on ──► link to gate-b

When a session ends or another way is taken, everything unacknowledged goes again in order:
sequences are end to end, and their receiver rejects what it has, whichever way that came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Protocol

from protocol.identifiers import guid_text
from qmd.core.retry import QueueState, Retry
from qmd.peers.connect_errors import explain

if TYPE_CHECKING:
    from qmd.peers.connection import PeerConnection
    from qmd.peers.dialer import Dialer
    from qmd.peers.transmitter import Transmitter
    from qmd.queues.outgoing_queue import OutgoingQueue
    from qmd.runtime.services import Services

AVOIDED_S = 600.0  # no way leads over a queue manager that has sent us its messages for there
ACKNOWLEDGERS_MAX = 64  # queue managers that have acknowledged what went over a link


class LinkHops(Protocol):
    """Which links carry the messages of a link: `Routing` of qmd/peers/next_hop.py."""

    def carriers(self, link: Link) -> tuple[Link, ...]:
        """Those over whose sessions they may go, the best first; itself, where it is dialled."""

    def refresh(self, link: Link) -> None:
        """Forget when the directory was asked last."""


class Link:
    """All that is on its way to one remote queue manager."""

    def __init__(
        self,
        services: Services,
        transmitter: Transmitter,
        dialer: Dialer,
        next_hops: LinkHops,
        changed: Callable[[], None],
        routing_loop_found: Callable[[Link], None],
        *,
        address: tuple[str, int] | None,
        guid: bytes | None,
    ) -> None:
        assert address is not None or guid is not None
        settings = services.settings.delivery
        self._services = services
        self._transmitter = transmitter
        self._dialer = dialer
        self._next_hops = next_hops
        self._changed = changed  # called when a session, or an attempt at one, ends
        # Called when each next hop has itself sent messages for this link.
        self._routing_loop_found = routing_loop_found
        self._dialling: asyncio.Task[None] | None = None
        self._retry_timer: asyncio.TimerHandle | None = None
        self.address = address
        self.alternatives: tuple[tuple[str, int], ...] = ()  # other addresses of the same host
        self.guid = guid
        self.remote_id = guid  # of whom its own sessions are with
        self.waiting_links: dict[Link, None] = {}  # who wait for a session that this one dials
        self.carrier: Link | None = None  # on whose session it rides; None: its own
        self.acknowledgers: dict[bytes, None] = {}  # who has acknowledged
        self._avoided: dict[bytes, float] = {}  # until when
        self._failed_at: tuple[str, int] | None = None  # the address that was tried last, in vain
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

    @property
    def via(self) -> str:
        """Over whom its messages go; empty: they go there themselves."""
        return "" if self.carrier is None or self.connection is None else self.carrier.name

    @property
    def is_reachable(self) -> bool:
        """Whether we can do something for a session; else the other side has to begin."""
        return self.address is not None or bool(self._next_hops.carriers(self))

    @property
    def has_carrier(self) -> bool:
        """Whether any way leads there, over a session of its own or one of others."""
        return bool(self._next_hops.carriers(self))

    def avoid(self, guid: bytes) -> bool:
        """What that queue manager sends for there is not sent back to it; False if nothing else
        is left."""
        if len(self._avoided) >= ACKNOWLEDGERS_MAX:
            self._avoided.clear()
        self._avoided[guid] = self._services.loop.time() + AVOIDED_S
        return any(not self._is_avoided(each) for each in self._next_hops.carriers(self))

    def may_acknowledge(self, guids: Collection[bytes]) -> bool:
        """Whether one of these queue managers can know what became of messages of this link.

        Who is at the other end is known from a session with it, or once it has acknowledged.  Not
        from those who carry messages there: they pass acknowledgments back, and need not, because
        it may tell us over a session of its own.
        """
        known = set(self.acknowledgers)
        if self.remote_id is not None:
            known.add(self.remote_id)
        if not known:
            return True
        known.update(
            each.remote_id for each in self._next_hops.carriers(self) if each.remote_id is not None
        )
        return any(guid in known for guid in guids)

    def add_acknowledger(self, guid: bytes) -> None:
        if len(self.acknowledgers) < ACKNOWLEDGERS_MAX:
            self.acknowledgers[guid] = None

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
        """See that a session comes about, over whichever way is open or can be tried first."""
        if self.connection is not None or self._services.lifecycle.stopping:
            return
        ways = [way for way in self._next_hops.carriers(self) if not self._is_avoided(way)]
        if ways == [self]:
            self._connect()
            return
        if not ways and self._avoided:
            self._routing_loop_found(self)
            return
        for way in ways:
            if way.connection is not None and way is not self:
                self._use_session_of(way)
                return
        now = self._services.loop.time()
        dialled = [way for way in ways if way.address is not None]
        if not dialled:
            return  # somebody has to come to us
        # The first one that need not wait; or whose wait is over first.
        chosen = next((way for way in dialled if way._is_due), None) or min(
            dialled, key=lambda way: max(way.retry.next_attempt, now)
        )
        if chosen is not self:
            chosen.waiting_links[self] = None
        chosen._connect()

    def _connect(self) -> None:
        """Dial, unless that is under way or it is too early."""
        if (
            self.address is None
            or self._dialling is not None
            or self._services.lifecycle.stopping
            or self.attempt is not None
            or self.connection is not None
        ):
            return
        loop = self._services.loop
        wait_s = self.retry.next_attempt - loop.time()
        if wait_s > 0:
            if self._retry_timer is None:
                self._retry_timer = loop.call_later(wait_s, self._retry_now)
            return
        self._dialling = loop.create_task(self._dial())

    def _use_session_of(self, carrier: Link) -> None:
        """Its session leads there as well."""
        assert carrier.connection is not None
        self.carrier = carrier
        self.opened(carrier.connection)

    def _is_avoided(self, way: Link) -> bool:
        if not self._avoided:
            return False
        until_s = self._avoided.get(way.remote_id or b"", 0.0)
        return way is not self and until_s > self._services.loop.time()

    @property
    def may_dial(self) -> bool:
        """Whether a session may come of `connect` now."""
        return any(
            way.address is not None and way._is_due for way in self._next_hops.carriers(self)
        )

    @property
    def _is_due(self) -> bool:
        """It dials, or may."""
        return (
            self._dialling is not None
            or self.attempt is not None
            or self.retry.next_attempt <= self._services.loop.time()
        )

    def kick(self) -> None:
        """Try at once, whatever the back-off says."""
        self._next_hops.refresh(self)
        for each in {self: None, **dict.fromkeys(self._next_hops.carriers(self))}:
            each.retry.kick(self._services.loop.time())
            if each._retry_timer is not None:
                each._retry_timer.cancel()
                each._retry_timer = None
        self.connect()

    def opened(self, connection: PeerConnection) -> None:
        """A session is there: whatever is in doubt goes again, from the first message on."""
        if self.attempt is connection:
            self.attempt = None
        self.connection = connection
        connection.links[self] = None
        assert connection.session is not None
        if self.carrier is None:
            self.remote_id = connection.session.remote_id
        self._failed_at = None
        self.retry.succeeded(self._services.loop.time(), f"{connection.host}:{connection.port}")
        for queue in self.queues:
            queue.new_pass("a new session began", transactional_only=False)
        self.wake()
        waiting_links, self.waiting_links = self.waiting_links, {}
        for waiting in waiting_links:
            if waiting.connection is None:
                # Not at once over this session: it may lead back to where its messages come from.
                waiting.connect()

    def closed(self, connection: PeerConnection, reason: str, *, clean: bool) -> None:
        """The session, or the attempt at one, is over; `clean`: because it was not needed."""
        if self.attempt is connection:
            self.attempt = None
        if self.connection is connection:
            self.connection = None
            for queue in self.queues:
                queue.new_pass("the session ended", transactional_only=False)
        where = f"{connection.host}:{connection.port}" if connection.host else self.name
        if self.carrier is not None:
            self.retry.noted(self._services.loop.time(), reason, where)
            self.carrier = None
        elif not clean:
            self._failed_at = connection.dialled_address
            self.retry.failed(self._services.loop.time(), reason, where)
        self._changed()
        self._go_on()

    def _go_on(self) -> None:
        """No session came of it: what waits looks for another way, or waits for another attempt."""
        waiting_links, self.waiting_links = self.waiting_links, {}
        for waiting in waiting_links:
            if waiting.connection is None and waiting.has_work:
                waiting.connect()
        if self.has_work:
            self.connect()

    def stop(self) -> None:
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = None
        if self._dialling is not None:
            self._dialling.cancel()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is sent over it, nor waits for a session of it."""
        return not (
            self.queues
            or self.waiting_links
            or self.connection is not None
            or self.attempt is not None
            or self._dialling is not None
        )

    @property
    def has_work(self) -> bool:
        # What waits to hear of its receipt: who can tell may not be able to reach us.
        return any(
            (queue.messages or queue.awaiting.messages) and not queue.paused
            for queue in self.queues
        ) or any(waiting.connection is None and waiting.has_work for waiting in self.waiting_links)

    def pump(self) -> None:
        """Give messages to the session, as many as its window permits."""
        self._transmitter.pump(self)

    def _retry_now(self) -> None:
        self._retry_timer = None
        waiting_links, self.waiting_links = self.waiting_links, {}
        for waiting in waiting_links:  # they may have another way by now
            if waiting.connection is None and waiting.has_work:
                waiting.connect()
        if self.has_work:
            self.connect()

    async def _dial(self) -> None:
        assert self.address is not None
        failure: OSError | UnicodeError | None = None
        try:
            for address in await self._dialer.resolve(
                (self.address, *self.alternatives), failed_at=self._failed_at
            ):
                failure = await self._dialer.connect(self, *address)
                if failure is None:
                    break
                self._failed_at = address
        except (OSError, UnicodeError) as error:
            failure = error
        finally:
            self._dialling = None
            if failure is not None:
                why = explain(failure, waited_s=self._services.settings.delivery.connect_timeout_s)
                self.retry.failed(self._services.loop.time(), why.text, self.name)
                self._services.log_limited(
                    "peer_unreachable",
                    self.name,
                    address=self.name,
                    error=why.text,
                    code=why.code,
                )
            self._changed()
        if self.attempt is None and self.connection is None:
            self._go_on()  # no handshake is under way: plan the next attempt
