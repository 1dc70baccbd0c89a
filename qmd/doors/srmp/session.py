"""A session of the binary protocol with the daemon, over a socket.  [MS-MQQB]

The decisions are those of `qmd.core.session`, as in the daemon itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from protocol import PacketBuffer
from qmd.core.session import Acknowledged, Closed, MessageReceived, Opened, Session, SessionSettings

READ_BYTES = 64 * 1024
TICK_S = 0.05
#: The daemon gives messages in their order; few of them wait here for another host.
SETTINGS = SessionSettings(window_size=64, receipt_ack_max_s=0.05)


class SessionEnded(Exception):
    """The session with the daemon has ended; the text says why."""


class BinarySession:
    """One session; `run` serves it until it ends.

    `take(packet)` is called with each packet before it counts as received, in order, and `received`
    with each message after that; either may wait, and end the session with SessionEnded.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        own_id: bytes,
        *,
        initiator: bool,
        take: Callable[[bytes], Awaitable[None]],
        received: Callable[[MessageReceived], None],
    ) -> None:
        self._reader, self._writer = reader, writer
        self._take, self._received = take, received
        self._buffer = PacketBuffer()
        self._loop = asyncio.get_running_loop()
        self._may_send = asyncio.Event()
        self.opened: asyncio.Future[bytes] = self._loop.create_future()
        self.own_id = own_id
        self.session = Session(
            initiator=initiator, own_id=own_id, settings=SETTINGS, now=self._loop.time()
        )
        self._waiting: set[asyncio.Future[None]] = set()
        self.ended = ""  # why

    async def run(self) -> None:
        """Serve the session until it ends."""
        ticking = self._loop.create_task(self._tick())
        reason = "the daemon has closed the connection"
        try:
            if self.session.state is not self.session.state.WAITING_EC:
                self.session.start(self._loop.time())
                self._flush()
            while not self.ended and (data := await self._reader.read(READ_BYTES)):
                for packet in self._packets(data):
                    await self._take(packet)
                    self._handle([packet])
                await self._writer.drain()
        except (SessionEnded, OSError) as error:
            reason = str(error)
        finally:
            ticking.cancel()
            self._end(self.ended or reason)

    def _packets(self, data: bytes) -> list[bytes]:
        found: list[bytes] = []
        while data:
            view = self._buffer.get_buffer()
            count = min(len(view), len(data))
            view[:count] = data[:count]
            data = data[count:]
            found += self._buffer.buffer_updated(count)
        return found

    def _handle(self, packets: list[bytes]) -> None:
        for event in self.session.receive(packets, self._loop.time()):
            if isinstance(event, MessageReceived):
                self._received(event)
            elif isinstance(event, Acknowledged):
                for token in event.tokens:
                    if isinstance(token, asyncio.Future) and not token.done():
                        token.set_result(None)
            elif isinstance(event, Opened) and not self.opened.done():
                self.opened.set_result(event.remote_id)
            elif isinstance(event, Closed):
                self._end(event.reason)
        self._flush()

    def stored(self, number: int) -> None:
        """Acknowledge a recoverable message, or nothing for the number 0."""
        if number:
            self.session.mark_stored([number], self._loop.time())
            self._flush()

    async def send(self, packet: bytes, *, recoverable: bool) -> None:
        """Send a message; return when the daemon has it.  Raises SessionEnded."""
        while not self.ended and not self.session.room():
            self._may_send.clear()
            await self._may_send.wait()
        if self.ended:
            raise SessionEnded(self.ended)
        done: asyncio.Future[None] = self._loop.create_future()
        self._waiting.add(done)
        done.add_done_callback(self._waiting.discard)
        self.session.send(packet, recoverable=recoverable, token=done, now=self._loop.time())
        self._flush()
        await done

    def send_soon(self, packet: bytes) -> None:
        """Send an acknowledgment, if there is room; its source sends it again otherwise."""
        if not self.ended and self.session.room():
            self.session.send(packet, recoverable=True, token=None, now=self._loop.time())
            self._flush()

    def close(self, reason: str) -> None:
        """End the session."""
        self._end(reason)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            for event in self.session.handle_timer(self._loop.time()):
                if isinstance(event, Closed):
                    self._end(event.reason)
            self._flush()

    def _flush(self) -> None:
        if data := self.session.data_to_send():
            self._writer.write(data)
        if self.session.room():
            self._may_send.set()

    def _end(self, reason: str) -> None:
        if self.ended:
            return
        self.ended = reason
        self._may_send.set()
        for future in self._waiting | ({self.opened} if not self.opened.done() else set()):
            if not future.done():
                future.set_exception(SessionEnded(reason))
                future.exception()  # it may be waited for by none
        with contextlib.suppress(OSError):
            self._writer.close()
