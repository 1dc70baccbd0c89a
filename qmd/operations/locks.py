"""Locks: takes with an end of their own, which outlast the connection of their client.

    take ──► locked ──remove, reject──► (commit) ──► gone
      ▲         │
      └─────────┴── given back, or its time is over: an attempt is counted

A lock is a reader, like a connection or a transaction. Its id is chosen by the client; that of a
client without all rights carries its mark (qmd/access/rights.py), so that no other can name it.
Locks are in memory: at a start all messages are ready, as after the end of any other reader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from qmd.access.rights import LOCK_ID_BYTES, MARK_BYTES, bad_lock_id
from qmd.control_protocol.locks import FAIL, GIVE_BACK, REJECT, REMOVE
from qmd.control_protocol.messages import EVERY_MESSAGE, Choice, StoredMessage
from qmd.errors import Refusal
from qmd.queues.local_queue import LocalQueue, Reader

if TYPE_CHECKING:
    from qmd.access.rights import Rights
    from qmd.operations.receive import MessageReceiver
    from qmd.operations.receive_selected import SelectiveReceiver
    from qmd.runtime.services import Services

LOCK_S_MAX = 12 * 3600.0
LOCKS_MAX = 100_000
LOCKS_OF_OWNER_MAX = 20_000


@dataclass(slots=True, eq=False)
class Lock:
    """One lock, from its first take until all of its messages are settled or its time is over."""

    id: bytes
    owner: str  # of `Rights`
    reader: Reader = field(default_factory=Reader)
    lock_s: float = 0.0
    ends_at: float = 0.0  # loop time; before the first message was taken it has no meaning
    waiting: int = 0  # requests that wait for messages

    @property
    def messages(self) -> int:
        return sum(len(mine) for mine in self.reader.taken.values())


class Locks:
    """The locks under way."""

    def __init__(
        self,
        services: Services,
        message_receiver: MessageReceiver,
        selective_receiver: SelectiveReceiver,
    ) -> None:
        self._services = services
        self._message_receiver = message_receiver
        self._selective_receiver = selective_receiver
        self._locks: dict[bytes, Lock] = {}
        self._of_owner: dict[str, int] = {}

    async def take(
        self,
        lock_id: bytes,
        lock_s: float,
        rights: Rights,
        queue: LocalQueue,
        choice: Choice,
        limit: int,
        wait_s: float,
    ) -> list[StoredMessage]:
        """Take messages under a new lock or one that exists.  Raises Refusal.

        The lock ends `lock_s` seconds after this returns.  If this is cancelled, the client does
        not know its messages: they are not taken, unless the lock has others.
        """
        _check_time(lock_s)
        lock = self._open(lock_id, rights.owner)
        lock.waiting += 1
        try:
            if choice == EVERY_MESSAGE and queue.groups is None:
                messages = await self._take_first(lock, queue, limit, wait_s)
            else:
                messages = await self._selective_receiver.take(
                    lock.reader, queue, choice, limit, wait_s
                )
            if messages and not lock.reader.has_left:
                self._begin(lock, lock_s)
        finally:
            lock.waiting -= 1
            self._tidy(lock)
        return messages

    async def _take_first(
        self, lock: Lock, queue: LocalQueue, limit: int, wait_s: float
    ) -> list[StoredMessage]:
        answer: asyncio.Future[None] = self._services.loop.create_future()
        messages: list[StoredMessage] = []

        def take(found: list[StoredMessage]) -> None:
            messages.extend(found)
            if not answer.done():  # a cancelled request gets messages until it is withdrawn
                answer.set_result(None)

        receiver = self._message_receiver
        waiter = receiver.take(lock.reader, queue, limit, wait_s, take)
        try:
            await answer
        except asyncio.CancelledError:
            receiver.withdraw(queue, waiter)
            if messages:
                lookup_ids = [message.lookup_id for message in messages]
                receiver.give_back(lock.reader, queue, lookup_ids, "its client left")
            raise
        return messages

    def held(
        self, lock_id: bytes, queue: LocalQueue, lookup_ids: list[int]
    ) -> tuple[Reader, list[int]]:
        """Return the reader of a lock and those of its messages; without ids, all of the queue.

        Raises Refusal.
        """
        lock = self._find(lock_id)
        return lock.reader, self._own(lock, queue, lookup_ids)

    def tidy(self, lock_id: bytes) -> None:
        """Forget a lock if it has no messages any more."""
        lock = self._locks.get(lock_id)
        if lock is not None:
            self._tidy(lock)

    def settle(
        self,
        lock_id: bytes,
        queue: LocalQueue,
        lookup_ids: list[int],
        *,
        how: str,
        reason: str,
        token: bytes,
        done: Callable[[int], None],
    ) -> None:
        """Settle messages of a lock; `done(count)` is called when this is durable.

        Raises Refusal.
        """
        lock = self._find(lock_id)
        receiver, reader = self._message_receiver, lock.reader
        lookup_ids = self._own(lock, queue, lookup_ids)
        if how in (REMOVE, REJECT):
            receiver.check_numbers(reader, queue, lookup_ids)
        if how == REMOVE:
            receiver.remove(reader, queue, lookup_ids, token, done)
        elif how == REJECT:
            receiver.reject(reader, queue, lookup_ids, reason, token, done)
        elif how in (GIVE_BACK, FAIL):
            if how == FAIL:
                count = receiver.fail(reader, queue, lookup_ids, reason or "its work failed")
            else:
                count = receiver.give_back(
                    reader, queue, lookup_ids, reason or "its reader gave it back"
                )
            self._services.storage.batch.when_durable(partial(done, count))
        else:
            raise Refusal(
                "bad_settlement",
                f"messages cannot be settled by {how!r}",
                f"It is {REMOVE}, {REJECT}, {GIVE_BACK} or {FAIL}.",
            )
        self._tidy(lock)

    def renew(
        self, lock_id: bytes, lock_s: float, lookup_ids: Collection[int] = ()
    ) -> dict[str, Any]:
        """Let a lock end `lock_s` seconds from now; return its state.

        Raises Refusal, also if it does not hold all of `lookup_ids`.
        """
        _check_time(lock_s)
        lock = self._find(lock_id)
        if not set().union(*lock.reader.taken.values()).issuperset(lookup_ids):
            raise _lost(lock_id)
        self._begin(lock, lock_s)
        return {"messages": lock.messages, "left_s": lock_s}

    def enroll(
        self, lock_id: bytes, queue: LocalQueue, lookup_ids: list[int], reader: Reader
    ) -> int:
        """Hand messages of a lock over to the reader of a transaction.  Raises Refusal."""
        lock = self._find(lock_id)
        lookup_ids = self._own(lock, queue, lookup_ids)
        lock.reader.hand_over(queue, lookup_ids, reader)
        self._tidy(lock)
        return len(lookup_ids)

    def stop_waiting(self, lock_id: bytes, queue: LocalQueue) -> int:
        """Answer requests that wait for messages of a queue under a lock; return their number."""
        lock = self._locks.get(lock_id)
        if lock is None:
            return 0
        return self._message_receiver.stop_waiting_at(lock.reader, queue)

    def listed(self, rights: Rights) -> list[dict[str, Any]]:
        """Return the locks of a client; all of them if it has all rights."""
        now = self._services.loop.time()
        return [
            {
                "lock": lock.id[:LOCK_ID_BYTES].hex(),
                "queues": sorted(queue.name for queue, mine in lock.reader.taken.items() if mine),
                "messages": lock.messages,
                "left_s": round(max(lock.ends_at - now, 0.0), 3),
                "owner": lock.owner,
            }
            for lock in self._locks.values()
            if lock.messages and (rights.are_all or lock.owner == rights.owner)
        ]

    # Internal methods.

    def _open(self, lock_id: bytes, owner: str) -> Lock:
        if len(lock_id) not in (LOCK_ID_BYTES, LOCK_ID_BYTES + MARK_BYTES):
            raise bad_lock_id(lock_id)
        lock = self._locks.get(lock_id)
        if lock is not None:
            return lock
        count = self._of_owner.get(owner, 0)
        if len(self._locks) >= LOCKS_MAX or count >= LOCKS_OF_OWNER_MAX:
            raise Refusal(
                "too_many_locks",
                f"{len(self._locks)} locks are under way, {count} of this client; {LOCKS_MAX} and"
                f" {LOCKS_OF_OWNER_MAX} are allowed",
                "Settle some, or take several messages under one lock.",
            )
        lock = self._locks[lock_id] = Lock(lock_id, owner)
        lock.reader.who = f"lock {lock_id[:LOCK_ID_BYTES].hex()}"
        self._of_owner[owner] = count + 1
        return lock

    def _find(self, lock_id: bytes) -> Lock:
        lock = self._locks.get(lock_id)
        if lock is None or not lock.messages:
            raise _lost(lock_id)
        return lock

    def _own(self, lock: Lock, queue: LocalQueue, lookup_ids: list[int]) -> list[int]:
        mine = lock.reader.taken.get(queue, set())
        if not mine or not mine.issuperset(lookup_ids):
            raise _lost(lock.id)
        return list(dict.fromkeys(lookup_ids)) or sorted(mine)

    def _begin(self, lock: Lock, lock_s: float) -> None:
        lock.lock_s = lock_s
        lock.ends_at = self._services.loop.time() + lock_s
        self._services.timers.cancel(lock)
        self._services.timers.at(lock.ends_at, lock, self._expire)

    def _expire(self, lock: Lock) -> None:
        self._forget(lock)
        self._message_receiver.abort(
            lock.reader, "", f"its lock of {round(lock.lock_s, 3):g} s has expired"
        )

    def _tidy(self, lock: Lock) -> None:
        """Forget a lock without messages."""
        if not lock.messages and not lock.waiting and self._locks.get(lock.id) is lock:
            self._forget(lock)

    def _forget(self, lock: Lock) -> None:
        del self._locks[lock.id]
        lock.reader.has_left = True
        self._services.timers.cancel(lock)
        count = self._of_owner.pop(lock.owner) - 1
        if count:
            self._of_owner[lock.owner] = count


def _check_time(lock_s: float) -> None:
    if not 0 < lock_s <= LOCK_S_MAX:  # this form refuses NaN too
        raise Refusal(
            "bad_lock_time",
            f"a lock cannot have {lock_s} seconds",
            f"It has more than 0 and at most {LOCK_S_MAX:.0f} seconds; renew it for longer work.",
        )


def _lost(lock_id: bytes) -> Refusal:
    return Refusal(
        "lock_lost",
        f"lock {lock_id[:LOCK_ID_BYTES].hex()} does not hold the messages",
        "They were settled before, or its time is over and they are in their queue again: take"
        " them again.",
    )
