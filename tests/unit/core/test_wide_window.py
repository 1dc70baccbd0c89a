"""Sessions between two queue managers of qmd: a wide window, and fewer acknowledgments."""

from __future__ import annotations

import pytest

from protocol import PacketKind, packet_kind, parse_session_ack
from protocol.framing import PacketBuffer
from qmd.core.peer_instance import Instance
from qmd.core.session import Acknowledged, MessageReceived, Session, SessionSettings, SessionState
from qmd.core.session_events import USUAL_WINDOW
from tests.unit.core.session_wire import OWN_ID, PEER_ID, message, only

WIDE = 1000


def end(
    *, initiator: bool, own_id: bytes, is_qmd: bool = True, window: int = 64, wide: int = WIDE
) -> Session:
    return Session(
        initiator=initiator,
        own_id=own_id,
        settings=SessionSettings(window_size=window, wide_window_size=wide),
        now=0.0,
        instance=Instance(1, own_id) if is_qmd else None,
    )


def sent_by(session: Session) -> list[bytes]:
    return PacketBuffer().feed(session.data_to_send())


def opened(a: Session, b: Session) -> tuple[Session, Session]:
    """Open the session between two ends, the first of which begins it."""
    a.start(0.0)
    while a.state is not SessionState.OPEN or b.state is not SessionState.OPEN:
        b.receive(sent_by(a), 0.0)
        a.receive(sent_by(b), 0.0)
    return a, b


def pair(**settings: int) -> tuple[Session, Session]:
    return opened(
        end(initiator=True, own_id=OWN_ID, **settings),
        end(initiator=False, own_id=PEER_ID, **settings),
    )


def fill(session: Session, number: int) -> int:
    """Send recoverable messages, as many as the window permits; return how many."""
    count = session.room()
    for at in range(number, number + count):
        session.send(message(at, "recoverable"), recoverable=True, token=at, now=0.0)
    return count


def store(session: Session, packets: list[bytes]) -> None:
    events = only(MessageReceived, session.receive(packets, 0.0))
    session.mark_stored([each.recoverable_number for each in events], 0.0)


def test_the_window_doubles_while_it_is_full() -> None:
    a, b = pair()
    sizes, number = [], 1
    for _ in range(7):
        sizes.append(fill(a, number))
        number += sizes[-1]
        store(b, sent_by(a))
        events = a.receive(sent_by(b), 0.0)
        assert (
            len([token for each in only(Acknowledged, events) for token in each.tokens])
            == (sizes[-1])
        )

    assert sizes == [USUAL_WINDOW, 128, 256, 512, WIDE, WIDE, WIDE]
    assert not a.outgoing.outstanding


def test_a_window_that_is_never_full_stays_small() -> None:
    a, b = pair()
    for number in range(1, 200):
        a.send(message(number, "recoverable"), recoverable=True, token=number, now=0.0)
        store(b, sent_by(a))
        a.receive(sent_by(b), 0.0)

    assert a.room() == USUAL_WINDOW


@pytest.mark.parametrize("who", [0, 1])
def test_a_queue_manager_of_another_kind_keeps_the_usual_window(who: int) -> None:
    a, b = opened(
        end(initiator=True, own_id=OWN_ID, is_qmd=who != 0),
        end(initiator=False, own_id=PEER_ID, is_qmd=who != 1),
    )
    number = 1
    for _ in range(4):
        number += (count := fill(a, number))
        assert count == USUAL_WINDOW
        store(b, sent_by(a))
        a.receive(sent_by(b), 0.0)
    assert (a.peer_window, b.peer_window) == (64, 64)


def test_the_smaller_wide_window_holds() -> None:
    a, b = opened(
        end(initiator=True, own_id=OWN_ID),
        end(initiator=False, own_id=PEER_ID, wide=100),
    )
    number = 1
    for size in (USUAL_WINDOW, 100, 100):
        number += (count := fill(a, number))
        assert count == size
        store(b, sent_by(a))
        a.receive(sent_by(b), 0.0)


def test_a_peer_that_pauses_gets_the_grown_window_back() -> None:
    a, b = pair()
    number = 1
    for _ in range(3):
        number += fill(a, number)
        store(b, sent_by(a))
        a.receive(sent_by(b), 0.0)

    b.pause()
    a.receive(sent_by(b), 0.0)
    assert a.room() == 1
    number += fill(a, number)
    store(b, sent_by(a))
    a.receive(sent_by(b), 0.0)
    assert a.room() == 512


def test_one_acknowledgment_covers_all_stored_messages_between_two_of_qmd() -> None:
    a, b = pair()
    number = 1
    for _ in range(3):
        number += fill(a, number)
        events = only(MessageReceived, b.receive(sent_by(a), 0.0))
        receipts = sent_by(b)
        b.mark_stored([each.recoverable_number for each in events[:10]], 0.0)
        (some,) = sent_by(b)
        b.mark_stored([each.recoverable_number for each in events[11:]], 0.0)
        assert sent_by(b) == []  # an earlier message is not stored yet
        b.mark_stored([events[10].recoverable_number], 0.0)
        (rest,) = sent_by(b)
        assert packet_kind(rest) is PacketKind.SESSION_ACK
        assert parse_session_ack(rest).recoverable_ack_number == events[-1].recoverable_number
        a.receive([*receipts, some], 0.0)
        assert len(a.outgoing._recoverable) == len(events) - 10
        a.receive([rest], 0.0)
        assert not a.outgoing.outstanding


def test_an_acknowledgment_to_another_kind_names_at_most_32_messages() -> None:
    a, b = opened(
        end(initiator=True, own_id=OWN_ID, is_qmd=False),
        end(initiator=False, own_id=PEER_ID),
    )
    fill(a, 1)
    events = only(MessageReceived, b.receive(sent_by(a), 0.0))
    sent_by(b)
    b.mark_stored([each.recoverable_number for each in events], 0.0)

    acks = [parse_session_ack(packet) for packet in sent_by(b)]
    assert [(ack.recoverable_ack_number, ack.recoverable_ack_flags) for ack in acks] == [
        (1, 0xFFFF_FFFF),
        (33, 0xFFFF_FFFF),
    ]
