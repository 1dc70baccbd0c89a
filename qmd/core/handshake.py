"""Handshake that opens a session: identities and parameters. [MS-MQQB] 3.1.5.2.3 - 3.1.5.4

    initiator  ── EstablishConnection ──►  acceptor      its own GUID, the GUID it expects
               ◄─ EstablishConnection ──                 the acceptor's GUID; or a refusal
               ── ConnectionParameters ─►                two time-outs, the initiator's window
               ◄─ ConnectionParameters ──                the same time-outs, the acceptor's window

Two queue managers of qmd recognize each other by their first packets (peer_instance.py), and then
announce a wider window than the usual one.

Two queue managers of qmd prove their identities in the paddings of these packets, and in one more
packet of the initiator before its parameters: identity_proof.py. Any other packet during the
handshake ends the session.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, NoReturn

from protocol import (
    ConnectionParameters,
    OperatingSystem,
    PacketKind,
    build_connection_parameters,
    build_establish_connection,
    connection_parameters,
    establish_connection,
    parse_connection_parameters,
    parse_establish_connection,
)
from protocol.identifiers import NULL_GUID
from qmd.core import identity_proof
from qmd.core.identity_proof import Exchange, Prover
from qmd.core.peer_instance import (
    FILL,
    NEEDS_TLS,
    TWO_OF_ONE_IDENTITY,
    Instance,
    TlsNeeded,
    from_padding,
    to_padding,
)
from qmd.core.session_events import SessionOver, SessionSettings, SessionState

ROUND_TRIPS = 8  # Storage acknowledgments may take this many round trips, [MS-MQQB] 3.1.5.3.2
# Ranges of the fields, [MS-MQQB] 2.2.2.1.
RECOVERABLE_ACK_MS_MIN, RECOVERABLE_ACK_MS_MAX = 500, 120_000
ACK_TIMEOUT_MS_MIN, ACK_TIMEOUT_MS_MAX = 20_000, 120_000

#: End of the reason of a session that was refused because of `Instance`.
REFUSED_AS_ANOTHER = "it knows another machine with our identity"
#: The reason of a session with a proof that is not valid.
NOT_PROVEN = "the peer's proof of its identity is not valid"
_OPERATING_SYSTEM = 0x10  # OperatingSystem.RE, [MS-MQQB] 2.2.3.1


#: Judges the GUID of the other end, its run if it is qmd, and the key that it has proven (or None).
Judge = Callable[[bytes, Instance | None, bytes | None], str | None]


class Timeouts(NamedTuple):
    """The agreed time-outs of a session, in seconds. [MS-MQQB] 2.2.2.1"""

    ack_s: float  # AckTimeout: the session ends if the peer is silent for a multiple of this
    recoverable_ack_s: float  # RecoverableAckTimeout: limit for acknowledgments of stored messages

    @property
    def ack_delay_s(self) -> float:
        """Return how long a received message may stay unacknowledged. [MS-MQQB] 3.1.5.8.2"""
        return self.ack_s / 2

    @property
    def recoverable_ack_delay_s(self) -> float:
        """Return the same for a recoverable message, or one that was stored. [MS-MQQB] 3.1.5.8.7

        It is never longer than for an express message: a peer with a long round trip may propose
        more than it waits.
        """
        return min(self.recoverable_ack_s, self.ack_delay_s)


class Handshake:
    """Handshake of one session, complete when `receive` returns OPEN.

    The attributes other than `refused_as_another` are valid after that. Packets to be sent are
    appended to `output`.
    """

    def __init__(
        self,
        *,
        own_id: bytes,
        settings: SessionSettings,
        expected_remote: bytes | None,
        refuse: bool,
        output: list[bytes],
        instance: Instance | None = None,
        judge: Judge | None = None,
        prover: Prover | None = None,
    ) -> None:
        """Create the handshake.

        `instance` is this run of our queue manager, as announced to other qmd queue managers.
        `judge` returns why there must be no session with a queue manager of that GUID, run and key,
        or None. Without a `prover` neither end proves its identity.
        """
        self.peer_id = NULL_GUID
        self.peer_window = 1
        self.timeouts = _proposal(settings, 0.0)
        self._own_id = own_id
        self._settings = settings
        self._expected_remote = expected_remote
        self._refuse = refuse
        self._output = output
        self._instance = instance
        self._judge = judge
        self._prover = prover
        self._exchange: Exchange | None = None  # if the other end can prove its key
        self._met: Instance | None = None
        self._request = b""  # the padding of our connection request
        self.peer_key: bytes | None = None  # that the other end has proven, 32 bytes
        self.refused_as_another = False  # the peer knows another machine with our identity
        self.offered_tls_port = 0  # that a peer has named which refuses sessions without TLS
        self._started_at = 0.0

    @property
    def is_with_qmd(self) -> bool:
        """Whether both ends are known to each other as queue managers of qmd."""
        return self._instance is not None and self._met is not None

    @property
    def own_window(self) -> int:
        """The window that this end announces."""
        return self._settings.window_for(is_qmd=self.is_with_qmd)

    def forget(self) -> None:
        """Drop all that only the handshake needs, after it or after the end of the session.

        The judge references the connection and would keep it alive.
        """
        self._judge = self._prover = self._exchange = None
        self._request = b""

    def start(self, now: float) -> SessionState:
        """Send the initiator's first packet. [MS-MQQB] 3.1.5.2.3"""
        self._started_at = now
        padding = self._padding(self._instance)
        if self._prover is not None:
            padding = identity_proof.challenge(padding, self._prover)
        self._request = padding
        self._send_establish_connection(
            client=self._own_id,
            server=NULL_GUID if self._expected_remote is None else self._expected_remote,
            timestamp_ms=int(now * 1000) & 0xFFFFFFFF,
            no_ping=True,
            padding=padding,
        )
        return SessionState.WAITING_ECR

    def receive(
        self, state: SessionState, kind: PacketKind, packet: bytes, now: float
    ) -> SessionState:
        """Process the peer's next packet and return the new state.

        Raises SessionOver if the session must end, and ProtocolError for a malformed packet.
        """
        step = _STEPS.get((state, kind))
        if step is None:
            raise _not_allowed(state, kind)
        return step(self, packet, now)

    def _take_connection_request(self, packet: bytes, now: float) -> SessionState:
        """Answer a connection request. [MS-MQQB] 3.1.5.3.1"""
        request = parse_establish_connection(packet)
        if request.internal.flags.connection_refused:
            raise SessionOver("the peer asked for a session and refused it at once")
        foreign = request.server not in (self._own_id, NULL_GUID)
        self._met = met = from_padding(request.padding)
        will_prove = self._will_prove(request.padding)
        hindrance = None
        if not (foreign or self._refuse or will_prove):
            hindrance = self._hindrance(request.client)
        refused = foreign or self._refuse or hindrance is not None
        answer = self._instance if met is not None else None
        if answer is not None and hindrance is not None:
            answer = answer._replace(refusal=_refusal(hindrance))
        padding = self._padding(answer)
        if will_prove and not refused:
            assert self._prover is not None
            exchange = Exchange(request.client, self._own_id, request.padding, b"")
            padding = identity_proof.answer(padding, self._prover, exchange)
            self._exchange = exchange._replace(response=padding)
        self._send_establish_connection(
            client=request.client,
            server=self._own_id,
            timestamp_ms=request.timestamp,
            no_ping=bool(request.operating_system.no_ping),
            refused=refused,
            padding=padding,
        )
        if hindrance is not None:
            raise SessionOver(f"refused: {hindrance}")
        if foreign:
            raise SessionOver("refused: the peer asked for another queue manager")
        if refused:
            raise SessionOver("refused: too many sessions")
        self.peer_id = request.client
        return SessionState.WAITING_CP

    def _will_prove(self, request: bytes) -> bool:
        """Return whether to answer the challenge in the padding of a request, if it has one."""
        prover = self._prover
        return (
            prover is not None
            and identity_proof.is_challenge(request)
            and prover.is_own(identity_proof.dialled_address(request))
        )

    def _hindrance(self, guid: bytes) -> str | None:
        """Return why there must be no session with the other end, or None.

        The judge is called once and then dropped: it references the connection, and would keep a
        closed one in memory.
        """
        judge, self._judge = self._judge, None
        return None if judge is None else judge(guid, self._met, self.peer_key)

    def _take_proof(self, packet: bytes, now: float) -> SessionState:
        """Check the proof of the initiator's key, after our own proof. identity_proof.py"""
        if self._exchange is None or self._prover is None or self.peer_key is not None:
            raise _not_allowed(SessionState.WAITING_CP, _WHO)
        stated = parse_establish_connection(packet)
        if (stated.client, stated.server) == self._exchange[:2]:
            self.peer_key = identity_proof.initiator_key(
                self._prover, self._exchange, stated.padding
            )
        if self.peer_key is None:
            raise SessionOver(NOT_PROVEN)
        return SessionState.WAITING_CP

    def _take_connection_response(self, packet: bytes, now: float) -> SessionState:
        """Check the answer to our connection request. [MS-MQQB] 3.1.5.3.2"""
        response = parse_establish_connection(packet)
        if response.internal.flags.connection_refused:
            self._take_refusal(packet, now)
        if response.client != self._own_id:
            raise SessionOver(
                "the peer answered a connection request that this computer did not send"
            )
        if self._expected_remote not in (None, response.server):
            raise SessionOver("another queue manager than the expected one answered")
        self._met = from_padding(response.padding)
        if self._prover is not None and identity_proof.is_answer(response.padding):
            self._exchange = Exchange(
                self._own_id, response.server, self._request, response.padding
            )
            self.peer_key = identity_proof.acceptor_key(self._prover, self._exchange)
            if self.peer_key is None:
                raise SessionOver(NOT_PROVEN)
        hindrance = self._hindrance(response.server)
        if hindrance is not None:
            raise SessionOver(hindrance)
        self.peer_id = response.server
        if self._prover is not None and self._exchange is not None:
            self._send_establish_connection(
                client=self._own_id,
                server=response.server,
                timestamp_ms=response.timestamp,
                no_ping=True,
                padding=identity_proof.proof(
                    self._padding(self._instance), self._prover, self._exchange
                ),
            )
        # Measure with our own clock: the time stamp that the peer returns need not be ours.
        self.timeouts = _proposal(self._settings, now - self._started_at)
        recoverable_ack_ms, ack_ms = _in_range(
            round(self.timeouts.recoverable_ack_s * 1000), round(self.timeouts.ack_s * 1000)
        )
        self._send_parameters(recoverable_ack_ms, ack_ms)
        return SessionState.WAITING_CPR

    def _take_refusal(self, packet: bytes, now: float) -> NoReturn:
        """End the session: the acceptor refuses it, at once or after the proofs of both ends."""
        answer = parse_establish_connection(packet)
        met = from_padding(answer.padding)
        if not answer.internal.flags.connection_refused:
            raise _not_allowed(SessionState.WAITING_CPR, _WHO)
        if met is not None and met.refusal == TWO_OF_ONE_IDENTITY:
            self.refused_as_another = True
            raise SessionOver(f"the peer refused the session: {REFUSED_AS_ANOTHER}")
        if met is not None and met.refusal == NEEDS_TLS:
            self.offered_tls_port = met.tls_port
            raise SessionOver("the peer refused the session: it needs TLS")
        raise SessionOver("the peer refused the session")

    def _take_parameters_request(self, packet: bytes, now: float) -> SessionState:
        """Echo the time-outs unchanged, and use them within their ranges. [MS-MQQB] 3.1.5.4.1"""
        request = self._take_parameters(packet)
        hindrance = self._hindrance(self.peer_id)
        if hindrance is not None:
            own = self._instance
            self._send_establish_connection(
                client=self.peer_id,
                server=self._own_id,
                timestamp_ms=0,
                no_ping=True,
                refused=True,
                padding=self._padding(own and own._replace(refusal=_refusal(hindrance))),
            )
            raise SessionOver(f"refused: {hindrance}")
        recoverable_ack_ms, ack_ms = _in_range(request.recoverable_ack_timeout, request.ack_timeout)
        self.timeouts = Timeouts(ack_ms / 1000, recoverable_ack_ms / 1000)
        self._send_parameters(request.recoverable_ack_timeout, request.ack_timeout)
        return SessionState.OPEN

    def _take_parameters_response(self, packet: bytes, now: float) -> SessionState:
        """Take the acceptor's parameters. [MS-MQQB] 3.1.5.4.2"""
        self._take_parameters(packet)
        return SessionState.OPEN

    def _take_parameters(self, packet: bytes) -> ConnectionParameters:
        parameters = parse_connection_parameters(packet)
        if parameters.internal.flags.connection_refused:
            raise SessionOver("the peer refused the session")
        self.peer_window = parameters.window_size
        return parameters

    def _padding(self, instance: Instance | None) -> bytes:
        return FILL if instance is None else to_padding(instance)

    def _send_establish_connection(
        self,
        *,
        client: bytes,
        server: bytes,
        timestamp_ms: int,
        no_ping: bool,
        padding: bytes,
        refused: bool = False,
    ) -> None:
        system = OperatingSystem.of(constant=_OPERATING_SYSTEM, no_ping=no_ping, server=1)
        packet = establish_connection(
            client=client,
            server=server,
            timestamp=timestamp_ms,
            operating_system=system,
            refused=refused,
            padding=padding,
        )
        self._output.append(build_establish_connection(packet))

    def _send_parameters(self, recoverable_ack_timeout_ms: int, ack_timeout_ms: int) -> None:
        packet = connection_parameters(
            recoverable_ack_timeout_ms=recoverable_ack_timeout_ms,
            ack_timeout_ms=ack_timeout_ms,
            window_size=self.own_window,
        )
        self._output.append(build_connection_parameters(packet))


_Step = Callable[[Handshake, bytes, float], SessionState]
_WHO, _HOW = PacketKind.ESTABLISH_CONNECTION, PacketKind.CONNECTION_PARAMETERS

# Allowed packets by state. [MS-MQQB] 3.1.5.3, 3.1.5.4
_STEPS: dict[tuple[SessionState, PacketKind], _Step] = {
    (SessionState.WAITING_EC, _WHO): Handshake._take_connection_request,
    (SessionState.WAITING_ECR, _WHO): Handshake._take_connection_response,
    (SessionState.WAITING_CP, _WHO): Handshake._take_proof,
    (SessionState.WAITING_CP, _HOW): Handshake._take_parameters_request,
    (SessionState.WAITING_CPR, _WHO): Handshake._take_refusal,
    (SessionState.WAITING_CPR, _HOW): Handshake._take_parameters_response,
}

_TEXT = {
    _WHO: "a connection request or response",
    _HOW: "connection parameters",
    PacketKind.SESSION_ACK: "a session acknowledgment",
    PacketKind.USER_MESSAGE: "a user message",
}


def _refusal(hindrance: str) -> int:
    return NEEDS_TLS if isinstance(hindrance, TlsNeeded) else TWO_OF_ONE_IDENTITY


def _not_allowed(state: SessionState, kind: PacketKind) -> SessionOver:
    return SessionOver(f"the peer sent {_TEXT[kind]} while the session was {state.value}")


def _proposal(settings: SessionSettings, round_trip_s: float) -> Timeouts:
    recoverable_ack_s = ROUND_TRIPS * round_trip_s
    recoverable_ack_s = max(recoverable_ack_s, settings.recoverable_ack_min_s)
    recoverable_ack_s = min(recoverable_ack_s, settings.recoverable_ack_max_s)
    return Timeouts(settings.ack_timeout_s, recoverable_ack_s)


def _in_range(recoverable_ack_ms: int, ack_ms: int) -> tuple[int, int]:
    return (
        min(max(recoverable_ack_ms, RECOVERABLE_ACK_MS_MIN), RECOVERABLE_ACK_MS_MAX),
        min(max(ack_ms, ACK_TIMEOUT_MS_MIN), ACK_TIMEOUT_MS_MAX),
    )
