"""Queue managers that share a directory file: public queues, and messages to them."""

import asyncio
from dataclasses import asdict
from typing import Any

import pytest
import structlog.testing

from protocol import parse_user_message
from protocol.identifiers import guid_text
from qmd.client import Acknowledge, DirectoryFailed, NoSuchQueue, connect
from qmd.control_protocol import messages as frames
from qmd.directory.file.format import parse
from qmd.errors import Refusal
from qmd.operations.large_removals import Remover
from qmd.queues.local_queue import Reader
from storage.tables import unaddressed
from tests.integration.directory.shared_directory import create_public, directory_of, start
from tests.integration.managers import PATIENCE_S, Host, Hosts, hosted, until


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
async def test_a_public_and_a_private_queue_of_one_name_are_two_queues(hosts: Hosts) -> None:
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
async def test_an_existing_entry_is_used_for_a_new_queue(hosts: Hosts) -> None:
    a = await start(hosts, "a")
    guid = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
    directory_of(hosts).write_text(
        f'[[machine]]\nname = "a"\nguid = "{guid_text(a.id)}"\n'
        f"[[queue]]\npath = 'a\\orders'\nguid = \"{guid}\"\n"
    )
    await a.directory.reload()  # type: ignore[attr-defined]  # a file directory

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
    assert ".\\orders" not in [queue.name for queue in a.queues.by_key.values()]


@hosted
async def test_a_message_to_a_remote_public_queue_arrives(hosts: Hosts) -> None:
    a, b = await start(hosts, "a"), await start(hosts, "b")
    facts = await create_public(b, "orders", transactional=True)
    await a.create("hello")
    await b.send(f"DIRECT=TCP:127.0.0.1:{a.port}\\private$\\hello", b"")  # opens a session to a
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
    assert a.destinations.find_outgoing("b\\orders") is outgoing
    await until(lambda: not outgoing.messages)


@hosted
async def test_a_later_send_does_not_overtake_one_that_waits_for_the_directory(
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
async def test_a_commit_waits_for_the_directory_as_well(hosts: Hosts) -> None:
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
async def test_an_acknowledgment_arrives_at_a_public_administration_queue(hosts: Hosts) -> None:
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


def _with_addresses(hosts: Hosts, *named: Host) -> str:
    """Return the text of the directory with the addresses of the named hosts."""
    text = directory_of(hosts).read_text()
    for host in named:
        entry = f'name = "{host.services.name}"\n'
        text = text.replace(entry, f'{entry}addresses = ["127.0.0.1:{host.port}"]\n')
    return text


async def _sent_while_b_is_without_its_directory(
    hosts: Hosts, bodies: list[bytes], **properties: Any
) -> tuple[Host, Host]:
    """Let b accept messages of a while the directory of b is unavailable.

    Their acknowledgments are for a public queue of a, so they wait.  Returns a and b.
    """
    a = await start(hosts, "a")
    away = {"file": hosts._folder / "b.toml", "pause_s": 0.01}
    b = await start(hosts, "b", directory=away)
    await b.create("orders")
    acks = await create_public(a, "acks")
    await a.send(
        f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\orders",
        *bodies,
        admin_queue=acks["public_name"],
        acknowledge=int(Acknowledge.POSITIVE_ARRIVAL),
        **properties,
    )
    await until(lambda: b.deferred_acknowledgments.count == len(bodies), "what waits")
    return a, b


async def _all_acknowledged(*named: Host) -> None:
    await until(lambda: not any(each.messages for host in named for each in host.outgoing.queues))


@hosted
async def test_an_acknowledgment_that_waits_for_the_directory_survives_a_restart(
    hosts: Hosts,
) -> None:
    a, b = await _sent_while_b_is_without_its_directory(hosts, [b"1", b"2", b"3"])

    b = await hosts.restart(b, directory=asdict(b.services.settings.directory))
    await until(
        lambda: b.deferred_acknowledgments.count == 3,
        "what waits, after the start too",
    )
    (hosts._folder / "b.toml").write_text(_with_addresses(hosts, a))

    await until(lambda: a.queue(".\\acks").messages == 3, "the acknowledgments")
    sent = await a.peek(".\\acks")
    correlated = [parse_user_message(each.packet).properties.correlation_id for each in sent]
    assert correlated == sorted(correlated), "they are in another order than what they speak of"
    await until(lambda: not b.deferred_acknowledgments.count)
    assert await b.storage.read(unaddressed.list_all) == []
    await _all_acknowledged(a, b)


@hosted
async def test_acknowledgments_of_receipt_that_are_made_in_parts_wait_for_the_directory(
    hosts: Hosts,
) -> None:
    a = await start(hosts, "a")
    b = await start(hosts, "b", directory={"file": hosts._folder / "b.toml", "pause_s": 0.01})
    await b.create("orders")
    acks, queue = await create_public(a, "acks"), b.queue("orders")
    remover = Remover("ann", lambda seconds: None, lambda: True)

    async def receive() -> None:
        await a.send(
            f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\orders",
            *[b"1", b"2", b"3"],
            admin_queue=acks["public_name"],
            acknowledge=int(Acknowledge.POSITIVE_RECEIVE),
        )
        reader, taken = Reader(), list[int]()
        while len(taken) < 3:
            found = await b.take(reader, "orders", 3, PATIENCE_S)
            taken += [each.lookup_id for each in found]
        removed = b.large_removals.remove(reader, queue, taken, b"", lambda: None, remover)
        assert await removed == 3

    await receive()
    assert b.deferred_acknowledgments.count == 3
    assert len(await b.storage.read(unaddressed.list_all)) == 3
    (hosts._folder / "b.toml").write_text(_with_addresses(hosts, a))
    await until(lambda: a.queue(".\\acks").messages == 3, "the acknowledgments")
    await receive()
    await until(lambda: a.queue(".\\acks").messages == 6, "those that need not wait")

    sent = [parse_user_message(each.packet) for each in await a.peek(".\\acks")]
    correlated = [each.properties.correlation_id for each in sent]
    assert correlated == sorted(set(correlated))
    assert await b.storage.read(unaddressed.list_all) == []
    await _all_acknowledged(a, b)


@hosted
async def test_an_acknowledgment_waits_while_the_directory_is_unavailable(hosts: Hosts) -> None:
    a, b = await _sent_while_b_is_without_its_directory(hosts, [b"1"], delivery=frames.EXPRESS)

    await asyncio.sleep(0.05)  # some more attempts to ask it
    (hosts._folder / "b.toml").write_text(_with_addresses(hosts, a))

    await until(lambda: a.queue(".\\acks").messages == 1, "the acknowledgment")
    await _all_acknowledged(a, b)


@hosted
async def test_an_acknowledgment_to_a_queue_missing_in_the_directory_is_dropped_and_logged(
    hosts: Hosts,
) -> None:
    a, b = await _sent_while_b_is_without_its_directory(hosts, [b"1"])

    with structlog.testing.capture_logs() as logs:
        (hosts._folder / "b.toml").write_text("# Nobody is here.\n")
        await until(lambda: not b.deferred_acknowledgments.count)

    (line,) = [each for each in logs if each["event"] == "acknowledgment_not_sent"]
    assert "has no public queue" in line["reason"]
    await _all_acknowledged(a, b)
    await b.settled()
    assert await b.storage.read(unaddressed.list_all) == []


@hosted
async def test_a_distribution_list_may_be_the_administration_queue(hosts: Hosts) -> None:
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
async def test_a_private_name_is_resolved_to_a_computer_of_the_directory(hosts: Hosts) -> None:
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
async def test_an_unavailable_directory_does_not_delay_sends_that_do_not_need_it(
    hosts: Hosts,
) -> None:
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
async def test_reports_go_to_a_public_queue_wherever_the_directory_says_it_is(
    hosts: Hosts,
) -> None:
    """Neither the sender nor the receiver has the queue.  [MS-MQQB] 3.1.5.8.9, 3.1.7.1.7"""
    a = await start(hosts, "a")
    b, c = await start(hosts, "b"), await start(hosts, "c")
    facts = await create_public(c, "reports")
    directory_of(hosts).write_text(_with_addresses(hosts, a, b, c))
    await b.create("orders")
    name = f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\orders"
    async with connect(a.socket) as qm:
        await qm.send(name, b"x", report_queue=facts["public_name"])

    await until(lambda: c.queue(".\\reports").messages == 2, "a report of each step")

    reports = [parse_user_message(each.packet) for each in await c.peek(".\\reports")]
    assert {each.user.source_queue_manager for each in reports} == {a.id, b.id}


@hosted
async def test_reports_of_a_queue_that_no_directory_knows_go_to_the_sender(hosts: Hosts) -> None:
    a, b = await start(hosts, "a"), await start(hosts, "b")
    await a.create("reports")
    await b.create("orders")
    name = f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\orders"
    async with connect(a.socket) as qm:
        await qm.send(name, b"x", report_queue="reports")

    await until(lambda: a.queue("reports").messages == 2, "a report of each step")
