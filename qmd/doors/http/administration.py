"""Operations on queues and dead letters, and the status."""

from __future__ import annotations

from qmd.doors.http import shapes
from qmd.doors.http.conversion import choice_of, queue_of, retry_of
from qmd.doors.http.declarations import Answer, Call, Operation
from qmd.doors.http.exchange import JSON, Response, of_json
from qmd.doors.http.problems import Problem


async def _list(call: Call) -> Response:
    found = await call.session.qm.list_queues(system=call.query.system)
    return of_json(shapes.Queues(queues=list(map(queue_of, found))))


async def _create(call: Call) -> Response:
    new = call.body
    made = await call.session.qm.create_queue(
        new.name,
        transactional=new.transactional,
        label=new.label,
        journal=new.journal,
        quota_bytes=new.quota_bytes,
        journal_quota_bytes=new.journal_quota_bytes,
        public=new.public,
        authenticate=new.authenticate,
        privacy=new.privacy,
        groups=new.groups,
        retry=retry_of(new.retry),
    )
    return of_json(queue_of(made), 201)


async def _show(call: Call) -> Response:
    return of_json(queue_of(await call.session.qm.show_queue(call.path["queue"])))


async def _change(call: Call) -> Response:
    given = call.body
    changed = await call.session.qm.set_queue(
        call.path["queue"],
        quota_bytes=given.quota_bytes,
        journal_quota_bytes=given.journal_quota_bytes,
        journal=given.journal,
        label=given.label,
        authenticate=given.authenticate,
        privacy=given.privacy,
        groups=given.groups,
        retry=retry_of(given.retry),
    )
    return of_json(queue_of(changed))


async def _delete(call: Call) -> Response:
    dry_run = call.query.dry_run
    messages = await call.session.qm.delete_queue(call.path["queue"], dry_run=dry_run)
    return of_json(shapes.Count(messages=messages))


async def _purge(call: Call) -> Response:
    given = call.body
    messages = await call.session.qm.purge_queue(
        call.path["queue"], choice_of(given.choice), dry_run=given.dry_run
    )
    return of_json(shapes.Count(messages=messages))


async def _move(call: Call) -> Response:
    given = call.body
    moved = await call.session.qm.move(
        call.path["queue"],
        given.target,
        choice_of(given.choice),
        limit=given.limit,
        dry_run=given.dry_run,
    )
    return of_json(shapes.Moved(**moved._asdict()))


async def _resend(call: Call) -> Response:
    given = call.body
    moved = await call.session.qm.resend(
        call.path["queue"],
        choice_of(given.choice),
        to=given.to,
        label=given.label,
        body=given.body_base64,
        keep=given.keep,
        limit=given.limit,
        dry_run=given.dry_run,
    )
    return of_json(shapes.Moved(**moved._asdict()))


async def _dead_letters(call: Call) -> Response:
    groups = await call.session.qm.dead_letters(call.path["queue"])
    return of_json(shapes.DeadLetterGroups(groups=groups))


async def _delayed(call: Call) -> Response:
    query = call.query
    page = await call.session.qm.list_delayed(query.queue, start=query.start, limit=query.limit)
    for each in page["messages"]:
        each.pop("body", None)
    return of_json(shapes.DelayedPage(messages=page["messages"], next=page["next"]))


async def _cancel(call: Call) -> Response:
    message_id = call.path["message"]
    if not await call.session.qm.cancel_delayed(message_id):
        raise Problem(404, "no_such_message", f"no delayed message has the id {message_id}")
    return Response(204)


async def _status(call: Call) -> Response:
    return of_json(await call.session.qm.status())


_QUEUE = {JSON: shapes.Queue}

OPERATIONS = (
    Operation(
        "GET",
        "/v1/queues",
        "listQueues",
        "Queues",
        "List the queues",
        _list,
        {200: Answer("The queues.", {JSON: shapes.Queues})},
        query=shapes.SystemQuery,
    ),
    Operation(
        "POST",
        "/v1/queues",
        "createQueue",
        "Queues",
        "Create a queue",
        _create,
        {201: Answer("The queue was created.", _QUEUE)},
        bodies={JSON: shapes.NewQueue},
    ),
    Operation(
        "GET",
        "/v1/queues/{queue}",
        "showQueue",
        "Queues",
        "Show a queue",
        _show,
        {200: Answer("The queue.", _QUEUE)},
    ),
    Operation(
        "PATCH",
        "/v1/queues/{queue}",
        "changeQueue",
        "Queues",
        "Change properties of a queue",
        _change,
        {200: Answer("The queue after the change.", _QUEUE)},
        bodies={JSON: shapes.QueueChanges},
    ),
    Operation(
        "DELETE",
        "/v1/queues/{queue}",
        "deleteQueue",
        "Queues",
        "Delete a queue with its messages",
        _delete,
        {200: Answer("How many messages were deleted with it.", {JSON: shapes.Count})},
        query=shapes.DeleteQuery,
    ),
    Operation(
        "POST",
        "/v1/queues/{queue}/purge",
        "purgeQueue",
        "Queues",
        "Remove messages of a queue",
        _purge,
        {200: Answer("How many messages were removed.", {JSON: shapes.Count})},
        bodies={JSON: shapes.PurgeRequest},
        body_is_optional=True,
    ),
    Operation(
        "POST",
        "/v1/queues/{queue}/move",
        "moveMessages",
        "Dead letters",
        "Move messages to another queue of this computer",
        _move,
        {200: Answer("How many messages were moved.", {JSON: shapes.Moved})},
        bodies={JSON: shapes.MoveRequest},
        text="A dead letter that leaves its dead-letter queue is a normal message again.",
    ),
    Operation(
        "POST",
        "/v1/queues/{queue}/resend",
        "resendMessages",
        "Dead letters",
        "Send messages again, and remove the old ones",
        _resend,
        {200: Answer("How many messages were sent again.", {JSON: shapes.Moved})},
        bodies={JSON: shapes.ResendRequest},
        body_is_optional=True,
    ),
    Operation(
        "GET",
        "/v1/queues/{queue}/dead-letters",
        "summarizeDeadLetters",
        "Dead letters",
        "Summarize a dead-letter queue by reason and destination",
        _dead_letters,
        {200: Answer("The groups.", {JSON: shapes.DeadLetterGroups})},
    ),
    Operation(
        "GET",
        "/v1/delayed",
        "listDelayed",
        "Sending",
        "List messages that are delivered later",
        _delayed,
        {200: Answer("A page.", {JSON: shapes.DelayedPage})},
        query=shapes.DelayedQuery,
    ),
    Operation(
        "DELETE",
        "/v1/delayed/{message}",
        "cancelDelayed",
        "Sending",
        "Cancel a delayed message: it is never sent",
        _cancel,
        {204: Answer("It was removed.")},
    ),
    Operation(
        "GET",
        "/v1/status",
        "showStatus",
        "Status",
        "Show the status of the queue manager",
        _status,
        {200: Answer("The status.", {JSON: shapes.Facts})},
    ),
)
