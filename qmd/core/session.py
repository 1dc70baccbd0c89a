"""Session with another queue manager: handshake, counts, window, session acks. [MS-MQQB] 3.1

A session lasts as long as its TCP connection, so no durable state may depend on it: messages that
the peer has not acknowledged are sent again in the next session.

    acceptor   WAITING_EC ──► WAITING_CP ────────────┐
                                                     ├──► OPEN ──► CLOSED
    initiator  NEW ──► WAITING_ECR ──► WAITING_CPR ──┘

The session takes complete packets (`receive`) and returns events; it takes messages (`send`) and
returns bytes (`data_to_send`). No message is acknowledged as stored before `mark_stored` was called
for it. A protocol violation ends this session, with a reason for people, and never raises.

The two halves are `window.SendWindow` and `session_acks.SessionAcks`. Order acks and all state that
outlives the session are handled elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from operator import itemgetter

from protocol import (
    MessageKind,
    PacketKind,
    SessionHeader,
    UserFlags,
    UserMessage,
    append_session_header,
    build_session_ack,
    classify,
    packet_kind,
    parse_session_ack,
    parse_user_message,
    without_session_header,
)
from protocol.errors import ProtocolError
from protocol.like_packets import like_packets, may_have_like
from qmd.core.handshake import Handshake, Judge
from qmd.core.identity_proof import Prover
from qmd.core.peer_instance import Instance
from qmd.core.session_acks import FLAGS_MAX, SessionAcks
from qmd.core.session_events import (
    NEVER,
    Acknowledged,
    Closed,
    Event,
    MessageReceived,
    Opened,
    RunReceived,
    SessionOver,
    SessionSettings,
    SessionState,
)
from qmd.core.window import Released, SendWindow

__all__ = [
    "Acknowledged",
    "Closed",
    "Event",
    "MessageReceived",
    "Opened",
    "RunReceived",
    "Session",
    "SessionSettings",
    "SessionState",
]

# Looked up once: the receive loop uses these for every packet.
_OPEN = SessionState.OPEN
_USER_MESSAGE, _SESSION_ACK = PacketKind.USER_MESSAGE, PacketKind.SESSION_ACK
_DELIVERY = int(UserFlags.of(delivery=3))  # all bits of DM
_new = tuple.__new__
RUN_MIN = 3  # packets that follow; to compare packets pays from the second one on


class Session:
    """One end of one connection. Times are in seconds of a monotonic clock.

    `expected_remote` is the GUID that must answer an initiator (None: any GUID, for direct names).
    An acceptor created with `refuse` answers that it has no room. `instance`, `judge` and `prover`
    are as in Handshake. After every call use `data_to_send` and `next_timer`; after events, call
    `room` again.
    """

    def __init__(
        self,
        *,
        initiator: bool,
        own_id: bytes,
        settings: SessionSettings,
        now: float,
        expected_remote: bytes | None = None,
        refuse: bool = False,
        instance: Instance | None = None,
        judge: Judge | None = None,
        prover: Prover | None = None,
    ) -> None:
        self.state = SessionState.NEW if initiator else SessionState.WAITING_EC
        self.remote_id: bytes | None = None  # once the session is open
        self.closed_reason: str | None = None
        self.opened_at: float | None = None
        self.last_active: float | None = None  # when a user message was last sent or received
        self.peer_window = 1  # last announced by the peer, at least 1
        #: Whether its owner takes messages that are alike together, as a RunReceived.
        self.takes_runs = False
        self.outgoing = SendWindow(1, usual=settings.window_size)
        self.incoming = SessionAcks()
        self._settings = settings
        self.output: list[bytes] = []
        self._handshake = Handshake(
            own_id=own_id,
            settings=settings,
            expected_remote=expected_remote,
            refuse=refuse,
            output=self.output,
            instance=instance,
            judge=judge,
            prover=prover,
        )
        self._timeouts = self._handshake.timeouts
        #: How many messages the peer may send before this end acknowledges one.
        self.announced_window = settings.window_size
        self._window_max = 1  # the smaller of both windows
        self._unacknowledged_max = 1  # received messages, before an acknowledgment must leave
        self._active = False  # [MS-MQQB] 3.1.1.3.1 SessionActive
        # ReceivedAck: a packet has arrived since the ack wait timer expired.
        self._has_received = False
        self._initialization_due = now + settings.initialization_timeout_s
        self._cleanup_due = NEVER
        self._ack_wait_due = NEVER

    @property
    def refused_as_another(self) -> bool:
        """Whether the peer knows another machine with our identity."""
        return self._handshake.refused_as_another

    @property
    def is_answered(self) -> bool:
        """Whether the peer has answered the connection request, and the session is not open yet."""
        return self.state is SessionState.WAITING_CPR

    @property
    def offered_tls_port(self) -> int:
        """The port for TLS that the peer has named when it refused a session without TLS, or 0."""
        return self._handshake.offered_tls_port

    @property
    def peer_key(self) -> bytes | None:
        """The public key that the peer has proven in the handshake, 32 bytes, or None."""
        return self._handshake.peer_key

    # Values for `session list`.

    @property
    def sent_count(self) -> int:
        return self.outgoing.sent_count

    @property
    def exchanged_count(self) -> int:
        """Number of received messages, and of sent messages that the peer has acknowledged."""
        return self.incoming.received_count + self.sent_count - self.unacknowledged

    @property
    def unacknowledged(self) -> int:
        """Number of sent messages without an acknowledgment of receipt."""
        return self.outgoing.unacknowledged

    # Methods in the order of use.

    def start(self, now: float) -> None:
        """Send the connection request.  [MS-MQQB] 3.1.5.2.3"""
        assert self.state is SessionState.NEW, "only an initiator starts a session, and only once"
        self._initialization_due = now + self._settings.initialization_timeout_s
        self.state = self._handshake.start(now)

    def receive(self, packets: list[bytes], now: float) -> list[Event]:
        """Process complete packets from `PacketBuffer`, in the order of their arrival."""
        events: list[Event] = []
        if self.state is SessionState.CLOSED:
            return events
        self._has_received = True
        incoming = self.incoming
        received_before = incoming.received_count
        recoverable_before = incoming.recoverable_received_count
        released: list[Released] = []
        over: Exception | None = None
        try:
            at, count = 0, len(packets)
            while at < count:
                packet = packets[at]
                at += 1
                kind = packet_kind(packet)
                if self.state is not _OPEN:
                    self._take_handshake(kind, packet, events, now)
                elif kind is _USER_MESSAGE:
                    message = parse_user_message(packet)
                    number = incoming.count(recoverable=message.user.flags & _DELIVERY != 0)
                    header = message.session
                    if header is None:
                        # As MessageReceived(...), but twice as fast.
                        events.append(_new(MessageReceived, (message, packet, number)))
                        if self.takes_runs and count - at >= RUN_MIN and may_have_like(message):
                            at += self._take_run(message, packets, at, events)
                        continue
                    # The message is delivered even if its header ends the session.
                    # [MS-MQMQ] 2.2.20.4
                    packet = without_session_header(packet)
                    events.append(MessageReceived(message, packet, number))
                    self._take_session_header(header, released, now)
                elif kind is _SESSION_ACK:
                    self._take_session_header(parse_session_ack(packet), released, now)
                else:
                    self._take_handshake(kind, packet, events, now)
        except (ProtocolError, SessionOver) as caught:
            over = caught
        if released:
            released.sort(key=itemgetter(0))
            if tokens := [token for _, token in released if token is not None]:
                # A message may end the session, as there is no room for it: what is acknowledged
                # must not be sent again then.
                events.insert(0, Acknowledged(tokens))
        if over is not None:
            reason = f"malformed packet: {over}" if isinstance(over, ProtocolError) else str(over)
            return events + self.close(reason, now, clean=False)
        if incoming.received_count != received_before:
            self._active = True
            self.last_active = now
        if incoming.unacknowledged:
            recoverable = incoming.recoverable_received_count != recoverable_before
            self._owe_acks(now, recoverable=recoverable)
        return events

    def room(self) -> int:
        """Return how many messages may be sent now: the smaller window, less those in flight."""
        return self.outgoing.room() if self.state is _OPEN else 0

    def send(self, packet: bytes, *, recoverable: bool, token: object, now: float) -> None:
        """Send a user message; `room` must be above 0.

        `token` is returned in an Acknowledged event, unless it is None. The packet must not have a
        SessionHeader; it gets one if an acknowledgment is almost due. [MS-MQQB] 3.1.7.11
        """
        assert self.room() > 0, "check for room in the window first"
        if now > self.incoming.piggyback_after:
            packet = self._send_with_ack(packet, token, recoverable=recoverable)
        else:
            self.outgoing.add(token, recoverable=recoverable)
        self.output.append(packet)
        self._active = True
        self.last_active = now
        if self._ack_wait_due == NEVER:
            self._ack_wait_due = now + self._ack_wait_s

    def send_run(self, packets: Sequence[bytes], now: float, tokens: Sequence[object] = ()) -> None:
        """Send recoverable messages, with tokens or without; `room` must not be below their
        number."""
        if now > self.incoming.piggyback_after:
            for packet, token in zip(packets, tokens or repeat(None, len(packets)), strict=True):
                self.send(packet, recoverable=True, token=token, now=now)
            return
        assert self.room() >= len(packets), "check for room in the window first"
        self.outgoing.add_run(len(packets), tokens)
        self.output += packets
        self._active = True
        self.last_active = now
        if self._ack_wait_due == NEVER:
            self._ack_wait_due = now + self._ack_wait_s

    def mark_stored(self, recoverable_numbers: Sequence[int], now: float) -> None:
        """Mark messages that are durable, or durably refused, so that they may be acknowledged.

        The numbers are those of MessageReceived, in any order. A stored message is acknowledged
        only after all recoverable messages before it are stored.
        """
        if self.state is SessionState.CLOSED:
            return
        incoming = self.incoming
        incoming.mark_stored(recoverable_numbers)
        stored = incoming.stored_unacknowledged
        if stored >= (1 if self._settings.ack_at_once else FLAGS_MAX):
            self._acknowledge()
        elif stored:
            incoming.acknowledge_within(self._timeouts.recoverable_ack_delay_s, now)

    def data_to_send(self) -> bytes:
        """Return the bytes to write to the connection, each once; also after the session ended."""
        data = b"".join(self.output)
        self.output.clear()
        return data

    def next_timer(self) -> float | None:
        """Return when to call `handle_timer`, or None. A late or an early call is harmless."""
        due = min(
            self._initialization_due,
            self._cleanup_due,
            self._ack_wait_due,
            self.incoming.due,
        )
        return None if due == NEVER else due

    def handle_timer(self, now: float) -> list[Event]:
        """Run the timers that are due.

        [MS-MQQB] 3.1.6.2, 3.1.6.3, 3.1.6.4, 3.1.6.6; [MS-MQMQ] <15>
        """
        settings = self._settings
        if now >= self._initialization_due:
            reason = f"no session after {settings.initialization_timeout_s:g} s: {self.state.value}"
            return self.close(reason, now, clean=False)
        if now >= self._ack_wait_due:
            if not self._has_received:
                reason = f"acknowledgments are missing and nothing came for {self._ack_wait_s:g} s"
                return self.close(reason, now, clean=False)
            self._has_received = False
            self._ack_wait_due = now + self._ack_wait_s
        if now >= self._cleanup_due:
            # A session with a pending acknowledgment is not idle: if it were closed before the
            # acknowledgment is due, the next session would bring the same messages, and so on
            # without end.
            if not (self._active or self.outgoing.outstanding or self.incoming.pending):
                return self.close(f"idle for {settings.cleanup_timeout_s:g} s", now)
            self._active = False
            self._cleanup_due = now + settings.cleanup_timeout_s
        if now >= self.incoming.due:
            self._acknowledge()
        return []

    def note_arrival(self) -> None:
        """Note that data has arrived that is not processed yet: the peer is neither silent nor
        idle."""
        self._has_received = self._active = True

    def pause(self) -> None:
        """Acknowledge everything, and announce a window of one message: a queue is paused.

        The next acknowledgment announces the usual window.  [MS-MQQB] 3.1.7.13
        """
        if self.state is _OPEN:
            self._acknowledge(window_size=1)
            self._active = False

    def resume(self) -> None:
        """Count the session as used: a paused queue is sent from again.  [MS-MQQB] 3.1.7.14"""
        self._active = True

    def close(self, reason: str, now: float, *, clean: bool = True) -> list[Event]:
        """End the session; `reason` is for people, `clean` as in Closed.

        The caller closes the connection, which is the only notification to the peer.
        [MS-MQQB] 3.1.5.9
        """
        if self.state is SessionState.CLOSED:
            return []
        self.state = SessionState.CLOSED
        self.closed_reason = reason
        self._handshake.forget()
        self._initialization_due = self._cleanup_due = self._ack_wait_due = NEVER
        self.incoming.due = self.incoming.piggyback_after = NEVER
        return [Closed(reason, clean)]

    # Receiving.

    def _take_run(
        self, message: UserMessage, packets: list[bytes], at: int, events: list[Event]
    ) -> int:
        """Receive the packets from index `at` on that are like the one before; return how many."""
        run = like_packets(message, packets[at - 1]).run(packets, at)
        if run.packets:
            first = self.incoming.count_run(len(run.packets))
            events.append(RunReceived(message, run, first))
        return len(run.packets)

    def _take_session_header(
        self, header: SessionHeader, released: list[Released], now: float
    ) -> None:
        """Process acknowledgment, window and counts of a SessionHeader. [MS-MQQB] 3.1.5.5"""
        outgoing = self.outgoing
        was_full = outgoing.is_full
        released += outgoing.acknowledge(header)
        if was_full and outgoing.size < self._window_max:
            outgoing.grow(self._window_max)
        outgoing.end_probe(now)
        self._ack_wait_due = now + self._ack_wait_s if self.outgoing.outstanding else NEVER
        if header.window_size != self.peer_window:
            self._set_peer_window(header.window_size)
        self.incoming.check_counts(header)

    def _take_handshake(
        self, kind: PacketKind, packet: bytes, events: list[Event], now: float
    ) -> None:
        """Pass a packet to the handshake; a packet not allowed now ends the session.

        [MS-MQQB] 3.1.5.3, 3.1.5.4
        """
        agreed = self._handshake
        self.state = agreed.receive(self.state, kind, packet, now)
        if self.state is not _OPEN:
            if self.state is SessionState.WAITING_CP:  # [MS-MQQB] 3.1.2.1
                self._initialization_due = now + self._settings.initialization_timeout_s
            return
        self._timeouts = agreed.timeouts
        self.remote_id = agreed.peer_id
        self.opened_at = now
        self._initialization_due = NEVER
        self._cleanup_due = now + self._settings.cleanup_timeout_s
        self.announced_window = agreed.own_window
        self.incoming.is_cumulative = agreed.is_with_qmd
        self._set_peer_window(agreed.peer_window)
        agreed.forget()
        events.append(Opened(agreed.peer_id))

    # Acknowledging and windows.

    def _owe_acks(self, now: float, *, recoverable: bool) -> None:
        """Acknowledge received messages now if there are enough, otherwise by a timer."""
        if self.incoming.unacknowledged >= self._unacknowledged_max:
            self._acknowledge()
            return
        timeouts = self._timeouts
        delay_s = timeouts.recoverable_ack_delay_s if recoverable else timeouts.ack_delay_s
        delay_s = min(delay_s, self._settings.receipt_ack_max_s)
        self.incoming.acknowledge_within(delay_s, now)

    def _acknowledge(self, window_size: int | None = None) -> None:
        """Send SessionAcks until all received and stored messages are acknowledged."""
        self.output.append(build_session_ack(self._session_header(window_size)))
        while self.incoming.pending:
            self.output.append(build_session_ack(self._session_header(window_size)))

    def _send_with_ack(self, packet: bytes, token: object, *, recoverable: bool) -> bytes:
        """Count the message, and add a SessionHeader if it may have one."""
        message = parse_user_message(packet)
        kind = classify(message, message.user.queue_manager_address)
        if kind is not MessageKind.ORDINARY:
            # Order and final acks are recognized by having no flag at all. [MS-MQQB] 3.1.5.1.1
            self._acknowledge()
            self.outgoing.add(token, recoverable=recoverable)
            return packet
        self.outgoing.add(token, recoverable=recoverable)
        return append_session_header(packet, self._session_header())

    def _session_header(self, window_size: int | None = None) -> SessionHeader:
        """Return a header that acknowledges all receipts and up to 32 stored messages.

        `window_size` is the announced window; None: the usual one.
        """
        received, first_stored, flags = self.incoming.take()
        return SessionHeader(
            received,
            first_stored,
            flags,
            self.outgoing.sent_count & 0xFFFF,
            self.outgoing.recoverable_sent_count & 0xFFFF,
            self.announced_window if window_size is None else window_size,
            0,
        )

    def _set_peer_window(self, peer: int) -> None:
        """Set the peer's window; both keep to the smaller one. [MS-MQQB] 3.1.1.6.1, 3.1.7.1"""
        self.peer_window = max(peer, 1)
        self._window_max = smaller = min(self.announced_window, self.peer_window)
        self.outgoing.limit(smaller)
        # The peer's window opens again after half of it is received, or after 32 messages
        # (3.1.5.8.7).
        self._unacknowledged_max = max(1, min(smaller // 2, FLAGS_MAX))

    @property
    def _ack_wait_s(self) -> float:
        return self._settings.ack_wait_factor * self._timeouts.ack_s
