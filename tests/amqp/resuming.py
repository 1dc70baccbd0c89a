"""A sender that resumes its link whenever its connection is lost, by frames of its own."""

from __future__ import annotations

import threading
import time

import proton
from proton import Message

from tests.amqp import frames
from tests.amqp.door import AmqpDoor
from tests.amqp.frames import RawClient

WINDOW = 10  # messages without an outcome
PAUSE_S = 0.02  # before another attempt to connect
UNSETTLED = 7  # the field of an attach


class ResumingSender(threading.Thread):
    """Sends numbers to a queue; after a lost connection those again that are not committed."""

    def __init__(self, door: AmqpDoor, queue: str, count: int, port: int | None = None) -> None:
        """`port`: that of a proxy before the door, instead of its own."""
        super().__init__(daemon=True)
        self._door, self._queue, self._count = door, queue, count
        self._port = port
        self.connections = 0
        self._next = 0
        self._pending: dict[bytes, str] = {}  # in their order
        self._is_begun = False
        self.accepted = self.resumed = 0

    def run(self) -> None:
        while self.accepted < self._count:
            try:
                self.connections += 1
                with RawClient(self._port or self._door.port) as client:
                    self._send(client)
            except (OSError, AssertionError):  # the end of the connection
                time.sleep(PAUSE_S)

    def _send(self, client: RawClient) -> None:
        unsettled = dict.fromkeys(self._pending) if self._is_begun else None
        link = frames.attach(
            "link", 0, frames.SENDER, self._queue, unsettled=unsettled, second=True
        )
        client.write(frames.opening("resuming"), link)
        answer = [*client.read_until(frames.ATTACH).fields, None]
        client.read_until(frames.FLOW)
        self._is_begun = True
        number = 0
        for tag in answer[UNSETTLED] or {}:
            client.write(frames.resumed(0, number, tag))
            del self._pending[tag]
            self.accepted += 1
            self.resumed += 1
            number += 1
        under_way: dict[int, bytes] = {}
        for tag in self._pending:
            under_way[number] = tag
            number = self._transfer(client, number, tag)
        while self.accepted < self._count:
            while len(under_way) < WINDOW and self._next < self._count:
                tag = b"t%d" % self._next
                self._pending[tag] = f"{self._next}"
                self._next += 1
                under_way[number] = tag
                number = self._transfer(client, number, tag)
            self._settle(client, under_way)

    def _transfer(self, client: RawClient, number: int, tag: bytes) -> int:
        """Send a message; return the number of the next delivery."""
        data = bytes(Message(body=self._pending[tag], durable=True).encode())
        numbers = proton.uint(0), proton.uint(number), tag, proton.uint(0)
        client.write(frames.encoded(frames.TRANSFER, *numbers, False, False, payload=data))
        return number + 1

    def _settle(self, client: RawClient, under_way: dict[int, bytes]) -> None:
        """Wait for an outcome, and settle its deliveries."""
        _, first, last, _, state, *_ = client.read_until(frames.DISPOSITION).fields
        assert state.descriptor == frames.ACCEPTED
        last = first if last is None else last
        for number in range(first, last + 1):
            if (tag := under_way.pop(number, None)) is not None:
                del self._pending[tag]
                self.accepted += 1
        client.write(frames.settled(first, last))
