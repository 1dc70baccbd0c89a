"""Import of messages from a file into a queue, with their packets, counts, reasons and times.

The file is not trusted: if a packet cannot be parsed or does not fit its queue, all messages are
refused.  An imported message keeps its id, and gets a new place behind the messages of the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from protocol import parse_user_message, without_session_header
from protocol.errors import ProtocolError
from protocol.security_marks import unmarked
from qmd.control_protocol.messages import ImportedMessage, StoredMessage
from qmd.core.packet_fields import is_transactional
from qmd.errors import Refusal
from qmd.events.header import EventHeader, Kind
from qmd.message.limits import PRIORITY_MAX
from qmd.queues.local_queue import LocalQueue
from qmd.queues.put import put
from qmd.queues.quotas import queue_refusal
from storage.tables import messages as message_rows
from storage.tables.keys import LOOKUP_BITS, TRANSACTIONAL_LEVEL
from storage.tables.queues import JOURNAL_ID, ORDER_QUEUE_ID

if TYPE_CHECKING:
    from qmd.events.recorder import Recorder
    from qmd.peers.sessions import Peers
    from qmd.queues.quotas import Admission
    from qmd.runtime.services import Services

log = structlog.get_logger()

Result = dict[str, Any]


class Importer:
    """Importer of messages: all messages of a request in one commit, or none."""

    def __init__(
        self,
        services: Services,
        admission: Admission,
        peers: Peers,
        recorder: Recorder,
    ) -> None:
        self._services = services
        self._admission = admission
        self._peers = peers
        self._recorder = recorder

    def take_in(
        self,
        queue: LocalQueue,
        messages: Sequence[ImportedMessage],
        *,
        dry_run: bool,
        token: bytes,
        done: Callable[[Result], None],
        are_checked: bool = False,
    ) -> None:
        """Import the messages; `done` gets the answer when they are durable.

        The answer has the number of messages, and the bytes of their packets.  `are_checked`:
        `check` has accepted them.  Raises Refusal.
        """
        if not are_checked:
            self.check(queue, messages)
        size = sum(len(message.packet) for message in messages)
        if not queue.payer.has_room(size):
            raise queue_refusal(queue.payer, size)
        full = self._admission.is_full(size, messages=len(messages))
        if full is not None:
            raise full
        result = {"messages": len(messages), "bytes": size}
        if dry_run or not messages:
            done(result)
            return
        batch = self._services.storage.batch
        stored = [self._stored(queue, message) for message in messages]
        for each in stored:
            put(queue, each, batch)
        self._recorder.record(
            EventHeader(Kind.IMPORTED, queue=queue.name),
            [each.packet for each in stored],
            places=[each.lookup_id for each in stored],
        )
        with_history = [
            (
                queue.id << LOOKUP_BITS | each.lookup_id,
                each.abort_count,
                each.move_count,
                each.last_move_at_ms,
            )
            for each in stored
            if each.abort_count or each.move_count or each.last_move_at_ms is not None
        ]
        if with_history:
            batch.run(partial(message_rows.set_history, rows=with_history))
        if token:
            batch.record_outcome(token, msgspec.msgpack.encode(result), self._services.clock.now_s)

        def durable() -> None:
            done(result)
            queue.deliver(stored)
            log.info("messages_imported", queue=queue.name, count=len(stored))

        batch.when_durable(durable)

    def check(self, queue: LocalQueue, messages: Sequence[ImportedMessage], first: int = 0) -> None:
        """Check messages; `first` is the index of the first of them.  Raises Refusal."""
        for index, message in enumerate(messages, first):
            self._check(queue, message, index)

    def _check(self, queue: LocalQueue, message: ImportedMessage, index: int) -> None:
        if queue.id == ORDER_QUEUE_ID:
            raise Refusal(
                "queue_read_only",
                f"{queue.name} is a queue of the queue manager itself",
                "Import into another queue.",
            )
        packet = message.packet
        try:
            parse_user_message(packet)
        except ProtocolError as error:
            raise Refusal(
                "packet_broken",
                f"entry {index + 1} is not a message: {error}",
                "It differs from the exported message; export it again.",
            ) from error
        if packet != without_session_header(packet):
            raise Refusal(
                "packet_broken",
                f"message {index + 1} has a session header, as packets on the wire do",
                "It differs from the exported message; export it again.",
            )
        allowed = self._peers.hosts.own_packet_bytes_max
        if len(packet) > allowed:
            raise Refusal(
                "packet_too_large",
                f"message {index + 1} has {len(packet)} bytes; {allowed} are allowed",
                "Send the body in parts, or a reference to it.",
            )
        if queue.id != JOURNAL_ID and is_transactional(packet) != queue.transactional:
            kinds = ("is transactional", "is not")
            if queue.transactional:
                kinds = ("is not transactional", "is")
            raise Refusal(
                "import_of_other_kind",
                f"message {index + 1} {kinds[0]}, and {queue.name} {kinds[1]}",
                "Import it into a queue of its kind.",
            )

    def _stored(self, queue: LocalQueue, message: ImportedMessage) -> StoredMessage:
        packet = unmarked(message.packet)  # a file can state any signature to be verified
        if queue.holds_ended or is_transactional(packet):
            level = TRANSACTIONAL_LEVEL
        else:
            level = PRIORITY_MAX - (packet[2] & 7)
        left_s = None if queue.holds_ended else message.expires_in_s
        return StoredMessage(
            self._services.ids.next_lookup_id(level),
            message.arrived_at_ms,
            packet,
            message.reason,
            message.abort_count,
            message.move_count,
            message.last_move_at_ms,
            None if left_s is None else self._services.clock.now_s + left_s,
        )
