"""Delayed and retried messages: power losses and kills at every act of the daemon.

Each message is in one place at any time: among the delayed ones, in its queue, in `;retry`, in the
poison queue or in an outgoing queue.  Where no write is lost, the disk is as a kill leaves it.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from qmd.operations.delayed import stored_message
from storage.engine.recovery import rewrite_log
from storage.tables import delayed, retries
from tests.crash.control import Control, Refusal
from tests.crash.disk import Loss, PowerlessDisk
from tests.crash.machine import Machine
from tests.crash.promises import content, number_in
from tests.crash.replay import MUST_HOLD_BACK
from tests.ledger import disagreements
from tests.process.harness import free_port
from tests.stored_packets import packets

RECOVERABLE, TRANSACTIONAL = 1, 2
STATES_MIN = 100
DELAY_MS = 300
FOREVER = -1.0

Places = dict[str, list[int]]  # place -> messages


class Life:
    """A daemon with delayed messages, and one that keeps failing."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.elsewhere = rf"DIRECT=TCP:127.0.0.1:{free_port()}\private$\q"
        self.moments: list[list[Places]] = []
        self.places: Places = {}

    def run(self) -> None:
        assert self._machine.start()
        control = self._machine.connect()
        retry = [2, None, 0.2, 1.0, None, 0.0]  # attempts, immediate, delay, factor, max, jitter
        control.ask("create_queue", r"private$\orders", True)
        control.ask("set_queue", r"private$\orders", *[None] * 6, retry)
        control.ask("create_queue", r"private$\plain")
        self._moment(self.places)
        self._delay(control, 1, r"private$\plain", RECOVERABLE, "plain")
        self._delay(control, 2, r"private$\orders", TRANSACTIONAL, "orders")
        self._delay(control, 3, self.elsewhere, TRANSACTIONAL, self.elsewhere)
        self._cancel(control)
        self._fail(control, "retry", "orders")
        self._fail(control, "poison", None)
        self._machine.kill()

    def _delay(self, control: Control, number: int, to: str, delivery: int, place: str) -> None:
        """Delay a message, and wait until it has been released."""
        after = {**self.places, "delayed": [number]}
        released = {**self.places, place: [number]}
        self._moment(self.places, after, released)
        control.ask("send", [self._message(number, to, delivery, DELAY_MS)])
        self._moment(after, released)
        if place == self.elsewhere:
            while not any(each["messages"] for each in control.ask("list_outgoing")):
                pass
            # The queue counts it before its commit; the answer to another change comes after it.
            control.ask("set_queue", r"private$\plain", None, None, None, "a label")
        else:
            control.ask("peek", to, 0, 1, FOREVER)
        self._moment(released)
        self.places = released

    def _cancel(self, control: Control) -> None:
        before, after = self.places, {**self.places, "delayed": [4]}
        self._moment(before, after)
        [message_id] = control.ask(
            "send", [self._message(4, r"private$\plain", RECOVERABLE, 3_600_000)]
        )
        self._moment(after)
        self._moment(after, before)
        assert control.ask("cancel_delayed", [message_id]) == [message_id]
        self._moment(before)

    def _fail(self, control: Control, place: str, then: str | None) -> None:
        """Receive message 2, and give it back as failed."""
        [taken] = control.ask("take", r"private$\orders", 1, FOREVER)
        assert number_in(taken[2]) == 2
        before = self.places
        after = {name: there for name, there in before.items() if name != "orders"} | {
            f"orders;{place}": [2]
        }
        returned = before if then is not None else after
        self._moment(before, after, returned)
        assert control.ask("give_back", r"private$\orders", [taken[0]], True, "no stock") == 1
        if then is not None:
            control.ask("peek", r"private$\orders", 0, 1, FOREVER)
        else:
            _wait_for_first(control, rf"private$\orders;{place}")
        self._moment(returned)
        self.places = returned

    def _message(self, number: int, to: str, delivery: int, delay_ms: int) -> list[Any]:
        fields: list[Any] = [to, content(number, 300), "", delivery, 3, None, None, None, False, 0]
        fields += [b"", 0, b"", "", "", 0, b"", b"", 0, "", "", b"", b"", 0, 0, 0, b"", 0, delay_ms]
        return fields

    def _moment(self, *allowed: Places) -> None:
        self._machine.log.mark({"moment": len(self.moments)})
        self.moments.append(list(allowed))


def _wait_for_first(control: Control, queue: str) -> None:
    """Wait for the first message of a subqueue, which that message creates."""
    while True:
        try:
            control.ask("peek", queue, 0, 1, FOREVER)
        except Refusal as refusal:
            if refusal.code != "no_such_queue":
                raise
        else:
            return


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
                name = names[key >> 48].removeprefix("private$\\")
                places.setdefault(name, []).append(number_in(packet))
                if name.endswith(";retry"):
                    assert retries.find(db, key) is not None, "it would wait for ever"
        for row in delayed.page(db, queue="", start=0, rows_max=100, bytes_max=1 << 20):
            assert row.is_whole
            places.setdefault("delayed", []).append(number_in(stored_message(row)[0].body))
        assert disagreements(db) == []
    return places


def test_a_delayed_or_failed_message_is_in_one_place_at_any_time(
    machine: Machine, folder: Path
) -> None:
    life = Life(machine)
    life.run()

    disk, rng, state = PowerlessDisk(machine.data), random.Random(1), folder / "state"
    allowed: list[Places] | None = None
    count = 0
    broken: list[str] = []
    for index, record in enumerate(machine.log.records()):
        if record.kind == "m":
            allowed = life.moments[int(record.data.split(b":")[1].rstrip(b"} "))]
            continue
        if record.kind == "k":
            continue
        disk.feed(record)
        if allowed is None or record.kind not in MUST_HOLD_BACK:
            continue
        for loss in Loss:
            state.mkdir()
            disk.write(state, loss, rng)
            try:
                found = look(state)
                if found not in allowed:
                    broken.append(f"act {index}, {loss.value}: {found}, not {allowed}")
            except (AssertionError, sqlite3.DatabaseError) as error:
                broken.append(f"act {index}, {loss.value}: {error}")
            shutil.rmtree(state)
            count += 1

    assert broken == []
    assert count >= STATES_MIN
