"""Proxies on both sides of the door: one holds answers of the daemon, one cuts at a given byte."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from pathlib import Path

from tests.patience import END_S
from tests.process.proxy import ControlProxy, Proxy

_LENGTH = struct.Struct("<I")


class Gate(ControlProxy):
    """A control socket of which a test can hold the answers, and count the requests."""

    def __init__(self, folder: Path) -> None:
        self._gate = threading.Condition()
        self._may_pass: int | None = None  # answers; None: all
        self.requests = 0
        super().__init__(folder)

    def hold(self) -> None:
        """Hold all answers from now on."""
        with self._gate:
            self._may_pass = 0

    def release(self, answers: int | None = None) -> None:
        """Let that many answers pass; None: these and all later ones."""
        with self._gate:
            self._may_pass = None if answers is None else (self._may_pass or 0) + answers
            self._gate.notify_all()

    def wait_requests(self, count: int) -> None:
        """Wait until the door has made `count` requests, since the beginning."""
        with self._gate:
            done = self._gate.wait_for(lambda: self.requests >= count, END_S)
        assert done, f"{self.requests} of {count} requests came"

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        is_answer = source.getpeername() == str(self._target)
        buffer = bytearray()
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                buffer += data
                while frame := _frame(buffer):
                    with self._gate:
                        if is_answer:
                            self._gate.wait_for(
                                lambda: self._may_pass is None or self._may_pass > 0
                            )
                            if self._may_pass is not None:
                                self._may_pass -= 1
                        else:
                            self.requests += 1
                            self._gate.notify_all()
                    target.sendall(frame)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def _frame(buffer: bytearray) -> bytes:
    """Take the first complete frame from a buffer; b"" if there is none."""
    if len(buffer) < _LENGTH.size:
        return b""
    size = _LENGTH.size + int(_LENGTH.unpack_from(buffer)[0])
    if len(buffer) < size:
        return b""
    frame = bytes(buffer[:size])
    del buffer[:size]
    return frame


class Cutter(Proxy):
    """A proxy that ends a connection after so many bytes of one direction."""

    def __init__(self, target_port: int) -> None:
        self._cut_at: int | None = None
        self._cuts_answers = False
        super().__init__(target_port)

    def cut_at(self, count: int | None, *, answers: bool) -> None:
        """End the next connections after `count` bytes of the door (`answers`) or the client."""
        self._cut_at, self._cuts_answers = count, answers

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        is_answer = source.getpeername()[1] == self._target_port
        left = self._cut_at if is_answer == self._cuts_answers else None
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if left is not None and len(data) >= left:
                    target.sendall(data[:left])
                    break
                target.sendall(data)
                with self._passed:
                    self.bytes_passed += len(data)
                if left is not None:
                    left -= len(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
