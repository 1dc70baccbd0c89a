"""Connection status: the result of an attempt to connect, in the terms of MSMQ.

[MS-MQDMPR] 3.1.1.3 gives each entry of ConnectionHistory a Status, of 17 values, and an Error, an
HRESULT.  Operators of Windows hosts know them from the management of outgoing queues.
"""

from __future__ import annotations

from enum import Enum

OK = 0
E_FAIL = 0x80004005  # unspecified
_WIN32 = 0x80070000  # an HRESULT with a code of Win32 or of sockets


class ConnectionStatus(Enum):
    """The values of ConnectionHistory.Status.  [MS-MQDMPR] 3.1.1.3"""

    IN_PROCESS = "InProcess"
    ESTABLISH_PACKET_RECEIVED = "EstablishPacketReceived"
    ESTABLISHED = "Established"
    UNKNOWN_FAILURE = "UnknownFailure"
    PING_FAILURE = "PingFailure"  # never of qmd, which does not ping before it connects
    SOCKET_CREATE_FAILURE = "SocketCreateFailure"
    SOCKET_BIND_FAILURE = "SocketBindFailure"
    SOCKET_CONNECT_FAILURE = "SocketConnectFailure"
    TCP_NOT_ENABLED = "TcpNotEnabled"
    SOCKET_SEND_FAILURE = "SocketSendFailure"
    CONNECTION_NOT_READY = "ConnectionNotReady"
    DNS_FAILURE = "DnsFailure"
    CERTIFICATE_VALIDATION_FAILURE = "CertificateValidationFailure"
    CONNECTION_LIMIT_REACHED = "ConnectionLimitReached"
    CONNECTION_REFUSED = "ConnectionRefused"
    ROUTING_DATA_NOT_AVAILABLE = "RoutingDataNotAvailable"
    LOW_RESOURCE = "LowResource"


#: The HRESULT of each failure, unless the operating system gives a closer one.
_ERRORS = {
    ConnectionStatus.IN_PROCESS: OK,
    ConnectionStatus.ESTABLISH_PACKET_RECEIVED: OK,
    ConnectionStatus.ESTABLISHED: OK,
    ConnectionStatus.SOCKET_BIND_FAILURE: _WIN32 | 10049,  # WSAEADDRNOTAVAIL
    ConnectionStatus.SOCKET_CREATE_FAILURE: _WIN32 | 10013,  # WSAEACCES
    ConnectionStatus.SOCKET_CONNECT_FAILURE: _WIN32 | 10060,  # WSAETIMEDOUT
    ConnectionStatus.TCP_NOT_ENABLED: _WIN32 | 10047,  # WSAEAFNOSUPPORT
    ConnectionStatus.SOCKET_SEND_FAILURE: _WIN32 | 10054,  # WSAECONNRESET
    ConnectionStatus.CONNECTION_NOT_READY: _WIN32 | 10060,
    ConnectionStatus.DNS_FAILURE: _WIN32 | 11001,  # WSAHOST_NOT_FOUND
    ConnectionStatus.CERTIFICATE_VALIDATION_FAILURE: 0x800B0109,  # CERT_E_UNTRUSTEDROOT
    ConnectionStatus.CONNECTION_LIMIT_REACHED: _WIN32 | 1226,  # ERROR_CONNECTION_COUNT_LIMIT
    ConnectionStatus.CONNECTION_REFUSED: _WIN32 | 1225,  # ERROR_CONNECTION_REFUSED
    ConnectionStatus.ROUTING_DATA_NOT_AVAILABLE: 0xC00E0013,  # MQ_ERROR_NO_DS
    ConnectionStatus.LOW_RESOURCE: 0xC00E0027,  # MQ_ERROR_INSUFFICIENT_RESOURCES
}

#: How the reasons begin that `Session` and `PeerConnection` give for the end of a session.
_REASONS = (
    ("the peer refused the session", ConnectionStatus.CONNECTION_REFUSED),
    ("refused: too many sessions", ConnectionStatus.CONNECTION_LIMIT_REACHED),
    ("no session after", ConnectionStatus.CONNECTION_NOT_READY),
    ("the connection was lost", ConnectionStatus.SOCKET_SEND_FAILURE),
)
CLOSED_BY_PEER = "the peer closed the connection"


def hresult(status: ConnectionStatus, socket_error: int = 0) -> int:
    """Return the Error of an entry; `socket_error` is the code of Winsock, or 0."""
    return _WIN32 | socket_error if socket_error else _ERRORS.get(status, E_FAIL)


def status_of_end(reason: str, *, was_open: bool) -> ConnectionStatus:
    """Return the status of a session, or an attempt at one, that ended for `reason`.

    A peer that closes the connection before the session is open does not want it.
    """
    for beginning, status in _REASONS:
        if reason.startswith(beginning):
            return status
    if reason.startswith(CLOSED_BY_PEER):
        if was_open:
            return ConnectionStatus.SOCKET_SEND_FAILURE
        return ConnectionStatus.CONNECTION_REFUSED
    return ConnectionStatus.UNKNOWN_FAILURE
