"""Changes of the directory: the queue manager, its public queues, distribution lists."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from protocol.names.format_name import DistributionListName, PublicName, parse_format_name
from qmd.directory.active_directory import ActiveDirectory
from qmd.directory.active_directory_entries import QUEUE
from qmd.directory.interface import (
    AlreadyInDirectory,
    DirectoryDenied,
    DirectoryIdentityDiffers,
    EntryUnusable,
    NewQueue,
    NotInDirectory,
)
from tests.directory.domain import administrator, directory, quoted_password
from tests.directory.domain_controller import DomainController

COMPUTER_PASSWORD = "Comp-P@ss1"
USER_PASSWORD = "Joe-P@ssw0rd"
DIRECT = parse_format_name("DIRECT=OS:pc9\\private$\\till")
OTHER = parse_format_name("DIRECT=TCP:10.0.0.5\\private$\\till")


@pytest.fixture(scope="module")
def accounts(
    controller: DomainController, tmp_path_factory: pytest.TempPathFactory
) -> SimpleNamespace:
    """Yield a computer with rights for its own objects, and a user without rights."""
    folder = tmp_path_factory.mktemp("passwords")
    accounts = SimpleNamespace()
    for name, password in (("computer", COMPUTER_PASSWORD), ("user", USER_PASSWORD)):
        file = folder / name
        file.touch(mode=0o600)
        file.write_text(password)
        user = "PC1$@msmq.test" if name == "computer" else "joe@msmq.test"
        setattr(accounts, name, {"user": user, "password_file": file})

    async def fill() -> None:
        async with administrator(controller) as domain:
            await domain.computer(
                "PC1", host="pc1.msmq.test", unicodePwd=quoted_password(COMPUTER_PASSWORD)
            )
            await domain.computer("PC2")
            await domain.add(
                f"CN=joe,{domain.users}",
                "user",
                sAMAccountName="joe",
                userAccountControl=512,
                unicodePwd=quoted_password(USER_PASSWORD),
            )

    asyncio.run(fill())
    return accounts


def act(
    controller: DomainController,
    what: Callable[[ActiveDirectory], Awaitable[Any]],
    **changes: object,
) -> Any:
    async def run() -> Any:
        async with directory(controller, **changes) as found:
            return await what(found)

    return asyncio.run(run())


def new(machine: bytes, queue: str, **more: Any) -> NewQueue:
    return NewQueue(machine=machine, computer="pc1", queue=queue, **more)


@pytest.fixture
def machine(controller: DomainController, accounts: SimpleNamespace) -> bytes:
    return act(controller, lambda directory: directory.join("pc1"), **accounts.computer)


def test_a_computer_gets_its_id_from_the_directory_and_gets_the_same_again(
    controller, accounts, machine
):
    again = act(controller, lambda directory: directory.join("PC1.msmq.test"), **accounts.computer)
    entry = act(controller, lambda directory: directory.machine(machine))

    assert again == machine
    assert entry.name == "PC1"
    assert len(entry.sites) == 1  # there is only one site, so the computer is in it


def test_a_computer_adds_finds_and_deletes_its_own_queues(controller, accounts, machine):
    async def run(directory: ActiveDirectory) -> None:
        given = {"label": "Waren «neu»", "transactional": True, "type": bytes(range(16))}
        made = await directory.changes.register_queue(new(machine, "own", **given))
        assert made.path == "pc1\\own"
        assert (made.label, made.transactional, made.type) == tuple(given.values())
        assert made.machine.guid == machine

        assert await directory.queue(made.guid) == made
        assert await directory.queue_by_path("pc1\\own") == made

        with pytest.raises(AlreadyInDirectory, match="pc1"):
            await directory.changes.register_queue(new(machine, "OWN"))

        await directory.changes.unregister_queue(made.guid)
        with pytest.raises(NotInDirectory):
            await directory.queue(made.guid)
        with pytest.raises(NotInDirectory):
            await directory.changes.unregister_queue(made.guid)

    act(controller, run, **accounts.computer)


def test_a_change_of_a_queue_is_written_to_its_entry(controller, accounts, machine):
    changing = ("mSMQLabelEx", "mSMQJournal", "mSMQQueueQuota", "mSMQQueueJournalQuota")

    async def run(directory: ActiveDirectory) -> None:
        made = await directory.changes.register_queue(
            new(machine, "changing", label="one", quota_bytes=1025, journal=True)
        )

        async def stored() -> dict[str, tuple[bytes, ...]]:
            with directory._client.limited():
                looked = await directory._look_ups.by_guid(
                    made.guid, ("objectClass", *changing), QUEUE, "it"
                )
            return {name: looked.attributes.get(name.lower(), ()) for name in changing}

        assert list((await stored()).values()) == [(b"one",), (b"TRUE",), (b"2",), ()]

        await directory.changes.update_queue(
            made.guid, new(machine, "changing", label="two", journal_quota_bytes=10_240)
        )
        assert list((await stored()).values()) == [(b"two",), (b"FALSE",), (), (b"10",)]
        assert (await directory.queue(made.guid)).label == "two"

        await directory.changes.update_queue(made.guid, new(machine, "changing"))
        assert list((await stored()).values()) == [(), (b"FALSE",), (), ()]

        await directory.changes.unregister_queue(made.guid)
        with pytest.raises(NotInDirectory):
            await directory.changes.update_queue(made.guid, new(machine, "changing"))

    act(controller, run, **accounts.computer)


@pytest.mark.parametrize("name", ["a,b+c", "#=<>;", 'quote"', "grün €", "n" * 63, "m" * 64])
def test_any_name_of_a_queue_can_be_registered(controller, accounts, machine, name):
    async def run(directory: ActiveDirectory) -> tuple[object, object]:
        made = await directory.changes.register_queue(new(machine, name))
        return made, await directory.queue_by_path(f"pc1\\{name}")

    made, found = act(controller, run, **accounts.computer)

    assert made == found
    assert made.queue == name.lower()


@pytest.mark.parametrize("label", ["x" * 125, "ü" * 125])
def test_a_label_that_the_directory_rejects_is_refused_beforehand(
    controller, accounts, machine, label
):
    with pytest.raises(EntryUnusable, match="125 characters"):
        act(
            controller,
            lambda directory: directory.changes.register_queue(
                new(machine, "labelled", label=label)
            ),
            **accounts.computer,
        )


def test_a_user_without_rights_gets_an_error(controller, accounts, machine):
    with pytest.raises(DirectoryDenied, match="insufficient access"):
        act(
            controller,
            lambda directory: directory.changes.register_queue(new(machine, "not-mine")),
            **accounts.user,
        )
    with pytest.raises(DirectoryDenied):
        act(controller, lambda directory: directory.join("pc2"), **accounts.user)


def test_a_queue_manager_with_another_id_than_in_the_directory_registers_nothing(
    controller, accounts, machine
):
    with pytest.raises(DirectoryIdentityDiffers):
        act(
            controller,
            lambda directory: directory.changes.register_queue(new(bytes(15) + b"1", "q")),
        )


def test_a_computer_that_is_not_in_the_directory_cannot_join(controller, accounts):
    with pytest.raises(NotInDirectory, match="computer pc77"):
        act(controller, lambda directory: directory.join("pc77"))


# Lists.


def test_a_list_is_created_changed_and_deleted(controller, accounts, machine):
    async def run(directory: ActiveDirectory) -> None:
        queue = await directory.changes.register_queue(new(machine, "listed"))
        inner = await directory.changes.create_list("inner", [PublicName(queue.guid)])
        members = [PublicName(queue.guid), DistributionListName(inner.guid), DIRECT]

        made = await directory.changes.create_list("tills", members)
        assert set(made.members) == set(members)
        with pytest.raises(AlreadyInDirectory, match="tills"):
            await directory.changes.create_list("tills")

        more = await directory.changes.add_members(made.guid, [OTHER, DIRECT])
        assert set(more.members) == {*members, OTHER}
        assert len(more.members) == 4

        with pytest.raises(NotInDirectory, match="private"):
            await directory.changes.remove_members(inner.guid, [PublicName(queue.guid), DIRECT])
        assert (await directory.distribution_list(inner.guid)).members == (PublicName(queue.guid),)

        fewer = await directory.changes.remove_members(made.guid, [OTHER, PublicName(queue.guid)])
        assert set(fewer.members) == {DistributionListName(inner.guid), DIRECT}

        await directory.changes.delete_list(made.guid)
        await directory.changes.delete_list(inner.guid)
        with pytest.raises(NotInDirectory):
            await directory.distribution_list(made.guid)

    act(controller, run)


def test_an_alias_made_for_a_list_is_deleted_with_the_last_such_list(controller, accounts):
    async def run(directory: ActiveDirectory) -> None:
        first = await directory.changes.create_list("first", [DIRECT])
        second = await directory.changes.create_list("second", [DIRECT])
        assert first.members == second.members == (DIRECT,)

        await directory.changes.delete_list(first.guid)
        assert (await directory.distribution_list(second.guid)).members == (DIRECT,)
        await directory.changes.remove_members(second.guid, [DIRECT])

        again = await directory.changes.create_list("third", [DIRECT])
        alias = await own_alias(controller)
        assert alias.startswith("CN=third ")
        await directory.changes.delete_list(again.guid)
        await directory.changes.delete_list(second.guid)

    act(controller, run)


async def own_alias(controller: DomainController) -> str:
    """Return the distinguished name of the only alias."""
    async with administrator(controller) as domain:
        return await domain.only("msMQ-Custom-Recipient")


def test_a_list_may_contain_itself(controller, accounts):
    async def run(directory: ActiveDirectory) -> None:
        made = await directory.changes.create_list("cycle")
        more = await directory.changes.add_members(made.guid, [DistributionListName(made.guid)])
        assert more.members == (DistributionListName(made.guid),)
        await directory.changes.delete_list(made.guid)

    act(controller, run)


def test_a_queue_that_is_deleted_is_no_longer_a_member(controller, accounts, machine):
    async def run(directory: ActiveDirectory) -> None:
        queue = await directory.changes.register_queue(new(machine, "short-lived"))
        made = await directory.changes.create_list("mortals", [PublicName(queue.guid)])
        await directory.changes.unregister_queue(queue.guid)
        assert (await directory.distribution_list(made.guid)).members == ()
        await directory.changes.delete_list(made.guid)

    act(controller, run)


def test_a_read_only_queue_is_no_member(controller, accounts):
    journal = parse_format_name("DIRECT=OS:pc9\\private$\\till;JOURNAL")

    with pytest.raises(EntryUnusable, match="only be read"):
        act(controller, lambda directory: directory.changes.create_list("journals", [journal]))
    with pytest.raises(NotInDirectory):
        act(controller, lambda directory: directory.list_by_name("journals"))


def test_lists_are_created_in_the_configured_container(controller, accounts, tmp_path: Path):
    unit = f"OU=Lists,{controller.base}"

    async def run(found: ActiveDirectory) -> None:
        async with administrator(controller) as domain:
            await domain.add(unit, "organizationalUnit")
            made = await found.changes.create_list("placed")
            assert await domain.guid(f"CN=placed,{unit}") == made.guid

    act(controller, run, lists=unit)


def test_a_user_without_rights_changes_no_list(controller, accounts):
    with pytest.raises(DirectoryDenied):
        act(controller, lambda directory: directory.changes.create_list("mine"), **accounts.user)


def test_an_alias_is_created_found_listed_and_deleted(controller, accounts):
    target = parse_format_name(r"DIRECT=OS:hostb\private$\aliased")

    async def run(directory: ActiveDirectory) -> None:
        made = await directory.changes.create_alias("by-name", target)
        assert (made.name, made.target) == ("by-name", target)
        assert await directory.alias("BY-NAME") == made
        assert made in await directory.aliases()
        with pytest.raises(AlreadyInDirectory, match="by-name"):
            await directory.changes.create_alias("by-name", target)

        await directory.changes.delete_alias("by-name")
        with pytest.raises(NotInDirectory):
            await directory.alias("by-name")
        with pytest.raises(NotInDirectory):
            await directory.changes.delete_alias("by-name")

    act(controller, run)
