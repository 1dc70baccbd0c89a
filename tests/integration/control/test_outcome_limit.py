"""The stored results of requests are limited for each client, and forgotten after their time."""

from __future__ import annotations

from qmd.client import new_message
from qmd.control_protocol.messages import Done, Outcome, Refused, Reply, Send
from qmd.control_protocol.transactions import Abort, Begin
from tests.integration.control.test_local_users import user
from tests.integration.managers import Hosts, hosted

ANN, BEN = 64_001, 64_002
LIMIT, AGE_S = 3, 60
TRANSACTIONS = {"outcomes_max": LIMIT, "outcome_age_s": float(AGE_S)}


def code_of(reply: Reply) -> str:
    return reply.code if isinstance(reply, Refused) else ""


@hosted
async def test_a_client_has_no_more_stored_results_than_the_limit(hosts: Hosts) -> None:
    a = await hosts.start(transactions=TRANSACTIONS)
    await a.create("orders")
    message = [new_message("orders", b"x")]
    ann, ben = await user(a, ANN), await user(a, BEN)

    for number in range(LIMIT):
        assert isinstance(await ann.ask(Send, message, b"token %d" % number), Done)
    for request in (
        (Send, message, b"another token"),
        (Begin, b"t" * 16, 60.0),
    ):
        assert code_of(await ann.ask(*request)) == "too_many_outcomes"

    # The client gets its results, and sends without one; others have their own share.
    outcome = await ann.ask(Outcome, b"token 1")
    assert isinstance(outcome, Done)
    assert outcome.result
    assert isinstance(await ann.ask(Send, message), Done)
    assert isinstance(await ben.ask(Send, message, b"token 1"), Done)
    assert a.queue("orders").messages == LIMIT + 2
    found = {each["client"]: each["outcomes"] for each in a.outcome_limit.status()}
    assert sorted(found.values()) == [1, LIMIT]

    a.environment.ahead_s += 2 * AGE_S
    assert isinstance(await ann.ask(Send, message, b"another token"), Done)
    ann.close()
    ben.close()


@hosted
async def test_a_transaction_that_has_begun_can_end_at_the_limit(hosts: Hosts) -> None:
    a = await hosts.start(transactions=TRANSACTIONS)
    await a.create("orders")
    message = [new_message("orders", b"x")]
    ann = await user(a, ANN)
    assert isinstance(await ann.ask(Begin, b"t" * 16, 60.0), Done)
    for number in range(LIMIT):
        assert isinstance(await ann.ask(Send, message, b"token %d" % number), Done)

    assert isinstance(await ann.ask(Abort, b"t" * 16, ""), Done)
    ann.close()
