"""Two thousand queues and a list of all of them: pages, ranges, concurrent look-ups."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from sansldap import FilterEquality

from protocol.names.format_name import PublicName
from qmd.core.retry import Retry
from qmd.directory import active_directory_lookups
from qmd.directory.interface import EntryUnusable
from qmd.directory.ldap import client as ldap_client
from qmd.directory.ldap.client import LdapClient
from qmd.directory.ldap.messages import Entry, Scope
from tests.directory.domain import access, directory, server
from tests.directory.domain_controller import DomainController

COUNT = 2000  # a multiple of the page: the last page is empty

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def controller(
    template: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DomainController]:
    controller = DomainController(tmp_path_factory.mktemp("crowd") / "dc")
    controller.copy(template)
    controller.fill(COUNT)
    controller.start()
    yield controller
    controller.close()


def test_a_search_of_more_than_one_page_finds_all_once(controller):
    async def run() -> list[Entry]:
        manager = f"CN=msmq,CN=PC1,CN=Computers,{controller.base}"
        client = LdapClient(
            [server(controller)], access(controller), retry=Retry(first_s=1.0, max_s=1.0)
        )
        wanted = FilterEquality(attribute="objectClass", value=b"mSMQQueue")
        try:
            with client.limited():
                return await client.search(
                    *(manager, Scope.ONE_LEVEL, wanted, ("objectGUID",)), entries_max=10_000
                )
        finally:
            await client.stop()

    entries = asyncio.run(run())

    assert len(entries) == COUNT > 3 * ldap_client.PAGE_ENTRIES
    assert len({entry.attributes["objectguid"] for entry in entries}) == COUNT


@pytest.mark.parametrize("step", [1500, 500, 333])
def test_a_list_of_thousands_is_read_range_after_range(controller, step):
    async def run() -> tuple[object, ...]:
        async with directory(controller, range_values=step, timeout_s=30.0) as found:
            return (await found.list_by_name("all")).members

    members = asyncio.run(run())

    assert len(members) == COUNT
    assert len(set(members)) == COUNT
    assert all(isinstance(member, PublicName) for member in members)


def test_a_list_of_more_members_than_can_be_used_is_unusable(controller, monkeypatch):
    monkeypatch.setattr(active_directory_lookups, "MEMBERS_MAX", 1000)

    async def run() -> None:
        async with directory(controller, range_values=500) as found:
            await found.list_by_name("all")

    with pytest.raises(EntryUnusable, match="more than 1000 members"):
        asyncio.run(run())
