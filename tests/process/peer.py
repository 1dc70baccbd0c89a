"""An independent queue manager for the tests: speaks MS-MQQB, and doubts every byte it gets.

`RemoteQueueManager` lives as long as a test: its GUID, its message ids, its transactional
sequences, and a ledger of all that the daemon ever sent to it.  It connects to the daemon
(`connect`) or waits for it (`listen`); either gives a `Peer`, one session over one blocking
socket.  Whatever arrives is parsed by `tests.process.wire`, counted and checked against the
rules of the session (QB 3.1.1.4, 3.1.1.6.1, 3.1.5.5), and only then handed on.

To misbehave, build bytes with `wire`, break them, and send them with `Peer.send_raw` or a
bare `Connection`.
"""

from __future__ import annotations

import itertools
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from tests.patience import END_S
from tests.process import wire
from tests.process.wire import Establish, Message, Parameters, Session, Violation, require

TIMEOUT_S = END_S
DAEMON_WINDOW = 64  # QB 3.1.3.2
_DEFAULT: object = object()


class Closed(Exception):
    """The daemon closed the connection."""


class Connection:
    """One TCP connection, and whole packets out of it; no session, no rules."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._buffer = bytearray()
        self._ended = False
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @classmethod
    def open(cls, port: int, *, source: str | None = None) -> Connection:
        address = (source, 0) if source else None
        return cls(socket.create_connection(("127.0.0.1", port), TIMEOUT_S, address))

    def send(self, data: bytes) -> None:
        self.sock.settimeout(TIMEOUT_S)
        try:
            self.sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Closed from error

    def send_all_it_takes(self, data: bytes) -> bool:
        """Send until the daemon hangs up; whether it took everything."""
        try:
            self.send(data)
        except Closed:
            return False
        return True

    def frame(self, timeout_s: float = TIMEOUT_S) -> bytes:
        """The next whole packet.  Raises TimeoutError or Closed."""
        deadline = time.monotonic() + timeout_s
        self._fill(16, deadline)
        header = wire.parse_base(self._buffer[:16])
        length = wire.wire_length(header)
        self._fill(length, deadline)
        data = bytes(self._buffer[:length])
        del self._buffer[:length]
        return data

    def has_data(self) -> bool:
        """Whether a read would not wait."""
        return bool(self._buffer) or bool(select.select([self.sock], [], [], 0)[0])

    def _fill(self, count: int, deadline: float) -> None:
        while len(self._buffer) < count:
            data = self._recv(deadline - time.monotonic())
            if not data:
                require(not self._buffer, "QB 3.1.5.9", "closed in the middle of a packet")
                raise Closed
            self._buffer += data

    def _recv(self, timeout_s: float) -> bytes:
        if self._ended:
            return b""
        if timeout_s <= 0:
            raise TimeoutError("the daemon sent nothing")
        self.sock.settimeout(timeout_s)
        try:
            data = self.sock.recv(1 << 18)
        except (ConnectionResetError, BrokenPipeError):
            data = b""
        self._ended = not data
        return data

    def expect_closed(self, timeout_s: float = TIMEOUT_S) -> list[bytes]:
        """The daemon hangs up; what it said before, packet by packet."""
        said: list[bytes] = []
        try:
            while True:
                said.append(self.frame(timeout_s))
        except Closed:
            return said
        except TimeoutError:
            raise AssertionError(f"still open after {timeout_s} s; it said {said!r}") from None

    def expect_silence(self, seconds: float) -> None:
        """Neither a byte nor an end for so long."""
        if self._buffer:
            raise AssertionError(f"unread: {bytes(self._buffer)!r}")
        readable, _, _ = select.select([self.sock], [], [], seconds)
        if readable:
            raise AssertionError(f"not silent: {self.sock.recv(1 << 16)!r}")

    def half_close(self) -> None:
        self.sock.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """End with RST, as a host does that lost its state."""
        linger = struct.pack("ii", 1, 0)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.close()

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass
class Ledger:
    """All user messages that the daemon sent us, over all sessions."""

    by_id: dict[tuple[bytes, int], Message] = field(default_factory=dict)
    numbers: dict[tuple[int, int], tuple[bytes, int]] = field(default_factory=dict)

    def enter(self, message: Message) -> bool:
        """Check a message against what came before; whether it is one sent again."""
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
    """A queue manager somewhere else: what outlives its sessions."""

    def __init__(self, guid: bytes | None = None) -> None:
        self.guid = guid or os.urandom(16)
        self.ledger = Ledger()
        self.daemon_guid: bytes | None = None
        self.relayed = False  # its acknowledgments may be of and for somebody else
        self.highest_sent: dict[int, int] = {}  # sequence id -> highest number ever built
        self.order_acked: dict[int, int] = {}  # sequence id -> highest order ack that came
        self._message_ids = itertools.count(1)
        self._ids_of: dict[tuple[str, int, int], int] = {}  # of transactional ones, which keep them
        self._timestamp = wire.now_s() - 1000
        self._ordinals = itertools.count(1)
        self._open: list[Connection | Listener] = []

    # -- making messages --

    def next_id(self) -> int:
        return next(self._message_ids)

    def new_sequence(self) -> int:
        """A TxSequenceID greater than all before it (QB 3.1.1.5)."""
        return self._timestamp << 32 | next(self._ordinals)

    def message(self, queue: str, body: bytes = b"", **properties: object) -> bytes:
        """A message without transaction to a private queue of the daemon."""
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
        """Message `number` of a sequence; its body says the number unless given."""
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
    ) -> Peer:
        """A session that we initiated, OPEN (QB 3.1.5.3, 3.1.5.4)."""
        connection = self.adopt(Connection.open(port, source=source))
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
        """A place for the daemon to connect to: `listener.port`."""
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
    """QB 2.2.3.1 and 3.1.5.3.1: what an acceptor copies and what it adds."""
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
        """What `qmd send` is told."""
        return f"DIRECT=TCP:127.0.0.1:{self.port}\\private$\\{queue}"

    def accept_raw(self, timeout_s: float = TIMEOUT_S) -> Connection:
        """A connection whose first packet has not been read.  Raises TimeoutError."""
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
    ) -> Peer:
        """The daemon's next session, OPEN."""
        connection = connection or self.accept_raw(timeout_s)
        request = self.read_request(connection, timeout_s)
        connection.send(
            wire.establish(
                client=request.client,
                server=self.owner.guid,
                timestamp=request.timestamp,
                operating_system=request.operating_system & 0x100 | 0x0210,
                padding=b"\x5a" * 512,
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
        """The daemon's EC request (QB 3.1.5.2.3), checked."""
        request = wire.parse(connection.frame(timeout_s))
        require(isinstance(request, Establish), "QB 3.1.5.2.3", f"{request} opens a session")
        assert isinstance(request, Establish)
        require(not request.refused, "QB 2.2.1", "CS in a request")
        require(request.server == wire.NULL_GUID, "QB 2.2.3.1", "ServerGuid for a direct name")
        require(request.operating_system & 0x100, "QB 2.2.3.1", "SE is 0 though no ping was sent")
        self.owner._remember(request.client)
        return request

    def read_proposal(self, connection: Connection, timeout_s: float = TIMEOUT_S) -> Parameters:
        """The daemon's CP request (QB 3.1.5.3.2), checked."""
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


@dataclass
class Outstanding:
    """A user-type packet that we sent and the daemon has not acknowledged."""

    number: int
    recoverable_number: int
    packet: bytes


class Peer:
    """One OPEN session with the daemon, from our side of it.

    All counters are whole numbers here; on the wire they are taken modulo 2**16.
    With `auto_ack` every message is session-acknowledged as soon as it was read.
    """

    def __init__(
        self,
        owner: RemoteQueueManager,
        connection: Connection,
        *,
        own_window: int,
        remote_window: int,
    ) -> None:
        self.owner, self.connection = owner, connection
        self.own_window, self.remote_window = own_window, max(1, remote_window)
        self.auto_ack = True
        self.parameters: Parameters | None = None
        # What we sent.
        self.sent = self.recoverable_sent = 0
        self.acknowledged = 0
        self.outstanding: list[Outstanding] = []
        self.unstored: set[int] = set()  # recoverable numbers without their bit
        # What came.
        self.received = self.recoverable_received = 0
        self.received_acknowledged = 0
        self.unacknowledged_recoverable: list[int] = []
        self.inbox: list[Message] = []
        self.resent: list[Message] = []  # those of the inbox that were sent before
        self.session_acks: list[Session] = []
        self.order_acks: list[Message] = []
        self.final_acks: list[Message] = []
        self._order_acked = dict(owner.order_acked)  # by sequence, the last one of this session
        self._window_limit = max(1, own_window)

    # -- sending --

    def send(
        self, packet: bytes, *, piggyback: bool = False, timeout_s: float = TIMEOUT_S
    ) -> Outstanding:
        """Send one user-type packet, waiting for room in the daemon's window."""
        limit = min(DAEMON_WINDOW, self.remote_window)
        self.wait(lambda: self.sent - self.acknowledged < limit, timeout_s, "room in the window")
        return self.send_now(packet, piggyback=piggyback)

    def send_now(self, packet: bytes, *, piggyback: bool = False) -> Outstanding:
        """Send whatever the window says."""
        entry = self.count(packet)
        if piggyback:
            packet = self.with_session_header(packet)
        self.connection.send(packet)
        return entry

    def send_many(self, packets: Iterable[bytes], timeout_s: float = TIMEOUT_S) -> None:
        """As fast as the window lets us, a window in one write."""
        waiting = list(packets)[::-1]
        limit = min(DAEMON_WINDOW, self.remote_window)
        while waiting:
            self.wait(lambda: self.sent - self.acknowledged < limit, timeout_s, "the window")
            batch: list[bytes] = []
            while waiting and self.sent - self.acknowledged < limit:
                packet = waiting.pop()
                self.count(packet)
                batch.append(packet)
            self.connection.send(b"".join(batch))

    def count(self, packet: bytes) -> Outstanding:
        """Give a packet that is about to be sent its session numbers (QB 3.1.7.1.3)."""
        self.sent += 1
        recoverable_number = 0
        (flags,) = struct.unpack_from("<I", packet, 60)
        if flags & wire.DM:
            self.recoverable_sent += 1
            recoverable_number = self.recoverable_sent
            self.unstored.add(recoverable_number)
        entry = Outstanding(self.sent, recoverable_number, packet)
        self.outstanding.append(entry)
        return entry

    def with_session_header(self, packet: bytes, **changes: int) -> bytes:
        """Piggyback a SessionHeader; the packet has been counted already."""
        (flags,) = struct.unpack_from("<H", packet, 2)
        head = packet[:2] + struct.pack("<H", flags | wire.SH) + packet[4:]
        header = replace(self._next_header(), **changes)
        self._sent_header()
        return head + header.build()

    def send_raw(self, data: bytes) -> None:
        """Bytes that no counter knows of."""
        self.connection.send(data)

    # -- acknowledging --

    def session_ack(
        self, *, window: int | None = None, stored: int | None = None, **changes: int
    ) -> None:
        """Acknowledge all that came; the recoverable ones too, or only the first `stored`."""
        if window is not None:
            self.announce(window)
        while True:
            header = replace(self._next_header(stored), **changes)
            self.connection.send(wire.session_ack(header))
            self._sent_header(stored)
            if not self.unacknowledged_recoverable or stored is not None:
                return

    def announce(self, window: int) -> None:
        """The next header says this; a smaller window is enforced from `enforce_window` on."""
        self.own_window = window
        self._window_limit = max(self._window_limit, window)

    def enforce_window(self) -> None:
        """From here on the daemon must know our last WindowSize."""
        self._window_limit = max(1, self.own_window)

    def _next_header(self, stored: int | None = None) -> Session:
        numbers = self.unacknowledged_recoverable[:stored]
        first = numbers[0] if numbers else 0
        flags = 0
        for number in numbers:
            if number - first < 32:
                flags |= 1 << (number - first)
        return Session(
            acknowledged=self.received,
            recoverable_acknowledged=first,
            recoverable_flags=flags,
            sent=self.sent,
            recoverable_sent=self.recoverable_sent,
            window=max(1, self.own_window),
        )

    def _sent_header(self, stored: int | None = None) -> None:
        self.received_acknowledged = self.received
        numbers = self.unacknowledged_recoverable[:stored]
        done = [number for number in numbers if number - numbers[0] < 32]
        del self.unacknowledged_recoverable[: len(done)]

    def order_ack(self, sequence_id: int, number: int) -> None:
        """Acknowledge a sequence of the daemon end to end (QB 2.2.4)."""
        self.send(
            wire.order_ack(
                source=self.owner.guid,
                message_id=self.owner.next_id(),
                sequence_id=sequence_id,
                number=number,
            )
        )

    def final_ack(self, message: Message, message_class: int) -> None:
        """Tell the daemon the fate of one of its transactional messages (QB 2.2.5)."""
        self.send(
            wire.final_ack(
                source=self.owner.guid,
                message_id=self.owner.next_id(),
                message_class=message_class,
                of=message,
            )
        )

    # -- receiving --

    def read(self, timeout_s: float = TIMEOUT_S) -> wire.Packet:
        """The next packet, checked and counted.  Raises TimeoutError, Closed, Violation."""
        packet = wire.parse(self.connection.frame(timeout_s))
        if isinstance(packet, Session):
            self._take_header(packet)
        elif isinstance(packet, Message):
            self._take_message(packet)
        else:
            raise Violation(f"[digest 11.2] {packet} on an open session")
        return packet

    def wait(
        self, condition: Callable[[], bool], timeout_s: float = TIMEOUT_S, what: str = "it"
    ) -> None:
        """Read until something holds."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            try:
                self.read(deadline - time.monotonic())
            except TimeoutError:
                raise TimeoutError(f"waited {timeout_s} s for {what}; {self}") from None

    def read_for(self, seconds: float) -> int:
        """Read all that comes for a while; how many packets that were."""
        deadline = time.monotonic() + seconds
        packets = 0
        while (left := deadline - time.monotonic()) > 0:
            try:
                self.read(left)
            except TimeoutError:
                break
            packets += 1
        return packets

    def receive(self, timeout_s: float = TIMEOUT_S) -> Message:
        """The next ordinary message (no order or final ack) from the daemon."""
        self.wait(lambda: bool(self.inbox), timeout_s, "a message")
        return self.inbox.pop(0)

    def receive_many(self, count: int, timeout_s: float = TIMEOUT_S) -> list[Message]:
        deadline = time.monotonic() + timeout_s
        return [self.receive(deadline - time.monotonic()) for _ in range(count)]

    def wait_acknowledged(self, number: int | None = None, timeout_s: float = TIMEOUT_S) -> None:
        """Until AckSequenceNumber covers all that we sent, or the first `number`."""
        target = self.sent if number is None else number
        self.wait(lambda: self.acknowledged >= target, timeout_s, f"session ack {target}")

    def wait_stored(self, timeout_s: float = TIMEOUT_S) -> None:
        """Until every recoverable message that we sent has its bit."""
        self.wait(lambda: not self.unstored, timeout_s, "the recoverable bits")

    def wait_order_ack(self, sequence_id: int, number: int, timeout_s: float = TIMEOUT_S) -> None:
        acked = self.owner.order_acked
        self.wait(lambda: acked.get(sequence_id, 0) >= number, timeout_s, f"order ack {number}")

    def expect_closed(self, timeout_s: float = TIMEOUT_S) -> None:
        """The daemon ends the session; what it still says is checked as always."""
        deadline = time.monotonic() + timeout_s
        try:
            while True:
                self.read(deadline - time.monotonic())
        except Closed:
            return
        except TimeoutError:
            raise AssertionError(f"still open after {timeout_s} s: {self}") from None

    def close(self) -> None:
        self.connection.close()

    def _take_header(self, header: Session) -> None:
        """QB 3.1.5.5 and MQ 2.2.20.4, from the side that is acknowledged."""
        self.session_acks.append(header)
        self.remote_window = header.window
        acknowledged = self.sent - ((self.sent - header.acknowledged) & 0xFFFF)
        require(
            self.acknowledged <= acknowledged,
            "MQ 2.2.20.4",
            f"AckSequenceNumber {header.acknowledged}: {self.sent} sent, {self.acknowledged} were"
            " acknowledged already",
        )
        self.acknowledged = acknowledged
        require(
            header.sent == self.received & 0xFFFF,
            "QB 3.1.5.5.5",
            f"UserMsgSequenceNumber is {header.sent}, but {self.received} came",
        )
        require(
            header.recoverable_sent == self.recoverable_received & 0xFFFF,
            "QB 3.1.5.5.5",
            f"RecoverableMsgSeqNumber is {header.recoverable_sent}, but"
            f" {self.recoverable_received} came",
        )
        self._take_bits(header)
        self.outstanding = [
            each
            for each in self.outstanding
            if each.number > acknowledged or each.recoverable_number in self.unstored
        ]

    def _take_bits(self, header: Session) -> None:
        flags = header.recoverable_flags
        if not flags:
            none = header.recoverable_acknowledged == 0
            require(none, "MQ 2.2.20.4", "RecoverableMsgAckSeqNumber without a flag")
            return
        require(flags & 1, "MQ 2.2.20.4", "bit 0 stands for the number itself and is clear")
        behind = (self.recoverable_sent - header.recoverable_acknowledged) & 0xFFFF
        first = self.recoverable_sent - behind
        require(first >= 1, "MQ 2.2.20.4", f"recoverable number {first} acknowledged")
        earlier = min(self.unstored, default=first)
        require(
            earlier >= first,
            "QB 3.1.5.5.3",
            f"RecoverableMsgAckSeqNumber {first} releases {earlier}, which has no bit yet",
        )
        unacknowledged = {
            each.recoverable_number for each in self.outstanding if each.number > self.acknowledged
        }
        for bit in range(32):
            if not flags >> bit & 1:
                continue
            number = first + bit
            sent = number <= self.recoverable_sent
            require(sent, "MQ 2.2.20.4", f"recoverable number {number} was never sent")
            new = number in self.unstored
            require(new, "MQ 2.2.20.4", f"recoverable number {number} acknowledged twice")
            covered = number not in unacknowledged
            require(covered, "MQ 2.2.20.4", f"bit {number} is ahead of AckSequenceNumber")
            self.unstored.remove(number)

    def _take_message(self, message: Message) -> None:
        self.received += 1
        if message.recoverable:
            self.recoverable_received += 1
            self.unacknowledged_recoverable.append(self.recoverable_received)
        limit = min(DAEMON_WINDOW, self._window_limit)
        in_flight = self.received - self.received_acknowledged
        require(
            in_flight <= limit,
            "QB 3.1.7.1",
            f"{in_flight} unacknowledged messages in a window of {limit}",
        )
        if message.session is not None:
            self._take_header(message.session)
        again = self.owner.ledger.enter(message)
        if message.is_order_ack:
            self._take_order_ack(message)
        elif message.is_final_ack:
            self._check_order_address(message)
            self.final_acks.append(message)
        else:
            self.inbox.append(message)
            if again:
                self.resent.append(message)
        if self.auto_ack:
            self.session_ack()

    def _take_order_ack(self, message: Message) -> None:
        sequence_id, number, _ = message.order_body()
        self._check_order_address(message)
        highest = self.owner.highest_sent.get(sequence_id, 0)
        require(
            number <= highest or message.address not in (wire.NULL_GUID, self.owner.guid),
            "QB 3.1.1.6.2",
            f"order ack {number} of sequence {sequence_id:#x}, of which {highest} were sent",
        )
        # What comes by two sessions at once is not read in the order in which it was said.
        before = self._order_acked.get(sequence_id, 0)
        require(number >= before, "QB 3.1.1.6.2", f"order ack {number} after {before}")
        self._order_acked[sequence_id] = number
        highest_before = self.owner.order_acked.get(sequence_id, 0)
        self.owner.order_acked[sequence_id] = max(number, highest_before)
        self.order_acks.append(message)

    def _check_order_address(self, message: Message) -> None:
        """QB 3.1.7.17: to the textual address of our end; over a relay to the source's GUID."""
        if self.owner.relayed:
            require(message.destination.kind == 3, "QB 3.1.7.17", "no private name by its number")
            require(message.destination.number == 4, "QB 3.1.7.17", "not to the order queue")
            require(message.address != wire.NULL_GUID, "QB 3.1.7.17", "to nobody's order queue")
            return
        address = self.connection.sock.getsockname()[0]
        expected = f"TCP:{address}\\PRIVATE$\\order_queue$"
        text = message.destination.text
        require(text.lower() == expected.lower(), "QB 3.1.7.17", f"addressed to {text}")
        guid = self.owner.daemon_guid
        require(message.source == guid, "digest 9", "SourceQueueManager is not the daemon's GUID")

    def __repr__(self) -> str:
        return (
            f"Peer(sent={self.sent} acknowledged={self.acknowledged} unstored={len(self.unstored)}"
            f" received={self.received} order_acked={self.owner.order_acked}"
            f" final_acks={len(self.final_acks)})"
        )
