"""The shares of hosts in the event log."""

from qmd.events.header import EventHeader, Kind
from qmd.events.host_shares import LOG_PART, REFILL_S, HostShares

HEADER = EventHeader(Kind.REFUSED, queue="x" * 100, reason="y" * 100)


def used_up(shares, host, now=0.0):
    listed = 0
    while shares.take(host, HEADER, now, is_new=True) is not None:
        listed += 1
    return listed


def test_a_host_fills_its_part_of_the_log_and_not_more():
    shares = HostShares(1_000_000)

    listed = used_up(shares, "a")

    assert 0.8 < listed * 384 / (1_000_000 / LOG_PART) <= 1
    assert shares.take("b", HEADER, 0.0, is_new=True) == 0


def test_the_next_listed_event_has_the_number_of_the_others():
    shares = HostShares(1_000_000)
    used_up(shares, "a")
    for _ in range(9):
        assert shares.take("a", HEADER, 0.0, is_new=True) is None

    assert shares.take("a", HEADER, REFILL_S / 100, is_new=True) == 10
    assert shares.take("a", HEADER, REFILL_S / 100, is_new=True) == 0
    assert (shares.left_out, shares.limited("a"), shares.limited("b")) == (10, 10, 0)


def test_many_messages_of_one_event_take_little():
    shares = HostShares(1_000_000)
    assert shares.take("a", HEADER, 0.0, is_new=True) == 0

    listed = 0
    while shares.take("a", HEADER, 0.0, is_new=False) is not None:
        listed += 1

    assert listed > 5000


def test_the_share_is_full_again_after_a_day():
    shares = HostShares(1_000_000)
    first = used_up(shares, "a")

    assert abs(used_up(shares, "a", now=2 * REFILL_S) - first) <= 1
