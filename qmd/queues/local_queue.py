"""A queue of this computer, as the running queue manager sees it.

The disk holds the messages; here is the bounded window on them, who has taken
which one, and who waits.  A message is in one of three states:

    ready ──take──► taken ──remove──► (commit) ──► gone
      ▲               │
      └──put back─────┘

A taken message is still on disk.  A daemon that dies has therefore put back
everything that was taken and not removed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from qmd.control_protocol.messages import StoredMessage
from qmd.core.deadlines import Deadlines
from qmd.core.ready_window import ReadyWindow
from qmd.message.build import QueueAddress
from qmd.message.shared_packet import (
    Held,
    express_added,
    express_removed,
    once_more_aborted,
    whole_message,
)
from qmd.queues.usage import Gauge, Measured, Usage

WINDOW_ENTRIES_MAX = 4096
WINDOW_BYTES_MAX = 8 * 1024 * 1024
EXPIRED_MAX = 100  # ended in one turn of the loop
OWN_PREFIX = ".\\"  # of the names of our public queues: "orders" alone means a private one
TAKE_BYTES_MAX = 8 * 1024 * 1024  # of bodies in one answer; one message always fits


#: What stands in `taken` for each message that is reserved: it is on disk.
RESERVED = StoredMessage(0, 0, b"reserved")


def _nobody_waits(queue: LocalQueue) -> None:
    pass


@dataclass(slots=True, eq=False)
class Reader:
    """One connection that takes messages."""

    taken: dict[LocalQueue, set[int]] = field(default_factory=dict)
    is_unread: bool = False  # an application has seen nothing of what it took
    has_left: bool = False  # what is found for it from now on stays where it is
    who: str = ""  # for people, as "a connection of process 4711"
    took_at_s: int = 0  # when it last got some, by the queue manager's own clock


@dataclass(slots=True, eq=False)
class Waiter:
    """A request for messages that has not been answered yet."""

    reader: Reader
    limit: int
    wait: bool  # False: answer as soon as it is known what is there
    answer: Callable[[list[StoredMessage]], None]


class LocalQueue(Measured):
    """One queue; `key` is its casefolded name, by which it is found."""

    def __init__(
        self,
        *,
        id: int,
        name: str,
        key: str,
        label: str,
        transactional: bool,
        journal: bool,
        quota_bytes: int | None,
        journal_quota_bytes: int | None = None,
        is_system: bool,
        created_at_s: int,
        address: QueueAddress,
        usage: Usage,
        guid: bytes = b"",
        messages: int = 0,
        size: int = 0,
        notice: Callable[[Gauge], None] = lambda gauge: None,
        parent: LocalQueue | None = None,
        is_journal: bool = False,
    ) -> None:
        self.id = id
        self.name = name
        self.key = key
        self.label = label
        self.transactional = transactional
        self.journal = journal
        self.journal_quota_bytes = journal_quota_bytes  # of the copies of what is received
        self.is_system = is_system
        self.parent = parent  # whose subqueue or journal it is
        self.subqueues: list[LocalQueue] = []
        self.own_journal: LocalQueue | None = None
        self.is_journal = is_journal  # of another queue of ours
        if parent is not None:
            if is_journal:
                parent.own_journal = self
            else:
                parent.subqueues.append(self)
        self.created_at_s = created_at_s
        self.guid = guid
        self.messages = messages  # ready and taken, stored and express
        self.address = address  # as packets that are sent from here name it
        self.deleted = False
        self.window: ReadyWindow[Held] = ReadyWindow(
            entries_max=WINDOW_ENTRIES_MAX, bytes_max=WINDOW_BYTES_MAX
        )
        if messages:
            self.window.clear_to_disk(0)
        self.express: dict[int, Held] = {}  # all of them: they are nowhere else
        self._express_deadlines = Deadlines()
        self.taken: dict[int, StoredMessage] = {}
        self.reserved: dict[int, int] = {}  # of those: by pipelines, and by how many of them
        self.takers: set[Reader] = set()  # those that have something taken
        self.leaving: set[int] = set()  # of those, whose removal is being committed
        self.expired: list[StoredMessage] = []  # found by `take`, not yet dealt with
        self.waiters: deque[Waiter] = deque()
        self.watchers: set[asyncio.Future[None]] = set()  # told when something arrives
        #: Called whenever there may be something for those that wait.
        self.on_ready: Callable[[LocalQueue], None] = _nobody_waits
        super().__init__(usage, size, quota_bytes, notice)  # last: it may have something to tell

    @property
    def is_read_only(self) -> bool:
        """Journals, dead-letter queues and subqueues: nobody can send to them."""
        return self.is_system or self.parent is not None

    @property
    def holds_ended(self) -> bool:
        """Journals and dead-letter queues: what is in them has met its end before.

        So it does not expire, and nobody is told of what becomes of it.
        """
        return self.is_system or self.is_journal

    @property
    def relatives(self) -> list[LocalQueue]:
        """The queue, and what goes with it: its subqueues and its journal."""
        journal = [] if self.own_journal is None else [self.own_journal]
        return [self, *self.subqueues, *journal]

    @property
    def payer(self) -> LocalQueue:
        """The queue whose quota counts: for a subqueue that which it belongs to."""
        return self if self.parent is None or self.is_journal else self.parent

    @property
    def own_bytes(self) -> int:
        """Without its subqueues, which `bytes` counts with it."""
        if not self.subqueues:
            return self.bytes
        return self.bytes - sum(subqueue.bytes for subqueue in self.subqueues)

    def grow(self, size: int) -> None:
        if self.parent is None or self.is_journal:
            super().grow(size)
        else:
            Gauge.grow(self, size)
            self.parent.grow(size)

    def shrink(self, size: int) -> None:
        if self.parent is None or self.is_journal:
            super().shrink(size)
        else:
            Gauge.shrink(self, size)
            self.parent.shrink(size)

    @property
    def format_name(self) -> str:
        return f"DIRECT=OS:.\\{self.name.removeprefix(OWN_PREFIX)}"

    @property
    def is_public(self) -> bool:
        """Whether it has its entry in the directory."""
        return self.name.startswith(OWN_PREFIX) and self.parent is None

    def deliver(self, messages: Iterable[Held]) -> None:
        """Let readers have messages that are durable now."""
        add = self.window.add
        for message in messages:
            add(message.lookup_id, message, len(message.packet), stored=True)
        self.on_ready(self)

    def deliver_from_disk(self, lookup_ids: Sequence[int]) -> None:
        """Let readers have messages that are durable now, and more than memory should hold."""
        self.window.leave_on_disk(min(lookup_ids))
        self.on_ready(self)

    def deliver_express(self, message: Held) -> None:
        """Let readers have a message that is in memory, and nowhere else."""
        self.add_express(message)
        self.on_ready(self)

    def wake_readers(self) -> None:
        """Let readers look again: something was put back, or the queue is gone."""
        self.on_ready(self)

    def add_express(self, message: Held) -> None:
        """Keep a message that is in memory, and nowhere else; readers look when they are woken."""
        self.express[message.lookup_id] = message
        if message.expires_at_s is not None:
            self._express_deadlines.add(message.lookup_id, message.expires_at_s)
        self.usage.express_bytes += express_added(message.packet)
        self.window.add(message.lookup_id, message, len(message.packet), stored=False)

    def take(self, reader: Reader, limit: int, now_s: int) -> list[StoredMessage]:
        """Up to `limit` ready messages, in order; what is on disk only is not among them.

        Those whose time is over by `now_s` of the queue manager's own clock are put aside into
        `expired`; after EXPIRED_MAX of them it goes on with the next call.
        """
        window, taken = self.window, self.taken
        messages: list[StoredMessage] = []
        size = 0
        while len(messages) < limit and len(self.expired) < EXPIRED_MAX:
            entry = window.peek()
            if entry is None or (messages and size + len(entry[1].packet) > TAKE_BYTES_MAX):
                break
            window.pop()
            lookup_id, held = entry
            message = whole_message(held)
            if message.expires_at_s is not None and now_s > message.expires_at_s:
                self.expired.append(message)
                continue
            messages.append(message)
            size += len(message.packet)
            taken[lookup_id] = message
        if messages:
            mine = reader.taken.setdefault(self, set())
            mine.update(message.lookup_id for message in messages)
            reader.took_at_s = now_s
            self.takers.add(reader)
        return messages

    def taker(self, lookup_id: int) -> Reader | None:
        """The connection that has taken the message; None: nobody has, or it is just ending."""
        return next((each for each in self.takers if lookup_id in each.taken.get(self, ())), None)

    def expire_express(self, now_s: int, messages_max: int) -> int:
        """Put express messages whose time is over aside, at most so many: nobody but us knows of
        them.  How many those are.
        """
        over = self._express_deadlines.pop_over(now_s, messages_max)
        # What somebody has taken is ended when it is given back.
        self.expired += [
            whole_message(self.express[each]) for each in over if each not in self.taken
        ]
        return len(over)

    def is_busy_with(self, lookup_id: int) -> bool:
        """Whether somebody has the message, so that it cannot be ended."""
        return lookup_id in self.taken

    def hold(self, reader: Reader, lookup_id: int) -> bool:
        """Take a message that is to be ended, wherever it is; False when somebody has it.

        Of a stored one only the disk knows whether it is still there: `forget` leaves it to the
        caller to count it out.
        """
        if lookup_id in self.taken:
            return False
        express = self.express.get(lookup_id)
        if express is not None:
            self.window.take(lookup_id)
            message = whole_message(express)
        else:
            self.window.hold(lookup_id)
            message = StoredMessage(lookup_id, 0, b"")
        self.taken[lookup_id] = message
        reader.taken.setdefault(self, set()).add(lookup_id)
        return True

    def reserve(self, lookup_id: int, *, shared: bool) -> bool:
        """A pipeline's reader gets the message, wherever it is; False when somebody has it.

        Shared readers may have it together.
        """
        holders = self.reserved.get(lookup_id, 0)
        if holders and shared:
            self.reserved[lookup_id] = holders + 1
            return True
        if lookup_id in self.taken:
            return False
        if lookup_id in self.express:
            self.window.take(lookup_id)
        else:
            self.window.hold(lookup_id)
        self.taken[lookup_id] = RESERVED
        self.reserved[lookup_id] = 1
        return True

    def now_stored(self, lookup_id: int) -> None:
        """An express message that is reserved is on the disk from now on."""
        message = self.express.pop(lookup_id)
        self._express_deadlines.discard(lookup_id)
        self.usage.express_bytes -= express_removed(message.packet)
        self.window.remove(lookup_id)
        self.window.hold(lookup_id)

    def unreserve(self, lookup_ids: Iterable[int], *, are_there: bool) -> None:
        """Readers are done with these; those that nobody has any more are ready again, or were
        gone before."""
        free: list[int] = []
        for lookup_id in lookup_ids:
            holders = self.reserved[lookup_id] - 1
            if holders:
                self.reserved[lookup_id] = holders
            else:
                del self.reserved[lookup_id]
                del self.taken[lookup_id]
                free.append(lookup_id)
        if not are_there:
            for lookup_id in free:
                self.window.remove(lookup_id)
        elif free:
            self.window.clear_to_disk(min(free), keep_taken=self.taken.keys())

    def reserve_stored(self, lookup_ids: Sequence[int]) -> list[int]:
        """`reserve` for many that are on the disk, by a reader that shares them with nobody; those
        that somebody has are left out."""
        taken = self.taken
        free = [each for each in lookup_ids if each not in taken]
        self.window.hold_all(free)
        taken.update(dict.fromkeys(free, RESERVED))
        self.reserved.update(dict.fromkeys(free, 1))
        return free

    def leave_reserved(self, lookup_ids: Sequence[int]) -> None:
        """Reserved messages are about to be removed."""
        for lookup_id in lookup_ids:
            del self.reserved[lookup_id]
        self.leaving.update(lookup_ids)

    def forget_reserved(self, lookup_ids: Sequence[int], size: int) -> None:
        """Their removal is durable; `size`: the bytes of their packets."""
        self.leaving.difference_update(lookup_ids)
        for lookup_id in lookup_ids:
            del self.taken[lookup_id]
        self.window.remove_taken(lookup_ids)
        self.count_out(len(lookup_ids), size)

    @property
    def is_settling(self) -> bool:
        """Whether messages are leaving it by acts whose commit has not returned."""
        return bool(self.leaving) or any(not each.packet for each in self.taken.values())

    def forget(self, lookup_ids: Iterable[int]) -> None:
        """Taken messages are gone for good: their removal is durable."""
        for lookup_id in lookup_ids:
            message = self.taken.pop(lookup_id)
            self.window.remove(lookup_id)
            express = self.express.pop(lookup_id, None)
            if express is not None:
                self._express_deadlines.discard(lookup_id)
                self.usage.express_bytes -= express_removed(express.packet)
            if message.packet:
                self.count_out(1, len(message.packet))

    def count_out(self, messages: int, size: int) -> None:
        """So many are gone, and so many bytes of packets."""
        self.messages -= messages
        self.shrink(size)

    def count_in(self, messages: int, size: int) -> None:
        """So many are here, and so many bytes of packets."""
        self.messages += messages
        self.grow(size)

    def let_go(self, message: StoredMessage, *, is_there: bool) -> None:
        """A message that was held is not to be ended after all, or was gone before."""
        lookup_id = message.lookup_id
        del self.taken[lookup_id]
        if is_there:
            held = self.express.get(lookup_id, message)
            self.window.put_back(lookup_id, held, len(held.packet))
        else:
            self.window.remove(lookup_id)

    def put_back(
        self, reader: Reader, lookup_ids: Iterable[int], now_s: int, *, aborted: bool = False
    ) -> int:
        """Those that `reader` has return to their old place.  Returns how many did.

        Those whose time was over meanwhile are put aside into `expired` as well, EXPIRED_MAX of
        them at most.
        `aborted`: with the transaction that had them, which each of them remembers.
        """
        mine = reader.taken.get(self, set())
        count = 0
        for lookup_id in lookup_ids:
            if lookup_id in mine:
                mine.remove(lookup_id)
                message = self.taken.pop(lookup_id)
                held = self.express.get(lookup_id, message)
                if aborted:
                    held = once_more_aborted(held)
                    if lookup_id in self.express:
                        self.express[lookup_id] = held
                self.window.put_back(lookup_id, held, len(held.packet))
                if message.expires_at_s is not None and now_s > message.expires_at_s:
                    if len(self.expired) < EXPIRED_MAX:
                        self.expired.append(whole_message(held))
                    elif lookup_id in self.express:  # the reaper's turn, as with stored ones
                        self._express_deadlines.add(lookup_id, message.expires_at_s)
                count += 1
        if not mine:
            self.takers.discard(reader)
        return count
