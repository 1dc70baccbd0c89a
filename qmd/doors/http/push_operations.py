"""Operations on pushes.  They are for administrators: a push has the rights of the door."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec import Struct, structs

from qmd.control_protocol.access import ExportAccess
from qmd.doors.http.declarations import Answer, Call, Operation
from qmd.doors.http.exchange import JSON, Response, of_json
from qmd.doors.http.problems import Problem
from qmd.doors.http.pushes import Push, PushError, PushFile, StoredPush

_STATUS = {"push_exists": 409, "no_such_push": 404, "push_not_valid": 400, "push_file": 503}
_TAG = "Push"
Handler = Callable[[Call], Awaitable[Response]]


class NewPush(Push, kw_only=True):
    """A push that was created; its secret is shown once."""

    secret: str


class Pushes(Struct, kw_only=True):
    """All pushes."""

    pushes: list[Push]


def operations(file: PushFile, changed: Callable[[], None]) -> tuple[Operation, ...]:
    """Return the operations on the pushes of a file; `changed()` is called after a change."""

    async def show(call: Call) -> Response:
        await _require_administrator(call)
        return of_json(Pushes(pushes=list(map(_shown, file.read().values()))))

    async def create(call: Call) -> Response:
        await _require_administrator(call)
        made = await asyncio.to_thread(file.create, call.body)
        changed()
        return of_json(NewPush(**structs.asdict(made)), 201)

    async def delete(call: Call) -> Response:
        await _require_administrator(call)
        await asyncio.to_thread(file.delete, call.path["name"])
        changed()
        return Response(204)

    async def pause(call: Call) -> Response:
        await _require_administrator(call)
        await asyncio.to_thread(file.pause, call.path["name"], paused=True)
        changed()
        return Response(204)

    async def resume(call: Call) -> Response:
        await _require_administrator(call)
        await asyncio.to_thread(file.pause, call.path["name"], paused=False)
        changed()
        return Response(204)

    listed = Operation(
        "GET",
        "/v1/pushes",
        "listPushes",
        _TAG,
        "List the queues that are delivered to URLs",
        _checked(show),
        {200: Answer("The pushes.", {JSON: Pushes})},
    )
    made = Operation(
        "POST",
        "/v1/pushes",
        "createPush",
        _TAG,
        "Deliver a queue to a URL",
        _checked(create),
        {201: Answer("It has begun.", {JSON: NewPush})},
        bodies={JSON: Push},
    )
    return (
        listed,
        made,
        _change("DELETE", "", "deletePush", "End a push", delete),
        _change("POST", "/pause", "pausePush", "Pause a push", pause),
        _change("POST", "/resume", "resumePush", "Resume a push", resume),
    )


def _change(method: str, tail: str, name: str, summary: str, handler: Handler) -> Operation:
    done = {204: Answer("Done; it is on disk.")}
    path = f"/v1/pushes/{{name}}{tail}"
    return Operation(method, path, name, _TAG, summary, _checked(handler), done)


async def _require_administrator(call: Call) -> None:
    """Raise AccessDenied unless the client may administer all rights: only such a client may."""
    await call.session.ask(ExportAccess)


def _shown(push: StoredPush) -> Push:
    fields = structs.asdict(push)
    del fields["secret"]
    return Push(**fields)


def _checked(handler: Handler) -> Handler:
    async def checked(call: Call) -> Response:
        try:
            return await handler(call)
        except PushError as error:
            raise Problem(_STATUS[error.code], error.code, str(error)) from error

    return checked
