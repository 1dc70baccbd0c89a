"""An independent queue manager for the tests, and the listener that the daemon connects to.

`RemoteQueueManager` lives as long as a test: its GUID, its message ids, its transactional
sequences, and a ledger of all messages that the daemon sent to it.  It connects to the daemon
(`connect`) or accepts its connections (`listen`); either gives a `Peer`, one session over one
blocking socket.
"""

from __future__ import annotations

import itertools
import os
import socket
import time
from dataclasses import dataclass, field

from tests.process import wire
from tests.process.connection import TIMEOUT_S, Connection
from tests.process.peer import Peer
from tests.process.wire import Establish, Message, Parameters, require


@dataclass
class Ledger:
    """All user messages that the daemon sent to this queue manager, over all sessions."""

    by_id: dict[tuple[bytes, int], Message] = field(default_factory=dict)
    numbers: dict[tuple[int, int], tuple[bytes, int]] = field(default_factory=dict)

    def enter(self, message: Message) -> bool:
        """Check a message against earlier ones; return whether it is a retransmission."""
        key = message.source, message.message_id
        if message.transaction is not None:
            place = message.transaction.sequence_id, message.transaction.number
            holder = self.numbers.setdefault(place, key)
            require(holder == key, "QB 3.1.1.5", f"number {place} was given to {holder} and {key}")
        first = self.by_id.setdefault(key, message)
        if first is message:
            return False
        for name in ("source", "sent_time", "destination", "label", "body", "message_class"):
            old, new = getattr(first, name), getattr(message, name)
            require(old == new, "digest 11.3", f"{name} of a resent message: {old!r} -> {new!r}")
        old_t, new_t = first.transaction, message.transaction
        require((old_t is None) == (new_t is None), "digest 11.3", "transactional or not, at will")
        if old_t is not None and new_t is not None:
            require(old_t.sequence_id == new_t.sequence_id, "digest 15.2", "TxSequenceID changed")
            require(old_t.number == new_t.number, "digest 15.2", "TxSequenceNumber changed")
            require(new_t.previous <= old_t.previous, "digest 25.14", "previous number grew")
        return True


class RemoteQueueManager:
    """A remote queue manager: the state that its sessions share."""

    def __init__(self, guid: bytes | None = None) -> None:
        self.guid = guid or os.urandom(16)
        self.ledger = Ledger()
        self.daemon_guid: bytes | None = None
        self.relayed = False  # its acknowledgments may name a third queue manager
        self.highest_sent: dict[int, int] = {}  # sequence id -> highest number ever built
        self.order_acked: dict[int, int] = {}  # sequence id -> highest received order ack
        self._message_ids = itertools.count(1)
        self._ids_of: dict[tuple[str, int, int], int] = {}  # of transactional messages
        self._timestamp = wire.now_s() - 1000
        self._ordinals = itertools.count(1)
        self._open: list[Connection | Listener] = []

    # -- building messages --

    def next_id(self) -> int:
        return next(self._message_ids)

    def new_sequence(self) -> int:
        """Return a TxSequenceID greater than all earlier ones (QB 3.1.1.5)."""
        return self._timestamp << 32 | next(self._ordinals)

    def message(self, queue: str, body: bytes = b"", **properties: object) -> bytes:
        """Return a message without transaction to a private queue of the daemon."""
        properties.setdefault("message_id", self.next_id())
        properties.setdefault("destination", wire.private(queue))
        return wire.message(source=self.guid, body=body, **properties)  # type: ignore[arg-type]

    def transactional(
        self,
        queue: str,
        sequence_id: int,
        number: int,
        previous: int | None = None,
        body: bytes | None = None,
        **properties: object,
    ) -> bytes:
        """Return message `number` of a sequence; its body is the number unless given."""
        previous = number - 1 if previous is None else previous
        body = b"%d" % number if body is None else body
        self.highest_sent[sequence_id] = max(self.highest_sent.get(sequence_id, 0), number)
        own_id = self._ids_of.setdefault((queue, sequence_id, number), self.next_id())
        properties.setdefault("message_id", own_id)
        header = wire.Transaction(0xC | (number & 0xFFFFF) << 4, sequence_id, number, previous)
        return self.message(queue, body, transaction=header, **properties)

    # -- sessions --

    def connect(
        self,
        port: int,
        *,
        window: int = 64,
        server: bytes = wire.NULL_GUID,
        recoverable_ack_timeout_ms: int = 500,
        ack_timeout_ms: int = 20_000,
        source: str | None = None,
        host: str = "127.0.0.1",
    ) -> Peer:
        """Open a session as its initiator (QB 3.1.5.3, 3.1.5.4)."""
        connection = self.adopt(Connection.open(port, source=source, host=host))
        timestamp = int(time.monotonic() * 1000) & 0xFFFFFFFF
        connection.send(wire.establish(client=self.guid, server=server, timestamp=timestamp))
        answer = wire.parse(connection.frame())
        require(isinstance(answer, Establish), "QB 3.1.5.3.1", f"{answer} answers EC")
        assert isinstance(answer, Establish)
        check_establish_response(answer, client=self.guid, timestamp=timestamp, system=0x0310)
        require(not answer.refused, "QB 3.1.5.3.1", "a session was refused")
        self._remember(answer.server)
        connection.send(
            wire.parameters(
                recoverable_ack_timeout_ms=recoverable_ack_timeout_ms,
                ack_timeout_ms=ack_timeout_ms,
                window=window,
            )
        )
        echo = wire.parse(connection.frame())
        require(isinstance(echo, Parameters), "QB 3.1.5.4.1", f"{echo} answers CP")
        assert isinstance(echo, Parameters)
        require(
            (echo.recoverable_ack_timeout_ms, echo.ack_timeout_ms)
            == (recoverable_ack_timeout_ms, ack_timeout_ms),
            "QB 3.1.5.4.1",
            f"the timeouts came back as {echo}",
        )
        return Peer(self, connection, own_window=window, remote_window=echo.window)

    def listen(self, port: int = 0) -> Listener:
        """Listen for connections of the daemon at `listener.port`."""
        listener = Listener(self, port)
        self._open.append(listener)
        return listener

    def adopt(self, connection: Connection) -> Connection:
        self._open.append(connection)
        return connection

    def _remember(self, daemon_guid: bytes) -> None:
        require(daemon_guid != wire.NULL_GUID, "QB 3.1.5.3.1", "the daemon has no GUID")
        known = self.daemon_guid or daemon_guid
        require(known == daemon_guid, "QB 3.1.5.3.1", "the daemon changed its GUID")
        self.daemon_guid = daemon_guid

    def close(self) -> None:
        for each in self._open:
            each.close()

    def __enter__(self) -> RemoteQueueManager:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_establish_response(
    answer: Establish, *, client: bytes, timestamp: int, system: int
) -> None:
    """Check QB 2.2.3.1 and 3.1.5.3.1: the fields that an acceptor copies and those that it adds."""
    require(answer.client == client, "QB 3.1.5.3.1", "ClientGuid is not that of the request")
    require(answer.timestamp == timestamp, "QB 3.1.5.3.1", "TimeStamp is not that of the request")
    same_ping = answer.operating_system & 0x100 == system & 0x100
    require(same_ping, "QB 3.1.5.3.1", "OperatingSystem.SE is not that of the request")
    require(answer.padding == b"\x5a" * 512, "QB 2.2.3.1", "Padding of a response is not 0x5A")
    require(answer.server != wire.NULL_GUID, "QB 3.1.5.3.1", "ServerGuid is null")


class Listener:
    """A listening socket on loopback; the daemon is the initiator."""

    def __init__(self, owner: RemoteQueueManager, port: int = 0) -> None:
        self.owner = owner
        self.sock = socket.create_server(("127.0.0.1", port), backlog=16)
        self.port: int = self.sock.getsockname()[1]

    def destination(self, queue: str) -> str:
        """Return the destination for `qmd send`."""
        return f"DIRECT=TCP:127.0.0.1:{self.port}\\private$\\{queue}"

    def accept_raw(self, timeout_s: float = TIMEOUT_S) -> Connection:
        """Return a connection before its first packet is read.  Raises TimeoutError."""
        self.sock.settimeout(timeout_s)
        sock, _ = self.sock.accept()
        return self.owner.adopt(Connection(sock))

    def accept(
        self,
        timeout_s: float = TIMEOUT_S,
        *,
        window: int = 64,
        auto_ack: bool = True,
        connection: Connection | None = None,
        padding: bytes = b"\x5a" * 512,
    ) -> Peer:
        """Accept the daemon's next session; return it OPEN."""
        connection = connection or self.accept_raw(timeout_s)
        request = self.read_request(connection, timeout_s)
        connection.send(
            wire.establish(
                client=request.client,
                server=self.owner.guid,
                timestamp=request.timestamp,
                operating_system=request.operating_system & 0x100 | 0x0210,
                padding=padding,
            )
        )
        proposal = self.read_proposal(connection, timeout_s)
        connection.send(
            wire.parameters(
                recoverable_ack_timeout_ms=proposal.recoverable_ack_timeout_ms,
                ack_timeout_ms=proposal.ack_timeout_ms,
                window=window,
            )
        )
        peer = Peer(self.owner, connection, own_window=window, remote_window=proposal.window)
        peer.parameters = proposal
        peer.auto_ack = auto_ack
        return peer

    def read_request(self, connection: Connection, timeout_s: float = TIMEOUT_S) -> Establish:
        """Read and check the daemon's EC request (QB 3.1.5.2.3)."""
        request = wire.parse(connection.frame(timeout_s))
        require(isinstance(request, Establish), "QB 3.1.5.2.3", f"{request} opens a session")
        assert isinstance(request, Establish)
        require(not request.refused, "QB 2.2.1", "CS in a request")
        require(request.server == wire.NULL_GUID, "QB 2.2.3.1", "ServerGuid for a direct name")
        require(request.operating_system & 0x100, "QB 2.2.3.1", "SE is 0 though no ping was sent")
        self.owner._remember(request.client)
        return request

    def read_proposal(self, connection: Connection, timeout_s: float = TIMEOUT_S) -> Parameters:
        """Read and check the daemon's CP request (QB 3.1.5.3.2)."""
        proposal = wire.parse(connection.frame(timeout_s))
        require(isinstance(proposal, Parameters), "QB 3.1.5.3.2", f"{proposal} instead of CP")
        assert isinstance(proposal, Parameters)
        times = proposal.recoverable_ack_timeout_ms, proposal.ack_timeout_ms
        require(500 <= times[0] <= 120_000, "QB 2.2.2.1", f"RecoverableAckTimeout {times[0]}")
        require(20_000 <= times[1] <= 120_000, "QB 2.2.2.1", f"AckTimeout {times[1]}")
        require(proposal.window >= 1, "digest 26.36", "WindowSize 0 is never sent")
        return proposal

    def close(self) -> None:
        self.sock.close()
