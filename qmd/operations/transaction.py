"""A transaction of an application that has not ended."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from qmd.control_protocol.messages import NewMessage
from qmd.errors import Refusal
from qmd.naming.fan_out import Several
from qmd.queues.local_queue import LocalQueue, Reader

if TYPE_CHECKING:
    from qmd.outcomes.prepared_ends import PreparedEnd
    from qmd.runtime.budget import Budget

T = TypeVar("T", bound=Hashable)

MESSAGE_BYTES = 1024  # of memory for each message, besides body and extension


def kept_bytes(new: NewMessage) -> int:
    """Return the bytes of memory that a message takes until its transaction ends."""
    return MESSAGE_BYTES + len(new.body) + len(new.extension) + 4 * len(new.label)


def too_much(memory: Budget, owner: Hashable, more_bytes: int) -> Refusal:
    """Return the refusal of a message for which the transactions have no memory."""
    return Refusal(
        "transactions_full",
        f"the messages of all transactions under way take {memory.used_bytes} of"
        f" {memory.limit_bytes} bytes of memory, those of this connection {memory.of(owner)} of"
        f" {memory.share_bytes}, and {more_bytes} more are needed",
        "Commit or abort some, or set transactions in the section [memory] of the configuration"
        " higher.",
    )


class PreparedMessages(Protocol):
    """The messages of a transaction, of which the packets were made before its commit."""

    def check(self) -> bool:
        """Return whether they can be sent as they were made.  Raises Refusal."""
        ...

    def write(self, token: bytes, done: Callable[[list[object]], None]) -> None:
        """Add them to the open batch, and the outcome `token`; `done(ids)` when it is durable."""


class PreparedEnds(NamedTuple):
    """The acknowledgments of messages that a commit ends, which were made before it."""

    receipts: Mapping[LocalQueue, PreparedEnd]
    rejections: Mapping[tuple[LocalQueue, str], PreparedEnd]  # by queue and reason


NO_ENDS = PreparedEnds({}, {})

#: Messages that a transaction may move or reject: its commit is one turn of the event loop, and
#: each of them takes 15 µs of it.
SETTLED_MAX = 4096


@dataclass(slots=True, eq=False)
class Transaction:
    """An open transaction."""

    id: bytes
    owner: Hashable  # the connection that began it
    idle_s: float
    began_at: float  # loop time
    used_at: float
    reader: Reader = field(default_factory=Reader)
    messages: list[NewMessage] = field(default_factory=list)  # to be sent at the commit
    numbers: list[object] = field(default_factory=list)  # of the messages
    #: For messages to several queues: the queues that the destination stood for at the send.
    several: list[Several | None] = field(default_factory=list)
    bytes: int = 0  # of their bodies
    kept_bytes: int = 0  # of memory for them
    #: Received messages that the commit moves or rejects instead of removing them: by queue and
    #: lookup id, with the target and the reason.
    moves: dict[tuple[LocalQueue, int], tuple[LocalQueue, str]] = field(default_factory=dict)
    rejections: dict[tuple[LocalQueue, int], str] = field(default_factory=dict)
    is_committing: bool = False
    doom: str = ""  # why a message could not be sent in it; then it can only be aborted
    choosing: int = 0  # requests for chosen messages that are not answered yet

    @property
    def packets(self) -> int:
        """The number of its messages and of their copies."""
        return sum([len(each) if isinstance(each, list) else 1 for each in self.numbers])

    def received(self, queue: LocalQueue) -> list[int]:
        """Return the lookup ids of the messages of a queue that the commit removes."""
        mine = self.reader.taken.get(queue, set())
        if not (self.moves or self.rejections):
            return sorted(mine)
        return sorted(
            each
            for each in mine
            if (queue, each) not in self.moves and (queue, each) not in self.rejections
        )

    def __post_init__(self) -> None:
        self.reader.who = f"transaction {self.id.hex()}"

    @property
    def taken_count(self) -> int:
        """The number of messages that it has received."""
        return sum(len(mine) for mine in self.reader.taken.values())


def check_taken(transaction: Transaction, queue: LocalQueue, lookup_ids: list[int]) -> None:
    """Raise Refusal if a transaction has not received one of the messages."""
    mine = transaction.reader.taken.get(queue, set())
    for lookup_id in lookup_ids:
        if lookup_id not in mine:
            raise Refusal(
                "not_taken",
                f"message {lookup_id} of {queue.name} was not received in this transaction",
                "Receive it first.",
            )


def check_settled(transaction: Transaction, queue: LocalQueue, lookup_ids: list[int]) -> None:
    """Raise Refusal if a transaction would move or reject more messages than SETTLED_MAX."""
    settled = len(transaction.moves) + len(transaction.rejections)
    again = sum(
        (queue, each) in transaction.moves or (queue, each) in transaction.rejections
        for each in lookup_ids
    )
    if settled - again + len(lookup_ids) > SETTLED_MAX:
        raise Refusal(
            "too_many_settled",
            f"the transaction moves or rejects {settled} messages, and may do so with {SETTLED_MAX}"
            " at most",
            "Commit it, and go on in another one.",
        )


def doomed(transaction: Transaction) -> Refusal:
    """Return the refusal of a transaction that can only be aborted."""
    return Refusal(
        "transaction_doomed",
        f"a message could not be sent in this transaction: {transaction.doom}",
    )


def by_queues(chosen: dict[tuple[LocalQueue, int], T]) -> dict[tuple[LocalQueue, T], list[int]]:
    """Return the lookup ids, in order, by queue and by what is to be done with the messages."""
    found: dict[tuple[LocalQueue, T], list[int]] = {}
    for (queue, lookup_id), what in sorted(chosen.items(), key=lambda each: each[0][1]):
        found.setdefault((queue, what), []).append(lookup_id)
    return found


def seconds(duration_s: float) -> str:
    """Return a duration for people."""
    return f"{round(duration_s, 2):g} s"


def unanswered(count: int) -> None:
    """Ignore the result of a part: only the commit as a whole is answered."""
