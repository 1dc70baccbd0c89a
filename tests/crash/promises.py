"""The oracle of a daemon: what must, may and must not be stored, by its requests and answers.

It shares no code with the daemon.  Every message of a test has a number in its body, so that it is
known wherever it is found.  A request is marked in the machine's log before it is sent; the answers
are in the log as the bytes that went to the sockets.  Reading the log up to any act therefore gives
the promises at that time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.crash.control import take_replies
from tests.crash.shim import Record
from tests.process import wire

# Places where a message can be.
OUT = "out"  # an outgoing queue with a reachable destination
NOWHERE = "nowhere"  # an outgoing queue with an unreachable destination
DEAD_LETTER = "dead-letter"
JOURNAL = "journal"

_NUMBERED = re.compile(rb"<(\d{6})>")


def content(number: int, size: int = 0) -> bytes:
    """Return the body of message `number`, filled up to a size."""
    return (b"<%06d>" % number).ljust(size, b".")


def number_in(packet: bytes) -> int:
    """Return the number of the message in a packet or body."""
    found = _NUMBERED.search(packet)
    assert found is not None, f"a message that was never sent: {packet[:200]!r}"
    filling = packet[found.end() :].rstrip(b"\0")  # a packet may end with up to three of these
    assert filling == b"." * len(filling), f"the body of {found[0]!r} is damaged"
    return int(found[1])


class Store(NamedTuple):
    """A message that must be kept: its place, and the places where it may end up instead."""

    number: int
    place: str
    instead: str | None = None


@dataclass(slots=True)
class _Message:
    place: str
    instead: str | None
    stored: bool | None = None  # None: only the disk knows
    removal_asked: bool = False
    removed: bool = False


@dataclass(slots=True)
class _Request:
    stores: list[int]
    removes: list[int]
    queues: list[str]
    token: bool
    done: bool | None = None


@dataclass
class State:
    """The contents of a machine, as a test found them."""

    #: Each examined place, and its messages in the order of receiving.
    places: dict[str, list[int]] = field(default_factory=dict)
    queues: set[str] = field(default_factory=set)
    #: The requests with a recorded outcome; None if they were not read.
    outcomes: set[str] | None = None
    #: For each sequence that comes in, the last number accepted; None likewise.
    positions: dict[int, int] | None = None
    #: The first message number that was not reserved yet; None likewise.
    next_message_number: int | None = None
    #: The contradictions between the event log and the tables.
    disagreements: list[str] = field(default_factory=list)
    #: The messages that reached the other queue manager, when nothing is on its way any more.
    delivered: set[int] | None = None


class Promises:
    """All promises of a daemon; `check` compares them with its contents."""

    def __init__(self) -> None:
        self._requests: dict[str, _Request] = {}
        self._messages: dict[int, _Message] = {}
        self._queues: set[str] = set()
        self._highest_message_number = 0
        self.confirmed = 0

    def ask(
        self,
        key: str,
        stores: Iterable[Sequence[Any]] = (),
        removes: Iterable[int] = (),
        queues: Iterable[str] = (),
        token: bool = False,
    ) -> None:
        """Record a request; a message that is sent again keeps its number."""
        kept = [Store(*each) for each in stores]
        for number, place, instead in kept:
            self._messages.setdefault(number, _Message(place, instead))
        for number in removes:
            self._messages[number].removal_asked = True
        request = _Request([number for number, _, _ in kept], list(removes), list(queues), token)
        if key.startswith("order "):
            self._requests.setdefault(key, request)  # the same message, sent again
        else:
            self._requests[key] = request

    def tell(self, key: str, result: Any = None) -> None:
        """Record that the daemon confirmed a request; unknown keys are ignored."""
        request = self._requests.get(key)
        if request is None or request.done:
            return
        assert request.done is None, f"{key} was refused, and is done"
        request.done = True
        self.confirmed += 1
        for number in request.stores:
            assert self._messages[number].stored is not False, f"{number} was refused, and is kept"
            self._messages[number].stored = True
        for number in request.removes:
            self._messages[number].removed = True
        self._queues.update(request.queues)
        for text in result if isinstance(result, list) else ():
            if isinstance(text, str):
                self._highest_message_number = max(
                    self._highest_message_number, int(text.rpartition("\\")[2])
                )

    def deny(self, key: str) -> None:
        """Record that the daemon refused a request for good."""
        request = self._requests.get(key)
        if request is None:
            return
        assert not request.done, f"{key} is done, and was refused"
        request.done = False
        for number in request.stores:
            self._messages[number].stored = False

    def open_keys(self) -> list[str]:
        """Return requests with a token and without a known outcome."""
        return [key for key, each in self._requests.items() if each.token and each.done is None]

    def expected_at_peer(self) -> set[int]:
        """Return the messages that must reach the other queue manager."""
        return {
            number for number, each in self._messages.items() if each.place == OUT and each.stored
        }

    def check(self, state: State) -> list[str]:
        """Return every broken promise as a sentence."""
        stored = self._settled(state)
        where: dict[int, list[str]] = {}
        for place, numbers in state.places.items():
            for number in numbers:
                where.setdefault(number, []).append(place)
        broken = [f"message {number} was never sent" for number in where.keys() - stored.keys()]
        for number, message in self._messages.items():
            broken += self._check(number, message, stored[number], where.get(number, []), state)
        for place, numbers in state.places.items():
            broken += self._disorder(place, numbers)
        broken += self._halves(where, stored, state)
        broken += self._setbacks(state)
        broken += [f"queue {name} is lost" for name in self._queues - state.queues]
        broken += state.disagreements
        following = state.next_message_number
        if following is not None and following <= self._highest_message_number:
            broken.append(
                f"message number {self._highest_message_number} was given, and the next start"
                f" begins at {following}"
            )
        return broken

    def _settled(self, state: State) -> dict[int, bool | None]:
        """Return for each message whether it was stored, by the answers and by the state."""
        stored = {number: message.stored for number, message in self._messages.items()}
        for key, request in self._requests.items():
            done: bool | None = None
            if request.token and state.outcomes is not None:
                done = key in state.outcomes
            elif key.startswith("order ") and state.positions is not None:
                _, sequence_id, number = key.split()
                done = int(number) <= state.positions.get(int(sequence_id), 0)
            if done is not None:
                for number in request.stores:
                    # Confirmed, and its record is lost: the message itself is checked below.
                    stored[number] = stored[number] or done
        return stored

    def _check(
        self,
        number: int,
        message: _Message,
        stored: bool | None,
        where: list[str],
        state: State,
    ) -> list[str]:
        broken: list[str] = []
        if len(where) > 1:
            broken.append(f"message {number} is there {len(where)} times: {where}")
        for place in where:
            if place not in (message.place, message.instead):
                broken.append(f"message {number} for {message.place} is in {place}")
        if stored is False and where:
            broken.append(f"message {number} was refused, and is in {where}")
        if message.removed and where:
            broken.append(f"message {number} was removed, and is in {where}")
        if message.place == OUT and state.delivered is not None:
            if stored is False and number in state.delivered:
                broken.append(f"message {number} was refused, and was delivered")
            if stored and number not in state.delivered:
                broken.append(f"message {number} was never delivered")
            if stored and message.instead and not where:
                broken.append(f"message {number} was delivered, and is not in {message.instead}")
        elif stored and message.place in state.places and not (message.removal_asked or where):
            broken.append(f"message {number} for {message.place} is lost")
        return broken

    def _disorder(self, place: str, numbers: list[int]) -> list[str]:
        """Check the order.

        Numbers grow with sending; those of the other queue manager are separate.
        """
        if place in (OUT, NOWHERE, DEAD_LETTER, JOURNAL):  # by kind, or by the time of the end
            return []
        broken = []
        for origin in (0, 1):
            of_origin = [number for number in numbers if number // PEERS_NUMBERS == origin]
            if of_origin != sorted(of_origin):
                broken.append(f"{place} is out of order: {of_origin}")
        return broken

    def _setbacks(self, state: State) -> list[str]:
        """Check that no sequence is behind acknowledged numbers, which it would accept again."""
        if state.positions is None:
            return []
        broken = []
        for key, request in self._requests.items():
            if key.startswith("order ") and request.done:
                _, sequence_id, number = key.split()
                position = state.positions.get(int(sequence_id), 0)
                if position < int(number):
                    broken.append(
                        f"{number} was acknowledged, and the sequence stands at {position}"
                    )
        return broken

    def _halves(
        self, where: Mapping[int, list[str]], stored: Mapping[int, bool | None], state: State
    ) -> list[str]:
        """Check that each request is done as a whole or not at all."""
        broken = []
        for key, request in self._requests.items():
            seen = [
                bool(where.get(number))
                for number in request.stores
                if not self._messages[number].removal_asked
                and stored[number] is None
                and self._messages[number].place in state.places
            ]
            if len(set(seen)) > 1:
                broken.append(f"{key} was done by half: of {request.stores}, {seen} are there")
            if request.removes and request.token and state.outcomes is not None:
                there = [number for number in request.removes if number in where]
                if key in state.outcomes and there:
                    broken.append(f"{key} removed {there} by its outcome, and they are there")
                if key not in state.outcomes and len(there) < len(request.removes):
                    broken.append(f"{key} was not done by its outcome; {there} are left")
        return broken


#: Messages of the other queue manager have numbers from here on.
PEERS_NUMBERS = 500_000


class Hearing:
    """Reads a machine's log, and records its events in `promises`."""

    def __init__(self, promises: Promises) -> None:
        self.promises = promises
        self._streams: dict[str, bytearray] = {}

    def feed(self, record: Record) -> None:
        if record.kind == "m":
            self.mark(record.data)
        elif record.kind == "k":
            buffer = self._streams.setdefault(record.name, bytearray())
            buffer += record.data
            if record.name.startswith("unix"):
                self._replies(buffer)
            else:
                self._packets(buffer, record.name.split()[2])

    def mark(self, data: bytes) -> None:
        what = json.loads(data)
        if "done" in what:
            self.promises.tell(what["key"]) if what["done"] else self.promises.deny(what["key"])
        else:
            self.promises.ask(**what)

    def _replies(self, buffer: bytearray) -> None:
        for kind, number, *rest in take_replies(buffer):
            if kind == "done":
                self.promises.tell(f"request {number}", rest[0] if rest else None)
            else:
                self.promises.deny(f"request {number}")

    def _packets(self, buffer: bytearray, port: str) -> None:
        while len(buffer) >= 16:
            length = wire.wire_length(wire.parse_base(bytes(buffer[:16])))
            if len(buffer) < length:
                return
            packet = wire.parse(bytes(buffer[:length]))
            del buffer[:length]
            header = packet if isinstance(packet, wire.Session) else None
            if isinstance(packet, wire.Message):
                header = packet.session
                if packet.is_order_ack:
                    sequence_id, last, _ = packet.order_body()
                    for number in range(1, last + 1):
                        self.promises.tell(f"order {sequence_id} {number}")
            if header is not None:
                for bit in range(32):
                    if header.recoverable_flags >> bit & 1:
                        number = header.recoverable_acknowledged + bit
                        self.promises.tell(f"bit {port} {number}")
