"""Offers to a peer that lacks room wait for the messages of that peer."""

from __future__ import annotations

from protocol import parse_user_message
from qmd.core.peer_instance import Lack
from qmd.core.session import SessionSettings
from qmd.peers.offers import QUIET_S, QUIET_WAIT_S_MAX, Offers
from tests.unit.core.session_traffic import take
from tests.unit.core.session_wire import message, open_session, packets


def test_a_peer_with_room_gets_messages_at_once():
    assert Offers(None).begin_at(open_session()) == 0.0


def test_messages_of_a_peer_that_lacks_room_go_first():
    session, offers = open_session(), Offers(Lack.RELAY)
    opened_at = session.opened_at

    assert offers.begin_at(session) == opened_at + QUIET_S
    session.receive([message(1)], now=opened_at + 0.5)
    assert offers.begin_at(session) == opened_at + 0.5 + QUIET_S
    session.receive([message(2)], now=opened_at + QUIET_WAIT_S_MAX - 0.5)
    assert offers.begin_at(session) == opened_at + QUIET_WAIT_S_MAX


def test_after_the_first_offer_no_other_waits():
    session, offers = open_session(), Offers(Lack.RELAY)
    offers.count(1)

    assert offers.begin_at(session) == 0.0


def test_a_session_acknowledges_before_its_next_message():
    session = open_session(SessionSettings(ack_at_once=False))
    take(session, "r")
    session.data_to_send()
    session.mark_stored([1], now=0.0)

    session.incoming.acknowledge_with_next(0.0)
    session.send(message(1), recoverable=True, token=None, now=0.0)

    (sent,) = packets(session)
    assert parse_user_message(sent).session is not None
    assert not session.incoming.pending
