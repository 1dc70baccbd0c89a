"""Operations on the history of messages, events as a stream, and the health of the door."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from qmd.client.errors import ClientError
from qmd.control_protocol import operations as operator_frames
from qmd.doors.http import shapes
from qmd.doors.http.declarations import Answer, Call, Operation
from qmd.doors.http.exchange import JSON, Response, encode_json, of_json
from qmd.doors.http.problems import problem_response

EVENT_STREAM = "text/event-stream"
STREAM_WAIT_S = 15.0  # without an event, a comment keeps the connection open
STREAM_EVENTS_MAX = 256  # of one page


async def _why(call: Call) -> Response:
    query = call.query
    fate = await call.session.qm.why(call.path["message"], queue=query.queue, ask=query.ask)
    return of_json(fate)


async def _trace(call: Call) -> Response:
    query = call.query
    events = await call.session.qm.trace(call.path["message"], queue=query.queue, ask=query.ask)
    return of_json(shapes.Trace(events=events))


async def _events(call: Call) -> Response:
    query = call.query
    if EVENT_STREAM in call.request.headers.get("accept", ""):
        call.request.is_waiting = True
        cursor = call.headers.last_event_id or query.cursor
        # The first page before the response: an error gets its own status.
        page = await _page(call, cursor, query.last if not cursor else 0, 0.0)
        return Response(200, media_type=EVENT_STREAM, stream=_stream(call, page))
    call.request.is_waiting = query.wait_s > 0
    page = await _page(call, query.cursor, query.last, query.wait_s, query.limit)
    answer = {"events": page["events"], "cursor": page["cursor"], "end": page["end"]}
    return of_json(answer)


async def _page(
    call: Call, cursor: str, last: int, wait_s: float, limit: int = STREAM_EVENTS_MAX
) -> dict[str, Any]:
    query = call.query
    page: dict[str, Any] = await call.session.ask(
        operator_frames.Events, cursor, limit, last, query.queue, query.kinds, 0, 0, wait_s
    )
    return page


async def _stream(call: Call, page: dict[str, Any]) -> AsyncIterator[bytes]:
    """Yield events; the id of each is the cursor with which the stream goes on after it."""
    yield b"retry: 2000\n\n"
    while True:
        # A cursor is that of the first event that follows.
        following = [*(event["cursor"] for event in page["events"][1:]), page["cursor"]]
        for event, cursor in zip(page["events"], following, strict=False):
            kind = str(event.get("kind", "event"))
            yield (f"id: {cursor}\nevent: {kind}\ndata: ".encode() + encode_json(event) + b"\n\n")
        if not page["events"]:
            yield f"id: {page['cursor']}\n: waiting\n\n".encode()
        try:
            page = await _page(call, page["cursor"], 0, STREAM_WAIT_S)
        except ClientError as error:
            # The client connects again with the id of the last event.
            yield b"event: problem\ndata: " + encode_json({"code": error.code}) + b"\n\n"
            return


async def _healthy(call: Call) -> Response:
    return of_json(shapes.Health(status="ok"))


_TAG = "History"
_EVENTS = {JSON: shapes.EventPage, EVENT_STREAM: str}

OPERATIONS = (
    Operation(
        "GET",
        "/v1/messages/{message}/why",
        "explainMessage",
        _TAG,
        "Explain where a message is and what happened to it",
        _why,
        {200: Answer("What is known about the message.", {JSON: shapes.Fate})},
        query=shapes.WhyQuery,
    ),
    Operation(
        "GET",
        "/v1/messages/{message}/trace",
        "traceMessage",
        _TAG,
        "List the events of a message, here and at the other end",
        _trace,
        {200: Answer("The events.", {JSON: shapes.Trace})},
        query=shapes.WhyQuery,
    ),
    Operation(
        "GET",
        "/v1/events",
        "readEvents",
        _TAG,
        "Read the history of all messages, as a page or as a stream",
        _events,
        {200: Answer("Events.", _EVENTS)},
        query=shapes.EventsQuery,
        headers=shapes.EventHeaders,
        text="""With `Accept: text/event-stream` the events are sent as they happen.  The id of each
is its cursor: a client that connects again sends it as `Last-Event-ID`, and misses no event.""",
    ),
    Operation(
        "GET",
        "/healthz",
        "checkHealth",
        "Status",
        "Check that this door answers",
        _healthy,
        {200: Answer("It does.", {JSON: shapes.Health})},
        is_open=True,
    ),
)


Ready = Callable[[], Awaitable[str]]  # returns the GUID of the queue manager


def readiness(ready: Ready) -> Operation:
    """Return the operation that checks the daemon; `ready()` asks it."""

    async def check(call: Call) -> Response:
        try:
            return of_json(shapes.Health(status="ok", queue_manager=await ready()))
        except ClientError as error:
            headers = (("retry-after", "1"),)
            return problem_response(503, error.code, error.text, headers, remedy=error.remedy)

    return Operation(
        "GET",
        "/readyz",
        "checkReadiness",
        "Status",
        "Check that the daemon answers",
        check,
        {200: Answer("It does.", {JSON: shapes.Health}), 503: Answer("It does not.")},
        is_open=True,
    )
