"""A door that is killed, connections that are cut, and bytes that are no AMQP."""

from __future__ import annotations

import random
import select
import socket
import threading
import time
from typing import Any

import pytest

from tests.amqp.door import AmqpDoor, door_of
from tests.patience import END_S
from tests.process.harness import Hosts

proton = pytest.importorskip("proton")
from proton import Message  # noqa: E402
from proton.utils import BlockingConnection  # noqa: E402

HEADER = b"AMQP\x00\x01\x00\x00"
#: A frame of the login that is shorter than its own head, and the descriptor of the answer.
SHORT_LOGIN = b"AMQP\x03\x01\x00\x00" + b"\0\0\0\x04\x02\x01\0\0"
OUTCOME = b"\x00SD"
MESSAGES, KILLS = 200, 2


class Sender(threading.Thread):
    """Sends numbers one after the other; each again until it was accepted."""

    def __init__(self, door: AmqpDoor, queue: str) -> None:
        super().__init__(daemon=True)
        self._door, self._queue = door, queue
        self.accepted = 0
        self.attempts: dict[int, int] = {}

    def run(self) -> None:
        connection: Any = None
        while self.accepted < MESSAGES:
            try:
                if connection is None:
                    connection = BlockingConnection(self._door.url, timeout=END_S)
                    sender = connection.create_sender(self._queue)
                number = self.accepted
                self.attempts[number] = self.attempts.get(number, 0) + 1
                sender.send(Message(body=number, durable=True))
                self.accepted += 1
            except Exception:
                connection = None
                time.sleep(0.05)  # before the next attempt, as clients do


class Receiver(threading.Thread):
    """Receives until it has seen all numbers; it accepts each with a settlement of both ends."""

    def __init__(self, door: AmqpDoor, queue: str) -> None:
        super().__init__(daemon=True)
        self._door, self._queue = door, queue
        self.seen: list[int] = []

    def run(self) -> None:
        connection: Any = None
        while len(set(self.seen)) < MESSAGES:
            try:
                if connection is None:
                    connection = BlockingConnection(self._door.url, timeout=END_S)
                    receiver = connection.create_receiver(self._queue, credit=50)
                message = receiver.receive(timeout=1)
                self.seen.append(message.body)
                receiver.accept()
            except proton.Timeout:
                continue
            except Exception:
                connection = None
                time.sleep(0.05)


def test_a_killed_door_loses_nothing_and_keeps_the_order(hosts: Hosts) -> None:
    with door_of(hosts, transactional=("work",)) as door:
        sender, receiver = Sender(door, "work"), Receiver(door, "work")
        sender.start()
        receiver.start()
        for kill in range(1, KILLS + 1):
            deadline = time.monotonic() + END_S
            while sender.accepted < kill * MESSAGES // (KILLS + 1):
                assert time.monotonic() < deadline, "the sender does not go on"
                time.sleep(0.01)
            door.restart()
        sender.join(END_S)
        receiver.join(END_S)
        assert sender.accepted == MESSAGES
        assert set(receiver.seen) == set(range(MESSAGES))
        first = list(dict.fromkeys(receiver.seen))
        assert first == sorted(first)
        # A message came twice only if a kill cut off its answer: it was sent or settled again.
        again = [number for number, count in sender.attempts.items() if count > 1]
        repeated = len(receiver.seen) - MESSAGES
        assert repeated <= len(again) + 50 * KILLS


def test_connections_that_are_cut_at_any_byte_end_alone(hosts: Hosts) -> None:
    with door_of(hosts, "orders") as door:
        recorded = conversation(door)
        chance = random.Random(7)
        for at in sorted(chance.sample(range(1, len(recorded)), 60)):
            with socket.create_connection(("127.0.0.1", door.port), timeout=END_S) as client:
                client.sendall(recorded[:at])
        good = BlockingConnection(door.url, timeout=END_S)
        good.create_sender("orders").send(Message(body="after", durable=True))
        good.close()
        assert door.alive


def conversation(door: AmqpDoor) -> bytes:
    """Return the bytes that a client writes when it sends a few messages."""
    listening = socket.create_server(("127.0.0.1", 0))
    recorded = bytearray()
    relay = threading.Thread(target=record, args=(listening, door.port, recorded), daemon=True)
    relay.start()
    port = listening.getsockname()[1]
    connection = BlockingConnection(f"amqp://127.0.0.1:{port}", timeout=END_S)
    sender = connection.create_sender("orders")
    for number in range(5):
        sender.send(Message(body=number, properties={"n": number}))
    connection.close()
    relay.join(END_S)
    return bytes(recorded)


def record(listening: socket.socket, port: int, recorded: bytearray) -> None:
    """Pass one connection on, and record the bytes of the client."""
    with (
        listening,
        listening.accept()[0] as near,
        socket.create_connection(("127.0.0.1", port)) as far,
    ):
        ends = {near: far, far: near}
        while True:
            for each in select.select(list(ends), [], [])[0]:
                data = each.recv(1 << 16)
                if not data:
                    return
                if each is near:
                    recorded += data
                ends[each].sendall(data)


def test_bytes_that_are_no_amqp_end_their_connection_alone(hosts: Hosts) -> None:
    """Damaged frames get an error of AMQP, or the end of the connection; the door goes on."""
    with door_of(hosts, "orders") as door:
        recorded = conversation(door)
        chance = random.Random(11)
        inputs = [b"GET / HTTP/1.1\r\n\r\n", b"AMQP\x00\x00\x09\x01", HEADER + bytes(64),
                  HEADER + b"\xff" * 64, SHORT_LOGIN]  # fmt: skip
        for _ in range(60):
            damaged = bytearray(recorded)
            for _ in range(chance.randrange(1, 6)):
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            inputs.append(bytes(damaged))
        for each in inputs:
            with socket.create_connection(("127.0.0.1", door.port), timeout=END_S) as client:
                client.settimeout(END_S)
                answer = b""
                try:
                    client.sendall(each)
                    client.shutdown(socket.SHUT_WR)
                    while part := client.recv(1 << 16):
                        answer += part
                except (ConnectionError, BrokenPipeError):
                    continue  # it was closed before everything was written
                assert answer.startswith(b"AMQP"), each  # also if it began with other bytes
                assert each != SHORT_LOGIN or OUTCOME in answer
        good = BlockingConnection(door.url, timeout=END_S)
        good.create_sender("orders").send(Message(body="after", durable=True))
        good.close()
        assert door.alive
