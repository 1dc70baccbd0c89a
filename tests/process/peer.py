"""One session of an independent queue manager with the daemon; it checks every received byte.

`tests.process.wire` parses each packet; the session counts it and checks it against its rules
(QB 3.1.1.4, 3.1.1.6.1, 3.1.5.5) before a test gets it.

To break the protocol, build bytes with `wire`, change them, and send them with
`Peer.connection.send` or a bare `Connection`.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tests.process import wire
from tests.process.connection import TIMEOUT_S, Closed, Connection
from tests.process.wire import Message, Parameters, Session, Violation, require

if TYPE_CHECKING:
    from tests.process.remote import RemoteQueueManager

DAEMON_WINDOW = 64  # QB 3.1.3.2


@dataclass
class Outstanding:
    """A sent user-type packet that the daemon has not acknowledged."""

    number: int
    recoverable_number: int
    packet: bytes


class Peer:
    """One OPEN session with the daemon, at the remote end.

    All counters are unbounded integers here; on the wire they are taken modulo 2**16.
    With `auto_ack` every message is session-acknowledged as soon as it is read.
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
        # Sent.
        self.sent = self.recoverable_sent = 0
        self.acknowledged = 0
        self.outstanding: list[Outstanding] = []
        self.unstored: set[int] = set()  # recoverable numbers without their bit
        # Received.
        self.received = self.recoverable_received = 0
        self.received_acknowledged = 0
        self.unacknowledged_recoverable: list[int] = []
        self.inbox: list[Message] = []
        self.resent: list[Message] = []  # messages of the inbox that were sent before
        self.session_acks: list[Session] = []
        self.order_acks: list[Message] = []
        self.final_acks: list[Message] = []
        self._order_acked = dict(owner.order_acked)  # by sequence, the last one of this session
        self._window_limit = max(1, own_window)

    # -- sending --

    def send(
        self, packet: bytes, *, piggyback: bool = False, timeout_s: float = TIMEOUT_S
    ) -> Outstanding:
        """Send one user-type packet, after a wait for room in the daemon's window."""
        limit = min(DAEMON_WINDOW, self.remote_window)
        self.wait(lambda: self.sent - self.acknowledged < limit, timeout_s, "room in the window")
        return self.send_now(packet, piggyback=piggyback)

    def send_now(self, packet: bytes, *, piggyback: bool = False) -> Outstanding:
        """Send a packet without regard to the window."""
        entry = self.count(packet)
        if piggyback:
            packet = self.with_session_header(packet)
        self.connection.send(packet)
        return entry

    def send_many(self, packets: Iterable[bytes], timeout_s: float = TIMEOUT_S) -> None:
        """Send packets as fast as the window allows, one window per write."""
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
        """Give a packet its session numbers before it is sent (QB 3.1.7.1.3)."""
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
        """Piggyback a SessionHeader on a packet that is already counted."""
        (flags,) = struct.unpack_from("<H", packet, 2)
        head = packet[:2] + struct.pack("<H", flags | wire.SH) + packet[4:]
        header = replace(self._next_header(), **changes)
        self._sent_header()
        return head + header.build()

    # -- acknowledging --

    def session_ack(
        self, *, window: int | None = None, stored: int | None = None, **changes: int
    ) -> None:
        """Acknowledge the received messages; the recoverable ones too, or the first `stored`."""
        if window is not None:
            self.announce(window)
        while True:
            header = replace(self._next_header(stored), **changes)
            self.connection.send(wire.session_ack(header))
            self._sent_header(stored)
            if not self.unacknowledged_recoverable or stored is not None:
                return

    def announce(self, window: int) -> None:
        """Announce a window in the next header; `enforce_window` enforces a smaller one."""
        self.own_window = window
        self._window_limit = max(self._window_limit, window)

    def enforce_window(self) -> None:
        """Require from now on that the daemon respects the last announced WindowSize."""
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
        """Report the fate of a transactional message of the daemon (QB 2.2.5)."""
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
        """Return the next packet, checked and counted.  Raises TimeoutError, Closed, Violation."""
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
        """Read until `condition` holds."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            try:
                self.read(deadline - time.monotonic())
            except TimeoutError:
                raise TimeoutError(f"waited {timeout_s} s for {what}; {self}") from None

    def read_for(self, seconds: float) -> int:
        """Read all packets that arrive within `seconds`; return their number."""
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
        """Return the next ordinary message (no order or final ack) of the daemon."""
        self.wait(lambda: bool(self.inbox), timeout_s, "a message")
        return self.inbox.pop(0)

    def receive_many(self, count: int, timeout_s: float = TIMEOUT_S) -> list[Message]:
        deadline = time.monotonic() + timeout_s
        return [self.receive(deadline - time.monotonic()) for _ in range(count)]

    def wait_acknowledged(self, number: int | None = None, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until AckSequenceNumber covers all sent messages, or the first `number`."""
        target = self.sent if number is None else number
        self.wait(lambda: self.acknowledged >= target, timeout_s, f"session ack {target}")

    def wait_stored(self, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until the bit of every sent recoverable message has arrived."""
        self.wait(lambda: not self.unstored, timeout_s, "the recoverable bits")

    def wait_order_ack(self, sequence_id: int, number: int, timeout_s: float = TIMEOUT_S) -> None:
        acked = self.owner.order_acked
        self.wait(lambda: acked.get(sequence_id, 0) >= number, timeout_s, f"order ack {number}")

    def expect_closed(self, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until the daemon closes the session; check the packets before the end as usual."""
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
        """Check and apply a SessionHeader: QB 3.1.5.5 and MQ 2.2.20.4, at the acknowledged end."""
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
        # Packets of two concurrent sessions are not read in the order of their transmission.
        before = self._order_acked.get(sequence_id, 0)
        require(number >= before, "QB 3.1.1.6.2", f"order ack {number} after {before}")
        self._order_acked[sequence_id] = number
        highest_before = self.owner.order_acked.get(sequence_id, 0)
        self.owner.order_acked[sequence_id] = max(number, highest_before)
        self.order_acks.append(message)

    def _check_order_address(self, message: Message) -> None:
        """Check QB 3.1.7.17: the textual address of this end, or over a relay the source's GUID."""
        if self.owner.relayed:
            require(message.destination.kind == 3, "QB 3.1.7.17", "no private name by its number")
            require(message.destination.number == 4, "QB 3.1.7.17", "not to the order queue")
            require(message.address != wire.NULL_GUID, "QB 3.1.7.17", "a null QueueManagerAddress")
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
