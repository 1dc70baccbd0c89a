"""Dialer: resolves the names of other hosts and connects to their addresses."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from ipaddress import ip_address
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from qmd.peers.connection import PeerConnection, SessionUser
    from qmd.peers.name_lookups import NameLookups
    from qmd.runtime.services import Services

ADDRESSES_MAX = 16  # addresses of one link that are tried


class Dialer:
    """Connects links to other queue managers; `make_connection` makes the protocol of a socket."""

    def __init__(
        self,
        services: Services,
        lookups: NameLookups,
        make_connection: Callable[[SessionUser, tuple[str, int]], PeerConnection],
    ) -> None:
        self._services = services
        self._lookups = lookups
        self._make_connection = make_connection

    async def resolve(
        self,
        hosts: Iterable[tuple[str, int]],
        *,
        failed_at: tuple[str, int] | None,
        for_peers: bool,
    ) -> list[tuple[str, int]]:
        """Return the addresses (address, port) of hosts (name or address, port), at most 16.

        `for_peers`: only messages of other hosts need the connection.  The address after
        `failed_at`, the last address that failed, comes first.  Raises OSError if there is none.
        """
        found: dict[tuple[str, int], None] = {}
        failure: OSError | None = None
        for host, port in hosts:
            if _is_address(host):
                found[host, port] = None
                continue
            try:
                infos = await self._lookups.look_up(host, port, for_peers=for_peers)
            except (OSError, TimeoutError) as error:
                failure = error if isinstance(error, OSError) else OSError(str(error))
                continue
            for info in infos:
                found[str(info[4][0]) + _scope(info[4]), port] = None
        addresses = list(found)[:ADDRESSES_MAX]
        if not addresses:
            raise failure or OSError("its name has no address")
        if failed_at in found:
            at = (addresses.index(failed_at) + 1) % len(addresses)
            addresses = addresses[at:] + addresses[:at]
        return addresses

    async def connect(
        self, link: SessionUser, host: str, port: int
    ) -> OSError | UnicodeError | None:
        """Connect to an address; return the error if that fails."""
        try:
            async with asyncio.timeout(self._services.settings.delivery.connect_timeout_s):
                await self._services.loop.create_connection(
                    lambda: self._make_connection(link, (host, port)), host, port
                )
        except (OSError, TimeoutError, UnicodeError) as error:
            return error
        return None


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _scope(address: tuple[object, ...]) -> str:
    """Return "%" and the interface of a link-local IPv6 address, which is ambiguous without it.

    Return "" for other addresses.
    """
    is_scoped = len(address) == 4 and address[3] and "%" not in str(address[0])
    if not is_scoped:
        return ""
    with contextlib.suppress(OSError, OverflowError):
        return f"%{socket.if_indextoname(int(str(address[3])))}"
    return f"%{address[3]}"
