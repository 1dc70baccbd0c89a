"""The packets that set up a session and acknowledge its messages (MS-MQQB 2.2.1 to 2.2.6)."""

from __future__ import annotations

import protocol.derived.connection_parameters as _PARAMETERS
import protocol.derived.establish_connection as _ESTABLISH
import protocol.derived.session_ack as _SESSION_ACK
import protocol.derived.session_header as _SESSION
from protocol.flags import BaseFlags, InternalFlags, OperatingSystem
from protocol.headers import INFINITE, SIGNATURE, VERSION, BaseHeader, SessionHeader
from protocol.records import (
    CONNECTION_PARAMETERS,
    CONNECTION_PARAMETERS_BYTES,
    ESTABLISH_CONNECTION,
    ESTABLISH_CONNECTION_BYTES,
    SESSION_ACK,
    SESSION_ACK_BYTES,
    ConnectionParameters,
    EstablishConnection,
    InternalHeader,
    SessionAck,
)

# Real services fill the reserved byte and the padding of their responses with this value, and the
# examples of MS-MQQB 4.1 have priority 3: scanners identify a queue manager by both.
_FILL = 0x5A
_PADDING = bytes([_FILL]) * 512
_PRIORITY = 3


def _base(packet_size: int, *, session_header: int = 0) -> BaseHeader:
    flags = BaseFlags.of(priority=_PRIORITY, internal=1, session_header=session_header)
    return BaseHeader(VERSION, _FILL, flags, SIGNATURE, packet_size, INFINITE)


def _internal(packet_type: int, *, refused: bool = False) -> InternalHeader:
    flags = InternalFlags.of(packet_type=packet_type, connection_refused=int(refused))
    return InternalHeader(0, flags)


def establish_connection(
    *,
    client: bytes,
    server: bytes,
    timestamp: int,
    operating_system: OperatingSystem,
    refused: bool = False,
    padding: bytes = _PADDING,
) -> EstablishConnection:
    """Return an EstablishConnection request or response; `padding` has 512 bytes.

    `client` and `server` are GUIDs of the initiator and the acceptor, `timestamp` is in
    milliseconds of the initiator's clock; a response repeats client and timestamp.
    """
    return EstablishConnection(
        _base(ESTABLISH_CONNECTION_BYTES),
        _internal(ESTABLISH_CONNECTION, refused=refused),
        client,
        server,
        timestamp,
        operating_system,
        0,
        padding,
    )


def parse_establish_connection(packet: bytes) -> EstablishConnection:
    """Parse an EstablishConnection packet, request or response.  Raises MalformedPacket."""
    return _ESTABLISH.parse(packet)


def build_establish_connection(packet: EstablishConnection) -> bytes:
    """Build the 572 bytes of an EstablishConnection packet."""
    return _ESTABLISH.build(packet)


def connection_parameters(
    *, recoverable_ack_timeout_ms: int, ack_timeout_ms: int, window_size: int
) -> ConnectionParameters:
    """Return a ConnectionParameters request or response; the window is in messages.

    A response repeats both timeouts.
    """
    return ConnectionParameters(
        _base(CONNECTION_PARAMETERS_BYTES),
        _internal(CONNECTION_PARAMETERS),
        recoverable_ack_timeout_ms,
        ack_timeout_ms,
        0,
        window_size,
    )


def parse_connection_parameters(packet: bytes) -> ConnectionParameters:
    """Parse a ConnectionParameters packet; the session checks the ranges of its values."""
    return _PARAMETERS.parse(packet)


def build_connection_parameters(packet: ConnectionParameters) -> bytes:
    """Build the 32 bytes of a ConnectionParameters packet."""
    return _PARAMETERS.build(packet)


def parse_session_ack(packet: bytes) -> SessionHeader:
    """Return the acknowledgment in a SessionAck packet."""
    return _SESSION_ACK.parse(packet).session


def build_session_ack(header: SessionHeader) -> bytes:
    """Build the 36 bytes of a SessionAck packet."""
    return _SESSION_ACK_HEAD + build_session_header(header)


def build_session_header(header: SessionHeader) -> bytes:
    """Build the 16 bytes of a SessionHeader."""
    return _SESSION.build(header)


_SESSION_ACK_HEAD = _SESSION_ACK.build(
    SessionAck(
        _base(SESSION_ACK_BYTES, session_header=1),
        _internal(SESSION_ACK),
        SessionHeader(0, 0, 0, 0, 0, 1, 0),
    )
)[:-16]
