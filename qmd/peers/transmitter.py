"""Transmitter: gives the messages of a link's outgoing queues to its session."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from qmd.queues.transmission import Moment, TransmitLimits

if TYPE_CHECKING:
    from collections.abc import Callable

    from qmd.core.session import Session
    from qmd.events.recorder import Recorder
    from qmd.outcomes.reports import Reports
    from qmd.outcomes.undeliverable import Undeliverable
    from qmd.peers.connection import PeerConnection
    from qmd.peers.link import Link
    from qmd.queues.outgoing_queue import OutgoingQueue
    from qmd.queues.outgoing_queues import OutgoingQueues
    from qmd.queues.transmission import Transmission
    from qmd.runtime.services import Services

PUMP_BYTES_MAX = 1024 * 1024  # given to a session before they are written
PUMP_MESSAGES_MAX = 64  # of one queue, before the next queue of the link gets its turn


class Transmitter:
    """Transmits the messages of all links; `may_transmit` is `Redirection.may_transmit`."""

    def __init__(
        self,
        services: Services,
        outgoing: OutgoingQueues,
        recorder: Recorder,
        reports: Reports,
        undeliverable: Undeliverable,
        may_transmit: Callable[[OutgoingQueue, Link], bool],
    ) -> None:
        self._services = services
        self._outgoing = outgoing
        self._recorder = recorder
        self._reports = reports
        self._undeliverable = undeliverable
        self._may_transmit = may_transmit

    def pump(self, link: Link) -> None:
        """Fill the window of the link's session, with each of its queues in turn."""
        connection = link.connection
        if connection is None or connection.session is None:
            return
        now, now_s = self._services.loop.time(), self._services.clock.now_s
        if link.queues and self._must_wait(connection, connection.session, now):
            return
        wall_s = int(self._services.environment.time())
        self._services.clock.compare(wall_s, now_s)
        moment = Moment(now, now_s, wall_s)
        budget = PUMP_BYTES_MAX
        remote, may_transmit = link.remote_id, self._may_transmit
        waiting = deque(
            queue
            for queue in link.queues
            if queue.messages
            and not queue.paused
            and (queue.known_peer == remote or may_transmit(queue, link))
        )
        offers, window = connection.offers, connection.session.outgoing
        while waiting and (room := offers.limit(connection.room, window)) > 0:
            if budget <= 0:
                connection.flush_soon()  # the rest follows when these are written
                break
            queue = waiting.popleft()
            limits = TransmitLimits(
                min(room, PUMP_MESSAGES_MAX), budget, connection.packet_bytes_max
            )
            done = queue.transmit(connection.session, limits, moment)
            if done.expired:
                self._undeliverable.expire(queue, done.expired)
                connection.flush_soon()  # there may be more behind them
            if done.too_large:
                self._undeliverable.end_too_large(queue, done.too_large, connection)
                connection.flush_soon()
            if done.traced:
                self._reports.sent(done.traced, connection.host)
            if queue.window.wants_refill or queue.window.needs_refill:
                self._outgoing.refill(queue)
            if done.messages:
                budget -= done.bytes
                self._outgoing.transmitted_count += done.messages
                queue.handed_count += done.messages
                offers.count(done.messages)
                connection.session.outgoing.begin_probe(now)
                connection.when_written.append(partial(self._written, queue, done))
                if done.messages == limits.messages or done.bytes >= limits.bytes:
                    waiting.append(queue)  # it may have more
                # The queue goes to the end, behind the queues that wait for their turn.
                del link.queues[queue]
                link.queues[queue] = None

    def _must_wait(self, connection: PeerConnection, session: Session, now: float) -> bool:
        """Return whether the messages of a peer that lacks room go first; pump again after them."""
        begin_at = connection.offers.begin_at(session)
        if begin_at > now:
            self._services.timers.at(begin_at, connection, _flush)
            return True
        if begin_at:
            session.incoming.acknowledge_with_next(now)  # the offer may end the session
        return False

    def _written(self, queue: OutgoingQueue, done: Transmission) -> None:
        """Record messages that were written, and wait for their acknowledgment."""
        self._recorder.transmitted(queue, done)
        self._outgoing.arm_resend(queue)


def _flush(connection: PeerConnection) -> None:
    if connection.is_open:
        connection.flush_soon()
