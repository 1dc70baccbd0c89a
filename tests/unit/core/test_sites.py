"""Routes between sites.  [MS-MQBR] 3.1.5"""

from qmd.core.sites import Machine, Site, next_hops, next_sites


def guid(name: str) -> bytes:
    return name.encode().ljust(16, b"\0")


def site(name: str, *gates: str, **costs: int) -> Site:
    links = tuple((guid(other), cost) for other, cost in costs.items())
    return Site(guid(name), tuple(map(guid, gates)), links)


def machine(name: str, *sites: str, routes: bool = False) -> Machine:
    return Machine(guid(name), frozenset(map(guid, sites)), routes=routes)


SITES = {
    each.guid: each
    for each in (
        site("one", "gate1", two=1, three=5),
        site("two", "gate2a", "gate2b", three=1),
        site("three", "gate3", four=1),
        site("four", "gate4"),
        site("alone"),
    )
}


def test_within_a_site_the_route_is_direct_or_over_in_routing_servers():
    here, there = machine("here", "one"), machine("there", "one")

    assert next_hops(here, there, SITES) == (guid("there"),)
    behind = there._replace(in_routers=(guid("r1"), guid("r2")))
    assert next_hops(here, behind, SITES) == (guid("r1"), guid("r2"))


def test_out_routing_servers_have_precedence():
    here = machine("here", "one")._replace(out_routers=(guid("r1"),))

    assert next_hops(here, machine("there", "one"), SITES) == (guid("r1"),)


def test_the_route_to_another_site_goes_over_local_routing_servers_and_gates():
    here, there = machine("here", "one"), machine("there", "four")

    assert next_hops(here, there, SITES) == (guid("gate1"),)
    assert next_hops(here, there, SITES, [guid("r")]) == (guid("r"), guid("gate1"))
    assert next_hops(machine("r", "one", routes=True), there, SITES) == (guid("gate1"),)


def test_a_gate_takes_the_cheapest_path_and_then_the_next_cheapest():
    gate = machine("gate1", "one", routes=True)

    assert next_hops(gate, machine("there", "three"), SITES) == (
        guid("gate2a"),
        guid("gate2b"),
        guid("gate3"),
    )
    assert next_sites(frozenset({guid("one")}), frozenset({guid("three")}), SITES) == [
        guid("two"),
        guid("three"),
    ]


def test_an_in_routing_server_routes_to_its_machine():
    there = machine("there", "one")._replace(in_routers=(guid("r"),))

    assert next_hops(machine("r", "one", routes=True), there, SITES) == (guid("there"),)
    of_gate = there._replace(in_routers=(guid("gate1"),))
    assert next_hops(machine("gate1", "one", routes=True), of_gate, SITES) == (guid("there"),)


def test_links_work_in_both_directions_and_a_site_without_links_is_unreachable():
    gate = machine("gate4", "four", routes=True)

    assert next_hops(gate, machine("there", "one"), SITES) == (guid("gate3"),)
    assert next_hops(gate, machine("there", "alone"), SITES) == ()
    assert next_hops(machine("here"), machine("there", "one"), SITES) == ()
