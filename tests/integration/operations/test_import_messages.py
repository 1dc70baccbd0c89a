"""Importing exported messages: unchanged, and all of a request or none."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from qmd.client.archive import BrokenLine, line_of, read_line
from qmd.client.message import Message
from qmd.control_protocol.messages import ImportedMessage
from qmd.errors import Refusal
from tests.integration.managers import DEAD_LETTERS, Host, Hosts, bodies, hosted


async def exported(host: Host, queue: str) -> list[ImportedMessage]:
    """Export the messages of a queue as lines of a file, and parse these lines."""
    clock_s = host.clock.now_s
    return [
        read_line(line_of(Message(stored), queue, clock_s).encode())
        for stored in await host.peek(queue)
    ]


async def imported(
    host: Host, queue: str, messages: list[ImportedMessage], token: bytes = b""
) -> dict[str, Any]:
    done: asyncio.Future[dict[str, Any]] = host.loop.create_future()
    host.importer.take_in(
        host.queue(queue), messages, dry_run=False, token=token, done=done.set_result
    )
    return await done


@hosted
async def test_dead_letters_are_restored_with_their_reasons(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", b"1", b"2", time_to_be_received_s=1)
    a.world.ahead_s = 10
    await hosts.reap(a)
    before = await a.peek(DEAD_LETTERS)
    lines = await exported(a, DEAD_LETTERS)
    await a.purger.purge(a.queue(DEAD_LETTERS))

    assert (await imported(a, DEAD_LETTERS, lines))["messages"] == 2

    after = await a.peek(DEAD_LETTERS)
    assert [(each.packet, each.reason, each.arrived_at_ms) for each in after] == [
        (each.packet, each.reason, each.arrived_at_ms) for each in before
    ]


@hosted
async def test_an_imported_message_keeps_its_remaining_lifetime(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.create("other")
    await a.send("orders", b"1", time_to_be_received_s=100)
    a.world.ahead_s = 60
    lines = await exported(a, "orders")
    assert lines[0].expires_in_s in range(38, 42)
    await imported(a, "other", lines)

    a.world.ahead_s = 95
    await hosts.reap(a)
    assert a.queue("other").messages == 1
    a.world.ahead_s = 110
    await hosts.reap(a)

    assert a.queue("other").messages == 0


@hosted
async def test_all_messages_of_a_request_are_imported_or_none(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.create("ordered", transactional=True)
    await a.create("small", quota_bytes=300)
    await a.send("orders", b"1", b"2")
    await a.send("ordered", b"3")
    plain, ordered = await exported(a, "orders"), await exported(a, "ordered")

    for queue, messages, code in (
        ("orders", [*plain, *ordered], "import_of_other_kind"),
        ("orders", [*plain, ImportedMessage(b"no packet", 1)], "packet_broken"),
        ("small", plain, "queue_full"),
    ):
        with pytest.raises(Refusal) as refused:
            await imported(a, queue, messages)
        assert refused.value.code == code

    assert (a.queue("orders").messages, a.queue("small").messages) == (2, 0)


@hosted
async def test_the_outcome_of_an_import_is_known_by_its_token(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.create("other")
    await a.send("orders", b"1")

    done = await imported(a, "other", await exported(a, "orders"), b"token")

    assert await a.request_outcomes.outcome(b"token") == done
    a = await hosts.restart(a)
    assert await a.request_outcomes.outcome(b"token") == done
    assert bodies(await a.peek("other")) == [b"1"]


@hosted
async def test_a_line_that_was_changed_is_refused_with_the_reason(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", b"1")
    (stored,) = await a.peek("orders")
    good = json.loads(line_of(Message(stored), "orders", 0))

    for change, why in (
        ({"qmd_message": 9}, "version 9"),
        ({"packet_base64": "&"}, "not base64"),
        ({"packet_base64": None}, "packet_base64 is missing"),
        ({"packet_base64": good["packet_base64"][:80]}, "not a message"),
        ({"arrived_at_ms": None}, "arrived_at_ms is missing"),
        ({"arrived_at_ms": -1}, "arrived_at_ms is not a whole number"),
        ({"abort_count": "3"}, "abort_count is not a whole number"),
        ({"reason": 5}, "reason is neither"),
    ):
        with pytest.raises(BrokenLine, match=why):
            read_line(json.dumps(good | change).encode())
    with pytest.raises(BrokenLine, match="not JSON"):
        read_line(b"\xff")
    with pytest.raises(BrokenLine, match="qmd_message is missing"):
        read_line(b"[]")
