"""A relay is killed at any act: the messages that it has acknowledged arrive once and in order.

Its source and its target are peers of the tests.  The source resends messages without
acknowledgment, and no others.  `make soak` tries all acts.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.crash.control import Ended
from tests.crash.forge import Forge
from tests.crash.machine import CONFIGURATION, Machine
from tests.crash.shim import Fault
from tests.ledger import disagreements
from tests.patience import END_S
from tests.process import wire
from tests.process.connection import Closed
from tests.process.harness import free_port
from tests.process.remote import Listener, RemoteQueueManager

EACH = 3  # transactional messages, and recoverable ones
PATIENCE_S = END_S
QUEUE = wire.direct("OS:b.example\\private$\\orders")
# A kill before a write loses everything that was only confirmed.
ACTS = "kw"
FULL = os.environ.get("CRASH") == "full"
KILLS = range(1, 2000, 1 if FULL else 29)
Dead = (Closed, Ended, OSError)


@pytest.fixture
def listener() -> Iterator[Listener]:
    with RemoteQueueManager() as unreachable:
        yield unreachable.listen()


@pytest.fixture
def relay(forge: Forge, folder: Path, listener: Listener) -> Iterator[tuple[Machine, int]]:
    port = free_port()
    configuration = CONFIGURATION.replace("port = 0", f"port = {port}") + (
        '[routing]\nrelay_for = ["127.0.0.0/8"]\nrelay_to = ["*.example"]\n'
        f'routes = ["*.example via 127.0.0.1:{listener.port}"]\n'
    )
    machine = Machine(forge, folder / "machine", configuration=configuration)
    yield machine, port
    machine.close()


class Route:
    """A route from a source over the machine to a target, which is used repeatedly."""

    def __init__(self, machine: Machine, port: int, listener: Listener) -> None:
        self._machine = machine
        self._port = port
        self._listener = listener
        self._source = RemoteQueueManager()
        self._source.relayed = True
        self._target = listener.owner = RemoteQueueManager()
        self._sequence = self._source.new_sequence()
        self._safe: set[bytes] = set()  # recoverable messages that the relay has acknowledged
        self._recoverable = [
            self._source.message(
                "", b"r%d" % number, recoverable=True, destination=QUEUE, sent_time=wire.now_s()
            )
            for number in range(EACH)
        ]

    def go(self) -> None:
        """Send all messages over the relay, and wait for the acknowledgments.

        Raises what `Dead` has.
        """
        near = self._source.connect(self._port)
        try:
            acked = self._source.order_acked.get(self._sequence, 0)
            ours = [near.send(packet) for packet in self._recoverable if packet not in self._safe]
            for number in range(acked + 1, EACH + 1):
                near.send(
                    self._source.transactional(
                        "", self._sequence, number, destination=QUEUE, sent_time=1_800_000_000
                    )
                )
            try:
                near.wait_stored(PATIENCE_S)
            finally:
                self._safe |= {
                    each.packet for each in ours if each.recoverable_number not in near.unstored
                }
            deadline = time.monotonic() + PATIENCE_S
            while self._source.order_acked.get(self._sequence, 0) < EACH:
                assert time.monotonic() < deadline, f"no word comes back of {self._came()}"
                self._serve()
                near.read_for(0.005)
        finally:
            near.close()

    def _serve(self) -> None:
        """Accept a connection of the relay to the target, and acknowledge its messages."""
        if not self._machine.hears(self._listener.sock):
            return
        try:
            far = self._listener.accept()
        except Closed:  # a connection of an earlier life
            return
        try:
            while far.read_for(0.05):
                pass
            if len(self._target.ledger.by_id) == 2 * EACH:
                far.order_ack(self._sequence, EACH)
                far.wait_acknowledged(timeout_s=PATIENCE_S)
        except Closed:
            pass
        finally:
            far.close()

    def settle(self) -> None:
        """Wait until the relay holds nothing any more; messages in doubt are sent once more."""
        control = self._machine.connect()
        near = self._source.connect(self._port)
        deadline = time.monotonic() + PATIENCE_S
        while waiting := [each for each in control.ask("list_outgoing") if each["messages"]]:
            assert time.monotonic() < deadline, f"the relay keeps something: {waiting}"
            self._serve()
            near.read_for(0.005)  # order acks are delayed as well
        near.close()

    def _came(self) -> list[bytes]:
        return [each.body for each in self._target.ledger.by_id.values()]

    def close(self) -> None:
        self._source.close()
        self._target.close()

    def check(self) -> None:
        came = list(self._target.ledger.by_id.values())
        assert sorted(each.body for each in came if each.transaction is None) == [
            b"r%d" % number for number in range(EACH)
        ]
        assert [each.body for each in came if each.transaction is not None] == [
            b"%d" % number for number in range(1, EACH + 1)
        ], "not in their order"
        assert self._source.order_acked[self._sequence] == EACH


@pytest.mark.timeout(3600 if FULL else 900)
def test_a_killed_relay_delivers_acknowledged_messages(
    relay: tuple[Machine, int], listener: Listener
) -> None:
    machine, port = relay
    kills = 0
    for at in KILLS:
        machine.wipe()
        road = Route(machine, port, listener)
        died = not machine.start(Fault("kill", at, ACTS))
        if not died:
            try:
                road.go()
            except Dead:
                assert machine.ends(), machine.said()
                died = True
        machine.kill()
        assert machine.start(), machine.said()
        if died:
            road.go()
        road.settle()
        assert machine.terminate() == 0
        road.check()
        road.close()
        with closing(sqlite3.connect(machine.data / "queues.db")) as db:
            assert disagreements(db) == []
        if not died:
            break
        kills += 1

    assert not died, "more acts than were tried"
    assert kills >= 4
