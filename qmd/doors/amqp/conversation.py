"""The conversation with one client: its links, and the connection that acts for it.

Events of the engine come in; requests to the daemon and changes of the engine go out.  Answers of
the daemon change the engine later, and `flush` then writes the effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import proton
import structlog

from qmd.client.errors import ClientError, NotConnected
from qmd.doors.amqp import engine as engines
from qmd.doors.amqp import held
from qmd.doors.amqp.conditions import DECODE, FORCED, LIMIT, UNREADABLE, AmqpFault, condition_of
from qmd.doors.amqp.engine import Engine
from qmd.doors.amqp.limits import ClientLimits
from qmd.doors.amqp.opening import Opening
from qmd.doors.amqp.outbox import Outbox
from qmd.doors.amqp.receiving import Consumer
from qmd.doors.amqp.removals import Removals
from qmd.doors.amqp.sending import Producer
from qmd.doors.amqp.transactions import Transactions

if TYPE_CHECKING:
    from qmd.doors.amqp.context import DoorContext
    from qmd.doors.amqp.resumption import LinkRecord

log = structlog.get_logger()

#: Policies of a target whose state does not end with its session (clause 3.5.4).
KEPT = (proton.Terminus.EXPIRE_WITH_CONNECTION, proton.Terminus.EXPIRE_NEVER)
CAPABILITIES = ("ANONYMOUS-RELAY", "DELAYED_DELIVERY")


class Conversation:
    """One client, from the opening of its AMQP connection to its end."""

    def __init__(
        self,
        door: DoorContext,
        engine: Engine,
        principals: tuple[str, ...],
        flush: Callable[[], None],
        limits: ClientLimits,
    ) -> None:
        self.door = door
        self.engine = engine
        self.limits = limits
        self.principals = principals
        self.control = door.connect(principals, self._lost)
        self.outbox = Outbox(self)
        self.removals = Removals(self)
        self.transactions = Transactions(self)
        #: The links by proton's pointers: objects with the methods that their events need.
        self.links: dict[Any, Any] = {}
        #: Those and the ones that have ended, until proton frees them.
        self.kept: dict[Any, Any] = {}
        self._attached: dict[Any, Any] = {}  # all links of proton's that are not freed
        self.opening = Opening(self)
        self.unsettled_count = self.unsettled_bytes = self.partial_bytes = 0
        self.settled_count = 0  # messages that the client has settled, since the beginning
        self.is_held = False  # a link could send more, but much waits to be written
        self.is_slow = False  # the client does not read, or the engine holds much for it
        self.is_over = False
        self._flush = flush
        self._tasks: set[asyncio.Task[None]] = set()
        self._expiring: set[asyncio.Task[None]] = set()

    @property
    def container(self) -> str:
        """The container id of the client."""
        return self.engine.connection.remote_container or ""

    @property
    def unsettled_room(self) -> int:
        """How many more messages may be sent before the client settles some."""
        if self.unsettled_bytes >= self.limits.unsettled_bytes:
            return 0
        return self.limits.unsettled - self.unsettled_count

    @property
    def awaits_answer(self) -> bool:
        """Whether the client may wait for an answer to what it sends: to anything but outcomes that
        it has settled itself."""
        return (
            self.is_over
            or self.removals.are_awaited
            or not all([isinstance(link, Consumer) for link in self.links.values()])
        )

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine as long as the conversation."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._expiring.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            if isinstance(error, UNREADABLE):
                self.fail(AmqpFault(DECODE, f"a frame has a value that cannot be read: {error}"))
                return
            log.error("amqp_client_failed", exc_info=error)
            self.fail(AmqpFault("amqp:internal-error", "the door failed: see its log"))

    def flush(self) -> None:
        """Write soon what the engine has for the client."""
        self._flush()

    # Events of the engine.

    def work(self) -> None:
        """Process the events of the engine, and begin the requests that they cause."""
        flows: dict[Any, None] = {}  # the last flow of a link has all credit
        try:
            for kind, event in self.engine.events():
                if kind == engines.DELIVERY:
                    self._delivery(event)
                elif kind == engines.FLOW:
                    flows[event] = None
                else:
                    self._other(event)
        except UNREADABLE as error:
            self.fail(AmqpFault(DECODE, f"a frame has a value that cannot be read: {error}"))
        for pointer in flows:
            self._flow(pointer)
        self.outbox.start()
        self.removals.start()

    def _delivery(self, delivery: Any) -> None:
        link = self.links.get(engines.link_of(delivery))
        if link is None:
            return
        if isinstance(link, Producer):
            link.delivered(delivery)
        else:
            link.updated(delivery)

    def _flow(self, pointer: Any) -> None:
        link = self.links.get(pointer)
        if link is not None and not isinstance(link, Producer):
            link.flow()

    def _other(self, event: Any) -> None:
        if self.is_over:
            return  # the connection is closed at this end
        match event.type:
            case proton.Event.CONNECTION_REMOTE_OPEN:
                self._open(event.connection)
            case proton.Event.CONNECTION_REMOTE_CLOSE:
                self.spawn(self._close())
            case proton.Event.SESSION_REMOTE_OPEN:
                event.session.open()
            case proton.Event.SESSION_REMOTE_CLOSE:
                self.spawn(self._close_session(held.session_of(event)))
            case proton.Event.LINK_REMOTE_OPEN:
                self._attach(held.link_of(event))
            case proton.Event.LINK_REMOTE_CLOSE | proton.Event.LINK_REMOTE_DETACH:
                closed = event.type == proton.Event.LINK_REMOTE_CLOSE
                self._detach(held.link_of(event), closed=closed)
            case proton.Event.TRANSPORT_ERROR | proton.Event.TRANSPORT_TAIL_CLOSED:
                self.end()

    def _open(self, connection: Any) -> None:
        connection.offered_capabilities = [proton.symbol(each) for each in CAPABILITIES]
        connection.properties = {
            proton.symbol("product"): "qmd",
            proton.symbol("version"): self.door.version,
        }
        connection.open()

    def _attach(self, link: Any) -> None:
        if link.name is None:
            # proton reads it, but writes no frame that names the link.
            self.fail(AmqpFault(DECODE, "an attach frame has no name, or one that is no string"))
            return
        self._attached[link._impl] = link
        if len(self.links) >= self.limits.links:
            text = f"a connection may have {self.limits.links} links"
            self.opening.refuse(link, AmqpFault(LIMIT, text))
            return
        self.opening.begin(link)

    def _detach(self, link: Any, *, closed: bool) -> None:
        served = self._end_link(link, closed=closed)
        if link.state & proton.Endpoint.LOCAL_CLOSED:
            self._free(link)
        elif (served is None or served.is_settled) and not (closed and self._record(link)):
            self._answer_end(link, closed=closed)
        else:
            self.spawn(self._detach_later(link, closed=closed))

    def _end_link(self, link: Any, *, closed: bool) -> Any:
        """Give back the messages of a link that its client ends; return the object for it."""
        served = self.links.pop(link._impl, None)
        self.opening.forget(link)
        if served is not None:
            served.close()
            if closed:
                self.opening.gone(served)
        return served

    async def _detach_later(self, link: Any, *, closed: bool) -> None:
        """Answer the end of a link after its messages were committed and acknowledged.

        With `closed` also its state ends, before the answer: the client may connect again then.
        """
        await self._settled()
        if closed and (record := self._record(link)) is not None:
            await record.end(self.control)
        if not self.is_over:
            self._answer_end(link, closed=closed)
            self.flush()

    async def _settled(self) -> None:
        """Wait until everything that came before has been committed or refused."""
        self.outbox.start()
        self.removals.start()
        await self.outbox.barrier()
        await self.removals.barrier()

    def _answer_end(self, link: Any, *, closed: bool) -> None:
        """Answer the end of a link."""
        if link.state & proton.Endpoint.LOCAL_UNINIT:
            link.open()  # it was being opened: the client waits for both answers
        if closed:
            link.close()
        else:
            link.detach()
        self._free(link)

    def _record(self, link: Any) -> LinkRecord | None:
        """Return the record of a link over which messages came, if it has one."""
        record: LinkRecord | None = getattr(self.kept.get(link._impl), "record", None)
        return record if record is not None and record.is_used else None

    def _free(self, link: Any) -> None:
        """Free a link: its deliveries end, and proton uses their memory for others."""
        self._attached.pop(link._impl, None)
        served = self.kept.pop(link._impl, None)
        if served is not None:
            served.is_freed = True
        link.free()

    async def _close_session(self, session: Any) -> None:
        """Answer the end of a session, after everything that came before it."""
        links = [link for link in self._attached.values() if link.session == session]
        for link in links:
            self._end_link(link, closed=True)
        await self._settled()
        if not self.is_over:
            session.close()
            for link in links:
                self._expire(link)
                self._free(link)
            session.free()
            self.flush()

    def _expire(self, link: Any) -> None:
        """Forget the deliveries of a link whose session has ended, unless they are to be kept."""
        record = self._record(link)
        if record is not None and link.remote_target.expiry_policy not in KEPT:
            self._expiring.add(self.spawn(record.end(self.control)))

    # Effects that several parts have.

    def more_room(self) -> None:
        """Take more messages: some were settled, or written."""
        if not self.is_over:
            for link in list(self.links.values()):
                if not isinstance(link, Producer):
                    link.take()
            self.flush()

    def dropped(self, item: Any, condition: proton.Condition) -> None:
        """Log a message that was refused, and of which the sender expects no answer."""
        log.warning(
            "amqp_message_dropped",
            client=self.principals[0],
            queue=item.producer.address,
            reason=condition.description,
        )

    def fail(self, failure: Exception) -> None:
        """Close the connection with an error condition."""
        if not self.is_over:
            self.end()
            self.engine.connection.condition = condition_of(failure)
            self.engine.connection.close()
            self.flush()

    def _lost(self, error: NotConnected) -> None:
        """End: the daemon has ended, so that the outcome of messages under way is not known."""
        self.fail(AmqpFault(FORCED, f"{error.text}; connect again"))

    async def _close(self) -> None:
        """Answer the end of the connection, after everything that came before it."""
        await self._settled()
        for link in self._attached.values():
            self._expire(link)
        self.end()
        self.engine.connection.close()
        self.flush()

    def end(self) -> None:
        """Return all messages that are not settled: the client has left.

        Messages that it has settled are removed, as it expects.  Messages that it has sent, and
        that were not passed on yet, are dropped if it expects an answer: it will send them again.
        """
        if self.is_over:
            return
        self.is_over = True
        self.opening.close()
        self.links.clear()
        self.outbox.drop_unanswered()
        self.outbox.start()
        self.removals.start()
        self.spawn(self._finish())

    async def _finish(self) -> None:
        await self.outbox.barrier()
        await self.removals.barrier()
        if self._expiring:
            await asyncio.wait(self._expiring)
        self.control.close()

    async def connected(self) -> None:
        """Open the connection to the daemon.  Raises ClientError."""
        try:
            await self.control.open()
        except ClientError as error:
            log.warning("amqp_client_refused", client=self.principals[0], reason=str(error))
            raise
