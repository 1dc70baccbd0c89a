"""A client that writes its frames itself: for tests of limits, damaged frames and odd orders."""

from __future__ import annotations

import socket
import struct
from typing import Any, NamedTuple

import proton

from tests.patience import END_S

HEADER = b"AMQP\x00\x01\x00\x00"
OPEN, BEGIN, ATTACH, FLOW, TRANSFER = 0x10, 0x11, 0x12, 0x13, 0x14
DISPOSITION, DETACH, END, CLOSE = 0x15, 0x16, 0x17, 0x18
SOURCE, TARGET, ACCEPTED, ERROR = 0x28, 0x29, 0x24, 0x1D
SENDER, RECEIVER = False, True
_HEAD = struct.Struct(">IBBH")


class Frame(NamedTuple):
    """One frame: its channel, the code and the fields of its performative, and its payload."""

    channel: int
    code: int
    fields: list[Any]
    payload: bytes

    @property
    def error(self) -> str:
        """The condition of an error in it, or ""."""
        for each in self.fields:
            if isinstance(each, proton.Described) and each.descriptor == ERROR:
                return str(each.value[0])
        return ""


def described(code: int, *fields: Any) -> Any:
    return proton.Described(proton.ulong(code), list(fields))


def encoded(code: int, *fields: Any, channel: int = 0, payload: bytes = b"") -> bytes:
    """Return a frame."""
    data = proton.Data()
    data.put_object(described(code, *fields))
    body = bytes(data.encode()) + payload
    return _HEAD.pack(_HEAD.size + len(body), 2, 0, channel) + body


def attach(
    name: str,
    handle: int,
    role: bool,
    address: str,
    *,
    unsettled: Any = None,
    channel: int = 0,
    second: bool = False,
) -> bytes:
    """Return the frame that attaches a link to a queue; `second`: the receiver settles second."""
    return encoded(
        *(ATTACH, name, proton.uint(handle), role, None, proton.ubyte(second)),
        described(SOURCE, address if role else None),
        described(TARGET, None if role else address),
        *(unsettled, None, None if role else proton.uint(0)),
        channel=channel,
    )


def transfer(handle: int, number: int, message: bytes, *, more: bool = False) -> bytes:
    """Return the frame of a message that is not settled."""
    tag = b"%d" % number
    fields = (proton.uint(handle), proton.uint(number), tag, proton.uint(0), False, more)
    return encoded(TRANSFER, *fields, payload=message)


def resumed(handle: int, number: int, tag: bytes) -> bytes:
    """Return the frame by which a sender settles a delivery that it has resumed."""
    fields = (proton.uint(handle), proton.uint(number), tag, proton.uint(0), True, False)
    return encoded(TRANSFER, *fields, None, described(ACCEPTED), True)


def settled(first: int, last: int, *, role: bool = SENDER) -> bytes:
    """Return the frame by which a client settles deliveries that are accepted."""
    numbers = proton.uint(first), proton.uint(last)
    return encoded(DISPOSITION, role, *numbers, True, described(ACCEPTED))


def opening(
    container: str = "raw", *, idle_ms: int | None = None, frame_bytes: int | None = None
) -> bytes:
    """Return the first bytes of a client: header, open, begin."""
    idle = None if idle_ms is None else proton.uint(idle_ms)
    size = None if frame_bytes is None else proton.uint(frame_bytes)
    return (
        HEADER
        + encoded(OPEN, container, None, size, None, idle)
        + encoded(BEGIN, None, proton.uint(0), proton.uint(10_000), proton.uint(10_000))
    )


def _copied(value: Any) -> Any:
    """Return a value that outlives the data it was read from: binary ones are views of it."""
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, proton.Described):
        return proton.Described(value.descriptor, _copied(value.value))
    return [_copied(each) for each in value] if isinstance(value, list) else value


def _performative(data: Any) -> tuple[int, list[Any]]:
    """Return the code and the fields; a map with binary keys, which proton cannot hash, as well."""
    data.next()
    data.enter()
    data.next()
    code = int(data.get_object())
    data.next()
    count, fields = data.get_list(), []
    data.enter()
    for _ in range(count):
        if data.next() != proton.Data.MAP:
            fields.append(_copied(data.get_object()))
            continue
        found = {}
        pairs = data.get_map() // 2
        data.enter()
        for _ in range(pairs):
            data.next()
            key = data.get_object()
            data.next()
            found[bytes(key) if isinstance(key, memoryview) else key] = data.get_object()
        data.exit()
        fields.append(found)
    return code, fields


class RawClient:
    """A connection whose frames the test writes and reads."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=END_S)
        self._rest = bytearray()
        self._has_header = False

    def write(self, *data: bytes) -> None:
        self.socket.sendall(b"".join(data))

    def read(self) -> Frame | None:
        """Return the next frame that is not empty; None at the end of the connection."""
        while True:
            if (frame := self._next()) is not None:
                if frame.fields or frame.code:
                    return frame
                continue
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionError:
                return None
            if not data:
                return None
            self._rest += data

    def read_until(self, code: int) -> Frame:
        """Return the next frame with this performative."""
        while (frame := self.read()) is not None:
            if frame.code == code:
                return frame
        raise AssertionError(f"the connection ended without {code:#x}")

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def _next(self) -> Frame | None:
        if not self._has_header:
            if len(self._rest) < len(HEADER):
                return None
            assert self._rest.startswith(HEADER), self._rest
            del self._rest[: len(HEADER)]
            self._has_header = True
        if len(self._rest) < _HEAD.size:
            return None
        size, offset, _, channel = _HEAD.unpack_from(self._rest)
        if len(self._rest) < size:
            return None
        body = bytes(self._rest[4 * offset : size])
        del self._rest[:size]
        if not body:
            return Frame(channel, 0, [], b"")
        data = proton.Data()
        count = data.decode(body)
        code, fields = _performative(data)
        return Frame(channel, code, fields, body[count:])
