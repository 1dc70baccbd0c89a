"""Shares of owners in a table with a limited number of places."""

from __future__ import annotations

import pytest

from qmd.runtime.shares import Owner, Shares, owner_of

HERE, THERE = Owner("here", "a"), Owner("there", "b")


def shares(*owners: Owner) -> Shares[int]:
    """Return the shares of members that are numbered from 0 on."""
    shares: Shares[int] = Shares()
    for number, owner in enumerate(owners):
        shares.add(number, owner)
    return shares


def test_the_oldest_member_of_the_largest_owner_gives_up_its_place():
    assert shares(THERE, HERE, HERE, THERE, THERE).candidate() == 0
    assert shares(THERE, HERE, HERE).candidate() == 1
    assert shares().candidate() is None


def test_groups_are_compared_before_their_owners():
    many_small = [Owner("network", number) for number in range(4)]

    members = shares(HERE, HERE, HERE, *many_small)

    assert members.candidate() == 3
    assert members.is_smaller(HERE, 3) is False  # it would have as many
    assert members.is_smaller(THERE, 3)
    assert not members.is_smaller(many_small[0], 4)
    assert not members.is_smaller(Owner("network", "new"), 4)


def test_a_member_that_leaves_frees_its_place_once():
    members = shares(HERE, HERE, THERE)

    members.remove(0)
    members.remove(0)
    members.remove(2)

    assert len(members) == 1
    assert members.of(HERE) == 1
    assert members.of(THERE) == 0
    assert list(members) == [1]
    assert 1 in members
    assert 0 not in members


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "::ffff:192.0.2.1", "owner"),
        ("192.0.2.1", "192.0.2.2", "group"),
        ("192.0.2.1", "192.0.3.1", ""),
        ("2001:db8::1", "2001:db8::ffff:1", "owner"),
        ("fe80::1%eth0", "fe80::2%eth0", "owner"),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", "group"),
        ("2001:db8:1::1", "2001:db8:2::1", ""),
        ("127.0.0.1", "127.9.9.9", "group"),
        ("127.0.0.1", "::1", "group"),
    ],
)
def test_addresses_that_one_host_may_have_share_a_place(one: str, other: str, same: str):
    first, second = owner_of(one), owner_of(other)

    assert (first == second) is (same == "owner")
    assert (first.group == second.group) is (same != "")
