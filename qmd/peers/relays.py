"""Relays: the hosts that may bring messages of other queue managers.

A packet names its source, and any program can name any. Messages of which the source is not the
queue manager at the other end of the session are therefore taken from relays only:

- hosts that [peers] relays lists;
- hops of [routing] routes;
- routing servers of the directory, at the addresses that it gives. [MS-MQBR]

Hosts that are given by a name are looked up from time to time. Until a name has been resolved for
the first time, or the directory has answered, it is not known whether a host is a relay.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING
from weakref import WeakSet

from protocol.names.direct_name import PORT
from qmd.directory.interface import KIND_NONE, DirectoryAway, DirectoryError
from qmd.errors import Refusal
from qmd.peers.next_hop import addresses_of
from qmd.runtime.shares import address_of

if TYPE_CHECKING:
    from qmd.directory.interface import Directory
    from qmd.peers.connection import PeerConnection
    from qmd.peers.next_hop import NextHops
    from qmd.runtime.services import Services

RENEWED_S = 600.0  # after which names and the directory are queried again
RETRY_S = 15.0  # the same after a query that failed
NAMES_MAX = 1000  # of hosts that are looked up
MACHINES_MAX = 1000  # answers of the directory in memory

REMEDY = "See relays in the section [peers] of the configuration."


class Relays:
    """The relays of this queue manager."""

    def __init__(self, services: Services, directory: Directory, next_hops: NextHops) -> None:
        self._services = services
        self._directory = directory
        self._next_hops = next_hops
        self._found: dict[str, frozenset[str]] = {}  # by name
        self._take_settings()
        self._has_directory = directory.kind != KIND_NONE
        #: By GUID: the addresses of a routing server; none of another computer.
        self._machines: dict[bytes, frozenset[str]] = {}
        self._asking: dict[bytes, asyncio.Task[None]] = {}
        self._ask_at = 0.0
        self._judged: WeakSet[PeerConnection] = WeakSet()  # those that are relays
        self._task: asyncio.Task[None] | None = None

    def _take_settings(self) -> None:
        settings = self._services.settings
        listed = settings.peers.relays
        hops = [hop.host for rule in settings.routing.routes for hop in rule.hops]
        self._networks = tuple(each for each in listed if not isinstance(each, str))
        self._names = {each.casefold() for each in listed if isinstance(each, str)}
        self._names |= {host.casefold() for host in hops if host and address_of(host) is None}
        self._addresses = {str(address_of(host)) for host in hops if address_of(host) is not None}

    def settings_changed(self) -> None:
        """Take the relays and the hops of the changed configuration."""
        self._take_settings()
        self._judged.clear()
        self._found = {name: self._found[name] for name in self._names & self._found.keys()}
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self.start()

    def start(self) -> None:
        """Begin to look up names, if there are any."""
        if self._names:
            self._task = self._services.loop.create_task(self._renew())

    def stop(self) -> None:
        """Cancel the look-ups."""
        for task in (self._task, *self._asking.values()):
            if task is not None:
                task.cancel()

    def directory_changed(self) -> None:
        """Forget the answers of the directory."""
        self._machines.clear()
        self._judged.clear()

    # Queries.

    def is_relay(self, connection: PeerConnection) -> bool:
        """Return whether the other end of a session is a relay, as far as is known."""
        if connection in self._judged:
            return True
        is_relay = (
            self.is_relay_host(connection.host)
            or self._next_hops.is_hop(connection)
            or connection.host in self._machines.get(_guid(connection), ())
        )
        if is_relay:
            self._judged.add(connection)
        return is_relay

    def is_relay_host(self, host: str) -> bool:
        """Return whether a relay of the configuration has this address."""
        address = address_of(host)
        text = str(address)
        return address is not None and (
            text in self._addresses
            or any(address in network for network in self._networks)
            or any(text in found for found in self._found.values())
        )

    def is_undecided(self, connection: PeerConnection) -> bool:
        """Return whether a look-up may still find that the other end of a session is a relay."""
        if len(self._found) < min(len(self._names), NAMES_MAX):
            return True
        guid = _guid(connection)
        if not self._has_directory or guid in self._machines:
            return False
        now = self._services.loop.time()
        if guid not in self._asking and not self._asking and now >= self._ask_at:
            self._asking[guid] = self._services.loop.create_task(self._ask(guid))
        return True

    # Look-ups.

    async def _renew(self) -> None:
        while not self._services.lifecycle.stopping:
            is_complete = True
            for name in sorted(self._names)[:NAMES_MAX]:
                found = await self._resolved([name])
                if found:
                    self._found[name] = found
                is_complete = is_complete and bool(found)
            self._judged.clear()
            await asyncio.sleep(RENEWED_S if is_complete else RETRY_S)

    async def _resolved(self, hosts: Iterable[str]) -> frozenset[str]:
        """Return the addresses of hosts, as texts; those of unknown names are left out."""
        found: set[str] = set()
        for host in hosts:
            address = address_of(host)
            if address is not None:
                found.add(str(address))
                continue
            with contextlib.suppress(OSError, UnicodeError, TimeoutError):
                async with asyncio.timeout(self._services.settings.delivery.connect_timeout_s):
                    infos = await self._services.environment.look_up(host, PORT)
                addresses = [address_of(str(info[4][0])) for info in infos]
                found |= {str(each) for each in addresses if each is not None}
        return frozenset(found)

    async def _ask(self, guid: bytes) -> None:
        """Ask the directory whether a queue manager is a routing server, and for its addresses."""
        try:
            machine = await self._directory.machine(guid)
            hosts = [host for host, _ in addresses_of(machine)] if machine.routes else []
            found = await self._resolved(hosts)
        except DirectoryAway:
            self._ask_at = self._services.loop.time() + RETRY_S
            return
        except (DirectoryError, Refusal):
            found = frozenset()  # it is not in the directory
        finally:
            del self._asking[guid]
        if len(self._machines) >= MACHINES_MAX:
            self._machines.clear()
        self._machines[guid] = found
        self._judged.clear()


def _guid(connection: PeerConnection) -> bytes:
    assert connection.session is not None
    return connection.session.remote_id or b""
