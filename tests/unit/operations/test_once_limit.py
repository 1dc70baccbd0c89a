"""The number of stored results is limited for each client."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from qmd.errors import Refusal
from qmd.operations.once_limit import OnceLimit


def test_a_client_may_use_so_many_keys_in_the_time_for_which_they_are_kept() -> None:
    clock = SimpleNamespace(now_s=1_000_000)
    transactions = SimpleNamespace(once_max=3, outcome_age_s=600.0)
    services: Any = SimpleNamespace(
        clock=clock, settings=SimpleNamespace(transactions=transactions)
    )
    limit = OnceLimit(services)
    for _ in range(3):
        limit.check("sasl:ann")
        limit.count("sasl:ann")
        clock.now_s += 60
    with pytest.raises(Refusal) as refused:
        limit.check("sasl:ann")
    assert refused.value.code == "too_many_keys"
    limit.check("sasl:bob")
    for _ in range(5):  # an administrator
        limit.check("")
        limit.count("")
    clock.now_s += 480  # the first is forgotten, and two are not
    limit.check("sasl:ann")
    limit.count("sasl:ann")
    with pytest.raises(Refusal):
        limit.check("sasl:ann")
