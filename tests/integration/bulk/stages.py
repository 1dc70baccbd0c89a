"""Helpers for tests of staged rows: stage, publish, and look at the result."""

from __future__ import annotations

from typing import Any

from qmd.client.pipeline import each_message
from qmd.control_protocol.bulk import EVERYTHING, Attempt
from qmd.control_protocol.messages import NewMessage
from storage.tables import events
from storage.tables.events import Event
from tests.integration.managers import Host, bodies


async def stage(
    host: Host,
    epoch: int,
    part: int,
    attempt: str,
    *rows: bytes,
    query: str = "etl",
    queue: str = "orders",
    first_row: int = 0,
    **properties: Any,
) -> Attempt:
    messages = [NewMessage(queue, row, **properties) for row in rows]
    staged = await host.staging.stage(query, epoch, part, attempt, first_row, messages)
    return Attempt(part, attempt, staged["rows"])


async def publish(
    host: Host, epoch: int, *attempts: Attempt, query: str = "etl"
) -> tuple[bool, int]:
    done = await host.publisher.publish(query, epoch, list(attempts))
    return done["published"], done["messages"]


async def sent_events(host: Host) -> list[Event]:
    await host.settled()
    blocks = await host.storage.read(lambda db: events.page(db, 0, 10_000))
    return [event for block in blocks for event in block.events if event.kind == "sent"]


async def contents(host: Host, queue: str = "orders") -> list[bytes]:
    rows = await host.ranges.read(
        host.queue(queue), 0, 0, limit=9999, bytes_max=1 << 24, wanted=EVERYTHING, bodies=True
    )
    return bodies([message for _, message in each_message(rows)])
