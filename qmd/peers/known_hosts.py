"""Known hosts: addresses whose sessions have places when there are few.

A host is known from the configuration, from a connection that this queue manager has made to it, or
because one of its sessions has sent useful messages. The last two are stored, so that a restart
during an attack forgets no host.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from qmd.runtime.shares import address_of, owner_of
from storage.tables import known_hosts
from storage.tables.known_hosts import KnownHost

if TYPE_CHECKING:
    from qmd.runtime.services import Services

KNOWN_MAX = 10_000
SEEN_AGAIN_S = 86_400  # a host that is seen again is stored again after this time


class KnownHosts:
    """The known hosts, by the owner of their connections (qmd/runtime/shares.py)."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._seen_s: dict[str, int] = {}  # wall clock, in seconds; the longest ago first

    def restore(self, rows: Iterable[KnownHost]) -> None:
        """Restore the stored hosts, in the order in which they were last seen."""
        self._seen_s = {row.host: row.seen_s for row in rows}

    def has(self, host: str) -> bool:
        """Return whether a host, given by its address, is known."""
        return str(owner_of(host).name) in self._seen_s or self._is_configured(host)

    def add(self, host: str) -> None:
        """Store that a host is known; the one that was not seen for the longest time makes room."""
        name, now_s = str(owner_of(host).name), int(self._services.environment.time())
        stored_s = self._seen_s.pop(name, 0)
        if abs(now_s - stored_s) < SEEN_AGAIN_S:
            self._seen_s[name] = stored_s  # the last one seen is the last one to be forgotten
            return
        forgotten = []
        while len(self._seen_s) >= KNOWN_MAX:
            oldest = next(iter(self._seen_s))
            forgotten.append(oldest)
            del self._seen_s[oldest]
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
