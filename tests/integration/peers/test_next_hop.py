"""Routes from the directory: several addresses, routing servers, gates between sites."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from protocol import parse_user_message
from protocol.identifiers import guid_text
from protocol.names.multi_queue import MQF_DIRECT, MQF_PUBLIC
from qmd.client import Acknowledge, connect
from qmd.config.route_rules import parse_pattern
from qmd.control_protocol.messages import TRANSACTIONAL
from qmd.queues.outgoing_queue import OutgoingQueue
from tests.integration.managers import Host, Hosts, hosted, until

RELAY: dict[str, Any] = {"relay_for": (parse_pattern("127.0.0.0/8").network,)}
#: A host without a directory does not know the routing servers as relays.
FROM_RELAYS: dict[str, Any] = {"relays": (parse_pattern("127.0.0.0/8").network,)}


def machine(host: Host, *addresses: str, **more: str) -> str:
    named = ", ".join(f'"{each}"' for each in addresses or (f"127.0.0.1:{host.port}",))
    rest = "".join(f"{key} = {value}\n" for key, value in more.items())
    return (
        f'[[machine]]\nname = "{host.services.name}"\nguid = "{guid_text(host.id)}"\n'
        f"addresses = [{named}]\n{rest}\n"
    )


async def with_directory(hosts: Hosts, text: str, *running: Host, **sections: Any) -> list[Host]:
    """Restart the hosts with a directory file; return them."""
    file: Path = hosts._folder / "directory.toml"
    await asyncio.to_thread(file.write_text, text)
    directory = {"kind": "file", "file": file, "reload_s": 0.01}
    return [
        await hosts.restart(each, directory=directory, **sections.get(each.services.name, {}))
        for each in running
    ]


def queue_of(a: Host, b: Host) -> OutgoingQueue:
    (found,) = (each for each in a.outgoing.queues if guid_text(b.id) in each.destination)
    return found


async def private_name(b: Host) -> str:
    orders = await b.create("orders", transactional=True)
    return f"PRIVATE={guid_text(b.id)}\\{orders.id:08x}"


@hosted
async def test_the_next_address_is_tried_when_one_fails(hosts: Hosts) -> None:
    a, b = await hosts.start("a"), await hosts.start("b")
    name = await private_name(b)
    text = machine(a) + machine(b, "127.0.0.1:1", f"127.0.0.1:{b.port}")
    (a,) = await with_directory(hosts, text, a)

    await a.send(name, b"1", b"2", delivery=TRANSACTIONAL)
    await until(lambda: b.queue("orders").messages == 2)
    await until(lambda: queue_of(a, b).messages == 0)

    assert await b.receive("orders") == [b"1", b"2"]


@hosted
async def test_messages_between_sites_and_their_acknowledgments_go_over_the_gates(
    hosts: Hosts,
) -> None:
    a, b = await hosts.start("a"), await hosts.start("b", peers=FROM_RELAYS)
    here, there = await hosts.start("here"), await hosts.start("there")
    name = await private_name(b)
    text = (
        machine(a, sites='["one"]')
        + machine(b, sites='["two"]')
        + machine(here, sites='["one"]', routes="true")
        + machine(there, sites='["two"]', routes="true")
        + '[[site]]\nname = "one"\ngates = ["here"]\n'
        + '[[site]]\nname = "two"\ngates = ["there"]\n'
        + '[[link]]\nsites = ["one", "two"]\ncost = 3\n'
    )
    relays = {"here": {"routing": RELAY}, "there": {"routing": RELAY}}
    a, here, there = await with_directory(hosts, text, a, here, there, **relays)

    await a.send(name, b"1", b"2", delivery=TRANSACTIONAL)
    await until(lambda: b.queue("orders").messages == 2)
    await until(lambda: queue_of(a, b).messages == 0, "the order ack")
    await until(lambda: not here.relay_store.usage.bytes and not there.relay_store.usage.bytes)

    (first, _) = await b.peek("orders")
    assert first.packet[60] & 0x1F == 2  # hops
    assert a.peers.connection_to(b.id) is None
    assert queue_of(a, b).link.via == guid_text(here.id)


@hosted
async def test_another_in_routing_server_is_tried_when_one_is_unreachable(
    hosts: Hosts,
) -> None:
    a, b, server = (
        await hosts.start("a"),
        await hosts.start("b", peers=FROM_RELAYS),
        await hosts.start("server"),
    )
    dead = await hosts.start("dead")
    name = await private_name(b)
    text = (
        machine(a, sites='["one"]')
        + machine(b, sites='["one"]', in_routers='["dead", "server"]')
        + machine(server, sites='["one"]', routes="true")
        + machine(dead, "127.0.0.1:1", sites='["one"]', routes="true")
        + '[[site]]\nname = "one"\n'
    )
    a, server = await with_directory(hosts, text, a, server, server={"routing": RELAY})

    await a.send(name, b"1", delivery=TRANSACTIONAL)
    await until(lambda: b.queue("orders").messages == 1)
    await until(lambda: queue_of(a, b).messages == 0, "the order ack")
    await until(lambda: not server.relay_store.usage.bytes)

    assert server.relay_store.relayed_count >= 1


@hosted
async def test_messages_wait_until_the_directory_has_a_route(
    hosts: Hosts,
) -> None:
    a, b = await hosts.start("a"), await hosts.start("b")
    name = await private_name(b)
    text = (
        machine(a, sites='["one"]')
        + machine(b, sites='["two"]')
        + '[[site]]\nname = "one"\n[[site]]\nname = "two"\n'
    )
    (a,) = await with_directory(hosts, text, a)
    await a.send(name, b"1", delivery=TRANSACTIONAL)
    await until(lambda: a.next_hops._asked_until and not a.next_hops._asking)
    assert queue_of(a, b).messages == 1

    (hosts._folder / "directory.toml").write_text(
        text.replace('sites = ["one"]', 'sites = ["two"]')
    )

    await until(lambda: b.queue("orders").messages == 1)
    await until(lambda: queue_of(a, b).messages == 0)


@hosted
async def test_messages_for_a_foreign_computer_go_to_its_connector_server_and_wait_there(
    hosts: Hosts,
) -> None:
    a, server = await hosts.start("a"), await hosts.start("server")
    await a.create("orders", transactional=True)
    text = (
        machine(a, sites='["one"]')
        + machine(server, sites='["one", "abroad"]', routes="true")
        + '[[machine]]\nname = "mainframe"\nguid = "00000000-0000-0000-0000-0000000000cc"\n'
        + f'addresses = ["127.0.0.1:{a.port}"]\nsites = ["abroad"]\nforeign = true\n'
        + "[[queue]]\npath = 'mainframe\\orders'\n"
        + 'guid = "00000000-0000-0000-0000-0000000000dd"\n'
        + '[[site]]\nname = "one"\ngates = ["server"]\n'
        + '[[site]]\nname = "abroad"\ngates = ["server"]\n'
        + '[[link]]\nsites = ["one", "abroad"]\ncost = 3\n'
    )
    a, server = await with_directory(hosts, text, a, server, server={"routing": RELAY})
    connector = "CONNECTOR=00000000-0000-0000-0000-0000000000dd"

    async with connect(a.socket) as qm:
        sent = await qm.send(f"{connector},orders", b"1", delivery="transactional")
        explained = await qm.directory.explain(connector)

    assert len(sent.copies) == 2
    assert [each["next_hop"] for each in explained["elements"][0]["targets"]] == [
        [f"127.0.0.1:{server.port}"]
    ]
    await until(lambda: any(each.messages for each in server.outgoing.queues), "it on the server")
    (waiting,) = (each for each in server.outgoing.queues if each.messages)
    assert waiting.destination.startswith("PUBLIC=00000000-0000-0000-0000-0000000000dd")
    async with connect(server.socket) as qm:
        explained = await qm.directory.explain("mainframe\\orders")
    assert "no connector application" in explained["elements"][0]["targets"][0]["no_way"]
    (mine,) = await a.peek("orders")
    header = parse_user_message(mine.packet).multi_queue
    assert header is not None
    assert [each.format_type for each in header.destination.elements] == [MQF_PUBLIC, MQF_DIRECT]


@hosted
async def test_messages_to_a_public_queue_and_their_acknowledgments_go_over_a_routing_server(
    hosts: Hosts,
) -> None:
    a, b, server = [await hosts.start(name) for name in ("a", "b", "server")]
    text = (
        machine(a, out_routers='["server"]')
        + machine(b, out_routers='["server"]')
        + machine(server, routes="true")
    )
    a, b, server = await with_directory(hosts, text, a, b, server, server={"routing": RELAY})
    async with connect(b.socket) as there, connect(a.socket) as here:
        await there.create_queue("orders", public=True, transactional=True)
        acks = await here.create_queue("acks", public=True)
        await a.directory.reload()  # type: ignore[attr-defined]
        await b.directory.reload()  # type: ignore[attr-defined]
        for body in (b"1", b"2"):
            await here.send(
                "b\\orders",
                body,
                delivery="transactional",
                admin_queue=acks["public_name"],
                acknowledge=Acknowledge.POSITIVE_ARRIVAL,
            )

    await until(lambda: b.queue(".\\orders").messages == 2, "the messages")
    await until(lambda: a.queue(".\\acks").messages == 2, "the acknowledgments")
    assert server.relay_store.relayed_count >= 4
    assert await b.receive(".\\orders") == [b"1", b"2"]
    running = (a, b, server)
    await until(lambda: not any(each.messages for host in running for each in host.outgoing.queues))
