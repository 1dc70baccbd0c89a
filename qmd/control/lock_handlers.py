"""Handlers of the verbs of locks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from qmd.control import validate as checked
from qmd.control.large_ends import Ending, end_in_parts
from qmd.control.waiting import waiting
from qmd.control_protocol import locks as frames
from qmd.control_protocol.locks import FAIL, REJECT, REMOVE
from qmd.operations.receive import AT_ONCE

if TYPE_CHECKING:
    from qmd.control.handler import Handler
    from qmd.control.large_requests import Hooks
    from qmd.control.server import ControlConnection


def _take(connection: ControlConnection, request: frames.TakeLocked) -> None:
    components = connection.components
    queue = components.destinations.find_queue(request.queue)
    components.selective_receiver.check_share(queue, connection)
    limit, wait_s = checked.limit(request.limit), checked.wait_s(request.wait_s)
    work = components.locks.take(
        request.lock, request.lock_s, connection.rights, queue, request.choice, limit, wait_s
    )
    connection.look(request.number, waiting(connection, request, queue).judged(work))


def _settle(connection: ControlConnection, request: frames.SettleLocked) -> None:
    components = connection.components
    components.sealed_tokens.check(request.token, connection.serial)
    queue, reason = (
        components.destinations.find_queue(request.queue),
        checked.reason(request.reason),
    )
    if request.how in (REJECT, FAIL, REMOVE):
        reader, lookup_ids = components.locks.held(request.lock, queue, request.lookup_ids)
        if request.how == REMOVE:  # in one commit, as in `_remove`
            is_large = components.message_receiver.acknowledges_many(queue, lookup_ids)
        else:
            is_large = len(lookup_ids) > AT_ONCE
        if is_large:
            ending = Ending(reader, queue, lookup_ids, request.how, reason, request.token)
            work = partial(_settle_in_parts, connection, request.lock, ending)
            connection.change_in_parts(request.number, work)
            return
    components.locks.settle(
        request.lock,
        queue,
        request.lookup_ids,
        how=request.how,
        reason=reason,
        token=request.token,
        done=partial(connection.done, request.number),
    )


async def _settle_in_parts(
    connection: ControlConnection, lock: bytes, ending: Ending, hooks: Hooks
) -> object:
    try:
        # A lock outlasts the connection of its client: its messages end in any case.
        return await end_in_parts(connection, ending, hooks._replace(is_there=_always))
    finally:
        connection.components.locks.tidy(lock)


def _always() -> bool:
    return True


def _renew(connection: ControlConnection, request: frames.RenewLock) -> None:
    renewed = connection.components.locks.renew(request.lock, request.lock_s, request.lookup_ids)
    connection.done(request.number, renewed)


def _list(connection: ControlConnection, request: frames.ListLocks) -> None:
    connection.done(request.number, connection.components.locks.listed(connection.rights))


def _enroll(connection: ControlConnection, request: frames.Enroll) -> None:
    components = connection.components
    queue = components.destinations.find_queue(request.queue)
    reader = components.transactions.reader(request.transaction, connection)
    if request.lock:
        count = components.locks.enroll(request.lock, queue, request.lookup_ids, reader)
    else:
        taken = components.message_receiver.own(connection.reader, queue, request.lookup_ids)
        connection.reader.hand_over(queue, taken, reader)
        count = len(taken)
    connection.done(request.number, count)


HANDLERS: dict[type, Handler] = {
    frames.TakeLocked: _take,
    frames.SettleLocked: _settle,
    frames.RenewLock: _renew,
    frames.ListLocks: _list,
    frames.Enroll: _enroll,
}
