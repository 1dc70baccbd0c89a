"""Pages of the messages of an outgoing queue: disk and memory in the order of sending."""

from __future__ import annotations

import pytest

from qmd.control import outgoing_messages
from qmd.control.outgoing_messages import page
from qmd.control_protocol.messages import EXPRESS, RECOVERABLE, TRANSACTIONAL
from tests.integration.managers import Host, Hosts, hosted, until

ELSEWHERE = "DIRECT=TCP:127.0.0.1:1\\private$\\q"


async def labels(host: Host, limit: int, text: str = "", destination: str = ELSEWHERE) -> list[str]:
    """Return the labels of all pages."""
    found: list[str] = []
    start: int | None = 0
    while start is not None:
        some = await page(host.components, host.sending_to(destination), start, limit, text)
        assert len(some["messages"]) <= limit
        found += [each["label"] for each in some["messages"]]
        start = some["next"]
    return found


@hosted
async def test_pages_have_each_message_once_in_the_order_of_sending(hosts: Hosts) -> None:
    """Express messages are in memory only, between stored ones of other priorities."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outgoing_messages, "EXAMINED_ROWS", 3)
        await in_order(await hosts.start("a"))


async def in_order(a: Host) -> None:
    wanted = {}
    for at in range(40):
        kind = (EXPRESS, RECOVERABLE, TRANSACTIONAL)[at % 3]
        priority = at * 5 % 8
        label = f"Invoice {at}"
        await a.send(ELSEWHERE, b"x", label=label, delivery=kind, priority=priority)
        wanted[label] = (8, at) if kind == TRANSACTIONAL else (7 - priority, at)
    sent = sorted(wanted, key=lambda label: wanted[label])

    for limit in (1, 3, 7, 100):
        assert await labels(a, limit) == sent
    assert await labels(a, 2, "INVOICE 1") == [each for each in sent if "e 1" in each]
    first = (await page(a.components, a.sending_to(ELSEWHERE), 0, 1, ""))["messages"][0]
    assert first["label"] in await labels(a, 5, first["id"].lower())
    assert await labels(a, 5, "not there") == []
    assert first["state"] == "waiting"


@hosted
async def test_acknowledged_messages_are_not_listed(hosts: Hosts) -> None:
    a, b = await hosts.start("a"), await hosts.start("b")
    await b.create("q", transactional=True)
    destination = f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\q"
    await a.send(destination, b"1", b"2", label="sent", delivery=TRANSACTIONAL)
    await until(lambda: not a.sending_to(destination).messages)

    assert await labels(a, 10, destination=destination) == []
