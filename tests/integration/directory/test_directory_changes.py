"""Changes of the directory: outages, recreated queues, concurrent writers, and aliases."""

import asyncio
from dataclasses import asdict
from functools import partial

import pytest
import structlog.testing

from protocol.identifiers import guid_text
from qmd.client import (
    BadName,
    DirectoryFailed,
    NoSuchQueue,
    QueueManager,
    QueueManagerError,
    connect,
)
from qmd.directory.file.format import parse
from qmd.errors import Refusal
from qmd.queues.local_queue import relatives
from storage.tables import directory_changes
from tests.integration.directory.shared_directory import create_public, directory_of, start
from tests.integration.managers import Hosts, hosted, until


@hosted
async def test_a_changed_distribution_list_applies_to_the_next_send(hosts: Hosts) -> None:
    a, b = await start(hosts, "a"), await start(hosts, "b")
    await create_public(b, "orders", transactional=True)
    for name in ("one", "two"):
        await a.create(name, transactional=True)
    directory_of(hosts).write_text(
        directory_of(hosts)
        .read_text()
        .replace('name = "b"\n', f'name = "b"\naddresses = ["127.0.0.1:{b.port}"]\n')
    )
    await a.directory.reload()  # type: ignore[attr-defined]

    async with connect(a.socket) as qm:
        await qm.directory.create_list("inner", ["one", "b\\orders"])
        await qm.directory.create_list("all", ["list:inner"])
        await qm.directory.add_members("all", ["list:all"])
        await qm.send("list:all", b"1", delivery="transactional")
        await qm.directory.add_members("inner", ["two"])
        await qm.directory.remove_members("inner", ["one"])
        await qm.send("list:all", b"2", delivery="transactional")

    await until(lambda: b.queue(".\\orders").messages == 2)
    await b.settled()
    assert await b.receive(".\\orders") == [b"1", b"2"]
    assert await a.receive("one") == [b"1"]
    assert await a.receive("two") == [b"2"]


@hosted
async def test_two_queue_managers_that_write_one_directory_file_keep_each_others_entries(
    hosts: Hosts,
) -> None:
    a, b = await start(hosts, "a"), await start(hosts, "b")

    await asyncio.gather(
        *(create_public(host, f"q{number}") for host in (a, b) for number in range(10))
    )

    found = parse(directory_of(hosts).read_text(), directory_of(hosts))
    assert sorted(entry.path for entry in found.queues.values()) == sorted(
        f"{name}\\q{number}" for name in "ab" for number in range(10)
    )


@hosted
async def test_a_commit_to_a_deleted_public_queue_aborts(hosts: Hosts) -> None:
    a = await start(hosts, "a")
    await a.create("orders", transactional=True)
    await a.send("orders", b"before")
    entry = f'[[machine]]\nname = "c"\nguid = "{guid_text(bytes(range(16)))}"\n'
    directory_of(hosts).write_text(entry + "[[queue]]\npath = 'c\\orders'\n")
    await a.directory.reload()  # type: ignore[attr-defined]

    async def work(qm: QueueManager) -> None:
        async with qm.transaction() as transaction:
            await transaction.send("c\\orders", b"1")
            assert await transaction.receive("orders") is not None
            directory_of(hosts).write_text(entry)
            await qm.directory.reload()

    async with connect(a.socket) as qm:
        with pytest.raises(NoSuchQueue):
            await work(qm)

    assert await a.receive("orders") == [b"before"], "it is back"
    assert sum(queue.messages for queue in a.outgoing.queues) == 0


@hosted
async def test_a_change_of_a_public_queue_is_written_to_the_directory(hosts: Hosts) -> None:
    a = await start(hosts, "a")
    await create_public(a, "orders")

    async with connect(a.socket) as qm:
        changed = await qm.set_queue(".\\orders", label="Orders, all")

    assert not changed["directory_waits"]
    found = await a.directory.queue_by_path("a\\orders")
    assert found.label == "Orders, all"
    assert await a.storage.read(directory_changes.list_all) == []


@hosted
async def test_a_change_during_an_outage_of_the_directory_is_written_when_it_is_back(
    hosts: Hosts,
) -> None:
    a = await start(hosts, "a", directory={"pause_s": 0.01})
    await create_public(a, "orders")
    await create_public(a, "gone")
    away = directory_of(hosts).rename(directory_of(hosts).with_name("away.toml"))
    same = asdict(a.services.settings.directory)
    a = await hosts.restart(a, directory=same)  # its cache of the file is empty now

    async with connect(a.socket) as qm:
        changed = await qm.set_queue(".\\orders", label="Orders, all")
        await qm.delete_queue(".\\gone")
        status = await qm.directory.status()

    assert changed["directory_waits"]
    assert status["has_yet_to_hear"] == [".\\orders has changed", ".\\gone was deleted"]
    with pytest.raises(Refusal, match="no queue"):
        a.queue(".\\gone")
    a = await hosts.restart(a, directory=same)
    assert len(a.registration.waiting) == 2
    away.rename(directory_of(hosts))
    await until(lambda: not a.registration.waiting, "the directory")
    found = await a.directory.queue_by_path("a\\orders")
    assert found.label == "Orders, all"
    assert "gone" not in directory_of(hosts).read_text()
    await a.settled()
    assert await a.storage.read(directory_changes.list_all) == []


@hosted
async def test_a_queue_that_is_deleted_and_recreated_keeps_its_entry(hosts: Hosts) -> None:
    a = await start(hosts, "a", directory={"pause_s": 60.0})
    await create_public(a, "orders")
    queue = a.queue(".\\orders")
    change = a.registration.change_of(queue, deleted=True)
    assert change is not None
    async with a.registration.turn:  # the directory's change waits
        await a.storage.batch.run(partial(directory_changes.note, row=change))
        await a.queue_deletion._delete(queue, relatives(queue), change)
        a.registration.notify_later(change)
        creating = asyncio.ensure_future(create_public(a, "orders"))
        await asyncio.sleep(0.02)
    again = await creating

    await a.settled()
    assert a.registration.waiting == []
    assert await a.storage.read(directory_changes.list_all) == []
    found = await a.directory.queue_by_path("a\\orders")
    assert again["public_name"] == f"PUBLIC={guid_text(found.guid)}"


@hosted
async def test_a_change_that_the_directory_refuses_is_logged(hosts: Hosts) -> None:
    a = await start(hosts, "a")
    await create_public(a, "orders")
    text = directory_of(hosts).read_text()
    directory_of(hosts).write_text(text.replace("[[queue]]", "[[ queue ]]\nlabel.x = 1"))

    with structlog.testing.capture_logs() as logs:
        async with connect(a.socket) as qm:
            changed = await qm.set_queue(".\\orders", label="Orders, all")

    assert changed["label"] == "Orders, all"
    assert [each["code"] for each in logs if each["event"] == "directory_entry_differs"] == [
        "directory_entry_differs"
    ]
    assert a.registration.waiting == []


@hosted
async def test_an_alias_is_created_used_shown_and_deleted(hosts: Hosts) -> None:
    a = await start(hosts, "a")
    await a.create("orders")
    await create_public(a, "bills")

    async with connect(a.socket) as qm:
        made = await qm.directory.create_alias("sales", "orders")
        await qm.directory.create_alias("alias:Money", "a\\bills")
        await qm.directory.create_list("all", ["alias:sales", "a\\bills"])
        await qm.send("alias:SALES,alias:money", b"1")
        listed = await qm.directory.aliases()
        with pytest.raises(DirectoryFailed, match="has a queue alias Sales already"):
            await qm.directory.create_alias("Sales", "bills")
        with pytest.raises(QueueManagerError, match="is a list"):
            await qm.directory.create_alias("lists", "list:all")
        with pytest.raises(QueueManagerError, match="cannot be sent to"):
            await qm.directory.create_alias("journal", "orders;journal")
        assert await qm.directory.delete_alias("Sales") == {"name": "Sales", "deleted": True}
        with pytest.raises(NoSuchQueue):
            await qm.send("alias:sales", b"2")
        with pytest.raises(NoSuchQueue):
            await qm.directory.delete_alias("sales")

    assert made["stands_for"] == f"DIRECT=OS:a:{a.port}\\private$\\orders"
    assert [each["name"] for each in listed] == ["Money", "sales"]
    assert await a.receive("orders") == await a.receive(".\\bills") == [b"1"]
    assert directory_of(hosts).read_text().startswith("# Written by a person.\n")


@hosted
async def test_a_deleted_alias_is_removed_from_the_lists_that_name_it(hosts: Hosts) -> None:
    a = await start(hosts, "a")
    directory_of(hosts).write_text(
        "[[alias]]\nname = 'sales'\ntarget = 'q1@h'\n"
        "[[list]]\nname = 'all'\nmembers = [\n    'alias:Sales',\n    'q2@h',\n]\n"
    )
    await a.directory.reload()  # type: ignore[attr-defined]

    await a.directory.changes.delete_alias("sales")

    assert [str(each) for each in (await a.directory.list_by_name("all")).members] == [
        r"DIRECT=OS:h\private$\q2"
    ]


@hosted
async def test_a_multicast_name_is_refused_wherever_it_could_stand(hosts: Hosts) -> None:
    a = await start(hosts, "a")
    name = "MULTICAST=234.1.1.1:8001"
    await a.create("orders")
    async with connect(a.socket) as qm:
        await qm.directory.create_list("all", ["orders"])
        await qm.topics.create("news")
        uses = [
            lambda: qm.send(name, b""),
            lambda: qm.send(f"orders,{name}", b""),
            lambda: qm.send("orders", b"", response_queue=name),
            lambda: qm.send("orders", b"", admin_queue=name, acknowledge=1),
            lambda: qm.receive(name),
            lambda: qm.topics.subscribe("news", "one", name),
            lambda: qm.access.grant("everyone", "send", name),
            lambda: qm.directory.create_list("one", [name]),
            lambda: qm.directory.add_members("all", [name]),
            lambda: qm.directory.create_alias("one", name),
        ]
        for use in uses:
            with pytest.raises(BadName, match="MULTICAST="):
                await use()
    assert a.queue("orders").messages == 0
