"""Quotas in a complete queue manager: exact to the byte, over restarts, with early warnings."""

from __future__ import annotations

from typing import Any

import pytest
import structlog

from qmd.control import status as overview
from qmd.control_protocol.messages import EXPRESS, RECOVERABLE, TRANSACTIONAL, UNLIMITED, NewMessage
from qmd.errors import Refusal
from qmd.queues.local_queue import Reader
from tests.integration.managers import DEAD_LETTERS, JOURNAL, Host, Hosts, hosted, until
from tests.integration.remote import guid, listening


def refusal_of(host: Host, *messages: NewMessage) -> Refusal:
    with pytest.raises(Refusal) as caught:
        host.handed_over(list(messages))
    return caught.value


async def packet_bytes(host: Host, destination: str, body: bytes) -> int:
    """Return the size of the packet of such a message."""
    before = host.usage.bytes
    await host.send(destination, body)
    return host.usage.bytes - before


@hosted
async def test_a_quota_is_exact_to_the_byte(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    size = await packet_bytes(a, "orders", bytes(100))
    await a.administration.change(a.queue("orders"), quota_bytes=3 * size)

    await a.send("orders", bytes(100), bytes(100))

    assert a.queue("orders").bytes == 3 * size
    full = refusal_of(a, NewMessage("orders", b""))
    assert full.code == "queue_full"
    assert f"{3 * size} of {3 * size} bytes (100 %)" in full.text
    assert "qmd queue set 'private$\\orders' --quota " in full.remedy


@hosted
async def test_a_request_of_several_messages_is_measured_as_a_whole(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    size = await packet_bytes(a, "orders", bytes(100))
    await a.administration.change(a.queue("orders"), quota_bytes=3 * size - 1)

    refusal_of(a, *[NewMessage("orders", bytes(100))] * 2)

    assert a.queue("orders").bytes == size
    await a.send("orders", bytes(100))


@hosted
async def test_the_usage_is_the_same_after_a_restart(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.create("strict", transactional=True)
    await a.send("orders", bytes(100), bytes(1001))
    await a.send("strict", bytes(99))
    await a.send("DIRECT=TCP:127.0.0.1:1\\private$\\x", bytes(5), delivery=TRANSACTIONAL)
    reader = Reader()
    (taken,) = await a.take(reader, "orders")
    await a.removing(reader, "orders", [taken])
    await a.settled()
    before = a.usage.bytes, a.queue("orders").bytes, a.queue("strict").bytes

    a = await hosts.restart(a)

    assert (a.usage.bytes, a.queue("orders").bytes, a.queue("strict").bytes) == before


@hosted
async def test_changes_of_a_queue_survive_a_restart(hosts: Hosts) -> None:
    a = await hosts.start()
    queue = await a.create("orders")
    await a.administration.change(
        queue, quota_bytes=5000, journal_quota_bytes=700, journal=True, label="new"
    )
    await a.administration.change(queue, journal_quota_bytes=UNLIMITED)

    a = await hosts.restart(a)

    shown = overview.queue(a.queue("orders"))
    assert (shown["quota_bytes"], shown["journal_quota_bytes"]) == (5000, None)
    assert (shown["journal"], shown["label"]) == (True, "new")
    await a.administration.change(a.queue("orders"), quota_bytes=UNLIMITED)
    assert a.queue("orders").has_room(1 << 60)


@hosted
async def test_messages_beyond_a_reduced_quota_stay(hosts: Hosts) -> None:
    a = await hosts.start()
    queue = await a.create("orders")
    await a.send("orders", b"1", b"2")

    await a.administration.change(queue, quota_bytes=0)

    assert refusal_of(a, NewMessage("orders", b"3")).code == "queue_full"
    assert await a.receive("orders") == [b"1", b"2"]


@hosted
async def test_only_the_journal_among_system_queues_has_a_quota_to_set(hosts: Hosts) -> None:
    a = await hosts.start(quotas={"journal_bytes": 5000})
    journal = a.queue(JOURNAL)
    assert journal.quota_bytes == 5000

    await a.administration.change(journal, quota_bytes=700)
    with pytest.raises(Refusal, match="only the quota of the journal"):
        await a.administration.change(a.queue(DEAD_LETTERS), quota_bytes=700)
    with pytest.raises(Refusal, match="only the quota of the journal"):
        await a.administration.change(journal, label="mine")

    a = await hosts.restart(a, quotas={"journal_bytes": 5000})
    assert a.queue(JOURNAL).quota_bytes == 700
    await a.administration.change(a.queue(JOURNAL), quota_bytes=UNLIMITED)
    assert a.queue(JOURNAL).quota_bytes == 5000


@hosted
async def test_a_full_journal_takes_no_more_copies(hosts: Hosts) -> None:
    a = await hosts.start(quotas={"journal_bytes": 300})
    async with listening(guid(7)) as elsewhere:
        name = elsewhere.name("orders")
        await a.send(name, b"1", b"2", journal=True)
        remote = await elsewhere.session()
        await until(lambda: len(remote.messages) == 2)
        remote.acknowledge()
        await until(lambda: a.sending_to(name).messages == 0)
        await a.settled()

    assert a.queue(JOURNAL).messages == 1


@hosted
async def test_the_refusal_names_the_quota_and_its_usage(hosts: Hosts) -> None:
    a = await hosts.start(quotas={"computer_bytes": 10_000, "express_bytes": 500})
    await a.create("orders")
    await a.send("orders", bytes(8000))

    computer = refusal_of(a, NewMessage("orders", bytes(4000)))
    assert computer.code == "computer_full"
    assert f"{a.usage.bytes} of 10000 bytes" in computer.text
    express = refusal_of(a, NewMessage("orders", bytes(600), delivery=EXPRESS))
    assert express.code == "express_full"
    assert "0 of 500 bytes" in express.text


def logged(capture: list[Any]) -> list[tuple[str, int]]:
    return [
        (line["queue"] or line["what"], line["percent"])
        for line in capture
        if line["event"] == "quota_nearly_reached"
    ]


@hosted
async def test_each_threshold_is_logged_once_and_shown(hosts: Hosts) -> None:
    a = await hosts.start(quotas={"computer_bytes": 1_000_000})
    await a.create("orders", quota_bytes=20_000)

    with structlog.testing.capture_logs() as capture:
        for _ in range(19):
            await a.send("orders", bytes(850), delivery=RECOVERABLE)
        assert logged(capture) == [("private$\\orders", each) for each in (70, 85, 95)]
        shown = overview.queue(a.queue("orders"))
        assert shown["quota_warning_percent"] == 95
        (warning,) = overview.status(a.components)["quota_warnings"]
        assert (warning["what"], warning["reached_percent"]) == ("private$\\orders", 95)

        await a.receive("orders")
        await a.send("orders", bytes(850), delivery=RECOVERABLE)
        assert overview.status(a.components)["quota_warnings"] == []
        await a.send("orders", bytes(15_000))

    assert logged(capture)[3:] == [("private$\\orders", 70)]
