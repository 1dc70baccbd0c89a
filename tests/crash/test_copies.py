"""One message to several queues: power losses and kills at every act of the daemon.

A request is stored with all of its copies or with none, every copy is intact, and a body that no
copy needs is removed.  Where no write is lost, the disk is as a kill leaves it.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from protocol import parse_user_message
from storage.engine.recovery import rewrite_log
from tests.crash.control import Control
from tests.crash.disk import Loss, PowerlessDisk
from tests.crash.machine import Machine
from tests.crash.promises import content, number_in
from tests.crash.replay import MUST_HOLD_BACK
from tests.ledger import disagreements
from tests.process.harness import free_port
from tests.stored_packets import packets, unshared_parts

RECOVERABLE, TRANSACTIONAL = 1, 2
ELSEWHERE = 4
STATES_MIN = 250

Places = dict[str, list[int]]  # place -> messages
Step = Callable[[Control], object]


class Moment(NamedTuple):
    """The time of a request or an answer: the contents that may be on disk from then on."""

    allowed: list[Places]


class Life:
    """A daemon that sends copies and ends them; after each request all messages are in place."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        port = free_port()
        self.elsewhere = [
            rf"DIRECT=TCP:127.0.0.1:{port}\private$\q{index}" for index in range(ELSEWHERE)
        ]
        self.moments: list[Moment] = []
        self.places: Places = {}

    def run(self) -> None:
        assert self._machine.start()
        control = self._machine.connect()
        here = {"plain": False, "other": False, "orders": True}
        for queue, transactional in here.items():
            control.ask("create_queue", rf"private$\{queue}", transactional)
        self._tell(self.places)
        for number, (queues, size, delivery) in enumerate(
            (
                (["plain", "other", *self.elsewhere], 3_000, RECOVERABLE),
                (["orders", *self.elsewhere], 30_000, TRANSACTIONAL),
                (["other", "plain", "plain"], 600, RECOVERABLE),
                (["plain", *self.elsewhere[:2]], 10, RECOVERABLE),  # too small to be shared
            )
        ):
            self._send(control, number, queues, size, delivery)
        self._receive(control, "orders")
        self._receive(control, "plain")
        for index, name in enumerate(self.elsewhere):
            purged = self.places[name]
            self._step(
                control,
                self._without(name)
                | {"dead": [*self.places.get("dead", []), *(each for each in purged if each != 1)]}
                | {"deadxact": [1] * (index + 1)},
                lambda control, name=name: control.ask("purge_outgoing", name),  # type: ignore[misc]
            )
        self._receive(control, "dead", r"DIRECT=OS:.\SYSTEM$;DEADLETTER")
        self._receive(control, "deadxact", r"DIRECT=OS:.\SYSTEM$;DEADXACT")
        self._step(
            control,
            self._without("other"),
            lambda control: control.ask("delete_queue", r"private$\other"),
        )
        assert self.places == {}
        self._machine.kill()

    def _send(
        self, control: Control, number: int, queues: list[str], size: int, delivery: int
    ) -> None:
        after = {name: list(there) for name, there in self.places.items()}
        for name in queues:
            after.setdefault(name, []).append(number)
        to = ",".join(name if "=" in name else rf"private$\{name}" for name in queues)
        self._step(
            control,
            after,
            lambda control: control.ask("send", [[to, content(number, size), "", delivery]]),
        )

    def _receive(self, control: Control, place: str, name: str = "") -> None:
        queue = name or rf"private$\{place}"
        taken = control.ask("take", queue, 100, 0.0)
        assert sorted(number_of(each[2]) for each in taken) == sorted(self.places[place])
        ids = [each[0] for each in taken]
        token = b"remove from " + place.encode()
        self._step(
            control,
            self._without(place),
            lambda control: control.ask("remove", queue, ids, token),
        )

    def _without(self, place: str) -> Places:
        return {name: there for name, there in self.places.items() if name != place}

    def _step(self, control: Control, after: Places, step: Step) -> None:
        self._tell(self.places, after)
        step(control)
        self.places = after
        self._tell(after)

    def _tell(self, *allowed: Places) -> None:
        self._machine.log.mark({"moment": len(self.moments)})
        self.moments.append(
            Moment([{name: sorted(there) for name, there in each.items()} for each in allowed])
        )


def number_of(packet: bytes) -> int:
    """Return the number of a message, after checking every byte of its body."""
    return number_in(parse_user_message(packet).properties.body)


def look(folder: Path) -> Places:
    """Return the contents that a start finds.  Raises AssertionError where they are not intact."""
    rewrite_log(folder / "queues.db-wal")
    with closing(sqlite3.connect(folder / "queues.db")) as db:
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("PRAGMA synchronous = OFF")
        assert db.execute("PRAGMA quick_check").fetchall() == [("ok",)]
        named = {
            "message": dict(db.execute("SELECT id, key FROM queue")),
            "outgoing": dict(db.execute("SELECT id, destination FROM outgoing_queue")),
        }
        places: Places = {}
        for table, names in named.items():
            for key, packet in packets(db, table):
                name = PLACES.get(names[key >> 48], names[key >> 48].removeprefix("private$\\"))
                places.setdefault(name, []).append(number_of(packet))
        assert unshared_parts(db) == [], "bodies without copy"
        assert disagreements(db) == []
    return {name: sorted(there) for name, there in places.items()}


PLACES = {"system$;deadletter": "dead", "system$;deadxact": "deadxact"}


def test_copies_are_stored_completely_or_not_at_all(machine: Machine, folder: Path) -> None:
    life = Life(machine)
    life.run()

    disk, rng, state = PowerlessDisk(machine.data), random.Random(1), folder / "state"
    moment: Moment | None = None
    count = writes = 0
    broken: list[str] = []
    for index, record in enumerate(machine.log.records()):
        if record.kind == "m":
            moment = life.moments[int(record.data.split(b":")[1].rstrip(b"} "))]
            continue
        if record.kind == "k":
            continue
        disk.feed(record)
        writes += record.kind == "w"
        if (
            moment is None
            or record.kind not in MUST_HOLD_BACK
            or (record.kind == "w" and writes % 3)
        ):
            continue
        for loss in Loss:
            state.mkdir()
            disk.write(state, loss, rng)
            try:
                found = look(state)
                if found not in moment.allowed:
                    broken.append(f"act {index}, {loss.value}: {found}, not {moment.allowed}")
            except (AssertionError, sqlite3.DatabaseError) as error:
                broken.append(f"act {index}, {loss.value}: {error}")
            shutil.rmtree(state)
            count += 1

    assert broken == []
    assert count >= STATES_MIN
