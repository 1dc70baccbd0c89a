"""Heartbeats: small messages through each destination, with the time until their answer.

A heartbeat is an express message to an internal queue of the other queue manager, over the session
that the messages of the destination use; if there is none, one is opened.  The other side answers
after a commit.  The time between is that of a message on its way: queues, network, the disk there,
and back.  Nothing is stored, on either side.  Only queue managers that are qmd answer.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from protocol import DirectQueueName, UserMessage
from protocol.errors import ProtocolError
from protocol.identifiers import correlation_bytes
from protocol.names.direct_name import parse_wire_name, queue_key
from protocol.names.format_name import parse_destination
from qmd.control_protocol.messages import EXPRESS, NewMessage
from qmd.core.internal_names import HEARTBEAT_QUEUE
from qmd.message.addresses import NO_ADDRESS, queue_address
from qmd.message.build import compose

if TYPE_CHECKING:
    from qmd.peers.link import Link
    from qmd.peers.sessions import Peers
    from qmd.queues.peer_session import PeerSession
    from qmd.queues.way import Way
    from qmd.runtime.services import Services

# On the wire only; long, because the clocks of two computers may differ.
LIFE_S = 300
ANSWERS_MAX = 32  # being prepared; further heartbeats get none
NO_CORRELATION = bytes(20)


@dataclass(slots=True)
class Pulse:
    """The heartbeats over one link since the start."""

    sent: int = 0
    arrived: int = 0
    lost: int = 0
    missed: int = 0  # lost since the last one that arrived
    latency_s: float | None = None  # of the last one that arrived
    request: bytes = b""  # of the one under way
    sent_at: float = 0.0  # loop time
    connection: PeerSession | None = None  # that it went over


class Heartbeats:
    """The heartbeats of this queue manager, and its answers to those of others."""

    def __init__(self, services: Services, peers: Peers) -> None:
        self._services = services
        self._peers = peers
        self._pulses: dict[Way, Pulse] = {}
        self._open: dict[bytes, Pulse] = {}
        self._answers = 0  # being prepared

    async def run(self) -> None:
        """Send heartbeats in the configured interval, until it is cancelled."""
        interval_s = self._services.settings.delivery.heartbeat_s
        while interval_s:
            await asyncio.sleep(interval_s)
            self.beat()

    def beat(self) -> None:
        """Send a heartbeat over each link that has an outgoing queue.

        One that has no answer yet is lost.
        """
        links = [link for link in self._peers.links if link.queues]
        for gone in self._pulses.keys() - set(links):
            self._open.pop(self._pulses.pop(gone).request, None)
        for link in links:
            self._beat_over(link)

    def pulse(self, link: Way) -> Pulse | None:
        """Return the heartbeats over a link; None: there were none."""
        return self._pulses.get(link)

    def status(self, link: Way) -> dict[str, Any] | None:
        """Return the same for people and programs."""
        pulse = self._pulses.get(link)
        if pulse is None:
            return None
        return {
            "sent": pulse.sent,
            "arrived": pulse.arrived,
            "lost": pulse.lost,
            "missed": pulse.missed,
            "latency_s": pulse.latency_s,
        }

    def is_meant(self, message: UserMessage) -> bool:
        """Return whether a message is addressed to `HEARTBEAT_QUEUE`."""
        destination = message.user.destination_queue
        if message.transaction is not None or not isinstance(destination, DirectQueueName):
            return False
        try:
            return queue_key(parse_wire_name(destination.name)) == HEARTBEAT_QUEUE
        except ProtocolError:
            return False

    def received(self, connection: PeerSession, message: UserMessage) -> None:
        """Process a heartbeat of another queue manager, or its answer to one of ours."""
        answered = bytes(message.properties.correlation_id)
        if answered != NO_CORRELATION:
            pulse = self._open.get(answered)
            if pulse is not None and pulse.connection is connection:
                self._arrived(pulse)
            return
        if self._answers >= ANSWERS_MAX:
            return
        request = correlation_bytes(message.user.source_queue_manager, message.user.message_number)
        self._answers += 1
        barrier = self._services.storage.batch.barrier()
        barrier.add_done_callback(lambda done: self._answer(done, connection, request))

    def _beat_over(self, link: Link) -> None:
        connection = link.connection
        if connection is not None and not connection.is_qmd:
            return  # its queue manager has no such queue
        pulse = self._pulses.setdefault(link, Pulse())
        if pulse.request or (connection is None and pulse.sent):
            pulse.lost += 1
            pulse.missed += 1
            self._open.pop(pulse.request, None)
            pulse.request = b""
        if connection is None:
            pulse.sent += 1
            if link.may_dial:
                link.connect()
            return
        number = self._services.ids.next_message_number()
        pulse.sent += 1
        pulse.request = correlation_bytes(self._services.id, number)
        pulse.sent_at, pulse.connection = self._services.loop.time(), connection
        self._open[pulse.request] = pulse
        self._send(connection, number, b"")

    def _arrived(self, pulse: Pulse) -> None:
        del self._open[pulse.request]
        pulse.request, pulse.connection = b"", None
        pulse.arrived += 1
        pulse.missed = 0
        pulse.latency_s = self._services.loop.time() - pulse.sent_at

    def _answer(self, done: asyncio.Future[None], connection: PeerSession, request: bytes) -> None:
        """Answer a heartbeat after the commit, unless that failed or the session has ended."""
        self._answers -= 1
        if done.cancelled() or done.exception() is not None or connection.session is None:
            return
        self._send(connection, self._services.ids.next_message_number(), request)

    def _send(self, connection: PeerSession, number: int, correlation_id: bytes) -> None:
        """Send an express message over this session only, without storing it."""
        name = parse_destination(f"DIRECT=TCP:{connection.host}\\{HEARTBEAT_QUEUE}", local_host=".")
        new = NewMessage(
            "",
            b"",
            label="qmd heartbeat",
            delivery=EXPRESS,
            time_to_reach_queue_s=LIFE_S,
            time_to_be_received_s=LIFE_S,
            dead_letter=False,
            correlation_id=correlation_id,
        )
        packet = compose(
            new,
            source=self._services.id,
            destination=queue_address(name),
            admin=NO_ADDRESS,
            response=NO_ADDRESS,
            message_number=number,
            sent_time_s=int(self._services.environment.time()),
            delivery=EXPRESS,
            position=None,
        )
        connection.owe_express(packet)
