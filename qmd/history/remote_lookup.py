r"""What other queue managers know of a message: asking them, and answering those who ask.

A question is an express message to `private$\qmd_history$` of the other queue manager, handed to
its session without an outgoing queue; so is the answer, whose correlation id is the question's id.
That name stands for no queue: nothing of it is kept, nobody can read it, and nothing can fill it.
A queue manager that does not know it refuses the question without a word, and is left alone for a
while.

Who asks is told of the messages that it sent here or got from here, and of no others; whatever
comes is bounded, in size and by the second, and worth no more than a line of the log.
"""

from __future__ import annotations

import asyncio
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import structlog

from protocol import DirectQueueName, UserMessage
from protocol.errors import ProtocolError
from protocol.identifiers import correlation_bytes, guid_text
from protocol.names.direct_name import parse_wire_name, queue_key
from protocol.names.format_name import parse_destination
from qmd.control_protocol.messages import EXPRESS, NewMessage
from qmd.core.internal_names import HISTORY_QUEUE
from qmd.message.build import NO_ADDRESS, compose, queue_address
from storage.errors import StorageError

if TYPE_CHECKING:
    from qmd.history.message_lookup import MessageLookup
    from qmd.peers.sessions import Peers
    from qmd.queues.peer_session import PeerSession
    from qmd.queues.way import Way
    from qmd.runtime.services import Services

log = structlog.get_logger()

VERSION = 1
WAIT_S = 2.0  # for a session and the answer together
# On the wire only; long, because the clocks of two computers may differ.
TIME_TO_REACH_QUEUE_S = 300
QUIET_S = 300.0  # for which one that did not answer is not asked again
QUIET_SHORT_S = 5.0  # likewise, one that has answered before: it may have been busy
QUIET_ENTRIES_MAX = 1000
QUESTIONS_MAX = 64  # of ours that wait for their answer
ANSWERS_PER_S = 10  # that we give, to all who ask
ANSWERS_AT_ONCE = 2
QUESTION_BYTES_MAX = 256
ANSWER_BYTES_MAX = 64 * 1024
EVENTS_MAX = 200  # in an answer
CHARACTERS_MAX = 1000  # of a sentence

Value = dict[str, Any]
Line = Annotated[str, msgspec.Meta(max_length=CHARACTERS_MAX)]
Word = Annotated[str, msgspec.Meta(max_length=512)]


class Question(msgspec.Struct, array_like=True, tag="why", frozen=True):
    version: int
    source: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    number: Annotated[int, msgspec.Meta(ge=0, le=0xFFFFFFFF)]


class ToldEvent(msgspec.Struct, array_like=True, frozen=True):
    """An event as docs/events.md has it, of the message that was asked about."""

    cursor: Word
    at_ms: Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799_999)]
    kind: Word
    queue: Word
    peer: Word
    lookup_id: int | None
    sequence_id: int | None
    sequence_number: int | None
    message_class: Word | None
    delivery: Word
    bytes: int
    reason: Line
    to_queue: Word
    transaction: Word
    label: Word = ""
    correlation_id: Word = ""


class Answer(msgspec.Struct, array_like=True, tag="told", frozen=True):
    version: int
    host: Word
    state: Word
    sentences: Annotated[list[Line], msgspec.Meta(max_length=64)]
    remedies: Annotated[list[Line], msgspec.Meta(max_length=16)]
    events: Annotated[list[ToldEvent], msgspec.Meta(max_length=EVENTS_MAX)]
    events_left_out: bool


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Question | Answer] = msgspec.msgpack.Decoder(Question | Answer)


class RemoteLookup:
    """Our questions, and the answers to those of others."""

    def __init__(self, services: Services, peers: Peers) -> None:
        self._services = services
        self._peers = peers
        # By the id of the question: whom it was for, and who waits.
        self._open: dict[bytes, tuple[bytes, asyncio.Future[Answer]]] = {}
        self._quiet_until: dict[bytes, float] = {}
        self._has_answered: dict[bytes, None] = {}
        self._session_watchers: set[asyncio.Future[None]] = set()
        self._answering: set[asyncio.Task[None]] = set()
        self._allowance = float(ANSWERS_PER_S)
        self._allowance_at = services.loop.time()
        self.asked_count = 0
        self.answered_count = 0

    def connect(self, message_lookup: MessageLookup) -> None:
        """Name the collaborators that are made after it."""
        self._message_lookup = message_lookup

    # We ask.

    async def ask(self, link: Way | None, guid: bytes | None, source: bytes, number: int) -> Value:
        """What the queue manager behind `link`, or with that GUID, tells of a message.

        Takes no longer than WAIT_S.  `answered` says whether it told anything; if not,
        `explanation` says why.
        """
        name = link.name if link is not None else guid_text(guid or bytes(16))
        if not self._services.settings.events.ask:
            return _unanswered(name, f"{name} was not asked, as [events] ask says.")
        deadline = self._services.loop.time() + WAIT_S
        connection = await self._session(link, guid, deadline)
        if connection is None:
            return _unanswered(name, f"{name} cannot be asked: no session with it is open.")
        assert connection.session is not None
        remote = connection.session.remote_id
        assert remote is not None
        address = f"{connection.host}:{connection.port}"
        now = self._services.loop.time()
        if self._quiet_until.get(remote, 0.0) > now:
            return _unanswered(
                address,
                f"{address} did not answer a moment ago, and is left alone for"
                f" {self._quiet_until[remote] - now:.0f} s.",
                remote,
            )
        if len(self._open) >= QUESTIONS_MAX:
            return _unanswered(address, "too many questions are under way already.", remote)
        question_number = self._services.ids.next_message_number()
        question_id = correlation_bytes(self._services.id, question_number)
        answer: asyncio.Future[Answer] = self._services.loop.create_future()
        self._open[question_id] = remote, answer
        try:
            self._send(
                connection, _encoder.encode(Question(VERSION, source, number)), question_number
            )
            self.asked_count += 1
            async with asyncio.timeout_at(deadline):
                told = await answer
        except TimeoutError:
            self._leave_alone(remote)
            return _unanswered(
                address,
                f"{address} did not answer: it is no qmd, or its [events] answer does not have"
                " this computer.",
                remote,
            )
        finally:
            del self._open[question_id]
        self._has_answered[remote] = None
        return {
            "address": address,
            "queue_manager": guid_text(remote),
            "answered": True,
            "explanation": "",
            **facts_of(told, remote, source, number),
        }

    def sessions_changed(self) -> None:
        """One has opened, or will not: somebody may have waited for it."""
        for watcher in self._session_watchers:
            if not watcher.done():
                watcher.set_result(None)

    # What arrives.

    def is_meant(self, message: UserMessage) -> bool:
        """Whether a message is addressed to `HISTORY_QUEUE`."""
        destination = message.user.destination_queue
        if message.transaction is not None or not isinstance(destination, DirectQueueName):
            return False
        try:
            return queue_key(parse_wire_name(destination.name)) == HISTORY_QUEUE
        except ProtocolError:
            return False

    def received(self, connection: PeerSession, message: UserMessage) -> None:
        """A question or an answer, or anything: who sent it is not known to mean well."""
        heard = understood(message.properties.body)
        if heard is None:
            self._services.log_limited(
                "question_not_understood", connection.host, address=connection.host
            )
            return
        if isinstance(heard, Answer):
            remote, waiting = self._open.get(bytes(message.properties.correlation_id), (None, None))
            if waiting is not None and not waiting.done() and _remote_id(connection) == remote:
                waiting.set_result(heard)
            return
        if not self._may_ask(connection):
            return
        asked_as = correlation_bytes(message.user.source_queue_manager, message.user.message_number)
        task = self._services.loop.create_task(self._answer(connection, asked_as, heard))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    def stop(self) -> None:
        for task in self._answering:
            task.cancel()

    # Within.

    async def _session(
        self, link: Way | None, guid: bytes | None, deadline: float
    ) -> PeerSession | None:
        """A session that is open, or comes within the time; dialled where that is possible."""
        peers, loop = self._peers, self._services.loop

        def there_is() -> PeerSession | None:
            if guid is not None and (found := peers.connection_to(guid)) is not None:
                return found
            return None if link is None else link.connection

        ways = (
            [link] if link is not None else [each for each in peers.links if each.remote_id == guid]
        )
        while (connection := there_is()) is None:
            if not any(each.may_dial for each in ways):
                return None
            watcher: asyncio.Future[None] = loop.create_future()
            self._session_watchers.add(watcher)
            for each in ways:
                each.connect()
            try:
                async with asyncio.timeout_at(deadline):
                    await watcher
            except TimeoutError:
                return None
            finally:
                self._session_watchers.discard(watcher)
        return connection

    def _leave_alone(self, remote: bytes) -> None:
        for kept in (self._quiet_until, self._has_answered):
            if len(kept) >= QUIET_ENTRIES_MAX:
                kept.clear()
        quiet_s = QUIET_SHORT_S if remote in self._has_answered else QUIET_S
        self._quiet_until[remote] = self._services.loop.time() + quiet_s

    def _may_ask(self, connection: PeerSession) -> bool:
        """Whether the question is answered; those over the limits are passed over in silence."""
        try:
            address = ip_address(connection.host.partition("%")[0])
        except ValueError:
            return False
        if not any(address in network for network in self._services.settings.events.answer):
            self._services.log_limited(
                "question_not_answered",
                connection.host,
                address=connection.host,
                reason="it is not among [events] answer",
            )
            return False
        now = self._services.loop.time()
        self._allowance = min(
            float(ANSWERS_PER_S), self._allowance + (now - self._allowance_at) * ANSWERS_PER_S
        )
        self._allowance_at = now
        if self._allowance < 1 or len(self._answering) >= ANSWERS_AT_ONCE:
            self._services.log_limited(
                "question_not_answered",
                connection.host,
                address=connection.host,
                reason="too many questions",
            )
            return False
        self._allowance -= 1
        return True

    async def _answer(self, connection: PeerSession, asked_as: bytes, heard: Question) -> None:
        asker = _remote_id(connection)
        try:
            finding = await self._message_lookup.find(heard.source, heard.number, thorough=False)
            account = self._message_lookup.account(heard.source, heard.number, finding)
        except StorageError:
            return  # the storage failed, and the daemon stops
        except Exception as bug:
            self._services.lifecycle.fail(bug)
            return
        if asker is None or not _concerns(asker, heard.source, account):
            account = {**account, **_NOT_TOLD}
        body = _encoded(account)
        number = self._services.ids.next_message_number()
        self._send(connection, body, number, correlation_id=asked_as)
        self.answered_count += 1

    def _send(
        self, connection: PeerSession, body: bytes, number: int, *, correlation_id: bytes = b""
    ) -> None:
        """An express message over this very session: it goes now, or never."""
        host = connection.host
        name = parse_destination(f"DIRECT=TCP:{host}\\{HISTORY_QUEUE}", local_host=".")
        new = NewMessage(
            "",
            body,
            label="qmd history",
            delivery=EXPRESS,
            time_to_reach_queue_s=TIME_TO_REACH_QUEUE_S,
            time_to_be_received_s=TIME_TO_REACH_QUEUE_S,
            dead_letter=False,
            correlation_id=correlation_id,
        )
        packet = compose(
            new,
            source=self._services.id,
            destination=queue_address(name),
            admin=NO_ADDRESS,
            response=NO_ADDRESS,
            message_number=number,
            sent_time_s=int(self._services.environment.time()),
            delivery=EXPRESS,
            position=None,
        )
        connection.owe_express(packet)


def understood(body: bytes) -> Question | Answer | None:
    """The body of a message to `HISTORY_QUEUE`; None if it is neither, or too large."""
    if len(body) > ANSWER_BYTES_MAX:
        return None
    try:
        heard = _decoder.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    return None if isinstance(heard, Question) and len(body) > QUESTION_BYTES_MAX else heard


def facts_of(told: Answer, remote: bytes, source: bytes, number: int) -> Value:
    """An answer, as `MessageLookup.account` has what is known here."""
    return {
        "host": told.host,
        "state": told.state,
        "sentences": told.sentences,
        "remedies": told.remedies,
        "events": [_flat(event, told.host, remote, source, number) for event in told.events],
        "events_left_out": told.events_left_out,
    }


def _remote_id(connection: PeerSession) -> bytes | None:
    return None if connection.session is None else connection.session.remote_id


def _concerns(asker: bytes, source: bytes, account: Value) -> bool:
    """Whether the asker has sent the message here, or got it from here."""
    if source == asker:
        return True
    text = guid_text(asker)
    return any(event["peer"] == text for event in account["events"])


def _encoded(account: Value) -> bytes:
    """The answer, with as many events as fit: the first and the last ones say the most."""
    events = [
        ToldEvent(
            _cut(event["cursor"], 512),
            max(0, event["at_ms"]),
            _cut(event["kind"], 512),
            _cut(event["queue"], 512),
            _cut(event["peer"], 512),
            event["lookup_id"],
            event["sequence_id"],
            event["sequence_number"],
            event["class"],
            _cut(event["delivery"], 512),
            event["bytes"],
            _cut(event["reason"]),
            _cut(event["to_queue"], 512),
            _cut(event["transaction"], 512),
            event["label"],
            event["correlation_id"],
        )
        for event in account["events"]
    ]
    left_out = bool(account["events_left_out"])
    events_max = EVENTS_MAX
    while True:
        if len(events) > events_max:
            half = events_max // 2
            events, left_out = [*events[:half], *events[len(events) - half :]], True
        body = _encoder.encode(
            Answer(
                VERSION,
                _cut(account["host"], 512),
                account["state"],
                [_cut(sentence) for sentence in account["sentences"][:64]],
                [_cut(remedy) for remedy in account["remedies"][:16]],
                events,
                left_out,
            )
        )
        if len(body) <= ANSWER_BYTES_MAX or not events:
            return body
        events_max = len(events) // 2


_NOT_TOLD: Value = {
    "state": "not_told",
    "sentences": ["It tells only of messages that it exchanged with the one who asks."],
    "remedies": [],
    "events": [],
    "events_left_out": False,
}


def _cut(text: str, characters_max: int = CHARACTERS_MAX) -> str:
    return text if len(text) <= characters_max else f"{text[: characters_max - 1]}…"


def _flat(event: ToldEvent, host: str, remote: bytes, source: bytes, number: int) -> Value:
    """As `event_log.flat` has it, told by somebody else."""
    from protocol.identifiers import message_id_text
    from qmd.history.event_query import time_text
    from storage.tables.events import SCHEMA

    block, _, index = event.cursor.partition(".")
    return {
        "schema": SCHEMA,
        "host": host,
        "queue_manager": guid_text(remote),
        "cursor": event.cursor,
        "block": int(block) if block.isdecimal() and len(block) < 16 else 0,
        "index": int(index) if index.isdecimal() and len(index) < 16 else 0,
        "time": time_text(event.at_ms),
        "at_ms": event.at_ms,
        "kind": event.kind,
        "message_id": message_id_text(source, number),
        "queue": event.queue,
        "peer": event.peer,
        "lookup_id": event.lookup_id,
        "sequence_id": event.sequence_id,
        "sequence_number": event.sequence_number,
        "class": event.message_class,
        "delivery": event.delivery,
        "bytes": event.bytes,
        "reason": event.reason,
        "to_queue": event.to_queue,
        "transaction": event.transaction,
        "label": event.label,
        "correlation_id": event.correlation_id,
    }


def _unanswered(address: str, explanation: str, remote: bytes | None = None) -> Value:
    return {
        "address": address,
        "queue_manager": None if remote is None else guid_text(remote),
        "answered": False,
        "explanation": explanation,
        "host": "",
        "state": "",
        "sentences": [],
        "remedies": [],
        "events": [],
        "events_left_out": False,
    }
