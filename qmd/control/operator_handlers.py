"""Handlers of the verbs of operators: queues, outgoing queues, sessions, status, history.

As in `message_handlers`, each handler makes the checks that need no wait first.
"""

from __future__ import annotations

from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from qmd.access.demands import EVERYTHING, READ, Demand
from qmd.access.rights import PrincipalRights, Rights
from qmd.access.things import thing_of
from qmd.control import outgoing_messages, peer_status
from qmd.control import status as overview
from qmd.control import validate as checked
from qmd.control.listing import answer_list
from qmd.control.waiting import waiting
from qmd.control_protocol import operations as operator_frames
from qmd.control_protocol import transactions as transaction_frames
from qmd.core.access import GET_PROPERTIES, SEE_STATUS
from qmd.operations.dead_letter_summary import dead_letter_groups
from qmd.operations.purge import Purged
from qmd.operations.queue_admin import Security
from qmd.operations.redelivery import changed

if TYPE_CHECKING:
    from qmd.control.handler import Handler
    from qmd.control.server import ControlConnection
    from qmd.queues.local_queue import LocalQueue
    from qmd.queues.outgoing_queue import OutgoingQueue


TO_SEE = Demand(READ, (GET_PROPERTIES,))
TO_SEE_STATUS = Demand(READ, (SEE_STATUS,), of_host=True)


def _dead_letters(connection: ControlConnection, request: operator_frames.DeadLetters) -> None:
    queue = connection.components.destinations.find_queue(request.queue)
    connection.look(request.number, dead_letter_groups(connection.components.services, queue))


def _list_branches(connection: ControlConnection, request: transaction_frames.ListBranches) -> None:
    connection.look(request.number, _branches(connection))


async def _branches(connection: ControlConnection) -> object:
    """Return the branches of the transactions that the client began."""
    rights, found = connection.rights, await connection.components.branches.overview()
    return [
        each | {"transaction": shown_id.hex()}
        for each in found
        if (shown_id := rights.shown_id(bytes.fromhex(each["transaction"]))) is not None
    ]


def _list_transactions(
    connection: ControlConnection, request: transaction_frames.ListTransactions
) -> None:
    connection.done(request.number, overview.transactions(connection.components, connection.rights))


def _create_queue(connection: ControlConnection, request: operator_frames.CreateQueue) -> None:
    connection.change(request.number, _create(connection, request))


async def _create(connection: ControlConnection, request: operator_frames.CreateQueue) -> object:
    rights = connection.rights
    settings = connection.components.services.settings.access
    queue = await connection.components.administration.create(
        request.name,
        transactional=request.transactional,
        label=request.label,
        journal=request.journal,
        quota_bytes=request.quota_bytes,
        journal_quota_bytes=request.journal_quota_bytes,
        security=Security(request.authenticate, request.privacy),
        groups=request.groups,
        public=request.public,
        owner=rights.principal,
        owned_max=None if rights.are_all else settings.queues_max,
    )
    if request.retry is not None:
        await connection.components.redelivery.set(queue, changed(None, request.retry))
    return overview.queue(queue)


def _set_queue(connection: ControlConnection, request: operator_frames.SetQueue) -> None:
    queue = connection.components.destinations.find_queue(request.name)
    connection.change(request.number, _set(connection, queue, request))


async def _set(
    connection: ControlConnection, queue: LocalQueue, request: operator_frames.SetQueue
) -> object:
    await connection.components.administration.change(
        queue,
        quota_bytes=request.quota_bytes,
        journal_quota_bytes=request.journal_quota_bytes,
        security=Security(request.authenticate, request.privacy),
        groups=request.groups,
        journal=request.journal,
        label=request.label,
    )
    if request.retry is not None:
        await connection.components.redelivery.set(queue, changed(queue.retry, request.retry))
    waits = any(each.queue == queue.guid for each in connection.components.registration.waiting)
    return {**overview.queue(queue), "directory_waits": waits}


def _delete_queue(connection: ControlConnection, request: operator_frames.DeleteQueue) -> None:
    queue = connection.components.destinations.find_queue(request.name)
    work = connection.components.queue_deletion.delete(queue, dry_run=request.dry_run)
    connection.change(request.number, _counted(work))


def _purge_queue(connection: ControlConnection, request: operator_frames.PurgeQueue) -> None:
    queue = connection.components.destinations.find_queue(request.name)
    purger, choice = connection.components.purger, request.choice
    if request.piece is None:
        work = _counted(purger.purge(queue, choice, dry_run=request.dry_run))
    else:
        work = purger.purge_piece(queue, choice, request.piece, dry_run=request.dry_run)
    connection.change(request.number, work)


def _list_queues(connection: ControlConnection, request: operator_frames.ListQueues) -> None:
    rights = connection.rights

    def shown(queue: LocalQueue) -> dict[str, Any] | None:
        is_meant = (request.system or not queue.holds_ended) and not queue.deleted
        return (
            overview.queue(queue) if is_meant and rights.may(TO_SEE, (thing_of(queue),)) else None
        )

    answer_list(
        connection, request.number, list(connection.components.queues.by_key.values()), shown
    )


def _show_queue(connection: ControlConnection, request: operator_frames.ShowQueue) -> None:
    connection.done(
        request.number, overview.queue(connection.components.destinations.find_queue(request.name))
    )


def _list_outgoing(connection: ControlConnection, request: operator_frames.ListOutgoing) -> None:
    shown = partial(peer_status.outgoing_queue, connection.components)
    answer_list(connection, request.number, list(connection.components.outgoing.queues), shown)


def _show_outgoing(connection: ControlConnection, request: operator_frames.ShowOutgoing) -> None:
    queue = connection.components.destinations.find_outgoing(request.destination)
    connection.look(request.number, peer_status.outgoing_details(connection.components, queue))


def _peek_outgoing(connection: ControlConnection, request: operator_frames.PeekOutgoing) -> None:
    queue = connection.components.destinations.find_outgoing(request.destination)
    start, limit = checked.place(request.start), checked.limit(request.limit)
    work = outgoing_messages.page(connection.components, queue, start, limit, request.text)
    connection.look(request.number, work)


def _list_awaiting(connection: ControlConnection, request: operator_frames.ListAwaiting) -> None:
    queue = connection.components.destinations.find_outgoing(request.destination)
    start, limit = checked.place(request.start), checked.limit(request.limit)
    connection.look(request.number, _awaiting(connection, queue, start, limit))


async def _awaiting(
    connection: ControlConnection, queue: OutgoingQueue, start: int, limit: int
) -> object:
    rows = await connection.components.confirmations.page(queue, start, limit)
    return peer_status.awaiting(connection.components, rows)


def _give_up_awaiting(
    connection: ControlConnection, request: operator_frames.GiveUpAwaiting
) -> None:
    queue = connection.components.destinations.find_outgoing(request.destination)
    connection.change(request.number, _give_up(connection, queue))


async def _give_up(connection: ControlConnection, queue: OutgoingQueue) -> object:
    return {"messages": await connection.components.confirmations.give_up(queue)}


def _pause_outgoing(connection: ControlConnection, request: operator_frames.PauseOutgoing) -> None:
    queue = connection.components.destinations.find_outgoing(request.destination)
    connection.change(request.number, _set_paused(connection, queue, paused=True))


def _resume_outgoing(
    connection: ControlConnection, request: operator_frames.ResumeOutgoing
) -> None:
    queue = connection.components.destinations.find_outgoing(request.destination)
    connection.change(request.number, _set_paused(connection, queue, paused=False))


async def _set_paused(
    connection: ControlConnection, queue: OutgoingQueue, *, paused: bool
) -> object:
    await connection.components.outgoing.set_paused(queue, paused)
    return peer_status.outgoing_queue(connection.components, queue)


def _purge_outgoing(connection: ControlConnection, request: operator_frames.PurgeOutgoing) -> None:
    queue = connection.components.destinations.find_outgoing(request.destination)
    connection.change(request.number, _purge_waiting(connection, queue))


async def _purge_waiting(connection: ControlConnection, queue: OutgoingQueue) -> object:
    return {"messages": await connection.components.undeliverable.purge(queue)}


def _kick_outgoing(connection: ControlConnection, request: operator_frames.KickOutgoing) -> None:
    queue = connection.components.destinations.find_outgoing(request.destination)
    connection.components.outgoing.kick(queue)
    connection.done(request.number, peer_status.outgoing_queue(connection.components, queue))


def _list_sequences(connection: ControlConnection, request: operator_frames.ListSequences) -> None:
    connection.done(request.number, peer_status.sequences(connection.components))


def _list_sessions(connection: ControlConnection, request: operator_frames.ListSessions) -> None:
    connection.done(request.number, peer_status.sessions(connection.components))


def _status(connection: ControlConnection, request: operator_frames.Status) -> None:
    brief = not connection.rights.may(TO_SEE_STATUS, (EVERYTHING,))
    components = connection.components
    connection.done(
        request.number, overview.brief(components) if brief else overview.status(components)
    )


def _why(connection: ControlConnection, request: operator_frames.Why) -> None:
    work = connection.components.message_lookup.why(
        request.message, request.queue, ask=request.ask, rights=connection.rights
    )
    connection.look(request.number, work)


def _events(connection: ControlConnection, request: operator_frames.Events) -> None:
    rights, since_ms = connection.rights, request.since_ms
    if request.queue and isinstance(rights, PrincipalRights):
        # An earlier queue of the same name may have been that of another owner.
        queue = connection.components.queues.by_key.get(_key_of(connection, request.queue))
        if queue is not None:
            since_ms = max(since_ms, (queue.created_at_s + 1) * 1000)
    work = connection.components.event_log.read(
        cursor=request.cursor,
        limit=request.limit,
        last=request.last,
        queue=request.queue,
        kinds=request.kinds,
        since_ms=since_ms,
        until_ms=request.until_ms,
        wait_s=checked.wait_s(request.wait_s),
    )
    work = waiting(connection, request).judged(work)
    # The labels of all queues are not for those that may only see what happens.
    connection.look(request.number, work if request.queue else _unlabelled(rights, work))


def _inventory(connection: ControlConnection, request: operator_frames.Inventory) -> None:
    connection.look(request.number, connection.components.event_log.inventory())


def _key_of(connection: ControlConnection, text: str) -> str:
    """Return the key of the queue that a name stands for; "" if it stands for several."""
    keys = [thing.key for thing in connection.components.things.named(text)]
    return keys[0] if len(keys) == 1 else ""


async def _unlabelled(rights: Rights, work: Coroutine[Any, Any, dict[str, Any]]) -> object:
    found = await work
    if isinstance(rights, PrincipalRights):
        found["events"] = [each | {"label": ""} for each in found["events"]]
    return found


async def _counted(work: Coroutine[Any, Any, Purged]) -> dict[str, int]:
    return (await work)._asdict()


HANDLERS: dict[type, Handler] = {
    operator_frames.DeadLetters: _dead_letters,
    transaction_frames.ListBranches: _list_branches,
    transaction_frames.ListTransactions: _list_transactions,
    operator_frames.CreateQueue: _create_queue,
    operator_frames.SetQueue: _set_queue,
    operator_frames.DeleteQueue: _delete_queue,
    operator_frames.PurgeQueue: _purge_queue,
    operator_frames.ListQueues: _list_queues,
    operator_frames.ShowQueue: _show_queue,
    operator_frames.ListOutgoing: _list_outgoing,
    operator_frames.ShowOutgoing: _show_outgoing,
    operator_frames.PeekOutgoing: _peek_outgoing,
    operator_frames.ListAwaiting: _list_awaiting,
    operator_frames.GiveUpAwaiting: _give_up_awaiting,
    operator_frames.PauseOutgoing: _pause_outgoing,
    operator_frames.ResumeOutgoing: _resume_outgoing,
    operator_frames.KickOutgoing: _kick_outgoing,
    operator_frames.PurgeOutgoing: _purge_outgoing,
    operator_frames.ListSequences: _list_sequences,
    operator_frames.ListSessions: _list_sessions,
    operator_frames.Status: _status,
    operator_frames.Why: _why,
    operator_frames.Events: _events,
    operator_frames.Inventory: _inventory,
}
