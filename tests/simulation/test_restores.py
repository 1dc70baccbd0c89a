"""Whole queue managers that are restored from old backups: senders, receivers, both, and clones.

No message arrives twice or out of order, none of a backup is lost without a report, and a restored
receiver takes all later messages.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from tests.simulation import vfs
from tests.simulation.restores import Image, back_up, restore
from tests.simulation.scenario import Scenario
from tests.simulation.world import Host

try:
    vfs.begin(0, characteristics=0)
except vfs.Unavailable as reason:
    pytest.skip(str(reason), allow_module_level=True)

ORDERS = "DIRECT=OS:bert\\private$\\orders"
NEWS = "DIRECT=OS:bert\\private$\\news"
DEAD = "system$;deadxact"
STEPS = 12
SEEDS = (
    [int(os.environ["SEED"])]
    if "SEED" in os.environ
    else range(int(os.environ.get("RESTORES", "5")))
)
CONFIGURATION = 'delivery = {retry_first = "100ms", retry_max = "1s", resend = ["2s"]}'


def listens(scenario: Scenario, host: Host) -> None:
    """Run the world until the daemon of a host has started."""
    ready = scenario.world.run_until(
        lambda: host.daemon is not None and host.control_socket in host.interface.files,
        seconds_max=60,
    )
    assert ready, scenario.world.failures


def restored(scenario: Scenario, name: str, image: Image) -> None:
    host = scenario.host(name)
    restore(host, image)
    listens(scenario, host)


class Life:
    """Anna sends to Bert; each may be restored from its last backup at any time."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario = scenario
        self.random = random.Random(seed)
        self.count = 0
        self.sent: list[int] = []  # in the history of Anna's folder
        self.lost: set[int] = set()  # with a folder of Bert
        self.images: dict[str, tuple[Image, list[int]]] = {}

    def step(self) -> None:
        self.random.choice(
            [
                self.send,
                self.send,
                self.send,
                self.rest,
                self.cut,
                lambda: self.back_up("anna"),
                lambda: self.back_up("bert"),
                lambda: self.restore("anna"),
                lambda: self.restore("bert"),
                self.restore_both,
                self.kill,
            ]
        )()

    def send(self) -> None:
        for _ in range(self.random.randint(1, 4)):
            self.count += 1
            body = b"%d" % self.count
            self.scenario.act(
                "anna",
                lambda qm, body=body: qm.send(
                    ORDERS, body, delivery="transactional", dead_letter=True
                ),
            )
            self.sent.append(self.count)

    def rest(self) -> None:
        self.scenario.wait(self.random.choice([0.01, 0.3, 5.0]))

    def cut(self) -> None:
        """Separate the hosts for a while, so that messages stay unacknowledged."""
        seconds = self.random.choice([1.0, 10.0])
        self.scenario.world.network.block("10.0.0.1", "10.0.0.2", seconds=seconds)
        self.scenario.world.network.block("10.0.0.2", "10.0.0.1", seconds=seconds)

    def kill(self) -> None:
        host = self.scenario.host(self.random.choice(["anna", "bert"]))
        assert host.daemon is not None
        host.daemon.kill()
        listens(self.scenario, host)

    def back_up(self, name: str) -> None:
        has = list(self.sent) if name == "anna" else self.arrived()
        self.images[name] = back_up(self.scenario.host(name)), has

    def restore(self, name: str) -> None:
        if name not in self.images:
            return
        image, has = self.images[name]
        self.scenario.wait(2.0)  # a backup is older than a second
        restored(self.scenario, name, image)
        if name == "anna":
            self.sent = list(has)
        else:
            self.lost |= set(range(1, self.count + 1)) - set(has)

    def restore_both(self) -> None:
        self.restore("bert")
        self.restore("anna")

    def arrived(self) -> list[int]:
        return [int(body) for body in self.scenario.bodies("bert", "orders")]

    def rows(self, name: str = "anna") -> list[dict[str, Any]]:
        return list(self.scenario.act(name, lambda qm: qm.list_outgoing()))

    def settle(self) -> None:
        """Wait until all messages have ended, with the command of the operator where needed."""
        for _ in range(200):
            rows = self.rows()
            if not any(row["messages"] for row in rows):
                return
            if any(row["in_doubt"] for row in rows):
                self.scenario.act("anna", lambda qm: qm.restart_outgoing(ORDERS))
            self.scenario.wait(2.0)
        raise AssertionError(f"messages stand still: {rows}")

    def judge(self) -> None:
        arrived = self.arrived()
        assert arrived == sorted(set(arrived)), f"twice, or out of order: {arrived}"
        dead = {int(body) for body in self.scenario.bodies("anna", DEAD)}
        missing = set(self.sent) - {*arrived, *dead} - self.lost
        assert not missing, f"lost: {sorted(missing)}"
        for name in ("anna", "bert"):
            assert self.scenario.host(name).manager.identities.conflicts == []


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_doubled_or_lost_silently_after_restored_backups(seed: int) -> None:
    with Scenario("anna", "bert", configuration=CONFIGURATION) as scenario:
        life = Life(scenario, seed)
        life.send()
        for _ in range(STEPS):
            life.step()
        life.send()
        last = life.count
        life.settle()
        life.judge()
        assert life.arrived()[-1] == last, "the restored ones take and send messages"


def sent(scenario: Scenario, name: str, *bodies: bytes, to: str = ORDERS) -> None:
    delivery = "transactional" if to == ORDERS else "recoverable"
    for body in bodies:
        scenario.act(name, lambda qm, body=body: qm.send(to, body, delivery=delivery))


def test_peers_accept_a_restored_queue_manager_without_an_operator() -> None:
    with Scenario("anna", "bert", configuration=CONFIGURATION) as scenario:
        anna = scenario.host("anna")
        sent(scenario, "anna", b"1")
        scenario.wait(5.0)
        image = back_up(anna)
        for number in range(3):  # so that Bert knows later runs than the backup
            anna.daemon.kill()
            listens(scenario, anna)
            sent(scenario, "anna", b"%d" % (number + 2))
        scenario.wait(5.0)

        restored(scenario, "anna", image)
        scenario.wait(5.0)
        sent(scenario, "anna", b"5", b"6")
        scenario.wait(30.0)

        assert scenario.bodies("bert", "orders") == [b"1", b"2", b"3", b"4", b"5", b"6"]
        assert scenario.outgoing("anna") == {ORDERS: 0}
        assert scenario.host("bert").manager.identities.conflicts == []


def test_a_restored_receiver_takes_later_messages_of_a_running_sequence() -> None:
    with Scenario("anna", "bert", configuration=CONFIGURATION) as scenario:
        sent(scenario, "anna", b"1", b"2")
        scenario.wait(5.0)
        image = back_up(scenario.host("bert"))
        sent(scenario, "anna", b"3", b"4")  # in the same sequence; Anna forgets them
        scenario.wait(5.0)

        restored(scenario, "bert", image)
        scenario.wait(5.0)
        sent(scenario, "anna", b"5", b"6")
        scenario.wait(60.0)

        assert scenario.bodies("bert", "orders") == [b"1", b"2", b"5", b"6"]
        assert scenario.outgoing("anna") == {ORDERS: 0}


def test_recoverable_messages_of_a_restored_sender_are_no_duplicates() -> None:
    """The original gave the next message numbers to others, which the receiver remembers."""
    with Scenario("anna", "bert", configuration=CONFIGURATION) as scenario:
        anna = scenario.host("anna")
        sent(scenario, "anna", b"1", to=NEWS)
        scenario.wait(5.0)
        image = back_up(anna)
        sent(scenario, "anna", b"2", b"3", b"4", to=NEWS)
        scenario.wait(5.0)

        restored(scenario, "anna", image)
        scenario.wait(5.0)
        sent(scenario, "anna", b"5", b"6", b"7", to=NEWS)
        scenario.wait(30.0)

        bodies = scenario.bodies("bert", "news")
        assert sorted(bodies) == [b"1", b"2", b"3", b"4", b"5", b"6", b"7"]


def test_a_clone_that_was_left_running_is_refused_and_doubles_nothing() -> None:
    """Carl is restored from a backup of Anna, which still runs."""
    with Scenario("anna", "bert", "carl", configuration=CONFIGURATION) as scenario:
        carl, bert = scenario.host("carl"), scenario.host("bert")
        sent(scenario, "anna", b"1", b"2")
        scenario.wait(5.0)
        image = back_up(scenario.host("anna"))
        sent(scenario, "anna", b"3")
        scenario.wait(5.0)

        restored(scenario, "carl", image)
        scenario.wait(5.0)
        sent(scenario, "carl", b"4")
        scenario.wait(30.0)
        sent(scenario, "anna", b"5")
        scenario.wait(30.0)
        sent(scenario, "carl", b"6")
        scenario.wait(30.0)

        assert scenario.bodies("bert", "orders") == [b"1", b"2", b"3", b"4", b"6"]
        assert scenario.outgoing("anna") == {ORDERS: 1}, "kept, and not lost"
        (conflict,) = bert.manager.identities.conflicts
        assert conflict.queue_manager == carl.manager.services.id
        assert set(conflict.hosts) == {"10.0.0.1", "10.0.0.3"}
        (known,) = scenario.host("anna").manager.identities.conflicts
        assert "restored" in known.remedy, "the original is notified too"
