"""Next hops: the links that carry the messages for another queue manager, tried in turn.

They are the first of these that exists:

- a route of the configuration for the destination ([routing] routes);
- for a queue manager that is known by its GUID: its address, if that is known; otherwise the way
  back, over which its messages have arrived here, followed by the sites and routing servers of the
  directory ([MS-MQBR], qmd/core/sites.py); otherwise the default route of the configuration.

A hop itself is reached without another hop. Ways back are stored on disk, because acknowledgments
need them: a final ack may be due days after its message, and after a restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

import structlog

from protocol.identifiers import guid_text
from protocol.names.direct_name import PORT
from qmd.config.route_rules import Hop, parse_hop
from qmd.core.sites import Machine, Site, next_hops
from qmd.core.url_links import is_url
from qmd.directory.interface import (
    KIND_NONE,
    DirectoryAway,
    DirectoryError,
    MachineEntry,
)
from qmd.errors import Refusal
from storage.tables import ways_back
from storage.tables.ways_back import WayBack

if TYPE_CHECKING:
    from qmd.directory.interface import Directory
    from qmd.peers.connection import PeerConnection
    from qmd.peers.link import Link
    from qmd.peers.origins import Origins
    from qmd.peers.sessions import Peers
    from qmd.runtime.services import Services

log = structlog.get_logger()

WAYS_BACK_MAX = 10_000  # sources with a stored way back
# Ages after which a route of the directory is queried again: an hour according to [MS-MQBR] 3.1.3,
# and less after a query that failed.
ROUTE_AGE_S = 3600.0
ROUTE_RETRY_S = 15.0


class NextHops:
    """The next hops of all links."""

    def __init__(
        self, services: Services, directory: Directory, peers: Peers, origins: Origins
    ) -> None:
        self._services = services
        self._directory = directory
        self._peers = peers
        self._origins = origins
        self._by_link: dict[Link, tuple[Link, ...]] = {}
        self.use_routes()
        self._neighbors: dict[bytes, bytes] = {}  # GUID of a source -> GUID of the neighbor
        self._hosts: dict[bytes, str] = {}  # GUID of a neighbor -> its last address
        self._behind: dict[bytes, dict[bytes, None]] = {}  # GUID of a neighbor -> its sources
        self._directory_ways: dict[bytes, tuple[Link, ...]] = {}
        self._asked_until: dict[bytes, float] = {}
        self._not_in_directory: set[bytes] = set()
        self._asking: dict[bytes, asyncio.Task[None]] = {}

    def use_routes(self) -> None:
        """Take the routes of the configuration, at the start and when they have changed."""
        self._rules = self._services.settings.routing.routes
        self._hops = {
            (hop.host.casefold(), hop.port) for rule in self._rules for hop in rule.hops if hop.host
        }
        self._by_link.clear()

    def carriers(self, link: Link) -> tuple[Link, ...]:
        """Return the links to try in turn, which may include `link` itself.

        If there are none, messages wait.
        """
        found = self._by_link.get(link)
        if found is None:
            found = self._by_link[link] = self._by_rules(link)
        if found or link.guid is None:
            return found
        return self._for_queue_manager(link)

    def _by_rules(self, link: Link) -> tuple[Link, ...]:
        """Return the hops of the first route of the configuration that applies, or the link itself.

        Return nothing if there is neither a route nor an address.
        """
        itself = () if link.address is None else (link,)
        if is_url(link.address):
            return itself
        if link.address is not None and link.address in self._hops:
            return itself
        for rule in self._rules:
            pattern = rule.destinations
            if (
                pattern.has_guid(link.guid)
                if link.guid is not None
                else link.address is not None and pattern.has_host(link.address[0])
            ):
                if pattern.is_all and link.guid is not None:
                    continue  # the default route is used only if no other way is known
                return self._links(rule.hops, link)
        return itself

    def _for_queue_manager(self, link: Link) -> tuple[Link, ...]:
        """Return the hops to a queue manager without a known address or a route of its own."""
        assert link.guid is not None
        found: list[Link] = []
        neighbor = self._neighbors.get(link.guid)
        if neighbor is not None:  # this may be the queue manager itself, if it was a neighbor
            host = self._hosts.get(neighbor, "")
            address = (host, PORT) if host else None
            found.append(self._peers.link_to_queue_manager(neighbor, address))
        found += self._by_directory(link)
        if not found:
            for rule in self._rules:
                if rule.destinations.is_all:
                    found += self._links(rule.hops, link)
                    break
        return tuple(dict.fromkeys(found))

    def _links(self, hops: Iterable[Hop], link: Link) -> tuple[Link, ...]:
        """Return the links to hops; a hop without a host stands for `link` itself."""
        peers = self._peers
        found: dict[Link, None] = {}
        for hop in hops:
            if hop.host:
                way = peers.link_to_address(hop.host, hop.port)
                way.is_configured = True
                found[way] = None
            elif link.address is not None:
                found[link] = None
        return tuple(found)

    def may_lead_to(self, link: Link, *, is_known: bool) -> bool:
        """Return whether the configuration or the directory gives a way to a queue manager.

        If the queue manager is not known yet (`is_known`), the default route counts, the way of an
        earlier message, and a directory that has not answered yet.
        """
        assert link.guid is not None
        ways = self.carriers(link)  # which queries the directory if that is due
        if link.is_configured or self._directory_ways.get(link.guid):
            return True
        if is_known:
            ways = self._by_rules(link)
        if any(way is not link for way in ways):
            return True
        return not is_known and self._has_directory and link.guid not in self._not_in_directory

    @property
    def _has_directory(self) -> bool:
        return self._directory is not None and self._directory.kind != KIND_NONE

    def link_changed(self, link: Link) -> None:
        """Drop the stored next hops of a link: its address has changed, or it is removed."""
        self._by_link.pop(link, None)

    def is_hop(self, connection: PeerConnection) -> bool:
        """Return whether the other end of a session is a hop of the configuration or the directory.

        It has answered at the address of the hop; and each later session with its origin is one.
        """
        assert connection.session is not None
        there = (connection.session.remote_id, connection.origin)
        by_directory = dict.fromkeys(way for ways in self._directory_ways.values() for way in ways)
        return any(
            (link.remote_id, link.origin) == there
            for link in (*map(self._peers.find_link, self._hops), *by_directory)
            if link is not None
        )

    # Ways back, from messages.

    def restore(self, rows: Iterable[WayBack]) -> None:
        """Restore the stored ways back."""
        for row in rows:
            self._set(row.source, row.via, row.host)

    def _set(self, source: bytes, via: bytes, host: str) -> None:
        self._drop(source)
        self._hosts[via] = host
        self._neighbors[source] = via
        self._behind.setdefault(via, {})[source] = None

    def _drop(self, source: bytes) -> None:
        """Forget the way back to a source, and a neighbor without sources."""
        neighbor = self._neighbors.pop(source, None)
        if neighbor is not None:
            self._behind[neighbor].pop(source, None)
            if not self._behind[neighbor]:
                del self._behind[neighbor], self._hosts[neighbor]

    def learn_way_back(self, source: bytes, connection: PeerConnection) -> None:
        """Store that a session leads back to `source`: a message of it has arrived.

        This is called for messages that a relay has forwarded, and for messages that this queue
        manager forwards, because the route to the source may be unknown otherwise.
        """
        assert connection.session is not None
        via = connection.session.remote_id
        if via is None or self._neighbors.get(source) == via or source == self._services.id:
            return
        if self._origins.primary(via) not in (None, connection.origin):
            return  # it only states the GUID of a neighbor
        if source not in self._neighbors and len(self._neighbors) >= WAYS_BACK_MAX:
            # The neighbor with the most sources gives up one, so that it cannot displace others.
            greediest = max(self._behind.values(), key=len)
            oldest = next(iter(greediest))
            self._drop(oldest)
            self._services.storage.batch.run(lambda db: ways_back.forget(db, oldest))
        self._set(source, via, connection.host)
        row = WayBack(source, via, connection.host, int(self._services.environment.time()))
        self._services.storage.batch.run(lambda db: ways_back.remember(db, row))

    def has_way_back(self, source: bytes) -> bool:
        """Return whether a way back to that queue manager is known."""
        return source in self._neighbors

    def session_opened(self, guid: bytes) -> None:
        """Connect the links with messages for queue managers behind the peer of a new session."""
        for source in self._behind.get(guid, ()):
            link = self._peers.find_link(source)
            if link is not None and link.connection is None and link.has_work:
                link.connect()

    def session_towards(self, guid: bytes, origin: str) -> PeerConnection | None:
        """Return a session with an origin of a queue manager, or with the neighbor on the way back.

        A neighbor leads to the primary origin only; "" is that of a queue manager behind one.
        """
        peers, primary = self._peers, self._origins.primary(guid)
        connection = peers.connection_to(guid, origin or primary or "")
        neighbor = self._neighbors.get(guid)
        if connection is None and neighbor is not None and origin in ("", primary):
            connection = peers.connection_to(neighbor)
        return connection

    # Routes of the directory.

    def _by_directory(self, link: Link) -> tuple[Link, ...]:
        """Return the last answer of the directory, and query it again if the answer is old.

        The link connects again when the new answer has arrived.
        """
        guid = link.guid
        assert guid is not None
        if not self._has_directory:
            return ()
        now = self._services.loop.time()
        is_old = self._asked_until.get(guid, 0.0) <= now
        if is_old and guid not in self._asking and not self._services.lifecycle.stopping:
            if len(self._asked_until) >= WAYS_BACK_MAX:
                self._asked_until = {
                    each: until for each, until in self._asked_until.items() if until > now
                }
            self._asked_until[guid] = now + ROUTE_RETRY_S
            self._asking[guid] = self._services.loop.create_task(self._ask(link, guid))
        return self._directory_ways.get(guid, ())

    def directory_changed(self) -> None:
        """Query the directory again for links that wait for a route."""
        self._asked_until.clear()
        for link in self._peers.links:
            if link.guid is not None and link.connection is None and link.has_work:
                link.connect()

    def attempt_failed(self, link: Link) -> None:
        """Let a link to a queue manager use a session that it has begun, if that may be used."""
        if link.guid is not None and link.connection is None:
            self._peers.reconsider(link)

    def refresh(self, link: Link) -> None:
        """Query the directory again at the next use of a link."""
        if link.guid is not None:
            self._asked_until.pop(link.guid, None)

    def _retry(self, link: Link) -> None:
        if link.connection is None and link.has_work and not self._services.lifecycle.stopping:
            link.connect()

    async def _ask(self, link: Link, guid: bytes) -> None:
        """Query the directory for the next hops of a link; retry later if that fails."""
        try:
            entries = await self._next_entries(guid)
        except (DirectoryError, Refusal) as error:
            # The previous answer stays valid.
            if not isinstance(error, DirectoryAway):
                if len(self._not_in_directory) >= WAYS_BACK_MAX:
                    self._not_in_directory.clear()
                self._not_in_directory.add(guid)
                self._peers.reconsider(link)
            self._services.log_limited(
                "route_not_known", guid_text(guid), reason=error.text, code=error.code
            )
            self._services.loop.call_later(ROUTE_RETRY_S, self._retry, link)
            return
        finally:
            self._asking.pop(guid, None)
        ways: dict[Link, None] = {}
        for entry in entries:
            addresses = addresses_of(entry)
            way = self._peers.link_to_queue_manager(entry.guid, addresses[0])
            if way.address != addresses[0]:  # an earlier session had another one
                way.address = addresses[0]
                self.link_changed(way)
            way.is_configured = True
            way.alternatives = addresses[1:]
            self._peers.reconsider(way)
            ways[way] = None
        if len(self._directory_ways) >= WAYS_BACK_MAX:
            self._directory_ways.clear()
        self._directory_ways[guid] = tuple(ways)
        self._asked_until[guid] = self._services.loop.time() + ROUTE_AGE_S
        self._not_in_directory.discard(guid)
        if link.has_work:
            link.connect()

    async def next_machines(self, guid: bytes) -> list[MachineEntry]:
        """Return the next hops to a queue manager according to the directory, to be displayed.

        Raises Refusal, DirectoryError.
        """
        return await self._next_entries(guid)

    async def _next_entries(self, guid: bytes) -> list[MachineEntry]:
        """Return the possible next hops; the destination itself if nothing else is known."""
        directory = self._directory
        there = await directory.machine(guid)
        try:
            here = await directory.machine(self._services.id)
        except DirectoryAway:
            raise
        except DirectoryError:
            if there.foreign:
                raise _no_connector(there) from None
            return [there]  # this queue manager is in no site
        if not (here.sites or here.out_routers or there.in_routers):
            if there.foreign:
                raise _no_connector(there)
            return [there]
        sites = {
            each.guid: Site(
                each.guid, each.gates, tuple((link.site, link.cost) for link in each.links)
            )
            for each in await directory.sites()
        }
        hops = next_hops(_machine(here), _machine(there), sites)
        if there.foreign:
            # No queue manager runs there. Its connector server is a routing server of its site.
            gates = [gate for site in there.sites if site in sites for gate in sites[site].gates]
            hops = tuple(dict.fromkeys(each for each in (*hops, *gates) if each != guid))
        entries: list[MachineEntry] = []
        for hop in hops:
            if hop == self._services.id:
                continue
            if hop == guid:
                entries.append(there)
                continue
            try:
                entries.append(await directory.machine(hop))
            except DirectoryAway:
                raise
            except DirectoryError as error:
                log.info("routing_server_not_known", reason=error.text)
        if not entries and there.foreign:
            raise _no_connector(there)
        if not entries:
            raise Refusal(
                "no_route",
                f"the directory has no route from here to {there.name}: no routing server or site"
                " gate between the sites",
                "Check the sites and their links in the directory, or give a route in [routing].",
            )
        return entries

    def stop(self) -> None:
        """Cancel the running queries."""
        for task in list(self._asking.values()):
            task.cancel()


def _no_connector(there: MachineEntry) -> Refusal:
    return Refusal(
        "no_route",
        f"{there.name} is a foreign computer: only a connector server takes its messages, and the"
        " directory names none, or only this queue manager, which has no connector application",
        "Messages to it wait here. Make a queue manager with a connector application a gate of its"
        " site, or its in-routing server.",
    )


def addresses_of(entry: MachineEntry) -> tuple[tuple[str, int], ...]:
    """Return host and port of each address of a computer, in the order in which they are tried."""
    found = []
    for text in entry.addresses or (entry.name,):
        try:
            hop = parse_hop(text)
        except ValueError:
            hop = Hop(text, PORT)
        found.append((hop.host, hop.port))
    return tuple(found)


def _machine(entry: MachineEntry) -> Machine:
    return Machine(
        entry.guid, frozenset(entry.sites), entry.in_routers, entry.out_routers, entry.routes
    )
