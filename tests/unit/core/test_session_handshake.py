"""The handshake of a session, byte for byte, and its refusals."""

from __future__ import annotations

import struct

import pytest

from protocol import parse_connection_parameters
from qmd.core.session import Closed, Opened, Session, SessionSettings, SessionState
from tests.unit.core.session_wire import (
    NOBODY,
    OWN_ID,
    PEER_ID,
    acceptor,
    connection_parameters,
    connection_request,
    connection_response,
    initiator,
    message,
    only,
    packets,
    session_ack,
)

# BaseHeader and InternalHeader in the form that network scanners recognise.
ESTABLISH_CONNECTION = bytes.fromhex("10 5A 0B 00 4C 49 4F 52 3C 02 00 00 FF FF FF FF 00 00 02 00")
REFUSAL = bytes.fromhex("10 5A 0B 00 4C 49 4F 52 3C 02 00 00 FF FF FF FF 00 00 12 00")
PARAMETERS = bytes.fromhex("10 5A 0B 00 4C 49 4F 52 20 00 00 00 FF FF FF FF 00 00 03 00")


def closed_reason(events: list[object]) -> str:
    assert [type(event) for event in events] == [Closed]
    assert events[0].clean is False
    return events[0].reason


# The initiator.


def test_the_connection_request_is_laid_out_as_published():
    session = initiator(now=12.345)

    request = session.data_to_send()
    assert request[:60] == (
        ESTABLISH_CONNECTION
        + OWN_ID
        + NOBODY
        + struct.pack("<I", 12345)
        + bytes.fromhex("10 03 00 00")
    )
    assert len(request) == 572
    assert session.state is SessionState.WAITING_ECR


def test_the_time_stamp_of_the_request_wraps_at_32_bits():
    session = initiator(now=2**32 / 1000 + 1)

    assert session.data_to_send()[52:56] == struct.pack("<I", 1000)


def test_the_request_names_the_expected_queue_manager():
    assert initiator(expected_remote=PEER_ID).data_to_send()[36:52] == PEER_ID


def test_the_initiator_proposes_its_time_outs_and_window():
    session = initiator(SessionSettings(window_size=300, ack_timeout_s=30.0))
    session.data_to_send()

    assert session.receive([connection_response()], now=0.2) == []
    assert session.state is SessionState.WAITING_CPR
    assert session.data_to_send() == PARAMETERS + struct.pack("<IIHH", 1600, 30_000, 0, 300)


@pytest.mark.parametrize(
    ("round_trip_s", "proposed_ms"),
    [(0.0, 500), (0.0625, 500), (0.1, 800), (14.999, 119_992), (15.0, 120_000), (59.0, 120_000)],
)
def test_stored_messages_are_acknowledged_within_eight_round_trips(round_trip_s, proposed_ms):
    session = initiator(now=1000.0)
    session.data_to_send()
    session.receive([connection_response()], now=1000.0 + round_trip_s)

    parameters = parse_connection_parameters(session.data_to_send())
    assert parameters.recoverable_ack_timeout == proposed_ms


def test_time_outs_on_the_wire_are_in_range_for_all_settings():
    session = initiator(SessionSettings(ack_timeout_s=1.0, recoverable_ack_min_s=0.01))
    session.data_to_send()
    session.receive([connection_response()], now=0.0)

    parameters = parse_connection_parameters(session.data_to_send())
    assert (parameters.recoverable_ack_timeout, parameters.ack_timeout) == (500, 20_000)


def test_the_initiator_is_open_after_the_reply_to_its_parameters():
    session = initiator()
    session.receive([connection_response()], now=0.1)
    assert (session.remote_id, session.opened_at, session.room()) == (None, None, 0)

    assert session.receive([connection_parameters(32)], now=0.2) == [Opened(PEER_ID)]
    assert session.state is SessionState.OPEN
    assert (session.remote_id, session.opened_at, session.room()) == (PEER_ID, 0.2, 32)


def test_the_expected_queue_manager_is_accepted():
    session = initiator(expected_remote=PEER_ID)

    session.receive([connection_response()], now=0.1)
    assert session.state is SessionState.WAITING_CPR


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (connection_response(refused=True), "the peer refused the session"),
        (connection_response(client=PEER_ID), "did not send"),
        (connection_response(server=OWN_ID), "another queue manager"),
    ],
)
def test_the_initiator_closes_after_a_refusal_or_a_reply_of_another_queue_manager(response, reason):
    session = initiator(expected_remote=PEER_ID)
    session.data_to_send()

    assert reason in closed_reason(session.receive([response], now=0.1))
    assert session.data_to_send() == b""


def test_refused_parameters_end_the_session():
    session = initiator()
    session.receive([connection_response()], now=0.1)

    events = session.receive([connection_parameters(refused=True)], now=0.2)
    assert closed_reason(events) == "the peer refused the session"


# The acceptor.


@pytest.mark.parametrize("server", [NOBODY, OWN_ID])
@pytest.mark.parametrize("no_ping", [True, False])
def test_the_connection_response_is_laid_out_as_published(server, no_ping):
    session = acceptor()

    assert session.receive([connection_request(server, no_ping=no_ping)], now=0.0) == []
    assert session.data_to_send() == (
        ESTABLISH_CONNECTION
        + PEER_ID
        + OWN_ID
        + bytes.fromhex("4E CA DE 1D" + ("10 03 00 00" if no_ping else "10 02 00 00"))
        + b"\x5a" * 512
    )
    assert session.state is SessionState.WAITING_CP


def test_a_request_for_another_queue_manager_is_answered_with_a_refusal():
    session = acceptor()

    events = session.receive([connection_request(bytes([7] * 16)), message()], now=0.0)
    assert "another queue manager" in closed_reason(events)
    assert session.data_to_send() == (
        REFUSAL + PEER_ID + OWN_ID + bytes.fromhex("4E CA DE 1D 10 03 00 00") + b"\x5a" * 512
    )
    assert session.state is SessionState.CLOSED


def test_one_session_too_many_is_answered_with_a_refusal():
    session = acceptor(refuse=True)

    events = session.receive([connection_request()], now=0.0)
    assert "too many sessions" in closed_reason(events)
    assert session.data_to_send().startswith(REFUSAL)


def test_a_request_that_refuses_itself_is_not_answered():
    session = acceptor()

    assert "refused" in closed_reason(session.receive([connection_request(refused=True)], now=0.0))
    assert session.data_to_send() == b""


def test_the_acceptor_echoes_the_time_outs_and_announces_its_own_window():
    session = acceptor(SessionSettings(window_size=100))
    session.receive([connection_request()], now=0.0)
    session.data_to_send()
    request = connection_parameters(50, recoverable_ack_ms=7, ack_ms=4_000_000_000)

    assert session.receive([request], now=0.1) == [Opened(PEER_ID)]
    assert session.data_to_send() == (PARAMETERS + struct.pack("<IIHH", 7, 4_000_000_000, 0, 100))
    assert (session.room(), session.peer_window) == (50, 50)


@pytest.mark.parametrize(
    ("ack_ms", "used_s"), [(0, 10.0), (20_000, 10.0), (60_000, 30.0), (4_000_000_000, 60.0)]
)
def test_the_acceptor_uses_the_proposed_ack_timeout_within_its_range(ack_ms, used_s):
    session = acceptor()
    session.receive([connection_request(), connection_parameters(ack_ms=ack_ms)], now=0.0)

    session.receive([message()], now=0.0)
    assert session.next_timer() == used_s


@pytest.mark.parametrize(
    ("recoverable_ack_ms", "used_s"), [(0, 0.5), (500, 0.5), (2000, 2.0), (4_000_000_000, 60.0)]
)
def test_the_acceptor_uses_the_proposed_delay_within_its_range(recoverable_ack_ms, used_s):
    session = acceptor()
    parameters = connection_parameters(recoverable_ack_ms=recoverable_ack_ms, ack_ms=120_000)
    session.receive([connection_request(), parameters], now=0.0)

    session.receive([message(kind="recoverable")], now=0.0)
    assert session.next_timer() == used_s, "60 s is half the AckTimeout, which is less than 120 s"


def test_a_window_of_zero_counts_as_one():
    session = acceptor()
    session.receive([connection_request(), connection_parameters(0)], now=0.0)

    assert (session.room(), session.peer_window) == (1, 1)


def test_messages_may_follow_the_parameters_at_once():
    session = acceptor()
    stream = [connection_request(), connection_parameters(), message(1), message(2)]

    events = session.receive(stream, now=0.0)
    assert [type(event).__name__ for event in events] == [
        "Opened",
        "MessageReceived",
        "MessageReceived",
    ]
    assert session.incoming.received_count == 2


def test_parameters_that_are_a_refusal_end_the_session():
    session = acceptor()
    session.receive([connection_request()], now=0.0)

    events = session.receive([connection_parameters(refused=True)], now=0.0)
    assert closed_reason(events) == "the peer refused the session"


# Both.


def waiting_ec() -> Session:
    return acceptor()


def waiting_cp() -> Session:
    session = acceptor()
    session.receive([connection_request()], now=0.0)
    return session


def waiting_ecr() -> Session:
    return initiator()


def waiting_cpr() -> Session:
    session = initiator()
    session.receive([connection_response()], now=0.0)
    return session


def opened() -> Session:
    session = waiting_cp()
    session.receive([connection_parameters()], now=0.0)
    return session


ESTABLISH = connection_request()


@pytest.mark.parametrize(
    ("begin", "packet"),
    [
        (waiting_ec, connection_parameters()),
        (waiting_ec, session_ack()),
        (waiting_ec, message()),
        (waiting_ecr, connection_parameters()),
        (waiting_ecr, session_ack()),
        (waiting_ecr, message()),
        (waiting_cp, ESTABLISH),
        (waiting_cp, session_ack()),
        (waiting_cp, message()),
        (waiting_cpr, ESTABLISH),
        (waiting_cpr, session_ack()),
        (waiting_cpr, message()),
        (opened, ESTABLISH),
        (opened, connection_parameters()),
    ],
)
def test_a_packet_that_is_not_allowed_now_ends_the_session(begin, packet):
    session = begin()
    session.data_to_send()
    state = session.state

    reason = closed_reason(session.receive([packet, message()], now=0.0))
    assert reason.startswith("the peer sent ")
    assert reason.endswith(f"while the session was {state.value}")
    assert session.closed_reason == reason
    assert (session.room(), session.next_timer(), session.data_to_send()) == (0, None, b"")


def test_an_invalid_packet_ends_the_session_with_the_name_of_the_field():
    session = acceptor()
    wrong = bytearray(connection_request())
    wrong[18] = 9  # InternalHeader.Flags.PT

    reason = closed_reason(session.receive([bytes(wrong)], now=0.0))
    assert reason.startswith("malformed packet: ")
    assert "packet_type" in reason


def test_an_acceptor_waits_for_the_request_and_again_for_the_parameters():
    session = acceptor(SessionSettings(initialization_timeout_s=60.0), now=5.0)
    assert session.next_timer() == 65.0
    session.receive([connection_request()], now=40.0)
    assert session.next_timer() == 100.0

    assert session.handle_timer(now=99.9) == []
    events = session.handle_timer(now=100.0)
    assert closed_reason(events) == ("no session after 60 s: waiting for the connection parameters")


def test_an_initiator_waits_once_for_the_whole_handshake():
    session = initiator(SessionSettings(initialization_timeout_s=60.0), now=5.0)
    session.receive([connection_response()], now=40.0)
    assert session.next_timer() == 65.0

    assert "waiting for the answer" in closed_reason(session.handle_timer(now=65.0))


def test_an_open_session_has_no_handshake_timer():
    session = opened()

    assert session.next_timer() == 300.0
    assert session.handle_timer(now=70.0) == []


def test_two_sessions_complete_their_handshake():
    settings = SessionSettings(window_size=10)
    first = initiator(settings, expected_remote=PEER_ID)
    second = Session(initiator=False, own_id=PEER_ID, settings=SessionSettings(), now=0.0)

    second.receive(packets(first), now=0.1)
    first.receive(packets(second), now=0.2)
    assert only(Opened, second.receive(packets(first), now=0.3)) == [Opened(OWN_ID)]
    assert only(Opened, first.receive(packets(second), now=0.4)) == [Opened(PEER_ID)]
    assert (first.room(), second.room()) == (10, 10)
    assert (first.peer_window, second.peer_window) == (64, 10)
