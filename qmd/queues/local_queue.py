"""Local queue: a queue of this computer, as the running queue manager sees it.

The messages are on disk. This module keeps the bounded window on them, the messages that readers
have taken, and the requests that wait for messages:

    ready ──take──► taken ──remove──► (commit) ──► gone
      ▲               │
      └──put back─────┘

A taken message is still on disk. If the process ends, every message that was taken and not removed
is therefore ready again. `qmd/queues/message_states.py` lists all states of a message, the
containers that hold it in each of them, and the transitions.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from qmd.control_protocol.messages import StoredMessage
from qmd.core.ready_window import ReadyWindow
from qmd.message.addresses import QueueAddress
from qmd.message.shared_packet import Held, once_more_aborted, whole_message
from qmd.queues.express_messages import ExpressMessages
from qmd.queues.groups import Groups, group_of
from qmd.queues.reservations import QueueReservations
from qmd.queues.scout import Scout
from qmd.queues.usage import Gauge, Measured, Usage
from storage.tables.pages import EMPTY, Totals
from storage.tables.queues import QueueRow

if TYPE_CHECKING:
    from qmd.core.retry_policy import RetryPolicy
    from qmd.queues.delayed_gauge import DelayedGauge

WINDOW_ENTRIES_MAX = 4096
WINDOW_BYTES_MAX = 8 * 1024 * 1024
EXPIRED_MAX = 100  # ended in one turn of the loop
# The names of our public queues begin so; a name such as "orders" alone means a private queue.
OWN_PREFIX = ".\\"
TAKE_BYTES_MAX = 8 * 1024 * 1024  # of bodies in one answer; one message always fits

#: The entry in `taken` of a stored message that is held for its removal. The packet is not known
#: in memory, so the caller counts the message out.
HELD = StoredMessage(0, 0, b"")


def _ignore_ready(queue: LocalQueue) -> None:
    pass


@dataclass(slots=True, eq=False)
class Reader:
    """A connection, a transaction or an operation that takes messages."""

    #: The lookup ids of the messages that it has, by their queue.
    taken: dict[LocalQueue, set[int]] = field(default_factory=dict)
    is_unread: bool = False  # its application has seen none of the taken messages
    has_left: bool = False  # it has ended: messages found for it from now on stay in their queue
    who: str = ""  # for operators, such as "a connection of process 4711"
    took_at_s: int = 0  # time of its last take, by the queue manager's own clock

    def has(self, queue: LocalQueue, lookup_id: int) -> bool:
        """Return whether it has taken this message."""
        return lookup_id in self.taken.get(queue, ())

    def hand_over(self, queue: LocalQueue, lookup_ids: Iterable[int], other: Reader) -> None:
        """Hand messages that it has taken over to another reader."""
        mine = self.taken.get(queue, set())
        mine.difference_update(lookup_ids)
        other.taken.setdefault(queue, set()).update(lookup_ids)
        queue.takers.add(other)
        if queue.groups is not None:
            queue.groups.hand_over(lookup_ids, other)
        if not mine:
            queue.takers.discard(self)

    def begin_removal(self, queue: LocalQueue, lookup_ids: Iterable[int]) -> None:
        """Mark messages that it has taken as leaving: the open batch deletes them."""
        mine = self.taken.get(queue, set())
        mine.difference_update(lookup_ids)
        if not mine:
            queue.takers.discard(self)
        queue.leaving.update(lookup_ids)


@dataclass(slots=True, eq=False)
class Waiter:
    """A request for messages that has not been answered yet."""

    reader: Reader
    limit: int
    wait: bool  # False: answer as soon as it is known whether there are messages
    answer: Callable[[list[StoredMessage]], None]


class QueueNames(NamedTuple):
    """The names of a queue besides the path in its row."""

    key: str  # the casefolded path, by which the queue is found
    address: QueueAddress  # the address in packets that are sent from here
    guid: bytes = b""


#: Which messages a queue takes, by its level of privacy.  [MS-MQDMPR] 3.1.1.2
PRIVACY_LEVELS = ("none", "optional", "body")


class LocalQueue(Measured):
    """One queue of this computer: properties, quota, and the messages that memory holds."""

    def __init__(
        self,
        row: QueueRow,
        names: QueueNames,
        usage: Usage,
        *,
        stored: Totals = EMPTY,
        notice: Callable[[Gauge], None] = lambda gauge: None,
        parent: LocalQueue | None = None,
        is_journal: bool = False,
    ) -> None:
        """Create the queue of `row`, which holds `stored` messages on disk.

        `parent` is the queue of a subqueue, or of a journal if `is_journal`. `notice` is called
        when a threshold of the quota is reached.
        """
        self.id = row.id
        self.name = row.name
        self.key, self.address, self.guid = names
        self.label = row.label
        self.transactional = row.transactional
        self.journal = row.journal  # received messages are copied to its journal
        self.journal_quota_bytes = row.journal_quota_bytes
        # Messages of other hosts that it refuses: unsigned ones, and plain or encrypted ones.
        self.authenticate = row.authenticate
        self.privacy = PRIVACY_LEVELS[row.privacy]
        self.is_system = row.system
        self.created_at_s = row.created_at_s
        self.parent = parent
        self.subqueues: list[LocalQueue] = []
        self.own_journal: LocalQueue | None = None
        self.retry: RetryPolicy | None = None  # for messages that applications fail to process
        self.delayed: DelayedGauge | None = None  # messages for it that are delayed
        self.is_journal = is_journal
        if parent is not None:
            if is_journal:
                parent.own_journal = self
            else:
                parent.subqueues.append(self)
        self.messages = stored.messages  # ready and taken, stored and express
        self.messages_at_start = stored.messages
        self.left_count = 0  # of messages that have left it since the start
        self.deleted = False
        self.window: ReadyWindow[Held] = ReadyWindow(
            entries_max=WINDOW_ENTRIES_MAX, bytes_max=WINDOW_BYTES_MAX
        )
        if stored.messages:
            self.window.clear_to_disk(0)
        self.express: ExpressMessages[Held] = ExpressMessages(usage)  # ready and taken
        # Messages that are not ready, with their content or HELD.
        self.taken: dict[int, StoredMessage] = {}
        self.reserved = QueueReservations(self)
        self.takers: set[Reader] = set()  # readers that have a message of this queue
        self.leaving: set[int] = set()  # taken messages that the open batch deletes
        self.expired: list[StoredMessage] = []  # found by `take` and not ended yet
        self.waiters: deque[Waiter] = deque()
        self.watchers: set[asyncio.Future[None]] = set()  # completed when a message arrives
        self.scouts: set[Scout] = set()  # searches that wait
        #: Set if the messages of a group go to one reader at a time.
        self.groups = Groups(self.scouts) if row.grouped else None
        self.returns = 0  # messages that became ready again at their old places
        #: Called when there may be messages for the waiting readers.
        self.on_ready: Callable[[LocalQueue], None] = _ignore_ready
        # A subqueue uses the quota of its queue; a journal has its own.
        within = None if is_journal else parent
        # Last, because it may call `notice` with this queue.
        super().__init__(usage, stored.bytes, row.quota_bytes, notice, within)

    @property
    def is_read_only(self) -> bool:
        """Whether applications cannot send to it: a journal, dead-letter queue or subqueue."""
        return self.is_system or self.parent is not None

    @property
    def holds_ended(self) -> bool:
        """Whether it is a journal or a dead-letter queue, where all messages have ended before.

        Its messages do not expire, and cause no acknowledgments.
        """
        return self.is_system or self.is_journal

    @property
    def payer(self) -> LocalQueue:
        """The queue that provides the quota: for a subqueue, the queue that it belongs to."""
        return self if self.parent is None or self.is_journal else self.parent

    @property
    def own_bytes(self) -> int:
        """The bytes without those of its subqueues and delayed messages, which `bytes` includes."""
        own = self.bytes if self.delayed is None else self.bytes - self.delayed.bytes
        if not self.subqueues:
            return own
        return own - sum(subqueue.bytes for subqueue in self.subqueues)

    @property
    def format_name(self) -> str:
        """The direct format name, such as `DIRECT=OS:.\\private$\\orders`."""
        return f"DIRECT=OS:.\\{self.name.removeprefix(OWN_PREFIX)}"

    @property
    def is_public(self) -> bool:
        """Whether it has an entry in the directory."""
        return self.name.startswith(OWN_PREFIX) and self.parent is None

    def deliver(self, messages: Iterable[Held], express: Iterable[Held] = ()) -> None:
        """Make stored messages, after their commit, and express messages ready."""
        if self.scouts:
            messages, express = list(messages), list(express)
            self._note([message.lookup_id for message in (*messages, *express)])
        self.window.add_all(
            [(message.lookup_id, message, len(message.packet)) for message in messages]
        )
        for message in express:
            lookup_id, packet = message.lookup_id, message.packet
            self.express.keep(lookup_id, message, packet, message.expires_at_s)
            self.window.add(lookup_id, message, len(packet), stored=False)
        self.on_ready(self)

    def deliver_from_disk(self, lookup_ids: Sequence[int]) -> None:
        """Make stored messages ready, after their commit, without loading them into memory."""
        self.window.leave_on_disk(min(lookup_ids))
        self._note(lookup_ids)
        self.on_ready(self)

    def _note(self, lookup_ids: Iterable[int]) -> None:
        for scout in self.scouts:
            scout.note(lookup_ids)

    def deliver_express(self, message: Held) -> None:
        """Make an express message ready."""
        self.deliver((), (message,))

    def wake_readers(self) -> None:
        """Make readers look again: a message was put back, or the queue was deleted."""
        for scout in self.scouts:
            scout.search(0)
        self.on_ready(self)

    def take(self, reader: Reader, limit: int, now_s: int) -> list[StoredMessage]:
        """Take up to `limit` ready messages that are in memory, in order.

        Messages that expired before `now_s`, by the queue manager's own clock, are moved to
        `expired` instead; at most EXPIRED_MAX in one call.
        """
        messages: list[StoredMessage] = []
        size = 0
        while len(messages) < limit and len(self.expired) < EXPIRED_MAX:
            run = self._first_of(reader, limit - len(messages), TAKE_BYTES_MAX - size, bool(size))
            if not run:
                break
            for lookup_id, held, held_bytes in run:
                message = held if type(held) is StoredMessage else whole_message(held)
                if message.expires_at_s is not None and now_s > message.expires_at_s:
                    self.expired.append(message)
                    self._release((lookup_id,))
                    continue
                messages.append(message)
                size += held_bytes
                self.taken[lookup_id] = message
        if messages:
            mine = reader.taken.setdefault(self, set())
            mine.update([message.lookup_id for message in messages])
            reader.took_at_s = now_s
            self.takers.add(reader)
        return messages

    def _first_of(
        self, reader: Reader, limit: int, bytes_max: int, has_some: bool
    ) -> list[tuple[int, Held, int]]:
        """Take the first messages out of the window for a reader, at most as many as may expire in
        one call; of a queue with groups one, if the reader may take its group.

        `has_some`: the reader has got some before, so that the first one must fit as well.
        """
        entry = self.window.peek()
        if entry is None or (has_some and len(entry[1].packet) > bytes_max):
            return []
        if self.groups is None:
            return self.window.pop_run(min(limit, EXPIRED_MAX - len(self.expired)), bytes_max)
        if not self._claims_first(reader, whole_message(entry[1])):
            return []
        return self.window.pop_run(1, bytes_max)

    def _claims_first(self, reader: Reader, message: StoredMessage) -> bool:
        """Make a reader the owner of the group of a message; return False if another one is.

        Requests that take groups in parallel search the queue: SelectiveReceiver.
        """
        assert self.groups is not None
        group = group_of(message.packet)
        if not self.groups.may_take(group, reader):
            return False
        self.groups.claim(message.lookup_id, group, reader)
        return True

    def expire_express(self, now_s: int, messages_max: int) -> int:
        """Move expired express messages, at most `messages_max`, to `expired`; return their count.

        The disk has no index of express messages.
        """
        over = self.express.pop_expired(now_s, messages_max)
        # A taken message is ended when it is put back.
        self.expired += [
            whole_message(self.express[each]) for each in over if not self.is_busy_with(each)
        ]
        return len(over)

    def is_busy_with(self, lookup_id: int) -> bool:
        """Return whether a reader has the message, so that no other one can have or end it."""
        return lookup_id in self.taken or self.reserved.has(lookup_id)

    def hold(self, reader: Reader, lookup_id: int) -> bool:
        """Take a message for its removal, in memory or on disk; False: another reader has it.

        For a stored message only the disk shows whether it still exists. `forget` does not count
        it out; the caller does.
        """
        if self.is_busy_with(lookup_id):
            return False
        express = self.express.get(lookup_id)
        if express is not None:
            self.window.take(lookup_id)
            self.taken[lookup_id] = whole_message(express)
        else:
            self.window.hold(lookup_id)
            self.taken[lookup_id] = HELD
        reader.taken.setdefault(self, set()).add(lookup_id)
        return True

    @property
    def is_settling(self) -> bool:
        """Whether the commit of a removal is under way for any of its messages."""
        return bool(self.leaving or self.reserved.are_leaving) or any(
            each is HELD for each in self.taken.values()
        )

    def forget(self, lookup_ids: Sequence[int]) -> None:
        """Forget taken messages after the commit of their removal."""
        express, pop = self.express, self.taken.pop
        messages = [pop(lookup_id) for lookup_id in lookup_ids]
        self.window.remove_all(lookup_ids)
        for lookup_id in lookup_ids if express else ():
            if lookup_id in express:
                held = express[lookup_id]
                express.drop(lookup_id, held.packet, held.expires_at_s)
        sizes = [len(message.packet) for message in messages if message is not HELD]
        self.count_out(len(sizes), sum(sizes))
        self._release(lookup_ids)

    def _release(self, lookup_ids: Iterable[int]) -> None:
        """Note that messages are not taken any more; readers may wait for their groups."""
        groups = self.groups
        if groups is not None and any([groups.release(each) for each in lookup_ids]):
            self.on_ready(self)

    def count_out(self, messages: int, size: int) -> None:
        """Count messages that have left the queue; `size` is the bytes of their packets."""
        self.messages -= messages
        self.left_count += messages
        self.shrink(size)

    def count_in(self, messages: int, size: int) -> None:
        """Count messages that have come to the queue; `size` is the bytes of their packets."""
        self.messages += messages
        self.grow(size)

    def let_go(self, message: StoredMessage, *, is_there: bool) -> None:
        """Make a held message ready again, or forget it if its row was already gone."""
        lookup_id = message.lookup_id
        del self.taken[lookup_id]
        if is_there:
            self.returns += 1
            self._note((lookup_id,))
            held = self.express.get(lookup_id, message)
            self.window.put_back(lookup_id, held, len(held.packet))
        else:
            self.window.remove(lookup_id)
        self._release((lookup_id,))

    def put_back(
        self, reader: Reader, lookup_ids: Sequence[int], now_s: int, *, aborted: bool = False
    ) -> int:
        """Put the messages that `reader` has back to their old places; return their count.

        Messages that expired meanwhile are also moved to `expired`, at most EXPIRED_MAX.
        `aborted`: their transaction was aborted, which raises the abort count of each.
        """
        mine = reader.taken.get(self, set())
        count = 0
        lookup_ids = [lookup_id for lookup_id in lookup_ids if lookup_id in mine]
        for lookup_id in lookup_ids:
            if lookup_id in mine:
                mine.remove(lookup_id)
                self.returns += 1
                self._note((lookup_id,))
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
                    elif lookup_id in self.express:  # for a later sweep, as with stored messages
                        self.express.watch_again(lookup_id, message.expires_at_s)
                count += 1
        if not mine:
            self.takers.discard(reader)
        if self.groups is not None:
            for lookup_id in lookup_ids:  # the caller wakes the readers
                self.groups.release(lookup_id)
        return count


def relatives(queue: LocalQueue) -> list[LocalQueue]:
    """Return the queue with its subqueues and its journal."""
    journal = [] if queue.own_journal is None else [queue.own_journal]
    return [queue, *queue.subqueues, *journal]
