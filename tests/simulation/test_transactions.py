"""The oracle's view of transactions whose outcome their application does not know."""

from __future__ import annotations

import pytest

from tests.simulation.message_records import Outcome, Place, Sent
from tests.simulation.oracle_state import OracleState
from tests.simulation.transaction_oracle import TransactionOracle

TAKEN, FORWARDED = 1, 2


def verdict(
    places: dict[int, list[Place]], *, lifetime_s: int | None = None, wants_dead_letter: bool = True
) -> str:
    """Return the broken promise, if a transaction took one message and sent another one."""
    failures: list[str] = []
    state = OracleState(failures.append, life_of=lambda _: 0, was_full=lambda _: False)
    for number in (TAKEN, FORWARDED):
        state.messages[number] = Sent(
            number=number,
            stream="one",
            source="anna",
            target="anna",
            queue="private$\\work",
            delivery="transactional",
            outcome=Outcome.RECEIVED_OR_DEAD,
            wants_dead_letter=wants_dead_letter,
            wants_journal=False,
            request=number,
            lives=(0, 0),
            lifetime_s=lifetime_s if number == TAKEN else None,
        )
    transactions = TransactionOracle(state)
    transactions.committing([TAKEN], [state.messages[FORWARDED]])
    transactions.check_end({TAKEN: [], FORWARDED: []} | places)
    return "".join(failures)


def in_queue(number: int) -> dict[int, list[Place]]:
    return {number: [Place(host="anna", kind="queue", queue="private$\\work")]}


def test_a_transaction_is_done_as_a_whole_or_not_at_all() -> None:
    assert verdict(in_queue(TAKEN)) == ""
    assert verdict(in_queue(FORWARDED)) == ""
    assert "was done in part" in verdict(in_queue(TAKEN) | in_queue(FORWARDED))
    assert "are in no place" in verdict({})


@pytest.mark.parametrize("wants_dead_letter", [True, False])
def test_a_message_that_came_back_may_have_expired(wants_dead_letter: bool) -> None:
    found = verdict({}, lifetime_s=2, wants_dead_letter=wants_dead_letter)

    assert ("are in no place" in found) is wants_dead_letter  # otherwise it is a dead letter
