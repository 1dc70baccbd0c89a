"""A daemon that is killed between a change of rights and its answer: all of the change, or none."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crash.control import Control, Ended
from tests.crash.forge import Forge
from tests.crash.machine import Machine
from tests.crash.matrix import TURNS
from tests.crash.shim import Fault

QUEUE = "orders"
IMPORTED = [[QUEUE, f"host:10.1.0.{number}", None, "allow", "send"] for number in range(20)]
#: Requests in this order; each changes the entries.
CHANGES: list[tuple[object, ...]] = [
    ("change_access", "grant", "host:10.0.0.1", "send", QUEUE),
    ("change_access", "deny", "anonymous", "send", QUEUE),
    ("change_access", "revoke", "everyone", "send", QUEUE),
    ("import_access", IMPORTED),
    ("set_owner", QUEUE, "token:shop"),
    ("change_access", "revoke", "host:10.0.0.1", "send", QUEUE),
    ("import_access", IMPORTED[:3], [], True),
]
EVERY = 3  # of the acts at which the daemon could be killed


@pytest.fixture
def machine(forge: Forge, folder: Path) -> Iterator[Machine]:
    machine = Machine(forge, folder / "machine")
    yield machine
    machine.close()


def entries(control: Control) -> Any:
    """Return the entries and owners that the daemon has, in an order of their own."""
    found = control.ask("export_access")
    return sorted(map(repr, found["entries"])), sorted(map(repr, found["owners"]))


def run(machine: Machine, fault: Fault) -> tuple[int, bool]:
    """Make the changes; return how many were answered, and whether the daemon came to the end."""
    machine.wipe()
    if not machine.start(fault):
        return -1, False
    answered = -1
    with contextlib.suppress(Ended):
        control = machine.connect()
        control.ask("create_queue", QUEUE)
        answered = 0
        for change in CHANGES:
            control.ask(*change)  # type: ignore[arg-type]
            answered += 1
        return answered, True
    return answered, False


def test_a_change_of_rights_is_whole_and_stays_after_its_answer(machine: Machine) -> None:
    states = []  # after 0, 1, 2, ... changes
    machine.wipe()
    assert machine.start()
    control = machine.connect()
    control.ask("create_queue", QUEUE)
    states.append(entries(control))
    for change in CHANGES:
        control.ask(*change)  # type: ignore[arg-type]
        states.append(entries(control))
    assert len(set(map(repr, states))) == len(states)
    machine.kill()
    done, came_to_its_end = run(machine, Fault("kill", at=0, kinds=TURNS))
    assert (done, came_to_its_end) == (len(CHANGES), True)
    acts = machine.count.value

    died = 0
    for at in itertools.islice(range(1, acts + 1), 0, None, EVERY):
        answered, came_to_its_end = run(machine, Fault("kill", at, TURNS))
        died += not came_to_its_end
        if machine.process is not None:
            machine.kill()
        assert machine.start(), machine.said()
        with contextlib.closing(machine.connect()) as control:
            if answered < 0 and QUEUE not in repr(control.ask("list_queues")):
                machine.kill()
                continue
            found = entries(control)
        machine.kill()
        possible = states[max(answered, 0) : max(answered, 0) + 2]
        assert found in possible, f"killed at act {at}, after {answered} answers"
    assert died > 5
