"""Readers with locks, and the oracle of exclusive use: of locked messages and of groups.

A lock that the daemon has granted keeps its messages from all other readers until it is settled,
its time is over, or the daemon has died; and a group belongs to one lock at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from qmd.client import Message, NotConnected, QueueManager, QueueManagerError
from qmd.client.locked import Locked
from tests.simulation.reader import Reader
from tests.simulation.world import Host

LOCK_S, RENEWED_S = (0.3, 1.0, 5.0), 5.0
CLOCK_MARGIN = 0.9  # the clocks of hosts have different rates
FAILURE = "the work failed"


@dataclass(slots=True)
class _Held:
    lock: bytes
    until: float  # of the time of the world: not before then may its lock end
    life: int  # of the daemon


@dataclass(slots=True)
class ExclusiveUse:
    """The messages and the groups that readers of one host hold under locks."""

    host: Host
    _held: dict[str, _Held] = field(default_factory=dict)

    def taken(self, lock: bytes, things: Iterable[str], until: float, life: int) -> None:
        """Check that no other lock has these things, and note them."""
        now = self.host.world.now
        for thing in things:
            held = self._held.get(thing)
            is_others = held is not None and held.lock != lock and held.life == life == self._life
            if held is not None and is_others and now < held.until:
                self.host.world.fail(
                    f"{thing} of {self.host.name} was given to another lock"
                    f" {held.until - now:.3f} s before the end of the first one"
                )
            self._held[thing] = _Held(lock, until, life)

    def renewed(self, lock: bytes, until: float) -> None:
        """Note that a lock lasts longer."""
        for held in self._held.values():
            if held.lock == lock:
                held.until = until

    def released(self, lock: bytes) -> None:
        """Note that all messages of a lock are about to be settled."""
        self._held = {key: held for key, held in self._held.items() if held.lock != lock}

    @property
    def _life(self) -> int:
        return self.host.daemon_life


class LockingReader(Reader):
    """A reader that takes messages under locks, renews them, or lets them end."""

    uses: ExclusiveUse

    async def _take_from(self, client: QueueManager, name: str, wait_s: float) -> bool:
        world, life, lock_s = self.host.world, self.host.daemon_life, self._random.choice(LOCK_S)
        asked = world.now  # the lock begins later
        locked = await client.take_locked(name, self._batch, lock_s=lock_s, timeout_s=wait_s)
        if not locked:
            return False
        world.happened("messages locked", self.host.name)
        self._check_times(locked.messages)
        self._check_groups(locked.messages)
        things = self._things(locked.messages)
        self.uses.taken(locked.id, things, asked + CLOCK_MARGIN * lock_s, life)
        if self.work_s:
            await asyncio.sleep(self._random.expovariate(1 / self.work_s))
        await self._pause()
        draw = self._random.random()
        with contextlib.suppress(QueueManagerError):  # its time is over
            if draw < 0.2:
                asked = world.now
                await locked.renew(RENEWED_S)
                self.uses.renewed(locked.id, asked + CLOCK_MARGIN * RENEWED_S)
            elif draw < 0.3:
                await asyncio.sleep(1.3 * lock_s)
                world.happened("lock forgotten", self.host.name)
            self.uses.released(locked.id)
            if draw > 0.85:
                await locked.give_back(failed=draw > 0.92, reason=FAILURE)
            else:
                await self._remove(locked, life)
        return True

    async def _remove(self, locked: Locked, life: int) -> None:
        messages = list(locked.messages)
        numbers = self._numbers(messages)
        self._oracle.state.begin_removal(numbers)
        try:
            await locked.remove()
        except (QueueManagerError, NotConnected) as error:
            self._oracle.state.end_removal(numbers)
            self.host.world.happened(f"removal under a lock: {error.code}", self.host.name)
        else:
            self._oracle.state.end_removal(numbers)
            self._received(messages, life)
            self.host.world.on_result()

    def _things(self, messages: Iterable[Message]) -> list[str]:
        """Return the names of the messages and groups of a lock."""
        groups = sorted({message.group for message in messages} - {""})
        numbers = self._numbers(messages)
        return [
            *(f"message {number} of {self.queue.key}" for number in numbers),
            *(f"group {group} of {self.queue.key}" for group in groups),
        ]

    def _check_groups(self, messages: Iterable[Message]) -> None:
        """Check that the messages of a group are in the order in which its writer sent them."""
        last: dict[str, int] = {}
        for message in messages:
            if message.group and message.delivery == "transactional":
                for number in self._numbers([message]):
                    if number < last.get(message.group, 0):
                        self.host.world.fail(f"{message.id} is not in the order of {message.group}")
                    last[message.group] = number
