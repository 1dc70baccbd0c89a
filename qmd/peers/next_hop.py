"""Which way messages for another queue manager go: itself, or over which others, tried in turn.

In this order, the first that there is:

- a route of the configuration for the destination ([routing] routes);
- for a queue manager that is known by its GUID: its address, where we know it; the sites and
  routing servers of the directory ([MS-MQBR], core/sites.py); and the way on which messages of it
  came here, for acknowledgments have to find back.

Hops themselves are reached without another hop.  What is learned from messages is on disk: final
acks are due days after the message, and have to find back after any restart.
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
    from qmd.peers.sessions import Peers
    from qmd.runtime.services import Services

log = structlog.get_logger()

WAYS_BACK_MAX = 10_000  # sources that are remembered with whom their messages came over
# [MS-MQBR] 3.1.3 has an hour; a route that was wrong is asked for again sooner.
ROUTE_AGE_S = 3600.0
ROUTE_RETRY_S = 15.0


class NextHops:
    """The ways of links."""

    def __init__(self, services: Services, directory: Directory, peers: Peers) -> None:
        self._services = services
        self._directory = directory
        self._peers = peers
        self._rules = services.settings.routing.routes
        self._hops = {
            (hop.host.casefold(), hop.port) for rule in self._rules for hop in rule.hops if hop.host
        }
        self._by_link: dict[Link, tuple[Link, ...]] = {}
        self._came_over: dict[bytes, bytes] = {}  # source -> the queue manager beside us
        self._hosts: dict[bytes, str] = {}  # of those beside us, where they were
        self._behind: dict[bytes, dict[bytes, None]] = {}  # the other way round
        self._directory_ways: dict[bytes, tuple[Link, ...]] = {}
        self._asked_until: dict[bytes, float] = {}
        self._asking: dict[bytes, asyncio.Task[None]] = {}

    # Which way.

    def carriers(self, link: Link) -> tuple[Link, ...]:
        """The links to try in turn, perhaps itself among them; none: it has to wait."""
        found = self._by_link.get(link)
        if found is None:
            found = self._by_link[link] = self._by_rules(link)
        if found or link.guid is None:
            return found
        return self._for_queue_manager(link)

    def _by_rules(self, link: Link) -> tuple[Link, ...]:
        itself = () if link.address is None else (link,)
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
                    continue  # the default comes last, behind what is known of that one
                return self._links(rule.hops, link)
        return itself

    def _for_queue_manager(self, link: Link) -> tuple[Link, ...]:
        """One without an address: who knows it?"""
        assert link.guid is not None
        found: list[Link] = []
        over = self._came_over.get(link.guid)
        if over is not None:  # perhaps itself: it was beside us
            host = self._hosts.get(over, "")
            address = (host, PORT) if host else None
            found.append(self._peers.link_to_queue_manager(over, address))
        found += self._by_directory(link)
        if not found:
            for rule in self._rules:
                if rule.destinations.is_all:
                    found += self._links(rule.hops, link)
                    break
        return tuple(dict.fromkeys(found))

    def _links(self, hops: Iterable[Hop], link: Link) -> tuple[Link, ...]:
        peers = self._peers
        found: dict[Link, None] = {}
        for hop in hops:
            if hop.host:
                found[peers.link_to_address(hop.host, hop.port)] = None
            elif link.address is not None:
                found[link] = None
        return tuple(found)

    def link_changed(self, link: Link) -> None:
        """Its address is known now."""
        self._by_link.pop(link, None)

    # What messages tell.

    def restore(self, rows: Iterable[WayBack]) -> None:
        for row in rows:
            self._set(row.source, row.via, row.host)

    def _set(self, source: bytes, via: bytes, host: str) -> None:
        self._hosts[via] = host
        before = self._came_over.get(source)
        if before is not None:
            self._behind[before].pop(source, None)
        self._came_over[source] = via
        self._behind.setdefault(via, {})[source] = None

    def learn_way_back(self, source: bytes, connection: PeerConnection) -> None:
        """A message of `source` came over this session, which leads back; over a relay, or one that
        we pass on, so that nobody else may know the way."""
        assert connection.session is not None
        via = connection.session.remote_id
        if via is None or self._came_over.get(source) == via or source == self._services.id:
            return
        if source not in self._came_over and len(self._came_over) >= WAYS_BACK_MAX:
            oldest = next(iter(self._came_over))
            self._behind[self._came_over.pop(oldest)].pop(oldest, None)
            self._services.storage.batch.run(lambda db: ways_back.forget(db, oldest))
        self._set(source, via, connection.host)
        row = WayBack(source, via, connection.host, int(self._services.environment.time()))
        self._services.storage.batch.run(lambda db: ways_back.remember(db, row))

    def has_way_back(self, source: bytes) -> bool:
        """Whether messages of that queue manager were passed on here."""
        return source in self._came_over

    def session_opened(self, guid: bytes) -> None:
        """A session with that queue manager came about: others may be behind it."""
        for source in self._behind.get(guid, ()):
            link = self._peers.find_link(source)
            if link is not None and link.connection is None and link.has_work:
                link.connect()

    def session_towards(self, guid: bytes) -> PeerConnection | None:
        """A session with that queue manager, or with whom its messages came over."""
        peers = self._peers
        connection = peers.connection_to(guid)
        over = self._came_over.get(guid)
        if connection is None and over is not None:
            connection = peers.connection_to(over)
        return connection

    # What the directory tells.

    def _by_directory(self, link: Link) -> tuple[Link, ...]:
        """What it said last; it is asked again, and the link tries again when it has answered."""
        guid = link.guid
        assert guid is not None
        directory = self._directory
        if directory is None or directory.kind == KIND_NONE:
            return ()
        now = self._services.loop.time()
        is_old = self._asked_until.get(guid, 0.0) <= now
        if (
            is_old
            and guid not in self._asking
            and not self._services.lifecycle.stopping
            and link.queues
        ):
            self._asked_until[guid] = now + ROUTE_RETRY_S
            self._asking[guid] = self._services.loop.create_task(self._ask(link, guid))
        return self._directory_ways.get(guid, ())

    def directory_changed(self) -> None:
        """What it said may be wrong now; what waits for a way asks anew."""
        self._asked_until.clear()
        for link in self._peers.links:
            if link.guid is not None and link.connection is None and link.has_work:
                link.connect()

    def refresh(self, link: Link) -> None:
        """An operator wants to know it now."""
        if link.guid is not None:
            self._asked_until.pop(link.guid, None)

    def _retry(self, link: Link) -> None:
        if link.connection is None and link.has_work and not self._services.lifecycle.stopping:
            link.connect()

    async def _ask(self, link: Link, guid: bytes) -> None:
        try:
            entries = await self._next_entries(guid)
        except (DirectoryError, Refusal) as error:
            # What was known before still holds.
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
            way.alternatives = addresses[1:]
            ways[way] = None
        if len(self._directory_ways) >= WAYS_BACK_MAX:
            self._directory_ways.clear()
        self._directory_ways[guid] = tuple(ways)
        self._asked_until[guid] = self._services.loop.time() + ROUTE_AGE_S
        if link.has_work:
            link.connect()

    async def next_machines(self, guid: bytes) -> list[MachineEntry]:
        """Those that the directory names as the next hop, for people.  Raises Refusal."""
        return await self._next_entries(guid)

    async def _next_entries(self, guid: bytes) -> list[MachineEntry]:
        """Those that may be the next hop; the destination where there is nothing to go by."""
        directory = self._directory
        there = await directory.machine(guid)
        try:
            here = await directory.machine(self._services.id)
        except DirectoryAway:
            raise
        except DirectoryError:
            if there.foreign:
                raise _no_connector(there) from None
            return [there]  # we are in no site
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
            # Nobody of our kind is there: its connector server is a routing server of its site.
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
                f"the directory knows no way from here to {there.name}: no routing server or site"
                " gate between the sites",
                "See the sites and their links in the directory, or give a route in [routing].",
            )
        return entries

    def stop(self) -> None:
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
    """Host and port of each of its addresses, in the order in which they are tried."""
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
