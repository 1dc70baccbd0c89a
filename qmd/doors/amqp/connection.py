"""The socket of one client: its login, its engine, and the bytes between them."""

from __future__ import annotations

import asyncio
import ipaddress
import math
import ssl
import time
from typing import TYPE_CHECKING, Any, cast

import structlog

from qmd.control_protocol.certificates import certificate_names, expires_at_s
from qmd.doors.amqp.conditions import LIMIT, UNAUTHORIZED, AmqpFault, condition_of
from qmd.doors.amqp.conversation import Conversation
from qmd.doors.amqp.engine import Engine, Limits
from qmd.doors.amqp.login import Login, Peer

if TYPE_CHECKING:
    from qmd.doors.amqp.door import Door

log = structlog.get_logger()

WRITE_BYTES = 1024 * 1024  # in one turn
ENGINE_BYTES_HIGH = 4 * 1024 * 1024  # of output that waits in the engine
FAILURE_DELAY_S = 0.5  # before a connection with a wrong login is closed
CLOSE_S = 5.0  # for the client to answer the end of the connection
#: A client that only receives settles its messages in many small writes.  They are read together.
GATHER_S, GATHER_LEAST_S = 0.02, 0.001
GATHER_MESSAGES = 64  # in hand: a client with fewer would wait for more


class ClientConnection(asyncio.Protocol):
    """The connection of one client of the door."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._login: Login | None = None
        self._engine: Engine | None = None
        self._conversation: Conversation | None = None
        self._flush_due = False
        self._is_paused = False  # the socket accepts no more bytes
        self._is_read = True
        self._is_finishing = False
        self._gathering: asyncio.TimerHandle | None = None
        self._settled, self._settled_at_s = 0, 0.0  # the count when it was read last
        self._timer: asyncio.TimerHandle | None = None
        self._expiry: asyncio.TimerHandle | None = None  # of the certificate of the client
        self.shown = ""

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = peer_of(self._transport)
        self.shown = peer.address
        left_s = expires_at_s(transport.get_extra_info("ssl_object")) - time.time()
        if left_s < math.inf:
            self._expiry = self._loop.call_later(left_s, self._expired)
        self._transport.set_write_buffer_limits(high=WRITE_BYTES)
        self._timer = self._loop.call_later(self._door.login_s, self._took_too_long)
        self._login = Login(
            peer,
            self._door.rules,
            self._door.users,
            self._door.attempts,
            self._door.executor,
            self._transport.write,
            self._logged_in,
            self._not_logged_in,
        )
        self._door.arrived(self)

    def data_received(self, data: bytes) -> None:
        if self._is_finishing:
            return
        if self._engine is not None:
            self._engine.receive(data)
            self._work()
            self._gather()
        elif self._login is not None:
            self._login.receive(data)

    def eof_received(self) -> bool:
        if self._engine is not None:
            self._engine.end_of_input()
            self._work()
        return False

    def pause_writing(self) -> None:
        self._is_paused = True
        self._regulate()

    def resume_writing(self) -> None:
        self._is_paused = False
        self._write()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._gathering is not None:
            self._gathering.cancel()
        if self._expiry is not None:
            self._expiry.cancel()
        if self._login is not None:
            self._login.close()
        if self._conversation is not None:
            self._conversation.end()
        self._transport = None
        self._door.gone(self)

    # The login.

    def _logged_in(self, principals: tuple[str, ...], rest: bytes) -> None:
        limits = self._door.limits
        self._login = None
        assert self._timer is not None
        self._timer.cancel()
        self._timer = None
        self.shown = f"{principals[0]} at {self.shown}"
        self._engine = Engine(
            self._door.container, Limits(limits.frame_bytes, limits.sessions, limits.idle_s)
        )
        self._conversation = Conversation(
            self._door, self._engine, principals, self._flush_soon, limits
        )
        self._door.logged_in(self)
        log.info("amqp_client", client=self.shown)
        self._engine.receive(rest)
        if self._door.is_full:
            text = f"the door has {self._door.connections_max} connections"
            self._refuse(AmqpFault(LIMIT, text))
        self._work()

    def _refuse(self, failure: AmqpFault) -> None:
        """Open the connection only to close it with an error condition."""
        assert self._engine is not None
        self._engine.connection.open()
        self._engine.connection.condition = condition_of(failure)
        self._engine.connection.close()
        assert self._conversation is not None
        self._conversation.end()

    def _not_logged_in(self, reason: str) -> None:
        self._door.not_logged_in(self.shown, reason)
        self._loop.call_later(FAILURE_DELAY_S, self.abort_gently)

    def _expired(self) -> None:
        self.close(AmqpFault(UNAUTHORIZED, "the certificate of the client has expired"))

    def _took_too_long(self) -> None:
        self._door.not_logged_in(self.shown, "the login took too long")
        self.abort()

    # The engine.

    def _work(self) -> None:
        conversation = self._conversation
        assert conversation is not None
        try:
            conversation.work()
        except Exception as bug:
            log.error("amqp_client_failed", client=self.shown, exc_info=bug)
            self.abort()
            return
        self._write()

    def _flush_soon(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        if self._transport is not None and self._engine is not None:
            self._work()

    def _write(self) -> None:
        """Write what the engine has, as long as the client reads."""
        engine, transport = self._engine, self._transport
        if engine is None or transport is None or self._is_paused:
            return
        data = engine.output(WRITE_BYTES)
        if data:
            transport.write(data)
        if data and self._conversation is not None and self._conversation.is_held:
            self._conversation.is_held = False
            self._conversation.more_room()
        if len(data) >= WRITE_BYTES:
            self._flush_soon()
        elif engine.is_finished:
            self._finish(transport)
        elif self._timer is None:
            self._tick()
        self._regulate()

    def _finish(self, transport: asyncio.Transport) -> None:
        """End the connection after the last frame.

        With bytes of the client that were not read, a closed socket would make its system drop the
        last frame, and with it the error condition.
        """
        if self._is_finishing:
            return
        self._is_finishing = True
        if transport.can_write_eof():
            transport.write_eof()
        self._loop.call_later(CLOSE_S, self.abort_gently)

    def _regulate(self) -> None:
        """Take no more messages for a client that does not read, and read no more from one of
        which many messages wait for their commit."""
        conversation, transport = self._conversation, self._transport
        if conversation is None or transport is None or transport.is_closing():
            return
        was_slow, conversation.is_slow = conversation.is_slow, self._is_paused
        if was_slow and not conversation.is_slow:
            conversation.more_room()
        has_room = conversation.outbox.bytes < conversation.limits.waiting_bytes
        must_read = has_room and self._gathering is None
        if must_read != self._is_read:
            self._is_read = must_read
            if must_read:
                transport.resume_reading()
            else:
                transport.pause_reading()

    def _tick(self) -> None:
        """Let the engine send its heartbeats, and end the connection of a silent client."""
        self._timer = None
        if self._engine is None or self._transport is None:
            return
        now_s = self._loop.time()
        due_s = self._engine.tick(now_s)
        if due_s:
            self._timer = self._loop.call_later(max(0.01, due_s - now_s), self._ticked)

    def _ticked(self) -> None:
        self._timer = None
        if self._engine is not None and self._transport is not None:
            self._tick()
            self._work()

    def _gather(self) -> None:
        """Read nothing for a moment, while the client has so many messages in hand that it settles
        half of them meanwhile, and waits for no answer: a read costs as much as some messages."""
        conversation = self._conversation
        assert conversation is not None
        if conversation.awaits_answer or self._gathering is not None:
            return
        now_s, settled = self._loop.time(), conversation.settled_count
        count, took_s = settled - self._settled, now_s - self._settled_at_s
        self._settled, self._settled_at_s = settled, now_s
        if not count or conversation.unsettled_count < GATHER_MESSAGES:
            return
        moment_s = min(GATHER_S, conversation.unsettled_count / 2 * took_s / count)
        if moment_s >= GATHER_LEAST_S:
            self._gathering = self._loop.call_later(moment_s, self._gathered)
            self._regulate()

    def _gathered(self) -> None:
        self._gathering = None
        self._regulate()

    # The end.

    def close(self, failure: AmqpFault) -> None:
        """End the connection with an error condition; after a while without an answer, at once."""
        if self._conversation is None:
            self.abort()
            return
        self._conversation.fail(failure)
        self._loop.call_later(CLOSE_S, self.abort)

    def abort_gently(self) -> None:
        """Close the socket after everything was written."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the socket at once."""
        if self._transport is not None:
            self._transport.abort()


def peer_of(transport: asyncio.Transport) -> Peer:
    """Return the other end of a connection, with the principals of its certificate."""
    name: Any = transport.get_extra_info("peername")
    host = name[0] if isinstance(name, tuple) and name else "127.0.0.1"
    host = host.partition("%")[0].removeprefix("::ffff:")
    tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    certificates: tuple[str, ...] = ()
    has_expired = time.time() >= expires_at_s(tls)  # in a session that TLS has resumed
    if tls is not None and (certificate := tls.getpeercert(binary_form=True)) and not has_expired:
        names = certificate_names(certificate, tls.getpeercert())
        certificates = tuple(f"cert:{name}" for name in names)
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    own: Any = transport.get_extra_info("sockname")
    ends = (name[:2], own[:2]) if isinstance(name, tuple) and isinstance(own, tuple) else ()
    return Peer(host, is_loopback, tls is not None, certificates, *ends)
