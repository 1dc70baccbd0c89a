"""Hosts that the configuration names: those that may connect, and those with large messages."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from typing import TYPE_CHECKING

from protocol.headers import PACKET_BYTES_MAX
from qmd.runtime.shares import address_of

if TYPE_CHECKING:
    from qmd.runtime.services import Services

LARGE_HEADERS_BYTES_MAX = 64 * 1024  # with the extension, for a body of more than 4 MiB


class ConfiguredHosts:
    """The lists of hosts in the section [peers], as they are now: a reload may change them."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def is_allowed(self, host: str) -> bool:
        """Return whether the configuration permits connections from an address."""
        address = address_of(host)
        return address is not None and any(
            address in network for network in self._services.settings.peers.allow
        )

    def is_listed(
        self, host: str, listed: Collection[ipaddress.IPv4Network | ipaddress.IPv6Network | str]
    ) -> bool:
        """Return whether a list contains a host, given as a name or as an address."""
        address = address_of(host)
        if address is None:
            names = (each.casefold() for each in listed if isinstance(each, str))
            return host.casefold() in names
        return any(address in each for each in listed if not isinstance(each, str))

    def packet_bytes_max(self, *hosts: str) -> int:
        """Return the longest packet in bytes that a host with these names and addresses may send
        and receive.

        It is longer than the specification permits only for hosts that are configured for large
        messages.
        """
        if any(map(self._takes_large, hosts)):
            return self.own_packet_bytes_max
        return PACKET_BYTES_MAX

    @property
    def own_packet_bytes_max(self) -> int:
        """The longest packet in bytes that this queue manager stores."""
        body_bytes_max = self._services.settings.quotas.message_bytes_max
        if body_bytes_max <= PACKET_BYTES_MAX:
            return PACKET_BYTES_MAX
        return body_bytes_max + LARGE_HEADERS_BYTES_MAX

    def _takes_large(self, host: str) -> bool:
        return self.is_listed(host, self._services.settings.peers.large_messages)
