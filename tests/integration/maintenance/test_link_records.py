"""Deliveries of links are limited for each client."""

from __future__ import annotations

import asyncio

import pytest

from qmd.control_protocol.links import LinkDeliveries
from qmd.control_protocol.messages import NewMessage
from qmd.errors import Refusal
from qmd.maintenance import retention
from storage.tables import link_deliveries
from tests.integration.managers import Host, Hosts, hosted

LINK = bytes(16)


@hosted
async def test_only_the_latest_deliveries_of_a_client_are_kept(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    for number in range(4):
        await _send(a, number, owner="sasl:ann")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(retention, "LINK_ROWS_MAX", 2)
        await retention.forget_deliveries(a.services)

    assert await a.components.link_records.resume(LINK, 1, "sasl:ann") == [4, [b"2", b"3"]]


@hosted
async def test_a_link_belongs_to_its_client_and_to_its_latest_connection(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    records = a.components.link_records
    await _send(a, 0, owner="sasl:ann", connection=1)

    assert await records.resume(LINK, 2, "sasl:bob") is None
    assert await records.resume(LINK, 2, "sasl:ann") == [1, [b"0"]]
    with pytest.raises(Refusal, match="attached again"):
        await _send(a, 1, owner="sasl:ann", connection=1)
    await _send(a, 1, owner="sasl:ann", connection=2)
    await records.forget(LINK, 3, "sasl:ann")
    assert await a.services.storage.read(lambda db: link_deliveries.clients_with_many(db, 0)) == []


async def _send(a: Host, position: int, *, owner: str, connection: int = 1) -> None:
    durable = asyncio.get_running_loop().create_future()
    deliveries = LinkDeliveries(LINK, position, 0, [b"%d" % position])
    a.components.link_records.send(
        [NewMessage("orders", b"body")], [deliveries], connection, durable.set_result, owner
    )
    await durable
