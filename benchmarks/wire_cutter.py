"""A TCP proxy with connections that can be cut, between the demo's queue managers."""

from __future__ import annotations

import asyncio
from typing import cast


class WireCutter:
    """Proxy from its own `port` to `target_port`: `async with WireCutter(...)`."""

    def __init__(self, target_port: int) -> None:
        self.port = 0
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._ends: set[_End] = set()  # of the connections that lead to the target
        self._connected = asyncio.Event()

    async def __aenter__(self) -> WireCutter:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _NearEnd(self), "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()

    async def connected(self) -> None:
        """Wait until a connection exists."""
        await self._connected.wait()

    def cut(self) -> int:
        """Abort both sides of every connection; return how many there were.

        Bytes in transit are lost, and neither side learns how far the other one got.
        """
        ends, self._ends = self._ends, set()
        self._connected.clear()
        for end in ends:
            end.transport.abort()
        return len(ends) // 2

    def lost(self, end: _End) -> None:
        self._ends.discard(end)
        if not self._ends:
            self._connected.clear()

    async def dial(self, near: _End) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, far = await loop.create_connection(
                lambda: _End(self), "127.0.0.1", self._target_port
            )
        except OSError:
            near.transport.abort()  # the target does not listen: close the caller's connection
            return
        near.other, far.other = far, near
        if near.transport.is_closing():
            far.transport.abort()
            return
        far.transport.write(bytes(near.early))
        self._ends |= {near, far}
        self._connected.set()


class _End(asyncio.Protocol):
    """One side of a connection; received bytes leave on the `other` side."""

    transport: asyncio.Transport

    def __init__(self, wire: WireCutter) -> None:
        self.wire = wire
        self.other: _End | None = None
        self.early = bytearray()  # received before the other side was connected

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self.early += data
        else:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None and not self.other.transport.is_closing():
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and not self.other.transport.is_closing():
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.wire.lost(self)
        if self.other is None:
            return
        if exc is None:
            self.other.transport.close()
        else:
            self.other.transport.abort()


class _NearEnd(_End):
    """The accepted side of a connection."""

    def __init__(self, wire: WireCutter) -> None:
        super().__init__(wire)
        self._dialling: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._dialling = asyncio.get_running_loop().create_task(self.wire.dial(self))
