"""Packet reader: splits the bytes of a connection into packets, in its share of time and memory.

A connection gets its time from the fair scheduler (qmd/runtime/fair_scheduler.py) and the memory
for large packets from a budget (qmd/runtime/budget.py). While packets wait for either of them, or
for the disk, nothing is read, and TCP slows the peer down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from protocol.framing import BrokenStream, PacketBuffer
from protocol.records import ESTABLISH_CONNECTION_BYTES
from qmd.runtime.bulk_turns import LARGE_BYTES, TURN_BYTES, LargeExchange
from qmd.runtime.fair_scheduler import Class

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from qmd.core.session import Session
    from qmd.peers.ahead import Ahead
    from qmd.peers.reputation import Reputation
    from qmd.runtime.fair_scheduler import FairScheduler
    from qmd.runtime.services import Services

# Packets of one connection that are processed in one turn of the event loop. A peer that respects
# the usual window never sends more; one that ignores it, or a peer with a wide window, may send
# hundreds of small packets in one read.
TURN_PACKETS_MAX, TURN_PACKETS_MIN = 64, 2
LONG_S = 0.000_5  # duration of packets of a turn that ask for a hundred acknowledgments, say
TIMED_PACKETS = 4  # two readings of the clock take as long as one packet
TURN_S = 0.001  # intended maximum duration of a turn
FLOOD_TURN_S = 0.000_15  # the same for a connection that floods
PACKET_S = 0.000_1  # assumed duration of a packet, if there are too few to be timed
READ_S = 0.000_02  # assumed duration of a small read that completes no packet
LARGE_READ_BYTES = 16 * 1024  # a read of this size is timed
BYTES_PER_S = 4e9  # at which the system copies a read
# After so many successive reads of few bytes the connection waits until there are more.
TINY_BYTES, TINY_READS_MAX = 64, 4
LARGE_PACKET_BYTES = LARGE_BYTES  # a larger packet counts in the memory budget
PACKET_COPIES = 4  # of a packet, on its way to the disk


class PacketReceiver(Protocol):
    """The connection that the packets belong to: `PeerConnection`."""

    handshake_done: bool
    packet_bytes_max: int
    session: Session | None
    host: str
    opened_at: float
    ahead: Ahead

    def process(self, packets: list[bytes], now: float) -> None: ...
    def flush_soon(self) -> None: ...
    def close(self, reason: str) -> None: ...


class PacketReader:
    """Incoming packets of one connection.

    It is a member of the fair scheduler (`take_turn`) and a waiter of the memory budget
    (`bytes_received`, `is_read`, `memory_available`, `end_slow`).
    """

    def __init__(
        self,
        services: Services,
        connection: PacketReceiver,
        turns: FairScheduler,
        reputation: Reputation,
        proved_useful: Callable[[PacketReceiver], None],
    ) -> None:
        """Create the reader; `proved_useful` is called when the connection becomes trusted."""
        self._services = services
        self._loop = services.loop
        self._connection = connection
        self._turns = turns
        self._reputation = reputation
        self._proved_useful = proved_useful
        self._transport: asyncio.Transport | None = None
        self._host = ""
        # Before the handshake longer packets are not valid, and no memory is used for them.
        self.buffer = PacketBuffer(ESTABLISH_CONNECTION_BYTES)
        self.bytes_received = 0
        self.large = LargeExchange()
        self.is_read = True  # and what is read does not wait behind pending packets
        self._is_paused = False  # the transport reads nothing
        self._is_closed = False
        self._pending: list[bytes] = []  # packets for the next turn; until then nothing is read
        self._broken: BrokenStream | None = None  # the fault behind the pending packets
        self._held_bytes = 0  # memory of large packets, complete and incomplete
        self._waits_for_memory = False
        self._waits_for_disk = False
        self._waits_for_turn = False
        self._ahead_of: bytes | None = None  # the packet whose end is, or was, stored ahead
        self._reading_waits = False  # while incomplete packets wait for their turn
        self._is_heavy = False  # while it waits: it has more packets than its turn permits
        self._tiny_reads = 0
        self._turn = -1  # serial number of the last turn with packets of this connection
        self._processed = 0  # packets in that turn
        self._packets_max = TURN_PACKETS_MIN  # of a heavy connection, in the duration of a turn
        self._was_long = False  # its last turn while it was not trusted: more than LONG_S
        self._lost = ""  # why the connection is lost, if it is

    def start(self, transport: asyncio.Transport, host: str) -> None:
        """Begin to read; `host` is the peer's address, for the memory budget and the log."""
        self._transport = transport
        self._host = host

    def close(self) -> None:
        """Discard everything that was received and not processed.

        This drops the reference to the connection, so that both are freed without the garbage
        collector.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._pending = []
        self._services.memory.packets.leave(self)
        self._connection.ahead.forget()
        self.buffer.clear()
        del self._connection

    def received(self, nbytes: int) -> None:
        """Process `nbytes` more bytes in the buffer, as far as a turn permits."""
        if self._is_closed:
            return
        self.bytes_received += nbytes
        now = self._loop.time()
        is_part = self.buffer.grown_bytes > 0  # of a large packet, which this read may complete
        pending = len(self._pending)
        if nbytes < LARGE_READ_BYTES and not is_part:
            self._split(nbytes)
            took_s = READ_S
        else:
            busy_time = self._services.environment.busy_time
            began_s = busy_time()
            self._split(nbytes)
            took_s = busy_time() - began_s + nbytes / BYTES_PER_S
        if len(self._pending) > pending:
            self._tiny_reads = 0
            if is_part:
                self._turns.spend_reading(took_s)
        elif self._broken is None:
            self._count_incomplete(nbytes, took_s)
        self._advance(now)

    def connection_lost(self, reason: str) -> None:
        """Close the connection: at once if it is trusted, otherwise in its turn.

        The turns keep thousands of untrusted connections that end at once from delaying others.
        Pending packets are discarded and were not acknowledged, like packets that were not read.
        If the peer closed the connection without a reset, the end of the stream is read only after
        all of them were processed.
        """
        self._lost = reason
        if self._reputation.is_trusted:
            if self._is_paused or not self._pending:
                self._connection.close(reason)
            # Otherwise it was reading ahead: the pending packet has arrived before.
        elif not self._waits_for_turn:
            self._pending, self._waits_for_turn = [], True
            self._turns.wait(self, Class.UNTRUSTED)

    def pause(self) -> None:
        """Stop reading and processing until the disk has caught up."""
        self._waits_for_disk = True
        self._regulate()

    def resume(self) -> None:
        """Process pending packets, and read on: the disk has caught up."""
        self._waits_for_disk = False
        if not self._is_closed:
            self._forget_ahead()
        self._advance(self._loop.time())

    def take_turn(self, now: float, packets_max: int) -> None:
        """Process up to `packets_max` pending packets, or read on if there are none."""
        self._waits_for_turn = self._reading_waits = False
        if self._is_closed:
            return
        if self._lost and not self._pending:
            self._connection.close(self._lost)
            return
        if self._pending and not self._waits_for_disk:
            if not self._connection.handshake_done:
                self._process_handshake(now)
            elif self._must_wait_for_ahead():
                return
            else:
                # It has waited for this turn. The turns of large packets come between those that
                # the scheduler counts, which have none if this is the only connection.
                self._turn, self._processed = self._turns.serial, 0
                own_max = self._packets_max if self._is_heavy else TURN_PACKETS_MAX
                if not self._reputation.is_trusted:
                    own_max = 1 if self._was_long else TURN_PACKETS_MIN
                self._process(min(own_max, packets_max), now)
            self._wait_for_turn(now, is_heavy=self._is_heavy)
        self._advance(now)

    def _must_wait_for_ahead(self) -> bool:
        """Let the end of a large packet be stored before the packet is processed."""
        packet = self._pending[0]
        if self._ahead_of is packet or not self._is_bulk:
            return False
        self._ahead_of, connection = packet, self._connection
        # It waits for a turn all the time: for the one that follows.
        self._waits_for_turn = connection.ahead.store(connection, packet, self._stored_ahead)
        if self._waits_for_turn:
            self._regulate()  # the next packet may be read meanwhile
        return self._waits_for_turn

    def _stored_ahead(self) -> None:
        if not self._is_closed:
            self._turns.wait(self, Class.BULK, self._host)

    def _forget_ahead(self) -> None:
        """Delete what was stored of a packet that was decided about, if no message has it."""
        packet = self._ahead_of
        if packet is not None and not (self._pending and self._pending[0] is packet):
            self._ahead_of = None
            self._connection.ahead.forget()

    def memory_available(self) -> None:
        """Try again to get memory for the packet that is incomplete."""
        self._waits_for_memory = False
        self._split(0)
        self._advance(self._loop.time())

    def end_slow(self, held_bytes: int) -> None:
        """Close the connection: it holds `held_bytes` that others wait for, and sends nothing."""
        self._services.log_limited(
            "slow_packet_ended", self._host, address=self._host, bytes=held_bytes
        )
        self._connection.close("a packet does not continue, and others wait for its memory")

    # Bytes.

    def _split(self, nbytes: int) -> None:
        """Find the packets that `nbytes` more bytes complete."""
        try:
            packets = self.buffer.buffer_updated(nbytes, self._may_grow)
        except BrokenStream as error:
            packets = error.packets  # the complete packets before the fault count
            # The traceback is dropped: its frames reference this connection, and would keep its
            # buffer of 64 KB until the garbage collector runs.
            self._broken = error.with_traceback(None)
        except MemoryError:
            self._end_without_memory()
            return
        self._pending = self._pending + packets if self._pending else packets
        if self.buffer.grown_bytes or self._held_bytes or self.buffer.is_stuck:
            self._count_memory()

    def _may_grow(self, more_bytes: int) -> bool:
        return self._services.memory.packets.allows(self, self._host, more_bytes)

    def _count_memory(self) -> None:
        memory, sizes = self._services.memory.packets, map(len, self._pending)
        large_bytes = sum(size for size in sizes if size > LARGE_PACKET_BYTES)
        self._held_bytes = large_bytes + self.buffer.grown_bytes
        memory.hold(self, self._host, self._held_bytes)
        if self.buffer.is_stuck and not self._waits_for_memory:
            self._waits_for_memory = True
            memory.wait(self, self._host)

    def _end_without_memory(self) -> None:
        self._services.log_limited("no_memory_for_packet", self._host, address=self._host)
        self._connection.close("no memory is left for its packet")

    def _count_incomplete(self, nbytes: int, took_s: float) -> None:
        """Count the time of a read that completes no packet, and wait if it was too much."""
        turns = self._turns
        turns.spend_reading(took_s)
        self._tiny_reads = self._tiny_reads + 1 if nbytes < TINY_BYTES else 0
        if self._tiny_reads > TINY_READS_MAX:
            self._wait_to_read(Class.UNTRUSTED)
        elif not turns.has_time_to_read():
            self._wait_to_read(Class.READER)

    def _wait_to_read(self, kind: Class) -> None:
        self._reading_waits = True
        if not self._waits_for_turn:  # otherwise it is read again in that turn
            self._waits_for_turn = True
            self._turns.wait(self, kind)

    # Packets.

    def _advance(self, now: float) -> None:
        """Process pending packets as far as a turn permits; the rest waits for the next turn."""
        if self._is_closed:
            return
        if self._pending and not (self._waits_for_turn or self._waits_for_disk):
            turns, reputation = self._turns, self._reputation
            self._begin_turn()
            left = TURN_PACKETS_MAX - self._processed
            # Otherwise each of hundreds of flooding connections would get time before all others
            # with each read.
            floods = now < reputation.floods_until
            goes_first = not floods and reputation.is_trusted and not self._is_bulk
            if left > 0 and goes_first and turns.has_time(self.large):
                connection = self._connection
                while not connection.handshake_done and self._pending:
                    self._process_handshake(now)  # of a session that this side has begun
                if self._pending:
                    self._process(left, now)
            self._wait_for_turn(now, is_heavy=floods)
        if self._is_closed:
            return
        if self._lost and not (self._pending or self._waits_for_turn or self._waits_for_disk):
            self._connection.close(self._lost)
            return
        if self._broken is not None and not self._pending:
            connection = self._connection
            connection.close(f"bytes that are not a packet: {self._broken}")
            connection.flush_soon()
        self._regulate()

    def _begin_turn(self) -> None:
        if self._turns.serial != self._turn:
            self._turn, self._processed = self._turns.serial, 0

    def _wait_for_turn(self, now: float, *, is_heavy: bool) -> None:
        """Wait for the next turn if packets are pending.

        The connection is heavy if it `is_heavy` already, or has used up its turn.
        """
        if self._pending and not self._waits_for_disk:
            window = self._window
            # A peer with a wide window keeps to it, and may still have more than one turn.
            has_used_turn = self._processed >= TURN_PACKETS_MAX and window <= TURN_PACKETS_MAX
            self._is_heavy = is_heavy or has_used_turn
            if len(self._pending) > window:  # the peer ignores it
                self._is_heavy = True
                self._reputation.count_flood(now)
            self._waits_for_turn = True
            if self._is_bulk:
                kind = Class.BULK
            elif self._is_heavy:
                kind = Class.HEAVY
            else:
                kind = Class.LIGHT if self._reputation.is_trusted else Class.UNTRUSTED
            self._turns.wait(self, kind, self._host)

    @property
    def _window(self) -> int:
        """The number of messages that the peer may have sent without an acknowledgment."""
        session = self._connection.session
        if session is None or not self._reputation.is_trusted:
            return TURN_PACKETS_MAX
        return max(session.announced_window, TURN_PACKETS_MAX)

    @property
    def _reads_ahead(self) -> bool:
        """Whether the packet after a large one is read while the end of that is stored."""
        return (
            len(self._pending) == 1
            and self._ahead_of is self._pending[0]
            and self._waits_for_turn
            and not self._turns.is_shared
        )

    @property
    def _is_bulk(self) -> bool:
        """Whether the next packet is a large one."""
        return self._held_bytes > 0 and len(self._pending[0]) > LARGE_BYTES

    def _limited(self, count: int) -> int:
        """Return how many of `count` packets, at least one, have no more bytes than a turn."""
        size = 0
        for number, packet in enumerate(self._pending[:count]):
            size += len(packet)
            if number and size > TURN_BYTES:
                return number
        return count

    def _process_handshake(self, now: float) -> None:
        """Process one packet of the handshake; longer packets may have arrived behind it."""
        connection = self._connection
        self._process(1, now)
        if connection.handshake_done and not self._is_closed:
            self.buffer.packet_bytes_max = connection.packet_bytes_max
            self._broken = None
            self._split(0)

    def _process(self, count: int, now: float) -> None:
        """Process up to `count` packets, and adapt the number for the next turn to the time."""
        pending = self._pending
        if self._held_bytes:
            count = self._limited(count)
            if self._is_bulk:
                self.large.note(now)
        size = sum(map(len, pending[:count])) if self._held_bytes else 0
        try:
            self._services.memory.probe.look(PACKET_COPIES * size)
        except MemoryError:
            self._end_without_memory()
            return
        if count < len(pending):
            packets, self._pending = pending[:count], pending[count:]
        else:
            packets, self._pending = pending, []
        self._processed += len(packets)
        self._pass_on(packets, now)
        if not (self._is_closed or self._waits_for_disk):
            self._forget_ahead()

    def _pass_on(self, packets: list[bytes], now: float) -> None:
        """Pass packets to the connection, and count the time that it takes."""
        connection = self._connection
        if not self._reputation.is_trusted:
            self._process_untrusted(packets, now)
            return
        if len(packets) < TIMED_PACKETS and not self._is_heavy:
            self._turns.spend(len(packets) * PACKET_S)
            connection.process(packets, now)
            return
        busy_time = self._services.environment.busy_time
        began_s = busy_time()
        connection.process(packets, now)
        took_s = busy_time() - began_s
        self._turns.spend(took_s)
        allowed_s = TURN_S if now > self._reputation.floods_until else FLOOD_TURN_S
        if took_s > 2 * allowed_s:
            self._packets_max = max(self._packets_max // 2, TURN_PACKETS_MIN)
        elif took_s < allowed_s and self._packets_max < TURN_PACKETS_MAX:
            self._packets_max = min(2 * self._packets_max, TURN_PACKETS_MAX)

    def _process_untrusted(self, packets: list[bytes], now: float) -> None:
        """Process packets of an untrusted connection; useful ones make it trusted."""
        connection, reputation = self._connection, self._reputation
        session = connection.session
        assert session is not None
        useless_before, exchanged_before = reputation.useless, session.exchanged_count
        busy_time = self._services.environment.busy_time
        began_s = busy_time()
        connection.process(packets, now)
        self._was_long = busy_time() - began_s > LONG_S
        if connection.handshake_done and reputation.useless <= useless_before:
            reputation.count_useful(session.exchanged_count - exchanged_before)
            if reputation.is_trusted and not self._is_closed:
                self._proved_useful(connection)

    def _regulate(self) -> None:
        """Read, unless packets wait for their turn, for memory or for the disk."""
        if self._transport is None or self._is_closed or self._lost:
            return
        if self._held_bytes:
            self._count_memory()
        waits = self._waits_for_disk or self._waits_for_memory or self._reading_waits
        self.is_read = not (self._pending or waits)
        is_paused = waits or bool(self._pending and not self._reads_ahead)
        if is_paused is not self._is_paused:
            self._is_paused = is_paused
            if is_paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()
