"""Memory budgets: limits in total and per owner, no deadlock, and the end of slow connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from qmd.control_protocol.messages import NewMessage
from qmd.errors import Refusal
from qmd.runtime.budget import Budget, Gate
from qmd.runtime.timers import Timers
from tests.integration.managers import Hosts, hosted


def test_a_budget_limits_the_total_and_each_owner() -> None:
    budget = Budget(100)
    assert budget.allows("a1", "a", 40)
    budget.hold("a1", "a", 40)

    assert not budget.allows("a2", "a", 20)  # one owner may have half of the budget
    assert budget.allows("b1", "b", 50)
    budget.hold("b1", "b", 50)
    assert not budget.allows("c1", "c", 20)
    assert budget.allows("c1", "c", 10)
    assert (budget.used_bytes, budget.of("a"), budget.denied_count) == (90, 40, 2)
    budget.hold("a1", "a", 0)
    budget.hold("b1", "b", 0)
    assert (budget.used_bytes, budget.of("a"), budget.of("b")) == (0, 0, 0)


def test_a_request_above_the_budget_is_allowed_alone() -> None:
    budget = Budget(100)
    assert budget.allows("a", "a", 1000)
    budget.hold("a", "a", 1000)

    assert not budget.allows("b", "b", 1)
    assert budget.allows("a", "a", 500)
    budget.hold("a", "a", 0)
    assert budget.allows("b", "b", 1)


class Connection:
    """A connection that requests `wanted` bytes at once."""

    def __init__(self, gate: Gate, owner: str, wanted: int) -> None:
        self.bytes_received = 0
        self.is_read = True
        self.has = self.ended = False
        self._gate, self._owner, self._wanted = gate, owner, wanted
        self.memory_available()

    def memory_available(self) -> None:
        self.has = self._gate.allows(self, self._owner, self._wanted)
        self.is_read = self.has
        if self.has:
            self._gate.hold(self, self._owner, self._wanted)
        else:
            self._gate.wait(self, self._owner)

    def end_slow(self, held_bytes: int) -> None:
        self.ended = True


def gated(scenario: Callable[[Gate], None]) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        timers = Timers(loop)
        gate = Gate(100, loop, timers)
        scenario(gate)
        await asyncio.sleep(0)
        timers.cancel_all()

    asyncio.run(run())


def test_waiting_connections_get_memory_in_order_when_another_releases_it() -> None:
    def scenario(gate: Gate) -> None:
        first, large = Connection(gate, "a", 30), Connection(gate, "b", 100)
        small = Connection(gate, "c", 5)
        assert (first.has, large.has, small.has) == (True, False, False)
        gate.leave(first)
        gate._wake()
        assert large.has
        assert not small.has
        gate.leave(large)
        gate._wake()
        assert small.has

    gated(scenario)


def test_a_connection_that_holds_memory_and_sends_nothing_is_ended_while_others_wait() -> None:
    def scenario(gate: Gate) -> None:
        quick, slow = Connection(gate, "a", 45), Connection(gate, "b", 45)
        like_the_slow, waiting = Connection(gate, "b", 45), Connection(gate, "c", 45)
        quick.bytes_received += 1_000_000
        gate._check()
        assert (quick.ended, slow.ended) == (False, True)
        assert waiting.has
        assert not like_the_slow.has
        gate._check()  # the new holders were not observed for the full time yet
        assert not waiting.ended

    gated(scenario)


def test_a_slow_connection_is_not_ended_while_no_other_waits() -> None:
    def scenario(gate: Gate) -> None:
        slow = Connection(gate, "a", 90)
        gate._check()
        gate._check()
        assert not slow.ended

    gated(scenario)


@hosted
async def test_transactions_that_take_too_much_memory_are_refused(hosts: Hosts) -> None:
    a = await hosts.start(memory={"transactions_bytes": 1_000_000})
    await a.create("orders", transactional=True)
    owners = [object() for _ in range(4)]
    messages = [NewMessage(destination="DIRECT=OS:.\\private$\\orders", body=bytes(200_000))]
    codes: list[str] = []
    for number, owner in enumerate(owners):
        transaction = bytes([number]) * 16
        a.transactions.begin(transaction, owner, 0)
        for _ in range(4):
            try:
                a.transactions.send(transaction, owner, messages)
            except Refusal as refusal:
                codes.append(refusal.code)
    assert len(codes) >= 10
    assert codes[0] == "transactions_full"
    assert set(codes) == {"transactions_full", "transaction_doomed"}  # no others follow
    assert a.services.memory.transactions.used_bytes <= 1_000_000

    for number, owner in enumerate(owners):
        a.transactions.abort(bytes([number]) * 16, owner, "enough")
    assert a.services.memory.transactions.used_bytes == 0
    a.transactions.begin(b"x" * 16, owners[0], 0)
    a.transactions.send(b"x" * 16, owners[0], messages)
    done = asyncio.get_running_loop().create_future()
    a.transactions.commit(b"x" * 16, owners[0], done.set_result)
    assert len(await done) == 1
    assert a.services.memory.transactions.used_bytes == 0
    with pytest.raises(Refusal, match="there is no transaction"):
        a.transactions.commit(b"x" * 16, owners[0], print)
