"""Handlers of the verbs of applications: messages and transactions.

Each handler begins the work of its request and arranges the answer.  It makes all checks that need
no wait first: a request with a name for which the directory must be queried is handled again
after the answer.
"""

from __future__ import annotations

from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from protocol.errors import InvalidName
from qmd.access.demands import TO_SEND_AGAIN
from qmd.control import validate as checked
from qmd.control.large_ends import (
    WORK_FAILED,
    Ending,
    abort_in_parts,
    end_in_parts,
)
from qmd.control.large_requests import commit_in_parts, import_in_parts, no_token, send_in_parts
from qmd.control.waiting import waiting
from qmd.control_protocol import messages as frames
from qmd.control_protocol import transactions as transaction_frames
from qmd.control_protocol.locks import FAIL, REJECT, REMOVE
from qmd.control_protocol.messages import Choice
from qmd.control_protocol.once import SendOnce
from qmd.control_protocol.parts import MANY, in_parts, is_slow
from qmd.control_protocol.signing import SigningParts
from qmd.directory.resolver import MustAsk
from qmd.errors import Refusal
from qmd.naming.fan_out import Several
from qmd.operations.receive import AT_ONCE
from qmd.operations.redelivery import changed
from qmd.operations.restore_message import Changes
from qmd.operations.selection import filter_of

if TYPE_CHECKING:
    from qmd.control.handler import Handler
    from qmd.control.server import ControlConnection
    from qmd.control_protocol.messages import NewMessage
    from qmd.queues.local_queue import LocalQueue

#: More messages are checked in parts: each takes a tenth of a millisecond.
IMPORTED_AT_ONCE = 64
#: More packets of one request are made in parts: each takes 3 to 15 µs.
COPIES_AT_ONCE = 4096


def _send(connection: ControlConnection, request: frames.Send) -> None:
    if is_slow(request) or _has_many_copies(connection, request.messages):
        _send_in_parts(connection, request)
    elif request.transaction:
        ids = connection.components.transactions.send(
            request.transaction, connection, request.messages
        )
        connection.done(request.number, ids)
    elif request.once:
        connection.change(request.number, _send_once(connection, request, b""))
    else:
        connection.components.sealed_tokens.check(request.token, connection.serial)
        connection.components.uniform_sender.send(
            request.messages,
            request.token,
            partial(connection.done, request.number),
            connection.rights.owner,
        )


def _send_once_by_key(connection: ControlConnection, request: SendOnce) -> None:
    if is_slow(request):
        _send_in_parts(connection, request)
        return
    connection.change(request.number, _send_once(connection, request, request.fingerprint))


def _has_many_copies(connection: ControlConnection, messages: list[NewMessage]) -> bool:
    """Return whether messages to several queues are so many packets that they are sent in parts."""
    if len(messages) == 1:
        return False  # a packet cannot list as many queues as would matter
    copies, each, last = 0, 1, ""
    for new in messages:
        if new.destination != last:
            last = new.destination
            try:
                found = connection.components.destinations.aims(last)
            except (Refusal, InvalidName, MustAsk):
                return False  # the send finds that, too
            each = len(found.targets) if isinstance(found, Several) else 1
        copies += each
    return copies > COPIES_AT_ONCE


def _send_in_parts(connection: ControlConnection, request: frames.Send | SendOnce) -> None:
    work = partial(send_in_parts, connection, in_parts(request), is_admitted=True)
    connection.change_in_parts(request.number, work)


def _signing_parts(connection: ControlConnection, request: SigningParts) -> None:
    before, after, delivery = connection.components.message_protection.signing_parts(
        request.message, in_transaction=request.in_transaction
    )
    answer = {"before": before, "after": after, "delivery": delivery}
    connection.done(request.number, answer)


async def _send_once(
    connection: ControlConnection, request: frames.Send | SendOnce, fingerprint: bytes
) -> object:
    if not request.token:
        raise no_token()
    while True:
        try:
            return await connection.components.once_sender.send(
                request.messages,
                request.token,
                connection.serial,
                connection.rights.shared_token(request.token),
                connection.rights.owner,
                fingerprint,
            )
        except MustAsk as ask:
            await ask.answered(connection.components.resolver)


def _take(connection: ControlConnection, request: frames.Take) -> None:
    queue = connection.components.destinations.find_queue(request.queue)
    connection.components.selective_receiver.check_share(queue, connection)
    limit, wait_s = checked.limit(request.limit), checked.wait_s(request.wait_s)
    answer = waiting(connection, request, queue).answer
    if queue.groups is not None:
        every = frames.TakeChosen(
            request.number, request.queue, frames.EVERY_MESSAGE, limit, wait_s, request.transaction
        )
        _take_chosen(connection, every)
    elif request.transaction:
        connection.components.transactions.take(
            request.transaction, connection, queue, limit, wait_s, answer
        )
    else:
        connection.components.message_receiver.take(connection.reader, queue, limit, wait_s, answer)


def _take_chosen(connection: ControlConnection, request: frames.TakeChosen) -> None:
    queue = connection.components.destinations.find_queue(request.queue)
    connection.components.selective_receiver.check_share(queue, connection)
    limit, wait_s = checked.limit(request.limit), checked.wait_s(request.wait_s)
    if request.transaction:
        work = connection.components.transactions.take_chosen(
            request.transaction, connection, queue, request.choice, limit, wait_s
        )
    else:
        work = connection.components.selective_receiver.take(
            connection.reader, queue, request.choice, limit, wait_s
        )
    connection.look(request.number, waiting(connection, request, queue).judged(work))


def _look_at(connection: ControlConnection, request: frames.Look) -> None:
    queue = connection.components.destinations.find_queue(request.queue)
    connection.look(request.number, _look_beside(connection, queue, request))


async def _look_beside(
    connection: ControlConnection, queue: LocalQueue, request: frames.Look
) -> object:
    lookup_id = checked.place(request.lookup_id)
    message = await connection.components.selective_receiver.look(queue, request.which, lookup_id)
    return [] if message is None else [message]


def _open_exclusive(connection: ControlConnection, request: frames.OpenExclusive) -> None:
    queue = connection.components.destinations.find_queue(request.queue)
    connection.components.selective_receiver.open(queue, connection)
    connection.done(request.number, None)


def _close_exclusive(connection: ControlConnection, request: frames.CloseExclusive) -> None:
    queue = connection.components.destinations.find_queue(request.queue)
    connection.components.selective_receiver.close(queue, connection)
    connection.done(request.number, None)


def _remove(connection: ControlConnection, request: frames.Remove) -> None:
    connection.components.sealed_tokens.check(request.token, connection.serial)
    queue = connection.components.destinations.find_queue(request.queue)
    # Never in several commits: a client returns the messages to its application after the answer.
    # If the daemon ended between two commits, those of the first would be with nobody.
    if connection.components.message_receiver.acknowledges_many(queue, request.lookup_ids):
        ending = Ending(
            *(connection.reader, queue, request.lookup_ids, REMOVE), token=request.token
        )
        connection.change_in_parts(request.number, partial(end_in_parts, connection, ending))
        return
    connection.components.message_receiver.check_numbers(
        connection.reader, queue, request.lookup_ids
    )
    connection.components.message_receiver.remove(
        connection.reader,
        queue,
        request.lookup_ids,
        request.token,
        partial(connection.done, request.number),
    )


def _reject(connection: ControlConnection, request: frames.Reject) -> None:
    connection.components.sealed_tokens.check(request.token, connection.serial)
    queue = connection.components.destinations.find_queue(request.queue)
    if len(request.lookup_ids) > AT_ONCE:
        reason = checked.reason(request.reason)
        ending = Ending(connection.reader, queue, request.lookup_ids, REJECT, reason, request.token)
        connection.change_in_parts(request.number, partial(end_in_parts, connection, ending))
        return
    connection.components.message_receiver.check_numbers(
        connection.reader, queue, request.lookup_ids
    )
    connection.components.message_receiver.reject(
        connection.reader,
        queue,
        request.lookup_ids,
        checked.reason(request.reason),
        request.token,
        partial(connection.done, request.number),
    )


def _give_back(connection: ControlConnection, request: frames.GiveBack) -> None:
    queue = connection.components.destinations.find_queue(request.queue)
    reason, receiver = checked.reason(request.reason), connection.components.message_receiver
    policy = None if request.retry is None else changed(None, request.retry)
    if request.failed and len(request.lookup_ids) > AT_ONCE:
        ending = Ending(
            *(connection.reader, queue, request.lookup_ids, FAIL, reason), policy=policy
        )
        connection.change_in_parts(request.number, partial(end_in_parts, connection, ending))
        return
    if request.failed:
        count = receiver.fail(
            connection.reader,
            queue,
            request.lookup_ids,
            reason or WORK_FAILED,
            policy=policy,
        )
        connection.components.services.storage.batch.when_durable(
            partial(connection.done, request.number, count)
        )
        return
    connection.done(
        request.number,
        receiver.give_back(
            connection.reader, queue, request.lookup_ids, reason or "its reader gave it back"
        ),
    )


def _peek(connection: ControlConnection, request: frames.Peek) -> None:
    queue = connection.components.destinations.find_queue(request.queue)
    start, limit, wait_s = (
        checked.place(request.start),
        checked.limit(request.limit),
        checked.wait_s(request.wait_s),
    )
    matches = filter_of(Choice(where=request.where)) if request.where else None
    work = connection.components.message_browser.peek(
        queue, start, limit, wait_s, connection.turn, matches
    )
    connection.look(request.number, waiting(connection, request).judged(work))


def _move(connection: ControlConnection, request: frames.Move) -> None:
    connection.components.sealed_tokens.check(request.token, connection.serial)
    queue = connection.components.destinations.find_queue(request.queue)
    work = connection.components.mover.move(
        queue,
        request.target,
        request.choice,
        request.piece,
        dry_run=request.dry_run,
        token=request.token,
    )
    connection.change(request.number, _once(connection, request.token, work))


def _resend(connection: ControlConnection, request: frames.Resend) -> None:
    connection.components.sealed_tokens.check(request.token, connection.serial)
    queue = connection.components.destinations.find_queue(request.queue)
    work = connection.components.resender.resend(
        queue,
        request.choice,
        request.piece,
        Changes(request.to, request.label, request.body),
        keep=request.keep,
        dry_run=request.dry_run,
        token=request.token,
        check=partial(_check_resent, connection),
    )
    connection.change(request.number, _once(connection, request.token, work))


def _check_resent(connection: ControlConnection, new: NewMessage) -> None:
    """Check the rights of the client on the queues of a message that is sent again."""
    connection.rights.require(TO_SEND_AGAIN, connection.components.things.of_message(new), "resend")


def _import(connection: ControlConnection, request: frames.Import) -> None:
    connection.components.sealed_tokens.check(request.token, connection.serial)
    queue = connection.components.destinations.find_queue(request.queue)
    if len(request.messages) > IMPORTED_AT_ONCE:
        work = partial(import_in_parts, connection, queue, request)
        connection.change_in_parts(request.number, work)
        return
    connection.components.importer.take_in(
        queue,
        request.messages,
        dry_run=request.dry_run,
        token=request.token,
        done=partial(connection.done, request.number),
    )


async def _once(
    connection: ControlConnection, token: bytes, work: Coroutine[Any, Any, object]
) -> object:
    """Return the result of `work`, or that of an earlier request with the same token."""
    async with connection.components.request_outcomes.at_work(token) as done_before:
        if done_before is not None:
            work.close()
            return done_before
        return await work


def _outcome(connection: ControlConnection, request: frames.Outcome) -> None:
    connection.components.transactions.check_owner(request.token, connection.rights)
    connection.look(
        request.number,
        connection.components.request_outcomes.outcome(
            request.token, connection.serial, connection.rights.shared_token(request.token)
        ),
    )


def _begin(connection: ControlConnection, request: transaction_frames.Begin) -> None:
    idle_s = checked.wait_s(request.idle_s)
    connection.components.transactions.begin(request.transaction, connection, idle_s)
    connection.done(request.number, None)


def _settle(connection: ControlConnection, request: transaction_frames.Settle) -> None:
    queue = connection.components.destinations.find_queue(request.queue)
    connection.change(
        request.number,
        connection.components.transactions.settle(
            request.transaction,
            connection,
            queue,
            request.lookup_ids,
            target=request.target,
            reason=checked.reason(request.reason),
        ),
    )


def _commit(connection: ControlConnection, request: transaction_frames.Commit) -> None:
    transactions = connection.components.transactions
    large = transactions.with_many(request.transaction, connection, MANY)
    if large is not None:
        connection.change_in_parts(request.number, partial(commit_in_parts, connection, large))
        return
    transactions.commit(
        request.transaction,
        connection,
        partial(connection.done, request.number),
        connection.rights.owner,
    )


def _abort(connection: ControlConnection, request: transaction_frames.Abort) -> None:
    count = connection.components.transactions.abort(
        request.transaction,
        connection,
        request.reason,
        unread=request.unread,
        policy=None if request.retry is None else changed(None, request.retry),
    )
    returning = connection.components.large_ends.abort_of(request.transaction.hex())
    if returning:
        connection.change_in_parts(
            request.number, partial(abort_in_parts, connection, count, returning)
        )
        return
    done = partial(connection.done, request.number, count)
    if count:
        # The client may look at the messages after the answer: the abort must be counted then.
        connection.components.services.storage.batch.when_durable(done)
    else:
        done()


def _enlist(connection: ControlConnection, request: transaction_frames.Enlist) -> None:
    work = connection.components.branches.enlist(request.transaction, connection, request.resource)
    connection.change(request.number, work)


def _forget_branch(connection: ControlConnection, request: transaction_frames.ForgetBranch) -> None:
    work = connection.components.branches.forget(request.transaction, request.resource)
    connection.change(request.number, work)


HANDLERS: dict[type, Handler] = {
    frames.Send: _send,
    SendOnce: _send_once_by_key,
    SigningParts: _signing_parts,
    frames.Take: _take,
    frames.TakeChosen: _take_chosen,
    frames.Look: _look_at,
    frames.OpenExclusive: _open_exclusive,
    frames.CloseExclusive: _close_exclusive,
    frames.Remove: _remove,
    frames.Reject: _reject,
    frames.GiveBack: _give_back,
    frames.Peek: _peek,
    frames.Move: _move,
    frames.Resend: _resend,
    frames.Import: _import,
    frames.Outcome: _outcome,
    transaction_frames.Begin: _begin,
    transaction_frames.Settle: _settle,
    transaction_frames.Commit: _commit,
    transaction_frames.Abort: _abort,
    transaction_frames.Enlist: _enlist,
    transaction_frames.ForgetBranch: _forget_branch,
}
