"""Owners of queues: the number of queues that one may have."""

import pytest

from qmd.access.owners import Owners
from qmd.core.principals import parse_principal
from qmd.errors import Refusal

ANN, BOB = parse_principal("user:4711"), parse_principal("user:4712")


def test_an_owner_has_no_more_queues_than_its_limit_also_while_they_are_being_created() -> None:
    owners = Owners()
    owners.set(16, ANN)

    with owners.room(ANN, 2):
        with pytest.raises(Refusal, match="user:4711 has 2 queues"), owners.room(ANN, 2):
            pass
        with owners.room(BOB, 2), owners.room(ANN, None):
            pass
    with owners.room(ANN, 2):
        owners.set(17, ANN)
    with pytest.raises(Refusal), owners.room(ANN, 2):
        pass


def test_a_queue_that_is_deleted_or_given_away_makes_room() -> None:
    owners = Owners()
    owners.set(16, ANN)
    owners.set(17, ANN)

    owners.forget(16)
    owners.set(17, BOB)

    assert (owners.get(16), owners.get(17)) == (None, BOB)
    with owners.room(ANN, 1):
        pass
    with pytest.raises(Refusal), owners.room(BOB, 1):
        pass
