"""Which hosts reach each other, and what the configuration of each says of the ways.

    anna ─ carl ─ bert             a relay: no road leads from anna to bert but over carl
    anna ─ carl ─ dora ─ bert      two of them
    anna ─ carl ─ bert, anna ─ bert     over carl as well, where the straight road is closed

Where there is no road a connection is a broken promise: a route says that it is not to be tried.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

#: Of each host: over whom it reaches whom it has no road to.
Ways = dict[tuple[str, str], str]

_RELAY_BYTES = ("1MB", "1GB")
CLOSED = 0.6  # how often the straight road is closed while things go wrong, where there is one


@dataclass(slots=True)
class Roads:
    names: tuple[str, ...]
    relays: tuple[str, ...]
    ways: Ways
    is_straight: bool = False  # the ways are for when the straight road is closed, or before it
    is_closed: bool = False
    configurations: dict[str, str] = field(default_factory=dict)

    def join(self, one: str, other: str) -> bool:
        return self.is_straight or (one, other) not in self.ways

    @property
    def straight(self) -> Iterator[tuple[str, str]]:
        """From one end to the other, where it is closed for long."""
        if self.is_closed:
            yield from self.ways


def draw_roads(source: random.Random) -> Roads:
    """`source` is asked for nothing else."""
    if source.random() < 0.25:
        names: tuple[str, ...] = ("anna", "bert", "carl", "dora")
        relays: tuple[str, ...] = ("carl", "dora")
        ways = {
            ("anna", "bert"): "carl",
            ("anna", "dora"): "carl",
            ("carl", "bert"): "dora",
            ("bert", "anna"): "dora",
            ("bert", "carl"): "dora",
            ("dora", "anna"): "carl",
        }
        roads = Roads(names, relays, ways)
    else:
        names, relays = ("anna", "bert", "carl"), ("carl",)
        ways = {("anna", "bert"): "carl", ("bert", "anna"): "carl"}
        roads = Roads(names, relays, ways, is_straight=source.random() < 0.3)
        roads.is_closed = roads.is_straight and source.random() < CLOSED
    for name in names:
        roads.configurations[name] = _configuration(name, roads, source)
    return roads


def address_of(name: str) -> str:
    """As the world gives them to its hosts."""
    return f"10.0.0.{('anna', 'bert', 'carl', 'dora').index(name) + 1}"


def _configuration(name: str, roads: Roads, source: random.Random) -> str:
    hop_format = source.choice(("{hop}", "{address}"))
    rules: list[str] = []
    for (here, there), hop in roads.ways.items():
        if here != name:
            continue
        way = hop_format.format(hop=hop, address=address_of(hop))
        if roads.is_straight:
            way = source.choice((f"direct then {way}", f"{way} then direct"))
        rules += [f"{there} via {way}", f"{address_of(there)} via {way}"]
    hops = {hop for (here, _), hop in roads.ways.items() if here == name}
    if len(hops) == 1 and not roads.is_straight and name not in roads.relays:
        (hop,) = hops
        if source.random() < 0.4:
            rules = [f"* via {hop_format.format(hop=hop, address=address_of(hop))}"]
    routing = f"routes = {rules}".replace("'", '"')
    if name in roads.relays:
        others = [each for each in roads.names if each != name]
        whom = source.choice((["10.0.0.0/8"], [address_of(each) for each in others]))
        to = source.choice((["10.0.0.0/24"], [address_of(each) for each in others]))
        routing += f"\nrelay_for = {whom}\nrelay_to = {to + others}".replace("'", '"')
        routing += f'\nrelay_bytes_max = "{source.choice(_RELAY_BYTES)}"'
    return f"[routing]\n{routing}\n"
