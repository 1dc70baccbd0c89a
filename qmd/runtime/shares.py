"""Shares: which member of a full table has to leave when another one needs its place.

Members belong to owners (an address, a user), and owners to groups (a network). The group with the
most members gives up a place, and in it the owner with the most: a newcomer with a smaller share
always gets in, and no owner keeps others out by its number of members (max-min fairness).
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Hashable, Iterator
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

# A network is the customer of a provider (RFC 6177: a site has a /56 or /48, an interface a /64);
# of IPv4 it is the smallest prefix that is routed in the Internet.
IPV4_NETWORK_BITS = 24
IPV6_NETWORK_BITS, IPV6_ADDRESS_BITS = 48, 64


class Owner(NamedTuple):
    """The owner of members, in its group."""

    group: Hashable
    name: Hashable


def address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address in a text, or None; an IPv4-mapped IPv6 address is returned as IPv4."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def owner_of(host: str) -> Owner:
    """Return the owner of the connections from an address, given as text.

    All addresses of an IPv6 /64 are one owner, because one interface may use all of them. All
    loopback addresses are one group.
    """
    address = address_of(host)
    if address is None:
        return Owner("", host)
    if address.is_loopback:
        return Owner("loopback", str(address))
    number = int(address)
    if isinstance(address, ipaddress.IPv4Address):
        return Owner((4, number >> 32 - IPV4_NETWORK_BITS), str(address))
    network = ipaddress.IPv6Network((number, IPV6_ADDRESS_BITS), strict=False)
    return Owner((6, number >> 128 - IPV6_NETWORK_BITS), str(network))


class Shares(Generic[T]):
    """The members of a table, by their owners."""

    def __init__(self) -> None:
        self._owners: dict[T, Owner] = {}  # the oldest member first
        self._groups: dict[Hashable, dict[Hashable, dict[T, None]]] = {}
        self._sizes: Counter[Hashable] = Counter()  # members of each group

    def __len__(self) -> int:
        return len(self._owners)

    def __contains__(self, member: T) -> bool:
        return member in self._owners

    def __iter__(self) -> Iterator[T]:
        """Iterate over all members, the oldest first."""
        return iter(self._owners)

    def add(self, member: T, owner: Owner) -> None:
        """Add a member, which is the newest one."""
        assert member not in self._owners
        self._owners[member] = owner
        self._groups.setdefault(owner.group, {}).setdefault(owner.name, {})[member] = None
        self._sizes[owner.group] += 1

    def remove(self, member: T) -> None:
        """Remove a member, if it is one."""
        owner = self._owners.pop(member, None)
        if owner is None:
            return
        owners = self._groups[owner.group]
        members = owners[owner.name]
        del members[member]
        self._sizes[owner.group] -= 1
        if not members:
            del owners[owner.name]
        if not owners:
            del self._groups[owner.group], self._sizes[owner.group]

    def of(self, owner: Owner) -> int:
        """Return the number of members of an owner."""
        return len(self._groups.get(owner.group, {}).get(owner.name, ()))

    def owner(self, member: T) -> Owner | None:
        """Return the owner of a member; None if it is none."""
        return self._owners.get(member)

    def fellows(self, member: T) -> list[T]:
        """Return the members of the owner of a member, the oldest first."""
        owner = self._owners[member]
        return list(self._groups[owner.group][owner.name])

    def candidate(self) -> T | None:
        """Return the oldest member of the owner with the largest share; None without members."""
        if not self._owners:
            return None
        group = max(self._sizes, key=self._sizes.__getitem__)
        members = max(self._groups[group].values(), key=lambda each: len(each))
        return next(iter(members))

    def largest_group(self) -> list[T]:
        """Return the members of the group with the most, the oldest of each owner first."""
        if not self._owners:
            return []
        group = max(self._sizes, key=self._sizes.__getitem__)
        return [member for members in self._groups[group].values() for member in members]

    def is_smaller(self, owner: Owner, member: T) -> bool:
        """Return whether `owner`, with one more member, has a smaller share than that of `member`.

        Groups are compared first; inside of one group their owners are.
        """
        other = self._owners[member]
        if owner.group != other.group:
            return self._sizes[owner.group] + 1 < self._sizes[other.group]
        return self.of(owner) + 1 < self.of(other)
