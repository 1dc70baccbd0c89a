"""Messages to several queues: what worlds have found, and whether the judge can tell the copies."""

from __future__ import annotations

import pytest

from tests.simulation.applications import Queue
from tests.simulation.copies import Copies
from tests.simulation.oracle import Fate, Found, Oracle, Place, Sent, examine
from tests.simulation.stage import Stage

QUEUES = (Queue("orders", True), Queue("news", False), Queue("notes", False))


def here(host: str, *queues: str) -> str:
    return ",".join(f"DIRECT=OS:{host}\\private$\\{queue}" for queue in queues)


def test_a_body_that_every_queue_refuses_is_not_left_behind():
    """Dead letters have their bodies themselves; the one that was to be shared belonged to none."""
    with Stage("anna", queues=QUEUES) as stage:
        both = here("anna", "news", "notes")
        stage.act("anna", lambda qm: qm.send(both, bytes(2_000), delivery="transactional"))
        stage.wait(1.0)

        assert stage.bodies("anna", "system$;deadxact") == [bytes(2_000)] * 2
        assert examine(stage.host("anna").disk.image(durable=True), "anna")


def test_a_body_is_shared_by_those_that_are_taken():
    with Stage("anna", queues=QUEUES) as stage:
        three = here("anna", "orders", "news", "orders")
        stage.act("anna", lambda qm: qm.send(three, bytes(2_000), delivery="transactional"))
        stage.wait(1.0)

        assert stage.bodies("anna", "orders") == [bytes(2_000)] * 2
        assert stage.bodies("anna", "system$;deadxact") == [bytes(2_000)]
        assert examine(stage.host("anna").disk.image(durable=True), "anna")


def test_what_is_refused_is_told_behind_what_was_sent():
    """The second copy was told to be refused beside the first, and to be sent behind that."""
    with Stage("anna", queues=QUEUES) as stage:
        twice = here("anna", "orders", "news", "news", "notes")
        stage.act("anna", lambda qm: qm.send(twice, b"1", delivery="transactional"))
        stage.wait(1.0)

        found = examine(stage.host("anna").disk.image(durable=True), "anna", with_log=True)
        assert found.contradictions == []


# The judge.

GUID = bytes(16)


def test_copies_for_one_queue_are_told_apart_by_their_numbers():
    copies = Copies([("anna", "orders", 1), ("bert", "orders", 2), ("anna", "orders", 3)])

    assert copies.number_of("anna", "orders", (GUID, 70)) == 1
    assert copies.number_of("anna", "orders", (GUID, 72)) == 3
    assert copies.number_of("anna", "orders", (GUID, 70)) == 1
    assert copies.number_of("anna", "orders", (GUID, 73)) is None
    assert copies.number_of("carl", "orders", (GUID, 71)) is None


def test_what_was_seen_and_may_be_undone_is_forgotten():
    copies = Copies([("anna", "orders", 1), ("anna", "orders", 2)])
    before = copies.learned()
    copies.number_of("anna", "orders", (GUID, 70))
    copies.number_of("anna", "orders", (GUID, 71))

    copies.forget(before)

    assert copies.number_of("anna", "orders", (GUID, 80)) == 1
    assert copies.number_of("anna", "orders", (GUID, 81)) == 2


def sent(number: int, target: str) -> Sent:
    return Sent(
        number=number,
        stream=f"to {target}",
        source="anna",
        target=target,
        queue="orders",
        delivery="transactional",
        fate=Fate.RECEIVED,
        wants_dead_letter=True,
        wants_journal=False,
        request=1,
        lives=(0, 0),
    )


@pytest.fixture
def failures() -> list[str]:
    return []


@pytest.fixture
def oracle(failures) -> Oracle:
    return Oracle(failures.append, life_of=lambda name: 0)


def test_copies_of_which_one_is_nowhere_are_a_broken_promise(oracle, failures):
    """Though nobody was told that they are safe: all of them are sent, or none."""
    oracle.attempted_copies([sent(1, "bert"), sent(2, "carl")])

    oracle.check([Found({1: [Place("bert", "queue", "orders")]}, {}, {}, {})], at_the_end=False)

    assert failures == ["request 1 was done in part: of 1 to 2 there is no 2"]


def test_a_copy_too_many_is_a_broken_promise(oracle, failures):
    class Message:
        body = b"<message 1>"
        id = "00000000-0000-0000-0000-000000000000\\70"

    oracle.attempted_copies([sent(1, "bert"), sent(2, "carl")])
    assert oracle.number_of("bert", "orders", Message()) == 1

    Message.id = Message.id.replace("70", "71")
    oracle.number_of("bert", "orders", Message())

    assert failures == ["message 1 came to orders@bert more often than it was sent"]
