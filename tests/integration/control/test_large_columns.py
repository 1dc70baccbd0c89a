"""Requests with many messages that are not alike: their places are given column by column.

Each request is sent twice: in columns, and message by message, as a small request is.  The queues,
the disk and the history must be the same.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import uvloop

from protocol import MessageClass, parse_user_message
from qmd.bulk import large_send
from qmd.bulk.column_writer import ColumnWriter
from qmd.bulk.message_columns import MessageColumns
from qmd.client import QueueManager, connect, new_message
from qmd.control import message_handlers
from qmd.control_protocol.messages import NewMessage
from qmd.control_protocol.parts import MANY
from qmd.core.acknowledgment import POSITIVE_ARRIVAL
from qmd.operations.send_batch import BatchSender
from qmd.outcomes.acknowledgments import Acknowledgments
from storage.tables import events
from tests.integration.managers import Host, Hosts, until

MESSAGES = MANY + 16
ONE_BY_ONE = 1 << 30
NA = 4
LONG = bytes(2000)  # copies of it share a part
QUEUES = ("plain", "other", "dead", "acks")


def rows_of(there: str) -> list[NewMessage]:
    """Return messages of all kinds, each with its number as its label."""
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("plain", {}),
        ("plain", {"priority": 6}),
        ("plain", {"delivery": "express", "correlation_id": bytes(19) + b"c"}),
        ("plain", {"time_to_be_received_s": 70_000}),
        ("strict", {}),
        ("plain,other", {"body": LONG}),
        ("plain,other", {"admin_queue": "acks", "acknowledge": POSITIVE_ARRIVAL}),
        ("other,strict", {"body": LONG}),
        (f"{there},{there}2", {"body": LONG, "delivery": "transactional", "dead_letter": True}),
        (f"plain,{there}", {"delivery": "transactional"}),  # which `plain` refuses
        ("plain,strict", {"delivery": "transactional", "admin_queue": "acks", "acknowledge": NA}),
        (there, {"delivery": "transactional", "dead_letter_queue": "strict_dead"}),
        (there, {"delivery": "transactional", "time_to_reach_queue_s": 80_000, "journal": True}),
        ("plain", {"dead_letter_queue": "dead", "report_queue": "acks"}),
        ("plain", {"delay_s": 3600.0}),
        ("other", {"priority": 7, "dead_letter_queue": "dead"}),
        ("other", {"delivery": "express", "admin_queue": "acks", "acknowledge": POSITIVE_ARRIVAL}),
    ]
    return [
        new_message(queue, properties.get("body", b"short"), label=str(number), **more)
        for number in range(MESSAGES)
        for queue, properties in [kinds[number % len(kinds)]]
        for more in [{key: each for key, each in properties.items() if key != "body"}]
    ]


async def contents(host: Host, queue: str) -> list[tuple[Any, ...]]:
    """Return what tells the messages of a queue from each other, in order."""
    found: list[tuple[Any, ...]] = []
    start = 0
    while page := await host.peek(queue, start):
        for each in page:
            message = parse_user_message(each.packet)
            flags = message.transaction.flags if message.transaction else None
            label = message.properties.label.decode("utf-16-le").rstrip("\0")
            if message.properties.message_class == MessageClass.REPORT:
                label = "a report"  # it has the time
            found.append(
                (
                    label,
                    len(message.properties.body),
                    message.properties.message_class,
                    message.base.flags.priority,
                    each.expires_at_s is not None,
                    each.reason,
                    None if flags is None else (flags.first, flags.last),
                )
            )
        start = page[-1].lookup_id + 1
    return found


async def state(host: Host, other: Host) -> dict[str, Any]:
    """Return all that a request has left behind."""
    kinds: Counter[tuple[str, str]] = Counter()
    for block in await host.storage.read(lambda db: events.page(db, 0, 1_000_000)):
        for event in block.events:
            for queue in event.queues or [event.queue] * len(event.numbers):
                kinds[event.kind, queue.rpartition("\\")[2]] += 1
    own = await host.storage.read(
        lambda db: db.execute(
            "SELECT place, count(*) FROM own_dead_letter GROUP BY place"
        ).fetchall()
    )
    queues = {name: await contents(host, name) for name in (*QUEUES, "strict", "strict_dead")}
    dead = await contents(host, "SYSTEM$;DEADXACT")
    queues["acks"].sort()  # those of copies are made after those of other messages
    elsewhere = {name: await contents(other, name) for name in ("there", "there2")}
    return {
        "queues": queues | elsewhere | {"dead": dead},
        "bytes": {name: host.queue(name).bytes for name in queues},
        "own": own,
        "delayed": host.delayed.totals,
        "events": kinds,
        "sent": host.message_sender.sent_count,
    }


def sent(folder: Path, one_by_one_max: int, *, in_transaction: bool = False) -> dict[str, Any]:
    """Send all kinds of messages in one request; return what it has left behind."""

    async def send(qm: QueueManager, rows: list[NewMessage]) -> None:
        if not in_transaction:
            assert len(await qm.send_many(rows)) == MESSAGES
            return
        async with qm.transaction():
            await qm.send_many(rows)

    folder.mkdir(exist_ok=True)

    async def main() -> dict[str, Any]:
        async with Hosts(folder) as hosts:
            host, other = await hosts.start("a"), await hosts.start("b")
            for name in QUEUES:
                await host.create(name)
            for name in ("strict", "strict_dead"):
                await host.create(name, transactional=True)
            for name in ("there", "there2"):
                await other.create(name, transactional=True)
            there = f"DIRECT=TCP:127.0.0.1:{other.port}\\private$\\there"
            rows = rows_of(there)
            if in_transaction:
                rows = [
                    new_message(each.destination, each.body, label=each.label)
                    for each in rows
                    if each.destination in ("strict", there)
                ]
                rows = (rows * MESSAGES)[:MESSAGES]
            wanted = sum(there in each.destination for each in rows)
            async with connect(host.socket) as qm:
                await send(qm, rows)
            await until(lambda: other.queue("there").messages == wanted)
            await until(lambda: not any(each.messages for each in host.outgoing.queues))
            await until(lambda: not host.reports._reporting)
            await host.storage.batch.barrier()
            return await state(host, other)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_send, "ONE_BY_ONE_MAX", one_by_one_max)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main())


@pytest.mark.parametrize("in_transaction", [False, True], ids=["messages", "transaction"])
def test_messages_in_columns_have_the_places_and_the_history_of_others(
    tmp_path: Path, in_transaction: bool
) -> None:
    one_by_one = sent(tmp_path / "one", ONE_BY_ONE, in_transaction=in_transaction)
    in_columns = sent(tmp_path / "columns", 0, in_transaction=in_transaction)

    for part, found in one_by_one.items():
        assert in_columns[part] == found, part


def test_no_message_of_a_large_request_is_put_into_the_batch_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone: list[object] = []
    put, acknowledge = BatchSender.put, Acknowledgments.to_application

    def watched(self: BatchSender, new: NewMessage, *arguments: Any, **more: Any) -> None:
        alone.append(new)
        put(self, new, *arguments, **more)

    def watched_too(self: Acknowledgments, *arguments: Any) -> None:
        alone.append(arguments)
        acknowledge(self, *arguments)

    monkeypatch.setattr(BatchSender, "put", watched)
    monkeypatch.setattr(Acknowledgments, "to_application", watched_too)

    sent(tmp_path, 512)

    assert not alone


@pytest.mark.parametrize("in_transaction", [False, True], ids=["messages", "transaction"])
def test_few_messages_to_many_queues_are_sent_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_transaction: bool
) -> None:
    monkeypatch.setattr(message_handlers, "COPIES_AT_ONCE", 100)
    monkeypatch.setattr(message_handlers, "MANY", 100)
    monkeypatch.setattr(large_send, "ONE_BY_ONE_MAX", 100)
    in_columns: list[int] = []
    write = ColumnWriter.write

    def watched(self: ColumnWriter, made: MessageColumns, *arguments: Any) -> None:
        in_columns.append(made.count)
        write(self, made, *arguments)

    monkeypatch.setattr(ColumnWriter, "write", watched)

    async def main() -> None:
        async with Hosts(tmp_path) as hosts:
            host = await hosts.start()
            names = [f"q{number}" for number in range(60)]
            for name in names:
                await host.create(name, transactional=in_transaction)
            messages = [new_message(",".join(names), each) for each in (b"1", b"2")]
            async with connect(host.socket) as qm:
                if in_transaction:
                    async with qm.transaction():
                        await qm.send_many(messages)
                else:
                    await qm.send_many(messages)
            for name in names:
                assert await host.receive(name) == [b"1", b"2"]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())

    assert in_columns == [120]
