"""Messages expire while their daemon is killed.

Afterwards each message is in one place, `why` names it, and its sender gets one acknowledgment of
its end.  The daemon is killed at an act of its work on messages that have expired when it starts;
the next start ends the rest.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any, NamedTuple

from protocol import parse_user_message
from protocol.identifiers import message_id_text
from protocol.message_class import MessageClass
from tests.crash.control import Control, Ended
from tests.crash.machine import Machine
from tests.crash.matrix import TURNS
from tests.crash.promises import content, number_in
from tests.crash.shim import Fault
from tests.patience import END_S
from tests.process.harness import free_port

RECOVERABLE, TRANSACTIONAL = 1, 2
LIFETIME_S = 1000
EACH = 5  # of each kind
PATIENCE_S = END_S
ADMIN = r"private$\admin"
NEGATIVE = 0x4 | 0x8  # the sender asks for acknowledgments of failed arrival or receipt
DEAD_LETTERS = {False: "DIRECT=OS:.\\SYSTEM$;DEADLETTER", True: "DIRECT=OS:.\\SYSTEM$;DEADXACT"}
KILLS = range(1, 200, 3)


class Kind(NamedTuple):
    """Messages that end in the same way; `queue` None: they cannot be delivered."""

    queue: str | None
    delivery: int
    dead_letter: bool

    @property
    def is_transactional(self) -> bool:
        return self.delivery == TRANSACTIONAL


KINDS = [
    Kind(queue, delivery, dead_letter)
    for queues, delivery in ((("plain", None), RECOVERABLE), (("orders", None), TRANSACTIONAL))
    for queue in queues
    for dead_letter in (True, False)
]


class Ending:
    """The messages of one machine, from their sending to their end."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._nowhere = rf"DIRECT=TCP:127.0.0.1:{free_port()}\private$\q"
        self._ids: dict[int, str] = {}
        self._kinds: dict[int, Kind] = {}

    def send(self) -> None:
        """Send all messages, with a daemon that is killed before any expires."""
        assert self._machine.start()
        control = self._machine.connect()
        for queue, transactional in (("plain", False), ("orders", True), ("admin", False)):
            control.ask("create_queue", rf"private$\{queue}", transactional)
        for kind in KINDS:
            numbers = range(len(self._ids), len(self._ids) + EACH)
            ids = control.ask("send", [self._message(kind, number) for number in numbers])
            self._ids |= dict(zip(numbers, ids, strict=True))
            self._kinds |= dict.fromkeys(numbers, kind)
        self._machine.kill()

    def _message(self, kind: Kind, number: int) -> list[Any]:
        destination = self._nowhere if kind.queue is None else rf"private$\{kind.queue}"
        times = (LIFETIME_S, None) if kind.queue is None else (None, LIFETIME_S)
        properties = [kind.delivery, 3, *times, kind.dead_letter, False, 0, b"", 0, b"", ""]
        return [destination, content(number), "", *properties, ADMIN, NEGATIVE]

    def die_while_they_end(self, at: int) -> bool:
        """Kill the daemon at this act of its kind after the start.

        Return False if all ended before.
        """
        self._machine.skipped_s = 2 * LIFETIME_S
        self._machine.count.reset()
        died = not self._machine.start(Fault("kill", at, TURNS))
        try:
            if not died:
                self._wait_until_over(self._machine.connect())
        except Ended:
            died = True
        self._machine.kill()
        return died

    def check(self) -> None:
        """Check that the next start ends the rest, and that each message is in its place."""
        assert self._machine.start()
        control = self._machine.connect()
        self._wait_until_over(control)
        for transactional, name in DEAD_LETTERS.items():
            dead = [number_in(each[2]) for each in control.ask("peek", name, 0, 1000, 0.0)]
            wanted = [
                number
                for number, kind in self._kinds.items()
                if kind.dead_letter and kind.is_transactional == transactional
            ]
            assert sorted(dead) == wanted
        for number, kind in self._kinds.items():
            explained = control.ask("why", self._ids[number], "", False)
            assert explained["state"] == ("dead_lettered" if kind.dead_letter else "discarded"), (
                explained
            )
            ends = [each["kind"] for each in explained["events"]]
            assert ends.count("expired") == 1, ends
        assert self._acknowledged(control) == Counter(
            (
                self._ids[number],
                MessageClass.NACK_REACH_QUEUE_TIMEOUT
                if kind.queue is None
                else MessageClass.NACK_RECEIVE_TIMEOUT,
            )
            for number, kind in self._kinds.items()
        )
        assert self._machine.terminate() == 0

    def _wait_until_over(self, control: Control) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self._left(control):
            assert time.monotonic() < deadline, "they do not end"
            time.sleep(0.005)

    def _acknowledged(self, control: Control) -> Counter[tuple[str, int]]:
        """Return the acknowledgments that the sender received, by message."""
        deadline = time.monotonic() + PATIENCE_S
        while True:  # some may be in the outgoing queue to this queue manager itself
            acks = [
                parse_user_message(each[2]).properties
                for each in control.ask("peek", ADMIN, 0, 1000, 0.0)
            ]
            acknowledged = Counter(
                (
                    message_id_text(
                        ack.correlation_id[:16], int.from_bytes(ack.correlation_id[16:], "little")
                    ),
                    ack.message_class,
                )
                for ack in acks
            )
            if len(acknowledged) == len(self._kinds) or time.monotonic() > deadline:
                return acknowledged
            time.sleep(0.005)

    def _left(self, control: Control) -> int:
        left: int = sum(
            each["messages"]
            for each in (*control.ask("list_queues"), *control.ask("list_outgoing"))
            if each.get("name") != ADMIN
        )
        return left


def test_a_message_ends_once_after_a_kill_at_any_act(machine: Machine) -> None:
    machine.changes = ("hurry", "a_few_at_a_time")
    kills = 0
    for at in KILLS:
        machine.wipe()
        ending = Ending(machine)
        ending.send()
        died = ending.die_while_they_end(at)
        ending.check()
        if not died:
            break
        kills += 1

    assert not died, "more acts than were tried"
    assert kills >= 8
