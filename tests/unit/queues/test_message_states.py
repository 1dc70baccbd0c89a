"""The states of a message in a queue, as `qmd/queues/message_states.py` lists them.

Each transition of the tables is performed on a real queue; the containers that hold the message
afterwards must be those of the next state.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from protocol.names.format_name import parse_destination
from qmd.control_protocol import messages as frames
from qmd.control_protocol.messages import NewMessage, StoredMessage
from qmd.core.sequence import OutgoingSequence
from qmd.message.addresses import NO_ADDRESS, queue_address
from qmd.message.build import compose
from qmd.queues.local_queue import HELD, LocalQueue, QueueNames, Reader
from qmd.queues.message_states import LOCAL, OUTGOING, State
from qmd.queues.outgoing_queue import (
    TRANSACTIONAL_FIRST,
    Moment,
    OutgoingQueue,
    TransmitLimits,
)
from qmd.queues.usage import Usage
from storage.tables.keys import ARRIVAL_BITS
from storage.tables.outgoing import OutgoingQueueRow
from storage.tables.queues import QueueRow

DESTINATION = "DIRECT=TCP:10.0.0.7\\private$\\orders"
ADDRESS = queue_address(parse_destination(DESTINATION, local_host="."))
ID = 5 << ARRIVAL_BITS | 7
EXPIRES_AT_S = 100
BEFORE, AFTER = EXPIRES_AT_S - 1, EXPIRES_AT_S + 1


class LocalMessage:
    """One message, in a local queue; `disk` says whether its row exists."""

    def __init__(self) -> None:
        row = QueueRow(16, "private$\\orders", "", False, False, None, None, False, 0, 0)
        self.queue = LocalQueue(row, QueueNames("orders", ADDRESS), Usage())
        self.reader = Reader()
        self.disk = False
        self.message = StoredMessage(ID, 0, b"packet", expires_at_s=EXPIRES_AT_S)

    def containers(self) -> frozenset[str]:
        queue = self.queue
        entry = queue.taken.get(ID)
        value = "HELD" if entry is HELD else "taken"
        found = {
            "disk": self.disk,
            "window": any(key == ID for key, _ in queue.window.entries()),
            "express": ID in queue.express,
            value: entry is not None,
            "reader": self.reader.has(queue, ID),
            "reserved": ID in queue.reserved,
            "consumed": queue.reserved.has(ID) and ID not in queue.reserved,
            "leaving": ID in queue.leaving,
            "expired": any(each.lookup_id == ID for each in queue.expired),
        }
        return frozenset(name for name, is_there in found.items() if is_there)

    # The events of the table.

    def deliver(self) -> None:
        self.disk = True
        self.queue.messages += 1
        self.queue.grow(len(self.message.packet))
        self.queue.deliver([self.message])

    def deliver_from_disk(self) -> None:
        self.disk = True
        self.queue.count_in(1, len(self.message.packet))
        self.queue.deliver_from_disk([ID])

    def deliver_express(self) -> None:
        self.queue.count_in(1, len(self.message.packet))
        self.queue.deliver_express(self.message)

    def refill(self) -> None:
        self.queue.window.begin_refill()
        self.queue.window.refill([(ID, self.message, len(self.message.packet))], complete=True)

    def window_is_full(self) -> None:
        self.queue.window.clear_to_disk(0)

    def take(self) -> None:
        assert self.queue.take(self.reader, 1, BEFORE) == [self.message]

    def take_expired(self) -> None:
        assert self.queue.take(self.reader, 1, AFTER) == []

    def expire_express(self) -> None:
        assert self.queue.expire_express(AFTER, 10) == 1

    def put_back(self) -> None:
        assert self.queue.put_back(self.reader, [ID], BEFORE) == 1

    def put_back_expired(self) -> None:
        assert self.queue.put_back(self.reader, [ID], AFTER) == 1

    def begin_removal(self) -> None:
        self.reader.begin_removal(self.queue, [ID])

    def removed(self) -> None:
        """The commit of a removal has returned."""
        was_held = self.queue.taken[ID] is HELD
        self.disk = False
        self.queue.leaving.discard(ID)
        self.queue.forget([ID])
        if was_held:
            self.queue.count_out(1, len(self.message.packet))
        self.reader.taken[self.queue].discard(ID)

    def hold(self) -> None:
        self.queue.expired.clear()  # as in DeadLetters.expire_received
        assert self.queue.hold(self.reader, ID)
        assert not self.queue.hold(Reader(), ID), "only one reader may have it"

    def let_go(self) -> None:
        self.reader.taken[self.queue].discard(ID)
        self.queue.let_go(self.message, is_there=True)

    def let_go_gone(self) -> None:
        self.disk = False
        self.reader.taken[self.queue].discard(ID)
        self.queue.let_go(self.message, is_there=False)
        self.queue.count_out(1, len(self.message.packet))

    def read(self) -> None:
        """A selective receive has read the row of the message that it holds."""
        self.queue.taken[ID] = self.message

    def reserve(self) -> None:
        assert self.queue.reserved.add(ID, shared=False)

    def release(self) -> None:
        self.queue.reserved.release([(ID, ID)], are_there=True)

    def release_gone(self) -> None:
        self.disk = False
        self.queue.reserved.release([(ID, ID)], are_there=False)
        self.queue.count_out(1, len(self.message.packet))

    def begin_removal_reserved(self) -> None:
        self.queue.reserved.begin_removal([(ID, ID)])

    def end_removal(self) -> None:
        self.disk = False
        self.queue.reserved.end_removal([(ID, ID)], len(self.message.packet))

    def now_stored(self) -> None:
        self.disk = True
        self.queue.reserved.now_stored(ID)


def ignore(*_: object, **__: object) -> None:
    """Send nothing."""


class OutgoingMessage:
    """One message, in an outgoing queue; the rows and the releases are those of this class."""

    def __init__(self) -> None:
        row = OutgoingQueueRow(1, DESTINATION, "10.0.0.7:1801", False, 0, 0, 1, 0)
        link = cast(Any, SimpleNamespace(peer="10.0.0.7:1801"))
        self.queue = OutgoingQueue(
            row, address=ADDRESS, link=link, sequence=OutgoingSequence(1 << 32), usage=Usage()
        )
        self.disk = self.releasing = self.awaiting = False
        self.key = 0
        self.packet = b""

    def containers(self) -> frozenset[str]:
        queue = self.queue
        found = {
            "disk": self.disk,
            "window": any(key == self.key for key, _ in queue.window.entries()),
            "express": self.key in queue.express,
            "in_flight": self.key in queue.in_flight,
            "transmitted": queue.find_transmitted(self.key) is not None,
            "removing": self.key in queue.removing,
            "releasing": self.releasing,
            "awaiting": self.awaiting,
        }
        return frozenset(name for name, is_there in found.items() if is_there)

    def _compose(self, delivery: int, position: tuple[int, int, int] | None = None) -> None:
        self.packet = compose(
            NewMessage(DESTINATION, b"body"),
            source=bytes(15) + b"\xaa",
            destination=ADDRESS,
            admin=NO_ADDRESS,
            response=NO_ADDRESS,
            message_number=1,
            sent_time_s=1_700_000_000,
            delivery=delivery,
            position=position,
        )
        self.queue.grow(len(self.packet))

    def _add(self, *, stored: bool) -> None:
        self.disk = stored
        self.queue.window.add(self.key, (self.packet, None), len(self.packet), stored=stored)

    # The events of the table.

    def append(self) -> None:
        self.key = ID
        self._compose(frames.RECOVERABLE)
        self.queue.others += 1
        self._add(stored=True)

    def append_transactional(self) -> None:
        number, self.key = self.queue.next_key()
        self._compose(frames.TRANSACTIONAL, (self.queue.sequence_id, number, 1))
        self._add(stored=True)

    def append_express(self) -> None:
        self.key = ID
        self._compose(frames.EXPRESS)
        self.queue.others += 1
        self.queue.express.keep(self.key, (self.packet, None), self.packet, None)
        self._add(stored=False)

    def refill(self) -> None:
        self.queue.window.begin_refill()
        rows = [(self.key, (self.packet, None), len(self.packet))]
        self.queue.window.refill(rows, complete=True)

    def window_is_full(self) -> None:
        self.queue.window.clear_to_disk(0)

    def transmit(self) -> None:
        session = cast(Any, SimpleNamespace(send=ignore, send_run=ignore))
        limits = TransmitLimits(messages=10, bytes=1000, packet_bytes=10_000)
        done = self.queue.transmit(session, limits, Moment(0.0, 0, 0))
        assert (done.messages, done.bytes) == (1, len(self.packet))

    def new_session(self) -> None:
        self.queue.new_pass("a new session began", transactional_only=False)
        if not self.disk:  # an express message waits until the window has read the disk
            self.queue.window.begin_refill()
            self.queue.window.refill([], complete=True)

    def resend(self) -> None:
        self.queue.new_pass("no order ack arrived in time", transactional_only=True)

    def session_ack(self) -> None:
        assert self.queue.take_acknowledged(self.key) == self.packet
        self.queue.others -= 1
        self.queue.shrink(len(self.packet))
        self.releasing = True

    def order_ack(self) -> None:
        number = self.queue.number_of(self.key)
        sequence = self.queue.sequence
        assert sequence.acknowledge(sequence.sequence_id, number, now=0.0) == number
        released = self.queue.forget_transmitted(number)
        assert released is not None
        assert [each.key for each in released] == [self.key]
        self.releasing = True

    def _release(self) -> None:
        self.disk = self.releasing = False
        self.queue.window.remove(self.key)
        if self.key >= TRANSACTIONAL_FIRST:
            self.queue.shrink(len(self.packet))
            self.queue.sequence.released(1)

    def released(self) -> None:
        self._release()

    def arrived(self) -> None:
        self._release()
        self.awaiting = True
        self.queue.awaiting.add(1, len(self.packet))

    def final_ack(self) -> None:
        self.awaiting = False
        self.queue.awaiting.add(-1, -len(self.packet))

    def begin_removal(self) -> None:
        assert self.queue.begin_removal(self.key)
        self.queue.forget_in_flight(self.key)
        assert not self.queue.begin_removal(self.key), "it is being removed already"

    def removed(self) -> None:
        self.disk = False
        self.queue.end_removal(self.key)
        self.queue.shrink(len(self.packet))
        if self.key >= TRANSACTIONAL_FIRST:
            self.queue.sequence.remove(self.queue.number_of(self.key))
        else:
            self.queue.others -= 1

    def forget(self) -> None:
        assert self.queue.forget_express(self.key) == self.packet


Driver = LocalMessage | OutgoingMessage
TABLES: dict[str, tuple[dict[str, State], Callable[[], Driver]]] = {
    "local": (LOCAL, LocalMessage),
    "outgoing": (OUTGOING, OutgoingMessage),
}


def path_to(table: dict[str, State], state: str) -> list[str]:
    """Return the shortest list of events that leads from "gone" to a state."""
    paths: dict[str, list[str]] = {"gone": []}
    pending = ["gone"]
    for name in pending:
        for event, following in table[name].next.items():
            if following not in paths:
                paths[following] = [*paths[name], event]
                pending.append(following)
    return paths[state]


TRANSITIONS = [
    pytest.param(kind, name, event, following, id=f"{kind}: {name} - {event} -> {following}")
    for kind, (table, _) in TABLES.items()
    for name, state in table.items()
    for event, following in state.next.items()
]


@pytest.mark.parametrize(("kind", "name", "event", "following"), TRANSITIONS)
def test_an_event_leads_to_the_next_state(kind: str, name: str, event: str, following: str) -> None:
    table, make = TABLES[kind]
    driver = make()
    for before in path_to(table, name):
        getattr(driver, before)()
    assert driver.containers() == table[name].containers

    getattr(driver, event)()

    assert driver.containers() == table[following].containers
    if following == "gone":
        assert (driver.queue.messages, driver.queue.bytes) == (0, 0)
        assert driver.queue.usage.bytes == driver.queue.usage.express_bytes == 0
        assert not len(driver.queue.window)


@pytest.mark.parametrize("kind", TABLES)
def test_every_state_is_reached_and_every_event_is_in_the_table(kind: str) -> None:
    table, make = TABLES[kind]
    events = {event for state in table.values() for event in state.next}
    methods = {name for name in vars(make) if not name.startswith("_")} - {"containers"}

    assert all(path_to(table, name) for name in table if name != "gone")
    assert events == methods


@pytest.mark.parametrize("kind", TABLES)
def test_the_manual_shows_the_table(kind: str) -> None:
    text = (Path(__file__).resolve().parents[3] / "docs/architecture.md").read_text()
    missing = [line for line in manual_lines(TABLES[kind][0]) if line not in text]

    assert not missing, "\n".join(missing)


def manual_lines(table: dict[str, State]) -> list[str]:
    """Return the rows of the manual's table."""
    return [
        f"| {name} | {containers_text(state)} | {events_text(state)} |"
        for name, state in table.items()
    ]


def containers_text(state: State) -> str:
    return ", ".join(f"`{each}`" for each in sorted(state.containers)) or "none"


def events_text(state: State) -> str:
    return "; ".join(f"`{event}`: {following}" for event, following in state.next.items())
