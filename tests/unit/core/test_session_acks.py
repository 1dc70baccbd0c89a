"""Acknowledgments for received messages: counts, 32 flags, the timer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qmd.core.session_acks import SessionAcks
from qmd.core.session_events import NEVER, SessionOver
from tests.unit.core.session_wire import header


def received(kinds: str, *, start: int = 0) -> SessionAcks:
    acks = SessionAcks(received_count=start, recoverable_received_count=start)
    for kind in kinds:
        acks.count(recoverable=kind == "r")
    return acks


def test_recoverable_messages_are_numbered_from_one_and_express_ones_have_no_number():
    acks = SessionAcks()

    assert [acks.count(recoverable=kind == "r") for kind in "erre"] == [0, 1, 2, 0]
    assert (acks.received_count, acks.recoverable_received_count) == (4, 2)


def test_an_acknowledgment_counts_all_received_messages_once():
    acks = received("ere")

    assert (acks.unacknowledged, acks.pending) == (3, True)
    assert acks.take() == (3, 0, 0)
    assert (acks.unacknowledged, acks.pending) == (0, False)


def test_no_flag_is_set_before_the_message_is_stored():
    acks = received("rr")

    assert acks.take() == (2, 0, 0)
    acks.mark_stored([1])
    assert acks.take() == (2, 1, 0b1)
    acks.mark_stored([2])
    assert acks.take() == (2, 2, 0b1)


def test_three_stored_messages_after_five_acknowledged_ones_match_the_example():
    acks = received("rrrrreeee")
    acks.mark_stored([1, 2, 3, 4, 5])
    acks.take()
    for _ in range(3):
        acks.count(recoverable=True)
    acks.mark_stored([6, 7, 8])

    assert acks.take() == (12, 6, 0x7)


def test_no_acknowledgment_goes_beyond_a_message_that_is_not_stored_yet():
    """The peer forgets all messages up to the number at which an acknowledgment begins."""
    acks = received("rrrr")
    acks.take()

    acks.mark_stored([2, 4])
    assert not acks.pending
    acks.mark_stored([1])
    assert acks.take() == (4, 1, 0b11)
    acks.mark_stored([3])
    assert acks.take() == (4, 3, 0b11)


def test_reporting_a_message_as_stored_again_changes_nothing():
    acks = received("rrr")

    acks.mark_stored([2])
    acks.mark_stored([1, 2, 1])
    assert acks.take() == (3, 1, 0b11)
    acks.mark_stored([1, 2])
    assert not acks.pending
    acks.mark_stored([3])
    assert acks.take() == (3, 3, 0b1)


def test_one_acknowledgment_names_32_stored_messages_and_the_next_one_the_33rd():
    acks = received("r" * 33)
    acks.mark_stored(range(1, 34))

    assert acks.take() == (33, 1, 0xFFFFFFFF)
    assert acks.pending
    assert acks.take() == (33, 33, 0b1)
    assert not acks.pending


def test_numbers_on_the_wire_have_16_bits_and_those_inside_do_not():
    acks = SessionAcks(received_count=0xFFFE, recoverable_received_count=0xFFFE)

    assert [acks.count(recoverable=True) for _ in range(3)] == [0xFFFF, 0x10000, 0x10001]
    acks.mark_stored([0xFFFF])
    assert acks.take() == (1, 0xFFFF, 0b1)
    acks.mark_stored([0x10000, 0x10001])
    assert acks.take() == (1, 0, 0b11)


@pytest.mark.parametrize("start", [0, 0xFFFF, 0x1FFFE])
def test_counts_are_compared_on_16_bits(start):
    acks = received("rer", start=start)

    acks.check_counts(header(sent=start + 3 & 0xFFFF, recoverable_sent=start + 2 & 0xFFFF))


@pytest.mark.parametrize(("sent", "recoverable_sent"), [(2, 2), (4, 2), (3, 1), (3, 3), (0, 0)])
def test_counts_that_differ_end_the_session(sent, recoverable_sent):
    acks = received("rer")

    with pytest.raises(SessionOver, match=r"3 were received \(2 recoverable\)"):
        acks.check_counts(header(sent=sent, recoverable_sent=recoverable_sent))


def test_the_timer_may_be_set_earlier_but_not_later():
    acks = received("e")

    assert (acks.due, acks.piggyback_after) == (NEVER, NEVER)
    acks.acknowledge_within(10.0, now=0.0)
    assert (acks.due, acks.piggyback_after) == (10.0, 7.5)
    acks.acknowledge_within(10.0, now=2.0)
    assert (acks.due, acks.piggyback_after) == (10.0, 7.5)
    acks.acknowledge_within(1.0, now=4.0)
    assert (acks.due, acks.piggyback_after) == (5.0, 4.75)


def test_the_timer_runs_until_everything_is_acknowledged():
    acks = received("r" * 33)
    acks.mark_stored(range(1, 34))
    acks.acknowledge_within(1.0, now=0.0)

    acks.take()
    assert (acks.due, acks.piggyback_after) == (1.0, 0.75)
    acks.take()
    assert (acks.due, acks.piggyback_after) == (NEVER, NEVER)


@given(st.integers(1, 100), st.randoms(use_true_random=False), st.sampled_from([0, 0xFFE0]))
def test_in_any_order_of_storing_only_a_stored_prefix_is_acknowledged(count, random, start):
    acks = received("r" * count, start=start)
    acks.take()
    numbers = list(range(start + 1, start + count + 1))
    random.shuffle(numbers)
    stored: set[int] = set()
    acknowledged = start
    while numbers:
        some = [numbers.pop() for _ in range(random.randint(1, len(numbers)))]
        acks.mark_stored(some)
        stored |= set(some)
        while acks.pending:
            _, first, flags = acks.take()
            assert first == acknowledged + 1 & 0xFFFF
            assert flags & 1
            assert flags & flags + 1 == 0, "no hole"
            acknowledged += flags.bit_length()
            assert stored.issuperset(range(start + 1, acknowledged + 1))

    assert acknowledged == start + count
