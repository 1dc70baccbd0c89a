"""Wire: one end of a session, for scripts that must be able to break the rules.

It counts messages as the specification has it, and records all bytes of both ends, which
`Conversation` judges.  Reads block, with a time limit.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

from protocol import packets as wire
from protocol.errors import ProtocolError
from protocol.flags import OperatingSystem
from protocol.framing import BrokenStream, PacketBuffer
from protocol.headers import SessionHeader
from protocol.identifiers import NULL_GUID, guid_text
from protocol.packets import PacketKind, packet_kind
from protocol.records import ConnectionParameters, EstablishConnection, UserMessage
from qmd.interop.conversation import Conversation, Seen, Streams

WINDOW = 64
ACK_TIMEOUT_MS, RECOVERABLE_ACK_MS = 20_000, 500
READ_BYTES = 65_536
LOOK_AGAIN_S = 0.2


class ClosedByPeer(Exception):
    """The peer has closed the connection."""


class Silent(Exception):
    """Nothing came in time; the text says what was awaited."""


class Counters(NamedTuple):
    """Messages of a session: of both kinds, and recoverable ones."""

    messages: int = 0
    recoverable: int = 0

    def plus(self, *, recoverable: bool) -> Counters:
        """Return the counters after one more message."""
        return Counters(self.messages + 1, self.recoverable + recoverable)


class Wire:
    """A connection with a queue manager, as its initiator, or as its acceptor."""

    def __init__(
        self,
        connection: socket.socket,
        guid: bytes,
        streams: Streams,
        timeout_s: float,
        *,
        accepted: bool = False,
    ) -> None:
        """`accepted`: the queue manager has opened the connection."""
        self._socket = connection
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        own, other = self._socket.getsockname(), self._socket.getpeername()
        self.own_host, self.peer_host = str(own[0]), str(other[0]).removeprefix("::ffff:")
        self.guid, self.timeout_s = guid, timeout_s
        self.is_accepted = accepted
        ends = [f"{own[0]}:{own[1]}", f"{other[0]}:{other[1]}"]
        self.conversation = Conversation(*(ends[::-1] if accepted else ends), streams=streams)
        self.seen: list[Seen] = []
        self._buffer = PacketBuffer()
        self._packets: list[bytes] = []
        self.sent, self.received = Counters(), Counters()
        self.acknowledged = 0  # of our messages, by count
        self.stored: set[int] = set()  # recoverable numbers of ours that the peer has stored
        self.messages: list[UserMessage] = []
        self.peer_guid = NULL_GUID
        self.peer_window = 0
        self._acknowledged_received = Counters()

    def close(self) -> None:
        """Close the connection, which ends the session."""
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes, whatever they are.  Raises ClosedByPeer."""
        self.seen += self.conversation.feed(not self.is_accepted, time.time(), data)
        try:
            self._socket.settimeout(self.timeout_s)
            self._socket.sendall(data)
        except TimeoutError as error:
            raise Silent("the peer reads nothing") from error
        except OSError as error:
            raise ClosedByPeer(str(error)) from error

    def send_message(self, packet: bytes, *, recoverable: bool) -> int:
        """Send a user message; return its number, or that among the recoverable ones."""
        self.sent = self.sent.plus(recoverable=recoverable)
        self.send(packet)
        return self.sent.recoverable if recoverable else self.sent.messages

    def establish(self, *, server: bytes = NULL_GUID) -> EstablishConnection:
        """Send a connection request; return the response.  Raises Silent, ClosedByPeer."""
        request = wire.establish_connection(
            client=self.guid,
            server=server,
            timestamp=int(time.monotonic() * 1000) & 0xFFFFFFFF,
            operating_system=_operating_system(),
        )
        self.send(wire.build_establish_connection(request))
        response = wire.parse_establish_connection(self.packet(PacketKind.ESTABLISH_CONNECTION))
        self.peer_guid = response.server
        return response

    def propose(self) -> ConnectionParameters:
        """Send the parameters; return the answer.  Raises Silent, ClosedByPeer."""
        proposal = wire.connection_parameters(
            recoverable_ack_timeout_ms=RECOVERABLE_ACK_MS,
            ack_timeout_ms=ACK_TIMEOUT_MS,
            window_size=WINDOW,
        )
        self.send(wire.build_connection_parameters(proposal))
        answer = wire.parse_connection_parameters(self.packet(PacketKind.CONNECTION_PARAMETERS))
        self.peer_window = answer.window_size
        return answer

    def answer(self) -> None:
        """Answer a handshake.  Raises Silent, ClosedByPeer, ProtocolError."""
        request = wire.parse_establish_connection(self.packet(PacketKind.ESTABLISH_CONNECTION))
        self.peer_guid = request.client
        is_for_us = request.server in (NULL_GUID, self.guid)
        response = wire.establish_connection(
            client=request.client,
            server=self.guid,
            timestamp=request.timestamp,
            operating_system=OperatingSystem.of(
                constant=0x10, no_ping=request.operating_system.no_ping, server=1
            ),
            refused=not is_for_us,
        )
        self.send(wire.build_establish_connection(response))
        if not is_for_us:
            raise Silent(f"it asks for {guid_text(request.server)}")
        proposal = wire.parse_connection_parameters(self.packet(PacketKind.CONNECTION_PARAMETERS))
        self.peer_window = proposal.window_size
        answer = wire.connection_parameters(
            recoverable_ack_timeout_ms=proposal.recoverable_ack_timeout,
            ack_timeout_ms=proposal.ack_timeout,
            window_size=WINDOW,
        )
        self.send(wire.build_connection_parameters(answer))

    def header(self, **changes: int) -> SessionHeader:
        """Return a SessionHeader that acknowledges all received messages."""
        first = self._acknowledged_received.recoverable + 1
        count = min(self.received.recoverable - first + 1, 32)
        header = SessionHeader(
            self.received.messages & 0xFFFF,
            first & 0xFFFF if count else 0,
            (1 << count) - 1,
            self.sent.messages & 0xFFFF,
            self.sent.recoverable & 0xFFFF,
            WINDOW,
            0,
        )
        done = self._acknowledged_received.recoverable + count
        self._acknowledged_received = Counters(self.received.messages, done)
        return header._replace(**changes)

    def acknowledge(self) -> None:
        """Acknowledge all received messages."""
        while self._acknowledged_received != self.received:
            self.send(wire.build_session_ack(self.header()))

    def wait(self, condition: Callable[[], bool], what: str, timeout_s: float) -> None:
        """Read until `condition` holds, and acknowledge messages.  Raises Silent, ClosedByPeer.

        The condition is looked at again from time to time: it may depend on another connection.
        """
        deadline = time.monotonic() + timeout_s
        while not condition():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise Silent(f"no {what} within {timeout_s:g} s")
            with contextlib.suppress(Silent):
                self._take(self._next(min(left_s, LOOK_AGAIN_S)))
                self.acknowledge()

    def is_closed_within(self, timeout_s: float) -> bool:
        """Return whether the peer closes the connection in time."""
        try:
            self.wait(lambda: False, "end of the session", timeout_s)
        except ClosedByPeer:
            return True
        except Silent:
            return False
        return False

    def packet(self, kind: PacketKind) -> bytes:
        """Return the next packet, which must be of this kind.  Raises Silent, ClosedByPeer."""
        packet = self._next(self.timeout_s)
        if packet_kind(packet) is not kind:
            raise Silent(f"{packet_kind(packet).name} came, and {kind.name} was awaited")
        return packet

    def _take(self, packet: bytes) -> None:
        """Count a packet of the open session.  A packet that cannot be read is a violation."""
        try:
            kind = packet_kind(packet)
            if kind is PacketKind.SESSION_ACK:
                self._take_header(wire.parse_session_ack(packet))
            elif kind is PacketKind.USER_MESSAGE:
                message = wire.parse_user_message(packet)
                self.received = self.received.plus(recoverable=bool(message.user.flags.delivery))
                self.messages.append(message)
                if message.session is not None:
                    self._take_header(message.session)
        except ProtocolError:
            return  # the conversation has judged it

    def _take_header(self, header: SessionHeader) -> None:
        behind = (self.sent.messages - header.ack_number) & 0xFFFF
        self.acknowledged = max(self.acknowledged, self.sent.messages - behind)
        if header.recoverable_ack_number:
            first = self.sent.recoverable - (
                (self.sent.recoverable - header.recoverable_ack_number) & 0xFFFF
            )
            self.stored |= set(range(1, first))
            flags = header.recoverable_ack_flags
            self.stored |= {first + place for place in range(32) if flags >> place & 1}
        self.peer_window = header.window_size

    def _next(self, timeout_s: float) -> bytes:
        """Return the next packet.  Raises Silent, ClosedByPeer."""
        deadline = time.monotonic() + timeout_s
        while not self._packets:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise Silent("nothing came")
            self._socket.settimeout(left_s)
            try:
                data = self._socket.recv(READ_BYTES)
            except TimeoutError:
                raise Silent("nothing came") from None
            except OSError as error:
                raise ClosedByPeer(str(error)) from error
            if not data:
                raise ClosedByPeer("the peer closed the connection")
            self.seen += self.conversation.feed(self.is_accepted, time.time(), data)
            try:
                self._packets += self._buffer.feed(data)
            except BrokenStream as broken:
                self._packets += broken.packets
                self._buffer = PacketBuffer()
        return self._packets.pop(0)


def _operating_system() -> OperatingSystem:
    return OperatingSystem.of(constant=0x10, no_ping=1, server=1)
