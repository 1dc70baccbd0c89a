"""A pipeline moves a queue into another one, while daemon and driver die at any act.

The driver works as Spark does: it records the end of a batch before it reads it, and its completion
after it is published.  After a death it continues from its records, with other partitions and
limits. The output has every message once and in order, and so has the journal.
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

MESSAGES = 100
SOURCE, TARGET = r"private$\source", r"private$\target"
JOURNAL = f"{SOURCE};journal"
DEATHS_MAX = 12


class DriverDied(Exception):
    """The driver was killed; a new one continues from its notes."""


class Notes:
    """The checkpoint, which survives a driver."""

    def __init__(self) -> None:
        self.ends: list[int] = []
        self.done = 0
        self.read: dict[int, list[int]] = {}  # batch -> its messages when it was first read
        self.sent = 0  # confirmed requests of the producer
        self.watched = 0  # position of the shared reader of the journal
        self.seen: list[int] = []  # the messages that it has read, by position


class Driver:
    """One run of the driver."""

    def __init__(self, control: Control, notes: Notes, rng: random.Random) -> None:
        self._control = control
        self._notes = notes
        self._rng = rng
        opened = control.ask("open_reader", "copy", [SOURCE])
        self._fence = opened["fence"]
        self._queue = opened["queues"][0]["queue"]

    def run(self) -> None:
        """Run until all messages are moved.  Raises Ended, DriverDied."""
        notes = self._notes
        while True:
            self._produce()
            self._may_die()
            self._watch()
            epoch = notes.done
            start = notes.ends[epoch - 1] if epoch else 0
            if len(notes.ends) == epoch:
                limit = self._rng.choice((1, 7, 19, 90))
                reserved = self._ask("reserve", self._queue, start, limit)
                if reserved["end"] == start:
                    self._ask("consume", {self._queue: start})
                    if notes.sent == MESSAGES:
                        while len(notes.seen) < MESSAGES:
                            self._watch()
                        return
                    continue
                if self._rng.random() < 0.3:  # the answer is lost
                    again = self._ask("reserve", self._queue, start, reserved["end"] - start)
                    assert again["end"] == reserved["end"]
                self._may_die()
                notes.ends.append(reserved["end"])
            self._may_die()
            if epoch:
                if self._rng.random() < 0.5:  # in pieces, the first of which ends within a run
                    before = notes.ends[epoch - 2] if epoch > 1 else 0
                    self._ask("consume", {self._queue: self._rng.randint(before, start)})
                    self._may_die()
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
        """Send requests with tokens, so that a repetition after a lost answer has no effect."""
        count = min(self._rng.choice((1, 3, 7, 45)), MESSAGES - self._notes.sent)
        for number in range(self._notes.sent, self._notes.sent + count):
            token = struct.pack("<Q", number)
            message = [SOURCE, content(number, self._rng.choice((0, 300, 20_000)))]
            self._control.ask("send", [message], token, b"", True)
            self._notes.sent = number + 1

    def _watch(self) -> None:
        """Read the journal as a shared reader, and consume a part of what it has reserved."""
        notes = self._notes
        opened = self._control.ask("open_reader", "watch", [JOURNAL], True)
        [queue] = opened["queues"]
        begin = notes.watched
        assert begin <= queue["position"] <= len(notes.seen)
        notes.watched = queue["position"]
        end = self._control.ask(
            "reserve", "watch", opened["fence"], queue["queue"], notes.watched, 60
        )["end"]
        numbers = self._read(notes.watched, end, queue["queue"], "watch")
        known = notes.seen[notes.watched :]
        assert numbers[: len(known)] == known[: len(numbers)]
        notes.seen[notes.watched : end] = numbers
        self._may_die()
        until = self._rng.randint(notes.watched, end)
        self._control.ask("consume", "watch", opened["fence"], {queue["queue"]: until})

    def _read(self, after: int, until: int, queue: str = "", reader: str = "copy") -> list[int]:
        numbers: list[int] = []
        following: int | None = after
        while following is not None:
            answer = self._control.ask(
                "read_range", queue or self._queue, following, until, 7, 50_000, reader
            )
            count, following, packets = answer[0], answer[1], answer[10]
            offsets = struct.unpack(f"<{count + 1}i", answer[9])
            numbers += [number_in(packets[begin:end]) for begin, end in itertools.pairwise(offsets)]
        return numbers

    def _stage(self, epoch: int, rows: list[int]) -> list[list[Any]]:
        """Stage rows in random cuts, and some attempts twice."""
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


def live(machine: Machine, seed: int, faults: list[Fault]) -> tuple[int, Notes]:
    """Move all messages in spite of deaths; return the number of deaths, and the checkpoint."""
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
            return deaths, notes
        except DriverDied:
            deaths += 1
        except (Ended, ConnectionError):
            machine.kill()
            deaths += 1
    raise AssertionError


def numbers_in(control: Control, queue: str) -> list[int]:
    return [number_in(packet) for _, _, packet, *_ in control.ask("peek", queue, 0, 1000)]


def verify(machine: Machine, notes: Notes) -> None:
    """Check the result, also on disk after one more start."""
    machine.kill()
    assert machine.start()
    control = machine.connect()
    everything = list(range(MESSAGES))
    assert notes.seen == everything
    assert numbers_in(control, TARGET) == everything
    control.ask("release_reader", "watch")
    assert numbers_in(control, JOURNAL) == everything
    assert numbers_in(control, SOURCE) == []
    assert control.ask("list_stages") == []
    readers = {each["reader"]: each for each in control.ask("list_readers")}
    assert (readers["copy"]["position"], readers["copy"]["reserved"]) == (MESSAGES, MESSAGES)
    assert readers["watch"]["reserved"] == MESSAGES
    assert machine.terminate() == 0


def test_messages_are_moved_once_and_in_order_after_any_death(machine: Machine) -> None:
    _, notes = live(machine, 0, [Fault("kill", 0, TURNS)])
    acts = machine.count.value
    verify(machine, notes)
    assert acts > 100
    died = 0
    for cycle, at in enumerate(range(3, acts, max(acts // 20, 1))):
        rng = random.Random(at)
        further = [Fault("kill", rng.randrange(1, 80), TURNS) for _ in range(DEATHS_MAX)]
        deaths, notes = live(machine, cycle, [Fault("kill", at, TURNS), *further])
        died += deaths
        verify(machine, notes)
    assert died > 30
