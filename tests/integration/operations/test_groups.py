"""Groups: the messages of a group go to one reader at a time, in order; groups go in parallel."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from functools import partial
from typing import Any

import pytest

from qmd.client import QueueManager, connect, new_message
from tests.integration.managers import Host, Hosts, hosted, until

LONG_S = 600.0


async def filled(hosts: Hosts, *messages: str, **more: Any) -> Host:
    """Start a host with a queue with groups; "b2" is the second message of group b."""
    a = await hosts.start()
    async with connect(a.socket) as qm:
        await qm.create_queue("orders", transactional=True, groups=True, **more)
        await send(qm, *messages)
    return a


async def send(qm: QueueManager, *messages: str, **properties: Any) -> None:
    await qm.send_many(
        [
            new_message("orders", each.encode(), group=each[:1].strip("-"), **properties)
            for each in messages
        ]
    )


def bodies(messages: Any) -> list[str]:
    return [message.body.decode() for message in messages]


@hosted
async def test_other_readers_get_other_groups_until_the_owner_is_done(hosts: Hosts) -> None:
    a = await filled(hosts, "a1", "a2", "b1", "-1", "a3", "b2", "c1")
    async with connect(a.socket) as one, connect(a.socket) as two, connect(a.socket) as three:
        first = await one.take("orders")
        assert bodies(first.messages) == ["a1"]
        second = await two.take("orders", 9)
        assert bodies(second.messages) == ["b1", "-1", "b2", "c1"]
        assert bodies((await three.take("orders", 9)).messages) == []
        assert bodies((await one.take("orders", 9)).messages) == ["a2", "a3"], "it owns the group"
        await first.remove()
        assert bodies((await three.take("orders", 9)).messages) == [], "it still has others"
        await second.give_back()
        assert bodies((await three.take("orders", 9)).messages) == ["b1", "-1", "b2", "c1"]
        shown = await one.show_queue("orders")
        assert (shown["groups"], shown["groups_owned"]) == (True, 3)
    await until(lambda: not a.queue("orders").groups.owned)
    async with connect(a.socket) as one:
        found = await one.receive_many("orders", 9)
        assert bodies(found) == ["a2", "b1", "-1", "a3", "b2", "c1"]


@hosted
async def test_locks_and_transactions_own_groups_too(hosts: Hosts) -> None:
    a = await filled(hosts, "a1", "a2", "b1", "b2", "c1")
    async with connect(a.socket) as qm:
        locked = await qm.take_locked("orders", lock_s=LONG_S)
        transaction = qm.transaction()
        await transaction.begin()
        assert bodies(await transaction.receive_many("orders", 1)) == ["b1"]
        assert bodies(await transaction.receive_many("orders", 1)) == ["b2"]
        other = await qm.take_locked("orders", 9, lock_s=LONG_S)
        assert bodies(other.messages) == ["c1"]
        assert bodies(await locked.take(9, lock_s=LONG_S)) == ["a2"]
        await transaction.abort()
        assert bodies(await other.take(9, lock_s=LONG_S)) == ["b1", "b2"]
        # The group goes with its messages to a transaction.
        async with qm.transaction() as transaction:
            await transaction.settle(locked)
            await send(qm, "a3")
            assert bodies(await transaction.receive_many("orders", 9)) == []
        assert bodies(await qm.receive_many("orders", 9)) == ["a3"]
        await other.renew(0.02)
        found = [await qm.receive("orders", timeout_s=None) for _ in range(3)]
        assert bodies(found) == ["b1", "b2", "c1"]


@hosted
async def test_a_reader_that_waits_gets_a_group_when_its_owner_is_done(hosts: Hosts) -> None:
    a = await filled(hosts, "a1", "a2", "a3")
    for way in ("remove", "give_back", "fail"):
        async with connect(a.socket) as one, connect(a.socket) as two:
            locked = await one.take_locked("orders", lock_s=LONG_S)
            waiting = asyncio.create_task(two.take("orders", timeout_s=None))
            await until(lambda: any(scout._skipped for scout in a.queue("orders").scouts))
            await locked.settle(way)
            expected = {"remove": "a2", "give_back": "a2", "fail": "a2"}[way]
            assert bodies((await waiting).messages) == [expected]
            await (await waiting).give_back()


@hosted
async def test_a_selector_and_a_group_hold_together(hosts: Hosts) -> None:
    a = await filled(hosts)
    async with connect(a.socket) as one, connect(a.socket) as two:
        await send(one, "a1", "b1", properties={"n": 1})
        await send(one, "a2", "b2", properties={"n": 2})
        taken = await one.take("orders", where="n = 2")
        assert bodies(taken.messages) == ["a2"]
        assert bodies((await two.take("orders", 9, where="n = 1")).messages) == ["b1"]
        assert bodies((await two.take("orders", 9)).messages) == ["b2"]


@hosted
async def test_groups_can_begin_and_end_at_any_time(hosts: Hosts) -> None:
    a = await filled(hosts, "a1", "a2", "a3")
    async with connect(a.socket) as one, connect(a.socket) as two:
        changed = await one.set_queue("orders", groups=False)
        assert changed["groups"] is False
        waiting = asyncio.create_task(one.take("orders", 1))
        assert bodies((await waiting).messages) == ["a1"]
        assert bodies((await two.take("orders")).messages) == ["a2"]
        await one.set_queue("orders", groups=True)
        assert bodies((await one.take("orders")).messages) == ["a3"]
        await send(one, "a4")
        assert bodies((await two.take("orders")).messages) == []
    a = await hosts.restart(a)
    assert a.queue("orders").groups is not None
    async with connect(a.socket) as one:
        assert bodies(await one.receive_many("orders", 9)) == ["a1", "a2", "a3", "a4"]


@hosted
async def test_a_request_that_waited_before_the_groups_does_not_overtake(hosts: Hosts) -> None:
    a = await filled(hosts)
    async with connect(a.socket) as one, connect(a.socket) as two:
        await one.set_queue("orders", groups=False)
        waiting = asyncio.create_task(one.take("orders", timeout_s=None))
        await until(lambda: a.queue("orders").waiters)
        await two.set_queue("orders", groups=True)
        await send(two, "a1", "a2")
        first = await waiting
        assert bodies(first.messages) == ["a1"]
        assert bodies((await two.take("orders")).messages) == []
        await first.remove()
        assert bodies((await two.take("orders")).messages) == ["a2"]


@pytest.mark.parametrize("seed", range(4))
def test_each_group_is_processed_in_order_by_one_reader_at_a_time(tmp_path: Any, seed: int) -> None:
    """Readers of all kinds work at once, some fail, give back, or let their locks expire."""

    @hosted
    async def scenario(hosts: Hosts) -> None:
        a = await filled(hosts)
        await Work(seed, a).run()

    scenario(tmp_path)


GROUPS, OF_GROUP = "abcdef", 12


class Work:
    """Readers that process all messages of six groups, and a record of their work."""

    def __init__(self, seed: int, host: Host) -> None:
        self.random = random.Random(seed)
        self.host = host
        self.owners: dict[str, object] = {}
        self.done: defaultdict[str, list[int]] = defaultdict(list)

    @property
    def is_done(self) -> bool:
        return sum(map(len, self.done.values())) == len(GROUPS) * OF_GROUP

    async def run(self) -> None:
        async with connect(self.host.socket) as qm:
            readers = [
                asyncio.create_task(kind(self.random.random()))
                for kind in (self.by_lock, self.by_take, self.by_transaction)
                for _ in range(2)
            ]
            for number in range(OF_GROUP):
                await send(qm, *(f"{group}{number}" for group in GROUPS))
            await asyncio.gather(*readers)
            assert self.done == {group: list(range(OF_GROUP)) for group in GROUPS}
            assert await qm.peek("orders") == []

    def begin(self, messages: Any, owner: object) -> None:
        for each in bodies(messages):
            assert self.owners.setdefault(each[0], owner) is owner, f"{each} has two readers"

    def end(self, messages: Any, *, processed: bool) -> None:
        for each in bodies(messages):
            if processed:
                self.done[each[0]].append(int(each[1:]))
            self.owners.pop(each[0], None)

    async def by_lock(self, chance: float) -> None:
        async with connect(self.host.socket) as qm:
            while not self.is_done:
                taken = await qm.take_locked("orders", 3, lock_s=LONG_S, timeout_s=0.05)
                if not taken:
                    continue
                self.begin(taken.messages, taken)
                messages, way = list(taken.messages), self.random.random()
                self.end(messages, processed=way > 0.4)
                if way > 0.4:
                    await taken.remove()
                elif way > 0.1:
                    await taken.give_back(failed=way > 0.3)
                else:
                    await taken.renew(0.001)
                    await until(partial(self.is_over, taken.id))

    def is_over(self, lock: bytes) -> bool:
        return lock not in self.host.locks._locks

    async def by_take(self, chance: float) -> None:
        while not self.is_done:
            async with connect(self.host.socket) as qm:
                taken = await qm.take("orders", 2, timeout_s=0.05)
                if not taken:
                    continue
                self.begin(taken.messages, taken)
                way = self.random.random()
                self.end(taken.messages, processed=way > 0.4)
                if way > 0.4:
                    await taken.remove()  # otherwise the end of the connection returns them

    async def by_transaction(self, chance: float) -> None:
        async with connect(self.host.socket) as qm:
            while not self.is_done:
                transaction = qm.transaction()
                await transaction.begin()
                messages = await transaction.receive_many("orders", 2, timeout_s=0.05)
                self.begin(messages, transaction)
                way = self.random.random()
                self.end(messages, processed=way > 0.4)
                if way > 0.4:
                    await transaction.commit()
                else:
                    await transaction.abort()
