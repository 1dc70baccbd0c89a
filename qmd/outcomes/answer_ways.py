"""Ways of acknowledgments: to which queues elsewhere they go, and over which session.

[MS-MQQB] 3.1.7.15 sends an acknowledgment to every queue that the original message names.  Any host
that may send one message could then make this computer look up names of its choice and connect to
addresses of its choice.  Without an entry in `[peers] acknowledge_to`, an acknowledgment therefore
goes

- to a queue of this computer, or to one that the directory knows;
- to a queue manager that applications of this computer send messages to;
- or back to the queue manager that sent the original.

A name such as OS:hostb proves nothing without a look-up.  It is taken for a name of the sender: the
acknowledgment goes over a session with the sender, and if there is none, to its address.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from protocol.identifiers import guid_text
from protocol.names.direct_name import PORT, Transport
from protocol.names.format_name import DirectName, FormatName, PrivateName
from qmd.queues.answer_limits import AskedFor

if TYPE_CHECKING:
    from collections.abc import Callable

    from qmd.naming.destinations import Destinations
    from qmd.queues.peer_session import PeerSession
    from qmd.runtime.services import Services
    from storage.tables.peer_origins import PeerOrigin

SOURCES_MAX = 10_000  # queue managers with a known address
ADDRESSES_MAX = 8  # of one queue manager


class AnswerWays:
    """Decides about the way of each acknowledgment that a message of another host asks for."""

    def __init__(self, services: Services, destinations: Destinations) -> None:
        self._services = services
        self._destinations = destinations
        #: The addresses of each queue manager with their origins, the latest last.
        self._addresses: dict[bytes, dict[str, str]] = {}

    def connect(
        self,
        session_with: Callable[[bytes], PeerSession | None],
        sends_to: Callable[[tuple[str, int] | bytes], bool],
        primary: Callable[[bytes], PeerOrigin | None],
    ) -> None:
        """Set the collaborators that are created later.

        `session_with` returns the session with the queue manager of a GUID, or None. `sends_to`
        returns whether applications here send messages to an address, or to a queue manager.
        `primary` returns the stored primary origin of a queue manager, or None.
        """
        self._primary = primary
        self._session_with = session_with
        self._sends_to = sends_to

    def met(self, guid: bytes, host: str, origin: str) -> None:
        """Remember the address of a queue manager with which a session was opened."""
        known = self._addresses.get(guid)
        if known is None:
            if len(self._addresses) >= SOURCES_MAX:
                self._addresses.pop(next(iter(self._addresses)))
            known = self._addresses[guid] = {}
        known.pop(host, None)
        if len(known) >= ADDRESSES_MAX:
            known.pop(next(iter(known)))
        known[host] = origin

    def host_of(self, guid: bytes) -> str:
        """Return the last known address of a queue manager; "": it is not known."""
        known = self._addresses.get(guid)
        if known is not None:
            return next(reversed(known))
        primary = self._primary(guid)
        return "" if primary is None else primary.host

    def asked(self, source: bytes, connection: PeerSession | None) -> AskedFor:
        """Return the host that asks for an acknowledgment, without a way to its queue.

        `source` is the queue manager of the original, `connection` the session that brought it, if
        the acknowledgment is made at that moment.
        """
        if connection is not None and connection.session is not None:
            return AskedFor(connection.origin)
        known, primary = self._addresses.get(source), self._primary(source)
        if primary is not None:
            return AskedFor(primary.origin)
        return AskedFor(guid_text(source) if known is None else next(reversed(known.values())))

    def way(
        self, source: bytes, name: FormatName, connection: PeerSession | None
    ) -> AskedFor | str:
        """Return the way to a queue that a message of `source` names, or why none is taken."""
        asked = self.asked(source, connection)
        if isinstance(name, PrivateName):
            guid = name.queue_manager
            if guid == source and self._is_another(source, connection):
                return f"{name} is a queue of another host, which has {_CLAIMED}"
            if (
                guid in (source, self._services.id)
                or any(each.has_guid(guid) for each in self._services.settings.peers.acknowledge_to)
                or self._sends_to(guid)
            ):
                return asked
            return f"{name} is not a queue of the sender {guid_text(source)}, {_REMEDY}"
        if not isinstance(name, DirectName) or self._is_permitted(name):
            return asked
        hosts = self._hosts(source, connection)
        port = name.port or PORT
        if name.transport == Transport.OS:
            if self._is_another(source, connection):
                return f"{name} cannot be a queue of the sender: another host has {_CLAIMED}"
            host = next(reversed(hosts), "")
            return asked._replace(via=source, at=(host, port) if host else None)
        if name.host in hosts:
            return asked
        if not hosts and self._may_connect(name.host):
            return asked  # after a restart; the limits of [consequences] hold for it
        return f"{name} is not at the address of the sender, {', '.join(hosts)}, {_REMEDY}"

    def _is_another(self, source: bytes, connection: PeerSession | None) -> bool:
        """Return whether a session states the GUID of a queue manager that is known elsewhere.

        Acknowledgments to that GUID go to the other one, see docs/decisions/0031.
        """
        primary = self._primary(source)
        return (
            primary is not None
            and connection is not None
            and connection.session is not None
            and connection.session.remote_id == source
            and connection.origin != primary.origin
        )

    def _is_permitted(self, name: DirectName) -> bool:
        return (
            self._destinations.is_local(name)
            or any(
                each.has_host(name.host) for each in self._services.settings.peers.acknowledge_to
            )
            or self._sends_to((name.host.casefold(), name.port or PORT))
        )

    def _hosts(self, source: bytes, connection: PeerSession | None) -> dict[str, None]:
        """Return the addresses of the source, the one of its present session last."""
        primary = self._primary(source)
        hosts: dict[str, None] = {} if primary is None or not primary.host else {primary.host: None}
        hosts |= dict.fromkeys(self._addresses.get(source, ()))
        for session in (self._session_with(source), connection):
            if session is None or session.session is None:
                continue
            if session.session.remote_id == source:
                hosts.pop(session.host, None)
                hosts[session.host] = None
        return hosts

    def _may_connect(self, host: str) -> bool:
        """Return whether a host may connect here: it may be the source of a message."""
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        return any(address in network for network in self._services.settings.peers.allow)


_CLAIMED = "sent messages with this GUID before"
_REMEDY = "and [peers] acknowledge_to does not list it"
