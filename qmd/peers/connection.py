"""Peer connection: one TCP connection to another queue manager, with its session.

`qmd.core.session` makes the decisions. This module moves bytes between the session and the socket,
runs the session's timer, and passes its events on. Output is collected and written once per turn of
the event loop, so that acknowledgments and messages leave together.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Protocol, cast

from protocol import PACKET_BYTES_MAX
from protocol.identifiers import guid_text
from qmd.core.connection_status import CLOSED_BY_PEER
from qmd.core.session import (
    Acknowledged,
    Closed,
    Event,
    MessageReceived,
    Opened,
    RunReceived,
    Session,
)
from qmd.core.url_links import preface
from qmd.peers.ahead import Ahead
from qmd.peers.offers import Offers
from qmd.peers.origins import Certified
from qmd.peers.packet_reader import PacketReader
from qmd.peers.reputation import Reputation
from qmd.runtime.bulk_turns import LARGE_BYTES
from qmd.runtime.timers import Alarm
from qmd.runtime.writes import in_few_buffers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from qmd.core.peer_instance import Instance
    from qmd.core.principals import Principal
    from qmd.core.retry import Retry
    from qmd.core.session_events import Received
    from qmd.peers.admission import Admission
    from qmd.peers.ahead import LargeSink
    from qmd.peers.announced import Announced, AnnouncedSessions
    from qmd.peers.configured_hosts import ConfiguredHosts
    from qmd.peers.dial_gate import QueuesOfLink
    from qmd.queues.incoming_stream import IncomingStream
    from qmd.queues.outgoing_queue import OutgoingQueue
    from qmd.runtime.fair_scheduler import FairScheduler
    from qmd.runtime.services import Services
    from qmd.tls.channel import Proof

# Bytes in the transport's write buffer. Above the first the session gets no more messages, until
# there are fewer than the second.
WRITE_BYTES_HIGH = 1024 * 1024
WRITE_BYTES_LOW = 256 * 1024
FINAL_ACKS_MAX = 1024  # final acks that wait for room in the window
EXPRESS_MAX = 64  # the same for express messages that are in no outgoing queue
UNREAD_BYTES_MAX = 32 * 1024 * 1024  # more than one full pump of the largest messages


class MessageSink(Protocol):
    """The receiver of user messages: `Incoming` of qmd/transfer."""

    def receive(self, connection: PeerConnection, messages: list[Received], now: float) -> None: ...

    @property
    def large(self) -> LargeSink: ...


class SessionUser(Protocol):
    """A link with outgoing queues that use the session."""

    address: tuple[str, int] | None
    guid: bytes | None
    is_configured: bool
    remote_id: bytes | None
    attempt: PeerConnection | None
    retry: Retry

    @property
    def carrier(self) -> SessionUser | None: ...
    @property
    def waiting_links(self) -> Iterable[QueuesOfLink]: ...
    @property
    def hosts(self) -> tuple[str, ...]: ...
    @property
    def queues(self) -> dict[OutgoingQueue, None]: ...

    def opened(self, connection: PeerConnection) -> None: ...
    def closed(self, connection: PeerConnection, reason: str, *, clean: bool) -> None: ...
    def pump(self) -> None: ...


class Sessions(Protocol):
    """The table of all sessions: `Peers` of qmd/peers/sessions.py."""

    admission: Admission
    hosts: ConfiguredHosts
    announced: AnnouncedSessions

    def admit(self, connection: PeerConnection) -> Session | None: ...
    def opened(self, connection: PeerConnection) -> None: ...
    def closed(self, connection: PeerConnection, reason: str, *, clean: bool) -> None: ...
    def acknowledged(self, connection: PeerConnection, tokens: list[object]) -> None: ...
    def pump(self, connection: PeerConnection) -> None: ...


class PeerConnection(asyncio.BufferedProtocol):
    """A session over a socket.

    `link` is the link that has dialled `dialled_address`; it is None if the peer has connected.
    """

    def __init__(
        self,
        services: Services,
        sink: MessageSink,
        send_owed: Callable[[PeerConnection], None],
        sessions: Sessions,
        turns: FairScheduler,
        link: SessionUser | None,
        dialled_address: tuple[str, int] | None = None,
    ) -> None:
        self._services = services
        self._sink = sink
        self._send_owed = send_owed
        self._sessions = sessions
        self._loop = asyncio.get_running_loop()
        self._reputation = Reputation(is_trusted=link is not None)
        self._reader = PacketReader(
            services, self, turns, self._reputation, sessions.admission.proved_useful
        )
        self._buffer = self._reader.buffer
        self._alarm = Alarm(self._loop)
        self._flush_due = False
        #: Called when what the session sends now is with the socket: the peer does not wait for
        #: what is noted about its messages.
        self.when_written: list[Callable[[], None]] = []
        self._writing_paused = False
        self._transport: asyncio.Transport | None = None
        self._closed = False
        self.is_open = True
        self.session: Session | None = None
        self.link = link
        self.dialled_address = dialled_address
        self.links: dict[SessionUser, None] = {}  # links with queues that use this session
        self.host = ""
        self.origin = ""  # of the other end: origins.py
        self.fact = ""  # the strongest one that is known about the other end
        self.has_proof = False  # whether that is a key or an authority
        self.certified: Certified | None = None  # its certificate, if the connection uses TLS
        self.peer_key: bytes | None = None  # that it has proven
        self.instance: Instance | None = None  # its run, if it is qmd
        #: Returns the origin for which a message of a source counts that this session brings.
        self.origin_for: Callable[[bytes], str] = lambda source: ""
        #: Called with this session when a message of it was accepted for the first time.
        self.when_accepted: Callable[[PeerConnection], None] = lambda session: None
        self.is_recorded = False  # its origin is stored
        self.ahead = Ahead(sink.large)
        self.offers = Offers(None)
        self.is_upgraded = False  # it has proven a key for an origin that was an address
        self.goes_to_tls = False  # it ends, because the peer offers TLS
        self.proof: Proof | None = None  # of a session over TLS: the certificate of the other end
        self.principals: frozenset[Principal] = frozenset()  # that a door has proven
        self.is_encrypted = False  # between the host and the door that has announced it
        self.port = 0
        self.is_qmd = False  # according to its handshake
        self.own_host = ""  # the address of this computer that the peer uses
        self.own_port = 0
        self.peer = ""  # the GUID of the peer, or its address until the GUID is known
        self.packet_bytes_max = PACKET_BYTES_MAX  # longest packet to receive and to send
        self.handshake_done = False
        self.opened_at = self._loop.time()
        self.bytes_sent = 0
        self.streams: dict[IncomingStream, None] = {}  # those that have or had this return path
        self.owed_order_acks: dict[IncomingStream, None] = {}
        # Refusals of transactional messages. If one is lost, or dropped because there are too many,
        # it is made again when the peer sends its message again.
        self.owed_final_acks: deque[bytes] = deque(maxlen=FINAL_ACKS_MAX)
        self.owed_express: deque[bytes] = deque(maxlen=EXPRESS_MAX)

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the session, or abort the connection if it may not have one."""
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if peer is None:  # the peer has disconnected already
            self._closed, self.is_open = True, False
            self._reader.close()
            self._transport.abort()
            if self.link is not None:
                self.link.closed(self, CLOSED_BY_PEER, clean=False)
            return
        # A dual-stack socket shows IPv4 addresses as IPv4-mapped IPv6 addresses.
        self.host, self.port = str(peer[0]).removeprefix("::ffff:"), int(peer[1])
        if self.link is None:
            place = self.host, self.port
            self._speak_for(self._sessions.announced.take(place, self, self.opened_at))
        own = transport.get_extra_info("sockname")
        self.own_host = str(own[0]).removeprefix("::ffff:") if own else ""
        self.own_port = int(own[1]) if own else 0
        self.peer = self.origin = self.fact = self.host
        self.proof = transport.get_extra_info("tls")
        if self.proof is not None:
            certificate = self.proof.certificate
            self.certified = Certified(
                certificate.identity or (b"" if self.proof.authority else certificate.key),
                certificate.guid,
                self.proof.authority,
            )
            self.origin = self.fact = ""  # origins.py
        dialled = () if self.link is None else self.link.hosts
        self.packet_bytes_max = self._sessions.hosts.packet_bytes_max(self.host, *dialled)
        self._reader.start(self._transport, self.host)
        self._transport.set_write_buffer_limits(high=WRITE_BYTES_HIGH, low=WRITE_BYTES_LOW)
        self.session = self._sessions.admit(self)
        if self.session is None:
            self._closed, self.is_open = True, False
            self._reader.close()
            self._transport.abort()
            return
        self.session.takes_runs = True
        if self.link is not None:
            self._transport.write(preface(self.link.address))
            self.session.start(self._loop.time())
        self._flush()

    def _speak_for(self, announced: Announced | None) -> None:
        """Count as a session of the host for which a door has announced it."""
        if announced is not None:
            self.host = announced.host
            self.principals = announced.principals
            self.is_encrypted = announced.is_encrypted

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self._reader.received(nbytes)

    def pause_writing(self) -> None:
        """Give the session no more messages until the transport has written enough."""
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        self.flush_soon()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """End the session of a connection that the peer, the network or the dialer has closed."""
        self._transport = None
        if self._closed or self.session is None:
            return
        self._reader.connection_lost(f"the connection was lost: {exc}" if exc else CLOSED_BY_PEER)

    # Called by other components.

    @property
    def bytes_received(self) -> int:
        """The number of bytes that were read from the socket."""
        return self._reader.bytes_received

    @property
    def room(self) -> int:
        """The number of messages that may be sent now."""
        if self._closed or self._writing_paused or self.session is None:
            return 0
        return self.session.room()

    def mark_stored(self, numbers: list[int]) -> None:
        """Acknowledge recoverable messages of this session, which are durable or durably refused.

        `numbers` are those of `MessageReceived.recoverable_number`.
        """
        if not self._closed and self.session is not None:
            self.session.mark_stored(numbers, self._loop.time())
            self.flush_soon()

    def owe_final_ack(self, packet: bytes) -> None:
        """Send a final ack over this session as soon as its window permits."""
        self.owed_final_acks.append(packet)
        self.flush_soon()

    def owe_express(self, packet: bytes) -> None:
        """Send an express message of this queue manager as soon as the window permits.

        It may be lost.
        """
        self.owed_express.append(packet)
        self.flush_soon()

    def flush_soon(self) -> None:
        """Send what is ready, once: with all that a small commit permits, or in the next turn of
        the event loop."""
        if not self._flush_due:
            self._flush_due = True
            self._services.storage.soon(self._flush)

    def pause_reading(self) -> None:
        """Stop reading and processing until the disk has caught up."""
        self._reader.pause()

    def resume_reading(self) -> None:
        """Process pending packets, and read on: the disk has caught up."""
        self._reader.resume()

    def note_accepted(self) -> None:
        """Record that a message of the session was accepted: the open batch contains it."""
        if not self.is_recorded:
            self.when_accepted(self)

    def count_useless(self, weight: int = 1) -> None:
        """Count a packet that was refused, was a duplicate or has no meaning here.

        A connection that sends many of them is served after the others.
        """
        self._reputation.count_useless(weight, self._loop.time())

    def process(self, packets: list[bytes], now: float) -> None:
        """Pass packets to the session, and handle its events."""
        session = self.session
        assert session is not None
        room = session.room()
        events = session.receive(packets, now)
        if not self.handshake_done and self.link is not None and session.is_answered:
            self.link.retry.answered(now, f"{self.host}:{self.port}")
        self._handle(events, now)
        is_acknowledged = bool(events) and type(events[0]) is Acknowledged
        # A peer that lacked room gets more when it has stored one message, which may leave no event
        # and the room of the window as it was: it had acknowledged the arrival of it before.
        may_continue = self.offers.lack is not None
        if session.output or session.room() != room or is_acknowledged or may_continue:
            self.flush_soon()
        elif not self._closed:
            self._arm()  # messages came, and what they are owed waits for their commit

    def close(self, reason: str) -> None:
        """End the session; the next session sends unacknowledged messages again."""
        if not self._closed and self.session is not None:
            now = self._loop.time()
            self._handle(self.session.close(reason, now, clean=False), now)

    def drop(self, reason: str) -> None:
        """End the session without sending its pending output.

        The session has counted messages that were not accepted. Its output would acknowledge their
        receipt, and the peer would delete the express messages among them.
        """
        if not self._closed and self.session is not None:
            self.session.data_to_send()
            self.close(reason)

    def _handle(self, events: list[Event], now: float) -> None:
        """Pass on events of the session; successive messages are passed on together."""
        received: list[Received] = []
        for event in events:
            kind = type(event)
            if kind is MessageReceived or kind is RunReceived:
                received.append(cast("Received", event))
                continue
            if received:
                self._sink.receive(self, received, now)
                received = []
            if kind is Acknowledged:
                self._sessions.acknowledged(self, cast(Acknowledged, event).tokens)
            elif kind is Opened:
                self.offers = Offers(None if self.instance is None else self.instance.lack)
                self.peer = guid_text(cast(Opened, event).remote_id)
                self._sessions.opened(self)
            elif kind is Closed:
                self._end(*cast(Closed, event))
        if received:
            self._sink.receive(self, received, now)

    def _end(self, reason: str, clean: bool) -> None:
        """Write the session's last output, and close the connection."""
        if self._closed:
            return
        self._write()
        self._closed, self.is_open = True, False
        self._reader.close()
        self._alarm.cancel()
        if self.handshake_done and reason == CLOSED_BY_PEER:
            reason = self.offers.explain(reason)
        if self._transport is not None:
            # close() first writes the buffered output, which may be the refusal of a session.
            self._transport.close()
        self._sessions.closed(self, reason, clean=clean)

    def _flush(self) -> None:
        """Send acknowledgments and messages as far as the window permits, and set the timer."""
        self._flush_due = False
        if self._closed or self.session is None:
            return
        self._send_owed(self)
        self._sessions.pump(self)
        self._write()
        self._arm()
        if self.when_written:
            written, self.when_written = self.when_written, []
            for callback in written:
                callback()

    def _write(self) -> None:
        assert self.session is not None
        packets = self.session.output.copy()
        self.session.output.clear()
        if packets and self._transport is not None and not self._transport.is_closing():
            if max(map(len, packets)) > LARGE_BYTES:
                count = sum([len(packet) > LARGE_BYTES for packet in packets])
                self._reader.large.note(self._loop.time(), count)
            for data in in_few_buffers(packets):
                self.bytes_sent += len(data)
                self._transport.write(data)
            unread_bytes_max = UNREAD_BYTES_MAX + self.packet_bytes_max
            if self._transport.get_write_buffer_size() > unread_bytes_max:
                # The peer sends and does not read, and the acknowledgments accumulate.
                self._transport.abort()

    def _arm(self) -> None:
        """Set the session's timer. It may expire too early, which is harmless, but never late."""
        assert self.session is not None
        wake_at = self.session.next_timer()
        if wake_at is not None:
            self._alarm.at(wake_at, self._wake)

    def _wake(self) -> None:
        if self._closed or self.session is None:
            return
        now = self._loop.time()
        due = self.session.next_timer()
        if due is None or due > now:
            self._arm()  # it was set for an acknowledgment that has left since
            return
        if not self._reader.is_read:
            self.session.note_arrival()  # acknowledgments may be among the bytes that are not read
        self._handle(self.session.handle_timer(now), now)
        self._flush()
