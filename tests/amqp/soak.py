"""A door that is killed under load, connections cut at each byte, many connections at once.

    python -m tests.amqp.soak [--kills 100] [--step 1] [--connections 1000]

Two senders give each message a token, repeat what was not accepted, and a mover takes them from one
queue to another, five in a transaction; a third sender resumes its link.  Meanwhile the door is
killed again and again.  At the end each message must be there once, in the order of its sender.
`tests/amqp/test_soak.py` runs a short form of each part.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import random
import sys
import threading
import time
from typing import Any

import proton
from proton import Message, symbol
from proton.handlers import MessagingHandler, TransactionHandler
from proton.reactor import Container
from proton.utils import BlockingConnection

from tests.amqp import frames
from tests.amqp.door import AmqpDoor, door_of
from tests.amqp.proxies import Cutter
from tests.amqp.resuming import ResumingSender
from tests.patience import END_S
from tests.process.harness import Hosts

SENDERS, TOGETHER = 2, 5  # messages of one transaction
BETWEEN = 20  # messages of a sender from one kill to the next
RESUMED_BETWEEN = 60  # the same, of the sender that resumes
#: Of a connection that is cut while it sends, about; one outcome is that of several messages.
MESSAGES_A_CUT, MESSAGE_BYTES, OUTCOME_BYTES, OPENING_BYTES = 60, 80, 8, 300
CLOSE_S = 5.0
PAUSE_S = 0.02  # before another attempt to connect


# Killed doors.


class OnceSender(threading.Thread):
    """Sends numbers with tokens, one after the other; each again until it was accepted."""

    def __init__(self, door: AmqpDoor, number: int, count: int) -> None:
        super().__init__(daemon=True)
        self._door, self._number, self._count = door, number, count
        self.accepted = 0

    def run(self) -> None:
        connection: Any = None
        while self.accepted < self._count:
            try:
                if connection is None:
                    connection = BlockingConnection(self._door.url, timeout=END_S)
                    sender = connection.create_sender("in")
                text = f"{self._number} {self.accepted}"
                token = {symbol("x-opt-msmq-once"): text}
                sender.send(Message(body=text, durable=True, annotations=token))
                self.accepted += 1
            except Exception:
                connection = None
                time.sleep(PAUSE_S)


class Mover(MessagingHandler, TransactionHandler):
    """Moves messages in transactions, until its connection is lost or `end` is set."""

    def __init__(self, door: AmqpDoor, end: threading.Event) -> None:
        super().__init__(auto_accept=False, prefetch=0)
        self._door, self._end = door, end

    def on_start(self, event: Any) -> None:
        container = self._container = event.container
        self._connection = container.connect(self._door.url, reconnect=False, heartbeat=5)
        self._receiver = container.create_receiver(self._connection, "in")
        self._sender = container.create_sender(self._connection, "out")
        self._declare()
        container.schedule(0.2, self)

    def _declare(self) -> None:
        self._moved, self._transaction, self._is_begun = 0, None, False
        self._container.declare_transaction(
            self._connection, handler=self, settle_before_discharge=False
        )

    def on_timer_task(self, event: Any) -> None:
        if self._end.is_set():
            self._connection.close()
        elif self._connection.state & proton.Endpoint.LOCAL_ACTIVE:
            self._container.schedule(0.2, self)

    def on_transaction_declared(self, event: Any) -> None:
        self._transaction = event.transaction
        self._begin()

    def on_sendable(self, event: Any) -> None:
        self._begin()

    def _begin(self) -> None:
        """Take messages when they can be sent: proton would discharge before it sends without
        credit, so that the transaction had their removal alone."""
        if self._transaction is not None and not self._is_begun and self._sender.credit:
            self._is_begun = True
            self._receiver.flow(TOGETHER)

    def on_message(self, event: Any) -> None:
        self._transaction.send(self._sender, Message(body=event.message.body, durable=True))
        self._transaction.accept(event.delivery)
        self._moved += 1
        if self._moved == TOGETHER:
            self._transaction.commit()

    def on_transaction_committed(self, event: Any) -> None:
        self._declare()

    def on_transaction_commit_failed(self, event: Any) -> None:
        self._connection.close()  # begin again

    def on_transport_error(self, event: Any) -> None:
        self._connection.close()


def move(door: AmqpDoor, end: threading.Event) -> None:
    """Run movers, one after the other, until `end` is set."""
    while not end.is_set():
        try:
            Container(Mover(door, end)).run()
        except Exception:
            time.sleep(PAUSE_S)


def kill_under_load(door: AmqpDoor, kills: int) -> int:
    """Kill the door so many times under load; return the number of messages.

    Raises AssertionError unless each message is in the queue "out" once, in its order, and those of
    a sender that resumes in the queue "resumed".  Needs these and "in", all transactional.
    """
    count = BETWEEN * (kills + 1)
    senders = [OnceSender(door, number, count) for number in range(SENDERS)]
    resuming = ResumingSender(door, "resumed", RESUMED_BETWEEN * (kills + 1))
    end = threading.Event()
    mover = threading.Thread(target=move, args=(door, end), daemon=True)
    for each in (*senders, resuming, mover):
        each.start()
    for kill in range(1, kills + 1):
        deadline = time.monotonic() + END_S
        while (
            senders[kill % SENDERS].accepted < kill * BETWEEN
            or resuming.accepted < kill * RESUMED_BETWEEN
        ):
            assert time.monotonic() < deadline, f"nothing is sent before kill {kill}"
            time.sleep(0.005)
        door.restart()
    for sender in senders:
        sender.join(END_S)
    _wait_for_all(door, "out", SENDERS * count)
    moved = door.daemon.peek("out")
    end.set()
    mover.join(END_S)
    texts = _texts(moved)
    resuming.join(END_S)
    expected = [f"{each}" for each in range(RESUMED_BETWEEN * (kills + 1))]
    assert _texts(door.daemon.peek("resumed")) == expected
    for number in range(SENDERS):
        own = [text for text in texts if text.startswith(f"{number} ")]
        assert own == [f"{number} {each}" for each in range(count)], own
    assert door.daemon.count("in") == 0
    return len(texts) + len(expected)


def _wait_for_all(door: AmqpDoor, queue: str, count: int) -> None:
    """Wait as long as further messages come."""
    found, deadline = -1, 0.0
    while (now := door.daemon.count(queue)) < count:
        if now > found:
            found, deadline = now, time.monotonic() + END_S
        left = door.daemon.count("in")
        assert time.monotonic() < deadline, f"{now} of {count} are in {queue}, {left} are left"
        time.sleep(0.5)


def _texts(messages: list[dict[str, Any]]) -> list[str]:
    return [base64.b64decode(each["body_base64"]).decode("utf-16-le") for each in messages]


# Cut connections.


class Exchange:
    """Sends and receives a few messages of one round over a connection that may be cut."""

    def __init__(self, first: int) -> None:
        self.numbers = range(first, first + 3)
        self.accepted: set[int] = set()  # by the door
        self.begun: set[int] = set()  # to be received: perhaps removed
        self.attempted: set[int] = set()

    def run(self, port: int) -> None:
        try:
            connection = BlockingConnection(f"amqp://127.0.0.1:{port}", timeout=END_S)
            sender = connection.create_sender("cut")
            for number in self.numbers:
                self.attempted.add(number)
                sender.send(Message(body=number, durable=True))
                self.accepted.add(number)
            receiver = connection.create_receiver("cut", credit=2)
            for _ in range(2):
                found = receiver.receive(timeout=END_S).body
                self.begun.add(found)
                receiver.accept()
            connection.timeout = CLOSE_S  # this client does not notice a cut while it closes
            connection.close()
        except Exception:
            return  # it was cut


def cut_at(door: AmqpDoor, offsets: list[tuple[int, bool]]) -> None:
    """Cut connections at offsets of the bytes of the client, or of the door (True).

    Raises AssertionError if a message that was accepted, and that no client has received, is not in
    the queue "cut", or if one was not sent.
    """
    cutter = Cutter(door.port)
    try:
        checker = BlockingConnection(door.url, timeout=END_S)
        # Its receiver has credit only while it waits: it must not compete with the clients.
        sender, receiver = checker.create_sender("cut"), checker.create_receiver("cut")
        attempted: set[int] = set()
        settled: set[int] = set()
        for turn, (offset, answers) in enumerate(offsets):
            cutter.cut_at(offset, answers=answers)
            exchange = Exchange(4 * turn)
            exchange.run(cutter.port)
            attempted |= exchange.attempted
            sender.send(Message(body=4 * turn + 3, durable=True))
            attempted.add(4 * turn + 3)
            wanted = exchange.accepted - exchange.begun | {4 * turn + 3}
            while wanted:
                found = receiver.receive(timeout=END_S).body
                assert found in attempted
                assert found not in settled, f"{found} came again at {offset}"
                settled.add(found)
                wanted.discard(found)
                receiver.accept()
        checker.close()
    finally:
        cutter.close()


def cut_while_sending(door: AmqpDoor, cuts: int, seed: int) -> int:
    """Cut connections anywhere while several requests of each are under way; return their number.

    Raises AssertionError unless each message of the sender, which resumes its link, is in the queue
    "resumed" once and in its order.
    """
    chance, cutter = random.Random(seed), Cutter(door.port)
    count = MESSAGES_A_CUT * cuts
    sender = ResumingSender(door, "resumed", count, cutter.port)
    deadline = time.monotonic() + END_S + cuts
    try:
        while sender.accepted < count:
            assert time.monotonic() < deadline, f"{sender.accepted} of {count} are accepted"
            answers = chance.random() < 0.5
            last = OUTCOME_BYTES if answers else MESSAGE_BYTES
            offset = chance.randrange(OPENING_BYTES, OPENING_BYTES + MESSAGES_A_CUT * last)
            cutter.cut_at(offset, answers=answers)
            if sender.ident is None:
                sender.start()
            sender.join(0.02)
    finally:
        cutter.close()
    assert _texts(door.daemon.peek("resumed")) == [f"{each}" for each in range(count)]
    door.daemon.cli("queue", "purge", "resumed", "--yes")
    return sender.connections - 1


def conversation_bytes(door: AmqpDoor) -> tuple[int, int]:
    """Return how many bytes the client and the door write in one exchange."""
    sizes = []
    for answers in (False, True):
        low, high = 0, 1 << 14
        while low < high:
            middle = (low + high) // 2
            cutter = Cutter(door.port)
            cutter.cut_at(middle, answers=answers)
            exchange = Exchange(0)
            exchange.run(cutter.port)
            cutter.close()
            if len(exchange.begun) == 2:
                high = middle
            else:
                low = middle + 1
        sizes.append(low)
    drained = BlockingConnection(door.url, timeout=END_S)
    door.daemon.cli("queue", "purge", "cut", "--yes")
    drained.close()
    return sizes[0], sizes[1]


# Many connections.


async def _read_until(reader: asyncio.StreamReader, code: int) -> None:
    seen = b""
    while b"\x00\x53" + bytes((code,)) not in seen:
        data = await reader.read(4096)
        assert data, seen
        seen = seen[-8:] + data


async def _one(port: int, number: int, all_open: asyncio.Barrier) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    message = bytes(Message(body=number, durable=True).encode())
    link = frames.attach("out", 0, frames.SENDER, "many")
    writer.write(frames.opening(f"client {number}") + link)
    await _read_until(reader, frames.FLOW)
    writer.write(frames.transfer(0, 0, message))
    await _read_until(reader, frames.DISPOSITION)
    await all_open.wait()
    writer.close()
    await writer.wait_closed()


def connect_many(door: AmqpDoor, count: int) -> int:
    """Send a message over each of many connections, all open at once; return the door's memory."""

    async def run() -> int:
        all_open = asyncio.Barrier(count + 1)
        tasks = [asyncio.create_task(_one(door.port, each, all_open)) for each in range(count)]
        opened = asyncio.create_task(all_open.wait())
        await asyncio.wait((opened, *tasks), timeout=END_S, return_when=asyncio.FIRST_COMPLETED)
        if not opened.done():
            await all_open.abort()
        memory = door.memory_bytes
        await asyncio.gather(opened, *tasks)  # the first error, if there is one
        return memory

    memory = asyncio.run(run())
    assert door.daemon.count("many") == count
    return memory


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.amqp.soak")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--step", type=int, default=1, help="between the offsets of two cuts")
    parser.add_argument("--connections", type=int, default=1000)
    chosen = parser.parse_args(arguments)
    hosts = Hosts()
    try:
        with door_of(hosts, "many", "cut", transactional=("in", "out", "resumed")) as door:
            memory = connect_many(door, chosen.connections)
            print(f"{chosen.connections} connections at once: {memory / 1e6:.0f} MB", flush=True)
            own, others = conversation_bytes(door)
            offsets = [(each, False) for each in range(1, own, chosen.step)]
            offsets += [(each, True) for each in range(1, others, chosen.step)]
            cut_at(door, offsets)
            print(f"{len(offsets)} connections cut: nothing lost", flush=True)
            cuts = cut_while_sending(door, chosen.kills, seed=1)
            print(f"{cuts} connections cut under load: each once, in order", flush=True)
            messages = kill_under_load(door, chosen.kills)
            print(f"{chosen.kills} kills, {messages} messages: each once, in order", flush=True)
    finally:
        hosts.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
