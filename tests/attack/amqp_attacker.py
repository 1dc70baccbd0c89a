"""A client of the door for AMQP that tries links and messages, and keeps every byte it receives."""

from __future__ import annotations

import socket
import struct
from typing import Any

import proton

from tests.amqp.frames import (
    ATTACH,
    BEGIN,
    CLOSE,
    DETACH,
    DISPOSITION,
    FLOW,
    RECEIVER,
    SOURCE,
    TARGET,
    TRANSFER,
    Frame,
    RawClient,
    described,
    encoded,
    opening,
)

SASL = b"AMQP\x03\x01\x00\x00"
SASL_INIT, SASL_OUTCOME = 0x41, b"\x00\x53\x44"
COORDINATOR, DECLARE, DISCHARGE = 0x30, 0x31, 0x32
DECLARED, ACCEPTED, REJECTED, TRANSACTIONAL = 0x33, 0x24, 0x25, 0x34
CREDIT = 10
EVERYTHING = proton.symbol("apache.org:selector-filter:string")


class Attacker(RawClient):
    """A logged-in connection; `name` is "" for one without a login."""

    def __init__(self, port: int, name: str, password: str, container: str = "c") -> None:
        super().__init__(port)
        self.seen = bytearray()
        self._handle = 0
        self._theirs: dict[int, int] = {}  # the handles of the door, by those of this end
        self._number = 0
        self._received: list[bytes] = []
        if name:
            self._log_in(name, password)
        self.write(opening(container))
        self.read_until(BEGIN)

    def _log_in(self, name: str, password: str) -> None:
        data = proton.Data()
        response = f"\0{name}\0{password}".encode()
        fields = [proton.symbol("PLAIN"), response]
        data.put_object(proton.Described(proton.ulong(SASL_INIT), fields))
        frame = bytes(data.encode())
        self.write(SASL + struct.pack(">IBBH", 8 + len(frame), 2, 1, 0) + frame)
        got = self.socket.recv(8, socket.MSG_WAITALL)
        while SASL_OUTCOME not in got:
            head = self.socket.recv(4, socket.MSG_WAITALL)
            got = self.socket.recv(struct.unpack(">I", head)[0] - 4, socket.MSG_WAITALL)
        assert got.endswith(b"\x50\x00"), got

    def read(self) -> Frame | None:
        frame = super().read()
        if frame is not None:
            self.seen += repr(frame.fields).encode() + frame.payload
            if frame.code == TRANSFER:
                self._received.append(frame.payload)
        return frame

    def attach(
        self,
        role: bool,
        address: Any,
        *,
        name: str = "",
        copy: bool = False,
        settled: bool = False,
        selector: str = "",
        dynamic: bool = False,
        unsettled: Any = None,
    ) -> tuple[int, str, str]:
        """Attach a link; return its handle, the condition that ends it or "", and its address."""
        self._handle += 1
        handle = self._handle
        mode = proton.symbol("copy") if copy else None
        chosen = {EVERYTHING: proton.Described(EVERYTHING, selector)} if selector else None
        far = (address, None, None, None, dynamic)
        ends = described(SOURCE), described(TARGET, *far)
        if role == RECEIVER:
            ends = described(SOURCE, *far, None, mode, chosen), described(TARGET, "here")
        if address is COORDINATOR:
            ends = described(SOURCE), described(COORDINATOR)
        first = None if role == RECEIVER else proton.uint(0)
        modes = proton.ubyte(1 if settled else 0), proton.ubyte(1 if unsettled else 0)
        link = (name or f"l{handle}", proton.uint(handle), role, *modes, *ends)
        self.write(encoded(ATTACH, *link, unsettled, None, first))
        answer = self._until(ATTACH)
        place = answer.fields[5 if role == RECEIVER else 6]
        shown = place.value[0] if isinstance(place, proton.Described) and place.value else ""
        self.answer = answer
        self._theirs[handle] = int(answer.fields[1])
        if role == RECEIVER:
            numbers = [proton.uint(each) for each in (0, 10_000, 0, 10_000, handle, 0, CREDIT)]
            self.write(encoded(FLOW, *numbers, proton.uint(0), True))
        return handle, self._until(FLOW, DETACH, link=handle).error, str(shown or "")

    def send(
        self, handle: int, message: bytes, *, transaction: bytes = b"", tag: bytes = b""
    ) -> Any:
        """Send a message over a link; return the state that it gets: a described value."""
        number = self._number
        self._number += 1
        state = described(TRANSACTIONAL, transaction) if transaction else None
        numbers = proton.uint(handle), proton.uint(number), tag or b"%d" % number, proton.uint(0)
        self.write(encoded(TRANSFER, *numbers, False, False, None, state, payload=message))
        frame = self._until(DISPOSITION, DETACH, link=handle)
        return described(0, frame.error) if frame.code == DETACH else frame.fields[4]

    def take(self, handle: int, count: int) -> None:
        """Give a receiving link more credit, after `attach` has used up the first."""
        numbers = [proton.uint(each) for each in (0, 10_000, 0, 10_000, handle, CREDIT, count)]
        self.write(encoded(FLOW, *numbers))

    def next_message(self) -> proton.Message:
        """Return the next message that comes over any link, such as an answer of `$management`."""
        while not self._received:
            self._until(TRANSFER)
        message = proton.Message()
        message.decode(self._received.pop(0))
        return message

    def declare(self, handle: int) -> bytes:
        """Begin a transaction over a link to the coordinator; return its id."""
        state = self.send(handle, request(described(DECLARE)))
        assert state.descriptor == DECLARED, state
        return bytes(state.value[0])

    def _until(self, *codes: int, link: int | None = None) -> Frame:
        """Return the next frame of these kinds; flows and ends of other links do not count."""
        handle = None if link is None else self._theirs[link]
        while (frame := self.read()) is not None:
            assert frame.code != CLOSE, frame
            if frame.code not in codes:
                continue
            if frame.code == FLOW and (len(frame.fields) < 5 or frame.fields[4] != handle):
                continue
            if frame.code == DETACH and link is not None and frame.fields[0] != handle:
                continue
            return frame
        raise AssertionError(f"the connection ended without {codes}")


def request(value: Any) -> bytes:
    """Return a message whose body is a value of the coordinator."""
    data = proton.Data()
    data.put_object(described(0x77))
    inner = proton.Data()
    inner.put_object(value)
    return b"\x00\x53\x77" + bytes(inner.encode())
