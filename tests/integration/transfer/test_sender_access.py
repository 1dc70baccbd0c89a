"""Rights of senders on other hosts: which of them may send to a queue of this computer."""

from __future__ import annotations

from protocol.message_class import MessageClass
from qmd.access.register import holder_of
from qmd.core.access import SEND
from qmd.core.principals import ALL, parse_principal
from tests.integration.managers import Host, Hosts, hosted, until
from tests.integration.remote import dial, guid, packet

_SEND = frozenset({SEND})


async def sent(host: Host, number: int, **more: object) -> None:
    remote = await dial(host, guid(1))
    remote.send(packet(b"x", source=guid(1), number=number, **more))  # type: ignore[arg-type]
    await until(lambda: remote.acknowledged, "the acknowledgment")
    await host.settled()
    remote.close()


@hosted
async def test_everyone_may_send_to_a_queue_without_entries(hosts: Hosts) -> None:
    host = await hosts.start()
    await host.create("orders")

    await sent(host, 1)

    assert len(await host.peek("orders")) == 1


@hosted
async def test_a_sender_without_the_right_is_refused_until_it_is_granted(hosts: Hosts) -> None:
    host = await hosts.start()
    holder = holder_of(await host.create("orders"))
    register = host.access_register
    await register.revoke(holder, ALL, _SEND)

    await sent(host, 1)
    assert not await host.peek("orders")
    assert host.nacks.count == 1
    found = await host.event_log.read(
        cursor="", limit=10, last=10, queue="", kinds=["refused"], since_ms=0, until_ms=0,
        wait_s=0.0,
    )  # fmt: skip
    [event] = found["events"]
    assert event["class"] == MessageClass.name_of(MessageClass.NACK_ACCESS_DENIED)

    await register.grant(holder, parse_principal("host:127.0.0.0/8"), _SEND)
    await sent(host, 2)
    assert len(await host.peek("orders")) == 1


@hosted
async def test_a_stated_guid_is_denied_and_not_granted(hosts: Hosts) -> None:
    host = await hosts.start()
    holder = holder_of(await host.create("orders"))
    peer = parse_principal("peer:31111111-1111-1111-1111-111111111111")._replace(
        name=_text(guid(1))
    )
    await host.access_register.deny(holder, peer, _SEND)
    await sent(host, 1)
    assert not await host.peek("orders")

    await host.access_register.revoke(holder, peer, _SEND)
    await host.access_register.revoke(holder, ALL, _SEND)
    await host.access_register.grant(holder, peer, _SEND)
    await sent(host, 2)
    assert not await host.peek("orders")


def _text(value: bytes) -> str:
    from protocol.identifiers import guid_text

    return guid_text(value)
