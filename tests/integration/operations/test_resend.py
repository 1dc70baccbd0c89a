"""Resending messages as new ones, and grouping dead letters by their reasons."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from protocol import parse_user_message
from protocol.identifiers import correlation_text, guid_text
from protocol.names.format_name import PublicName
from qmd.client.choice import chosen
from qmd.client.message import Message
from qmd.control_protocol.messages import EVERY_MESSAGE, EXPRESS, TRANSACTIONAL, Choice, Piece
from qmd.errors import Refusal
from qmd.events.header import Kind
from qmd.operations.dead_letter_summary import dead_letter_groups
from qmd.operations.resend import Changes
from qmd.queues.local_queue import Reader
from storage.tables import events
from tests.integration.disk import slow_read
from tests.integration.managers import (
    DEAD_LETTERS,
    TRANSACTIONAL_DEAD_LETTERS,
    Host,
    Hosts,
    bodies,
    hosted,
    until,
)
from tests.integration.remote import guid, listening


async def resend(
    host: Host, queue: str, choice: Choice = EVERY_MESSAGE, limit: int = 1024, **named: Any
) -> dict[str, Any]:
    changes = Changes(**named.pop("changes", {}))
    return await host.resender.resend(host.queue(queue), choice, Piece(limit), changes, **named)


async def dead(host: Host, *texts: bytes, queue: str = "orders", **properties: Any) -> list[str]:
    """Send messages to a local queue and let their time-to-be-received pass; return their ids."""
    ids = await host.send(queue, *texts, time_to_be_received_s=1, **properties)
    host.world.ahead_s += 10
    return ids


@hosted
async def test_a_dead_letter_is_resent_to_its_original_destination(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    (old,) = await dead(a, b"late", label="order 17", priority=6, application_tag=5)
    await hosts.reap(a)

    done = await resend(a, DEAD_LETTERS)

    assert done["messages"] == 1
    assert a.queue(DEAD_LETTERS).messages == 0
    (stored,) = await a.peek("orders")
    new = Message(stored)
    assert (new.body, new.label, new.priority, new.application_tag) == (b"late", "order 17", 6, 5)
    assert new.message_class == "normal"
    assert [new.id] == done["ids"]
    assert new.id != old
    assert new.correlation_id == old
    assert new.time_to_be_received == 1, "it counts anew"


@hosted
async def test_a_resent_message_keeps_the_properties_for_connectors_tracing_and_auditing(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    await a.create("orders")
    rare = {
        "sender_id": bytes.fromhex("010100000000000512000000"),
        "connector_type": bytes(range(16)),
        "message_class": 0x2134,
        "report_queue": str(PublicName(guid(7))),
    }
    await a.send("orders", b"1", **rare)

    await resend(a, "orders")

    (stored,) = await a.peek("orders")
    new = Message(stored)
    assert new.sender_id == rare["sender_id"]
    assert new.packet.user.connector_type == rare["connector_type"]
    assert new.packet.properties.message_class == rare["message_class"]
    assert (new.traced, new.report_queue) == (True, rare["report_queue"])


@hosted
async def test_a_resent_message_does_not_get_the_class_of_the_dead_letter(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await dead(a, b"1", connector_type=bytes(range(16)))
    await hosts.reap(a)

    await resend(a, DEAD_LETTERS)

    (stored,) = await a.peek("orders")
    assert Message(stored).message_class == "normal"


@hosted
async def test_a_resent_message_that_fails_returns_to_the_dead_letter_queue_of_its_application(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.create("troubles")
    await dead(a, b"1", dead_letter_queue="troubles")
    await hosts.reap(a)
    assert a.queue("troubles").messages == 1

    await resend(a, "troubles")
    assert (a.queue("orders").messages, a.queue("troubles").messages) == (1, 0)
    a.world.ahead_s += 10
    await hosts.reap(a)

    assert (a.queue("orders").messages, a.queue("troubles").messages) == (0, 1)


@hosted
async def test_a_resent_message_keeps_its_own_correlation_id(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    own = bytes(range(20))
    await a.send("orders", b"1", correlation_id=own)

    await resend(a, "orders")

    (stored,) = await a.peek("orders")
    assert Message(stored).correlation_id == correlation_text(own)


@hosted
async def test_a_message_for_a_remote_queue_is_resent_to_its_original_port(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    async with listening(guid(9)) as there:
        destination = there.name("orders")
        await a.outgoing.set_paused(a.outgoing.queue_for(_parsed(destination)), True)
        await a.send(destination, b"1", delivery=TRANSACTIONAL, time_to_reach_queue_s=1)
        a.world.ahead_s = 10
        await hosts.reap(a)
        assert a.queue(TRANSACTIONAL_DEAD_LETTERS).messages == 1

        await resend(a, TRANSACTIONAL_DEAD_LETTERS)

        assert a.sending_to(destination).messages == 1
        assert a.queue(TRANSACTIONAL_DEAD_LETTERS).messages == 0
        await a.outgoing.set_paused(a.sending_to(destination), False)
        remote = await there.session()
        await until(lambda: remote.ordinary == [b"1"])


def _parsed(text: str) -> Any:
    from protocol.names.format_name import parse_format_name

    return parse_format_name(text)


@hosted
async def test_a_message_is_corrected_and_resent_to_another_queue(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.create("other", transactional=True)
    await a.send("orders", b"1", b"2")

    changes = {"to": "other", "label": "right", "body": b"one"}
    done = await resend(a, "orders", limit=1, changes=changes, keep=True)

    assert done["messages"] == 1
    (stored,) = await a.peek("other")
    assert (Message(stored).body, Message(stored).label) == (b"one", "right")
    assert Message(stored).delivery == "transactional"
    assert await a.receive("orders") == [b"1", b"2"], "they were kept"


@hosted
async def test_a_resent_express_message_is_on_disk(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", b"1", delivery=EXPRESS)

    await resend(a, "orders")
    a = await hosts.restart(a)

    assert await a.receive("orders") == [b"1"]


@hosted
async def test_a_message_that_cannot_be_resent_stays_in_its_queue(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.create("small", quota_bytes=10)
    await a.send("orders", b"1", b"2")

    with pytest.raises(Refusal, match="is full"):
        await resend(a, "orders", changes={"to": "small"})
    with pytest.raises(Refusal, match="no queue"):
        await resend(a, "orders", changes={"to": "nowhere"}, dry_run=True)

    assert await a.receive("orders") == [b"1", b"2"]


@hosted
async def test_a_message_that_is_received_meanwhile_is_not_resent(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.create("other")
    await a.send("orders", b"1", b"2")
    reader = Reader()
    taken = await a.take(reader, "orders")

    slow = await slow_read(a, " FROM message WHERE key BETWEEN")
    resending = asyncio.ensure_future(resend(a, "orders", changes={"to": "other"}))
    await asyncio.sleep(0.02)
    await a.removing(reader, "orders", taken)
    slow.set()
    done = await resending

    assert done["messages"] == 1
    assert await a.receive("other") == [b"2"]
    assert await a.receive("orders") == []


@hosted
async def test_a_dry_run_changes_nothing_and_a_token_gives_the_outcome(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.create("other")
    await a.send("orders", b"1", b"2")

    assert (await resend(a, "orders", changes={"to": "other"}, dry_run=True))["messages"] == 2
    assert (a.queue("orders").messages, a.queue("other").messages) == (2, 0)
    await resend(a, "orders", limit=1, changes={"to": "other"}, token=b"token")

    answer = await a.request_outcomes.outcome(b"token")
    assert isinstance(answer, dict)
    assert answer["messages"] == 1


@hosted
async def test_a_resend_is_recorded_for_the_old_message(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.create("other")
    await a.send("orders", b"1")

    await resend(a, "orders", changes={"to": "other"})

    blocks = await a.storage.read(lambda db: events.page(db, 0, 1000))
    reported = [each for block in blocks for each in block.events if each.kind == Kind.REQUEUED]
    assert [(each.queue, each.to_queue) for each in reported] == [("private$\\orders", "other")]


@hosted
async def test_dead_letters_are_grouped_by_their_reasons(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.create("bills")
    await dead(a, b"1", b"2")
    await dead(a, b"3", queue="bills")
    await hosts.reap(a)

    groups = await dead_letter_groups(a.services, a.queue(DEAD_LETTERS))

    assert [(each["messages"], each["class"]) for each in groups] == [
        (2, "nack_receive_timeout"),
        (1, "nack_receive_timeout"),
    ]
    assert groups[0]["destination"].endswith("orders")
    assert "was not received" in groups[0]["reason"]
    only = chosen(destination="bills")
    await resend(a, DEAD_LETTERS, only)
    assert bodies(await a.peek("bills")) == [b"3"]
    assert a.queue(DEAD_LETTERS).messages == 2


@hosted
async def test_the_packet_of_a_resent_message_is_a_normal_one(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.create("admin")
    await a.send("orders", b"1", admin_queue="admin", response_queue="admin", acknowledge=5)

    await resend(a, "orders")

    (stored,) = await a.peek("orders")
    packet = parse_user_message(stored.packet)
    assert int(packet.properties.flags) == 5
    assert Message(stored).admin_queue == Message(stored).response_queue
    assert str(Message(stored).admin_queue).endswith("admin")


@hosted
async def test_a_resent_message_keeps_all_response_queues(hosts: Hosts) -> None:
    a = await hosts.start()
    for name in ("orders", "admin1", "admin2"):
        await a.create(name)
    answers = f"answers@hostc,PUBLIC={guid_text(guid(7))},PRIVATE={guid_text(guid(8))}\\00000011"
    await dead(a, b"1", admin_queue="admin1,admin2", response_queue=answers, acknowledge=5)
    await hosts.reap(a)
    (old,) = await a.peek(DEAD_LETTERS)

    await resend(a, DEAD_LETTERS)

    (stored,) = await a.peek("orders")
    assert len(Message(stored).admin_queues) == 2
    assert Message(stored).admin_queues == Message(old).admin_queues
    assert len(Message(stored).response_queues) == 3
    assert Message(stored).response_queues == Message(old).response_queues
