"""The control socket: what the command line and applications ask, answered.

Requests are pipelined, answers leave in batches, one write for each turn of the
event loop.  A request that changes something is answered by a callback of its
commit; see `qmd/frames.py` for the frames.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import stat
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
import structlog

from qmd import frames, overview, pipeline_control, redirecting
from qmd.administration import Purged
from qmd.directory import serving
from qmd.directory.explaining import explain
from qmd.directory.resolving import MustAsk, Resolution
from qmd.directory_frames import ExplainName
from qmd.frames import Done, FrameBuffer, FrameError, Refused, Request
from qmd.local_queue import LocalQueue, Reader
from qmd.refusal import Refusal
from qmd.resending import Changes
from storage.errors import StorageError
from storage.keys import LOOKUP_MASK

if TYPE_CHECKING:
    from qmd.manager import QueueManager
    from qmd.outgoing_queue import OutgoingQueue

log = structlog.get_logger()

WRITE_BYTES_HIGH = 4 * 1024 * 1024
FLUSH_BYTES = 1024 * 1024  # of answers that are not kept back for others of the same turn
REQUESTS_MAX = 4096  # of one client that have not been answered
LIMIT_MAX = 4096  # messages in one answer
WAIT_S_MAX = 1e9
CLIENTS_MAX = 1024
REASON_CHARACTERS_MAX = 1000  # it is kept with each message

_CREDENTIALS = struct.Struct("iII")  # struct ucred: process, user, group


class ControlServer:
    """Listens on the Unix socket; one `ControlConnection` for each client."""

    def __init__(self, manager: QueueManager) -> None:
        self._manager = manager
        self._server: asyncio.Server | None = None
        self.connections: dict[ControlConnection, None] = {}
        self.connection_count = 0

    async def start(self, path: Path, mode: int, group: str) -> None:
        """Raises OSError, or LookupError for a group that does not exist."""
        _remove_socket(path)
        listener = self._manager.environment.bind(path, mode, group)
        try:
            self._server = await asyncio.get_running_loop().create_unix_server(
                self._connected, sock=listener
            )
        except BaseException:
            listener.close()
            raise

    async def stop(self, path: Path) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.close()
        _remove_socket(path)

    def _connected(self) -> ControlConnection:
        return ControlConnection(self._manager, self)


class ControlConnection(asyncio.Protocol):
    """One client."""

    def __init__(self, manager: QueueManager, server: ControlServer) -> None:
        self._manager = manager
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._buffer = FrameBuffer()
        self._reader = Reader()
        server.connection_count += 1
        self._serial = server.connection_count  # a connection that is older has a lower one
        self._backlog: deque[memoryview] = deque()  # asked for, and not begun
        self._asking = False  # the directory, about the next request: those behind it wait
        self._under_way = 0  # begun, and not answered
        self._output: list[bytes] = []
        self._output_bytes = 0
        self._flush_due = False
        self._reading_paused = False
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._page = asyncio.Lock()
        self._looking: set[asyncio.Task[None]] = set()
        self._changing: set[asyncio.Task[None]] = set()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if len(self._server.connections) >= CLIENTS_MAX:
            log.warning("too_many_clients", limit=CLIENTS_MAX)
            self._transport.abort()
            return
        self._server.connections[self] = None
        self._reader.who = _who(self._transport)
        self._transport.set_write_buffer_limits(high=WRITE_BYTES_HIGH)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.pop(self, None)
        self._transport = None
        self._backlog.clear()
        for task in self._looking:
            task.cancel()
        self._manager.reading.leave(self._reader)
        self._manager.transactions.leave(self)
        self._manager.picking.leave(self)

    def pause_writing(self) -> None:
        self._may_write.clear()
        self._regulate()

    def resume_writing(self) -> None:
        self._may_write.set()
        self._work()

    def data_received(self, data: bytes) -> None:
        try:
            received = self._buffer.feed(data)
        except FrameError as error:
            self._output.append(frames.frame(_refused(0, Refusal("frame_too_large", str(error)))))
            self._write()
            self.close()
            return
        self._backlog += received
        self._work()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # Within.

    def _work(self) -> None:
        """Begin with what was asked for, as long as the answers find their way out."""
        while (
            self._backlog
            and not self._asking
            and self._under_way < REQUESTS_MAX
            and self._may_write.is_set()
        ):
            self._under_way += 1
            frame = self._backlog.popleft()
            try:
                request = frames.decode_request(frame)
            except msgspec.DecodeError as error:
                number = frames.request_number(frame)
                self._refuse(
                    number,
                    Refusal("request_not_understood", f"the request is not understood: {error}"),
                )
                continue
            self._handle(request)
        self._regulate()

    def _handle(self, request: frames.Request) -> None:
        try:
            _HANDLERS[type(request)](self, request)
        except MustAsk as ask:
            self._asking = True
            self._keep(self._changing, self._ask_and_go_on(request, ask))
        except Refusal as refusal:
            self._refuse(request.number, refusal)

    async def _ask_and_go_on(self, request: Request, ask: MustAsk) -> None:
        """Begin again when the directory has answered; what came behind it stays behind it."""
        try:
            await self._begin_again(request, ask)
        except Exception as bug:
            self._manager.fail(bug)
            return
        self._asking = False
        self._work()

    async def _begin_again(self, request: Request, ask: MustAsk) -> None:
        manager, answers = self._manager, dict[str, Resolution | Refusal]()
        while self._transport is not None:  # or nothing was done, and nobody waits for it
            try:
                answers[ask.name] = await manager.resolver.resolve_text(ask.name)
            except Refusal as refusal:
                answers[ask.name] = refusal
            manager.routes.answers = answers
            try:
                _HANDLERS[type(request)](self, request)
                return
            except MustAsk as further:
                ask = further
            except Refusal as refusal:
                self._refuse(request.number, refusal)
                return
            finally:
                manager.routes.answers = {}

    def _refuse(self, number: int, refusal: Refusal) -> None:
        self._answer(_refused(number, refusal))

    def _answer(self, reply: frames.Reply) -> None:
        answer = frames.frame(reply)
        self._under_way -= 1
        self._output.append(answer)
        self._output_bytes += len(answer)
        if self._output_bytes >= FLUSH_BYTES:
            self._write()
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _done(self, number: int, result: object = None) -> None:
        self._answer(Done(number, result))

    def _flush(self) -> None:
        self._flush_due = False
        self._write()
        if self._backlog:
            self._work()

    def _write(self) -> None:
        if self._transport is not None and self._output:
            self._transport.write(b"".join(self._output))
        self._output.clear()
        self._output_bytes = 0

    def _regulate(self) -> None:
        """Read no further while the client does not, or while we or the disk are behind."""
        if self._transport is None or self._transport.is_closing():
            return
        behind = self._manager.storage.congested
        must_pause = behind or bool(self._backlog) or not self._may_write.is_set()
        if must_pause != self._reading_paused:
            self._reading_paused = not self._reading_paused
            if self._reading_paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()
        if behind:
            self._manager.storage.batch.when_durable(self._regulate)

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """One page of messages at a time, and none for a client that does not read."""
        async with self._page:
            await self._may_write.wait()
            yield

    def _look(self, number: int, work: Coroutine[Any, Any, object]) -> None:
        """For a verb that waits and changes nothing: it ends with the connection."""
        self._start(self._looking, number, work)

    def _change(self, number: int, work: Coroutine[Any, Any, object]) -> None:
        """For a verb that waits in the middle of a change: half of it must not be left undone."""
        self._start(self._changing, number, work)

    def _start(
        self,
        tasks: set[asyncio.Task[None]],
        number: int,
        work: Coroutine[Any, Any, object],
    ) -> None:
        self._keep(tasks, self._finish(number, work))

    def _keep(self, tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _finish(self, number: int, work: Coroutine[Any, Any, object]) -> None:
        try:
            self._done(number, await work)
        except Refusal as refusal:
            self._refuse(number, refusal)
        except StorageError as error:
            self._refuse(number, Refusal("storage_failed", f"the storage failed: {error}"))
        except Exception as bug:
            self._manager.fail(bug)

    # The verbs, in the order of `qmd/frames.py`.

    def _hello(self, request: frames.Hello) -> None:
        if request.version != frames.VERSION:
            raise Refusal(
                "versions_differ",
                f"the client speaks version {request.version} of the control protocol, this queue"
                f" manager version {frames.VERSION}",
                "Use client and daemon of the same release.",
            )
        self._done(request.number, overview.hello(self._manager))

    def _login(self, request: frames.Login) -> None:
        self._hello(frames.Hello(request.number, request.version))

    def _send(self, request: frames.Send) -> None:
        if request.transaction:
            ids = self._manager.transactions.send(request.transaction, self, request.messages)
            self._done(request.number, ids)
        elif request.once:
            self._change(request.number, self._send_once(request))
        else:
            self._manager.transactions.refuse_sealed(request.token, self._serial)
            self._manager.sending.send(
                request.messages, request.token, partial(self._done, request.number)
            )

    async def _send_once(self, request: frames.Send) -> object:
        if not request.token:
            raise Refusal(
                "no_token",
                "a message that is to be sent once has no id by which it can be known again",
                "Choose one: up to 64 bytes of your own, another for each message.",
            )
        while True:
            try:
                return await self._manager.transactions.send_once(
                    request.messages, request.token, self._serial
                )
            except MustAsk as ask:
                await self._manager.resolver.resolve_text(ask.name)

    def _take(self, request: frames.Take) -> None:
        queue = self._manager.routes.find_queue(request.queue)
        self._manager.picking.check_share(queue, self)
        limit, wait_s = _limit(request.limit), _wait_s(request.wait_s)
        answer = partial(self._done, request.number)
        if request.transaction:
            self._manager.transactions.take(request.transaction, self, queue, limit, wait_s, answer)
        else:
            self._manager.reading.take(self._reader, queue, limit, wait_s, answer)

    def _take_chosen(self, request: frames.TakeChosen) -> None:
        queue = self._manager.routes.find_queue(request.queue)
        self._manager.picking.check_share(queue, self)
        reader = self._reader
        if request.transaction:
            reader = self._manager.transactions.reader(request.transaction, self)
        limit, wait_s = _limit(request.limit), _wait_s(request.wait_s)
        work = self._manager.picking.take(reader, queue, request.choice, limit, wait_s)
        self._look(request.number, work)

    def _look_at(self, request: frames.Look) -> None:
        queue = self._manager.routes.find_queue(request.queue)
        self._look(request.number, self._look_beside(queue, request))

    async def _look_beside(self, queue: LocalQueue, request: frames.Look) -> object:
        lookup_id = _place(request.lookup_id)
        message = await self._manager.picking.look(queue, request.which, lookup_id)
        return [] if message is None else [message]

    def _open_exclusive(self, request: frames.OpenExclusive) -> None:
        queue = self._manager.routes.find_queue(request.queue)
        self._manager.picking.open(queue, self)
        self._done(request.number, None)

    def _close_exclusive(self, request: frames.CloseExclusive) -> None:
        queue = self._manager.routes.find_queue(request.queue)
        self._manager.picking.close(queue, self)
        self._done(request.number, None)

    def _remove(self, request: frames.Remove) -> None:
        self._manager.transactions.refuse_sealed(request.token, self._serial)
        queue = self._manager.routes.find_queue(request.queue)
        self._manager.reading.check_can_be_told(self._reader, queue, request.lookup_ids)
        self._manager.reading.remove(
            self._reader,
            queue,
            request.lookup_ids,
            request.token,
            partial(self._done, request.number),
        )

    def _reject(self, request: frames.Reject) -> None:
        queue = self._manager.routes.find_queue(request.queue)
        self._manager.reading.check_can_be_told(self._reader, queue, request.lookup_ids)
        self._manager.reading.reject(
            self._reader,
            queue,
            request.lookup_ids,
            _reason(request.reason),
            request.token,
            partial(self._done, request.number),
        )

    def _give_back(self, request: frames.GiveBack) -> None:
        queue = self._manager.routes.find_queue(request.queue)
        self._done(
            request.number,
            self._manager.reading.give_back(self._reader, queue, request.lookup_ids),
        )

    def _peek(self, request: frames.Peek) -> None:
        queue = self._manager.routes.find_queue(request.queue)
        start, limit, wait_s = _place(request.start), _limit(request.limit), _wait_s(request.wait_s)
        work = self._manager.reading.peek(queue, start, limit, wait_s, self._turn)
        self._look(request.number, work)

    def _move(self, request: frames.Move) -> None:
        self._manager.transactions.refuse_sealed(request.token, self._serial)
        queue = self._manager.routes.find_queue(request.queue)
        work = self._manager.moving.move(
            queue,
            request.target,
            request.choice,
            request.piece,
            dry_run=request.dry_run,
            token=request.token,
        )
        self._change(request.number, self._once(request.token, work))

    def _resend(self, request: frames.Resend) -> None:
        self._manager.transactions.refuse_sealed(request.token, self._serial)
        queue = self._manager.routes.find_queue(request.queue)
        work = self._manager.resending.resend(
            queue,
            request.choice,
            request.piece,
            Changes(request.to, request.label, request.body),
            keep=request.keep,
            dry_run=request.dry_run,
            token=request.token,
        )
        self._change(request.number, self._once(request.token, work))

    def _dead_letters(self, request: frames.DeadLetters) -> None:
        queue = self._manager.routes.find_queue(request.queue)
        self._look(request.number, self._manager.dead_letters.groups(queue))

    def _import(self, request: frames.Import) -> None:
        self._manager.transactions.refuse_sealed(request.token, self._serial)
        self._manager.importing.take_in(
            self._manager.routes.find_queue(request.queue),
            request.messages,
            dry_run=request.dry_run,
            token=request.token,
            done=partial(self._done, request.number),
        )

    async def _once(self, token: bytes, work: Coroutine[Any, Any, object]) -> object:
        """What takes more than one turn, and is not done twice for one token."""
        async with self._manager.at_work(token) as done_before:
            if done_before is not None:
                work.close()
                return done_before
            return await work

    def _outcome(self, request: frames.Outcome) -> None:
        self._look(request.number, self._manager.outcome(request.token, self._serial))

    def _begin(self, request: frames.Begin) -> None:
        idle_s = _wait_s(request.idle_s)
        self._manager.transactions.begin(request.transaction, self, idle_s)
        self._done(request.number, None)

    def _settle(self, request: frames.Settle) -> None:
        queue = self._manager.routes.find_queue(request.queue)
        self._change(
            request.number,
            self._manager.transactions.settle(
                request.transaction,
                self,
                queue,
                request.lookup_ids,
                target=request.target,
                reason=_reason(request.reason),
            ),
        )

    def _commit(self, request: frames.Commit) -> None:
        self._manager.transactions.commit(
            request.transaction, self, partial(self._done, request.number)
        )

    def _abort(self, request: frames.Abort) -> None:
        count = self._manager.transactions.abort(request.transaction, self, request.reason)
        self._done(request.number, count)

    def _enlist(self, request: frames.Enlist) -> None:
        work = self._manager.branches.enlist(request.transaction, self, request.resource)
        self._change(request.number, work)

    def _forget_branch(self, request: frames.ForgetBranch) -> None:
        work = self._manager.branches.forget(request.transaction, request.resource)
        self._change(request.number, work)

    def _list_branches(self, request: frames.ListBranches) -> None:
        self._look(request.number, self._manager.branches.overview())

    def _list_transactions(self, request: frames.ListTransactions) -> None:
        self._done(request.number, overview.transactions(self._manager))

    def _create_queue(self, request: frames.CreateQueue) -> None:
        self._change(request.number, self._create(request))

    async def _create(self, request: frames.CreateQueue) -> object:
        queue = await self._manager.administration.create(
            request.name,
            transactional=request.transactional,
            label=request.label,
            journal=request.journal,
            quota_bytes=request.quota_bytes,
            journal_quota_bytes=request.journal_quota_bytes,
            public=request.public,
        )
        return overview.queue(queue)

    def _set_queue(self, request: frames.SetQueue) -> None:
        queue = self._manager.routes.find_queue(request.name)
        self._change(request.number, self._set(queue, request))

    async def _set(self, queue: LocalQueue, request: frames.SetQueue) -> object:
        await self._manager.administration.change(
            queue,
            quota_bytes=request.quota_bytes,
            journal_quota_bytes=request.journal_quota_bytes,
            journal=request.journal,
            label=request.label,
        )
        return overview.queue(queue)

    def _delete_queue(self, request: frames.DeleteQueue) -> None:
        queue = self._manager.routes.find_queue(request.name)
        work = self._manager.administration.delete(queue, dry_run=request.dry_run)
        self._change(request.number, _counted(work))

    def _purge_queue(self, request: frames.PurgeQueue) -> None:
        queue = self._manager.routes.find_queue(request.name)
        work = self._manager.administration.purge(queue, request.choice, dry_run=request.dry_run)
        self._change(request.number, _counted(work))

    def _list_queues(self, request: frames.ListQueues) -> None:
        self._done(
            request.number,
            [
                overview.queue(queue)
                for queue in self._manager.queues.values()
                if request.system or not queue.holds_ended
            ],
        )

    def _show_queue(self, request: frames.ShowQueue) -> None:
        self._done(request.number, overview.queue(self._manager.routes.find_queue(request.name)))

    def _list_outgoing(self, request: frames.ListOutgoing) -> None:
        self._done(
            request.number,
            [
                overview.outgoing_queue(self._manager, queue)
                for queue in self._manager.outgoing.queues
            ],
        )

    def _show_outgoing(self, request: frames.ShowOutgoing) -> None:
        queue = self._manager.routes.find_outgoing(request.destination)
        self._look(request.number, overview.outgoing_details(self._manager, queue))

    def _list_awaiting(self, request: frames.ListAwaiting) -> None:
        queue = self._manager.routes.find_outgoing(request.destination)
        start, limit = _place(request.start), _limit(request.limit)
        self._look(request.number, self._awaiting(queue, start, limit))

    async def _awaiting(self, queue: OutgoingQueue, start: int, limit: int) -> object:
        rows = await self._manager.confirmations.page(queue, start, limit)
        return overview.awaiting(self._manager, rows)

    def _give_up_awaiting(self, request: frames.GiveUpAwaiting) -> None:
        queue = self._manager.routes.find_outgoing(request.destination)
        self._change(request.number, self._give_up(queue))

    async def _give_up(self, queue: OutgoingQueue) -> object:
        return {"messages": await self._manager.confirmations.give_up(queue)}

    def _pause_outgoing(self, request: frames.PauseOutgoing) -> None:
        self._change(request.number, self._set_paused(request.destination, paused=True))

    def _resume_outgoing(self, request: frames.ResumeOutgoing) -> None:
        self._change(request.number, self._set_paused(request.destination, paused=False))

    async def _set_paused(self, destination: str, *, paused: bool) -> object:
        queue = self._manager.routes.find_outgoing(destination)
        await self._manager.outgoing.set_paused(queue, paused)
        return overview.outgoing_queue(self._manager, queue)

    def _purge_outgoing(self, request: frames.PurgeOutgoing) -> None:
        queue = self._manager.routes.find_outgoing(request.destination)
        self._change(request.number, self._purge_waiting(queue))

    async def _purge_waiting(self, queue: OutgoingQueue) -> object:
        return {"messages": await self._manager.undelivered.purge(queue)}

    def _kick_outgoing(self, request: frames.KickOutgoing) -> None:
        queue = self._manager.routes.find_outgoing(request.destination)
        self._manager.outgoing.kick(queue)
        self._done(request.number, overview.outgoing_queue(self._manager, queue))

    def _list_sequences(self, request: frames.ListSequences) -> None:
        self._done(request.number, overview.sequences(self._manager))

    def _list_sessions(self, request: frames.ListSessions) -> None:
        self._done(request.number, overview.sessions(self._manager))

    def _status(self, request: frames.Status) -> None:
        self._done(request.number, overview.status(self._manager))

    def _why(self, request: frames.Why) -> None:
        work = self._manager.inquiry.why(request.message, request.queue, ask=request.ask)
        self._look(request.number, work)

    def _events(self, request: frames.Events) -> None:
        work = self._manager.event_log.read(
            cursor=request.cursor,
            limit=request.limit,
            last=request.last,
            queue=request.queue,
            kinds=request.kinds,
            since_ms=request.since_ms,
            until_ms=request.until_ms,
            wait_s=_wait_s(request.wait_s),
        )
        self._look(request.number, work)

    # The verbs of other modules.

    def _pipeline(self, request: frames.Request) -> None:
        verb = pipeline_control.VERBS[type(request)]
        work = verb.work(self._manager, request)
        if verb.is_page:
            work = self._page_of(work)
        start = self._change if verb.changes else self._look
        start(request.number, work)

    async def _page_of(self, work: Coroutine[Any, Any, object]) -> object:
        try:
            async with self._turn():
                return await work
        finally:
            work.close()  # its turn may never have come


_HANDLERS: dict[type, Callable[[ControlConnection, Any], None]] = {
    frames.Hello: ControlConnection._hello,
    frames.Login: ControlConnection._login,
    frames.Send: ControlConnection._send,
    frames.Take: ControlConnection._take,
    frames.TakeChosen: ControlConnection._take_chosen,
    frames.Look: ControlConnection._look_at,
    frames.OpenExclusive: ControlConnection._open_exclusive,
    frames.CloseExclusive: ControlConnection._close_exclusive,
    frames.Remove: ControlConnection._remove,
    frames.Reject: ControlConnection._reject,
    frames.GiveBack: ControlConnection._give_back,
    frames.Peek: ControlConnection._peek,
    frames.Move: ControlConnection._move,
    frames.Resend: ControlConnection._resend,
    frames.DeadLetters: ControlConnection._dead_letters,
    frames.Import: ControlConnection._import,
    frames.Outcome: ControlConnection._outcome,
    frames.Begin: ControlConnection._begin,
    frames.Settle: ControlConnection._settle,
    frames.Commit: ControlConnection._commit,
    frames.Abort: ControlConnection._abort,
    frames.Enlist: ControlConnection._enlist,
    frames.ForgetBranch: ControlConnection._forget_branch,
    frames.ListBranches: ControlConnection._list_branches,
    frames.ListTransactions: ControlConnection._list_transactions,
    frames.CreateQueue: ControlConnection._create_queue,
    frames.SetQueue: ControlConnection._set_queue,
    frames.DeleteQueue: ControlConnection._delete_queue,
    frames.PurgeQueue: ControlConnection._purge_queue,
    frames.ListQueues: ControlConnection._list_queues,
    frames.ShowQueue: ControlConnection._show_queue,
    frames.ListOutgoing: ControlConnection._list_outgoing,
    frames.ShowOutgoing: ControlConnection._show_outgoing,
    frames.ListAwaiting: ControlConnection._list_awaiting,
    frames.GiveUpAwaiting: ControlConnection._give_up_awaiting,
    frames.PauseOutgoing: ControlConnection._pause_outgoing,
    frames.ResumeOutgoing: ControlConnection._resume_outgoing,
    frames.KickOutgoing: ControlConnection._kick_outgoing,
    frames.PurgeOutgoing: ControlConnection._purge_outgoing,
    frames.ListSequences: ControlConnection._list_sequences,
    frames.ListSessions: ControlConnection._list_sessions,
    frames.Status: ControlConnection._status,
    frames.Why: ControlConnection._why,
    frames.Events: ControlConnection._events,
    **dict.fromkeys(pipeline_control.VERBS, ControlConnection._pipeline),
}


def _asked(
    work: Callable[[QueueManager, Any], Coroutine[Any, Any, object]], *, changes: bool
) -> Callable[[ControlConnection, Any], None]:
    """The handler of a verb whose work is done in another module."""

    def handle(connection: ControlConnection, request: Request) -> None:
        tasks = connection._changing if changes else connection._looking
        connection._start(tasks, request.number, work(connection._manager, request))

    return handle


_HANDLERS |= {verb: _asked(work, changes=False) for verb, work in serving.LOOKS.items()}
_HANDLERS |= {verb: _asked(work, changes=True) for verb, work in serving.CHANGES.items()}
_HANDLERS |= {verb: _asked(work, changes=True) for verb, work in redirecting.CHANGES.items()}
_HANDLERS[ExplainName] = _asked(explain, changes=False)


def _refused(number: int, refusal: Refusal) -> Refused:
    return Refused(number, refusal.code, refusal.text, refusal.remedy, refusal.id)


async def _counted(work: Coroutine[Any, Any, Purged]) -> dict[str, int]:
    return (await work)._asdict()


def _who(transport: asyncio.Transport) -> str:
    """The process at the other end, for people; nothing where that cannot be told."""
    connected = transport.get_extra_info("socket")
    if connected is None:
        return ""
    try:
        credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except OSError:
        return ""
    process, user, _ = _CREDENTIALS.unpack(credentials)
    return f"a connection of process {process} of user {user}"


def _limit(limit: int) -> int:
    if limit < 1:
        raise Refusal("bad_limit", f"{limit} messages cannot be asked for", "Ask for 1 or more.")
    return min(limit, LIMIT_MAX)


def _reason(reason: str) -> str:
    if len(reason) > REASON_CHARACTERS_MAX:
        raise Refusal(
            "reason_too_long",
            f"the reason has {len(reason)} characters; {REASON_CHARACTERS_MAX} are allowed",
            "Put the rest into a log.",
        )
    return reason


def _wait_s(wait_s: float) -> float:
    if not wait_s <= WAIT_S_MAX:  # no comparison is true of what is not a number
        raise Refusal("bad_wait", f"nobody can wait for {wait_s} s", "Without an end it is -1.")
    return wait_s


def _place(lookup_id: int) -> int:
    if not 0 <= lookup_id <= LOOKUP_MASK:
        raise Refusal("bad_lookup_id", f"no message can have the lookup id {lookup_id}")
    return lookup_id


def _remove_socket(path: Path) -> None:
    """Ours, or that of a daemon that was killed: the lock on the data folder says it is gone."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(path.stat().st_mode):
            path.unlink()
