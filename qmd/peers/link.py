"""Link to one remote queue manager: its session, its outgoing queues, and its retries.

A link is identified by an address that this queue manager dials (`host:port`), or by the GUID of a
queue manager. A link with a GUID uses any session with that queue manager, and dials only if the
address is known too. All outgoing queues of a link share one session.

If the route leads over other queue managers (qmd/peers/next_hop.py), a link does not dial. It uses
the session of one of its *carriers*, which are the links to the next hops, tried in turn:

    link to hostd ──uses the session of──► link to gate-a ──dials──► gate-a
                 └─ or, if that fails, of ──► link to gate-b

When a session ends or the carrier changes, all unacknowledged messages are sent again in order.
Sequences are end to end, and their receiver rejects duplicates, over whichever hop they arrive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from protocol.identifiers import guid_text
from qmd.core.connection_status import ConnectionStatus, status_of_end
from qmd.core.retry import NEVER, QueueState, Retry
from qmd.core.url_links import is_url
from qmd.peers.away_hosts import is_away, probe_s
from qmd.peers.connect_errors import explain
from qmd.peers.dial_gate import asked_by, has_applications, pause_s

if TYPE_CHECKING:
    from qmd.peers.away_hosts import AwayHosts
    from qmd.peers.connection import PeerConnection
    from qmd.peers.dial_gate import DialGate
    from qmd.peers.dialer import Dialer
    from qmd.peers.transmitter import Transmitter
    from qmd.queues.outgoing_queue import OutgoingQueue
    from qmd.runtime.services import Services

AVOIDED_S = 600.0  # time for which a hop is not used after it has sent messages for the link here
QUEUE_MANAGERS_MAX = 64  # that a link avoids; and as many that have acknowledged its messages
LACK_PAUSE_S = 5.0  # the longest pause before a peer that lacks room is asked again
NO_ADDRESS = "its address is not known"

#: The states of queues with messages, by the status of the last attempt to connect.
_WAITING_FOR = {
    ConnectionStatus.DNS_FAILURE: QueueState.NEED_VALIDATION,
    ConnectionStatus.CERTIFICATE_VALIDATION_FAILURE: QueueState.LOCKED,
}


class LinkHops(Protocol):
    """The next hops of links: `NextHops` of qmd/peers/next_hop.py."""

    def carriers(self, link: Link) -> tuple[Link, ...]:
        """Return the links that may carry the messages of `link`, the best first.

        The link itself is among them if it can dial.
        """

    def refresh(self, link: Link) -> None:
        """Query the directory again at the next use."""

    def attempt_failed(self, link: Link) -> None:
        """Look for another session, if the link is to a queue manager."""


class Link:
    """Outgoing queues to one remote queue manager, and the session that they use."""

    def __init__(
        self,
        services: Services,
        transmitter: Transmitter,
        dialer: Dialer,
        next_hops: LinkHops,
        changed: Callable[[], None],
        routing_loop_found: Callable[[Link], None],
        dial_gate: DialGate,
        away_hosts: AwayHosts,
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
        self._gate = dial_gate
        self._away_hosts = away_hosts
        self._dialling: asyncio.Task[None] | None = None
        self._retry_timer: asyncio.TimerHandle | None = None
        self._retry_at = 0.0  # the time of that timer
        self.address = address
        self.is_configured = False  # an operator or the directory has given the address
        self.alternatives: tuple[tuple[str, int], ...] = ()  # other addresses of the same host
        self.guid = guid
        self.remote_id = guid  # GUID of the queue manager at the other end of its own sessions
        self.origin = ""  # the origin of the last one
        self.waiting_links: dict[Link, None] = {}  # links that wait for a session of this one
        self.carrier: Link | None = None  # the link with the session that it uses; None: its own
        self.acknowledgers: dict[
            bytes, None
        ] = {}  # queue managers that have acknowledged its messages
        self._avoided: dict[bytes, float] = {}  # GUID of a hop: loop time until which it is avoided
        self.resolved: frozenset[str] = frozenset()  # the addresses that were dialled last
        self._failed_at: tuple[str, int] | None = None  # the last address, if it failed
        self.queues: dict[OutgoingQueue, None] = {}  # the queue that transmitted last is the last
        self.connection: PeerConnection | None = None  # with an open session
        self.attempt: PeerConnection | None = None  # dialled, the handshake is under way
        self._ended_in_vain = False  # the last session: the peer took no message
        self.retry = Retry(first_s=settings.retry_first_s, max_s=settings.retry_max_s)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names and addresses of the other end."""
        connection = self.connection
        known = () if self.address is None else (self.address[0],)
        return known if connection is None else (*known, connection.host)

    @property
    def name(self) -> str:
        """The GUID of the queue manager, or the address as `host:port`."""
        if self.guid is not None:
            return guid_text(self.guid)
        assert self.address is not None
        host, port = self.address
        if is_url(self.address):
            return f"{host}:{port}"
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def peer(self) -> str:
        """The GUID of the other queue manager; without a session, the name of the link."""
        return self.connection.peer if self.connection is not None else self.name

    @property
    def via(self) -> str:
        """The name of the carrier that its messages use; empty: none."""
        return "" if self.carrier is None or self.connection is None else self.carrier.name

    @property
    def is_reachable(self) -> bool:
        """Whether this queue manager can dial; otherwise the other side has to connect."""
        return self.address is not None or bool(self._next_hops.carriers(self))

    @property
    def has_carrier(self) -> bool:
        """Whether the link has a next hop, which may be itself."""
        return bool(self._next_hops.carriers(self))

    def avoid(self, guid: bytes) -> bool:
        """Avoid a next hop that has sent messages for this link here; they must not go back to it.

        Return whether another next hop is left.
        """
        if len(self._avoided) >= QUEUE_MANAGERS_MAX:
            self._avoided.clear()
        self._avoided[guid] = self._services.loop.time() + AVOIDED_S
        return any(not self._is_avoided(each) for each in self._next_hops.carriers(self))

    def leaves_over(self, connection: PeerConnection) -> bool:
        """Return whether messages of this link leave over the other end of a session.

        A hop without a session in this run may be the other end of any: after a restart, a relay
        may connect, and bring acknowledgments, before this queue manager has connected to it.
        """
        if self.connection is connection:
            return True
        assert connection.session is not None
        there = (connection.session.remote_id, connection.origin)
        return any(
            (way.remote_id, way.origin) == there or (way is not self and way.remote_id is None)
            for way in self._next_hops.carriers(self)
        )

    def add_acknowledger(self, guid: bytes) -> None:
        """Record that this queue manager has acknowledged messages of the link."""
        if len(self.acknowledgers) < QUEUE_MANAGERS_MAX:
            self.acknowledgers[guid] = None

    def state(self, queue: OutgoingQueue) -> QueueState:
        """Return the state of one of its queues."""
        if queue.paused:
            return QueueState.PAUSED
        if self.connection is not None:
            stops = self._services.lifecycle.stopping
            return QueueState.DISCONNECTING if stops else QueueState.CONNECTED
        if not queue.messages:
            return QueueState.DISCONNECTED if self.retry.history else QueueState.INACTIVE
        if not self.is_reachable:
            return QueueState.NEED_VALIDATION
        last = self.retry.last
        return _WAITING_FOR.get(last.status, QueueState.WAITING) if last else QueueState.WAITING

    def wake(self) -> None:
        """Send pending messages, and connect if necessary."""
        if self.connection is not None:
            self.connection.flush_soon()
        elif self.has_work:
            self.connect()

    def connect(self) -> None:
        """Get a session: use an open session of a next hop, or else dial the first possible one."""
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
            # A next hop has to connect to this queue manager.
            status = ConnectionStatus.ROUTING_DATA_NOT_AVAILABLE
            self.retry.noted(now, NO_ADDRESS, self.name, status=status)
            return
        # The first one that need not wait, or else the one with the shortest wait.
        chosen = next((way for way in dialled if way._is_due), None) or min(
            dialled, key=lambda way: max(way.retry.next_attempt, now)
        )
        if chosen is not self:
            chosen.waiting_links[self] = None
        chosen._connect()

    def _connect(self) -> None:
        """Dial, unless an attempt is running; if it is too early, set a timer."""
        if self._dialling is not None:
            if not asked_by(self):
                self._gate.let_through(self)
            return
        if (
            self.address is None
            or self._services.lifecycle.stopping
            or self.attempt is not None
            or self.connection is not None
        ):
            return
        loop = self._services.loop
        at = self.retry.next_attempt if asked_by(self) else self.retry.usual_attempt
        if at > loop.time():
            if self._retry_timer is not None and at < self._retry_at:
                self._retry_timer.cancel()  # its pause was for acknowledgments only
                self._retry_timer = None
            if self._retry_timer is None:
                self._retry_at = at
                self._retry_timer = loop.call_at(at, self._retry_now)
            return
        self._dialling = loop.create_task(self._dial())

    def _use_session_of(self, carrier: Link) -> None:
        """Use the session of another link."""
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
        """Whether `connect` may lead to a session now."""
        return any(
            way.address is not None and way._is_due for way in self._next_hops.carriers(self)
        )

    @property
    def _is_due(self) -> bool:
        """Whether it dials, or may dial now."""
        return (
            self._dialling is not None
            or self.attempt is not None
            or self.retry.next_attempt <= self._services.loop.time()
        )

    def kick(self) -> None:
        """Connect at once, without waiting for the time of the next retry."""
        self._next_hops.refresh(self)
        for each in {self: None, **dict.fromkeys(self._next_hops.carriers(self))}:
            each.retry.kick(self._services.loop.time())
            if each._retry_timer is not None:
                each._retry_timer.cancel()
                each._retry_timer = None
        self.connect()

    def opened(self, connection: PeerConnection) -> None:
        """Use a session that has opened, and send all unacknowledged messages again."""
        if self.attempt is connection:
            self.attempt = None
        self.connection = connection
        connection.links[self] = None
        assert connection.session is not None
        if self.carrier is None:
            self.remote_id = connection.session.remote_id
            self.origin = connection.origin
        self._failed_at = None
        self.retry.succeeded(
            self._services.loop.time(),
            f"{connection.host}:{connection.port}",
            keeps_pause=self._ended_in_vain,
        )
        for queue in self.queues:
            queue.new_pass("a new session began", transactional_only=False)
        self.wake()
        waiting_links, self.waiting_links = self.waiting_links, {}
        for link in waiting_links:
            if link.connection is None:
                # `connect` chooses: this session may lead back to the source of the messages.
                link.connect()

    def closed(self, connection: PeerConnection, reason: str, *, clean: bool) -> None:
        """Handle the end of a session or of an attempt; `clean` as in Closed."""
        self._gate.closed(connection)
        if self.attempt is connection:
            self.attempt = None
        if self.connection is connection:
            self.connection = None
            was_useful = connection.session is not None and connection.session.outgoing.was_useful
            self._ended_in_vain = connection.offers.lack is not None and not was_useful
            if was_useful:
                self.retry.proved_useful()
            for queue in self.queues:
                queue.new_pass("the session ended", transactional_only=False)
        where = f"{connection.host}:{connection.port}" if connection.host else self.name
        if self.carrier is not None:
            was_open = connection.handshake_done
            status = status_of_end(reason, was_open=was_open)
            self.retry.noted(self._services.loop.time(), reason, where, status=status)
            self.carrier = None
        elif not clean:
            self._failed_at = connection.dialled_address
            self._failed(
                reason,
                where,
                status_of_end(reason, was_open=connection.handshake_done),
                pause_max_s=LACK_PAUSE_S if self._ended_in_vain else NEVER,
            )
        self._changed()
        self._go_on()

    def _failed(
        self,
        reason: str,
        where: str,
        status: ConnectionStatus,
        error: int | None = None,
        pause_max_s: float = NEVER,
    ) -> None:
        self.retry.failed(
            self._services.loop.time(),
            reason,
            where,
            pause_min_s=pause_s(self.retry.failures) if asked_by(self) else 0.0,
            pause_max_s=pause_max_s,
            status=status,
            error=error,
        )

    def _probed(self, failure: OSError | UnicodeError, took_s: float) -> float:
        """Return the longest pause after an attempt that failed."""
        if not is_away(failure):
            return NEVER
        now = self._services.loop.time()
        return self._away_hosts.pause_s(self.name, self.retry.failures, took_s, now)

    def _go_on(self) -> None:
        """Connect again, after a failure, if messages wait: over another hop or with a retry."""
        self._next_hops.attempt_failed(self)
        waiting_links, self.waiting_links = self.waiting_links, {}
        for link in waiting_links:
            if link.connection is None and link.has_work:
                link.connect()
        if self.has_work:
            self.connect()

    def stop(self) -> None:
        """Stop dialling."""
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = None
        if self._dialling is not None:
            self._dialling.cancel()

    @property
    def is_idle(self) -> bool:
        """Whether nothing uses the link or waits for a session of it."""
        return not (
            self.queues
            or self.waiting_links
            or self.connection is not None
            or self.attempt is not None
            or self._dialling is not None
        )

    @property
    def has_work(self) -> bool:
        """Whether messages wait for a session."""
        # Messages that await a final ack count: their destination may be unable to connect to
        # this queue manager.
        return any(
            (queue.messages or queue.awaiting.messages) and not queue.paused
            for queue in self.queues
        ) or any(link.connection is None and link.has_work for link in self.waiting_links)

    def pump(self) -> None:
        """Give messages to the session, as many as its window permits."""
        self._transmitter.pump(self)

    def _retry_now(self) -> None:
        self._retry_timer = None
        waiting_links, self.waiting_links = self.waiting_links, {}
        for link in waiting_links:  # they may have another next hop now
            if link.connection is None and link.has_work:
                link.connect()
        if self.has_work:
            self.connect()

    async def _dial(self) -> None:
        """Try the addresses in turn until a connection is made."""
        assert self.address is not None
        failure: OSError | UnicodeError | None = None
        limit_s = self._services.settings.delivery.connect_timeout_s
        pause_max_s, waited_s = NEVER, probe_s(limit_s, self.retry.failures)
        host = asked_by(self)
        try:
            if host and not await self._gate.enter(self, host):
                host = ""
        except asyncio.CancelledError:
            self._dialling = None
            raise
        try:
            addresses = await self._dialer.resolve(
                (self.address, *self.alternatives),
                failed_at=self._failed_at,
                for_peers=not has_applications(self),
            )
            self.resolved = frozenset(host for host, _ in addresses)
            began_at = self._services.loop.time()
            self.retry.began(began_at, self.name)
            for address in addresses:
                failure = await self._dialer.connect(self, *address, limit_s=waited_s)
                if failure is None:
                    break
                self._failed_at = address
            if failure is not None:
                pause_max_s = self._probed(failure, self._services.loop.time() - began_at)
        except (OSError, UnicodeError) as error:
            failure = error
        finally:
            self._dialling = None
            if host:
                if self.attempt is not None:
                    self._gate.connected(self.attempt, host)
                self._gate.leave(host)
            if failure is not None:
                why = explain(failure, waited_s=waited_s)
                self._failed(why.text, self.name, why.status, why.error, pause_max_s)
                self._services.log_limited(
                    "peer_unreachable",
                    self.name,
                    address=self.name,
                    error=why.text,
                    code=why.code,
                )
            self._changed()
        if self.attempt is None and self.connection is None:
            self._go_on()  # no handshake is running: plan the next attempt
