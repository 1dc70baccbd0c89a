"""Sent messages without an acknowledgment: window, release, wrapping numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qmd.core.session_events import IN_DOUBT_MAX, SessionOver
from qmd.core.window import SendWindow
from tests.unit.core.session_wire import header

# Sessions begin at zero; the other counts are near an overflow of 16 bits.
STARTS = [0, 0xFFF0, 0xFFFF, 0x10000, 3 * 0x10000 - 5]


def sent(kinds: str, *, size: int = 64, start: int = 0) -> SendWindow:
    """Return a window after sending: "e" is an express message, "r" a recoverable one.

    Tokens are e1, r2, e3 ...: the kind, and the position from 1.
    """
    window = SendWindow(size, sent_count=start, recoverable_sent_count=start)
    for position, kind in enumerate(kinds, 1):
        window.add(f"{kind}{position}", recoverable=kind == "r")
    return window


def acknowledge(window: SendWindow, received: int, first: int = 0, flags: int = 0) -> list[object]:
    """Return the tokens that an acknowledgment releases, in the order of sending."""
    return [token for _, token in sorted(window.acknowledge(header(received, first, flags)))]


def test_the_window_closes_at_its_number_of_unacknowledged_messages():
    window = sent("eee", size=4)

    assert window.room() == 1
    window.add("e4", recoverable=False)
    assert (window.room(), window.unacknowledged) == (0, 4)


def test_a_shrunk_window_has_no_room_until_enough_messages_are_acknowledged():
    window = sent("eeee")
    window.size = 2

    assert window.room() == 0
    acknowledge(window, 3)
    assert window.room() == 1


def test_express_messages_are_released_when_their_receipt_is_acknowledged():
    window = sent("eee")

    assert acknowledge(window, 2) == ["e1", "e2"]
    assert acknowledge(window, 3) == ["e3"]
    assert not window.outstanding


def test_receipt_opens_the_window_for_recoverable_messages_but_does_not_release_them():
    window = sent("rr", size=2)

    assert acknowledge(window, 2) == []
    assert (window.room(), window.unacknowledged) == (2, 0)
    assert window.outstanding


def test_recoverable_messages_are_released_by_their_flags():
    window = sent("rrrr")

    assert acknowledge(window, 4, 1, 0b101) == ["r1", "r3"]
    assert acknowledge(window, 4, 2, 0b101) == ["r2", "r4"]


def test_everything_up_to_the_acknowledged_recoverable_number_is_released():
    window = sent("rrrr")

    assert acknowledge(window, 4, 3, 0b1) == ["r1", "r2", "r3"]


def test_a_recoverable_number_without_flags_still_acknowledges_up_to_itself():
    window = sent("rrr")

    assert acknowledge(window, 3, 2, 0) == ["r1", "r2"]


def test_a_number_with_a_clear_flag_does_not_count_as_stored():
    window = sent("rrrr")

    assert acknowledge(window, 4, 2, 0b100) == ["r1", "r4"]
    assert acknowledge(window, 4, 2, 0b11) == ["r2", "r3"]


def test_all_32_flags_count_and_the_33rd_message_stays():
    window = sent("r" * 33)

    assert len(acknowledge(window, 33, 1, 0xFFFFFFFF)) == 32
    assert acknowledge(window, 33, 33, 1) == ["r33"]


def test_the_highest_flag_alone_releases_the_32nd_message_alone():
    window = sent("r" * 33)

    assert acknowledge(window, 33, 1, 1 << 31 | 1) == ["r1", "r32"]


def test_mixed_messages_are_released_in_the_order_of_sending():
    window = sent("erere")

    assert acknowledge(window, 5, 1, 0b11) == ["e1", "r2", "e3", "r4", "e5"]


@pytest.mark.parametrize("start", STARTS)
def test_the_same_acknowledgment_again_is_harmless(start):
    window = sent("erer", start=start)
    ack = (start + 4 & 0xFFFF, start + 1 & 0xFFFF, 0b11)

    assert acknowledge(window, *ack) == ["e1", "r2", "e3", "r4"]
    assert acknowledge(window, *ack) == []
    assert (window.unacknowledged, window.outstanding) == (0, False)


@pytest.mark.parametrize("start", STARTS)
def test_an_older_acknowledgment_has_no_effect(start):
    window = sent("rrr", start=start)
    acknowledge(window, start + 3 & 0xFFFF, start + 1 & 0xFFFF, 0b111)

    assert acknowledge(window, start + 1 & 0xFFFF, start + 1 & 0xFFFF, 1) == []
    assert (window.unacknowledged, window.outstanding) == (0, False)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("too_many", [1, 0x100, 0x7FFF])
def test_acknowledging_more_than_was_sent_ends_the_session(start, too_many):
    window = sent("ee", start=start)

    with pytest.raises(SessionOver, match=f"only {start + 2 & 0xFFFF} were sent"):
        acknowledge(window, start + 2 + too_many & 0xFFFF)
    assert window.unacknowledged == 2


@pytest.mark.parametrize("number", [4, 0x8000, 0xFFFF])
def test_a_number_above_the_sent_ones_is_not_taken_for_an_old_number(number):
    window = sent("rrr")

    with pytest.raises(SessionOver, match="only 3 were sent"):
        acknowledge(window, number)
    with pytest.raises(SessionOver, match="only 3 were sent"):
        acknowledge(window, 0, number, 1)


@pytest.mark.parametrize("start", STARTS)
def test_flags_beyond_the_sent_messages_end_the_session_and_release_nothing(start):
    window = sent("err", start=start)

    with pytest.raises(SessionOver, match="recoverable message"):
        acknowledge(window, start + 3 & 0xFFFF, start + 2 & 0xFFFF, 0b11)
    assert window.unacknowledged == 3
    assert acknowledge(window, start + 3 & 0xFFFF, start + 1 & 0xFFFF, 0b11) == [
        "e1",
        "r2",
        "r3",
    ]


def test_an_acknowledgment_without_a_recoverable_number_releases_no_recoverable_messages():
    window = sent("rr", start=0xFFFE)  # their numbers are 0xFFFF and 0

    assert acknowledge(window, 0) == []
    assert window.outstanding
    assert acknowledge(window, 0, 0, 1) == ["r1", "r2"]


def test_a_peer_that_never_stores_gets_at_most_half_of_the_numbers():
    window = SendWindow(IN_DOUBT_MAX)
    for count in range(1, IN_DOUBT_MAX + 1):
        window.add(count, recoverable=True)
        if count == 1000:
            acknowledge(window, 1000)
    acknowledge(window, IN_DOUBT_MAX)

    assert window.unacknowledged == 0
    assert window.room() == 0
    assert acknowledge(window, IN_DOUBT_MAX, 1, 0b11) == [1, 2]
    assert window.room() == 2
    assert acknowledge(window, IN_DOUBT_MAX, 1, 0b1) == []
    assert window.room() == 2, "an older acknowledgment takes nothing back"


kinds = st.text(alphabet="er", min_size=1, max_size=80)


@given(st.sampled_from(STARTS), kinds, st.data())
def test_each_message_is_released_once_for_any_series_of_acknowledgments(start, kinds, data):
    window = sent(kinds, start=start, size=len(kinds))
    recoverable = [position for position, kind in enumerate(kinds, 1) if kind == "r"]
    stored: set[int] = set()  # recoverable numbers, from 1
    received = 0
    released: list[object] = []

    for _ in range(data.draw(st.integers(1, 8))):
        received = data.draw(st.integers(received, len(kinds)))
        first = flags = 0
        if recoverable and data.draw(st.booleans()):
            first = data.draw(st.integers(1, len(recoverable)))
            some = data.draw(st.integers(0, 2**32 - 1))
            flags = (some | 1) & (1 << min(len(recoverable) - first + 1, 32)) - 1
            stored |= set(range(1, first + 1))
            stored |= {first + bit for bit in range(32) if flags >> bit & 1}
        released += acknowledge(
            window, start + received & 0xFFFF, start + first & 0xFFFF if first else 0, flags
        )

    express = {f"e{at}" for at, kind in enumerate(kinds, 1) if kind == "e" and at <= received}
    assert set(released) == express | {f"r{recoverable[number - 1]}" for number in stored}
    assert len(released) == len(set(released))
    assert window.unacknowledged == len(kinds) - received
    assert window.outstanding == (received < len(kinds) or len(stored) < len(recoverable))
