"""The addresses at which other hosts reach this one, for proofs of identity (identity_proof.py)."""

from __future__ import annotations

from ipaddress import IPv4Address, ip_address
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qmd.runtime.services import Services

NO_ADDRESS = bytes(18)


class OwnAddresses:
    """The addresses of this computer, and those of the setting reached_at."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._elsewhere = frozenset(
            packed_address(hop.host, hop.port) for hop in services.settings.listen.reached_at
        )

    def includes(self, host: str, port: int, dialled: bytes) -> bool:
        """Return whether a peer that has dialled an address wanted this queue manager.

        `host` and `port` are the local end of the connection, `dialled` the address as
        `packed_address` returns it.
        """
        if dialled in self._elsewhere:
            return True
        ports = (port, *(each for _, each in self._services.listening))
        return any(dialled == packed_address(host, each) for each in ports)


def packed_address(host: str, port: int) -> bytes:
    """Return 18 bytes of an IP address, without its scope, and a port."""
    address = ip_address(host.partition("%")[0])
    if isinstance(address, IPv4Address):
        return bytes(10) + b"\xff\xff" + address.packed + port.to_bytes(2, "big")
    return address.packed + port.to_bytes(2, "big")
