"""One TCP connection to a peer: bytes to the session, the session's bytes to the socket.

The session decides; this moves bytes, keeps one timer, and tells the queue
manager what happened.  Output is collected and written once per turn of the
event loop, so that acknowledgments and messages which belong together leave in
one piece.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, cast

from protocol import PACKET_BYTES_MAX
from protocol.framing import BrokenStream, PacketBuffer
from protocol.identifiers import guid_text
from protocol.records import ESTABLISH_CONNECTION_BYTES
from qmd.core.session import Acknowledged, Closed, Event, MessageReceived, Opened, Session
from qmd.timers import Alarm

if TYPE_CHECKING:
    from qmd.incoming import IncomingStream
    from qmd.link import Link
    from qmd.manager import QueueManager

# Output waiting in the transport above which nothing more is handed to the session.
WRITE_BYTES_HIGH = 1024 * 1024
WRITE_BYTES_LOW = 256 * 1024
FINAL_ACKS_MAX = 1024  # that wait for room in the window
EXPRESS_MAX = 64  # likewise, of what no outgoing queue keeps
UNREAD_BYTES_MAX = 32 * 1024 * 1024  # more than a full pump of the largest messages


class PeerConnection(asyncio.BufferedProtocol):
    """A session over a socket; `link` is ours when we dialled, None when the peer did."""

    def __init__(
        self,
        manager: QueueManager,
        link: Link | None,
        dialled_address: tuple[str, int] | None = None,
    ) -> None:
        self._manager = manager
        self._loop = asyncio.get_running_loop()
        # Who has not said who it is need not send more, and cannot make us keep more.
        self._buffer = PacketBuffer(ESTABLISH_CONNECTION_BYTES)
        self._alarm = Alarm(self._loop)
        self._flush_due = False
        self._writing_paused = False
        self._reading_paused = False
        self._transport: asyncio.Transport | None = None
        self._closed = False
        self.session: Session | None = None
        self.link = link
        self.dialled_address = dialled_address
        self.links: dict[Link, None] = {}  # whose queues send over this session
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
        self.packet_bytes_max = self._manager.peers.packet_bytes_max(self.host, *dialled)
        self._transport.set_write_buffer_limits(high=WRITE_BYTES_HIGH, low=WRITE_BYTES_LOW)
        self.session = self._manager.peers.admit(self)
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
        broken = self._receive(nbytes, now)
        if self.handshake_done and self._buffer.packet_bytes_max != self.packet_bytes_max:
            # What follows the handshake, and may have come with it, can be longer.
            self._buffer.packet_bytes_max = self.packet_bytes_max
            broken = self._receive(0, now)
        if broken is not None:
            self._handle(
                self.session.close(f"bytes that are no packet: {broken}", now, whole=False), now
            )
            self.flush_soon()

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
        reason = f"the connection was lost: {exc}" if exc else "the peer closed the connection"
        now = self._loop.time()
        self._handle(self.session.close(reason, now, whole=False), now)

    # What the queue manager calls.

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
        if not self._reading_paused and self._transport is not None and not self._closed:
            self._reading_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._reading_paused and self._transport is not None and not self._closed:
            self._reading_paused = False
            self._transport.resume_reading()

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

    def _receive(self, nbytes: int, now: float) -> BrokenStream | None:
        """Take the packets that `nbytes` more bytes make whole; what is behind, if no packet."""
        assert self.session is not None
        broken = None
        try:
            packets = self._buffer.buffer_updated(nbytes)
        except BrokenStream as error:
            broken, packets = error, error.packets  # what came whole before the fault counts
        if packets:
            self._handle(self.session.receive(packets, now), now)
            self.flush_soon()
        return broken

    def _handle(self, events: list[Event], now: float) -> None:
        received: list[MessageReceived] = []
        for event in events:
            kind = type(event)
            if kind is MessageReceived:
                received.append(cast(MessageReceived, event))
                continue
            if received:
                self._manager.incoming.receive(self, received, now)
                received = []
            if kind is Acknowledged:
                self._manager.peers.acknowledged(self, cast(Acknowledged, event).tokens)
            elif kind is Opened:
                self.peer = guid_text(cast(Opened, event).remote_id)
                self._manager.peers.opened(self)
            elif kind is Closed:
                self._end(*cast(Closed, event))
        if received:
            self._manager.incoming.receive(self, received, now)

    def _end(self, reason: str, whole: bool) -> None:
        if self._closed:
            return
        self._write()
        self._closed = True
        self._alarm.cancel()
        if self._transport is not None:
            # close() writes what is buffered first: a refusal has to arrive.
            self._transport.close()
        self._manager.peers.closed(self, reason, whole=whole)

    def _flush(self) -> None:
        self._flush_due = False
        if self._closed or self.session is None:
            return
        self._manager.incoming.send_owed_acks(self)
        self._manager.peers.pump(self)
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
        self._handle(self.session.handle_timer(now), now)
        self._flush()
