"""An open session: messages, windows, acknowledgments, timers, and errors that end it."""

from __future__ import annotations

import pytest

from protocol import (
    BaseFlags,
    parse_user_message,
)
from protocol.framing import PacketBuffer
from qmd.core.session import (
    Acknowledged,
    Closed,
    MessageReceived,
    Session,
    SessionSettings,
    SessionState,
)
from tests.unit.core.session_wire import (
    acks,
    header,
    message,
    only,
    open_session,
    order_ack,
    packets,
    session_ack,
    with_ack,
)

BY_TIMER = SessionSettings(ack_at_once=False)


def take(session: Session, kinds: str, now: float = 0.0) -> list[MessageReceived]:
    """Give messages to the session: "e" express, "r" recoverable, "t" transactional.

    Returns the events of the received messages.
    """
    names = {"e": "express", "r": "recoverable", "t": "transactional"}
    stream = [message(at, names[kind]) for at, kind in enumerate(kinds, 1)]
    return only(MessageReceived, session.receive(stream, now))


def send(session: Session, kinds: str, now: float = 0.0) -> None:
    """Send messages over the session; their tokens are e1, r2 and so on."""
    for at, kind in enumerate(kinds, 1):
        packet = message(at, "express" if kind == "e" else "recoverable")
        session.send(packet, recoverable=kind != "e", token=f"{kind}{at}", now=now)


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
    assert session.received_count == 3


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
    assert session.received_count == 1


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
        MessageReceived,
        MessageReceived,
        Acknowledged,
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

    assert session.sent_count == other.received_count == 0x10000 + 100
    other.handle_timer(now=10.0)
    session.receive(packets(other), now=10.0)
    assert (session.state, session.unacknowledged) == (SessionState.OPEN, 0)


@pytest.mark.parametrize("size", [0, 0x8000])
def test_a_window_that_16_bit_counters_cannot_carry_is_refused(size):
    with pytest.raises(ValueError, match=r"1 to 32767"):
        SessionSettings(window_size=size)
