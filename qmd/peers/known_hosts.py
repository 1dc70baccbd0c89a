"""Known hosts: addresses whose sessions have places when there are few.

A host is known from the configuration, from a connection that this queue manager has made to it, or
because one of its sessions has sent useful messages. The last two are stored, so that a restart
during an attack forgets no host. When there are too many, the network with the most gives up the
one that was not seen for the longest time: thousands of addresses of one network replace one
another, and no host of another network. Hosts to which this run has connected stay.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from qmd.runtime.shares import Owner, Shares, address_of, owner_of
from storage.tables import known_hosts
from storage.tables.known_hosts import KnownHost

if TYPE_CHECKING:
    from qmd.runtime.services import Services

KNOWN_MAX = 10_000
DIALLED_MAX = 5_000  # of them, those that stay
SEEN_AGAIN_S = 86_400  # a host that is seen again is stored again after this time


class KnownHosts:
    """The known hosts, by the owner of their connections (qmd/runtime/shares.py)."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._seen_s: dict[str, int] = {}  # wall clock, in seconds
        self._may_leave: Shares[str] = Shares()  # the longest not seen first
        self._dialled: set[str] = set()  # those to which this run has connected, which stay

    def restore(self, rows: Iterable[KnownHost]) -> None:
        """Restore the stored hosts, in the order in which they were last seen."""
        for row in rows:
            self._seen_s[row.host] = row.seen_s
            self._may_leave.add(row.host, _owner(row.host))

    def has(self, host: str) -> bool:
        """Return whether a host, given by its address, is known."""
        return str(owner_of(host).name) in self._seen_s or self._is_configured(host)

    def add(self, host: str, *, is_dialled: bool = False) -> None:
        """Store that a host is known; another one may have to make room."""
        name, now_s = str(owner_of(host).name), int(self._services.environment.time())
        if is_dialled and len(self._dialled) < DIALLED_MAX:
            self._dialled.add(name)
        self._may_leave.remove(name)
        forgotten = []
        while name not in self._seen_s and len(self._seen_s) >= KNOWN_MAX:
            oldest = self._may_leave.candidate()
            assert oldest is not None, "more than those that stay"
            forgotten.append(oldest)
            self._may_leave.remove(oldest)
            del self._seen_s[oldest]
        if name not in self._dialled:
            self._may_leave.add(name, owner_of(host))
        if abs(now_s - self._seen_s.get(name, 0)) < SEEN_AGAIN_S:
            return
        self._seen_s[name] = now_s
        self._services.storage.batch.run(
            partial(known_hosts.remember, row=KnownHost(name, now_s), forgotten=forgotten)
        )

    def _is_configured(self, host: str) -> bool:
        settings = self._services.settings
        listed = (*settings.peers.large_messages, *settings.routing.relay_for)
        networks = [each for each in listed if not isinstance(each, str)]
        if not networks:
            return False
        address = address_of(host)
        return address is not None and any(address in each for each in networks)


def _owner(name: str) -> Owner:
    """Return the owner of a stored name, which is an address or an IPv6 network."""
    return owner_of(name.partition("/")[0])
