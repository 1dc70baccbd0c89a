"""An open session: messages, windows, acknowledgments, timers, and errors that end it."""

from __future__ import annotations

import pytest

from protocol import parse_user_message
from protocol.framing import PacketBuffer
from qmd.core.session import Acknowledged, Closed, MessageReceived, SessionSettings, SessionState
from tests.unit.core.session_traffic import send, take
from tests.unit.core.session_wire import (
    acks,
    header,
    message,
    only,
    open_session,
    packets,
    session_ack,
    with_ack,
)

BY_TIMER = SessionSettings(ack_at_once=False)


def ended(events: list[object]) -> str:
    assert isinstance(events[-1], Closed)
    assert not events[-1].clean
    return events[-1].reason


# Receiving messages.


def test_a_received_message_comes_with_its_packet_and_its_recoverable_number():
    session = open_session()

    events = take(session, "ert")
    assert [event.recoverable_number for event in events] == [0, 1, 2]
    assert [event.packet for event in events] == [
        message(1, "express"),
        message(2, "recoverable"),
        message(3, "transactional"),
    ]
    assert [event.message for event in events] == [
        parse_user_message(event.packet) for event in events
    ]
    assert session.incoming.received_count == 3


def test_the_session_header_is_cut_off_a_received_message():
    session = open_session()

    events = session.receive([with_ack(message(7), sent=1)], now=0.0)
    assert [event.packet for event in events] == [message(7)]


def test_a_malformed_message_ends_the_session_and_earlier_messages_are_delivered():
    session = open_session()
    wrong = bytearray(message(2))
    wrong[60] |= 0x60  # UserHeader.Flags.DM

    events = session.receive([message(1), bytes(wrong), message(3)], now=0.0)
    assert [type(event) for event in events] == [MessageReceived, Closed]
    assert "delivery" in ended(events)
    assert session.incoming.received_count == 1


def test_a_closed_session_receives_and_sends_nothing():
    session = open_session()
    take(session, "r")
    assert session.close("the peer closed the connection", now=1.0) == [
        Closed("the peer closed the connection", clean=True)
    ]

    assert session.receive([message()], now=1.0) == []
    session.mark_stored([1], now=1.0)

    assert session.handle_timer(now=1e9) == []
    assert session.close("again", now=1.0) == []
    assert (session.data_to_send(), session.next_timer(), session.room()) == (b"", None, 0)
    assert session.closed_reason == "the peer closed the connection"


def test_a_session_can_be_closed_for_a_fault_that_its_owner_found():
    assert open_session().close("no packet", now=0.0, clean=False) == [Closed("no packet", False)]


# Sending.


def test_sent_messages_leave_unchanged_and_in_order():
    session = open_session()
    send(session, "err")

    assert packets(session) == [
        message(1, "express"),
        message(2, "recoverable"),
        message(3, "recoverable"),
    ]
    assert (session.sent_count, session.unacknowledged) == (3, 3)
    assert session.data_to_send() == b""


@pytest.mark.parametrize(("own", "peer", "window"), [(5, 64, 5), (64, 5, 5), (64, 0, 1)])
def test_no_more_is_sent_than_the_smaller_window_allows(own, peer, window):
    session = open_session(SessionSettings(window_size=own), peer_window=peer)

    assert session.room() == window
    send(session, "e" * window)
    assert session.room() == 0
    session.receive([session_ack(1, window=peer)], now=0.0)
    assert session.room() == 1


def test_a_new_window_of_the_peer_applies_at_once():
    session = open_session()
    send(session, "eee")

    session.receive([session_ack(1, window=4)], now=0.0)
    assert (session.room(), session.peer_window) == (2, 4)
    session.receive([session_ack(1, window=1)], now=0.0)
    assert session.room() == 0
    session.receive([session_ack(3, window=0)], now=0.0)
    assert (session.room(), session.peer_window) == (1, 1)
    session.receive([session_ack(3, window=0xFFFF)], now=0.0)
    assert session.room() == 64


def test_a_peer_that_announces_a_small_window_is_acknowledged_often():
    session = open_session()
    take(session, "eee")
    assert acks(session) == []

    session.receive([session_ack(sent=3, window=1)], now=0.0)
    assert acks(session) == [header(3)]


def test_acknowledged_messages_are_reported_together_and_once():
    session = open_session()
    send(session, "erer")

    events = session.receive([session_ack(2), session_ack(4, 1, 0b11), session_ack(4)], now=0.0)
    assert events == [Acknowledged(["e1", "r2", "e3", "r4"])]
    assert session.unacknowledged == 0


def test_acknowledged_messages_are_reported_in_the_order_of_sending():
    session = open_session()
    send(session, "rere")

    events = session.receive([session_ack(4), session_ack(4, 1, 0b11)], now=0.0)
    assert events == [Acknowledged(["r1", "e2", "r3", "e4"])]


def test_the_acknowledgment_of_a_message_without_a_token_is_not_reported():
    session = open_session()
    session.send(message(), recoverable=False, token=None, now=0.0)
    send(session, "e")

    assert session.receive([session_ack(1)], now=0.0) == []
    assert session.receive([session_ack(2)], now=0.0) == [Acknowledged(["e1"])]


def test_an_acknowledgment_comes_before_the_messages_that_may_end_the_session():
    session = open_session()
    send(session, "er")

    events = session.receive([message(5), session_ack(2, 1, 1, sent=1)], now=0.0)
    assert [type(event) for event in events] == [Acknowledged, MessageReceived]


def test_an_acknowledgment_that_a_message_carries_counts_like_any_other():
    session = open_session()
    send(session, "er")

    events = session.receive([with_ack(message(5), 2, 1, 1, sent=1)], now=0.0)
    assert only(Acknowledged, events) == [Acknowledged(["e1", "r2"])]
    assert [event.packet for event in only(MessageReceived, events)] == [message(5)]


def test_a_window_that_opens_without_a_release_has_room():
    session = open_session(SessionSettings(window_size=2))
    send(session, "rr")

    assert session.receive([session_ack(2)], now=0.0) == []
    assert session.room() == 2


@pytest.mark.parametrize("wrong", [(3, 0, 0), (0xFFFF, 0, 0), (2, 2, 1), (2, 1, 0b11)])
def test_an_acknowledgment_of_unsent_messages_ends_the_session(wrong):
    session = open_session()
    send(session, "er")

    assert "were sent" in ended(session.receive([session_ack(*wrong)], now=0.0))


def test_counts_are_those_of_the_moment_the_header_left():
    session = open_session()
    stream = [message(1), message(2, "recoverable"), session_ack(sent=2, recoverable_sent=1)]
    stream.append(with_ack(message(3, "recoverable"), sent=3, recoverable_sent=2))

    assert len(only(MessageReceived, session.receive(stream, now=0.0))) == 3
    assert session.state is SessionState.OPEN


@pytest.mark.parametrize(("sent", "recoverable_sent"), [(1, 1), (3, 1), (2, 0), (2, 2)])
def test_counts_that_differ_end_the_session_after_the_message_was_delivered(sent, recoverable_sent):
    session = open_session()
    send(session, "e")
    stream = [
        message(1, "recoverable"),
        with_ack(message(2), 1, sent=sent, recoverable_sent=recoverable_sent),
        message(3),
    ]

    events = session.receive(stream, now=0.0)
    assert [type(event) for event in events] == [
        Acknowledged,
        MessageReceived,
        MessageReceived,
        Closed,
    ]
    assert [event.packet for event in only(MessageReceived, events)] == [
        message(1, "recoverable"),
        message(2),
    ]
    assert "counts do not match" in ended(events)


def test_counts_that_differ_in_a_session_ack_end_the_session():
    session = open_session()

    assert "counts do not match" in ended(session.receive([session_ack(sent=1)], now=0.0))


# Waiting for acknowledgments.


def test_a_session_with_a_silent_peer_ends_after_two_ack_timeouts():
    session = open_session(now=0.0)
    send(session, "e", now=1.0)
    assert session.next_timer() == 41.0

    assert session.handle_timer(now=41.0) == [], "the handshake was heard before"
    assert session.next_timer() == 81.0
    assert "acknowledgments are missing" in ended(session.handle_timer(now=81.0))


def test_the_factor_of_the_wait_is_a_setting():
    session = open_session(SessionSettings(ack_wait_factor=1.0), ack_ms=30_000)
    send(session, "e", now=1.0)

    assert session.next_timer() == 31.0


def test_any_packet_keeps_the_session_for_another_wait():
    session = open_session()
    send(session, "e", now=1.0)
    session.handle_timer(now=41.0)
    take(session, "e", now=60.0)
    session.handle_timer(now=70.0)

    assert session.handle_timer(now=81.0) == []
    assert "acknowledgments are missing" in ended(session.handle_timer(now=121.0))


def test_an_acknowledgment_starts_the_wait_anew_while_something_is_outstanding():
    session = open_session()
    send(session, "er", now=1.0)
    session.receive([session_ack(2)], now=30.0)
    assert session.next_timer() == 70.0, "the recoverable message is not stored there yet"

    session.receive([session_ack(2, 1, 1)], now=31.0)
    assert session.next_timer() == 300.0
    send(session, "e", now=50.0)
    assert session.next_timer() == 90.0


def test_messages_sent_later_do_not_put_off_the_wait():
    session = open_session()
    send(session, "e", now=1.0)
    send(session, "e", now=20.0)

    assert session.next_timer() == 41.0


# Idle.


def test_a_session_without_user_messages_is_closed_when_idle():
    session = open_session(now=0.0)
    session.receive([session_ack()], now=200.0)

    assert session.handle_timer(now=300.0) == [Closed("idle for 300 s", clean=True)]


@pytest.mark.parametrize("act", ["send", "receive"])
def test_a_session_with_user_messages_is_kept(act):
    session = open_session(now=0.0)
    if act == "send":
        send(session, "e", now=10.0)
        session.receive([session_ack(1)], now=11.0)
    else:
        take(session, "e", now=10.0)
        session.handle_timer(now=20.0)
    assert session.last_active == 10.0

    assert session.handle_timer(now=300.0) == []
    assert session.next_timer() == 600.0
    assert session.handle_timer(now=600.0) == [Closed("idle for 300 s", clean=True)]


# Long sessions.


def test_a_session_continues_when_its_counters_wrap():
    session = open_session()
    other = open_session()
    for count in range(0x10000 + 100):
        if session.room() == 0:
            assert other.receive(packets(session), now=0.0)
            session.receive(packets(other), now=0.0)
        session.send(message(count & 0xFFFF), recoverable=False, token=None, now=0.0)
    other.receive(PacketBuffer().feed(session.data_to_send()), now=0.0)

    assert session.sent_count == other.incoming.received_count == 0x10000 + 100
    other.handle_timer(now=10.0)
    session.receive(packets(other), now=10.0)
    assert (session.state, session.unacknowledged) == (SessionState.OPEN, 0)


@pytest.mark.parametrize("size", [0, 0x8000])
def test_a_window_that_16_bit_counters_cannot_carry_is_refused(size):
    with pytest.raises(ValueError, match=r"1 to 32767"):
        SessionSettings(window_size=size)
