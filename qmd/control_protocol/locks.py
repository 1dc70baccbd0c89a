"""Requests of locks: takes that end by themselves, and outlast their connection."""

from __future__ import annotations

from typing import Annotated

import msgspec

from qmd.control_protocol.messages import (
    EVERY_MESSAGE,
    NO_WAIT,
    Choice,
    LookupIds,
    Request,
    Token,
    TransactionId,
    add_verbs,
)

LockId = Annotated[bytes, msgspec.Meta(max_length=16)]

NO_IDS: list[int] = []
# `how` of `SettleLocked`.
REMOVE, REJECT, GIVE_BACK, FAIL = "remove", "reject", "give_back", "fail"


class TakeLocked(Request, tag="take_locked", frozen=True):
    """Take messages under a lock, for `lock_s` seconds from the answer on. -> [StoredMessage, ...]

    The client chooses the id of the lock: 16 random bytes. The messages return to their places when
    the time is over, which counts as an attempt (their abort counts rise), and not when the
    connection ends: any connection with the same rights may settle them. A take under a lock that
    exists adds messages to it and renews it. Locks end with the daemon: then the messages are at
    their places, and no attempt is counted.
    """

    queue: str
    lock: LockId
    lock_s: float
    limit: int = 1
    wait_s: float = NO_WAIT
    choice: Choice = EVERY_MESSAGE


class SettleLocked(Request, tag="settle_locked", frozen=True):
    """Settle messages of a lock, all of the queue if `lookup_ids` is empty. -> their number

    `how`: "remove" them; "reject" them, as `Reject`, with the reason; "give_back"; or "fail": give
    them back, and count an attempt. The answer comes after the commit. With a token, `Outcome`
    returns the result of a removal or rejection.
    """

    lock: LockId
    queue: str
    lookup_ids: LookupIds = NO_IDS
    how: str = REMOVE
    reason: str = ""
    token: Token = b""


class RenewLock(Request, tag="renew_lock", frozen=True):
    """Renew a lock: it ends `lock_s` seconds from now. -> {messages, left_s}

    With lookup ids: only if it holds all of these messages.
    """

    lock: LockId
    lock_s: float
    lookup_ids: LookupIds = NO_IDS


class ListLocks(Request, tag="list_locks", frozen=True):
    """List the locks of this client, or of all clients.

    -> [{lock, queues, messages, left_s, owner}, ...]
    """


class Enroll(Request, tag="enroll", frozen=True):
    """Let a transaction settle messages that were taken before. -> their number

    They were taken by this connection, or under a lock. The commit removes them, or settles them as
    `Settle` says; an abort puts them back and counts it.
    """

    transaction: TransactionId
    queue: str
    lookup_ids: LookupIds
    lock: LockId = b""


LockRequest = TakeLocked | SettleLocked | RenewLock | ListLocks | Enroll

add_verbs(LockRequest)
