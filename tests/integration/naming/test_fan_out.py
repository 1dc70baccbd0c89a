"""Packets list all queues that got a copy, including those of distribution lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from protocol import parse_user_message
from protocol.headers import PACKET_BYTES_MAX
from protocol.names.format_name import (
    DirectName,
    DistributionListName,
    MultipleName,
    PublicName,
    parse_destination,
)
from protocol.names.multi_queue import MQF_ELEMENTS_MAX
from qmd.client import Message, QueueManagerError, SentId, connect
from qmd.control_protocol.messages import RECOVERABLE, NewMessage, StoredMessage
from qmd.directory.resolver import Resolution
from qmd.directory.targets import Target
from qmd.errors import Refusal
from qmd.message.addresses import NO_ADDRESS, multi_queue_size, queue_address
from qmd.message.build import compose, packet_size
from qmd.naming.fan_out import several_of
from tests.integration.managers import Host, Hosts, hosted, until


def directory_of(hosts: Hosts) -> Path:
    return hosts._folder / "directory.toml"


async def with_directory(hosts: Hosts, *names: str) -> list[Host]:
    """Start hosts that share a directory with their addresses."""
    file = directory_of(hosts)
    file.write_text("# Written by a person.\n")
    directory = {"kind": "file", "file": file, "reload_s": 0.01}
    found = [await hosts.start(name, directory=directory) for name in names]
    file.write_text(
        "".join(
            f'[[machine]]\nname = "{host.services.name}"\nguid = "{host_guid(host)}"\n'
            f'addresses = ["127.0.0.1:{host.port}"]\n'
            for host in found
        )
    )
    await reload(*found)
    return found


def host_guid(host: Host) -> str:
    from protocol.identifiers import guid_text

    return guid_text(host.id)


async def reload(*hosts: Host) -> None:
    for host in hosts:
        await host.directory.reload()  # type: ignore[attr-defined]
        host.resolver.forget()


@hosted
async def test_members_follow_their_list_in_every_copy(hosts: Hosts) -> None:
    a, b = await with_directory(hosts, "a", "b")
    there = f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\"
    for host, queue in ((b, "one"), (b, "two"), (b, "three"), (a, "mine"), (a, "alone")):
        await host.create(queue)
    async with connect(a.socket) as qm:
        public = await qm.create_queue("all", public=True)
        inner = await qm.directory.create_list("inner", [f"{there}two", f"{there}three"])
        outer = await qm.directory.create_list(
            "outer", [f"{there}one", "list:inner", ".\\all", "DIRECT=OS:a\\private$\\mine"]
        )
        await reload(a, b)
        sent = await qm.send(f"alone,list:outer,{there}one", b"x")
    assert isinstance(sent, SentId)
    assert len(sent.copies) == 7
    assert inner["format_name"] != outer["format_name"]

    listed = [
        "DIRECT=OS:a\\private$\\alone",
        outer["format_name"],
        f"{there}one".replace(f":{b.port}", ""),
        f"{there}two".replace(f":{b.port}", ""),
        f"{there}three".replace(f":{b.port}", ""),
        public["public_name"],
        "DIRECT=OS:a\\private$\\mine",
        f"{there}one".replace(f":{b.port}", ""),
    ]
    for host, queue, count in (
        *((b, "one", 2), (b, "two", 1), (b, "three", 1)),
        *((a, "mine", 1), (a, "alone", 1), (a, ".\\all", 1)),
    ):
        await until(
            lambda host=host, queue=queue, count=count: host.queue(queue).messages == count, queue
        )
        await host.settled()
        for stored in await host.peek(queue):
            found = Message(stored).destinations
            assert [_without_port(each, b.port) for each in found] == listed
    await until(lambda: not any(each.messages for each in a.outgoing.queues), "acknowledgments")


def _without_port(name: str, port: int) -> str:
    return name.replace(f":{port}\\", "\\")


@hosted
async def test_a_single_distribution_list_is_listed_with_its_members(hosts: Hosts) -> None:
    a, b = await with_directory(hosts, "a", "b")
    async with connect(b.socket) as there:
        facts = [
            await there.create_queue(name, public=True, transactional=True)
            for name in ("one", "two")
        ]
    await reload(a, b)
    async with connect(a.socket) as qm:
        made = await qm.directory.create_list("both", ["b\\one", "b\\two"])
        await reload(a, b)
        async with qm.transaction():
            await qm.send("list:both", b"1" + bytes(4000))
            await qm.send("list:both", b"2")
    for name in (".\\one", ".\\two"):
        await until(lambda name=name: b.queue(name).messages == 2, name)
        await b.settled()
        for stored in await b.peek(name):
            assert Message(stored).destinations == [
                made["format_name"],
                *(each["public_name"] for each in facts),
            ]
    await until(lambda: not any(each.messages for each in a.outgoing.queues), "acknowledgments")


def resolution(count: int) -> Resolution:
    """Return the resolution of a list of `count` public queues."""
    list_name = DistributionListName(bytes(15) + b"\1")
    targets = tuple(
        Target(PublicName(number.to_bytes(16, "little")), 0, None) for number in range(1, count + 1)
    )
    return Resolution(list_name, targets)


def test_no_more_queues_are_listed_than_a_header_can_hold() -> None:
    largest = several_of(resolution(MQF_ELEMENTS_MAX - 1), own_name="a")
    destination = queue_address(PublicName(bytes(15) + b"\2"))
    new = NewMessage("list:all", b"x")
    packet = compose(
        new,
        source=bytes(16),
        destination=destination,
        admin=NO_ADDRESS,
        response=NO_ADDRESS,
        message_number=1,
        sent_time_s=1_700_000_000,
        delivery=RECOVERABLE,
        position=None,
        destinations=largest.addresses,
    )
    assert len(packet) == packet_size(
        new, destination, NO_ADDRESS, NO_ADDRESS, RECOVERABLE, largest.addresses
    )
    header = parse_user_message(packet).multi_queue
    assert header is not None
    assert len(header.destination.elements) == MQF_ELEMENTS_MAX
    shown = Message(StoredMessage(1, 0, packet)).destinations
    assert shown[0].startswith("DL=")
    assert len([name for name in shown if name.startswith("PUBLIC=")]) == MQF_ELEMENTS_MAX - 1

    with pytest.raises(Refusal, match="10000") as refused:
        several_of(resolution(MQF_ELEMENTS_MAX), own_name="a")
    assert refused.value.code == "too_many_targets"


def test_a_dot_in_a_listed_name_becomes_the_name_of_this_computer() -> None:
    own = parse_destination("DIRECT=OS:.\\private$\\one", local_host=".")
    assert isinstance(own, DirectName)
    list_name = DistributionListName(bytes(15) + b"\1")
    name = MultipleName((own, list_name))
    found = Resolution(name, (Target(own, 0, own), Target(own, 1, own)))
    addresses = several_of(found, own_name="hosta").addresses
    direct = [each.value.name.decode("utf-16-le") for each in addresses if each.type == 7]
    assert direct == ["OS:hosta\\private$\\one\0"] * 2


@hosted
async def test_a_packet_that_is_too_large_because_of_its_list_is_refused_with_that_reason(
    hosts: Hosts,
) -> None:
    (a,) = await with_directory(hosts, "a")
    await a.create("one")
    names = [f"DIRECT=OS:h{'x' * 50}{number}\\private$\\{'q' * 100}" for number in range(200)]
    async with connect(a.socket) as qm:
        await qm.directory.create_list("all", [*names, "DIRECT=OS:a\\private$\\one"])
        await reload(a)
        size = multi_queue_size(await _addresses(a, "list:all"), NO_ADDRESS, NO_ADDRESS)
        assert size > 60_000
        with pytest.raises(QueueManagerError, match=f"{size} bytes.*list.*202 queues") as refused:
            await qm.send("list:all", bytes(PACKET_BYTES_MAX - size))
        assert refused.value.code in ("packet_too_large", "large_message_elsewhere")
    assert await a.peek("one") == []
    assert not any(each.messages for each in a.outgoing.queues)


async def _addresses(host: Host, text: str) -> Any:
    found = await host.resolver.resolve_text(text)
    return several_of(found, own_name=host.services.name).addresses
