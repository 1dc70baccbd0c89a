"""One session of a strict host: its states, counters and timers (QB 3.1.1.3.1, 3.1.1.4, 3.1.2).

`feed` takes bytes, `tick` the time; `output` has the segments to write.  When `is_over`, the
connection is to be closed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.strict_host import encoding
from tests.strict_host.decoding import Arrived, Establish, Packet, Parameters, decode, needed
from tests.strict_host.encoding import NULL, Counts
from tests.strict_host.sending import Item
from tests.strict_host.verdict import Unreadable

if TYPE_CHECKING:
    from tests.strict_host.host import StrictHost

WORD = 65536
NEVER = float("inf")
OWN_WINDOW = 64  # of a sender: QB 3.1.3.2, 3.1.7.1


@dataclass
class Transit:
    """A packet that this session has sent, until it is acknowledged."""

    number: int
    recoverable_number: int  # 0: express
    item: Item


class Session:
    """One connection, as its initiator or acceptor."""

    def __init__(
        self, host: StrictHost, *, is_initiator: bool, own_address: str, server: bytes = NULL
    ) -> None:
        self.host = host
        self.is_initiator = is_initiator
        self.own_address = own_address
        self.state = "WAITING_ECR_MSG" if is_initiator else "WAITING_EC_MSG"
        self.output: list[bytes] = []
        self.is_over = False
        self.end_reason = ""
        self.peer: bytes = NULL
        self.peer_window = 0
        self.is_direct = False  # DirectFormatSession
        self._inbox = bytearray()
        # Sent.
        self.sent = self.recoverable_sent = self.acknowledged = 0
        self.in_transit: list[Transit] = []
        self._bits_seen: set[int] = set()
        # Received.
        self.received = self.recoverable_received = 0
        self.unacked: list[Arrived] = []
        self._announced = 0  # the widest window of this session: notes 16
        self.last_numbers: dict[tuple[str, int], int] = {}  # of each sequence that came
        self._stored: list[tuple[int, Arrived]] = []  # no bit has been sent for them
        self._is_active = self._has_heard = False
        # Times; NEVER: the timer is stopped.
        now = host.now()
        self.opened_at = NEVER
        self._started_at = now
        self.initialization_at = now + host.manner.times.initialization_s
        self.cleanup_at = now + host.manner.times.cleanup_s
        self.ack_wait_at = self.ack_send_at = NEVER
        self._ack_send_began_at = now
        self.ack_ms = host.manner.times.ack_ms
        self.recoverable_ms = 500
        self._timestamp = int(now * 1000) % 2**32
        if is_initiator:
            self._write(
                encoding.establish(
                    host.guid, server, self._timestamp, host.manner.system,
                    untidy=host.manner.untidy,
                )
            )  # fmt: skip
            self._server = server

    # -- bytes --

    def _write(self, packet: bytes) -> None:
        self.output.append(packet)
        self.host.trace("sends", self, packet)

    def feed(self, data: bytes) -> None:
        """Take received bytes."""
        self._inbox += data
        try:
            while not self.is_over:
                size = needed(self._inbox, self.host.verdict)
                if len(self._inbox) < size or len(self._inbox) < 16:
                    return
                packet = bytes(self._inbox[:size])
                del self._inbox[:size]
                self.host.trace("receives", self, packet)
                self._has_heard = True
                self._take(decode(packet, self.host.verdict))
        except Unreadable:
            self.close("QB 3.1.5.1.3: an unreadable packet")

    def ended(self, *, by_kill: bool = False) -> None:
        """Notice that the other side closed the connection."""
        if self._inbox and not by_kill:
            self.host.verdict.require(False, "QB 3.1.5.9", "closed inside of a packet")
        self.close("closed by the other side")

    def close(self, reason: str) -> None:
        """Close the session: QB 3.1.5.9."""
        if not self.is_over:
            self.is_over = True
            self.end_reason = reason
            self.host.trace("ends", self, reason.encode())
            self.host.session_ended(self)

    # -- handshake: QB 3.1.5.3, 3.1.5.4 --

    def _take(self, packet: Packet) -> None:
        match packet:
            case Establish():
                self._take_establish(packet)
            case Parameters():
                self._take_parameters(packet)
            case _ if self.state != "OPEN":
                what = "a SessionAck" if isinstance(packet, Counts) else "a user message"
                self._refuse("QB 3.1.5.8", f"{what} in {self.state}")
            case Counts():
                self._take_counts(packet)
                self.host.pump()
            case Arrived():
                self._take_message(packet)

    def _refuse(self, clause: str, text: str) -> None:
        self.host.verdict.require(False, clause, text)
        self.close(f"{clause}: {text}")

    def _take_establish(self, packet: Establish) -> None:
        if self.state == "WAITING_EC_MSG":
            self._answer_establish(packet)
        elif self.state == "WAITING_ECR_MSG":
            self._take_establish_answer(packet)
        else:
            self._refuse("QB 3.1.5.3", f"EstablishConnection in {self.state}")

    def _answer_establish(self, packet: Establish) -> None:
        host, require = self.host, self.host.verdict.require
        require(not packet.refused, "QB 2.2.1", "CS in a request")
        require(any(packet.client), "QB 2.2.3.1", "a null ClientGuid")
        require(packet.system & 0x100, "QB 2.2.3.1", "SE is 0, and no ping came before")
        self.peer = packet.client
        host.meets(packet.client)
        is_valid = packet.server in (NULL, host.guid)
        require(is_valid, "QB 2.2.3.1", f"ServerGuid {packet.server.hex()} is not of this host")
        answer = encoding.establish(
            packet.client, host.guid, packet.timestamp,
            packet.system & 0x100 | host.manner.system & 0x0600 | 0x10,
            refused=not is_valid, is_answer=True, untidy=host.manner.untidy,
        )  # fmt: skip
        if host.manner.answers >= 1:
            self._write(answer)
        self.state = "WAITING_CP_MSG"

    def _take_establish_answer(self, packet: Establish) -> None:
        host, require, clause = self.host, self.host.verdict.require, "QB 3.1.5.3.1"
        require(packet.client == host.guid, clause, "ClientGuid is not that of the request")
        require(packet.timestamp == self._timestamp, clause, "TimeStamp is not that of the request")
        same = packet.system & 0x100 == host.manner.system & 0x100
        require(same, clause, "SE is not that of the request")
        require(packet.padding == b"\x5a" * 512, "QB 2.2.3.1", "Padding of an answer")
        require(any(packet.server), clause, "a null ServerGuid in an answer")
        is_wanted = self._server in (NULL, packet.server)
        require(packet.refused != is_wanted, clause, f"CS is {packet.refused} for this ServerGuid")
        if packet.refused:
            self.close("refused")
            return
        self.peer = packet.server
        host.meets(packet.server)
        self._announced = host.manner.window
        round_trip_ms = int(host.now() * 1000) % 2**32 - self._timestamp
        self.recoverable_ms = min(max(8 * round_trip_ms, 500), 120_000)
        self._write(
            encoding.parameters(
                self.recoverable_ms, self.ack_ms, host.manner.window, untidy=host.manner.untidy
            )
        )
        self.state = "WAITING_CPR_MSG"

    def _take_parameters(self, packet: Parameters) -> None:
        host, require = self.host, self.host.verdict.require
        if self.state == "WAITING_CP_MSG":
            good = 500 <= packet.recoverable_ms <= 120_000
            require(good, "QB 2.2.2.1", f"RecoverableAckTimeout {packet.recoverable_ms}")
            good = 20_000 <= packet.ack_ms <= 120_000
            require(good, "QB 2.2.2.1", f"AckTimeout {packet.ack_ms}")
            self.recoverable_ms, self.ack_ms = packet.recoverable_ms, packet.ack_ms
            self._announced = host.manner.window
            if host.manner.answers < 2:
                return
            self._write(
                encoding.parameters(
                    packet.recoverable_ms, packet.ack_ms, host.manner.window,
                    untidy=host.manner.untidy,
                )
            )  # fmt: skip
        elif self.state == "WAITING_CPR_MSG":
            echo = packet.recoverable_ms, packet.ack_ms
            sent = self.recoverable_ms, self.ack_ms
            require(echo == sent, "QB 3.1.5.4.1", f"timeouts {sent} came back as {echo}")
        else:
            self._refuse("QB 3.1.5.4", f"ConnectionParameters in {self.state}")
            return
        require(packet.window >= 1, "notes 36", "WindowSize 0")
        self.peer_window = packet.window
        self.initialization_at = NEVER
        self.opened_at = host.now()
        self.state = "OPEN"
        host.session_opened(self)

    # -- acknowledgments that arrive: QB 3.1.5.5 --

    def _take_counts(self, counts: Counts) -> None:
        require, clause = self.host.verdict.require, "MQ 2.2.20.4"
        behind = (self.sent - counts.received) % WORD
        acknowledged = self.sent - behind
        good = acknowledged >= self.acknowledged
        require(good, clause, f"AckSequenceNumber {counts.received}: {self.sent} sent, {self}")
        self.acknowledged = max(self.acknowledged, acknowledged)
        # WindowSize of the header is the receiver's advice; 64 rules a sender: QB 3.1.7.1.
        self.peer_window = counts.window
        self._take_bits(counts)
        for transit in list(self.in_transit):
            is_received = transit.number <= self.acknowledged
            is_stored = transit.recoverable_number in self._bits_seen
            if is_received:
                transit.item.is_session_acked = True
            if is_received and (is_stored or not transit.recoverable_number):
                self.in_transit.remove(transit)
                self.host.sending.acknowledged(transit.item)
        good = counts.sent == self.received % WORD
        good &= counts.recoverable_sent == self.recoverable_received % WORD
        text = f"sent {counts.sent}, {counts.recoverable_sent} recoverable; {self}"
        if not require(good, "QB 3.1.5.5.5", text):
            self.close("QB 3.1.5.5.5: the counts differ")
        self.ack_wait_at = self.host.now() + self.ack_wait_s if self.in_transit else NEVER

    def _take_bits(self, counts: Counts) -> None:
        if not counts.stored_bits:
            return
        require, clause = self.host.verdict.require, "MQ 2.2.20.4"
        first = self.recoverable_sent - (self.recoverable_sent - counts.first_stored) % WORD
        waiting = [each for each in self.in_transit if each.recoverable_number]
        lowest = min((each.recoverable_number for each in waiting), default=first)
        require(first == lowest, clause, f"bits from {first}, the lowest without one is {lowest}")
        by_number = {each.recoverable_number: each for each in waiting}
        for bit in range(32):
            if counts.stored_bits >> bit & 1:
                number = first + bit
                transit = by_number.get(number)
                text = f"bit of recoverable message {number}: not waiting for it; {self}"
                if require(transit is not None and number not in self._bits_seen, clause, text):
                    assert transit is not None
                    ahead = transit.number > self.acknowledged
                    require(not ahead, clause, f"bit of {transit.number} before its receipt")
                    self._bits_seen.add(number)

    # -- messages that arrive: QB 3.1.5.8 --

    def _take_message(self, arrived: Arrived) -> None:
        host = self.host
        if host.manner.breaks_off:
            self.close("the host breaks off before it takes a message")
            return
        self.received += 1
        self.unacked.append(arrived)
        self._is_active = True
        self.is_direct = self.is_direct or arrived.to.kind == 7
        limit = max(1, min(OWN_WINDOW, self._announced))
        text = f"{len(self.unacked)} unacknowledged messages in a window of {limit}"
        host.verdict.require(len(self.unacked) <= limit, "QB 3.1.7.1", text)
        if self.ack_send_at == NEVER:
            self._start_ack_timer(self.ack_ms / 2000)
        if arrived.is_recoverable:
            if len(self._stored) >= 32:  # 3.1.5.8.7
                self.acknowledge()
            if not self._stored:
                self._start_ack_timer(self.recoverable_ms / 1000)
            self.recoverable_received += 1
            self._stored.append((self.recoverable_received, arrived))
        if arrived.counts is not None:
            self._take_counts(arrived.counts)
        if not self.is_over:
            host.take(self, arrived)
            if len(self.unacked) >= min(host.manner.ack_after, host.manner.window):
                self.acknowledge()
            host.pump()

    def _start_ack_timer(self, seconds: float) -> None:
        self._ack_send_began_at = self.host.now()
        self.ack_send_at = self._ack_send_began_at + seconds * self.host.manner.ack_pace

    def _counts(self) -> Counts:
        """Return the SessionHeader of now; the chosen bits count as sent."""
        first, bits, left = 0, 0, []
        for number, arrived in self._stored:
            is_left = first > 0 and self.host.draw(self.host.manner.bits_left)
            if is_left or (first and number - first >= 32):
                left.append((number, arrived))
                continue
            first = first or number
            bits |= 1 << number - first
            self.host.receiving.bit_sent(arrived)
        self._stored = left
        for arrived in self.unacked:
            if not arrived.is_recoverable:
                self.host.receiving.bit_sent(arrived)
        self.unacked = []
        self._announced = max(self._announced, self.host.manner.window)
        self.ack_send_at = NEVER
        if left:
            self._start_ack_timer(self.recoverable_ms / 1000)
        return Counts(
            self.received, first, bits, self.sent, self.recoverable_sent, self.host.manner.window
        )

    def acknowledge(self) -> None:
        """Send a SessionAck: QB 3.1.6.4."""
        if self.state != "OPEN" or self.is_over or self.host.manner.sleeps:
            return
        self._write(encoding.session_ack(self._counts(), untidy=self.host.manner.untidy))

    def acknowledge_nothing(self) -> None:
        """Send a SessionAck that acknowledges nothing new; it is legal at any time."""
        counts = Counts(
            self.received - len(self.unacked), 0, 0, self.sent, self.recoverable_sent,
            self.host.manner.window,
        )  # fmt: skip
        self._announced = max(self._announced, counts.window)
        self._write(encoding.session_ack(counts, untidy=self.host.manner.untidy))

    # -- sending: QB 3.1.7.1 --

    @property
    def has_room(self) -> bool:
        is_open = self.state == "OPEN" and not self.is_over and not self.host.manner.sleeps
        return is_open and self.sent - self.acknowledged < OWN_WINDOW

    @property
    def ack_wait_s(self) -> float:
        factor = self.host.manner.times.ack_wait_factor if self.is_direct else 1
        return self.ack_ms / 1000 * factor

    def transmit(self, item: Item, packet: bytes) -> None:
        """Send a user message: QB 3.1.7.1.3."""
        self.sent += 1
        recoverable_number = 0
        if item.is_recoverable:
            self.recoverable_sent += 1
            recoverable_number = self.recoverable_sent
        self.is_direct = self.is_direct or item.draft.to.kind == 7
        self.in_transit.append(Transit(self.sent, recoverable_number, item))
        self._is_active = True
        if self.ack_wait_at == NEVER:
            self.ack_wait_at = self.host.now() + self.ack_wait_s
        if self.unacked and (self._is_timer_late() or self.host.draw(self.host.manner.piggyback)):
            packet = encoding.with_counts(packet, self._counts(), self.host.manner.filler)
        self._write(packet)

    def _is_timer_late(self) -> bool:
        """Return whether 75 % of the Session Ack Send Timer have elapsed: QB 3.1.7.11."""
        whole = self.ack_send_at - self._ack_send_began_at
        return 0 < whole < NEVER and self.host.now() - self._ack_send_began_at > 0.75 * whole

    # -- timers: QB 3.1.6 --

    def due(self) -> float:
        """Return the time of the next timer."""
        return min(self.initialization_at, self.cleanup_at, self.ack_wait_at, self.ack_send_at)

    def tick(self) -> None:
        """Handle the timers that are over."""
        now = self.host.now()
        actions: tuple[tuple[str, Callable[[], None]], ...] = (
            ("initialization_at", lambda: self._refuse("QB 3.1.6.6", f"no answer in {self.state}")),
            ("cleanup_at", self._clean_up),
            ("ack_wait_at", self._ack_wait_over),
            ("ack_send_at", self._ack_send_over),
        )
        for name, action in actions:
            if getattr(self, name) <= now and not self.is_over:
                setattr(self, name, NEVER)
                action()

    def _clean_up(self) -> None:
        if not self._is_active:
            self.close("QB 3.1.6.2: idle")
            return
        self._is_active = False
        self.cleanup_at = self.host.now() + self.host.manner.times.cleanup_s

    def _ack_wait_over(self) -> None:
        if not self.in_transit:
            self._has_heard = False
            return
        if not self._has_heard:
            self._refuse("QB 3.1.6.3", f"no session ack in {self.ack_wait_s} s; {self}")
            return
        self._has_heard = False
        self.ack_wait_at = self.host.now() + self.ack_wait_s

    def _ack_send_over(self) -> None:
        if self.unacked or self._stored:
            self.acknowledge()

    def __repr__(self) -> str:
        role = "initiator" if self.is_initiator else "acceptor"
        return (
            f"Session({role} {self.state} sent={self.sent}/{self.recoverable_sent}"
            f" acknowledged={self.acknowledged} received={self.received}"
            f"/{self.recoverable_received})"
        )
