"""Locks over HTTP: those of the daemon, with the place of one message in their ids.

The daemon keeps each lock and ends it, so that neither a killed door nor a lost connection ends one
early.  All messages of one request have one lock; the id that a client gets has the lock, the
queue and the message, so that any door settles it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import os
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from qmd.client.errors import (
    ClientError,
    LockLost,
    NotConnected,
    OutcomeUnknown,
    QueueManagerError,
    Stopping,
)
from qmd.client.message import Message
from qmd.control_protocol import locks as lock_frames
from qmd.control_protocol import messages as frames
from qmd.control_protocol.doors import StopWaiting
from qmd.doors.http.conversion import choice_of
from qmd.doors.http.problems import Problem

if TYPE_CHECKING:
    from typing import Any

    from qmd.client.connection import Connection
    from qmd.doors.http import shapes
    from qmd.doors.http.sessions import Session

LOCK_BYTES, LOOKUP_BYTES = 16, 8
ID_CHARACTERS_MAX = 4000
# A client that leaves while it waits cannot take back its request to the daemon: it ends soon.
SLICE_S = 5.0
ENDED = (lock_frames.REMOVE, lock_frames.REJECT)


class LockId(NamedTuple):
    """The place of one locked message: its lock, its lookup id and its queue."""

    lock: bytes
    lookup_id: int
    queue: str

    @property
    def text(self) -> str:
        """The id as clients see it."""
        data = self.lock + self.lookup_id.to_bytes(LOOKUP_BYTES, "big") + self.queue.encode()
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    @classmethod
    def parse(cls, text: str) -> LockId:
        """Return the place that an id of a client has.  Raises Problem."""
        if len(text) > ID_CHARACTERS_MAX or not text.isascii():
            raise _gone()
        try:
            data = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
            queue = data[LOCK_BYTES + LOOKUP_BYTES :].decode()
        except (binascii.Error, ValueError) as error:
            raise _gone() from error
        if not queue or "\0" in queue:
            raise _gone()
        number = int.from_bytes(data[LOCK_BYTES : LOCK_BYTES + LOOKUP_BYTES], "big")
        if number >= 1 << 63:
            raise _gone()
        return cls(data[:LOCK_BYTES], number, queue)

    def token(self, how: str) -> bytes:
        """Return the token of a settlement: the same one, however often a client repeats it."""
        return hashlib.sha256(f"http settle\0{how}\0{self.text}".encode()).digest()[:16]


class Locked(NamedTuple):
    """Messages under one lock, the first one first."""

    lock: bytes
    queue: str
    messages: list[Message]

    def id_of(self, message: Message) -> str:
        """Return the id with which a client settles one of the messages."""
        return LockId(self.lock, message.lookup_id, self.queue).text


async def lock(
    session: Session,
    queue: str,
    limit: int,
    wait_s: float,
    lock_s: float,
    choice: shapes.Choice | None = None,
    lock_id: bytes = b"",
) -> Locked:
    """Lock messages for some seconds; wait for the first at most `wait_s`.  Raises ClientError.

    With the id of a lock that exists, they are added to it, and it is renewed.  Cancelled, it gives
    back the messages that it has locked.
    """
    now = asyncio.get_running_loop().time
    until = now() + wait_s
    chosen = frames.EVERY_MESSAGE if choice is None else choice_of(choice)
    chosen_id = lock_id or os.urandom(LOCK_BYTES)
    while True:
        connection = await session.connection()
        left_s = max(0.0, until - now())
        part_s = min(SLICE_S, left_s)
        answer = connection.ask(
            lock_frames.TakeLocked, queue, chosen_id, lock_s, limit, part_s, chosen
        )
        try:
            stored = frames.stored_messages(await asyncio.shield(answer))
        except asyncio.CancelledError:
            answer.add_done_callback(partial(_give_back, connection, chosen_id, queue))
            with contextlib.suppress(ClientError):
                connection.ask(StopWaiting, queue, chosen_id).add_done_callback(_ignore)
            raise
        except (NotConnected, Stopping):
            if left_s <= 0 or lock_id:  # the other messages of a lock that exists stay
                raise
            await asyncio.sleep(min(0.2, left_s))
            await _give_back_unknown(session, chosen_id, queue)
            continue
        except QueueManagerError as error:
            if error.code == "too_many_locks":
                raise Problem(429, "http_too_many_locks", error.text) from error
            raise
        # The wait may have ended early, with that of a client that has left.
        if stored or now() >= until:
            return Locked(chosen_id, queue, [Message(each) for each in stored])


async def give_back(session: Session, locked: Locked) -> None:
    """Return the messages of a client that has left to their places; no attempt is counted."""
    with contextlib.suppress(ClientError):  # else the end of the lock returns them
        await session.ask(
            lock_frames.SettleLocked,
            locked.lock,
            locked.queue,
            [message.lookup_id for message in locked.messages],
            lock_frames.GIVE_BACK,
            "its client left",
        )


async def renew(session: Session, place: LockId, lock_s: float) -> None:
    """Let a lock end some seconds from now.  Raises Problem, ClientError."""
    try:
        await session.ask(lock_frames.RenewLock, place.lock, lock_s, [place.lookup_id])
    except QueueManagerError as error:
        raise _problem(error) from error


async def settle(session: Session, place: LockId, how: str, reason: str = "") -> None:
    """Settle one locked message; a repetition of a settlement that was done has no effect.

    Raises Problem if the lock has ended before; ClientError.
    """
    token = place.token(how) if how in ENDED else b""
    arguments = (place.lock, place.queue, [place.lookup_id], how, reason, token)
    try:
        # It is done only once even if it is requested twice: the lock has the message once.
        await session.ask(lock_frames.SettleLocked, *arguments)
    except QueueManagerError as error:
        if isinstance(error, LockLost) and token and await _was_done(session, token):
            return
        raise _problem(error) from error


async def _was_done(session: Session, token: bytes) -> bool:
    try:
        return await session.caller.outcome(token) is not None
    except OutcomeUnknown as error:
        raise NotConnected(error.text, error.remedy, code=error.code) from error


async def _give_back_unknown(session: Session, lock_id: bytes, queue: str) -> None:
    """Give back all messages of a lock of which the answer was lost."""
    why = "its client did not get the answer"
    with contextlib.suppress(ClientError):  # most often it has none
        await session.ask(lock_frames.SettleLocked, lock_id, queue, [], lock_frames.GIVE_BACK, why)


def _give_back(
    connection: Connection, lock_id: bytes, queue: str, answer: asyncio.Future[Any]
) -> None:
    """Give back the messages of a request after its caller stopped waiting."""
    if answer.cancelled() or answer.exception() is not None or connection.is_lost:
        return
    if stored := frames.stored_messages(answer.result()):
        ids = [each.lookup_id for each in stored]
        done = connection.ask(
            lock_frames.SettleLocked, lock_id, queue, ids, lock_frames.GIVE_BACK, "its client left"
        )
        done.add_done_callback(_ignore)  # else the end of the lock returns them


def _ignore(answer: asyncio.Future[Any]) -> None:
    if not answer.cancelled():
        answer.exception()


def _problem(error: QueueManagerError) -> Exception:
    """Return the problem of a lock that has ended; other errors as they are."""
    if isinstance(error, LockLost) or error.code in ("not_taken", "no_such_queue"):
        return Problem(410, "http_no_such_lock", error.text)
    return error


def _gone() -> Problem:
    return Problem(410, "http_no_such_lock")
