"""The topology of a world with relays, and the routes in the configuration of each host.

    anna ─ carl ─ bert             one relay: anna reaches bert only over carl
    anna ─ carl ─ dora ─ bert      two relays
    anna ─ carl ─ bert, anna ─ bert     a direct route as well, which may be closed

Without direct route a connection is a broken promise: the routes forbid to try it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

#: (host, destination) -> the next hop.
Routes = dict[tuple[str, str], str]

_RELAY_BYTES = ("1MB", "1GB")
CLOSED_PROBABILITY = 0.6  # of a direct route, in the phase of faults


@dataclass(slots=True)
class Topology:
    """The hosts of a world, its relays and its routes."""

    names: tuple[str, ...]
    relays: tuple[str, ...]
    routes: Routes
    has_direct_route: bool = False  # hosts may use the direct route as well
    is_direct_closed: bool = False
    configurations: dict[str, str] = field(default_factory=dict)

    def allows_connection(self, one: str, other: str) -> bool:
        """Return whether `one` may connect to `other`."""
        return self.has_direct_route or (one, other) not in self.routes

    @property
    def closed_pairs(self) -> Iterator[tuple[str, str]]:
        """The pairs of hosts with a direct route that is closed in the phase of faults."""
        if self.is_direct_closed:
            yield from self.routes


def draw_topology(source: random.Random) -> Topology:
    """Draw a topology from a source that is used for nothing else."""
    if source.random() < 0.25:
        names: tuple[str, ...] = ("anna", "bert", "carl", "dora")
        relays: tuple[str, ...] = ("carl", "dora")
        routes = {
            ("anna", "bert"): "carl",
            ("anna", "dora"): "carl",
            ("carl", "bert"): "dora",
            ("bert", "anna"): "dora",
            ("bert", "carl"): "dora",
            ("dora", "anna"): "carl",
        }
        topology = Topology(names, relays, routes)
    else:
        names, relays = ("anna", "bert", "carl"), ("carl",)
        routes = {("anna", "bert"): "carl", ("bert", "anna"): "carl"}
        topology = Topology(names, relays, routes, has_direct_route=source.random() < 0.3)
        topology.is_direct_closed = (
            topology.has_direct_route and source.random() < CLOSED_PROBABILITY
        )
    for name in names:
        topology.configurations[name] = _configuration(name, topology, source)
    return topology


def address_of(name: str) -> str:
    """Return the address that the world gives to a host."""
    return f"10.0.0.{('anna', 'bert', 'carl', 'dora').index(name) + 1}"


def _configuration(name: str, topology: Topology, source: random.Random) -> str:
    hop_format = source.choice(("{hop}", "{address}"))
    rules: list[str] = []
    for (here, there), hop in topology.routes.items():
        if here != name:
            continue
        via = hop_format.format(hop=hop, address=address_of(hop))
        if topology.has_direct_route:
            via = source.choice((f"direct then {via}", f"{via} then direct"))
        rules += [f"{there} via {via}", f"{address_of(there)} via {via}"]
    hops = {hop for (here, _), hop in topology.routes.items() if here == name}
    if len(hops) == 1 and not topology.has_direct_route and name not in topology.relays:
        (hop,) = hops
        if source.random() < 0.4:
            rules = [f"* via {hop_format.format(hop=hop, address=address_of(hop))}"]
    routing = f"routes = {rules}".replace("'", '"')
    if name in topology.relays:
        others = [each for each in topology.names if each != name]
        peers = source.choice((["10.0.0.0/8"], [address_of(each) for each in others]))
        to = source.choice((["10.0.0.0/24"], [address_of(each) for each in others]))
        routing += f"\nrelay_for = {peers}\nrelay_to = {to + others}".replace("'", '"')
        routing += f'\nrelay_bytes_max = "{source.choice(_RELAY_BYTES)}"'
    return f"[routing]\n{routing}\n"
