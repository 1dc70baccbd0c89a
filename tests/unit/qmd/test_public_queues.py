"""Whole queue managers that share a directory file: public queues, and what is sent to them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from protocol.identifiers import guid_text
from qmd.client import Acknowledge, DirectoryFailed, NoSuchQueue, QueueManager, connect
from qmd.directory.file_format import parse
from qmd.refusal import Refusal
from tests.unit.qmd.managers import Host, Hosts, hosted, until


def directory_of(hosts: Hosts) -> Path:
    return hosts._folder / "directory.toml"


async def start(hosts: Hosts, name: str, **sections: Any) -> Host:
    file = directory_of(hosts)
    if name == "a":
        file.write_text("# Written by a person.\n")
    directory = {"kind": "file", "file": file, "reload_s": 0.01} | sections.pop("directory", {})
    return await hosts.start(name, directory=directory, **sections)


async def create_public(host: Host, name: str, **properties: Any) -> Any:
    async with connect(host.socket) as qm:
        return await qm.create_queue(name, public=True, **properties)


@hosted
async def test_a_public_queue_is_registered_and_found_by_every_name(hosts: Hosts) -> None:
    a = await start(hosts, "a")

    facts = await create_public(a, "orders", label="Orders")

    text = directory_of(hosts).read_text()
    entry = parse(text, directory_of(hosts)).queue_by_path("a\\orders")
    assert text.startswith("# Written by a person.\n")
    assert entry is not None
    assert entry.machine.guid == a.id
    assert facts["public_name"] == f"PUBLIC={guid_text(entry.guid)}"
    assert (facts["name"], facts["format_name"]) == (".\\orders", "DIRECT=OS:.\\orders")
    async with connect(a.socket) as qm:
        for name in (".\\orders", "a\\orders", "DIRECT=OS:a\\orders", facts["public_name"]):
            await qm.send(name, name.encode())
    assert len(await a.receive(".\\orders")) == 4
    with pytest.raises(Refusal, match="no queue private"):
        a.queue("orders")


@hosted
async def test_a_public_and_a_private_queue_of_one_name_are_two(hosts: Hosts) -> None:
    a = await start(hosts, "a")
    await a.create("orders")
    await create_public(a, ".\\orders")

    await a.send("orders", b"private")
    await a.send(".\\orders", b"public")

    assert await a.receive("orders") == [b"private"]
    assert await a.receive(".\\orders") == [b"public"]


@hosted
async def test_a_public_queue_is_the_same_after_a_restart_without_the_directory(
    hosts: Hosts,
) -> None:
    a = await start(hosts, "a")
    facts = await create_public(a, "orders", journal=True)
    await a.send(".\\orders", b"1")

    a = await hosts.restart(a)

    assert a.directory.kind == "none"
    await a.send(facts["public_name"], b"2")
    assert await a.receive(facts["public_name"]) == [b"1", b"2"]
    assert a.queue(".\\orders;journal").messages == 2


@hosted
async def test_a_deleted_public_queue_is_no_longer_registered(hosts: Hosts) -> None:
    a = await start(hosts, "a")
    await create_public(a, "orders")

    async with connect(a.socket) as qm:
        await qm.delete_queue(".\\orders")

    assert "orders" not in directory_of(hosts).read_text()


@hosted
async def test_an_entry_that_waits_for_its_queue_is_taken_up(hosts: Hosts) -> None:
    a = await start(hosts, "a")
    guid = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
    directory_of(hosts).write_text(
        f'[[machine]]\nname = "a"\nguid = "{guid_text(a.id)}"\n'
        f"[[queue]]\npath = 'a\\orders'\nguid = \"{guid}\"\n"
    )
    await a.directory.reload()  # type: ignore[attr-defined]  # it is the file

    facts = await create_public(a, "orders")

    assert facts["public_name"] == f"PUBLIC={guid}"
    with pytest.raises(Refusal, match=r"there is a queue \.\\orders already"):
        await a.administration.create(
            "orders", transactional=False, label="", journal=False, quota_bytes=None, public=True
        )


@hosted
async def test_without_a_directory_there_are_no_public_queues(hosts: Hosts) -> None:
    a = await hosts.start("a")

    with pytest.raises(Refusal) as caught:
        await a.administration.create(
            "orders", transactional=False, label="", journal=False, quota_bytes=None, public=True
        )

    assert caught.value.code == "name_needs_directory"
    assert ".\\orders" not in [queue.name for queue in a.queues.values()]


@hosted
async def test_a_message_to_a_public_queue_elsewhere_gets_there(hosts: Hosts) -> None:
    a, b = await start(hosts, "a"), await start(hosts, "b")
    facts = await create_public(b, "orders", transactional=True)
    await a.create("hello")
    await b.send(f"DIRECT=TCP:127.0.0.1:{a.port}\\private$\\hello", b"")  # a session is a way
    await until(lambda: a.queue("hello").messages)

    async with connect(a.socket) as qm:
        for number in range(20):
            name = "b\\orders" if number % 2 else facts["public_name"]
            await qm.send(name, b"%d" % number, delivery="transactional")

    await until(lambda: b.queue(".\\orders").messages == 20)
    await b.settled()
    assert await b.receive(".\\orders") == [b"%d" % number for number in range(20)]
    (outgoing,) = [q for q in a.outgoing.queues if q.destination.startswith("PUBLIC=")]
    assert outgoing.link.guid == b.id
    assert a.routes.find_outgoing("b\\orders") is outgoing
    await until(lambda: not outgoing.messages)


@hosted
async def test_what_comes_behind_a_send_that_waits_for_the_directory_stays_behind_it(
    hosts: Hosts,
) -> None:
    a = await start(hosts, "a")
    await create_public(a, "first")
    other = await start(hosts, "b")
    await create_public(other, "orders")
    await a.directory.reload()  # type: ignore[attr-defined]

    async with connect(a.socket) as qm:
        sends = [
            asyncio.ensure_future(qm.send(name, b"%d" % number))
            for number, name in enumerate(["b\\orders", ".\\first", "b\\nothing", ".\\first"])
        ]
        done = await asyncio.gather(*sends, return_exceptions=True)

    assert [isinstance(each, str) for each in done] == [True, True, False, True]
    assert isinstance(done[2], NoSuchQueue)
    assert done[2].code == "not_in_directory"
    numbers = [int(each.rpartition("\\")[2]) for each in done if isinstance(each, str)]
    assert numbers == sorted(numbers)


@hosted
async def test_a_commit_waits_for_the_directory_too(hosts: Hosts) -> None:
    a, b = await start(hosts, "a"), await start(hosts, "b")
    facts = await create_public(b, "orders", transactional=True)
    await a.directory.reload()  # type: ignore[attr-defined]

    async with connect(a.socket) as qm, qm.transaction() as transaction:
        await transaction.send("b\\orders", b"1")
        a.resolver.forget()

    (outgoing,) = a.outgoing.queues
    assert outgoing.destination == facts["public_name"]
    assert outgoing.messages == 1


@hosted
async def test_an_acknowledgment_finds_the_public_queue_that_it_is_asked_to(hosts: Hosts) -> None:
    a, b = await start(hosts, "a"), await start(hosts, "b")
    await b.create("orders")
    acks = await create_public(a, "acks")
    directory_of(hosts).write_text(
        directory_of(hosts)
        .read_text()
        .replace('name = "a"\n', f'name = "a"\naddresses = ["127.0.0.1:{a.port}"]\n')
    )
    await b.directory.reload()  # type: ignore[attr-defined]

    await a.send(
        f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\orders",
        b"1",
        admin_queue=acks["public_name"],
        acknowledge=int(Acknowledge.POSITIVE_ARRIVAL),
    )

    await until(lambda: a.queue(".\\acks").messages, "the acknowledgment")


@hosted
async def test_a_list_may_stand_for_the_queues_that_get_acknowledgments(hosts: Hosts) -> None:
    a, b = await start(hosts, "a"), await start(hosts, "b")
    await b.create("orders")
    await a.create("one")
    await a.create("two")
    here = f"DIRECT=TCP:127.0.0.1:{a.port}\\private$\\"
    async with connect(a.socket) as qm:
        await qm.directory.create_list("acks", [f"{here}one", f"{here}two"])

        await qm.send(
            f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\orders",
            b"1",
            admin_queue="list:acks",
            acknowledge=Acknowledge.POSITIVE_ARRIVAL,
        )

    await until(lambda: a.queue("one").messages and a.queue("two").messages, "both of them")


@hosted
async def test_a_list_that_changes_between_two_sends_counts_for_the_second(hosts: Hosts) -> None:
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
async def test_a_private_name_leads_to_a_computer_that_the_directory_knows(hosts: Hosts) -> None:
    a, b = await start(hosts, "a"), await start(hosts, "b")
    queue = await b.create("orders")
    directory_of(hosts).write_text(
        f'[[machine]]\nname = "b"\nguid = "{guid_text(b.id)}"\naddresses = ["127.0.0.1:{b.port}"]\n'
    )
    await a.directory.reload()  # type: ignore[attr-defined]

    await a.send(f"PRIVATE={guid_text(b.id)}\\{queue.id:08x}", b"1")

    await until(lambda: queue.messages)
    await b.settled()
    assert await b.receive("orders") == [b"1"]


@hosted
async def test_two_that_write_into_one_file_lose_nothing_of_each_other(hosts: Hosts) -> None:
    a, b = await start(hosts, "a"), await start(hosts, "b")

    await asyncio.gather(
        *(create_public(host, f"q{number}") for host in (a, b) for number in range(10))
    )

    found = parse(directory_of(hosts).read_text(), directory_of(hosts))
    assert sorted(entry.path for entry in found.queues.values()) == sorted(
        f"{name}\\q{number}" for name in "ab" for number in range(10)
    )


@hosted
async def test_a_directory_that_is_away_holds_up_nobody_who_does_not_need_it(hosts: Hosts) -> None:
    a = await start(hosts, "a")
    await a.create("orders")
    directory_of(hosts).unlink()
    b = await start(hosts, "b", directory={"file": hosts._folder / "never.toml"})
    await b.create("orders")

    async with connect(b.socket) as qm:
        refused = await asyncio.gather(
            qm.send("orders,a\\orders", b"both"), qm.send("orders", b"one"), return_exceptions=True
        )

    assert isinstance(refused[0], DirectoryFailed)
    assert refused[0].code == "directory_away"
    assert "element 2 of 2, a\\orders" in refused[0].text
    assert await b.receive("orders") == [b"one"], "and nothing of the message to both"


@hosted
async def test_a_commit_to_a_public_queue_that_is_gone_aborts(hosts: Hosts) -> None:
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
