"""Ends of many messages: in parts, so that other clients are served between them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from qmd.client import new_message
from qmd.core.retry_policy import End, RetryPolicy
from qmd.events.header import Kind
from qmd.operations.receive import AT_ONCE
from qmd.operations.transaction import SETTLED_MAX
from qmd.queues.local_queue import Reader
from tests.integration.managers import DEAD_LETTERS, PATIENCE_S, Host, Hosts, bodies, hosted, until
from tests.integration.operations.test_purge import reported
from tests.process.control_client import ControlClient

MESSAGES = AT_ONCE + 1000
BODIES = [b"%d" % number for number in range(MESSAGES)]
RETRY = RetryPolicy(attempts=3, delay_s=600, delay_max_s=600, jitter=0)


class Client:
    """A client of the control socket on a thread of its own."""

    def __init__(self, host: Host) -> None:
        self._client = ControlClient(host.socket)
        self._client.sock.settimeout(PATIENCE_S)

    async def done(self, verb: str, *fields: Any) -> Any:
        return await asyncio.to_thread(self._client.done, verb, *fields)

    async def ask(self, verb: str, *fields: Any) -> Any:
        return await asyncio.to_thread(self._client.ask, verb, *fields)

    async def fill(self, queue: str, **properties: Any) -> None:
        rows = [msgspec.structs.astuple(new_message(queue, each, **properties)) for each in BODIES]
        for at in range(0, MESSAGES, 500):
            await self.done("send", rows[at : at + 500])

    async def take(self, queue: str, *more: Any) -> list[int]:
        taken: list[int] = []
        while len(taken) < MESSAGES:
            taken += [each[0] for each in await self.done("take", queue, MESSAGES, 0, *more)]
        return taken

    def close(self) -> None:
        self._client.close()


async def steps(progress: Callable[[], int], work: asyncio.Future[Any]) -> set[int]:
    """Return the values of `progress` that other work of the event loop sees until the end."""
    seen = set()
    while not work.done():
        seen.add(progress())
        await asyncio.sleep(0)
    await work
    return {each for each in seen if 0 < each < MESSAGES}


async def filled(hosts: Hosts, **properties: Any) -> tuple[Host, Client]:
    host = await hosts.start()
    await host.create("orders")
    client = Client(host)
    await client.fill("orders", **properties)
    return host, client


async def everything(host: Host, queue: str) -> list[bytes]:
    """Return the bodies of all ready messages, in order."""
    found = await host.peek(queue)
    while more := await host.peek(queue, found[-1].lookup_id + 1):
        found += more
    return bodies(found)


def left(host: Host, queue: str = "orders") -> Callable[[], int]:
    """Return how many messages are taken and not leaving."""
    found = host.queue(queue)
    return lambda: len(found.taken) - len(found.leaving)


@hosted
async def test_others_are_served_while_many_messages_are_rejected(hosts: Hosts) -> None:
    a, client = await filled(hosts, dead_letter=True)
    taken = await client.take("orders")
    token = os.urandom(16)
    work = asyncio.create_task(client.done("reject", "orders", taken, "no stock", token))
    assert len(await steps(left(a), work)) >= 3
    assert await work == MESSAGES
    assert a.queue("orders").messages == 0
    assert await everything(a, DEAD_LETTERS) == BODIES
    # The outcome is that of the whole request.
    assert await client.done("outcome", token) == MESSAGES
    client.close()


@hosted
async def test_many_messages_are_removed_with_one_commit(hosts: Hosts) -> None:
    """A client that receives them has not returned them yet: between two commits some were lost."""
    a, client = await filled(hosts)
    await a.create("acks")
    taken = await client.take("orders")
    token = os.urandom(16)
    work = asyncio.create_task(client.done("remove", "orders", taken, token))
    assert await steps(left(a), work) == set(), "all of them, or none"
    assert await work == MESSAGES
    assert a.queue("orders").messages == 0
    assert await client.done("outcome", token) == MESSAGES
    client.close()


@pytest.mark.parametrize("end", [End.POISON, End.DEAD_LETTER])
def test_others_are_served_while_many_messages_fail(end: End, tmp_path: Any) -> None:
    @hosted
    async def scenario(hosts: Hosts) -> None:
        a, client = await filled(hosts, dead_letter=True)
        await a.redelivery.set(a.queue("orders"), RETRY._replace(attempts=1, end=end))
        taken = await client.take("orders")
        fail = client.done("give_back", "orders", taken[::-1], True, "no stock")
        work = asyncio.create_task(fail)
        assert len(await steps(left(a), work)) >= 3
        assert await work == MESSAGES
        await a.redelivery.stop()
        await a.settled()
        assert a.queue("orders").messages == (MESSAGES if end is End.POISON else 0) - (
            a.queue("orders;poison").messages if end is End.POISON else 0
        )
        last = "orders;poison" if end is End.POISON else DEAD_LETTERS
        assert await everything(a, last) == BODIES
        client.close()

    scenario(tmp_path)


@hosted
async def test_an_abort_is_answered_when_all_messages_are_back(hosts: Hosts) -> None:
    a, client = await filled(hosts)
    transaction = os.urandom(16)
    await client.done("begin", transaction)
    await client.take("orders", transaction)
    work = asyncio.create_task(client.done("abort", transaction))
    assert len(await steps(left(a), work)) >= 3
    assert await work == MESSAGES
    assert not a.queue("orders").taken
    found = await a.peek("orders", limit=5)
    assert [each.abort_count for each in found] == [1] * 5
    assert await everything(a, "orders") == BODIES
    client.close()


@hosted
async def test_the_messages_of_a_client_that_leaves_are_back_in_order(hosts: Hosts) -> None:
    a, client = await filled(hosts)
    await client.take("orders")
    client.close()
    taken = a.queue("orders").taken
    leaving = asyncio.create_task(until(lambda: not taken, "the end of the client"))
    assert len(await steps(left(a), leaving)) >= 3
    await leaving
    assert await everything(a, "orders") == BODIES


@pytest.mark.parametrize("how", ["reject", "fail"])
def test_others_are_served_while_many_locked_messages_are_settled(how: str, tmp_path: Any) -> None:
    @hosted
    async def scenario(hosts: Hosts) -> None:
        a, client = await filled(hosts, dead_letter=True)
        lock, locked = os.urandom(16), 0
        while locked < MESSAGES:
            locked += len(await client.done("take_locked", "orders", lock, 600.0, MESSAGES))
        settle = client.done("settle_locked", lock, "orders", [], how, "no stock")
        work = asyncio.create_task(settle)
        assert len(await steps(left(a), work)) >= 3
        assert await work == MESSAGES
        assert await client.done("list_locks") == []
        assert a.queue("orders").messages == (MESSAGES if how == "fail" else 0)
        client.close()

    scenario(tmp_path)


@hosted
async def test_messages_of_later_parts_are_ready_again_if_no_part_follows(hosts: Hosts) -> None:
    a, client = await filled(hosts, dead_letter=True)
    reader = Reader()
    found = await a.take(reader, "orders", MESSAGES)
    while len(found) < MESSAGES:
        found += await a.take(reader, "orders", MESSAGES)
    reject = a.large_ends.reject(
        *(reader, a.queue("orders"), [each.lookup_id for each in found]),
        *("no stock", b"", "ann", lambda seconds: None),
    )
    work = asyncio.create_task(reject)
    await until(lambda: 0 < left(a)() < MESSAGES, "a part")
    work.cancel()
    await asyncio.wait([work])
    client.close()
    await a.settled()
    dead = await everything(a, DEAD_LETTERS)
    assert 0 < len(dead) < MESSAGES
    assert dead + await everything(a, "orders") == BODIES
    a = await hosts.restart(a)
    assert await everything(a, DEAD_LETTERS) == dead
    assert dead + await everything(a, "orders") == BODIES


@hosted
async def test_a_queue_that_is_deleted_meanwhile_ends_each_message_once(hosts: Hosts) -> None:
    a, client = await filled(hosts, dead_letter=True)
    queue = a.queue("orders")
    taken = await client.take("orders")
    work = asyncio.create_task(client.ask("reject", "orders", taken, "no stock"))
    await until(lambda: 0 < left(a)() < MESSAGES, "a part")
    await a.queue_deletion.delete(queue)
    assert (await work)[0] == "refused"
    await a.settled()
    client.close()
    rejected = await everything(a, DEAD_LETTERS)
    assert 0 < len(rejected) < MESSAGES
    assert await reported(a, Kind.REJECTED) == len(rejected)
    assert await reported(a, Kind.QUEUE_DELETED) == MESSAGES - len(rejected)


@hosted
async def test_messages_that_were_not_taken_are_refused_before_the_first_part(hosts: Hosts) -> None:
    a, client = await filled(hosts)
    taken = await client.take("orders")
    for verb in (("remove", "orders"), ("reject", "orders"), ("give_back", "orders")):
        more = (True,) if verb[0] == "give_back" else ()
        assert (await client.ask(*verb, [*taken, 1], *more))[0] == "refused"
    assert a.queue("orders").messages == MESSAGES
    assert await client.done("remove", "orders", taken) == MESSAGES
    client.close()


@hosted
async def test_a_transaction_moves_and_rejects_a_limited_number_of_messages(hosts: Hosts) -> None:
    a, client = await filled(hosts, dead_letter=True)
    await client.fill("orders", dead_letter=True)
    await client.fill("orders", dead_letter=True)
    transaction = os.urandom(16)
    await client.done("begin", transaction)
    taken: list[int] = []
    while len(taken) < 3 * MESSAGES:
        taken += await client.take("orders", transaction)
    settle = "settle", transaction, "orders"
    assert await client.done(*settle, taken[:SETTLED_MAX], "", "no stock") == SETTLED_MAX
    # Those that were settled before do not count again.
    assert await client.done(*settle, taken[:5], "", "no place") == 5
    refused = await client.ask(*settle, taken[SETTLED_MAX : SETTLED_MAX + 1], "", "no stock")
    assert refused[0] == "refused"
    assert "too_many_settled" in refused
    await client.done("commit", transaction)
    assert len(await everything(a, DEAD_LETTERS)) == SETTLED_MAX
    assert a.queue("orders").messages == 0
    client.close()
