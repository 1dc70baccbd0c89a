"""A TCP connection to or from the daemon: intact packets, no session, no rules."""

from __future__ import annotations

import select
import socket
import struct
import time

from tests.patience import END_S
from tests.process import wire
from tests.process.wire import require

TIMEOUT_S = END_S


class Closed(Exception):
    """The daemon closed the connection."""


class Connection:
    """One TCP connection that divides its bytes into packets; no session, no rules."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._buffer = bytearray()
        self._ended = False
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @classmethod
    def open(cls, port: int, *, source: str | None = None, host: str = "127.0.0.1") -> Connection:
        address = (source, 0) if source else None
        return cls(socket.create_connection((host, port), TIMEOUT_S, address))

    def send(self, data: bytes) -> None:
        self.sock.settimeout(TIMEOUT_S)
        try:
            self.sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Closed from error

    def send_all_it_takes(self, data: bytes) -> bool:
        """Send until the daemon closes the connection; return whether it read everything."""
        try:
            self.send(data)
        except Closed:
            return False
        return True

    def frame(self, timeout_s: float = TIMEOUT_S) -> bytes:
        """Return the next complete packet.  Raises TimeoutError or Closed."""
        deadline = time.monotonic() + timeout_s
        self._fill(16, deadline)
        header = wire.parse_base(self._buffer[:16])
        length = wire.wire_length(header)
        self._fill(length, deadline)
        data = bytes(self._buffer[:length])
        del self._buffer[:length]
        return data

    def has_data(self) -> bool:
        """Return whether a read would not wait."""
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
        """Wait until the daemon closes the connection; return the packets that it sent before."""
        said: list[bytes] = []
        try:
            while True:
                said.append(self.frame(timeout_s))
        except Closed:
            return said
        except TimeoutError:
            raise AssertionError(f"still open after {timeout_s} s; it said {said!r}") from None

    def expect_silence(self, seconds: float) -> None:
        """Assert that neither a byte nor an end arrives for `seconds`."""
        if self._buffer:
            raise AssertionError(f"unread: {bytes(self._buffer)!r}")
        readable, _, _ = select.select([self.sock], [], [], seconds)
        if readable:
            raise AssertionError(f"not silent: {self.sock.recv(1 << 16)!r}")

    def half_close(self) -> None:
        self.sock.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Close the connection with RST, like a host that lost its state."""
        linger = struct.pack("ii", 1, 0)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.close()

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
