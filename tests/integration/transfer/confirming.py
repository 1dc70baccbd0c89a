"""Helpers for tests of confirmation: peers that withhold acknowledgments, and waiting messages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from protocol.message_class import MessageClass
from qmd.control_protocol.messages import TRANSACTIONAL
from storage.tables import events
from tests.integration.managers import Host, until
from tests.integration.remote import Remote, RemoteListener, guid, listening

RECEIVED = MessageClass.ACK_RECEIVE
ASKING: dict[str, Any] = {"delivery": TRANSACTIONAL, "dead_letter": True}


def awaiting(host: Host, name: str) -> tuple[int, int]:
    queue = host.sending_to(name)
    return queue.messages, queue.awaiting.messages


async def arrived(host: Host, name: str, count: int) -> None:
    """Wait until all messages have arrived and `count` wait for their final acks, on disk."""
    await until(lambda: awaiting(host, name) == (0, count))
    await host.settled()


async def kinds(host: Host, message_id: str) -> list[str]:
    """Return the kinds of the recorded events of one of the host's messages, in order."""
    await host.settled()
    number = int(message_id.rpartition("\\")[2])
    reported = await host.storage.read(lambda db: events.of_message(db, host.id, number, 100))
    return [event.kind for event in reported]


@asynccontextmanager
async def elsewhere(
    host: Host, *sent: bytes, **properties: Any
) -> AsyncIterator[tuple[RemoteListener, Remote, list[str]]]:
    """Send messages to a queue manager that has received them, but acknowledged none.

    Yields its listener, its session, and the ids of the messages.
    """
    async with listening(guid(7)) as listener:
        ids = await host.send(listener.name("orders"), *sent, **{**ASKING, **properties})
        remote = await listener.session()
        await until(lambda: len(remote.messages) == len(sent))
        yield listener, remote, ids
