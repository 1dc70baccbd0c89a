"""Operations that receive, lock, settle and peek messages."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from qmd.client.connection import Connection
from qmd.client.errors import ClientError, NotConnected, Stopping
from qmd.client.message import Message
from qmd.client.receiver import Taken
from qmd.control_protocol import messages as frames
from qmd.control_protocol.doors import StopWaiting
from qmd.control_protocol.locks import FAIL, GIVE_BACK, REJECT, REMOVE
from qmd.doors.http import cloud_events, shapes
from qmd.doors.http.conversion import choice_of, shown, shown_locked, time_text
from qmd.doors.http.declarations import RAW, Answer, Call, Operation
from qmd.doors.http.exchange import JSON, Response, encode_json, of_json
from qmd.doors.http.locks import SLICE_S, LockId, give_back, lock, renew, settle
from qmd.doors.http.problems import Problem
from qmd.doors.http.sessions import Session

EVENTS = "application/cloudevents-batch+json"


async def take(
    session: Session, queue: str, limit: int, wait_s: float, choice: shapes.Choice | None = None
) -> Taken:
    """Take messages; wait for the first at most `wait_s`.  Raises ClientError.

    Cancelled, it gives back what it has taken.
    """
    now = asyncio.get_running_loop().time
    until = now() + wait_s
    chosen = None if choice is None else choice_of(choice)
    while True:
        connection = await session.connection()
        left_s = max(0.0, until - now())
        part_s = min(SLICE_S, left_s)
        if chosen is None:
            answer = connection.ask(frames.Take, queue, limit, part_s)
        else:
            answer = connection.ask(frames.TakeChosen, queue, chosen, limit, part_s)
        try:
            stored = frames.stored_messages(await asyncio.shield(answer))
        except asyncio.CancelledError:
            answer.add_done_callback(partial(_give_back, connection, queue))
            _stop_waiting(connection, queue)
            raise
        except (NotConnected, Stopping):
            if left_s <= 0:
                raise
            await asyncio.sleep(min(0.2, left_s))
            continue
        # The wait may have ended early, with that of a client that has left.
        if stored or now() >= until:
            return Taken(session.caller, connection, queue, [Message(each) for each in stored])


def _stop_waiting(connection: Connection, queue: str) -> None:
    """End the waiting requests of a connection, so that none takes a message for no client."""
    with contextlib.suppress(ClientError):
        connection.ask(StopWaiting, queue).add_done_callback(_ignore)


def _ignore(answer: asyncio.Future[Any]) -> None:
    if not answer.cancelled():
        answer.exception()


def _give_back(connection: Connection, queue: str, answer: asyncio.Future[Any]) -> None:
    """Give back the messages of a request after its caller stopped waiting."""
    if answer.cancelled() or answer.exception() is not None or connection.is_lost:
        return
    if stored := frames.stored_messages(answer.result()):
        done = connection.ask(frames.GiveBack, queue, [each.lookup_id for each in stored])
        done.add_done_callback(asyncio.Future.exception)  # a lost connection gives them back too


async def _receive(call: Call) -> Response:
    given, request = call.body, call.request
    request.is_waiting = True
    taken = await take(call.session, call.path["queue"], given.limit, given.wait_s, given.choice)
    request.is_waiting = False
    if request.has_left:
        await taken.give_back()
    elif taken:
        await taken.remove()
    return _shown(call, list(taken.messages))


def _shown(call: Call, messages: list[Message]) -> Response:
    accept = call.request.headers.get("accept", "")
    if EVENTS in accept:
        return Response(200, encode_json([cloud_events.to_structured(m) for m in messages]), EVENTS)
    return of_json(shapes.Messages(messages=list(map(shown, messages))))


async def _lock(call: Call) -> Response:
    given, request, session = call.body, call.request, call.session
    queue, lock_id = call.path["queue"], b""
    if given.lock_id:
        place = LockId.parse(given.lock_id)
        if place.queue != queue:
            raise Problem(410, "http_no_such_lock", f"it is a lock of {place.queue}")
        lock_id = place.lock
    request.is_waiting = True
    locked = await lock(
        session, queue, given.limit, given.wait_s, given.lock_s, given.choice, lock_id
    )
    request.is_waiting = False
    if request.has_left:
        if locked.messages:
            await give_back(session, locked)
        return of_json(shapes.LockedMessages(messages=[]), 200)
    until = datetime.now(UTC) + timedelta(seconds=given.lock_s)
    found = [shown_locked(each, locked.id_of(each), until) for each in locked.messages]
    return of_json(shapes.LockedMessages(messages=found), 200)


async def _renew(call: Call) -> Response:
    lock_id, lock_s = call.path["lock"], call.body.lock_s
    await renew(call.session, LockId.parse(lock_id), lock_s)
    until = datetime.now(UTC) + timedelta(seconds=lock_s)
    return of_json(shapes.Renewed(lock_id=lock_id, locked_until=time_text(until)))


async def _remove(call: Call) -> Response:
    return await _settled(call, REMOVE)


async def _give(call: Call) -> Response:
    how = FAIL if call.body.failed else GIVE_BACK
    return await _settled(call, how, call.body.reason)


async def _reject(call: Call) -> Response:
    return await _settled(call, REJECT, call.body.reason)


async def _settled(call: Call, how: str, reason: str = "") -> Response:
    await settle(call.session, LockId.parse(call.path["lock"]), how, reason)
    return Response(204)


async def _peek(call: Call) -> Response:
    query, request = call.query, call.request
    request.is_waiting = query.wait_s > 0
    wait_s = min(query.wait_s, SLICE_S)
    stored = await call.session.ask(
        frames.Peek, call.path["queue"], query.start, query.limit, wait_s
    )
    messages = [Message(each) for each in frames.stored_messages(stored)]
    following = messages[-1].lookup_id + 1 if len(messages) >= query.limit else None
    return of_json(shapes.Page(messages=list(map(shown, messages)), next=following))


async def _named(call: Call) -> Message:
    """Return the message with the lookup id of the path.  Raises Problem, ClientError."""
    text = call.path["lookup_id"]
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise Problem(400, "http_bad_parameter", "a lookup id is a number")
    stored = await call.session.ask(frames.Look, call.path["queue"], "this", int(text))
    found = frames.stored_messages(stored)
    if not found:
        raise Problem(404, "no_such_message", f"no message {text} is in {call.path['queue']}")
    return Message(found[0])


async def _look(call: Call) -> Response:
    message = await _named(call)
    if "application/cloudevents+json" in call.request.headers.get("accept", ""):
        event = cloud_events.to_structured(message)
        return Response(200, encode_json(event), cloud_events.STRUCTURED)
    return of_json(shown(message))


async def _body(call: Call) -> Response:
    message = await _named(call)
    headers, media = cloud_events.to_binary(message)
    # A browser must not show a message as a page of this server.
    return Response(200, message.body, media, (*headers, ("content-disposition", "attachment")))


_LOCK_GONE = {204: Answer("Done; it is on disk.")}
_RECEIVED = Answer(
    "The messages; none, if none came in time.",
    {JSON: shapes.Messages, EVENTS: cloud_events.Events},
)

OPERATIONS = (
    Operation(
        "POST",
        "/v1/queues/{queue}/receive",
        "receiveMessages",
        "Receiving",
        "Receive messages: they leave the queue",
        _receive,
        {200: _RECEIVED},
        bodies={JSON: shapes.ReceiveRequest},
        body_is_optional=True,
        text="""The messages are removed, durably, before the answer leaves: an answer that is lost
on its way loses them.  Lock them instead where that matters.""",
    ),
    Operation(
        "POST",
        "/v1/queues/{queue}/locks",
        "lockMessages",
        "Receiving",
        "Lock messages, to settle them later",
        _lock,
        {200: Answer("The locked messages; none, if none came.", {JSON: shapes.LockedMessages})},
        bodies={JSON: shapes.LockRequest},
        body_is_optional=True,
        text="""Other receivers do not see a locked message.  It returns to its place when the lock
ends without being settled, which counts as an attempt, and when the daemon ends.  The messages of
one request have one lock: a renewal of one of them renews it for all.""",
    ),
    Operation(
        "POST",
        "/v1/locks/{lock}/renew",
        "renewLock",
        "Receiving",
        "Let a lock last longer",
        _renew,
        {200: Answer("The lock lasts longer.", {JSON: shapes.Renewed})},
        bodies={JSON: shapes.RenewRequest},
        body_is_optional=True,
    ),
    Operation(
        "DELETE",
        "/v1/locks/{lock}",
        "removeMessage",
        "Receiving",
        "Remove a locked message: it was processed",
        _remove,
        _LOCK_GONE,
        text="A repetition of a removal that was done gets the same answer.",
    ),
    Operation(
        "POST",
        "/v1/locks/{lock}/give-back",
        "giveBackMessage",
        "Receiving",
        "Return a locked message to its place",
        _give,
        _LOCK_GONE,
        bodies={JSON: shapes.GiveBackRequest},
        body_is_optional=True,
        text="With `failed`, it counts as an attempt, and the retry policy of the queue applies.",
    ),
    Operation(
        "POST",
        "/v1/locks/{lock}/reject",
        "rejectMessage",
        "Receiving",
        "Reject a locked message: it becomes a dead letter",
        _reject,
        _LOCK_GONE,
        bodies={JSON: shapes.RejectRequest},
        body_is_optional=True,
    ),
    Operation(
        "GET",
        "/v1/queues/{queue}/messages",
        "peekMessages",
        "Receiving",
        "Peek at the messages of a queue, page by page",
        _peek,
        {200: Answer("A page.", {JSON: shapes.Page})},
        query=shapes.PageQuery,
    ),
    Operation(
        "GET",
        "/v1/queues/{queue}/messages/{lookup_id}",
        "peekMessage",
        "Receiving",
        "Look at one message",
        _look,
        {200: Answer("The message.", {JSON: shapes.Message, cloud_events.STRUCTURED: Any})},
    ),
    Operation(
        "GET",
        "/v1/queues/{queue}/messages/{lookup_id}/body",
        "peekBody",
        "Receiving",
        "Look at the body of one message, as a CloudEvent in binary mode",
        _body,
        {200: Answer("The body.", {"*/*": RAW})},
    ),
)
