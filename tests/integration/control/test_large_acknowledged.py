"""Requests with many messages that are acknowledged when they are stored here."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from protocol import UserMessage, parse_user_message
from protocol.identifiers import correlation_text
from qmd.client import QueueManagerError, connect, new_message
from qmd.control_protocol.parts import MANY
from qmd.core.acknowledgment import POSITIVE_ARRIVAL
from qmd.outcomes.acknowledgments import Acknowledgments
from tests.integration.managers import Host, Hosts, hosted, until

MESSAGES = MANY + 100
ELSEWHERE = "DIRECT=TCP:127.0.0.9\\private$\\acks"
#: More shapes of messages than a publication has (SHAPES_MAX).
VARIED: list[dict[str, Any]] = [{"application_tag": at} for at in range(300)]


def acknowledged(queue: str, body: bytes, **properties: Any) -> Any:
    properties = {"admin_queue": "acks", "acknowledge": POSITIVE_ARRIVAL} | properties
    return new_message(queue, body, label="order", **properties)


async def all_of(host: Host, queue: str) -> list[UserMessage]:
    packets: list[UserMessage] = []
    start = 0
    while found := await host.peek(queue, start):
        packets += [parse_user_message(each.packet) for each in found]
        start = found[-1].lookup_id + 1
    return packets


def alike(packet: UserMessage) -> Any:
    """Return what is the same in the acknowledgments of two messages, but for numbers."""
    user = packet.user._replace(message_number=0, sent_time=0)
    properties = packet.properties._replace(correlation_id=b"")
    return packet._replace(user=user, properties=properties)


@contextmanager
def made_one_by_one(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[UserMessage]]:
    """Yield the messages of which the acknowledgment is made while they are stored."""
    found: list[UserMessage] = []
    make = Acknowledgments.to_application

    def watched(self: Acknowledgments, original: UserMessage, *more: Any) -> None:
        found.append(original)
        make(self, original, *more)

    with monkeypatch.context() as patch:
        patch.setattr(Acknowledgments, "to_application", watched)
        yield found


@pytest.mark.parametrize("kind", ["alike", "varied", "transaction", "elsewhere"])
def test_acknowledgments_are_made_beside_the_messages_and_are_as_usual(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    @hosted
    async def scenario(hosts: Hosts) -> None:
        host = await hosts.start()
        is_one = kind == "transaction"
        await host.create("orders", transactional=is_one)
        await host.create("acks")
        properties: dict[str, Any] = {"admin_queue": ELSEWHERE} if kind == "elsewhere" else {}
        varied = VARIED if kind == "varied" else [{}]
        messages = [
            acknowledged("orders", b"%d" % each, **properties, **varied[each % len(varied)])
            for each in range(MESSAGES)
        ]
        async with connect(host.socket) as qm:
            sent = await qm.send_many(messages[:1])
            with made_one_by_one(monkeypatch) as found:
                if is_one:
                    async with qm.transaction():
                        sent += await qm.send_many(messages)
                else:
                    sent += await qm.send_many(messages)
            assert not found
        stored = await all_of(host, "orders")
        assert [each.properties.body for each in stored][1:] == [
            b"%d" % each for each in range(MESSAGES)
        ]
        if kind == "elsewhere":
            assert host.sending_to(ELSEWHERE).messages == 1 + MESSAGES
        else:
            made = await all_of(host, "acks")
            assert len({alike(each) for each in made}) == 1  # the first one was made one by one
            answered = [correlation_text(each.properties.correlation_id) for each in made]
            assert answered == sent
            numbers = {each.user.message_number for each in (*made, *stored)}
            assert len(numbers) == 2 * (1 + MESSAGES)
        host = await hosts.restart(host)
        for each in (*sent[:2], sent[-1]):
            why = await host.components.message_lookup.why(each, "", ask=False)
            kinds = [event["kind"] for event in why["events"]]
            assert kinds.count("acknowledged") == 1, kinds

    scenario(tmp_path)


@hosted
async def test_an_acknowledged_message_of_a_large_request_that_is_not_stored_is_not_acknowledged(
    hosts: Hosts,
) -> None:
    host = await hosts.start()
    await host.create("orders")
    await host.create("acks")
    await host.create("small", quota_bytes=100_000)
    good = [acknowledged("orders", b"")] * MESSAGES
    async with connect(host.socket) as qm:
        with pytest.raises(QueueManagerError, match="quota"):
            await qm.send_many([*good, *[acknowledged("small", b"x")] * MESSAGES])
    assert (host.queue("orders").messages, host.queue("acks").messages) == (0, 0)


@hosted
async def test_others_are_served_while_express_messages_of_a_large_request_are_sent(
    hosts: Hosts,
) -> None:
    """Nothing of them is stored, so that no commit has to contain all of them."""
    host = await hosts.start()
    for name in ("orders", "acks", "other"):
        await host.create(name)
    express = [acknowledged("orders", b"%d" % at, delivery="express") for at in range(MESSAGES)]
    async with connect(host.socket) as large, connect(host.socket) as other:
        await other.send("other", b"connected")
        sent = asyncio.create_task(large.send_many(express))
        last = asyncio.create_task(large.send("orders", b"last"))
        await until(lambda: host.queue("orders").messages)
        assert host.queue("orders").messages < MESSAGES
        await other.send("other", b"small")
        ids = await sent
        await last
    stored = await all_of(host, "orders")
    assert [each.properties.body for each in stored] == [each.body for each in express] + [b"last"]
    answered = [each.properties.correlation_id for each in await all_of(host, "acks")]
    assert [correlation_text(each) for each in answered] == ids


@pytest.mark.parametrize("kind", ["elsewhere", "copies", "dead-letter queue"])
def test_others_are_served_while_express_messages_leave(tmp_path: Any, kind: str) -> None:
    @hosted
    async def scenario(hosts: Hosts) -> None:
        host = await hosts.start()
        for name in ("first", "second", "dead", "other"):
            await host.create(name)
        target, waiting = ELSEWHERE, [ELSEWHERE]
        if kind == "copies":
            waiting = ["DIRECT=OS:.\\private$\\first", "DIRECT=OS:.\\private$\\second"]
            target = ",".join(waiting)
        named = {"dead_letter_queue": "dead"} if kind == "dead-letter queue" else {}
        express = [
            new_message(target, b"%d" % at, delivery="express", **named) for at in range(MESSAGES)
        ]

        def count() -> int:
            if kind == "copies":
                return host.queue("first").messages + host.queue("second").messages
            return host.sending_to(ELSEWHERE).messages

        async with connect(host.socket) as large, connect(host.socket) as other:
            await other.send("other", b"connected")
            sent = asyncio.create_task(large.send_many(express))
            last = asyncio.create_task(large.send(target, b"last", delivery="express"))
            await until(lambda: ELSEWHERE in _known(host) or host.queue("first").messages)
            assert count() < MESSAGES
            await other.send("other", b"small")
            assert len(await sent) == MESSAGES
            await last
        assert count() == (1 + MESSAGES) * len(waiting)
        if kind == "copies":
            for name in ("first", "second"):
                stored = [each.properties.body for each in await all_of(host, name)]
                assert stored == [b"%d" % at for at in range(MESSAGES)] + [b"last"]
        elif kind == "dead-letter queue":
            assert await host.own_dead_letters.are_kept_in(host.queue("dead"))

    scenario(tmp_path)


def _known(host: Host) -> set[str]:
    """Return the destinations of which messages wait."""
    return {each.destination for each in host.outgoing.queues if each.messages}
