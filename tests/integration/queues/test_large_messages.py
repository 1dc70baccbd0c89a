"""Messages of more than 4 MiB: only between hosts that name each other in their configurations."""

from __future__ import annotations

import pytest

from qmd.config.value_types import Hosts as HostsKind
from qmd.control_protocol.messages import EXPRESS, RECOVERABLE, TRANSACTIONAL, NewMessage
from qmd.errors import Refusal
from tests.integration.managers import DEAD_LETTERS, Host, Hosts, hosted, until
from tests.integration.remote import guid, listening

MIB = 1024 * 1024
QUOTAS = {"message_bytes_max": 12 * MIB}
LOOPBACK = {"large_messages": HostsKind().parse(["127.0.0.0/8"])}


def refusal_of(host: Host, message: NewMessage) -> Refusal:
    with pytest.raises(Refusal) as caught:
        host.handed_over([message])
    return caught.value


def name_at(host: Host, queue: str) -> str:
    return f"DIRECT=TCP:127.0.0.1:{host.port}\\private$\\{queue}"


@hosted
async def test_large_messages_are_sent_between_hosts_that_name_each_other(hosts: Hosts) -> None:
    a = await hosts.start("a", quotas=QUOTAS, peers=LOOPBACK)
    b = await hosts.start("b", quotas=QUOTAS, peers=LOOPBACK)
    await b.create("orders")
    await b.create("strict", transactional=True)
    large = [bytes([number]) * (12 * MIB - number) for number in range(3)]

    await a.send(name_at(b, "orders"), large[0], delivery=RECOVERABLE)
    await a.send(name_at(b, "orders"), large[1], delivery=EXPRESS)
    await a.send(name_at(b, "strict"), large[2], b"small", delivery=TRANSACTIONAL)
    await until(lambda: b.queue("strict").messages == 2 and b.queue("orders").messages == 2)

    await b.settled()
    assert [await b.receive("strict"), await b.receive("strict")] == [[large[2]], [b"small"]]
    received = [await b.receive("orders"), await b.receive("orders")]
    assert sorted(body for (body,) in received) == large[:2]
    await until(lambda: all(queue.messages == 0 for queue in a.outgoing.queues), "its release")


@hosted
async def test_a_local_queue_accepts_large_messages_without_configuration(hosts: Hosts) -> None:
    a = await hosts.start("a", quotas=QUOTAS)
    await a.create("orders")

    await a.send("orders", bytes(12 * MIB))

    assert [len(body) for body in await a.receive("orders")] == [12 * MIB]
    assert refusal_of(a, NewMessage("orders", bytes(12 * MIB + 1))).code == "body_too_large"


@hosted
async def test_a_large_message_for_another_host_is_refused_with_a_remedy(hosts: Hosts) -> None:
    a = await hosts.start("a", quotas=QUOTAS, peers={"large_messages": HostsKind().parse(["big"])})
    for destination in ("DIRECT=TCP:127.0.0.1:1\\private$\\x", "DIRECT=OS:small\\private$\\x"):
        refused = refusal_of(a, NewMessage(destination, bytes(5 * MIB)))
        assert refused.code == "large_message_elsewhere"
        assert "accepts 4194304" in refused.text
        assert "large_messages" in refused.text
    await a.send("DIRECT=OS:BIG\\private$\\x", bytes(5 * MIB), delivery=EXPRESS)


@hosted
async def test_a_packet_of_4_mib_can_go_to_every_host_but_no_larger_one(hosts: Hosts) -> None:
    a = await hosts.start("a", quotas=QUOTAS)
    async with listening(guid(7)) as elsewhere:
        name = elsewhere.name("orders")
        await a.send(name, b"", delivery=RECOVERABLE)
        empty = a.usage.bytes
        room = 4 * MIB - empty
        await a.send(name, bytes(room), delivery=RECOVERABLE)

        assert refusal_of(a, NewMessage(name, bytes(room + 1))).code == "large_message_elsewhere"
        remote = await elsewhere.session()
        await until(lambda: len(remote.messages) == 2)


@hosted
async def test_a_session_with_an_unnamed_host_ends_at_a_large_message(hosts: Hosts) -> None:
    a = await hosts.start("a", quotas=QUOTAS, peers=LOOPBACK)
    b = await hosts.start("b", quotas=QUOTAS)
    await b.create("orders")

    await a.send(name_at(b, "orders"), bytes(5 * MIB), delivery=RECOVERABLE)
    link = a.sending_to(name_at(b, "orders")).link
    await until(lambda: len(link.retry.history) > 2)

    assert b.queue("orders").messages == 0
    assert a.sending_to(name_at(b, "orders")).messages == 1


@hosted
async def test_a_waiting_large_message_becomes_a_dead_letter_when_its_host_is_no_longer_named(
    hosts: Hosts,
) -> None:
    a = await hosts.start("a", quotas=QUOTAS, peers=LOOPBACK)
    b = await hosts.start("b", quotas=QUOTAS, peers=LOOPBACK)
    await b.create("orders")
    port = b.port
    await hosts.stop(b)
    name = f"DIRECT=TCP:127.0.0.1:{port}\\private$\\orders"
    await a.send(name, bytes(5 * MIB), b"small", delivery=RECOVERABLE)

    a = await hosts.restart(a, quotas=QUOTAS)
    b = await hosts.start("b", port)
    await until(lambda: b.queue("orders").messages == 1)
    await until(lambda: a.queue(DEAD_LETTERS).messages == 1)

    await b.settled()
    assert await b.receive("orders") == [b"small"]
    (dead,) = await a.peek(DEAD_LETTERS)
    assert dead.reason is not None
    assert "4194304" in dead.reason
    assert "large_messages" in dead.reason
