"""Messages of the daemon for URLs: each link of the daemon is a session with this door.

    daemon ──"QMD-SRMP 1 http://hostb:80"──► door     one session for each host
           ── message ─────────────────────► POST ──► 200: counts as received, and is acknowledged
                                                 ├──► 400 and the like: the daemon ends the message
                                                 └──► else: the session ends; the daemon tries later

A message counts as received only after the other host has answered, so the daemon keeps it until
then.  Transactional messages are kept until the receipt of their stream, which `receipt` turns
into an order ack.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
import uuid
from collections import OrderedDict
from collections.abc import Collection, Sequence

import structlog

from protocol import PacketKind, packet_kind
from protocol.acknowledgments import FINAL_ACK_CLASS_MIN, build_final_ack
from protocol.message_class import MessageClass
from protocol.records import FinalAckBody
from qmd.client.errors import ClientError
from qmd.control_protocol.doors import EndLinkSession, RejectOutgoing
from qmd.core.acknowledgment import order_ack_packet, order_queue_of
from qmd.core.packet_fields import message_number, source_of
from qmd.core.sequence import Position
from qmd.doors.srmp.client import HttpClient, NotAccepted
from qmd.doors.srmp.envelope import Envelope, MessageId, NotSrmp
from qmd.doors.srmp.messages import envelope_of, write_request
from qmd.doors.srmp.redirection import Redirection, is_among, redirected
from qmd.doors.srmp.session import BinarySession, SessionEnded
from qmd.doors.srmp.source import Ask
from qmd.runtime.log import LimitedLog
from qmd.runtime.loopback_user import user_at_other_end

log = structlog.get_logger()

PREFACE = re.compile(rb"QMD-SRMP 1 (https?://[A-Za-z0-9.:\[\]%_-]{1,300})\n")
PREFACE_BYTES_MAX = 400
PREFACE_S = 5.0
SESSIONS_MAX = 1000
STREAMS_MAX = 100_000
PAUSE_FIRST_S, PAUSE_LAST_S = 0.25, 30.0  # after an error of a host that answers
#: Answers of 4xx after which a message is sent again: of proxies, or for the moment.
AGAIN = frozenset({407, 408, 421, 423, 425, 429})
UNSTATED = MessageClass.NACK_BAD_DESTINATION_QUEUE
_CLASSES = {
    400: MessageClass.NACK_BAD_DESTINATION_QUEUE,  # or no such queue, or not one of its kind
    401: MessageClass.NACK_ACCESS_DENIED,
    403: MessageClass.NACK_ACCESS_DENIED,
    404: MessageClass.NACK_BAD_DESTINATION_QUEUE,
    410: MessageClass.NACK_BAD_DESTINATION_QUEUE,
}
_NAMESPACE = uuid.UUID("6f1f3c1e-6a57-4b8e-9f0e-2d9a7c64a2c1")


def class_of(status: int) -> int | None:
    """Return the class with which a message ends after an answer; None: it is sent again."""
    if not 400 <= status < 500 or status in AGAIN:
        return None
    return _CLASSES.get(status, MessageClass.NACK_DELETED)


class Outgoing:
    """The sessions of the daemon for URLs."""

    def __init__(
        self,
        receipts_to: str,
        rules: Sequence[Redirection],
        context: ssl.SSLContext | None,
        receipts_from: Sequence[object] = (),
        *,
        ask: Ask,
        users: Collection[int] = (),
    ) -> None:
        """`receipts_from` are networks of hosts that send receipts for others; `users` those of
        which a process may be the daemon."""
        self._users = users
        self._log = LimitedLog(log)
        self._ask = ask
        self._receipts_from = receipts_from
        self._receipts_to = receipts_to
        self._rules = rules
        self._context = context
        self._sessions: set[BinarySession] = set()
        # By stream id: the session, and the client that has sent the stream.
        self._streams: OrderedDict[int, tuple[BinarySession, HttpClient]] = OrderedDict()
        self._number = int(time.time()) & 0x7FFFFFFF
        self._pauses: dict[str, float] = {}  # after the next failure of a host
        self.sent = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection of the daemon; other users of this computer get none."""
        user = user_at_other_end(writer.get_extra_info("socket"))
        if self._users and user not in self._users:  # nor one that is not known: it has closed
            self._log.log(
                "warning", "srmp_not_the_daemon", key=str(user), now=time.monotonic(), user=user
            )
            writer.transport.abort()
            return
        try:
            async with asyncio.timeout(PREFACE_S):
                preface = await reader.readuntil(b"\n")
        except (TimeoutError, OSError, EOFError, asyncio.LimitOverrunError):
            writer.transport.abort()
            return
        match = PREFACE.fullmatch(preface[:PREFACE_BYTES_MAX])
        if match is None or len(self._sessions) >= SESSIONS_MAX:
            writer.transport.abort()
            return
        host = match[1].decode().lower()
        client = HttpClient(self._context)
        try:
            # The daemon waits longer after each attempt that reaches no session.
            await client.open(redirected(f"{host}/msmq/", self._rules))
        except NotAccepted as error:
            self._log_limited("srmp_not_accepted", host, url=host, message_id="", reason=str(error))
            await self._end(host, str(error))
            writer.transport.abort()
            return
        session = BinarySession(
            reader,
            writer,
            uuid.uuid5(_NAMESPACE, host).bytes_le,
            initiator=False,
            take=lambda packet: self._take(session, client, host, packet),
            received=lambda message: session.stored(message.recoverable_number),
        )
        self._sessions.add(session)
        try:
            await session.run()
        finally:
            self._sessions.discard(session)
            client.close()

    async def _take(
        self, session: BinarySession, client: HttpClient, host: str, packet: bytes
    ) -> None:
        """Send a message to its host.  Raises SessionEnded if that fails."""
        if packet_kind(packet) is not PacketKind.USER_MESSAGE:
            return
        try:
            posted = envelope_of(packet, self._receipts_to)
            url = redirected(posted.envelope.to, self._rules)
            if not url.startswith(("http://", "https://")):
                raise NotSrmp(f"{url[:200]!r} is no URL")
        except NotSrmp as error:
            await self._reject(host, packet, UNSTATED, f"It cannot be sent over HTTP: {error}.")
            return
        stream = posted.envelope.stream
        if stream is not None:
            self._streams[stream.id] = session, client
            self._streams.move_to_end(stream.id)
            if len(self._streams) > STREAMS_MAX:
                self._streams.popitem(last=False)
        body, content_type = write_request(posted)
        try:
            await client.post(url, body, content_type)
            self.sent += 1
            self._pauses.pop(host, None)
        except NotAccepted as error:
            reason, message_class = str(error), class_of(error.status)
            if message_class is not None:
                # It would be refused again, and hold up all messages behind it.
                await self._reject(host, packet, message_class, f"{reason}.")
                return
            message_id = posted.envelope.id.name
            self._log_limited(
                "srmp_not_accepted", host, url=url, message_id=message_id, reason=reason
            )
            pause_s = self._pauses.get(host, PAUSE_FIRST_S)
            self._pauses[host] = min(2 * pause_s, PAUSE_LAST_S)
            await asyncio.sleep(pause_s)
            await self._end(host, reason)
            raise SessionEnded(reason) from error

    async def _reject(self, host: str, packet: bytes, message_class: int, reason: str) -> None:
        """Let the daemon end a message, durably.  Raises SessionEnded if it has not."""
        source, number = source_of(packet), message_number(packet)
        try:
            count = await self._ask(
                RejectOutgoing, host, source, number, int(message_class), reason[:900]
            )
        except ClientError as error:
            self._log_limited("srmp_waits", host, reason=str(error))
            raise SessionEnded(f"the queue manager has not ended a message: {error}") from error
        if not count:  # it has expired meanwhile, or is handed again
            raise SessionEnded("a refused message is not in flight any more")
        about = MessageId(uuid.UUID(bytes_le=source), number).name
        self._log_limited("srmp_dead_letter", host, url=host, message_id=about, reason=reason)

    async def _end(self, host: str, reason: str) -> None:
        """Let the daemon end the session of a host, so that it shows the reason."""
        try:
            await self._ask(EndLinkSession, host, reason[:900])
        except ClientError as error:
            self._log_limited("srmp_waits", host, reason=str(error))

    def _log_limited(self, event: str, host: str, **fields: object) -> None:
        """Log an event that each message may cause, rate-limited for each host."""
        self._log.log("warning", event, key=host, now=time.monotonic(), **fields)

    def receipt(self, envelope: Envelope, address: str) -> bool:
        """Pass the receipt of a stream to the daemon; return whether it is one of ours.

        It must come from the address to which the stream was sent, or from a host that the
        configuration names: a receipt releases messages.
        """
        receipt = envelope.stream_receipt
        assert receipt is not None
        session, client = self._streams.get(receipt.id, (None, None))
        if session is None or client is None:
            return False
        if address != client.address and not is_among(address, self._receipts_from):
            self._log.log(
                "warning",
                "srmp_receipt_refused",
                key=address,
                now=time.monotonic(),
                host=address,
                expected=client.address,
            )
            return False
        if session.ended or session.session.remote_id is None:
            return False
        daemon = session.session.remote_id
        if receipt.owner.bytes_le != daemon or receipt.number == 0:
            return False
        self._number = (self._number + 1) & 0xFFFFFFFF
        queue = order_queue_of(daemon, "", by_direct_name=False)
        sent_time = int(time.time())
        if envelope.decision:
            about = envelope.about
            if about is None or envelope.message_class < FINAL_ACK_CLASS_MIN:
                return False
            packet = build_final_ack(
                source_queue_manager=session.own_id,
                destination=queue,
                message_number=self._number,
                sent_time=sent_time,
                message_class=envelope.message_class,
                body=FinalAckBody(
                    receipt.id, receipt.number, receipt.number - 1, daemon, about.number
                ),
            )
        else:
            packet = order_ack_packet(
                Position(receipt.id, receipt.number),
                destination=queue,
                own_id=session.own_id,
                message_number=self._number,
                sent_time=sent_time,
            )
        session.send_soon(packet)
        return True

    def close(self) -> None:
        """End all sessions."""
        self._log.finish()
        for session in list(self._sessions):
            session.close("the door stops")
