"""A pipeline moves a queue into another, and daemon and driver die at one act or another.

The driver does as Spark does: it notes where a batch ends before it reads it, and that it is done
after it was published; after a death it goes on from its notes, with other partitions and limits.
Whatever dies where, the output holds every message once and in order, and so does the journal.
"""

from __future__ import annotations

import itertools
import random
import struct
from typing import Any

from tests.crash.control import Control, Ended
from tests.crash.machine import Machine
from tests.crash.matrix import TURNS
from tests.crash.promises import content, number_in
from tests.crash.shim import Fault

MESSAGES = 60
SOURCE, TARGET = r"private$\source", r"private$\target"
DEATHS_MAX = 12


class DriverDied(Exception):
    """It was killed, and a new one takes its notes."""


class Notes:
    """The checkpoint: what outlives a driver."""

    def __init__(self) -> None:
        self.ends: list[int] = []
        self.done = 0
        self.read: dict[int, list[int]] = {}  # what each batch held when it was read first
        self.sent = 0  # requests of the producer that are known to be done


class Driver:
    """One run."""

    def __init__(self, control: Control, notes: Notes, rng: random.Random) -> None:
        self._control = control
        self._notes = notes
        self._rng = rng
        opened = control.ask("open_reader", "copy", [SOURCE])
        self._fence = opened["fence"]
        self._queue = opened["queues"][0]["queue"]

    def run(self) -> None:
        """Until everything was moved.  Raises Ended, DriverDied."""
        notes = self._notes
        while True:
            self._produce()
            self._may_die()
            epoch = notes.done
            start = notes.ends[epoch - 1] if epoch else 0
            if len(notes.ends) == epoch:
                reserved = self._ask("reserve", self._queue, start, self._rng.randrange(1, 20))
                if reserved["end"] == start:
                    self._ask("consume", {self._queue: start})
                    if notes.sent == MESSAGES:
                        return
                    continue
                self._may_die()
                notes.ends.append(reserved["end"])
            self._may_die()
            if epoch:
                self._ask("consume", {self._queue: start})
            rows = self._read(start, notes.ends[epoch])
            known = notes.read.setdefault(epoch, rows)
            assert rows == known, f"batch {epoch} was {known}, and is {rows} now"
            attempts = self._stage(epoch, rows)
            self._may_die()
            self._control.ask("publish", "copy-1", epoch, attempts)
            self._may_die()
            notes.done = epoch + 1

    def _ask(self, verb: str, *arguments: Any) -> Any:
        return self._control.ask(verb, "copy", self._fence, *arguments)

    def _may_die(self) -> None:
        if self._rng.random() < 0.02:
            raise DriverDied

    def _produce(self) -> None:
        """Requests with a token, so that one whose answer was lost is not done twice."""
        count = min(self._rng.randrange(1, 8), MESSAGES - self._notes.sent)
        for number in range(self._notes.sent, self._notes.sent + count):
            token = struct.pack("<Q", number)
            message = [SOURCE, content(number, self._rng.choice((0, 300, 20_000)))]
            self._control.ask("send", [message], token, b"", True)
            self._notes.sent = number + 1

    def _read(self, after: int, until: int) -> list[int]:
        numbers: list[int] = []
        following: int | None = after
        while following is not None:
            answer = self._control.ask(
                "read_range", self._queue, following, until, 7, 50_000, "copy"
            )
            count, following, packets = answer[0], answer[1], answer[10]
            offsets = struct.unpack(f"<{count + 1}i", answer[9])
            numbers += [number_in(packets[begin:end]) for begin, end in itertools.pairwise(offsets)]
        return numbers

    def _stage(self, epoch: int, rows: list[int]) -> list[list[Any]]:
        """Cut anyhow, and some attempts twice."""
        parts = self._rng.randrange(1, 4)
        edges = [len(rows) * part // parts for part in range(parts + 1)]
        attempts = []
        for part, (begin, end) in enumerate(itertools.pairwise(edges)):
            for _ in range(self._rng.choice((1, 1, 2))):
                attempt = f"{self._rng.randrange(1 << 40):x}"
                for row in range(begin, end, 5):
                    piece = [[TARGET, content(each)] for each in rows[row : min(row + 5, end)]]
                    self._control.ask("stage", "copy-1", epoch, part, attempt, row - begin, piece)
            attempts.append([part, attempt, end - begin])
        self._rng.shuffle(attempts)
        return attempts


def live(machine: Machine, seed: int, faults: list[Fault]) -> int:
    """Move everything, whatever dies; how often something did."""
    machine.wipe()
    rng = random.Random(seed)
    notes = Notes()
    deaths = 0
    created = False
    for attempt in itertools.count():
        assert attempt < 200, "it does not come to its end"
        fault = faults.pop(0) if faults else None
        try:
            if not machine.alive:
                if machine.process is not None:
                    machine.kill()
                if not machine.start(fault):
                    raise Ended
            control = machine.connect()
            if not created:
                for queue, journal in ((SOURCE, True), (TARGET, False)):
                    listed = {each["name"] for each in control.ask("list_queues", False)}
                    if queue not in listed:
                        control.ask("create_queue", queue, True, "", journal)
                created = True
            Driver(control, notes, rng).run()
            return deaths
        except DriverDied:
            deaths += 1
        except (Ended, ConnectionError):
            machine.kill()
            deaths += 1
    raise AssertionError


def numbers_in(control: Control, queue: str) -> list[int]:
    return [number_in(packet) for _, _, packet, *_ in control.ask("peek", queue, 0, 1000)]


def verify(machine: Machine) -> None:
    """On the disk as well: after one more start."""
    machine.kill()
    assert machine.start()
    control = machine.connect()
    everything = list(range(MESSAGES))
    assert numbers_in(control, TARGET) == everything
    assert numbers_in(control, f"{SOURCE};journal") == everything
    assert numbers_in(control, SOURCE) == []
    assert control.ask("list_stages") == []
    [reader] = control.ask("list_readers")
    assert (reader["position"], reader["reserved"]) == (MESSAGES, MESSAGES)
    assert machine.terminate() == 0


def test_every_message_is_moved_once_and_in_order_whatever_dies_where(machine: Machine) -> None:
    assert live(machine, 0, [Fault("kill", 0, TURNS)]) >= 0
    acts = machine.count.value
    verify(machine)
    assert acts > 100
    died = 0
    for cycle, at in enumerate(range(3, acts, max(acts // 20, 1))):
        rng = random.Random(at)
        further = [Fault("kill", rng.randrange(1, 80), TURNS) for _ in range(DEATHS_MAX)]
        died += live(machine, cycle, [Fault("kill", at, TURNS), *further])
        verify(machine)
    assert died > 30
