"""Rights that are imported while others change them, and while queues end."""

from __future__ import annotations

import asyncio

import pytest

from qmd.access.register import ENTRIES_MAX, holder_of
from qmd.control_protocol.access import ImportedEntry, ImportedOwner
from qmd.core.access import Entry
from qmd.core.principals import parse_principal
from qmd.errors import Refusal
from tests.integration.managers import Host, Hosts, hosted, until

ROUNDS = 6
BOB = parse_principal("host:10.1.2.3")


def allowed(queue: str, principal: str = "sasl:ann") -> ImportedEntry:
    return ImportedEntry(queue, principal, None, "allow", "receive")


def texts(host: Host, queue: str) -> set[str]:
    return {str(each) for each in host.access_register.entries_of(f"private$\\{queue}")}


@hosted
async def test_a_denial_that_is_made_during_an_import_stays(hosts: Hosts) -> None:
    host = await hosts.start()
    register, administration = host.access_register, host.components.access_administration
    for at in range(ROUNDS):
        queue = await host.create(f"q{at}")
        await asyncio.gather(
            administration.take_in([allowed(f"q{at}")], [], replace=False),
            register.deny(holder_of(queue), BOB, frozenset({"send"})),
        )
    expected = {"allow sasl:ann receive", "deny host:10.1.2.3/32 send"}
    assert [texts(host, f"q{at}") for at in range(ROUNDS)] == [expected] * ROUNDS
    host = await hosts.restart(host)
    assert [texts(host, f"q{at}") for at in range(ROUNDS)] == [expected] * ROUNDS


@hosted
async def test_a_queue_that_is_made_again_during_an_import_gets_no_rights_of_the_old_one(
    hosts: Hosts,
) -> None:
    host = await hosts.start()
    register, administration = host.access_register, host.components.access_administration
    await host.create("kept")
    for at in range(ROUNDS):
        queue = await host.create(f"q{at}")
        await register.grant(holder_of(queue), BOB, frozenset({"receive"}))
        # Either for this queue, or for another one: the former entries must not come back.
        about, owners = (f"q{at}", "kept")[at % 2], [ImportedOwner(f"q{at}", "sasl:ann", None)]
        imports = [
            asyncio.create_task(
                administration.take_in([allowed(about)], owners[: 1 - at % 2], replace=False)
            )
            for _ in range(3)
        ]
        # The next ones wait for the commit of the first.
        await until(register._turn.locked, "the first import to be stored")
        await host.components.queue_deletion.delete(queue)
        await asyncio.gather(*imports, return_exceptions=True)
        again = await host.create(f"q{at}")
        assert texts(host, f"q{at}") == set()
        assert register.owner_of(again) is None
    host = await hosts.restart(host)
    for at in range(ROUNDS):
        assert texts(host, f"q{at}") == set()
        assert host.access_register.owner_of(host.queue(f"q{at}")) is None


@hosted
async def test_an_import_keeps_the_limit_of_entries(hosts: Hosts) -> None:
    """A decision reads all entries of its object."""
    host = await hosts.start()
    holder, register = holder_of(await host.create("orders")), host.access_register
    users = [parse_principal(f"sasl:user{at}") for at in range(ENTRIES_MAX)]
    many = [(holder, Entry(each, True, frozenset({"send"}))) for each in users]

    await register.take_in(many, replace=False)
    await register.take_in(many, replace=False)  # the same ones again
    with pytest.raises(Refusal, match="at most") as refused:
        await host.components.access_administration.take_in([allowed("orders")], [], replace=False)

    assert refused.value.code == "too_many_entries"
    assert len(texts(host, "orders")) == ENTRIES_MAX
