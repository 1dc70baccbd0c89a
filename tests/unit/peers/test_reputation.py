"""Reputation of a connection."""

from __future__ import annotations

from qmd.peers.reputation import FLOOD_S, TRUST, USELESS_MAX, USELESS_WINDOW_S, Reputation


def test_enough_useful_packets_make_a_connection_trusted() -> None:
    reputation = Reputation(is_trusted=False)

    reputation.count_useful(TRUST - 1)
    assert not reputation.is_trusted

    reputation.count_useful(1)
    assert reputation.is_trusted


def test_a_window_of_duplicates_is_permitted_and_more_is_a_flood() -> None:
    reputation = Reputation(is_trusted=True)

    reputation.count_useless(USELESS_MAX, now=100.0)
    assert reputation.floods_until == 0.0

    reputation.count_useless(1, now=100.5)
    assert reputation.floods_until == 100.5 + FLOOD_S


def test_useless_packets_are_counted_anew_after_the_window_of_time() -> None:
    reputation = Reputation(is_trusted=True)

    reputation.count_useless(USELESS_MAX, now=100.0)
    reputation.count_useless(1, now=100.1 + USELESS_WINDOW_S)

    assert reputation.useless == 1
    assert reputation.floods_until == 0.0
