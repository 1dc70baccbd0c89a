"""One TCP connection to a peer: bytes to the session, the session's bytes to the socket.

The session decides; this moves bytes, keeps one timer, and tells the queue
manager what happened.  Output is collected and written once per turn of the
event loop, so that acknowledgments and messages which belong together leave in
one piece.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Protocol, cast

from protocol import PACKET_BYTES_MAX
from protocol.framing import BrokenStream, PacketBuffer
from protocol.identifiers import guid_text
from protocol.records import ESTABLISH_CONNECTION_BYTES
from qmd.core.session import Acknowledged, Closed, Event, MessageReceived, Opened, Session
from qmd.runtime.fair_scheduler import Class
from qmd.runtime.timers import Alarm

if TYPE_CHECKING:
    from collections.abc import Callable

    from qmd.queues.incoming_sequences import IncomingStream
    from qmd.queues.outgoing_queue import OutgoingQueue
    from qmd.runtime.fair_scheduler import FairScheduler
    from qmd.runtime.services import Services

# Output waiting in the transport above which nothing more is handed to the session.
WRITE_BYTES_HIGH = 1024 * 1024
WRITE_BYTES_LOW = 256 * 1024
FINAL_ACKS_MAX = 1024  # that wait for room in the window
EXPRESS_MAX = 64  # likewise, of what no outgoing queue keeps
# What one peer has sent is taken in as much in one turn of the event loop.  Who keeps to the window
# never has more; what does not wait for it has hundreds of tiny packets in one read.
TURN_PACKETS_MAX, TURN_PACKETS_MIN = 64, 4
TURN_S = 0.001  # which the packets of a turn should not take much longer than
VAIN_S = 0.000_25  # nor those of one who sends what is in vain
FLOOD_S = 0.1  # for which one who had more than any window holds stays behind all others
PACKET_S = 0.000_1  # that one takes, where they are too few to be timed
READ_S = 0.000_02  # that a read takes which makes no packet whole
LARGE_READ_BYTES = 16 * 1024  # that are worth timing
BYTES_PER_S = 4e9  # which the system copies for it
# Packets of a peer that changed nothing: refused, known already, an acknowledgment of nothing.
# After a lost session a whole window comes again, so that much is forgiven in a second.
VAIN_MAX, VAIN_WINDOW_S = 64, 1.0
TRUST = 8  # packets that were not in vain, after which one who came to us is no stranger
# Reads of a few bytes one after the other: whoever makes them waits until there are more.
TINY_BYTES, TINY_READS_MAX = 64, 4
LARGE_PACKET_BYTES = 64 * 1024  # beyond it a packet counts in the budget of memory
PACKET_COPIES = 4  # that are made of one on its way to the disk
UNREAD_BYTES_MAX = 32 * 1024 * 1024  # more than a full pump of the largest messages


class MessageSink(Protocol):
    """Takes user messages over: `Incoming` of qmd/transfer."""

    def receive(
        self, connection: PeerConnection, messages: list[MessageReceived], now: float
    ) -> None: ...


class SessionUser(Protocol):
    """A link, whose queues send over the session."""

    guid: bytes | None
    attempt: PeerConnection | None

    @property
    def hosts(self) -> tuple[str, ...]: ...
    @property
    def queues(self) -> dict[OutgoingQueue, None]: ...

    def opened(self, connection: PeerConnection) -> None: ...
    def closed(self, connection: PeerConnection, reason: str, *, whole: bool) -> None: ...
    def pump(self) -> None: ...


class Sessions(Protocol):
    """All sessions: `Peers` of qmd/peers/sessions.py."""

    def packet_bytes_max(self, *hosts: str) -> int: ...
    def admit(self, connection: PeerConnection) -> Session | None: ...
    def opened(self, connection: PeerConnection) -> None: ...
    def closed(self, connection: PeerConnection, reason: str, *, whole: bool) -> None: ...
    def acknowledged(self, connection: PeerConnection, tokens: list[object]) -> None: ...
    def pump(self, connection: PeerConnection) -> None: ...


class PeerConnection(asyncio.BufferedProtocol):
    """A session over a socket; `link` is ours when we dialled, None when the peer did."""

    def __init__(
        self,
        services: Services,
        sink: MessageSink,
        send_owed: Callable[[PeerConnection], None],
        sessions: Sessions,
        turns: FairScheduler,
        link: SessionUser | None,
        dialled_address: tuple[str, int] | None = None,
    ) -> None:
        self._services = services
        self._sink = sink
        self._send_owed = send_owed
        self._sessions = sessions
        self._turns = turns
        self._loop = asyncio.get_running_loop()
        # Who has not said who it is need not send more, and cannot make us keep more.
        self._buffer = PacketBuffer(ESTABLISH_CONNECTION_BYTES)
        self._held_bytes = 0  # of large packets, whole and in part
        self._waits_for_memory = False
        self._alarm = Alarm(self._loop)
        self._flush_due = False
        self._writing_paused = False
        self._reads = True
        self._waits_for_disk = False
        self._waits_for_turn = False
        self._is_heavy = False  # while it waits: it has more than its turn was enough for
        self._floods_until = 0.0
        self._vain = 0  # what came in vain
        self._vain_since = 0.0  # in the second that began then
        self._trust = TRUST if link is not None else 0
        self._lost = ""  # why, when it is
        self._tiny_reads = 0
        self._trickles = False  # parts of packets come: nothing is read before its turn
        self._later: list[bytes] = []  # packets for the next turn, before which nothing is read
        self._broken: BrokenStream | None = None  # what is behind them
        self._turn = -1  # in which the last ones were taken
        self._taken = 0  # so many
        self._packets_max = TURN_PACKETS_MIN  # of one who has much, in the time of a turn
        self._transport: asyncio.Transport | None = None
        self._closed = False
        self.session: Session | None = None
        self.link = link
        self.dialled_address = dialled_address
        self.links: dict[SessionUser, None] = {}  # whose queues send over this session
        self.host = ""
        self.port = 0
        self.is_qmd = False  # as its handshake says
        self.own_host = ""  # by which address the other side reaches us
        self.peer = ""  # the other queue manager's GUID, or where it is while that is not known
        self.packet_bytes_max = PACKET_BYTES_MAX  # that may come, or be sent
        self.handshake_done = False
        self.opened_at = self._loop.time()
        self.bytes_received = 0
        self.bytes_sent = 0
        self.streams: dict[IncomingStream, None] = {}  # whose return path this is, or was
        self.owed_order_acks: dict[IncomingStream, None] = {}
        # Refusals of transactional messages.  One that is lost, or finds no place here, is made
        # again when its message is sent again.
        self.owed_final_acks: deque[bytes] = deque(maxlen=FINAL_ACKS_MAX)
        self.owed_express: deque[bytes] = deque(maxlen=EXPRESS_MAX)

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if peer is None:  # it was gone before we looked
            self._closed = True
            self._transport.abort()
            if self.link is not None:
                self.link.closed(self, "the peer closed the connection", whole=False)
            return
        # A socket for both families shows IPv4 addresses in IPv6 clothes.
        self.host, self.port = str(peer[0]).removeprefix("::ffff:"), int(peer[1])
        own = transport.get_extra_info("sockname")
        self.own_host = str(own[0]).removeprefix("::ffff:") if own else ""
        self.peer = self.host
        dialled = () if self.link is None else self.link.hosts
        self.packet_bytes_max = self._sessions.packet_bytes_max(self.host, *dialled)
        self._transport.set_write_buffer_limits(high=WRITE_BYTES_HIGH, low=WRITE_BYTES_LOW)
        self.session = self._sessions.admit(self)
        if self.session is None:
            self._closed = True
            self._transport.abort()
            return
        if self.link is not None:
            self.session.start(self._loop.time())
        self._flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        if self._closed or self.session is None:
            return
        self.bytes_received += nbytes
        now = self._loop.time()
        if nbytes < LARGE_READ_BYTES:
            self._split(nbytes)
            took_s = READ_S
        else:
            busy_time = self._services.environment.busy_time
            began_s = busy_time()
            self._split(nbytes)
            took_s = busy_time() - began_s + nbytes / BYTES_PER_S
        if self._later:
            self._tiny_reads = 0
        elif self._broken is None:
            self._part_of_a_packet(nbytes, took_s)
        self._go_on(now)

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        self.flush_soon()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._closed or self.session is None:
            return
        self._lost = f"the connection was lost: {exc}" if exc else "the peer closed the connection"
        if self._trust < TRUST and not self._waits_for_turn:
            # Of thousands of strangers who go at once the others notice nothing.
            self._later, self._waits_for_turn = [], True
            self._turns.wait(self, Class.STRANGER)
        elif self._trust >= TRUST:
            self._over()

    def _over(self) -> None:
        """The connection is lost."""
        assert self.session is not None
        if self._closed:
            return
        now = self._loop.time()
        # What waited for its turn is gone with it, unacknowledged, as what was not read yet.  An
        # end that was said, and is no reset, is not heard before all of that was taken.
        self._handle(self.session.close(self._lost, now, whole=False), now)

    # The queue manager calls these.

    @property
    def room(self) -> int:
        """How many messages may be sent now."""
        if self._closed or self._writing_paused or self.session is None:
            return 0
        return self.session.room()

    def mark_stored(self, numbers: list[int]) -> None:
        """Recoverable messages of this session are durable, or durably refused."""
        if not self._closed and self.session is not None:
            self.session.mark_stored(numbers, self._loop.time())
            self.flush_soon()

    def owe_final_ack(self, packet: bytes) -> None:
        """A final ack goes out over this session, as soon as its window lets it."""
        self.owed_final_acks.append(packet)
        self.flush_soon()

    def owe_express(self, packet: bytes) -> None:
        """A message of the queue manager's own goes out over this session; it may get lost."""
        self.owed_express.append(packet)
        self.flush_soon()

    def flush_soon(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def pause_reading(self) -> None:
        """Take nothing more in until the disk has caught up."""
        self._waits_for_disk = True
        self._regulate()

    def resume_reading(self) -> None:
        self._waits_for_disk = False
        self._go_on(self._loop.time())

    def take_turn(self, now: float, packets_max: int) -> None:
        """With what was read, and waited for its turn; or it reads on."""
        self._waits_for_turn = self._trickles = False
        if self._lost:
            self._over()
            return
        if self._later and not (self._closed or self._waits_for_disk):
            if not self.handshake_done:
                self._take_handshake(now)
            else:
                own_max = self._packets_max if self._is_heavy else TURN_PACKETS_MAX - self._taken
                if self._trust < TRUST:
                    own_max = TURN_PACKETS_MIN
                self._take(min(own_max, packets_max), now)
            self._wait_for_turn(now, is_heavy=self._is_heavy)
        self._go_on(now)

    def sends_in_vain(self, worth: int = 1) -> None:
        """What it sent was refused, was known already, or means nothing here.  Who does so again
        and again stays behind those whose messages count."""
        now = self._loop.time()
        if now > self._vain_since + VAIN_WINDOW_S:
            self._vain, self._vain_since = 0, now
        self._vain += worth
        if self._vain > VAIN_MAX:
            self._floods_until = now + FLOOD_S

    @property
    def is_read(self) -> bool:  # this and the next two: `qmd.runtime.budget.Waiter`
        return self._reads

    def memory_came(self) -> None:
        self._waits_for_memory = False
        self._split(0)
        self._go_on(self._loop.time())

    def end_slow(self, held_bytes: int) -> None:
        self._services.log_limited(
            "slow_packet_ended", self.host, address=self.host, bytes=held_bytes
        )
        self.close("a packet does not go on, and others wait for its memory")

    def close(self, reason: str) -> None:
        """End the session; what was not acknowledged is sent again on the next one."""
        if not self._closed and self.session is not None:
            now = self._loop.time()
            self._handle(self.session.close(reason, now, whole=False), now)

    def drop(self, reason: str) -> None:
        """End the session without another word: it has counted messages that were not taken, and
        what it would say now acknowledges their receipt, which makes the peer forget express ones.
        """
        if not self._closed and self.session is not None:
            self.session.data_to_send()
            self.close(reason)

    # Within.

    def _split(self, nbytes: int) -> None:
        """Find the packets that `nbytes` more bytes make whole."""
        try:
            packets = self._buffer.buffer_updated(nbytes, self._may_take)
        except BrokenStream as error:
            packets = error.packets  # what came whole before the fault counts
            # Not with the frames that it came through: they know us, and 64 KB would stay with us
            # of each stranger that speaks something else, until the collector runs.
            self._broken = error.with_traceback(None)
        except MemoryError:
            self._end_without_memory()
            return
        self._later = self._later + packets if self._later else packets
        if self._buffer.grown_bytes or self._held_bytes or self._buffer.is_stuck:
            self._count_memory()

    def _may_take(self, more_bytes: int) -> bool:
        return self._services.memory.packets.allows(self, self.host, more_bytes)

    def _count_memory(self) -> None:
        memory, sizes = self._services.memory.packets, map(len, self._later)
        large_bytes = sum(size for size in sizes if size > LARGE_PACKET_BYTES)
        self._held_bytes = large_bytes + self._buffer.grown_bytes
        memory.hold(self, self.host, self._held_bytes)
        if self._buffer.is_stuck and not self._waits_for_memory:
            self._waits_for_memory = True
            memory.wait(self, self.host)

    def _end_without_memory(self) -> None:
        self._services.log_limited("no_memory_for_packet", self.host, address=self.host)
        self.close("no memory is left for its packet")

    def _part_of_a_packet(self, nbytes: int, took_s: float) -> None:
        """A read that makes no packet whole, and takes its time all the same."""
        turns = self._turns
        turns.spend(took_s)
        self._tiny_reads = self._tiny_reads + 1 if nbytes < TINY_BYTES else 0
        if self._tiny_reads > TINY_READS_MAX:
            self._rest_from_reading(Class.STRANGER)
        elif not turns.has_time_to_read():
            self._rest_from_reading(Class.READER)

    def _rest_from_reading(self, kind: Class) -> None:
        if not self._waits_for_turn:
            self._trickles = self._waits_for_turn = True
            self._turns.wait(self, kind)

    def _take_handshake(self, now: float) -> None:
        """One packet of it.  What follows, and may have come with it, can be longer."""
        self._take(1, now)
        if self.handshake_done:
            self._buffer.packet_bytes_max = self.packet_bytes_max
            self._broken = None
            self._split(0)

    def _go_on(self, now: float) -> None:
        """As far as a turn goes; what is left waits for the next one, and nothing is read."""
        if self._closed or self.session is None:
            return
        if self._later and not (self._waits_for_turn or self._waits_for_disk):
            turns = self._turns
            if turns.serial != self._turn:
                self._turn, self._taken = turns.serial, 0
            left = TURN_PACKETS_MAX - self._taken
            # Of hundreds who flood each had a turn before all others with every read otherwise.
            floods = now < self._floods_until
            if left > 0 and not floods and self._trust >= TRUST and turns.has_time():
                while not self.handshake_done and self._later and not self._closed:
                    self._take_handshake(now)  # of a session that we have begun
                if self._later and not self._closed:
                    self._take(left, now)
            self._wait_for_turn(now, is_heavy=floods)
        if self._broken is not None and not self._later:
            reason = f"bytes that are no packet: {self._broken}"
            self._handle(self.session.close(reason, now, whole=False), now)
            self.flush_soon()
        self._regulate()

    def _wait_for_turn(self, now: float, *, is_heavy: bool) -> None:
        """If there is more; as one who has much, if it was one before or is one now."""
        if self._later and not (self._closed or self._waits_for_disk):
            self._is_heavy = is_heavy or self._taken >= TURN_PACKETS_MAX
            if len(self._later) > TURN_PACKETS_MAX:  # who keeps to the window never has as many
                self._is_heavy, self._floods_until = True, now + FLOOD_S
            self._waits_for_turn = True
            if self._is_heavy:
                kind = Class.HEAVY
            else:
                kind = Class.LIGHT if self._trust >= TRUST else Class.STRANGER
            self._turns.wait(self, kind)

    def _take(self, count: int, now: float) -> None:
        """So many packets; and the next time as many as the time of a turn is enough for."""
        assert self.session is not None
        later = self._later
        size = sum(map(len, later[:count])) if self._held_bytes else 0
        try:
            self._services.memory.probe.look(PACKET_COPIES * size)
        except MemoryError:
            self._end_without_memory()
            return
        if count < len(later):
            packets, self._later = later[:count], later[count:]
        else:
            packets, self._later = later, []
        self._taken += len(packets)
        self.flush_soon()
        if self._trust < TRUST:
            self._meet(packets, now)
            return
        if len(packets) < TURN_PACKETS_MIN:  # to ask for the time twice takes as long as a packet
            self._turns.spend(len(packets) * PACKET_S)
            self._handle(self.session.receive(packets, now), now)
            return
        busy_time = self._services.environment.busy_time
        began_s = busy_time()
        self._handle(self.session.receive(packets, now), now)
        took_s = busy_time() - began_s
        self._turns.spend(took_s)
        allowed_s = TURN_S if now > self._floods_until else VAIN_S
        if took_s > 2 * allowed_s:
            self._packets_max = max(self._packets_max // 2, TURN_PACKETS_MIN)
        elif took_s < allowed_s and self._packets_max < TURN_PACKETS_MAX:
            self._packets_max = min(2 * self._packets_max, TURN_PACKETS_MAX)

    def _meet(self, packets: list[bytes], now: float) -> None:
        """What a stranger sends; who sends some that was not in vain is none any more."""
        assert self.session is not None
        vain = self._vain
        self._handle(self.session.receive(packets, now), now)
        if self.handshake_done and self._vain <= vain:
            self._trust += len(packets)

    def _regulate(self) -> None:
        """Nothing is read while anything waits for its turn or for the disk."""
        if self._transport is None or self._closed:
            return
        if self._held_bytes:
            self._count_memory()
        waits = self._waits_for_disk or self._waits_for_memory or self._trickles
        reads = not (self._later or waits)
        if reads is not self._reads:
            self._reads = reads
            if reads:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _handle(self, events: list[Event], now: float) -> None:
        received: list[MessageReceived] = []
        for event in events:
            kind = type(event)
            if kind is MessageReceived:
                received.append(cast(MessageReceived, event))
                continue
            if received:
                self._sink.receive(self, received, now)
                received = []
            if kind is Acknowledged:
                self._sessions.acknowledged(self, cast(Acknowledged, event).tokens)
            elif kind is Opened:
                self.peer = guid_text(cast(Opened, event).remote_id)
                self._sessions.opened(self)
            elif kind is Closed:
                self._end(*cast(Closed, event))
        if received:
            self._sink.receive(self, received, now)

    def _end(self, reason: str, whole: bool) -> None:
        if self._closed:
            return
        self._write()
        self._closed = True
        self._later = []
        self._services.memory.packets.leave(self)
        self._buffer.clear()
        self._alarm.cancel()
        if self._transport is not None:
            # close() writes what is buffered first: a refusal has to arrive.
            self._transport.close()
        self._sessions.closed(self, reason, whole=whole)

    def _flush(self) -> None:
        self._flush_due = False
        if self._closed or self.session is None:
            return
        self._send_owed(self)
        self._sessions.pump(self)
        self._write()
        self._arm(self._loop.time())

    def _write(self) -> None:
        assert self.session is not None
        data = self.session.data_to_send()
        if data and self._transport is not None and not self._transport.is_closing():
            self.bytes_sent += len(data)
            self._transport.write(data)
            unread_bytes_max = UNREAD_BYTES_MAX + self.packet_bytes_max
            if self._transport.get_write_buffer_size() > unread_bytes_max:
                # It sends and does not read: our acknowledgments pile up.
                self._transport.abort()

    def _arm(self, now: float) -> None:
        """One timer: it may ring early, when the session's plans have moved on, never late."""
        assert self.session is not None
        wake_at = self.session.next_timer()
        if wake_at is not None:
            self._alarm.at(wake_at, self._wake)

    def _wake(self) -> None:
        if self._closed or self.session is None:
            return
        now = self._loop.time()
        if not self._reads:
            self.session.heard()  # what is not read cannot be missing
        self._handle(self.session.handle_timer(now), now)
        self._flush()
