"""A plain client of the control socket: one blocking connection without retries."""

from __future__ import annotations

import itertools
import select
import socket
import struct
from pathlib import Path
from typing import Any

import msgspec

from tests.patience import END_S

TIMEOUT_S = END_S
_LENGTH = struct.Struct("<I")
_numbers = itertools.count(1)  # of requests, each used once in this process


def next_number() -> int:
    return next(_numbers)


class Ended(Exception):
    """The daemon has ended."""


class Refusal(Exception):
    """The daemon refused a request."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class Control:
    """A connection; requests are arrays of qmd/control_protocol/messages.py.

    Answers may be awaited in any order.
    """

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._buffer = bytearray()
        self._answers: dict[int, Any] = {}
        try:
            self._socket.connect(str(path))
        except OSError as error:
            self._socket.close()
            raise Ended from error

    def request(self, verb: str, *arguments: object, number: int | None = None) -> int:
        """Send a request; return its number, which `answer` takes."""
        number = next_number() if number is None else number
        data = msgspec.msgpack.encode([verb, number, *arguments])
        try:
            self._socket.sendall(_LENGTH.pack(len(data)) + data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Ended from error
        return number

    def answer(self, number: int) -> Any:
        """Return the answer to a request.  Raises Refusal, Ended, TimeoutError."""
        while number not in self._answers:
            self._read()
        kind, _, *rest = self._answers.pop(number)
        if kind == "refused":
            raise Refusal(*rest[:2])
        return rest[0]

    def ask(self, verb: str, *arguments: object) -> Any:
        return self.answer(self.request(verb, *arguments))

    def close(self) -> None:
        self._socket.close()

    def _read(self) -> None:
        if not select.select([self._socket], [], [], TIMEOUT_S)[0]:
            raise TimeoutError(f"no answer after {TIMEOUT_S} s")
        try:
            data = self._socket.recv(1 << 18)
        except ConnectionResetError:
            data = b""
        if not data:
            raise Ended
        self._buffer += data
        for reply in take_replies(self._buffer):
            self._answers[reply[1]] = reply


def take_replies(buffer: bytearray) -> list[Any]:
    """Remove the complete replies at the beginning of `buffer`, and return them.

    [kind, number, ...].
    """
    replies: list[Any] = []
    while len(buffer) >= 4:
        (size,) = _LENGTH.unpack_from(buffer)
        if len(buffer) < 4 + size:
            break
        replies.append(msgspec.msgpack.decode(bytes(buffer[4 : 4 + size])))
        del buffer[: 4 + size]
    return replies
