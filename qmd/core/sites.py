"""Routing through sites: the queue managers that may be the next hop. [MS-MQBR] 3.1.5

    source ── out-routing servers ──► or, within a site, ──► destination, or its in-routing servers
       └── a routing server of its site ──► site gate ──► gate of the next site on the cheapest path

Where the algorithm leaves a choice ("one of them"), all candidates are returned, the first one
first: hops are tried in turn. The gates of the cheapest path are followed by those of the next
cheapest path.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from typing import NamedTuple


class Machine(NamedTuple):
    """Routing data of a queue manager. [MS-MQDMPR] 3.1.1.1"""

    guid: bytes
    sites: frozenset[bytes] = frozenset()
    in_routers: tuple[bytes, ...] = ()
    out_routers: tuple[bytes, ...] = ()
    routes: bool = False


class Site(NamedTuple):
    """A site, [MS-MQDMPR] 3.1.1.7; `links`: the adjacent sites and the cost of the link to each."""

    guid: bytes
    gates: tuple[bytes, ...] = ()
    links: tuple[tuple[bytes, int], ...] = ()


def next_hops(
    source: Machine,
    destination: Machine,
    sites: Mapping[bytes, Site],
    routers: Iterable[bytes] = (),
) -> tuple[bytes, ...]:
    """Return the GUIDs to be tried in turn, [MS-MQBR] 3.1.5.1; empty: the routing attempt fails.

    `routers` are the routing servers of the sites of the source; the gates of these sites are
    assumed to be such servers as well.
    """
    gates = _gates(source, sites)
    if source.routes:
        if source.guid not in gates:
            return _for_router(source, destination, gates)
        return _for_gate(source, destination, sites)
    if source.out_routers:
        return source.out_routers
    if source.sites & destination.sites:
        return destination.in_routers or (destination.guid,)
    return _unique((*routers, *gates))


def _for_router(
    source: Machine, destination: Machine, gates: tuple[bytes, ...]
) -> tuple[bytes, ...]:
    """Return the next hops of a routing server that is no site gate. [MS-MQBR] 3.1.5.2"""
    return _within(source, destination) or gates


def _for_gate(
    source: Machine, destination: Machine, sites: Mapping[bytes, Site]
) -> tuple[bytes, ...]:
    """Return the next hops of a site gate. [MS-MQBR] 3.1.5.3"""
    within = _within(source, destination)
    if within:
        return within
    found: list[bytes] = []
    for site in next_sites(source.sites, destination.sites, sites):
        if site in sites:
            found += sites[site].gates
    return _unique(guid for guid in found if guid != source.guid)


def _within(source: Machine, destination: Machine) -> tuple[bytes, ...]:
    """Return the last hops, within a site or from an in-routing server; empty: neither applies."""
    if source.guid in destination.in_routers:
        return (destination.guid,)
    if source.sites & destination.sites:
        return destination.in_routers or (destination.guid,)
    return ()


def next_sites(
    here: frozenset[bytes], there: frozenset[bytes], sites: Mapping[bytes, Site]
) -> list[bytes]:
    """Return the adjacent sites on paths to `there`, the cheapest first. [MS-MQBR] 3.1.3.1

    The cost of a link is the same in both directions.
    """
    links: dict[bytes, dict[bytes, int]] = {guid: {} for guid in sites}
    for site in sites.values():
        for other, cost in site.links:
            for one, two in ((site.guid, other), (other, site.guid)):
                costs = links.setdefault(one, {})
                costs[two] = min(cost, costs.get(two, cost))
    # From the destination outwards, and never through one of our own sites.
    distance: dict[bytes, int] = {}
    ahead = [(0, guid) for guid in sorted(there)]
    while ahead:
        cost, guid = heappop(ahead)
        if guid in distance or guid in here:
            continue
        distance[guid] = cost
        for other, more in links.get(guid, {}).items():
            heappush(ahead, (cost + more, other))
    best: dict[bytes, int] = {}
    for own in here:
        for other, cost in links.get(own, {}).items():
            if other in distance:
                total = cost + distance[other]
                best[other] = min(total, best.get(other, total))
    return sorted(best, key=lambda guid: (best[guid], guid))


def _gates(machine: Machine, sites: Mapping[bytes, Site]) -> tuple[bytes, ...]:
    return _unique(
        gate for guid in sorted(machine.sites) if guid in sites for gate in sites[guid].gates
    )


def _unique(guids: Iterable[bytes]) -> tuple[bytes, ...]:
    return tuple(dict.fromkeys(guids))
