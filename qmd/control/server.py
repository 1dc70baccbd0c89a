"""The control socket: it answers requests of the command line and of applications.

Requests are pipelined; answers leave in batches, one write for each turn of the event loop.  A
request that changes data is answered by a callback of its commit.
`qmd/control_protocol/messages.py` describes the frames.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import msgspec

from protocol.errors import InvalidName
from qmd.access.local_users import UNKNOWN, LocalClient, client_of
from qmd.access.rights import NO_RIGHTS, Rights
from qmd.control import verb_rights
from qmd.control.accounts import REQUESTS_MAX as REQUESTS_OF_ACCOUNT_MAX
from qmd.control.accounts import TURN_S, Account
from qmd.control.client_memory import REQUEST_COPIES, UNCOUNTED_BYTES, ClientMemory, no_memory
from qmd.control.large_requests import Hooks, ignore, send_in_parts, with_answers
from qmd.control.reading_turns import ReadingTurns
from qmd.control.refusals import as_refusal, failure, not_decoded, refused, too_many_requests
from qmd.control_protocol import messages as frames
from qmd.control_protocol.bulk import answer_buffers
from qmd.control_protocol.messages import Done, FrameBuffer, FrameError, Request
from qmd.control_protocol.parts import request_in_parts
from qmd.directory.resolver import MustAsk
from qmd.errors import Refusal
from qmd.queues.local_queue import Reader
from qmd.runtime.bulk_turns import LARGE_BYTES, LARGE_REQUEST_BYTES
from qmd.runtime.fair_scheduler import Class
from qmd.runtime.shares import Owner
from qmd.runtime.writes import in_few_buffers

if TYPE_CHECKING:
    from qmd.control.components import Components
    from qmd.control.handler import Server

WRITE_BYTES_HIGH = 4 * 1024 * 1024
FLUSH_BYTES = 1024 * 1024  # of answers; more are written before the turn ends
REQUESTS_MAX = 4096  # of one client, begun and not answered
TURN_REQUESTS_MAX = 256  # of one client in one turn of the event loop; other clients follow
# Between two readings of the clock, each of which takes a microsecond.
FEW_REQUESTS, FEW_BYTES = 2, 4096


class ControlConnection(asyncio.Protocol):
    """The connection of one client."""

    is_local = True  # the other end is a program of this computer

    def __init__(self, components: Components, server: Server) -> None:
        self.components = components
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._buffer = FrameBuffer()
        self.reader = Reader()
        self.rights: Rights = NO_RIGHTS  # until it is identified
        server.connection_count += 1
        self.serial = server.connection_count  # in the order of connecting
        self._backlog: deque[memoryview] = deque()  # requests that have not begun
        self._memory = ClientMemory(self)
        busy_time = components.services.environment.busy_time
        self._reading = ReadingTurns(components.busy_turns, busy_time, self._regulate)
        self._is_counted = False  # against the memory budget
        self._waits_for_disk = False
        self._holds = 0  # requests that later ones wait for: for the directory, or for their parts
        self._under_way = 0  # requests that have begun and are not answered
        self._waits_for_turn = False
        self._waits_as_busy = False  # for a turn of the accounts with much work
        self._turn = -1  # the turn in which the last requests began
        self._taken = 0  # the number of requests that began in it
        self._output: list[bytes | bytearray] = []
        self._output_bytes = 0
        self._flush_due = False
        self._reading_paused = False
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._page = asyncio.Lock()
        self._looking: set[asyncio.Task[None]] = set()
        self._changing: set[asyncio.Task[None]] = set()
        self._transport: asyncio.Transport | None = None
        self.connected_at = self._loop.time()
        self._has_requested = False
        self.last_turn = 0  # of the last `SendOverLinks` that was not refused
        self.account: Account | None = None  # while it is connected

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self.components.services.lifecycle.stopping:
            self._transport.abort()  # it was accepted before the stop
            return
        client = client_of(self._transport.get_extra_info("socket"))
        user, process = (UNKNOWN, 0) if client is None else client.credentials[1::-1]
        shown = "" if client is None else client.shown
        is_operator = self.components.local_users.is_operator(client)
        owner = Owner(("user", user), process)
        if not self._server.places.admit(self, owner, is_operator=is_operator):
            self.components.services.log_limited("too_many_clients", str(user), client=shown)
            self._transport.abort()
            return
        self._join(owner.group, shown)
        self._identify(client)

    def change_account(self, owner: Owner, shown: str) -> bool:
        """Serve the client as one of another account; return False if there is no place for it."""
        account, self.account = self.account, None
        if account is not None:
            self.components.client_accounts.close(account, self._under_way)
        self._server.places.leave(self)
        if not self._server.places.admit(self, owner, is_operator=False):
            return False
        self._server.places.requested(self)
        self._join(owner.group, shown)
        return True

    def _join(self, account: Hashable, shown: str) -> None:
        """Begin to serve the client; `shown` is its name for people."""
        assert self._transport is not None
        self._server.connections[self] = None
        self.account = self.components.client_accounts.open(account)
        self.account.under_way += self._under_way
        self.reader.who = shown
        self._transport.set_write_buffer_limits(high=WRITE_BYTES_HIGH)

    def connection_lost(self, exc: Exception | None) -> None:
        self._memory.leave()
        self._reading.leave()
        self._server.places.leave(self)
        self._server.connections.pop(self, None)
        if self.account is not None:
            self.components.client_accounts.close(self.account, self._under_way)
            self.account = None
        self._transport = None
        self._backlog.clear()
        self._buffer.clear()
        self.let_go()

    def let_go(self) -> None:
        """Return the messages that it has taken, and abort its transactions."""
        for task in self._looking:
            task.cancel()
        if self._has_requested:
            self.components.message_receiver.leave(self.reader)
            self.components.transactions.leave(self)
            self.components.selective_receiver.leave(self)

    def pause_writing(self) -> None:
        self._may_write.clear()
        self._regulate()

    def resume_writing(self) -> None:
        self._memory.has_read()
        self._may_write.set()
        self._work()

    def data_received(self, data: bytes) -> None:
        self._memory.received(len(data))
        self._reading.begin(self._buffer.wanted_bytes)
        if (received := self._frames(data)) is None:
            return
        if received and not self._has_requested:
            self._has_requested = True
            self._server.places.requested(self)
        self._backlog += received
        if received and self.account is not None:
            self.account.received()
        self._reading.end(is_complete=bool(received))
        self.go_on()

    @property
    def is_read(self) -> bool:
        """Whether the connection is read."""
        return not self._reading_paused

    @property
    def memory_owner(self) -> Hashable:
        """The account of which the requests count against the budget."""
        return self.reader.who if self.account is None else self.account.name

    @property
    def is_idle(self) -> bool:
        """Whether it waits for no answer."""
        return not (self._under_way or self._backlog)

    def go_on(self) -> None:
        """Begin requests, after data has arrived or memory was released."""
        if self._memory.is_much:
            self._memory.count(self._buffer.wanted_bytes, may_wait=not self._backlog)
            self._is_counted = True
        self._work()

    def abort(self) -> None:
        """End the connection at once, without a further answer."""
        if self._transport is not None:
            self._transport.abort()

    def _frames(self, data: bytes) -> list[memoryview] | None:
        """Split some requests off; None: that has ended the connection."""
        try:
            if data:
                return self._buffer.feed(data, TURN_REQUESTS_MAX)
            return self._buffer.more(TURN_REQUESTS_MAX)
        except MemoryError:
            self._memory.end_without_memory()
        except FrameError as error:
            self._output.append(frames.frame(refused(0, Refusal("frame_too_large", str(error)))))
            self._write()
            self.close()
        return None

    def close(self) -> None:
        """End the connection after the answers so far; requests that have not begun do not."""
        self._backlog.clear()
        self._buffer.clear()
        if self._transport is not None:
            self._transport.close()

    def _identify(self, client: LocalClient | None) -> None:
        """Find the rights of the client; its requests wait until they are known."""
        rights = self.components.local_users.at_once(client)
        self.rights = rights or NO_RIGHTS
        if rights is None and client is not None:
            self._holds += 1
            self._keep(self._changing, self._look_up(client))

    async def _look_up(self, client: LocalClient) -> None:
        """Find the rights of a client with names that must be looked up."""
        try:
            self.rights = await self.components.local_users.identify(client)
        except Exception as bug:
            self.components.services.lifecycle.fail(bug)
            return
        self._go_on_in_order()

    def _work(self) -> None:
        """Begin requests, as long as the client reads its answers and this turn has time left."""
        if self._buffer.has_more and not self._backlog:
            self._backlog += self._frames(b"") or ()
        if self._backlog and self._may_begin() and not self._waits_for_turn:
            turns, account = self.components.local_turns, self.account
            is_bulk = len(self._backlog[0]) > LARGE_REQUEST_BYTES
            must_wait = is_bulk or (account is not None and account.must_wait)
            if turns.serial != self._turn:
                self._turn, self._taken = turns.serial, 0
            may_go_first = self._taken < TURN_REQUESTS_MAX and not must_wait
            if may_go_first and turns.has_time(self._reading.large):
                self._begin()
                if self._buffer.has_more and not self._backlog:
                    self._backlog += self._frames(b"") or ()
            if self._backlog and self._may_begin():
                self._waits_for_turn = True
                if self._backlog and len(self._backlog[0]) > LARGE_REQUEST_BYTES:
                    turns.wait(self, Class.BULK, self.memory_owner)
                elif must_wait:
                    self._waits_as_busy = True
                    self.components.busy_turns.wait(self, Class.HEAVY)
                else:
                    has_much = self._taken >= TURN_REQUESTS_MAX
                    turns.wait(self, Class.HEAVY if has_much else Class.LIGHT)
        self._regulate()

    def take_turn(self, _: float, __: int) -> None:
        was_busy, self._waits_as_busy = self._waits_as_busy, False
        self._waits_for_turn = False
        if self._may_begin():
            must_wait = self.account is not None and self.account.must_wait
            self._turn, self._taken = self.components.local_turns.serial, 0
            # Otherwise it waits once more, behind the accounts that have become active meanwhile.
            if was_busy or not must_wait or len(self._backlog[0]) > LARGE_REQUEST_BYTES:
                self._begin()
        self._work()

    def _may_begin(self) -> bool:
        return (
            bool(self._backlog)
            and not self._holds
            and self._under_way < REQUESTS_MAX
            and self._may_write.is_set()
            # A large request does not begin while the disk lags behind.
            and not (
                len(self._backlog[0]) > UNCOUNTED_BYTES
                and self.components.services.storage.congested
            )
        )

    def _begin(self) -> None:
        """Begin as many requests as this turn has time for, and one at least."""
        busy_time = self.components.services.environment.busy_time
        began_s, began, size, untimed = 0.0, 0, 0, 0
        try:
            self.components.services.memory.probe.look(REQUEST_COPIES * len(self._backlog[0]))
        except MemoryError:
            self._count_request(1)  # the refusal is an answer too
            frame = self._backlog.popleft()
            self._memory.begun(frame)
            self._refuse(frames.request_number(frame), no_memory())
            self._taken = TURN_REQUESTS_MAX
            return
        if len(self._backlog) > FEW_REQUESTS or len(self._backlog[0]) > FEW_BYTES:
            began_s = busy_time()
        account = self.account if began_s else None
        took_s, turn_s = 0.0, TURN_S if account is None else account.turn_s
        while True:
            frame_bytes = len(self._backlog[0])
            if began and frame_bytes > LARGE_BYTES:
                self._taken = TURN_REQUESTS_MAX  # its memory is probed in a separate turn
                break
            self._begin_one(self._backlog.popleft())
            began, size, untimed = began + 1, size + frame_bytes, untimed + frame_bytes
            self._taken += 1
            if began_s and (began % FEW_REQUESTS == 0 or untimed > FEW_BYTES):
                took_s, untimed = busy_time() - began_s, 0
                if took_s > turn_s:
                    self._taken = TURN_REQUESTS_MAX
            if self._taken >= TURN_REQUESTS_MAX or not (self._backlog and self._may_begin()):
                break
        if began_s:
            took_s = busy_time() - began_s
            self.components.local_turns.spend(took_s)
        if self.account is not None:
            self.account.spend(began, size, took_s)

    def _count_request(self, requests: int) -> None:
        """Count requests that begin, or that are answered."""
        self._under_way += requests
        if self.account is not None:
            self.account.under_way += requests

    def _begin_one(self, frame: memoryview) -> None:
        self._count_request(1)
        begun = partial(self._memory.begun, frame)
        if self.account is not None and self.account.under_way > REQUESTS_OF_ACCOUNT_MAX:
            begun()
            self._refuse(frames.request_number(frame), too_many_requests())
            return
        if (large := request_in_parts(frame)) is not None:
            self.change_in_parts(large.number, partial(send_in_parts, self, large), begun)
            return
        begun()
        try:
            request = frames.decode_request(frame)
        except msgspec.DecodeError as error:
            self._refuse(frames.request_number(frame), not_decoded(error))
            return
        del frame, begun  # a large body is copied once more while its packet is made
        self._handle(request)

    def _is_open(self) -> bool:
        return self._transport is not None

    def _handle(self, request: frames.Request) -> None:
        try:
            self._execute(request)
        except MustAsk as ask:
            self._holds += 1
            self._keep(self._changing, self._resolve_and_begin(request, ask))
        except (Refusal, InvalidName) as error:
            self._refuse(request.number, as_refusal(error))

    def _execute(self, request: frames.Request) -> None:
        """Begin a request, if its client has the rights for it.  Raises Refusal, MustAsk."""
        if not self.rights.are_all:
            request = self._admitted(request)
        self._server.handlers[type(request)](self, request)

    def _admitted(self, request: frames.Request) -> frames.Request:
        """Return the request if its client has the rights for it.  Raises Refusal.

        The refusal of a send makes its transaction fail.
        """
        try:
            return verb_rights.admit(self.components, self.rights, request)
        except Refusal as refusal:
            if isinstance(request, frames.Send) and request.transaction:
                claimed: Any = self.rights.claim(request)
                self.components.transactions.doom(claimed.transaction, self, refusal.text)
            raise

    async def _resolve_and_begin(self, request: Request, ask: MustAsk) -> None:
        """Begin again after the answer of the directory; later requests keep their order."""
        begin = partial(self._execute, request)
        try:
            await with_answers(self.components, ask, self._is_open, begin)
        except (Refusal, InvalidName) as error:
            self._refuse(request.number, as_refusal(error))
        except Exception as bug:
            self.components.services.lifecycle.fail(bug)
            return
        self._go_on_in_order()

    def _go_on_in_order(self) -> None:
        """Begin later requests: the messages of this one are in the open batch, or refused."""
        self._holds -= 1
        self._work()

    def _refuse(self, number: int, refusal: Refusal) -> None:
        self._answer(refused(number, refusal))

    def _answer(self, reply: frames.Reply) -> None:
        self._count_request(-1)
        self._output += (answer := answer_buffers(reply))
        self._output_bytes += self._reading.answered(reply, answer)
        is_last = not (self._under_way or self._backlog)  # no other answer will join it
        if is_last or self._output_bytes >= FLUSH_BYTES:
            self._write()
        if not (is_last or self._flush_due):
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def done(self, number: int, result: object = None) -> None:
        """Answer the request of that number: it is done."""
        self._answer(Done(number, result))

    def _flush(self) -> None:
        self._flush_due = False
        self._write()
        if self._backlog:
            self._work()

    def _write(self) -> None:
        if self._transport is not None and self._output:
            self._transport.writelines(in_few_buffers(self._output))
            if not self._may_write.is_set():
                self._memory.unread(self._transport.get_write_buffer_size())
        self._output, self._output_bytes = [], 0

    def _regulate(self) -> None:
        """Stop reading while the client does not read, requests wait, or the disk lags."""
        if self._transport is None or self._transport.is_closing():
            return
        behind = self.components.services.storage.congested
        if self._is_counted:
            self._is_counted = self._memory.is_much
            self._memory.count(self._buffer.wanted_bytes, may_wait=not self._backlog)
        waits = self._holds > 0 or self._memory.waits or self._reading.waits
        must_pause = behind or waits or bool(self._backlog) or not self._may_write.is_set()
        if must_pause != self._reading_paused:
            self._reading_paused = not self._reading_paused
            if self._reading_paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()
        if behind and not self._waits_for_disk:
            self._waits_for_disk = True
            self.components.services.storage.batch.when_durable(self._caught_up)

    def _caught_up(self) -> None:
        self._waits_for_disk = False
        self._work()

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Enter when the client reads and no other page of messages is being made for it."""
        async with self._page:
            await self._may_write.wait()
            yield

    def look(self, number: int, work: Coroutine[Any, Any, object]) -> None:
        """Start a verb that waits and changes nothing; it is cancelled with the connection."""
        self._keep(self._looking, self._finish(number, work, is_change=False))

    def change(self, number: int, work: Coroutine[Any, Any, object]) -> None:
        """Start a verb that waits in the middle of a change; it always runs to its end."""
        self._keep(self._changing, self._finish(number, work, is_change=True))

    def change_in_parts(
        self,
        number: int,
        work: Callable[[Hooks], Coroutine[Any, Any, object]],
        begun: Callable[[], None] = ignore,
    ) -> None:
        """Start a change that later requests wait for; `work(hooks)` calls `hooks.go_on` once."""
        self._holds += 1
        hooks = Hooks(self._is_open, self._admitted, begun, self._go_on_in_order)
        self.change(number, work(hooks))

    def _keep(self, tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _finish(
        self, number: int, work: Coroutine[Any, Any, object], *, is_change: bool
    ) -> None:
        try:
            self.done(number, await work)
        except Exception as error:
            # A change that lacks memory may be incomplete.
            refusal = None if is_change and isinstance(error, MemoryError) else failure(error)
            if refusal is None:
                self.components.services.lifecycle.fail(error)
            else:
                self._refuse(number, refusal)
