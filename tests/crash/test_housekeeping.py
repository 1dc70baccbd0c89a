"""Messages are moved, resent, imported, journaled and purged while their daemon is killed.

Each step is one commit: after a kill all its messages are in their old place or in the new one, the
token tells which, and repeating the request completes the step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.crash.control import Control, Ended
from tests.crash.machine import Machine
from tests.crash.matrix import TURNS
from tests.crash.promises import content, number_in
from tests.crash.shim import Fault

MESSAGES = 12
KILLS = range(2, 300, 7)
ORDERS, RETRY, OTHER = r"private$\orders", r"private$\orders;retry", r"private$\other"
JOURNAL = r"private$\orders;journal"
PLACES = (ORDERS, RETRY, OTHER, JOURNAL)
EVERY: list[Any] = []  # a selection of all messages

State = dict[str, list[int]]
Step = Callable[["Housekeeping", Control, bytes], None]


class Housekeeping:
    """A machine, and the places of its messages after each step."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._exported: list[bytes] = []
        self._done = 0  # steps
        self.state: State = {}

    def prepare(self) -> None:
        assert self._machine.start()
        control = self._machine.connect()
        control.ask("create_queue", ORDERS, False, "", True)
        control.ask("create_queue", OTHER)
        control.ask("send", [[ORDERS, content(number)] for number in range(MESSAGES)])
        self.state = self.look(control)
        assert self.state[ORDERS] == list(range(MESSAGES))
        self._exported = [each[2] for each in control.ask("peek", ORDERS, 0, 3, 0.0)]
        self._machine.kill()

    def work(self, fault: Fault | None) -> bool:
        """Run the steps, beginning with the one in doubt; return whether they were completed."""
        if not self._machine.start(fault):
            self._machine.kill()
            return False
        try:
            control = self._machine.connect()
            while self._done < len(STEPS):
                self._step(control)
        except Ended:
            self._machine.kill()
            return False
        return True

    def _step(self, control: Control) -> None:
        token = b"step %d" % self._done
        step, expected = STEPS[self._done]
        before = self.look(control)
        after = expected(self.state)
        was_done = control.ask("outcome", token) is not None
        assert before == (after if was_done else self.state), (self._done, was_done)
        if not was_done:
            # After a query of an unknown outcome only a newer connection may use the token again:
            # this one is newer than those of the earlier requests.
            step(self, control, token)
            assert self.look(control) == after, self._done
        self.state = after
        self._done += 1

    def look(self, control: Control) -> State:
        there = {each["name"] for each in control.ask("list_queues", True)}
        return {
            place: [number_in(each[2]) for each in control.ask("peek", place, 0, 1000, 0.0)]
            if place in there
            else []
            for place in PLACES
        }

    # Steps.

    def move(self, control: Control, token: bytes) -> None:
        control.ask("move", ORDERS, RETRY, EVERY, [8], False, token)

    def move_back(self, control: Control, token: bytes) -> None:
        places = [each[0] for each in control.ask("peek", RETRY, 0, 1000, 0.0)]
        control.ask("move", RETRY, ORDERS, [places[2:4]], [8], False, token)

    def resend(self, control: Control, token: bytes) -> None:
        control.ask("resend", RETRY, EVERY, [3], OTHER, None, None, False, False, token)

    def import_(self, control: Control, token: bytes) -> None:
        control.ask(
            "import", OTHER, [[packet, 1, None, 1, 1] for packet in self._exported], False, token
        )

    def receive(self, control: Control, token: bytes) -> None:
        taken = control.ask("take", ORDERS, 2, 0.0)
        control.ask("remove", ORDERS, [each[0] for each in taken], token)


def _moved(state: State) -> State:
    return {**state, ORDERS: state[ORDERS][8:], RETRY: state[ORDERS][:8]}


def _moved_back(state: State) -> State:
    back, kept = state[RETRY][2:4], state[RETRY][:2] + state[RETRY][4:]
    return {**state, RETRY: kept, ORDERS: sorted(state[ORDERS] + back)}


def _resent(state: State) -> State:
    return {**state, RETRY: state[RETRY][3:], OTHER: state[OTHER] + state[RETRY][:3]}


def _imported(state: State) -> State:
    return {**state, OTHER: state[OTHER] + [0, 1, 2]}


def _received(state: State) -> State:
    return {**state, ORDERS: state[ORDERS][2:], JOURNAL: state[JOURNAL] + state[ORDERS][:2]}


STEPS: list[tuple[Step, Callable[[State], State]]] = [
    (Housekeeping.move, _moved),
    (Housekeeping.move_back, _moved_back),
    (Housekeeping.resend, _resent),
    (Housekeeping.import_, _imported),
    (Housekeeping.receive, _received),
]


def test_a_step_is_done_once_or_not_at_all_after_a_kill(machine: Machine) -> None:
    kills = 0
    for at in KILLS:
        machine.wipe()
        housekeeping = Housekeeping(machine)
        housekeeping.prepare()
        machine.count.reset()
        # At the end the daemon stops, which has acts as well.
        is_over = housekeeping.work(Fault("kill", at, TURNS)) and machine.terminate() == 0
        if is_over:
            break
        kills += 1
        assert housekeeping.work(None), "it does not come to its end"
        assert housekeeping.look(machine.connect()) == housekeeping.state
        assert housekeeping.state[OTHER] == [0, 1, 4, 0, 1, 2]
        assert machine.terminate() == 0

    assert is_over, "more acts than were tried"
    assert kills >= 5


def test_a_deletion_reports_each_message_once_after_a_kill(
    machine: Machine,
) -> None:
    kills = 0
    for at in KILLS:
        machine.wipe()
        assert machine.start()
        control = machine.connect()
        control.ask("create_queue", ORDERS)
        control.ask("create_queue", OTHER)
        asking = [ORDERS, b"", "", 1, 3, None, None, None, False, 0, b"", 0, b"", "", OTHER, 8]
        for number in range(MESSAGES):
            control.ask("send", [[*asking[:1], content(number), *asking[2:]]])
        control.ask("move", ORDERS, RETRY, EVERY, [5], False, b"")
        machine.kill()

        machine.count.reset()
        is_over = False
        if machine.start(Fault("kill", at, TURNS)):
            try:
                machine.connect().ask("delete_queue", ORDERS)
                is_over = machine.terminate() == 0
            except Ended:
                pass
        kills += not is_over
        machine.kill()
        assert machine.start()
        control = machine.connect()
        if not is_over and ORDERS in {each["name"] for each in control.ask("list_queues")}:
            control.ask("delete_queue", ORDERS)
        reported = [number_in(each[2]) for each in control.ask("peek", OTHER, 0, 1000, 0.0)]
        assert sorted(reported) == list(range(MESSAGES)), at
        assert machine.terminate() == 0
        if is_over:
            break

    assert is_over, "more acts than were tried"
    assert kills >= 2
