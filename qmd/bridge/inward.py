"""Other end ──► queue: the messages and the position behind them are one commit.

The position is a message of the queue `private$\\bridge.NAME`.  Each batch is a transaction that
receives this message, sends those of the batch, and sends the next position: whatever is killed,
the queue has a message if and only if the position is behind it.  Two processes with one bridge
exclude each other, because only one of them can receive the position.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import structlog
from msgspec.structs import replace

from qmd.bridge.ends import Arrival, DoesNotFit, Position, Source
from qmd.client.errors import (
    BadName,
    BadRequest,
    NoSuchQueue,
    QueueExists,
    QueueManagerError,
    TooLarge,
    TransactionAborted,
    TransactionDoomed,
    WrongDelivery,
)
from qmd.client.new_message import new_message
from qmd.control_protocol.messages import TRANSACTIONAL, NewMessage

if TYPE_CHECKING:
    from qmd.client import QueueManager

log = structlog.get_logger()

WAIT_S = 2.0
ADMINISTRATORS = ("user:0", "user:root")  # may do everything anyway
VERSION = 1
LABEL_CHARACTERS_MAX = 200
#: Errors that the same message will always meet.
_LASTING = (BadRequest, BadName, WrongDelivery, TooLarge)


def position_queue(name: str) -> str:
    """Return the queue with the position of a bridge."""
    return f"private$\\bridge.{name}"


def refused_queue(name: str) -> str:
    """Return the queue for arrivals that cannot be messages, or that the daemon refuses."""
    return f"private$\\bridge.{name}.refused"


def _text(text: str) -> str:
    """Return a text that a message can have; ids and reasons may quote one that it cannot."""
    return text.encode("utf-8", "replace").decode()


def put_aside(name: str, arrival: Arrival) -> NewMessage:
    """Return the message for the queue of a bridge that has what cannot be a message."""
    reason = _text(arrival.reason)
    return new_message(
        refused_queue(name),
        arrival.raw,
        label=reason[:LABEL_CHARACTERS_MAX].replace("\0", " "),
        delivery="transactional",
        properties={"bridge": name, "id": _text(arrival.id), "reason": reason[:1000]},
    )


class Inward:
    """The loop of an inward bridge."""

    def __init__(self, name: str, queue: str, remote: str, batch: int, source: Source) -> None:
        self._name, self._queue, self._remote = name, queue, remote
        self._batch, self._source = batch, source
        self._record: bytes = b""
        self.messages = self.refused = 0
        self.guarantee = source.guarantee

    async def open(self, qm: QueueManager) -> None:
        """Read the position, and open the other end behind it.

        Raises DoesNotFit, Unreachable and ClientError.
        """
        await self._check_destination(qm)
        for queue in (position_queue(self._name), refused_queue(self._name)):
            await _create(qm, queue, f"bridge {self._name}")
        record = await self._read(qm)
        if record["remote"] != self._remote:
            raise DoesNotFit(
                f"the position in {position_queue(self._name)} belongs to {record['remote']!r}, and"
                f" the definition names {self._remote!r}; rename the bridge, or delete this queue"
                " to begin anew"
            )
        await self._source.open(record["position"])

    async def _check_destination(self, qm: QueueManager) -> None:
        try:
            shown = await qm.show_queue(self._queue)
        except NoSuchQueue:
            raise
        except (BadName, BadRequest, WrongDelivery):
            return  # a queue elsewhere: the daemon knows only that the message is transactional
        if not shown["transactional"]:
            raise DoesNotFit(
                f"the queue {shown['name']} is not transactional, so that a message and its"
                " position could not be one commit"
            )

    async def _read(self, qm: QueueManager) -> dict[str, Any]:
        queue = position_queue(self._name)
        shown = await qm.show_queue(queue)
        if not shown["messages"]:
            # Two processes may be here at the same time, and only one message may be the position.
            once = sha256(f"{queue} {shown['public_name']} {shown['created_at']}".encode())
            await qm.send_once(
                queue,
                self._next(None, 0, 0),
                deduplication_id=once.digest(),
                delivery="transactional",
            )
        found = await qm.peek(queue, limit=2)
        if len(found) != 1:
            raise DoesNotFit(
                f"{queue} has {len(found)} visible messages instead of one: another process runs"
                " this bridge, or something else uses its queue"
            )
        self._record = found[0].body
        try:
            record: dict[str, Any] = json.loads(self._record)
            if record["qmd_bridge"] != VERSION:
                raise ValueError
            self.messages, self.refused = int(record["messages"]), int(record["refused"])
        except (ValueError, KeyError, TypeError) as error:
            raise DoesNotFit(f"the message in {queue} is not a position of a bridge") from error
        return record

    def _next(self, position: Position, messages: int, refused: int) -> bytes:
        return json.dumps(
            {
                "qmd_bridge": VERSION,
                "name": self._name,
                "remote": self._remote,
                "position": position,
                "messages": messages,
                "refused": refused,
                "at": datetime.now(UTC).isoformat(timespec="seconds"),
            }
        ).encode()

    async def turn(self, qm: QueueManager) -> int:
        """Bring the next messages; return their number.

        Raises Unreachable, DoesNotFit and ClientError: then the bridge must be opened again.
        """
        arrivals = await self._source.fetch(self._batch, WAIT_S, self._queue)
        if not arrivals:
            return 0
        try:
            await self._commit(qm, arrivals)
        except (*_LASTING, TransactionDoomed) as error:
            if isinstance(error, TransactionDoomed) and not isinstance(error.__cause__, _LASTING):
                raise
            await self._one_by_one(qm, arrivals)
        await self._source.done()
        return len(arrivals)

    async def _one_by_one(self, qm: QueueManager, arrivals: Sequence[Arrival]) -> None:
        """Find the message that the daemon refuses, and put it aside."""
        for arrival in arrivals:
            try:
                await self._commit(qm, [arrival])
            except (*_LASTING, TransactionDoomed) as error:
                cause = error.__cause__ if isinstance(error, TransactionDoomed) else error
                if not isinstance(cause, _LASTING):
                    raise
                await self._commit(qm, [arrival._replace(message=None, reason=str(cause))])

    async def _commit(self, qm: QueueManager, arrivals: Sequence[Arrival]) -> None:
        """Send messages and the position behind them, in one transaction."""
        queue = position_queue(self._name)
        good = [each for each in arrivals if each.message is not None or not each.reason]
        bad = len(arrivals) - len(good)
        new = [message for each in arrivals if (message := self._message(each)) is not None]
        sent = sum(each.message is not None for each in arrivals)
        record = self._next(arrivals[-1].position, self.messages + sent, self.refused + bad)
        async with qm.transaction() as transaction:
            found = await transaction.receive(queue)
            if found is None or found.body != self._record:
                raise TransactionAborted(
                    f"the position in {queue} has changed: another process runs the bridge"
                    f" {self._name}, or something else uses this queue",
                    "run it once",
                )
            if new:
                await transaction.send_many(new)
            await transaction.send(queue, record, delivery="transactional")
        self._record = record
        self.messages += sent
        self.refused += bad

    def _message(self, arrival: Arrival) -> NewMessage | None:
        """Return the message to send; None for an arrival that is known already."""
        if arrival.message is not None:
            return _transactional(arrival.message)
        if not arrival.reason:
            return None
        log.warning("bridge_refused", bridge=self._name, id=arrival.id, reason=arrival.reason)
        return put_aside(self._name, arrival)

    async def close(self) -> None:
        await self._source.close()


def _transactional(message: NewMessage) -> NewMessage:
    return replace(message, delivery=TRANSACTIONAL)


async def _create(qm: QueueManager, queue: str, label: str) -> None:
    try:
        await qm.show_queue(queue)
    except NoSuchQueue:
        with contextlib.suppress(QueueExists):
            await qm.create_queue(queue, transactional=True, label=label)
    await _close(qm, queue)


async def _close(qm: QueueManager, queue: str) -> None:
    """Let nobody else send to a queue of the bridge.  Raises DoesNotFit for one of another user.

    By default everyone may send to a queue, hosts included: a second position would stop the
    bridge.  A user who had made the queue first could choose where the bridge begins.
    """
    shown = await qm.access.show(queue)
    own = await qm.access.test("", "receive", queue)
    if shown["owner"] not in (None, own["principal"], *ADMINISTRATORS):
        raise DoesNotFit(
            f"the queue {queue} belongs to {shown['owner']}, and this bridge runs as"
            f" {own['principal']}: what is in it cannot be trusted. Delete it, or take it over:"
            f" qmd acl owner '{queue}' {own['principal']}"
        )
    if shown["default"] is not None:
        try:
            await qm.access.revoke("everyone", "send", queue)
        except QueueManagerError as error:
            if error.code == "right_missing":
                log.warning("bridge_queue_is_open", queue=queue, reason=str(error))
            elif error.code != "no_such_entry":  # another process has just done it
                raise


async def known_position(qm: QueueManager, name: str) -> dict[str, Any]:
    """Return the position of a bridge, the counts since its beginning, and what was refused.

    Raises NoSuchQueue for one that has never run.
    """
    found = await qm.peek(position_queue(name))
    refused = (await qm.show_queue(refused_queue(name)))["messages"]
    try:
        record = json.loads(found[0].body)
        return {
            "position": record["position"],
            "messages": record["messages"],
            "refused": record["refused"],
            "waiting_refused": refused,
            "at": record["at"],
        }
    except (IndexError, ValueError, KeyError, TypeError):
        return {"waiting_refused": refused}
