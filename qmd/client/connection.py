"""A connection to the control socket: requests, their replies, and many requests under way.

Requests made in one pass of the event loop leave in one write.  A reply carries the number of its
request, so replies may arrive in any order.  When the connection breaks, every request under way
fails with NotConnected; `Caller` finds out whether it was done.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec

from qmd.client import forks
from qmd.client.address import RESTART_ADVICE, Address, SocketAddress
from qmd.client.errors import BadRequest, NotConnected, TooLarge, refusal
from qmd.control_protocol import locks
from qmd.control_protocol import messages as frames

# Requests that are answered with messages, often after a wait.
_BRING_MESSAGES = {frames.Take, frames.TakeChosen, frames.Peek, locks.TakeLocked}
_CODEC = "protocol.packets"
_IMPORT_AFTER_S = 0.001  # the request has left by then


class Connection(asyncio.Protocol):
    """A connection made by `open_connection`; it lives until the other end or `close` ends it."""

    def __init__(self, path: Path | Address) -> None:
        self._path = path
        self._loop = asyncio.get_running_loop()
        self._buffer = frames.FrameBuffer()
        self._under_way: dict[int, asyncio.Future[Any]] = {}
        self._last_number = 0
        self._to_write: list[bytes] = []
        self._write_is_due = False
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._closed = self._loop.create_future()
        self._home = forks.Home()
        self.is_lost = False

    def ask(self, verb: Callable[..., frames.Request], *arguments: object) -> asyncio.Future[Any]:
        """Make a request and return the future of its result.

        `arguments` are the fields of `verb` after its number.  Raises NotConnected, TooLarge or
        BadRequest at once, when nothing was sent; the future raises a QueueManagerError, or
        NotConnected when the connection was lost meanwhile.
        """
        self._home.check()
        if self.is_lost:
            raise NotConnected(
                f"the connection to {self._path} was lost", RESTART_ADVICE, code="connection_lost"
            )
        self._last_number += 1
        try:
            data = frames.frame(verb(self._last_number, *arguments))
        except OverflowError as error:
            raise BadRequest(
                "a number has more than 64 bits", "check the arguments", code="argument_unsendable"
            ) from error
        except UnicodeEncodeError as error:
            raise BadRequest(
                f"{error.object!r} is not Unicode text",
                "give bytes as a body, and text otherwise",
                code="argument_unsendable",
            ) from error
        if len(data) > frames.FRAME_BYTES_MAX:
            raise TooLarge(
                f"the request has {len(data)} bytes; {frames.FRAME_BYTES_MAX} are allowed",
                "split it into several requests",
                code="request_too_large",
            )
        future = self._under_way[self._last_number] = self._loop.create_future()
        self._to_write.append(data)
        if not self._write_is_due:
            self._write_is_due = True
            self._loop.call_soon(self._write)
        if verb in _BRING_MESSAGES and _CODEC not in sys.modules:
            # The import takes as long as many messages: the first one need not wait for it.
            self._loop.call_later(_IMPORT_AFTER_S, importlib.import_module, _CODEC)
        return future

    def write_now(self) -> None:
        """Write the requests so far, and do not wait for others of this pass of the loop."""
        if self._write_is_due:
            self._write()

    async def has_room(self) -> None:
        """Wait until the socket accepts more data: bounds the memory of a fast sender."""
        await self._may_write.wait()

    def when_closed(self, callback: Callable[[], None]) -> None:
        """Call `callback` after the connection has ended, for any reason."""
        self._closed.add_done_callback(lambda _: callback())

    def abort(self) -> None:
        """End the connection, without waiting for its end."""
        self._transport.abort()

    async def close(self) -> None:
        """End the connection; messages that were taken and not settled return to their queue.

        The copy in a forked process has no connection, and does not affect that of its parent.
        """
        if self._home.is_elsewhere:
            return
        self._transport.abort()
        await asyncio.shield(self._closed)

    # -- called by the event loop ------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._home.settle()
        socket = transport.get_extra_info("socket")
        if socket is not None:
            forks.opened(self, socket.fileno())

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()
        self._write()

    def data_received(self, data: bytes) -> None:
        try:
            for inside in self._buffer.feed(data):
                self._settle(frames.decode_reply(inside))
        except (frames.FrameError, msgspec.MsgspecError) as fault:
            self._lose(
                NotConnected(
                    f"{self._path} sent a reply that is not valid: {fault}",
                    "install the same release on both sides",
                    code="reply_not_understood",
                )
            )
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        forks.closed(self)
        why = f" ({exc})" if exc else ""
        self._lose(
            NotConnected(
                f"the connection to {self._path} was lost{why}",
                RESTART_ADVICE,
                code="connection_lost",
            )
        )
        if not self._closed.done():
            self._closed.set_result(None)

    # ----------------------------------------------------------------------------------------

    def _write(self) -> None:
        if not self._may_write.is_set():
            return  # `resume_writing` calls this method again
        self._write_is_due = False
        if self._to_write and not self.is_lost:
            data = b"".join(self._to_write)
            self._to_write.clear()
            self._transport.write(data)

    def _settle(self, reply: frames.Reply) -> None:
        future = self._under_way.pop(reply.number, None)
        if future is None or future.done():
            return  # the caller no longer waits
        if isinstance(reply, frames.Done):
            future.set_result(reply.result)
        else:
            future.set_exception(refusal(reply))

    def _lose(self, fault: NotConnected) -> None:
        if self.is_lost:
            return
        self.is_lost = True
        self._to_write.clear()
        self._may_write.set()
        under_way, self._under_way = self._under_way, {}
        for future in under_way.values():
            if not future.done():
                future.set_exception(NotConnected(fault.text, fault.remedy, code=fault.code))


async def open_connection(where: Path | Address) -> Connection:
    """Connect to the control socket at a path, or to a remote daemon.  Raises NotConnected."""
    address = SocketAddress(where) if isinstance(where, Path) else where
    return await address.open(lambda: Connection(address))
