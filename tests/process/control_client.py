"""An independent client of the control socket, which can send requests that no client sends.

A frame is a u32 length and one MessagePack array: verb, number, fields.
"""

from __future__ import annotations

import socket
import struct
from pathlib import Path
from typing import Any

import msgspec

from tests.patience import END_S

TIMEOUT_S = END_S


class ControlClient:
    """One connection; replies are found by their numbers.  Raises EOFError when it ended."""

    def __init__(self, path: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        try:
            self.sock.connect(str(path))
        except OSError:
            self.sock.close()
            raise
        self._buffer = bytearray()
        self._replies: dict[int, list[Any]] = {}
        self._number = 0

    def send(self, verb: str, *fields: Any) -> int:
        """Send a request without a wait for its reply; return the number of the request."""
        self._number += 1
        self.send_frame(msgspec.msgpack.encode([verb, self._number, *fields]))
        return self._number

    def send_frame(self, inside: bytes) -> None:
        self.send_raw(struct.pack("<I", len(inside)) + inside)

    def send_raw(self, data: bytes) -> None:
        try:
            self.sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise EOFError("the daemon hung up") from error

    def reply(self, number: int) -> list[Any]:
        """Return ["done", number, result] or ["refused", number, code, text, remedy]."""
        while number not in self._replies:
            reply = self.read()
            self._replies[reply[1]] = reply
        return self._replies.pop(number)

    def ask(self, verb: str, *fields: Any) -> list[Any]:
        return self.reply(self.send(verb, *fields))

    def done(self, verb: str, *fields: Any) -> Any:
        """Return the result of a request that must succeed."""
        kind, _, result, *rest = self.ask(verb, *fields)
        assert kind == "done", (verb, fields, result, *rest)
        return result

    def settle(self) -> None:
        """Wait until earlier requests are processed, with their effects on disk or impossible."""
        self.ask("outcome", b"nobody's")
        self.ask("status")

    def read(self) -> list[Any]:
        """Return the next reply, to any request."""
        self._fill(4)
        (size,) = struct.unpack_from("<I", self._buffer)
        self._fill(4 + size)
        reply = msgspec.msgpack.decode(self._buffer[4 : 4 + size])
        del self._buffer[: 4 + size]
        assert reply[0] in ("done", "refused"), reply
        return list(reply)

    def expect_end(self) -> None:
        """Wait until the daemon closes the connection; ignore replies before the end."""
        try:
            while True:
                self.read()
        except EOFError:
            return

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _fill(self, count: int) -> None:
        while len(self._buffer) < count:
            try:
                data = self.sock.recv(1 << 18)
            except ConnectionResetError:
                data = b""
            if not data:
                raise EOFError("the daemon hung up")
            self._buffer += data
