"""Messages to several queues: faults that worlds have found, and the oracle's view of copies."""

from __future__ import annotations

import pytest

from tests.simulation.applications import Queue
from tests.simulation.database_examination import examine
from tests.simulation.message_copies import Copies
from tests.simulation.message_records import Found, Outcome, Place, Sent
from tests.simulation.oracle import Oracle
from tests.simulation.scenario import Scenario

QUEUES = (Queue("orders", True), Queue("news", False), Queue("notes", False))


def here(host: str, *queues: str) -> str:
    return ",".join(f"DIRECT=OS:{host}\\private$\\{queue}" for queue in queues)


def test_a_body_that_every_queue_refuses_is_removed():
    """Dead letters have bodies of their own; the shared one belonged to none of them."""
    with Scenario("anna", queues=QUEUES) as scenario:
        both = here("anna", "news", "notes")
        scenario.act("anna", lambda qm: qm.send(both, bytes(2_000), delivery="transactional"))
        scenario.wait(1.0)

        assert scenario.bodies("anna", "system$;deadxact") == [bytes(2_000)] * 2
        assert examine(scenario.host("anna").disk.image(durable=True), "anna")


def test_accepted_copies_share_a_body():
    with Scenario("anna", queues=QUEUES) as scenario:
        three = here("anna", "orders", "news", "orders")
        scenario.act("anna", lambda qm: qm.send(three, bytes(2_000), delivery="transactional"))
        scenario.wait(1.0)

        assert scenario.bodies("anna", "orders") == [bytes(2_000)] * 2
        assert scenario.bodies("anna", "system$;deadxact") == [bytes(2_000)]
        assert examine(scenario.host("anna").disk.image(durable=True), "anna")


def test_the_log_reports_refused_copies_in_order():
    """The log had the refusal of the second copy beside the first, and its sending after it."""
    with Scenario("anna", queues=QUEUES) as scenario:
        twice = here("anna", "orders", "news", "news", "notes")
        scenario.act("anna", lambda qm: qm.send(twice, b"1", delivery="transactional"))
        scenario.wait(1.0)

        found = examine(scenario.host("anna").disk.image(durable=True), "anna", with_log=True)
        assert found.contradictions == []


# The oracle.

GUID = bytes(16)


def test_copies_for_one_queue_differ_by_their_numbers():
    copies = Copies([("anna", "orders", 1), ("bert", "orders", 2), ("anna", "orders", 3)])

    assert copies.number_of("anna", "orders", (GUID, 70)) == 1
    assert copies.number_of("anna", "orders", (GUID, 72)) == 3
    assert copies.number_of("anna", "orders", (GUID, 70)) == 1
    assert copies.number_of("anna", "orders", (GUID, 73)) is None
    assert copies.number_of("carl", "orders", (GUID, 71)) is None


def test_identities_that_may_be_undone_are_forgotten():
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
        outcome=Outcome.RECEIVED,
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


def test_a_missing_copy_is_a_broken_promise(oracle, failures):
    """All copies are sent or none, even without a confirmation."""
    oracle.attempted_copies([sent(1, "bert"), sent(2, "carl")])

    oracle.check([Found({1: [Place("bert", "queue", "orders")]}, {}, {}, {})], at_the_end=False)

    assert failures == ["request 1 was done in part: of 1 to 2 there is no 2"]


def test_an_extra_copy_is_a_broken_promise(oracle, failures):
    class Message:
        body = b"<message 1>"
        id = "00000000-0000-0000-0000-000000000000\\70"

    oracle.attempted_copies([sent(1, "bert"), sent(2, "carl")])
    assert oracle.number_of("bert", "orders", Message()) == 1

    Message.id = Message.id.replace("70", "71")
    oracle.number_of("bert", "orders", Message())

    assert failures == ["message 1 came to orders@bert more often than it was sent"]
