r"""Look-ups of messages between queue managers: requests to others, and replies to theirs.

A request is an express message to `private$\qmd_history$` of the other queue manager, given to its
session without an outgoing queue.  So is the reply, which has the id of the request as its
correlation id.  No queue has that name: such messages are not stored, clients cannot read them, and
they fill no quota.  A queue manager that does not know the name refuses the request silently, and
gets no further request for a while.

A queue manager gets information only about messages that it sent here or got from here: over a
session with its primary origin, because any program can state its GUID, and ids of sequences are
disclosed. Messages that others have sent with its GUID are left out.  Requests are limited in size
and rate, and cause at most a line of the log.
"""

from __future__ import annotations

import asyncio
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from protocol import DirectQueueName, UserMessage
from protocol.errors import ProtocolError
from protocol.identifiers import correlation_bytes, guid_text
from protocol.names.direct_name import parse_wire_name, queue_key
from protocol.names.format_name import parse_destination
from qmd.control_protocol.messages import EXPRESS, NewMessage
from qmd.core.internal_names import HISTORY_QUEUE
from qmd.history.lookup_messages import (
    LookupReply,
    LookupRequest,
    decoded,
    encoded_reply,
    encoded_request,
    facts_of,
)
from qmd.message.addresses import NO_ADDRESS, queue_address
from qmd.message.build import compose
from qmd.peers.origins import stated_peer
from storage.errors import StorageError

if TYPE_CHECKING:
    from qmd.history.message_description import MessageDescriber
    from qmd.history.message_search import MessageRecord, MessageSearch
    from qmd.peers.origins import Origins
    from qmd.peers.sessions import Peers
    from qmd.queues.peer_session import PeerSession
    from qmd.queues.way import Way
    from qmd.runtime.services import Services

WAIT_S = 2.0  # for a session and the reply together
# On the wire only; long, because the clocks of two computers may differ.
TIME_TO_REACH_QUEUE_S = 300
QUIET_S = 300.0  # without requests to a queue manager that did not reply
QUIET_SHORT_S = 5.0  # the same for one that has replied before: it may have been busy
QUIET_ENTRIES_MAX = 1000
REQUESTS_MAX = 64  # of ours that wait for their reply
REPLIES_PER_S = 10  # to all queue managers together
REPLIES_AT_ONCE = 2
Value = dict[str, Any]


class RemoteLookup:
    """The requests of this queue manager, and its replies to those of others."""

    def __init__(
        self,
        services: Services,
        peers: Peers,
        origins: Origins,
        search: MessageSearch,
        describer: MessageDescriber,
    ) -> None:
        self._services = services
        self._peers = peers
        self._origins = origins
        self._search = search
        self._describer = describer
        # By the id of the request: the session that it went over, and the future of the reply.
        self._open: dict[bytes, tuple[PeerSession, asyncio.Future[LookupReply]]] = {}
        self._quiet_until: dict[bytes, float] = {}
        self._has_replied: dict[bytes, None] = {}
        self._session_watchers: set[asyncio.Future[None]] = set()
        self._replying: set[asyncio.Task[None]] = set()
        self._allowance = float(REPLIES_PER_S)
        self._allowance_at = services.loop.time()
        self.request_count = 0
        self.reply_count = 0

    # Requests of this queue manager.

    async def ask(self, link: Way | None, guid: bytes | None, source: bytes, number: int) -> Value:
        """Return the view of another queue manager on a message.

        The queue manager is the one at the other end of `link`, or the one with that GUID.  This
        takes no longer than WAIT_S.  `answered` in the result says whether it has replied; if not,
        `explanation` has the reason.
        """
        name = link.name if link is not None else guid_text(guid or bytes(16))
        if not self._services.settings.events.ask:
            return _unanswered(name, f"{name} was not asked, because [events] ask is false.")
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
                f"{address} did not answer a moment ago, and is not asked again for"
                f" {self._quiet_until[remote] - now:.0f} s.",
                remote,
            )
        if len(self._open) >= REQUESTS_MAX:
            return _unanswered(address, "too many questions are under way already.", remote)
        request_number = self._services.ids.next_message_number()
        request_id = correlation_bytes(self._services.id, request_number)
        future: asyncio.Future[LookupReply] = self._services.loop.create_future()
        self._open[request_id] = connection, future
        try:
            self._send(connection, encoded_request(source, number), request_number)
            self.request_count += 1
            async with asyncio.timeout_at(deadline):
                reply = await future
        except TimeoutError:
            self._leave_alone(remote)
            return _unanswered(
                address,
                f"{address} did not answer: it does not run qmd, or its [events] answer does"
                " not have"
                " this computer.",
                remote,
            )
        finally:
            del self._open[request_id]
        self._has_replied[remote] = None
        return {
            "address": address,
            "queue_manager": guid_text(remote),
            "answered": True,
            "explanation": "",
            **facts_of(reply, remote, source, number),
        }

    def sessions_changed(self) -> None:
        """Wake the requests that wait for a session: one has opened, or its attempt has failed."""
        for watcher in self._session_watchers:
            if not watcher.done():
                watcher.set_result(None)

    # Requests and replies of other queue managers.

    def is_meant(self, message: UserMessage) -> bool:
        """Return whether a message is addressed to `HISTORY_QUEUE`."""
        destination = message.user.destination_queue
        if message.transaction is not None or not isinstance(destination, DirectQueueName):
            return False
        try:
            return queue_key(parse_wire_name(destination.name)) == HISTORY_QUEUE
        except ProtocolError:
            return False

    def received(self, connection: PeerSession, message: UserMessage) -> None:
        """Process a message to `HISTORY_QUEUE`, which may have any content."""
        body = decoded(message.properties.body)
        if body is None:
            self._services.log_limited(
                "question_not_understood", connection.host, address=connection.host
            )
            return
        if isinstance(body, LookupReply):
            asked, waiting = self._open.get(bytes(message.properties.correlation_id), (None, None))
            if waiting is not None and not waiting.done() and connection is asked:
                waiting.set_result(body)
            return
        if not self._may_reply(connection):
            return
        request_id = correlation_bytes(
            message.user.source_queue_manager, message.user.message_number
        )
        task = self._services.loop.create_task(self._reply(connection, request_id, body))
        self._replying.add(task)
        task.add_done_callback(self._replying.discard)

    def stop(self) -> None:
        """Cancel the replies that are being prepared."""
        for task in self._replying:
            task.cancel()

    async def _session(
        self, link: Way | None, guid: bytes | None, deadline: float
    ) -> PeerSession | None:
        """Return an open session, or None if none opens until `deadline`.

        If a link can dial, it is made to connect.
        """
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
        for kept in (self._quiet_until, self._has_replied):
            if len(kept) >= QUIET_ENTRIES_MAX:
                kept.clear()
        quiet_s = QUIET_SHORT_S if remote in self._has_replied else QUIET_S
        self._quiet_until[remote] = self._services.loop.time() + quiet_s

    def _may_reply(self, connection: PeerSession) -> bool:
        """Return whether a request gets a reply; requests beyond the limits get none."""
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
            float(REPLIES_PER_S), self._allowance + (now - self._allowance_at) * REPLIES_PER_S
        )
        self._allowance_at = now
        if self._allowance < 1 or len(self._replying) >= REPLIES_AT_ONCE:
            self._services.log_limited(
                "question_not_answered",
                connection.host,
                address=connection.host,
                reason="too many questions",
            )
            return False
        self._allowance -= 1
        return True

    async def _reply(
        self, connection: PeerSession, request_id: bytes, request: LookupRequest
    ) -> None:
        remote = _remote_id(connection)
        try:
            record = await self._search.find(request.source, request.number, thorough=False)
            record = _without_stated(record, request.source)
            description = self._describer.describe(request.source, request.number, record)
        except StorageError:
            return  # the storage failed, and the daemon stops
        except Exception as bug:
            self._services.lifecycle.fail(bug)
            return
        if (
            remote is None
            or self._origins.primary(remote) not in (None, connection.origin)
            or not _concerns(remote, request.source, description)
        ):
            description = {**description, **_NOT_DISCLOSED}
        body = encoded_reply(description)
        number = self._services.ids.next_message_number()
        self._send(connection, body, number, correlation_id=request_id)
        self.reply_count += 1

    def _send(
        self, connection: PeerSession, body: bytes, number: int, *, correlation_id: bytes = b""
    ) -> None:
        """Send an express message over this session only, without storing it."""
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


def _remote_id(connection: PeerSession) -> bytes | None:
    return None if connection.session is None else connection.session.remote_id


def _concerns(remote: bytes, source: bytes, description: Value) -> bool:
    """Return whether the queue manager `remote` sent the message here, or got it from here."""
    if source == remote:
        return True
    text = guid_text(remote)
    return any(event["peer"] == text for event in description["events"])


def _without_stated(record: MessageRecord, source: bytes) -> MessageRecord:
    """Return the record of a message without those that others sent with the GUID of its source."""
    stated = stated_peer(source)
    others = [found.event for found in record.history if found.event.peer.startswith(stated)]
    if not others:
        return record
    places = {(event.queue, number) for event in others for number in event.places}
    return record._replace(
        places=[
            place
            for place in record.places
            if (place["queue"], place.get("lookup_id")) not in places
        ],
        history=[
            found
            for found in record.history
            if not found.event.peer.startswith(stated)
            and not {(found.event.queue, number) for number in found.event.places} & places
        ],
    )


_NOT_DISCLOSED: Value = {
    "state": "not_told",
    "sentences": ["It reports only messages that it exchanged with the queue manager that asks."],
    "remedies": [],
    "events": [],
    "events_left_out": False,
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
