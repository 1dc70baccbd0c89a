"""Acknowledgments of received messages: when they leave, alone or with a message."""

from __future__ import annotations

import pytest

from protocol import BaseFlags, parse_user_message
from qmd.core.session import SessionSettings
from qmd.core.session_events import Closed
from tests.unit.core.session_traffic import send, take
from tests.unit.core.session_wire import (
    acks,
    header,
    initiator,
    message,
    only,
    open_session,
    order_ack,
    packets,
    session_ack,
    with_ack,
)

BY_TIMER = SessionSettings(ack_at_once=False)


# Acknowledging received messages.


def test_an_express_message_is_acknowledged_after_half_the_ack_timeout():
    session = open_session(ack_ms=30_000)

    take(session, "e", now=1.0)
    take(session, "e", now=2.0)
    assert session.next_timer() == 16.0
    assert session.handle_timer(now=15.9) == []
    assert acks(session) == []
    assert session.handle_timer(now=16.0) == []
    assert acks(session) == [header(2)]
    assert session.next_timer() == 300.0, "nothing is left to acknowledge"


def test_a_recoverable_message_is_acknowledged_sooner_but_not_as_stored():
    session = open_session(recoverable_ack_ms=700)
    take(session, "e", now=1.0)
    take(session, "r", now=2.0)
    take(session, "r", now=2.5)
    assert session.next_timer() == 2.7

    session.handle_timer(now=2.7)
    assert acks(session) == [header(3, 0, 0)]


def test_stored_messages_are_acknowledged_at_once():
    session = open_session()
    take(session, "rer")
    assert acks(session) == []

    session.mark_stored([1, 2], now=0.0)
    assert acks(session) == [header(3, 1, 0b11)]
    assert session.next_timer() == 300.0


def test_more_than_32_stored_messages_need_several_acknowledgments():
    session = open_session(SessionSettings(window_size=1000), peer_window=1000)
    take(session, "r" * 70)
    session.data_to_send()

    session.mark_stored(range(1, 71), now=0.0)
    assert acks(session) == [
        header(70, 1, 0xFFFFFFFF, window=1000),
        header(70, 33, 0xFFFFFFFF, window=1000),
        header(70, 65, 0b111111, window=1000),
    ]


def test_messages_stored_out_of_order_wait_for_the_one_before_them():
    session = open_session()
    take(session, "rrr")

    session.mark_stored([2, 3], now=0.0)
    assert acks(session) == []
    session.mark_stored([1], now=0.0)
    assert acks(session) == [header(3, 1, 0b111)]


def test_stored_messages_are_acknowledged_by_the_timer_if_that_is_set():
    session = open_session(BY_TIMER, recoverable_ack_ms=700)
    take(session, "rr", now=1.0)
    session.mark_stored([1], now=1.1)
    assert acks(session) == []

    session.handle_timer(now=1.7)
    assert acks(session) == [header(2, 1, 0b1)]
    session.mark_stored([2], now=5.0)
    assert session.next_timer() == 5.7
    session.handle_timer(now=5.7)
    assert acks(session) == [header(2, 2, 0b1)]


def test_stored_messages_never_wait_longer_than_express_ones():
    """A distant peer may propose up to 120 s, but gives up the session after 40 s."""
    session = open_session(BY_TIMER, recoverable_ack_ms=120_000)
    take(session, "r", now=0.0)
    assert session.next_timer() == 10.0
    session.handle_timer(now=10.0)

    session.mark_stored([1], now=11.0)
    assert session.next_timer() == 21.0


def test_32_stored_messages_do_not_wait_for_the_timer():
    session = open_session(BY_TIMER)
    take(session, "r" * 32)
    session.data_to_send()

    session.mark_stored(range(1, 32), now=0.0)
    assert acks(session) == []
    session.mark_stored([32], now=0.0)
    assert acks(session) == [header(32, 1, 0xFFFFFFFF)]


@pytest.mark.parametrize(
    ("own", "peer", "half"),
    [(64, 64, 32), (10, 64, 5), (64, 10, 5), (3, 3, 1), (1, 1, 1), (64, 0, 1), (300, 300, 32)],
)
def test_receipt_is_acknowledged_at_half_of_the_window_that_the_peer_may_use(own, peer, half):
    session = open_session(SessionSettings(window_size=own), peer_window=peer)

    take(session, "e" * (half - 1))
    assert acks(session) == []
    take(session, "e")
    assert acks(session) == [header(half, window=own)]


def test_many_messages_at_once_are_acknowledged_once():
    session = open_session()

    take(session, "e" * 64)
    assert acks(session) == [header(64)]


def test_a_session_ack_is_laid_out_as_published():
    session = open_session(peer_window=1)
    take(session, "e")

    assert session.data_to_send() == bytes.fromhex(
        "10 5A 1B 00 4C 49 4F 52 24 00 00 00 FF FF FF FF 00 00 01 00"
        "01 00 00 00 00 00 00 00 00 00 00 00 40 00 00 00"
    )


def test_an_acknowledgment_has_the_count_of_earlier_messages():
    session = open_session(peer_window=8)
    send(session, "ere")
    take(session, "eeee")

    assert acks(session) == [header(4, sent=3, recoverable_sent=1)]


# Piggybacking.


def test_a_message_carries_the_acknowledgment_when_the_timer_has_run_for_three_quarters():
    session = open_session()  # the timer runs for half of 20 s
    take(session, "e", now=0.0)
    session.send(message(1), recoverable=False, token=None, now=7.5)
    session.send(message(2, "recoverable"), recoverable=True, token=None, now=7.6)
    session.send(message(3), recoverable=False, token=None, now=7.7)

    first, second, third = packets(session)
    assert (first, third) == (message(1), message(3))
    assert second == with_ack(message(2, "recoverable"), 1, sent=2, recoverable_sent=1)
    assert session.next_timer() == 47.5, "only the wait for acknowledgments is left"


def test_a_carried_acknowledgment_counts_as_one():
    session = open_session(BY_TIMER, peer_window=8)
    take(session, "rrr", now=0.0)
    session.mark_stored([1, 2], now=0.0)
    session.send(message(), recoverable=False, token=None, now=0.4)
    assert packets(session) == [with_ack(message(), 3, 1, 0b11, sent=1)]

    session.mark_stored([3], now=0.5)
    session.handle_timer(now=1.0)
    assert acks(session) == [header(3, 3, 0b1, sent=1)]


def test_no_acknowledgment_is_carried_when_none_is_due():
    session = open_session()
    take(session, "e", now=0.0)
    session.handle_timer(now=10.0)
    session.data_to_send()

    session.send(message(), recoverable=False, token=None, now=19.9)
    assert packets(session) == [message()]


def test_an_order_ack_carries_no_acknowledgment_but_is_preceded_by_it():
    """An order ack is recognised by the absence of all flags.  [MS-MQQB] 3.1.5.1.1"""
    session = open_session()
    take(session, "e", now=0.0)
    session.send(order_ack(), recoverable=True, token=None, now=9.0)

    first, second = packets(session)
    assert first == session_ack(1)
    assert second == order_ack()
    assert parse_user_message(second).base.flags == BaseFlags(0)


# Pausing.


def test_a_pause_acknowledges_everything_and_announces_a_window_of_one_message():
    """[MS-MQQB] 3.1.7.13"""
    session = open_session(BY_TIMER)
    take(session, "err", now=0.0)
    session.mark_stored([1, 2], now=0.0)
    send(session, "e")
    session.data_to_send()

    session.pause()

    assert acks(session) == [header(3, 1, 0b11, sent=1, window=1)]
    take(session, "e", now=1.0)
    session.handle_timer(now=100.0)
    assert acks(session)[-1].window_size > 1, "the next acknowledgment opens the window again"


def test_a_paused_session_may_end_as_idle_and_a_resumed_one_is_used():
    """[MS-MQQB] 3.1.7.13, 3.1.7.14 SessionActive"""
    paused, resumed = open_session(), open_session()
    for session in (paused, resumed):
        take(session, "e", now=0.0)
        session.handle_timer(now=10.0)
        session.pause()
    resumed.resume()

    due = paused._settings.cleanup_timeout_s
    assert only(Closed, paused.handle_timer(due))
    assert not only(Closed, resumed.handle_timer(due))


def test_a_session_that_is_not_open_announces_no_pause():
    session = initiator()
    session.data_to_send()

    session.pause()

    assert session.data_to_send() == b""
