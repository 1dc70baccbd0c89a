"""Removals of many messages of which the receipt is acknowledged: one commit, prepared in parts.

The queues, the disk and the history must be as if each acknowledgment were made alone.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop

from protocol import parse_user_message
from protocol.message_class import MessageClass
from qmd.bulk import consume
from qmd.client import new_message
from qmd.errors import Refusal
from qmd.events.header import Kind
from qmd.operations import receive
from qmd.outcomes.acknowledgments import Acknowledgments
from qmd.outcomes.prepared_ends import PreparedEnd
from qmd.runtime.bulk_turns import LargeExchange
from qmd.runtime.work_parts import PART_ALONE
from storage.tables import events
from tests.integration.bulk.reader import opened
from tests.integration.history.test_receipts import final_acks, given
from tests.integration.managers import DEAD_LETTERS, PATIENCE_S, Host, Hosts, hosted, until
from tests.integration.remote import dial, guid, packet
from tests.process.control_client import ControlClient

PA, PR, NR = 1, 2, 8
RECEIPT, REJECTED = MessageClass.ACK_RECEIVE, MessageClass.NACK_RECEIVE_REJECTED
ONE_BY_ONE = 1 << 30
MESSAGES = 3 * receive.ACKNOWLEDGED_AT_ONCE
ELSEWHERE = "DIRECT=TCP:127.0.0.9\\private$\\acks"
ADMIN = "DIRECT=TCP:127.0.0.1\\private$\\admin"
ASKING = {"admin_queue": "acks", "acknowledge": PR | NR, "dead_letter": True}
LATER = 1 << 40  # the number of a connection after all others
WAYS = ["remove", "transaction", "rejection", "lock", "reader"]
#: Three of four messages go one way, which is more than a queue gets from memory.
KINDS: list[dict[str, Any]] = [
    *[ASKING] * 18,
    ASKING | {"delivery": "express"},
    ASKING | {"acknowledge": PA},
    ASKING | {"admin_queue": "acks,other"},
    {"admin_queue": ELSEWHERE, "acknowledge": PR | NR},
    {"admin_queue": ELSEWHERE, "acknowledge": PR | NR, "delivery": "express"},
    {"admin_queue": "gone", "acknowledge": PR | NR},
    {"admin_queue": "strict", "acknowledge": PR | NR},
    {},
]


class Asker:
    """A client on a thread of its own, which removes the messages of the queue `orders`."""

    def __init__(self, host: Host) -> None:
        self._client = ControlClient(host.socket)
        self._client.sock.settimeout(PATIENCE_S)
        self.send, self.close = self._client.send, self._client.close

    async def done(self, verb: str, *fields: Any) -> Any:
        return await asyncio.to_thread(self._client.done, verb, *fields)

    async def ask(self, verb: str, *fields: Any) -> Any:
        return await asyncio.to_thread(self._client.ask, verb, *fields)

    async def fill(self, kinds: Sequence[dict[str, Any]] = (ASKING,)) -> None:
        rows = [
            msgspec.structs.astuple(
                new_message("orders", b"%d" % at, label=str(at), **kinds[at % len(kinds)])
            )
            for at in range(MESSAGES)
        ]
        for at in range(0, MESSAGES, 250):
            await self.done("send", rows[at : at + 250])

    async def take(self, verb: str = "take", *more: Any) -> list[int]:
        """Take all messages; `more` is what the request has after the number and the wait."""
        taken: list[int] = []
        while len(taken) < MESSAGES:
            taken += [each[0] for each in await self.done(verb, "orders", MESSAGES, 0, *more)]
        return taken

    async def lock(self) -> bytes:
        """Take all messages under a lock; return its id."""
        lock, locked = os.urandom(16), 0
        while locked < MESSAGES:
            locked += len(await self.done("take_locked", "orders", lock, 600.0, MESSAGES))
        return lock

    async def removal(self, host: Host, way: str) -> Callable[[], Any]:
        """Take all messages; return the function that removes them."""
        if way == "reader":
            run = await opened(host)
            end = (await run.reserve(0, MESSAGES))["end"]
            return lambda: run.consume(end)
        if way in ("transaction", "rejection"):
            transaction = os.urandom(16)
            await self.done("begin", transaction)
            taken = await self.take("take", transaction)
            if way == "rejection":
                await self.done("settle", transaction, "orders", taken, "", "no stock")
            return lambda: self.done("commit", transaction)
        if way == "lock":
            lock = await self.lock()
            return lambda: self.done("settle_locked", lock, "orders", [], "remove")
        taken = await self.take()
        return lambda: self.done("remove", "orders", taken)


async def started(hosts: Hosts, **sections: Any) -> tuple[Host, Asker]:
    host = await hosts.start(**sections)
    for name in ("orders", "acks", "gone", "other"):
        await host.create(name)
    return host, Asker(host)


async def contents(host: Host, queue: str) -> list[tuple[bytes, int, int]]:
    """Return the label, class and delivery of all messages of a queue, in order."""
    found, start = [], 0
    while page := await host.peek(queue, start):
        for each in page:
            message = parse_user_message(each.packet)
            properties, flags = message.properties, message.user.flags
            found.append((properties.label, properties.message_class, flags.delivery))
        start = page[-1].lookup_id + 1
    return found


def is_usual(acknowledgment: tuple[bytes, int, int]) -> bool:
    """Return whether it goes the way of most of them, on which they keep their order."""
    label, message_class, _ = acknowledgment
    kind = KINDS[int(label.decode("utf-16-le").rstrip("\0")) % len(KINDS)]
    return kind is ASKING and message_class in (RECEIPT, REJECTED)


async def history(host: Host) -> Counter[tuple[str, str, str, str]]:
    """Return the number of messages by the kind, the queues and the reason of their events."""
    kinds: Counter[tuple[str, str, str, str]] = Counter()
    await host.settled()
    for block in await host.storage.read(lambda db: events.page(db, 0, 1_000_000)):
        for event in block.events:
            key = event.kind, event.queue, event.to_queue, event.reason
            kinds[key] += len(event.numbers)
    return kinds


def removed(folder: Path, way: str, at_once: int) -> dict[str, Any]:
    """Remove messages of all kinds; return all that this has left behind."""
    folder.mkdir()

    async def main() -> dict[str, Any]:
        async with Hosts(folder) as hosts:
            host, client = await started(hosts)
            await host.create("strict", transactional=True)
            await client.fill(kinds=KINDS)
            await host.queue_deletion.delete(host.queue("gone"))
            remove = await client.removal(host, way)
            await remove()
            client.close()
            await host.settled()
            waiting = host.sending_to(ELSEWHERE)
            acks = await contents(host, "acks")
            return {
                "other": await contents(host, "other"),
                "acks": sorted(acks),
                "in order": [each for each in acks if is_usual(each)],
                "dead": await contents(host, DEAD_LETTERS),
                "bytes": [host.queue(name).bytes for name in ("orders", "acks", "strict")],
                "elsewhere": (waiting.messages, waiting.bytes, len(waiting.express)),
                "history": await history(host),
            }

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(receive, "ACKNOWLEDGED_AT_ONCE", at_once)
        patch.setattr(consume, "ACKNOWLEDGED_AT_ONCE", at_once)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main())


@pytest.mark.parametrize("way", WAYS)
def test_acknowledgments_that_are_made_in_parts_are_those_that_are_made_alone(
    tmp_path: Path, way: str
) -> None:
    one_by_one = removed(tmp_path / "one", way, ONE_BY_ONE)
    in_parts = removed(tmp_path / "parts", way, receive.ACKNOWLEDGED_AT_ONCE)

    assert len(one_by_one["in order"]) > 512
    for part, found in one_by_one.items():
        assert in_parts[part] == found, part


@pytest.mark.parametrize("way", WAYS)
def test_others_are_served_while_acknowledgments_of_receipt_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    parts: list[int] = []
    add = PreparedEnd.add

    def watched(self: PreparedEnd, messages: Any) -> None:
        parts.append(len(messages))
        add(self, messages)

    alone: list[object] = []
    monkeypatch.setattr(PreparedEnd, "add", watched)
    monkeypatch.setattr(Acknowledgments, "to_application", lambda *more: alone.append(more))

    @hosted
    async def scenario(hosts: Hosts) -> None:
        host, client = await started(hosts)
        await client.fill()
        remove = await client.removal(host, way)
        queue, acks = host.queue("orders"), host.queue("acks")
        work = asyncio.ensure_future(remove())
        seen = set()
        while not work.done():
            if 0 < sum(parts) < MESSAGES:
                seen.add(len(parts))
                # All of it is one commit, which is not begun.
                assert (len(queue.leaving), queue.messages, acks.messages) == (0, MESSAGES, 0)
            await asyncio.sleep(0)
        await work
        assert len(seen) >= 3, "other work had its turns"
        assert max(parts) <= PART_ALONE
        assert not alone
        assert (sum(parts), queue.messages, acks.messages) == (MESSAGES, 0, MESSAGES)
        client.close()

    scenario(tmp_path)


@asynccontextmanager
async def under_way(host: Host) -> AsyncIterator[None]:
    """Enter when some acknowledgments are made, and nothing is removed.

    Others are active until the end, so that the parts are small and rest between them.
    """
    queue, made = host.queue("orders"), host.services.ids.upcoming_message_number

    async def act() -> None:
        while True:
            host.local_turns.has_time(LargeExchange())
            await asyncio.sleep(0.001)

    acting = asyncio.ensure_future(act())
    await until(lambda: host.services.ids.upcoming_message_number > made, "a part")
    assert not queue.leaving
    yield
    assert not queue.leaving, "the test has come too late"
    acting.cancel()


@hosted
async def test_the_messages_of_a_connection_that_ends_meanwhile_are_back(hosts: Hosts) -> None:
    host, client = await started(hosts)
    await client.fill()
    taken = await client.take()
    (connection,) = host.control.connections
    client.send("remove", "orders", taken)
    async with under_way(host):
        connection.abort()  # its client is not read meanwhile, so that it cannot be seen to leave
    client.close()
    await until(lambda: not host.queue("orders").taken, "the end of the client")
    await host.settled()
    assert host.queue("acks").messages == 0
    assert len(await contents(host, "orders")) == MESSAGES
    host = await hosts.restart(host)
    assert (host.queue("acks").messages, host.queue("orders").messages) == (0, MESSAGES)


@hosted
async def test_the_daemon_that_ends_meanwhile_has_all_messages_and_no_acknowledgment(
    hosts: Hosts,
) -> None:
    host, client = await started(hosts)
    await client.fill()
    taken = await client.take()
    client.send("remove", "orders", taken)
    async with under_way(host):
        host = await hosts.restart(host)
    client.close()
    assert (host.queue("acks").messages, host.queue("orders").messages) == (0, MESSAGES)
    assert [each[0] for each in await contents(host, "orders")] == [
        f"{at}\0".encode("utf-16-le") for at in range(MESSAGES)
    ]


@hosted
async def test_a_removal_of_which_the_outcome_is_asked_meanwhile_is_not_done_later(
    hosts: Hosts,
) -> None:
    host, client = await started(hosts)
    await client.fill()
    taken, token = await client.take(), os.urandom(16)
    work = asyncio.ensure_future(client.ask("remove", "orders", taken, token))
    async with under_way(host):
        assert await host.request_outcomes.outcome(token, LATER) is None
    assert "transaction_aborted" in await work
    assert host.queue("acks").messages == 0
    # The client has its messages still.
    assert await client.done("remove", "orders", taken, os.urandom(16)) == MESSAGES
    assert host.queue("acks").messages == MESSAGES
    client.close()


@hosted
async def test_a_second_removal_under_the_same_lock_is_refused_meanwhile(hosts: Hosts) -> None:
    host, client = await started(hosts)
    await client.fill()
    lock, queue = await client.lock(), host.queue("orders")
    work = asyncio.ensure_future(client.done("settle_locked", lock, "orders", [], "remove"))
    async with under_way(host):
        with pytest.raises(Refusal, match="does not hold the messages"):
            host.locks.settle(lock, queue, [], how="remove", reason="", token=b"", done=print)
    assert await work == MESSAGES
    assert (host.queue("acks").messages, host.queue("orders").messages) == (MESSAGES, 0)
    client.close()


@hosted
async def test_a_queue_that_is_deleted_meanwhile_ends_its_messages_without_a_receipt(
    hosts: Hosts,
) -> None:
    host, client = await started(hosts)
    await client.fill()
    taken = await client.take()
    work = asyncio.ensure_future(client.ask("remove", "orders", taken))
    async with under_way(host):
        await host.queue_deletion.delete(host.queue("orders"))
    assert "no_such_queue" in await work
    await host.settled()
    found = await history(host)
    classes = [message_class for _, message_class, _ in await contents(host, "acks")]
    assert classes == [MessageClass.NACK_QUEUE_DELETED] * MESSAGES
    assert sum(count for key, count in found.items() if key[0] == Kind.QUEUE_DELETED) == MESSAGES
    assert not any(key[0] == Kind.RECEIVED for key in found)
    client.close()


@hosted
async def test_a_purge_meanwhile_leaves_the_messages_to_their_removal(hosts: Hosts) -> None:
    host, client = await started(hosts)
    await client.fill()
    taken = await client.take()
    work = asyncio.ensure_future(client.done("remove", "orders", taken))
    async with under_way(host):
        purged = await host.purger.purge(host.queue("orders"))
        assert (purged.messages, purged.taken) == (0, MESSAGES)
    assert await work == MESSAGES
    assert host.queue("acks").messages == MESSAGES
    client.close()


@hosted
async def test_an_administration_queue_that_is_deleted_meanwhile_gets_nothing(
    hosts: Hosts,
) -> None:
    host, client = await started(hosts)
    await client.fill()
    taken = await client.take()
    work = asyncio.ensure_future(client.done("remove", "orders", taken))
    async with under_way(host):
        await host.queue_deletion.delete(host.queue("acks"))
    assert await work == MESSAGES
    found = await history(host)
    missing = {key: count for key, count in found.items() if key[0] == Kind.UNACKNOWLEDGED}
    assert sum(missing.values()) == MESSAGES
    assert all("no queue" in key[3] for key in missing)
    assert not any(key[0] == Kind.ACKNOWLEDGED for key in found)
    client.close()


@hosted
async def test_an_aborted_transaction_removes_nothing_that_it_has_prepared(hosts: Hosts) -> None:
    host, client = await started(hosts)
    await client.fill()
    transaction = os.urandom(16)
    await client.done("begin", transaction)
    await client.take("take", transaction)
    work = asyncio.ensure_future(client.ask("commit", transaction))
    async with under_way(host):
        assert await host.request_outcomes.outcome(transaction, LATER) is None
    assert "transaction_aborted" in await work
    await until(lambda: not host.queue("orders").taken, "the abort")
    await host.settled()
    assert (host.queue("acks").messages, host.queue("orders").messages) == (0, MESSAGES)
    client.close()


def has(host: Host, messages: int) -> bool:
    return host.queue("orders").messages == messages


@pytest.mark.parametrize("at_once", [ONE_BY_ONE, receive.ACKNOWLEDGED_AT_ONCE])
def test_a_host_gets_as_many_acknowledgments_of_receipt_as_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(receive, "ACKNOWLEDGED_AT_ONCE", at_once)

    @hosted
    async def scenario(hosts: Hosts) -> None:
        limit, elsewhere = 200, MESSAGES // 16
        host, client = await started(hosts, consequences={"acknowledgments_per_host": limit})
        remote = await dial(host, guid(7))
        for at in range(0, MESSAGES, 16):
            remote.send(
                *[
                    packet(b"", source=guid(7), number=1 + each, admin=admin, acknowledge=PR)
                    for each in range(at, at + 16)
                    for admin in [ADMIN if each % 16 else ELSEWHERE]
                ]
            )
            await until(partial(has, host, at + 16))
        taken = await client.take()
        assert await client.done("remove", "orders", taken) == MESSAGES

        def all_are_there() -> bool:
            remote.acknowledge()
            return remote.classes[RECEIPT] >= limit

        await until(all_are_there, "the acknowledgments")
        await host.settled()
        assert remote.classes[RECEIPT] == limit
        found = await history(host)
        counts = {
            kind: sum(count for key, count in found.items() if key[0] == kind)
            for kind in (Kind.ACKNOWLEDGED, Kind.UNACKNOWLEDGED)
        }
        assert counts == {Kind.ACKNOWLEDGED: limit, Kind.UNACKNOWLEDGED: MESSAGES - limit}
        limited = host.answer_limits.status()["not_made"]
        assert limited == {
            "no room or no way": MESSAGES - elsewhere - limit,
            "administration queue elsewhere": elsewhere,
        }
        client.close()

    scenario(tmp_path)


@hosted
async def test_a_source_gets_final_acks_beside_acknowledgments_that_are_made_in_parts(
    hosts: Hosts,
) -> None:
    host = await hosts.start()
    await host.create("orders", transactional=True)
    client, remote = Asker(host), await dial(host, guid(7))
    await given(remote, host, 20, admin=ADMIN, acknowledge=PR, journal=True)
    taken = [each[0] for each in await client.done("take", "orders", 20, 0)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(receive, "ACKNOWLEDGED_AT_ONCE", 10)
        assert await client.done("remove", "orders", taken) == 20
    await until(lambda: len(final_acks(remote)) == 20, "the final acks")
    await until(lambda: remote.classes[RECEIPT] == 2 * 20, "the acknowledgments")
    assert final_acks(remote) == [(RECEIPT, number, 100 + number) for number in range(1, 21)]
    client.close()
