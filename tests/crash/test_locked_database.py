"""A program that keeps the database locked stops the daemon, which names it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from tests.crash.control import Ended
from tests.crash.machine import Machine

SEND = [[r"private$\plain", b"late"]]


@pytest.fixture(autouse=True)
def impatient(machine: Machine) -> None:
    machine.changes = ["hurry", "impatient"]


@contextmanager
def locked(machine: Machine) -> Iterator[None]:
    with closing(sqlite3.connect(machine.data / "queues.db", isolation_level=None)) as intruder:
        intruder.execute("BEGIN IMMEDIATE")
        yield


def reason(machine: Machine) -> str:
    assert machine.ended() == 1
    event = machine.events()[-1]
    assert event["level"] == "critical"
    return str(event["reason"])


def test_a_locked_database_stops_the_daemon_without_loss(machine: Machine):
    machine.start()
    control = machine.connect()
    control.ask("create_queue", r"private$\plain", False)
    control.ask("send", [[r"private$\plain", b"early"]])

    with locked(machine):
        number = control.request("send", SEND)
        with pytest.raises(Ended):
            control.answer(number)
        assert "another program has queues.db locked: end it" in reason(machine)

    assert machine.start()
    (message,) = machine.connect().ask("peek", r"private$\plain", 0, 10, 0.0)
    assert b"early" in message[2]


def test_a_locked_database_prevents_the_start(machine: Machine):
    machine.start()
    machine.terminate()

    with locked(machine):
        assert not machine.start()
        assert "another program has queues.db locked: end it" in reason(machine)

    assert machine.start()
