"""Requests that end many messages: rejected or failed in parts, each with its commit.

A removal is one commit; only its acknowledgments are made in parts.

Later requests of the connection begin after the last part, and the outcome of the token is stored
with it.  Questions for the outcome wait meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from qmd.control_protocol.locks import REJECT, REMOVE
from qmd.operations.large_removals import Remover

if TYPE_CHECKING:
    from qmd.control.large_requests import Client, Hooks
    from qmd.control.server import ControlConnection
    from qmd.core.retry_policy import RetryPolicy
    from qmd.queues.local_queue import LocalQueue, Reader

#: The reason of a failure for which a client states none.
WORK_FAILED = "its work failed"


class Ending(NamedTuple):
    """Messages that a reader has taken, and how they end."""

    reader: Reader
    queue: LocalQueue
    lookup_ids: list[int]
    how: str  # of qmd/operations/locks.py
    reason: str = ""
    token: bytes = b""
    policy: RetryPolicy | None = None  # instead of that of the queue, if they fail


async def end_in_parts(connection: ControlConnection, ending: Ending, hooks: Hooks) -> object:
    """End messages in parts; return their number.  Raises Refusal, StorageError."""
    try:
        outcomes = connection.components.request_outcomes
        async with outcomes.at_work(ending.token) as done_before:
            if done_before is not None:
                return done_before
            return await _end(connection, ending, hooks)
    finally:
        hooks.go_on()


async def _end(connection: ControlConnection, ending: Ending, hooks: Hooks) -> int:
    components = connection.components
    ends = components.large_ends
    reader, queue, lookup_ids, how, reason, token, policy = ending
    client = connection.memory_owner, spender(connection)
    if how == REMOVE:
        check = partial(components.sealed_tokens.check, token, connection.serial)
        remover = Remover(*client, hooks.is_there)
        removals = components.large_removals
        return await removals.remove(reader, queue, lookup_ids, token, check, remover)
    if how == REJECT:
        return await ends.reject(reader, queue, lookup_ids, reason, token, *client)
    return await ends.fail(reader, queue, lookup_ids, reason or WORK_FAILED, policy, *client)


async def abort_in_parts(
    connection: ControlConnection, count: int, returning: Sequence[asyncio.Task[None]], hooks: Hooks
) -> object:
    """Wait until the messages of an aborted transaction are back; return their number."""
    try:
        await asyncio.wait(returning)
        await connection.components.services.storage.batch.barrier()
        return count
    finally:
        hooks.go_on()


def spender(client: Client) -> Callable[[float], None]:
    """Return a function that counts processor time, in seconds, for the account of a client."""
    account = client.account
    return _ignore if account is None else partial(account.spend, 0, 0)


def _ignore(seconds: float) -> None:
    """Ignore the time for a client that has left."""
