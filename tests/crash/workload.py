"""The workload of a machine: everything that uses the disk, in some 300 acts.

It has a first start, queues, messages of clients and of another queue manager, removals, deliveries
and their acknowledgments, expiry, checkpoints, a clean stop, a second start, and more of the same.
A daemon may die at any of these acts; then the same client and queue manager return, and all
promises are checked.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from typing import Any

from tests.crash.control import Control, Ended, Refusal, next_number
from tests.crash.machine import Machine
from tests.crash.promises import (
    DEAD_LETTER,
    JOURNAL,
    NOWHERE,
    OUT,
    PEERS_NUMBERS,
    Hearing,
    Promises,
    State,
    Store,
    content,
    number_in,
)
from tests.crash.shim import Fault
from tests.patience import END_S
from tests.process import wire
from tests.process.connection import Closed
from tests.process.harness import free_port
from tests.process.peer import Peer
from tests.process.remote import RemoteQueueManager

EXPRESS, RECOVERABLE, TRANSACTIONAL, AUTOMATIC = 0, 1, 2, 3
LARGE_BYTES = 25_000
QUEUES = {"plain": False, "fleeting": False, "orders": True}
PATHS = {
    r"private$\plain": "plain",
    r"private$\fleeting": "fleeting",
    r"private$\orders": "orders",
    "system$;deadletter": DEAD_LETTER,
    "system$;deadxact": DEAD_LETTER,
    "system$;journal": JOURNAL,
}
SETTLE_S = END_S
LOOK_AGAIN_S = 1.0


class Lost(AssertionError):
    """A promise was broken."""


class Workload:
    """One life of a machine: `run` it with a fault, then `verify`."""

    def __init__(self, machine: Machine, seed: int) -> None:
        self._machine = machine
        self._random = random.Random(seed)
        self._next = 1
        self._peers_next = PEERS_NUMBERS
        self._remote = RemoteQueueManager()
        self._listener = self._remote.listen()
        self.nowhere_port = free_port()
        self._sequence = self._remote.new_sequence()
        #: The unacknowledged messages of the other queue manager, by key in the log.
        self._orders: list[tuple[int, bytes]] = []
        self._letters: dict[int, tuple[int, bytes]] = {}
        self._delivered: dict[int, wire.Message] = {}
        self._last_delivered = 0  # of the messages that must arrive in order
        self._outgoing: Peer | None = None

    def __enter__(self) -> Workload:
        return self

    def __exit__(self, *_: object) -> None:
        self._remote.close()

    # The phases of a life.

    def run(self, fault: Fault | None = None) -> bool:
        """Run the life; return False when the daemon died on the way."""
        try:
            return self._first_day(fault) and self._second_day(fault)
        except (Ended, Closed):
            return False
        except Refusal as refusal:
            if refusal.code == "disk_full":  # as expected; this life ends here
                self._machine.kill()
                return False
            if self._machine.ends():  # its storage has failed
                return False
            raise
        except (wire.Violation, ConnectionRefusedError):
            if self._machine.ends():  # within a packet, or between two
                return False
            raise

    def _first_day(self, fault: Fault | None) -> bool:
        if not self._machine.start(fault):
            return False
        control = self._machine.connect()
        self._create_queues(control)
        self._send_some(control)
        self._receive_from_peer()
        self._take_some(control)
        self._send_out(control)
        self._deliver(control)
        self._send_what_expires(control)
        self._send_much(control)
        return self._machine.terminate() == 0

    def _second_day(self, fault: Fault | None) -> bool:
        if not self._machine.start(fault):
            return False
        control = self._machine.connect()
        self._take_some(control)
        self._receive_from_peer()
        self._send_out(control)
        self._deliver(control)
        self._send_some(control)
        self._take_some(control)
        return self._machine.terminate() == 0

    def _create_queues(self, control: Control) -> None:
        for queue, transactional in QUEUES.items():
            number = self._ask(queues=[queue])
            control.request("create_queue", rf"private$\{queue}", transactional, number=number)
            control.answer(number)

    def _send_some(self, control: Control) -> None:
        """Send several requests at once, with one and with many messages."""
        numbers = []
        for _ in range(3):
            large = self._random.random() < 0.3
            size = LARGE_BYTES if large else self._random.randrange(2000)
            count = 1 if large else self._random.randrange(1, 6)
            numbers.append(self._send(control, "plain", count, size))
        numbers.append(self._send(control, "orders", self._random.randrange(1, 4), 300))
        for number in numbers:
            control.answer(number)

    def _send_much(self, control: Control) -> None:
        """Send enough messages for a checkpoint, and remove some of them."""
        requests = [self._send(control, "plain", 3, LARGE_BYTES) for _ in range(5)]
        for request in requests:
            control.answer(request)
        self._take_some(control, limit=9)

    def _take_some(self, control: Control, limit: int = 5) -> None:
        """Take messages: remove most, give one back, keep one."""
        for queue in ("plain", "orders"):
            taken = control.ask("take", rf"private$\{queue}", limit, 0.0)
            removed = taken[: max(1, limit - 2)]
            if not removed:
                continue
            number = self._ask(removes=[number_in(each[2]) for each in removed], token=True)
            control.request(
                "remove",
                rf"private$\{queue}",
                [each[0] for each in removed],
                _token(number),
                number=number,
            )
            rest = [each[0] for each in taken[len(removed) :]]
            if rest:
                control.ask("give_back", rf"private$\{queue}", rest[:1])
            control.answer(number)

    def _send_out(self, control: Control) -> None:
        numbers = [
            self._send(control, OUT, self._random.randrange(1, 5), 500, delivery=TRANSACTIONAL),
            self._send(control, OUT, self._random.randrange(1, 4), 500, delivery=RECOVERABLE),
            self._send(control, OUT, 1, 500, delivery=RECOVERABLE, journal=True),
        ]
        for number in numbers:
            control.answer(number)

    def _send_what_expires(self, control: Control) -> None:
        """Send messages without reader or reachable destination, and wait until they expire."""
        count = self._random.randrange(1, 4)
        requests = [
            self._send(control, "fleeting", count, 100, lifetime_s=1),
            self._send(control, NOWHERE, count, 100, delivery=TRANSACTIONAL, lifetime_s=1),
            self._send(control, NOWHERE, count, 100, delivery=RECOVERABLE, lifetime_s=1),
        ]
        for request in requests:
            control.answer(request)
        deadline = time.monotonic() + SETTLE_S
        for name, expected in (("DEADLETTER", 2 * count), ("DEADXACT", count)):
            start = 0
            queue = rf"DIRECT=OS:.\SYSTEM$;{name}"
            while expected > 0 and time.monotonic() < deadline:
                # Each wait is new: a daemon that reports too early does not wake a later reader.
                arrived = control.ask("peek", queue, start, 1000, LOOK_AGAIN_S)
                expected -= len(arrived)
                start = arrived[-1][0] + 1 if arrived else start
            if expected > 0:
                raise Lost(f"{expected} expired messages are not in {queue}")

    def _send(
        self,
        control: Control,
        place: str,
        count: int,
        size: int,
        *,
        delivery: int = AUTOMATIC,
        lifetime_s: int | None = None,
        journal: bool = False,
    ) -> int:
        """Send one request; return its number."""
        destination = {
            OUT: self._listener.destination("q"),
            NOWHERE: rf"DIRECT=TCP:127.0.0.1:{self.nowhere_port}\private$\q",
        }.get(place, rf"private$\{place}")
        instead = DEAD_LETTER if lifetime_s is not None else JOURNAL if journal else None
        numbers = range(self._next, self._next + count)
        self._next += count
        request = self._ask(
            stores=[Store(number, place, instead) for number in numbers], token=True
        )
        messages = [
            [
                destination, content(number, size), "", delivery, 3,
                lifetime_s if place == NOWHERE else None,
                lifetime_s if place != NOWHERE else None,
                True, journal,
            ]
            for number in numbers
        ]  # fmt: skip
        return control.request("send", messages, _token(request), number=request)

    # The other queue manager.

    def _receive_from_peer(self) -> None:
        """Let the peer send in order and plainly, until everything is acknowledged."""
        for _ in range(self._random.randrange(2, 6)):
            number = self._peers_number()
            self._orders.append(
                (
                    number,
                    self._remote.transactional(
                        "orders", self._sequence, len(self._orders) + 1, body=content(number, 700)
                    ),
                )
            )
        for _ in range(self._random.randrange(2, 6)):
            number = self._peers_number()
            packet = self._remote.message("plain", content(number, 700), recoverable=True)
            self._letters[number] = number, packet
        peer = self._remote.connect(self._port())
        try:
            self._transmit(peer)
        finally:
            peer.close()

    def _transmit(self, peer: Peer) -> None:
        """Send all messages without acknowledgment."""
        port = peer.connection.sock.getsockname()[1]
        acknowledged = self._remote.order_acked.get(self._sequence, 0)
        letters = list(self._letters.values())
        for position, (number, packet) in enumerate(self._orders[acknowledged:], acknowledged + 1):
            key = f"order {self._sequence} {position}"
            self._mark(key, stores=[Store(number, "orders")])
            entry = peer.send(packet)
        for number, packet in letters:
            key = f"bit {port} {peer.recoverable_sent + 1}"
            self._mark(key, stores=[Store(number, "plain")])
            entry = peer.send(packet)
            assert key == f"bit {port} {entry.recoverable_number}"
        peer.wait_stored()
        self._letters.clear()
        peer.wait_order_ack(self._sequence, len(self._orders))

    def _deliver(self, control: Control) -> None:
        """Let the daemon connect and send all its messages, and acknowledge them."""
        self._take_delivery(lambda: not self._waiting(control))

    def _take_delivery(self, is_done: Any) -> None:
        """Read and acknowledge until all messages have arrived."""
        deadline = time.monotonic() + SETTLE_S
        while not is_done():
            assert time.monotonic() < deadline, "messages are not delivered, or not released"
            try:
                if self._outgoing is None:
                    if self._machine.hears(self._listener.sock):
                        connection = self._listener.accept_raw()
                        self._outgoing = self._listener.accept(
                            auto_ack=False, connection=connection
                        )
                else:
                    self._read_out(self._outgoing)
            except Closed:
                self._outgoing = None

    def _read_out(self, peer: Peer) -> None:
        self._machine.hears(peer.connection.sock)
        while peer.connection.has_data():
            peer.read()
        arrived, peer.inbox = peer.inbox, []
        self._acknowledge(peer, arrived)

    def _acknowledge(self, peer: Peer, arrived: list[wire.Message]) -> None:
        if not arrived:
            return
        numbers = []
        for message in arrived:
            number = number_in(message.body)
            if message.transaction is not None and number not in self._delivered:
                if number < self._last_delivered:
                    raise Lost(f"message {number} came after {self._last_delivered}")
                self._last_delivered = number
            first = self._delivered.setdefault(number, message)
            same = (first.source, first.message_id) == (message.source, message.message_id)
            assert same, f"message {number} was delivered under two identifiers"
            numbers.append(number)
        self._mark(f"release {next_number()}", removes=numbers)
        peer.session_ack()
        last: dict[int, int] = {}
        for message in arrived:
            if message.transaction is not None:
                last[message.transaction.sequence_id] = message.transaction.number
        for sequence_id, number in last.items():
            peer.order_ack(sequence_id, number)

    # After a life.

    def verify(self, deaths: Iterable[Fault] = ()) -> None:
        """Start again, after so many further deaths, and check all promises."""
        machine = self._machine
        machine.kill()
        self.hang_up()
        for fault in deaths:
            machine.count.reset()
            machine.kill()
            machine.start(fault)
        machine.kill()
        if not machine.start():
            raise Lost(f"it does not start again:\n{machine.said()}")
        control = machine.connect()
        self._require(control, self.ask_again(control), "after the start")
        self._finish(control)

    def ask_again(self, control: Control) -> Promises:
        """Query the outcomes of requests without answer, as an application does."""
        promises = self.promises()
        for key in promises.open_keys():
            is_done = control.ask("outcome", _token(int(key.split()[1]))) is not None
            self._machine.log.mark({"key": key, "done": is_done})
        return self.promises()

    def send_again(self, control: Control) -> None:
        """Resend unacknowledged messages, as the other queue manager does."""
        if "orders" in self._queues(control):
            peer = self._remote.connect(self._port())
            self._transmit(peer)
            peer.close()

    def promise_more(self, control: Control) -> None:
        """Send one more message, if its queue exists.

        Writes after a gap in the log are lost with it, in spite of syncs.
        """
        if "plain" in self._queues(control):
            control.answer(self._send(control, "plain", 1, 100))

    def hang_up(self) -> None:
        """Drop the incomplete output of the daemon that died."""
        self._outgoing = None
        while self._machine.hears(self._listener.sock, 0.0):
            self._listener.accept_raw().close()

    def _finish(self, control: Control) -> None:
        """Let both queue managers complete their work; then everything must be in its place."""
        self.send_again(control)
        expected = self.promises().expected_at_peer()
        self._take_delivery(
            lambda: expected <= self._delivered.keys() and not self._waiting(control)
        )
        self._require(control, self.promises(), "in the end", is_over=True)
        if wrong := self._miscounts(control):
            raise Lost(f"in the accounts: {'; '.join(wrong)}")
        if (code := self._machine.terminate()) != 0:
            raise Lost(f"it stopped with {code}:\n{self._machine.said()}")

    def promises(self) -> Promises:
        """Return all promises in the machine's log."""
        hearing = Hearing(Promises())
        for record in self._machine.log.records():
            hearing.feed(record)
        return hearing.promises

    def _look(self, control: Control) -> State:
        """Return the contents of every queue, from its front to its end."""
        state = State(queues=self._queues(control))
        state.places = {place: [] for place in PATHS.values()}
        for path, place in PATHS.items():
            if place in state.queues or place in (DEAD_LETTER, JOURNAL):
                name = path if place in QUEUES else rf"DIRECT=OS:.\{path}"
                messages = control.ask("peek", name, 0, 1000, 0.0)
                state.places[place] += [number_in(each[2]) for each in messages]
        return state

    def _queues(self, control: Control) -> set[str]:
        found = {each["name"]: each for each in control.ask("list_queues", True)}
        return {place for path, place in PATHS.items() if path in found and place in QUEUES}

    def _miscounts(self, control: Control) -> list[str]:
        """Return the differences between the daemon's counters and its queues."""
        wrong = []
        for each in control.ask("list_queues", True):
            name = rf"DIRECT=OS:.\{each['name']}"
            messages = control.ask("peek", name, 0, 1000, 0.0)
            found = len(messages), sum(len(message[2]) for message in messages)
            if found != (each["messages"], each["bytes"]):
                wrong.append(f"{name} has {found}, and says {each['messages'], each['bytes']}")
        return wrong

    def _waiting(self, control: Control) -> bool:
        """Return whether outgoing messages are left."""
        return any(each["messages"] for each in control.ask("list_outgoing"))

    def _port(self) -> int:
        control = self._machine.connect()
        (listening,) = control.ask("status")["listen"]
        return int(str(listening).rpartition(":")[2])

    def _ask(self, **promise: Any) -> int:
        number = next_number()
        self._mark(f"request {number}", **promise)
        return number

    def _mark(self, key: str, **promise: Any) -> None:
        self._machine.log.mark({"key": key, **promise})

    def _peers_number(self) -> int:
        self._peers_next += 1
        return self._peers_next

    def _require(
        self, control: Control, promises: Promises, when: str, *, is_over: bool = False
    ) -> None:
        """Raise Lost for a broken promise.

        Queues are read one by one, so that messages that expire meanwhile are searched again.
        """
        deadline = time.monotonic() + LOOK_AGAIN_S
        while True:
            state = self._look(control)
            if is_over:
                state.places[NOWHERE] = []
                state.delivered = set(self._delivered)
            broken = promises.check(state)
            if not broken:
                return
            if time.monotonic() > deadline:
                raise Lost(f"{when}: {'; '.join(broken[:8])}")


def _token(number: int) -> bytes:
    return b"%016d" % number
