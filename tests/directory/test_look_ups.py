"""Look-ups in a real Active Directory: queues, aliases, lists, computers, sites."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from protocol.identifiers import guid_text
from protocol.names.format_name import DistributionListName, PublicName, parse_format_name
from qmd.directory.active_directory import ActiveDirectory
from qmd.directory.interface import EntryUnusable, NotInDirectory, SiteLink
from tests.directory.domain import administrator, directory, server
from tests.directory.domain_controller import DomainController

T = TypeVar("T")
UNKNOWN = bytes(range(16))
SPECIAL = ("a,b", 'quote"d', "plus+minus", "semi;colon", "#hash", "less<more>", "equal=s")
SPECIAL += (" space ", "back\\slash", "star*", "(paren)", "grüße€", "\U0001f600")
LONG = "long-" + "x" * 110


@pytest.fixture(scope="module")
def world(controller: DomainController) -> SimpleNamespace:
    """Yield two computers with queue managers, one of them moved; queues, aliases, lists, sites."""
    return asyncio.run(_fill(controller))


async def _fill(controller: DomainController) -> SimpleNamespace:
    world = SimpleNamespace()
    async with administrator(controller) as domain:
        world.domain = domain
        sites = f"CN=Sites,{domain.configuration}"
        world.sites = {
            name: await domain.add(f"CN={name},{sites}", "site") for name in ("North", "South")
        }
        unit = f"OU=Shops,{domain.base}"
        await domain.add(unit, "organizationalUnit")
        moved = await domain.computer("PC1", host="pc1.msmq.test", below=unit)
        other = await domain.computer("PC2")
        router = await domain.computer("ROUTER", host="router.msmq.test")
        world.router_dn = await domain.queue_manager(
            router, mSMQRoutingServices="TRUE", mSMQSites=world.sites["North"]
        )
        world.router = await domain.guid(world.router_dn)
        world.msmq = await domain.queue_manager(
            moved,
            mSMQSites=[world.sites["North"], world.sites["South"]],
            mSMQOutRoutingServers=world.router_dn,
            mSMQInRoutingServers=world.router_dn,
        )
        world.manager = await domain.guid(world.msmq)
        world.other = await domain.queue_manager(other, mSMQForeign="TRUE")
        await domain.computer("BARE")
        world.orders = await domain.queue(
            world.msmq,
            "Orders",
            mSMQLabelEx="Bestellungen äöü €",
            mSMQTransactional="TRUE",
            mSMQQueueType=UNKNOWN,
        )
        world.plain = await domain.queue(world.other, "plain")
        world.special = {name: await domain.queue(world.msmq, name) for name in SPECIAL}
        world.long = await domain.queue(world.msmq, LONG)
        world.alike = await domain.queue(world.msmq, LONG + "2")
        world.alias = await domain.alias("till", "DIRECT=OS:pc9\\private$\\till")
        world.alias_dn = f"CN=till,{domain.users}"
        await domain.alias("broken", "DIRECT=nonsense")
        await domain.add(f"CN=empty,{domain.users}", "msMQ-Custom-Recipient")
        orders = f"CN=Orders,{world.msmq}"
        world.inner = await domain.group("inner", f"CN=plain,{world.other}", world.alias_dn)
        world.outer = await domain.group("outer", orders, f"CN=inner,{domain.users}")
        world.none = await domain.group("nobody")
        world.mine = await domain.add(f"CN=mine,{unit}", "msMQ-Group", member=orders)
        joe = f"CN=joe,{domain.users}"
        await domain.add(joe, "user", sAMAccountName="joe")
        world.people = await domain.group("people", orders, joe)
        await domain.add(
            f"CN=north-south,{domain.services}",
            "mSMQSiteLink",
            mSMQSite1=f"CN=North,{sites}",
            mSMQSite2=f"CN=South,{sites}",
            mSMQCost=7,
            mSMQSiteGates=world.router_dn,
        )
    return world


@pytest.fixture
def ask(controller: DomainController) -> Callable[[Callable[[ActiveDirectory], Awaitable[T]]], T]:
    """Make one look-up in the directory, on a connection of its own."""

    def ask(act: Callable[[ActiveDirectory], Awaitable[T]], **changes: Any) -> T:
        async def run() -> T:
            async with directory(controller, **changes) as found:
                return await act(found)

        return asyncio.run(run())

    return ask


def test_a_public_queue_is_found_by_its_guid_with_its_computer(ask, world):
    queue = ask(lambda directory: directory.queue(world.orders))

    assert queue.guid == world.orders
    assert queue.path == "pc1\\orders"
    assert queue.label == "Bestellungen äöü €"
    assert queue.transactional is True
    assert queue.type == UNKNOWN
    assert queue.machine.guid == world.manager
    assert queue.machine.name == "PC1"
    assert queue.machine.addresses == ("pc1.msmq.test",)
    assert set(queue.machine.sites) == set(world.sites.values())
    assert queue.machine.in_routers == queue.machine.out_routers == (world.router,)


def test_missing_properties_of_a_queue_have_their_defaults(ask, world):
    queue = ask(lambda directory: directory.queue(world.plain))

    assert (queue.label, queue.transactional, queue.type) == ("", False, bytes(16))
    assert (queue.machine.addresses, queue.machine.foreign) == ((), True)


def test_the_error_for_a_guid_of_another_object_names_its_class(ask, world):
    with pytest.raises(NotInDirectory) as refused:
        ask(lambda directory: directory.queue(world.outer))

    assert guid_text(world.outer) in refused.value.text
    assert "distribution list" in refused.value.remedy


@pytest.mark.parametrize("look_up", ["queue", "machine", "distribution_list"])
def test_an_unknown_guid_is_not_in_the_directory(ask, world, look_up):
    with pytest.raises(NotInDirectory, match=guid_text(UNKNOWN)):
        ask(lambda directory: getattr(directory, look_up)(UNKNOWN))


@pytest.mark.parametrize("path", ["pc1\\orders", "PC1.MSMQ.TEST\\ORDERS"])
def test_a_public_queue_is_found_by_its_path_name_wherever_its_computer_stands(ask, world, path):
    assert ask(lambda directory: directory.queue_by_path(path)).guid == world.orders


@pytest.mark.parametrize("name", SPECIAL)
def test_special_characters_in_the_name_of_a_queue_are_literal(ask, world, name):
    found = ask(lambda directory: directory.queue_by_path(f"pc1\\{name}"))

    assert found.guid == world.special[name]


def test_long_names_are_distinguished_by_their_ends(ask, world):
    async def both(directory):
        return [await directory.queue_by_path(f"pc1\\{LONG}{end}") for end in ("", "2")]

    first, second = ask(both)

    assert (first.guid, second.guid) == (world.long, world.alike)
    assert first.queue == LONG


@pytest.mark.parametrize(
    "path", ["pc1\\missing", "pc1\\*", "nobody\\orders", "*\\orders", "bare\\orders", "pc1\\Order"]
)
def test_an_unknown_path_is_not_in_the_directory(ask, world, path):
    with pytest.raises(NotInDirectory):
        ask(lambda directory: directory.queue_by_path(path))


@pytest.mark.parametrize("form", ["till", "CN=till,CN=Users,{0}", "LDAP://CN=till,CN=Users,{0}"])
def test_an_alias_is_found_by_its_name_and_by_its_distinguished_name(ask, world, form):
    path = form.format(world.domain.base)

    alias = ask(lambda directory: directory.alias(path))

    assert (alias.guid, alias.name) == (world.alias, "till")
    assert alias.target == parse_format_name("DIRECT=OS:pc9\\private$\\till")


@pytest.mark.parametrize(("name", "word"), [("broken", "nonsense"), ("empty", "no queue")])
def test_an_alias_without_a_target_is_unusable_and_named(ask, world, name, word):
    with pytest.raises(EntryUnusable, match=word) as refused:
        ask(lambda directory: directory.alias(name))

    assert f"CN={name}" in refused.value.text


def test_a_list_has_its_queues_aliases_and_lists_as_members(ask, world):
    async def both(directory):
        return [await directory.distribution_list(one) for one in (world.outer, world.inner)]

    outer, inner = ask(both)

    assert outer.name == "outer"
    assert set(outer.members) == {PublicName(world.orders), DistributionListName(world.inner)}
    assert {str(member) for member in inner.members} == {
        f"PUBLIC={guid_text(world.plain)}",
        "DIRECT=OS:pc9\\private$\\till",
    }


def test_a_list_may_be_empty_and_may_be_of_message_queuings_own_class(ask, world):
    async def both(directory):
        return [
            await directory.distribution_list(world.none),
            await directory.distribution_list(world.mine, "msmq.test"),
        ]

    unknown, mine = ask(both)

    assert unknown.members == ()
    assert mine.members == (PublicName(world.orders),)


def test_a_member_that_is_no_queue_makes_the_list_unusable_and_is_named(ask, world):
    with pytest.raises(EntryUnusable, match="CN=joe") as refused:
        ask(lambda directory: directory.distribution_list(world.people))

    assert "people" in refused.value.text


def test_lists_are_found_by_name_and_listed_without_security_groups(ask, world):
    async def both(directory):
        return await directory.list_by_name("OUTER"), await directory.lists()

    outer, lists = ask(both)

    assert outer.guid == world.outer
    assert [one.name for one in lists] == ["inner", "mine", "nobody", "outer", "people"]


def test_a_computer_is_found_by_the_guid_of_its_queue_manager_and_by_its_names(ask, world):
    async def all_ways(directory):
        return [
            await directory.machine(world.manager),
            await directory.machine_by_name("pc1"),
            await directory.machine_by_name("pc1.msmq.test"),
            await directory.machine(world.router),
        ]

    by_guid, by_name, by_host, router = ask(all_ways)

    assert by_guid == by_name == by_host
    assert (router.routes, by_guid.routes) == (True, False)


def test_sites_have_their_links_in_both_directions_with_costs_and_gates(ask, world):
    sites = {site.name: site for site in ask(lambda directory: directory.sites())}

    north, south = world.sites["North"], world.sites["South"]
    assert sites["North"].guid == north
    assert sites["North"].links == (SiteLink(south, 7, (world.router,)),)
    assert sites["South"].links == (SiteLink(north, 7, (world.router,)),)
    assert (sites["North"].gates, sites["South"].gates) == ((world.router,), ())
    assert sites["Default-First-Site-Name"].links == ()


def test_a_global_catalogue_is_asked_like_any_server(controller, world):
    catalogue = server(controller, port=controller.ports[3269])

    async def run() -> tuple[str, str]:
        async with directory(controller, (catalogue,)) as found:
            queue = await found.queue(world.orders)
            return queue.path, (await found.machine_by_name("pc1")).name

    assert asyncio.run(run()) == ("pc1\\orders", "PC1")


def test_many_look_ups_at_once_share_one_connection(ask, world):
    async def many(directory):
        found = await asyncio.gather(*(directory.queue(world.orders) for _ in range(300)))
        return {queue.path for queue in found}

    assert ask(many) == {"pc1\\orders"}
