"""Operations that send messages."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from qmd.control_protocol import messages as frames
from qmd.control_protocol.once import SendOnce
from qmd.doors.http import cloud_events, shapes
from qmd.doors.http.conversion import sent, to_send, with_properties
from qmd.doors.http.declarations import RAW, Answer, Call, Operation
from qmd.doors.http.exchange import JSON, Response, of_json
from qmd.doors.http.trace_context import traced

PROOF_BYTES = 32
CONTENT_TYPE_CHARACTERS_MAX = 1000


async def send(call: Call) -> Response:
    """Send the body of a request, in one of its forms, to one destination."""
    destination, request = call.path["queue"], call.request
    media = request.media_type
    if media == cloud_events.STRUCTURED:  # also with attributes in headers
        event = msgspec.json.decode(request.body)  # with its extension attributes
        new = cloud_events.from_structured(destination, event, call.query)
    elif media == cloud_events.BATCH:
        return await _send_events(call, destination)
    elif cloud_events.BINARY in request.headers:
        new = cloud_events.from_binary(destination, request.headers, request.body, call.query)
    elif media == JSON:
        new = to_send(destination, call.body)
    else:
        new = with_properties(
            destination,
            call.body,
            call.query,
            content_type=request.headers.get("content-type", "")[:CONTENT_TYPE_CHARACTERS_MAX],
        )
    (one,) = await _sent(call, [new])
    return of_json(one, 201)


async def _send_events(call: Call, destination: str) -> Response:
    new = [cloud_events.from_structured(destination, each, call.query) for each in call.body]
    if not new:
        return of_json(shapes.SentMessages(messages=[]), 201)
    return of_json(shapes.SentMessages(messages=await _sent(call, new)), 201)


async def _send_many(call: Call) -> Response:
    new = [to_send(each.destination, each) for each in call.body.messages]
    return of_json(shapes.SentMessages(messages=await _sent(call, new)), 201)


async def _sent(call: Call, new: Sequence[frames.NewMessage]) -> list[shapes.Sent]:
    """Send the messages together; with an idempotency key once, however often it is tried."""
    session, key = call.session, call.headers.idempotency_key
    new = [traced(each, call.request.headers) for each in new]
    for each in new:
        session.caller.check_body(each.body)
    if key is None:
        ids: list[Any] = await session.change(frames.Send, list(new))
    else:
        token, fingerprint = _once(call, key)
        # It is done only once even if it is requested twice: it may be repeated like a query.
        ids = await session.ask(SendOnce, list(new), token, fingerprint)
    return sent(ids)


def _once(call: Call, key: str) -> tuple[bytes, bytes]:
    """Return the token of a key, and the digest of the request that it belongs to.

    The daemon marks the token of a client with its name: no client can use the keys of another.
    """
    request = call.request
    token = hashlib.sha256(f"http key\0{call.session.caller.token_name}\0{key}".encode()).digest()
    digest = hashlib.sha256()
    parts = [request.method, *request.segments, request.query, request.headers.get("content-type")]
    parts += sorted(
        f"{name}:{value}" for name, value in request.headers.items() if name.startswith("ce-")
    )
    for part in parts:
        digest.update((part or "").encode() + b"\0")
    digest.update(request.body)
    return token, digest.digest()[:PROOF_BYTES]


_FORMS = """A body of `application/json` has the body and the properties of the message; a body
of any other type is the body of the message itself, and the query has its properties.  A request
with the header `ce-specversion` is a CloudEvent in binary mode.
"""
_KEY = """
With the header `Idempotency-Key`, the request is executed once, however often it is tried, also
after a crash of the client, of this door or of the daemon: each further try gets the first answer.
Another request under the same key gets the status 422."""


def sender_of(
    path: str, name: str, summary: str, handler: Callable[[Call], Awaitable[Response]], text: str
) -> Operation:
    """Return an operation that sends the body of its request, in one of its forms."""
    return Operation(
        *("POST", path, name, "Sending", summary, handler),
        {
            201: Answer(
                "The message is on disk (express: it is accepted). A batch of CloudEvents has an"
                " answer for each.",
                {JSON: (shapes.Sent, shapes.SentMessages)},
            )
        },
        query=shapes.SendQuery,
        headers=shapes.IdempotencyHeaders,
        bodies={
            JSON: shapes.NewMessage,
            cloud_events.STRUCTURED: cloud_events.Event,
            cloud_events.BATCH: cloud_events.Events,
            "*/*": RAW,
        },
        raw_header=cloud_events.BINARY,
        text=text + _FORMS + _KEY,
    )


OPERATIONS = (
    sender_of("/v1/queues/{queue}/messages", "sendMessage", "Send a message", send, ""),
    Operation(
        "POST",
        "/v1/messages",
        "sendMessages",
        "Sending",
        "Send messages to any queues, all of them or none",
        _send_many,
        {201: Answer("All messages are on disk.", {JSON: shapes.SentMessages})},
        headers=shapes.IdempotencyHeaders,
        bodies={JSON: shapes.NewMessages},
        text=_KEY,
    ),
)
