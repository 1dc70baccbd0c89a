"""Whole queue managers in worlds of bad luck; and what such worlds have found, as examples.

`SEED=123 make simulate` shows one world line by line; `make simulate` lives through a thousand.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest

from qmd.queues.outgoing_queue import TRANSACTIONAL_FIRST, InFlight, Transmission
from tests.simulation import vfs
from tests.simulation.__main__ import regressions
from tests.simulation.applications import Queue
from tests.simulation.crew import live_all
from tests.simulation.disk import PowerLoss
from tests.simulation.draw import KNOBS, KNOBS_OF_LISTS
from tests.simulation.life import live
from tests.simulation.oracle import Totals, examine
from tests.simulation.stage import Stage

ROOT = Path(__file__).resolve().parent.parent.parent
SEEDS = [int(os.environ["SEED"])] if "SEED" in os.environ else range(1, 301)
SEEDS_AT_ONCE = 25
WITH_STRANGERS = 120  # a seed
TIMEOUT_S = 600  # on a machine that is busy with others; a few seconds else
JOBS = os.cpu_count() or 1

PARTS = [SEEDS[first : first + SEEDS_AT_ONCE] for first in range(0, len(SEEDS), SEEDS_AT_ONCE)]

try:
    vfs.begin(0, characteristics=0)
except vfs.Unavailable as reason:
    pytest.skip(str(reason), allow_module_level=True)


@pytest.fixture(scope="session")
def chronicle(tmp_path_factory):
    """A folder that all processes of this run of pytest have, for what happened in which part."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    folder = folder / "worlds"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize(
    "seeds",
    PARTS,
    ids=lambda seeds: f"seeds {seeds[0]} to {seeds[-1]}",
)
def test_every_promise_is_kept(seeds, chronicle):
    """Safety while things go wrong; liveness once they stop going wrong."""
    assert not broken_promises(live_through(seeds, chronicle))


@pytest.mark.timeout(TIMEOUT_S)
def test_what_has_failed_once_does_not_fail_again():
    assert not broken_promises(live_all(regressions(), JOBS))


def live_through(seeds, chronicle):
    """Their lives; what happened in how many of them is written down."""
    lives = list(live_all(seeds, JOBS))
    happened = Counter(event for life in lives for event in life.seen)
    unfinished = chronicle / f"{seeds[0]}-{os.getpid()}"
    unfinished.write_text(json.dumps(happened))
    unfinished.rename(chronicle / f"{seeds[0]}.json")
    return lives


def broken_promises(lives):
    """A line for each seed that failed, with the command that shows it."""
    return [
        f"SEED={life.seed} make simulate: {life.failures[0]}" for life in lives if life.failures
    ]


EVENTS = (
    "power lost",
    "daemon killed",
    "daemon stopped",
    "reader killed",
    "writer killed",
    "process hung",
    "connection cut",
    "connection silenced",
    "wall",
    "disk hung",
    "disk full",
    "disk fault planned: EIO for a sync",
    "clock set",
    "disk lost",
    "operator: delete",
    "slow line",
    "connection to be cut at a byte",
    "a second session",
    "numbers skipped",
    "transaction aborted by its application",
    "sent to several queues",
    "messages passed on",
    "administration queue deleted",
    "heard: ack_reach_queue",
    "heard: ack_receive",
    "heard: nack_reach_queue_timeout",
    "heard: nack_not_transactional_message",
    "log: resending",
    "log: messages_ended",
    "log: session_closed_for_lack_of_room",
    "wall in one direction",
    "clock set back",
    "clock set forward",
    "power lost, and kept of what was not synced: the first, the last of them torn",
    "power lost, and kept of what was not synced: any",
    "power lost, and kept of what was not synced: any sectors",
    "disk fault: EIO for a sync",
    "disk fault: EIO for a read",
    "disk fault: EIO for a write",
    "disk fault: ENOSPC for a write",
    "disk fault: less than was asked for",
    "disk of a relay lost",
    "disk lost on a way over two others",
    "a session counted beyond its 16 bits",
    "request refused: queue_full",
    "request refused: disk_full",
    # What logs of events tell in the end, of messages that are here, and of those on their way.
    "told: expired",
    "told: expired on its way",
    "told: dead_lettered",
    "told: dead_lettered on its way",
    "told: journaled",
    "told: rejected",
    "told: retransmitted on its way",
    "told: out_of_order",
    "told: aborted",
    "told: acknowledged",
    "told: final_ack_sent",
    "told: lost on its way",
    "told: moved",
    "told: queue_deleted",
    "told: duplicate",
    "told: relayed on its way",
    "told: awaiting on its way",
    "told: confirmed on its way",
    "told: final_ack_received on its way",
    "messages rejected in a transaction",
    "a stranger sends again",
    "a stranger sends a gap",
    "a stranger sends the middle",
    "a stranger sends the past",
    "a stranger hangs up",
    "a stranger takes messages",
    "a stranger keeps acknowledgments to itself",
)
EVENT_WORLDS_MIN = 3


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.skipif(len(SEEDS) < 100, reason="few worlds see little")
def test_the_worlds_are_as_unkind_as_they_claim(chronicle):
    """What no world ever meets is tested by none of them.  Other processes live through most of
    them: as many more as it takes."""
    for seeds in PARTS:
        if not missing_in(chronicle):
            break
        if not (chronicle / f"{seeds[0]}.json").exists():
            live_through(seeds, chronicle)

    assert missing_in(chronicle) == []


def missing_in(chronicle):
    happened = Counter()
    for part in chronicle.glob("*.json"):
        happened.update(json.loads(part.read_text()))
    return [event for event in EVENTS if happened[event] < EVENT_WORLDS_MIN]


@pytest.mark.parametrize("knob", KNOBS | KNOBS_OF_LISTS)
def test_every_limit_that_worlds_turn_is_one_of_the_code(knob):
    module, _, name = knob.rpartition(".")

    assert isinstance(getattr(import_module(module), name), int)


@pytest.mark.parametrize("seed", [7, WITH_STRANGERS])
def test_the_same_seed_gives_the_same_world(seed):
    """Alone or after others, and whatever Python's hashes are."""
    here = live(seed, trace=True).trace
    for other in (8, 9):
        live(other)
    again = live(seed, trace=True).trace

    command = [sys.executable, "-m", "tests.simulation", "--seed", str(seed)]
    environment = os.environ | {"PYTHONHASHSEED": "12345"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)

    assert again == here
    assert run.stdout.decode().splitlines() == here


# What worlds have found.

NEWS, ORDERS = "DIRECT=OS:bert\\private$\\news", "DIRECT=OS:bert\\private$\\orders"


def test_express_messages_that_find_no_room_are_sent_again_when_there_is_some():
    """Their receipt was acknowledged with the session that ended for lack of room."""
    with Stage("anna", "bert") as stage:
        disk = stage.host("bert").disk
        disk.capacity_bytes = disk.used_bytes()
        stage.wait(2.0)

        for body in (b"1", b"2", b"3"):
            stage.act("anna", lambda qm, body=body: qm.send(NEWS, body, delivery="express"))
        stage.wait(5.0)
        assert stage.bodies("bert", "news") == []

        disk.capacity_bytes = None
        stage.wait(60.0)
        assert stage.bodies("bert", "news") == [b"1", b"2", b"3"]


def test_an_acknowledgment_that_is_due_later_keeps_the_session():
    """Closed as idle before it, the session came back with the same message, for ever."""
    with Stage("anna", "bert", configuration='delivery = {idle_close = "1s"}') as stage:
        stage.act("anna", lambda qm: qm.send(NEWS, b"1", delivery="express"))
        stage.wait(60.0)

        assert stage.outgoing("anna") == {NEWS: 0}
        assert stage.bodies("bert", "news") == [b"1"]


def test_an_order_ack_may_speak_of_messages_that_have_died():
    """A full queue refuses the first ones; the order ack then names the last of them."""
    small = (Queue("orders", True, quota_bytes=600), Queue("news", False))
    with Stage("anna", "bert", queues=small) as stage:
        for number in range(6):
            body = b"%d" % number
            stage.act("anna", lambda qm, body=body: qm.send(ORDERS, body, delivery="transactional"))
        stage.wait(60.0)

        kept, dead = stage.bodies("bert", "orders"), stage.bodies("anna", "system$;deadxact")
        assert kept + dead == [b"0", b"1", b"2", b"3", b"4", b"5"]
        assert stage.outgoing("anna") == {ORDERS: 0}


def test_a_queue_that_is_deleted_and_made_again_does_not_take_a_message_twice():
    """Its sender had not heard that it came, and sent it again to the new queue of that name."""
    with Stage("anna", "bert") as stage:
        network, addresses = stage.world.network, ("10.0.0.2", "10.0.0.1")
        stage.act("anna", lambda qm: qm.send(ORDERS, b"1", delivery="transactional"))
        stage.wait(5.0)
        network.build_wall(*addresses, seconds=600.0)
        stage.act("anna", lambda qm: qm.send(ORDERS, b"2", delivery="transactional"))
        stage.wait(1.0)
        received = stage.act("bert", lambda qm: qm.receive_many("orders", 10))
        assert [message.body for message in received] == [b"1", b"2"]

        stage.act("bert", lambda qm: qm.delete_queue("orders"))
        stage.act("bert", lambda qm: qm.create_queue("orders", transactional=True))
        for connection in list(network.connections):
            network.cut(connection)
        network.walls.clear()
        stage.act("anna", lambda qm: qm.send(ORDERS, b"3", delivery="transactional"))
        stage.wait(120.0)

        assert stage.bodies("bert", "orders") == [b"3"]
        assert stage.outgoing("anna") == {ORDERS: 0}


def test_what_only_the_disk_knows_to_be_acknowledged_is_not_swept_away_with_what_follows():
    """Two order acks in one commit: the first speaks of what an earlier pass sent, the second of
    what this one did.  The rows of the second were deleted from the beginning of the sequence."""
    with Stage("anna", "bert") as stage:
        stage.host("bert").lose_power(PowerLoss.NONE, back_after_s=None)
        for body in (b"1", b"2"):
            stage.act("anna", lambda qm, body=body: qm.send(ORDERS, body, delivery="transactional"))
        host = stage.host("anna")
        (queue,) = host.manager.outgoing.queues
        sequence = queue.sequence

        def hear() -> None:
            now, size = host.daemon.loop.time(), queue.bytes // 2
            sequence._highest_transmitted = 2  # before a start
            done = Transmission()
            for number in (1, 2):
                done.first.add(number, number, size)
            host.manager.recorder.transmitted(queue, done)
            hear_of = host.manager.outgoing_release.acknowledged
            hear_of(None, queue, sequence.sequence_id, 1, now)
            key = TRANSACTIONAL_FIRST | 2
            queue.transmitted.append(InFlight(2, key, size, 2, confirms=False))
            hear_of(None, queue, sequence.sequence_id, 2, now)

        host.daemon.loop.call_soon(hear)
        stage.wait(5.0)

        found = examine(host.disk.image(durable=False), "anna", with_log=True)
        assert found.contradictions == []
        assert (queue.messages, queue.bytes) == (0, 0)
        assert found.outgoing == {ORDERS: Totals(0, 0)}


def test_who_asked_hears_of_a_death_although_the_power_goes_with_it():
    """The dead letter is in one commit, and the acknowledgment in the next one: it was in none."""
    queues = (Queue("orders", True), Queue("news", False), Queue("acks", False))
    with Stage("anna", "bert", queues=queues) as stage:
        stage.host("bert").lose_power(PowerLoss.NONE, back_after_s=None)
        anna, losses = stage.host("anna"), []

        def look(host) -> None:
            found = examine(anna.disk.image(durable=True), "anna")
            if found.queues["system$;deadletter"].messages and not losses:
                losses.append(stage.world.now)
                lose = anna.lose_power
                stage.world.scheduler.after(0.0, lambda: lose(PowerLoss.NONE, back_after_s=1.0))

        stage.world.on_sync = look
        stage.act(
            "anna",
            lambda qm: qm.send(
                NEWS,
                b"1",
                delivery="recoverable",
                time_to_reach_queue_s=1,
                acknowledge=4,
                admin_queue="DIRECT=OS:anna\\private$\\acks",
            ),
        )
        stage.wait(30.0)

        assert losses
        assert stage.bodies("anna", "acks") == stage.bodies("anna", "system$;deadletter") == [b"1"]
