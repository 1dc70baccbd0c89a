"""The opening of links: addresses, rights, and the object that serves each link."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import proton

from qmd.client.errors import ClientError, QueueManagerError
from qmd.control_protocol import access as access_frames
from qmd.control_protocol import messages as frames
from qmd.control_protocol import operations as operator_frames
from qmd.doors.amqp.arriving import is_queue_name
from qmd.doors.amqp.browsing import Browser
from qmd.doors.amqp.conditions import (
    INVALID,
    NOT_IMPLEMENTED,
    STOLEN,
    UNAUTHORIZED,
    AmqpFault,
    condition_of,
)
from qmd.doors.amqp.management import ADDRESS as MANAGEMENT
from qmd.doors.amqp.management import ManagementAnswers, ManagementRequests
from qmd.doors.amqp.receiving import Consumer
from qmd.doors.amqp.sending import Producer
from qmd.doors.amqp.transactions import Coordinator

if TYPE_CHECKING:
    from qmd.doors.amqp.attach_frames import Resumed
    from qmd.doors.amqp.context import Context

COORDINATOR = proton.Terminus.COORDINATOR
COPY = proton.Terminus.DIST_MODE_COPY
SETTLED = proton.Link.SND_SETTLED
SELECTOR_CODES = (0x0000468C00000004, "apache.org:selector-filter:string")


class Opening:
    """The links of one conversation that are being opened, and their names."""

    def __init__(self, conversation: Context) -> None:
        self._conversation = conversation
        self._wanted: set[Any] = set()  # pointers of links that are being opened
        self._names: dict[Any, tuple[str, ...]] = {}
        self._dynamic: dict[Any, str] = {}  # queues that end with their link

    def begin(self, link: Any) -> None:
        """Open a link that the client has attached."""
        self._wanted.add(link._impl)
        attached = self._conversation.engine.attached
        resumed = attached.take(link.name, is_receiver=link.is_sender)
        self._conversation.spawn(self._open(link, resumed))

    async def _open(self, link: Any, resumed: Resumed | None) -> None:
        try:
            await self._conversation.connected()
            if resumed is not None:
                await self._end_older(link)
            served = await self._served(link, resumed)
        except (ClientError, AmqpFault) as error:
            if link._impl in self._wanted and not self._conversation.is_over:
                self.refuse(link, error)
            return
        if link._impl not in self._wanted or self._conversation.is_over:
            return  # the client has detached it meanwhile
        self._wanted.discard(link._impl)
        self._steal(link)
        self._take_over(link)
        self._conversation.links[link._impl] = self._conversation.kept[link._impl] = served
        link.snd_settle_mode = link.remote_snd_settle_mode
        link.rcv_settle_mode = link.remote_rcv_settle_mode
        if link.is_receiver:
            link.max_message_size = self._conversation.limits.message_bytes
        if resumed is None:
            link.open()
        else:
            self._conversation.engine.open_resumed(link, served.accepted_tags)
        if link.is_receiver:
            served.start()
        else:
            served.flow()  # credit may have come before
        self._conversation.flush()

    async def _served(self, link: Any, resumed: Resumed | None) -> Any:
        """Return the object for a link.  Raises ClientError, AmqpFault."""
        if link.is_receiver:
            return await self._for_sender(link, resumed)
        served = await self._for_receiver(link)
        await served.begin(resumed)
        return served

    async def _for_sender(self, link: Any, resumed: Resumed | None) -> Any:
        remote = link.remote_target
        if remote.type == COORDINATOR:
            link.source.copy(link.remote_source)
            link.target.copy(remote)
            return Coordinator(self._conversation, link)
        address = remote.address or ""
        if address == MANAGEMENT:
            link.source.copy(link.remote_source)
            link.target.copy(remote)
            return ManagementRequests(self._conversation, link)
        if remote.dynamic:
            address = await self._create_dynamic(link)
        link.source.copy(link.remote_source)
        link.target.copy(remote)
        if remote.dynamic:
            link.target.address = address
            link.target.dynamic = True
        served = Producer(self._conversation, link, address)
        checking = [self._check("send", address)] if address else []
        # Both at once: the client waits for its first credit.
        await asyncio.gather(*checking, served.begin(resumed))
        return served

    async def _for_receiver(self, link: Any) -> Any:
        remote = link.remote_source
        address = remote.address or ""
        if remote.dynamic:
            address = await self._create_dynamic(link)
        if address == MANAGEMENT:
            link.source.copy(remote)
            link.target.copy(link.remote_target)
            return ManagementAnswers(self._conversation, link)
        if not address:
            raise AmqpFault(INVALID, "the source of the link has no address")
        selector = _selector(remote)
        browses = remote.distribution_mode == COPY
        await self._check("peek" if browses else "receive", address)
        if selector:  # one that cannot be parsed is refused now
            await self._conversation.control.request(frames.Peek, address, 0, 1, 0.0, selector)
        link.source.copy(remote)
        link.target.copy(link.remote_target)
        if remote.dynamic:
            link.source.address = address
            link.source.dynamic = True
        if browses:
            return Browser(self._conversation, link, address, selector)
        settles = link.remote_snd_settle_mode == SETTLED
        return Consumer(self._conversation, link, address, settles=settles, selector=selector)

    async def _check(self, right: str, address: str) -> None:
        """Raise an error if the queue does not exist, or the client lacks the right to it.

        A name for which this cannot be decided now is checked with each message.
        """
        try:
            found = await self._conversation.control.request(
                access_frames.TestAccess, "", right, address
            )
        except QueueManagerError as error:
            if error.code == "name_not_understood" and is_queue_name(address):
                return  # several queues, or a list
            if condition_of(error).name in ("amqp:not-found", INVALID, UNAUTHORIZED):
                raise
            return
        if not found["allowed"]:
            raise AmqpFault(
                UNAUTHORIZED,
                f"{found['principal']} does not have the right {right} on {found['object']}:"
                f" {found['reason']}; an administrator can grant it: qmd acl grant"
                f" {found['principal']} {right} '{found['object']}'",
            )

    async def _create_dynamic(self, link: Any) -> str:
        """Create the queue of a dynamic link; it is deleted with the link."""
        conversation = self._conversation
        control = conversation.control
        name: str = await conversation.door.dynamic.create(control, conversation.principals[0])
        if link._impl not in self._wanted or self._conversation.is_over:
            await control.request(operator_frames.DeleteQueue, name)
        else:
            self._dynamic[link._impl] = name
        return name

    def refuse(self, link: Any, error: Exception) -> None:
        """Answer the attach of a link with its detach and an error condition.

        The answer has no terminus at this end, from which a client sees that a detach follows
        (clause 2.6.3).
        """
        self._wanted.discard(link._impl)
        if link.is_receiver:
            link.source.copy(link.remote_source)
            link.target.type = proton.Terminus.UNSPECIFIED
        else:
            link.target.copy(link.remote_target)
            link.source.type = proton.Terminus.UNSPECIFIED
        link.open()
        link.condition = condition_of(error)
        link.close()
        self._conversation.flush()

    # Names.

    def _name(self, link: Any) -> tuple[str, ...]:
        """Return the name of a link, which one link has at a time."""
        conversation = self._conversation
        role = "receiver" if link.is_receiver else "sender"
        return conversation.principals[0], conversation.container, link.name, role

    def _steal(self, link: Any) -> Context | None:
        """End another link with the same name, of the same container and user; return its
        conversation."""
        other = self._conversation.door.names.get(self._name(link))
        if other is None:
            return None
        holder, stolen = other
        holder.opening.steal(stolen)
        return holder  # type: ignore[no-any-return]

    async def _end_older(self, link: Any) -> None:
        """End another link with the same name, and wait until its messages are at their places."""
        holder = self._steal(link)
        if holder is not None:
            holder.removals.start()
            await holder.removals.barrier()

    def _take_over(self, link: Any) -> None:
        """Note that a link has its name now."""
        conversation, name = self._conversation, self._name(link)
        self._names[link._impl] = name
        conversation.door.names[name] = conversation, link

    def steal(self, link: Any) -> None:
        """End a link: another one with its name was attached."""
        conversation = self._conversation
        served = conversation.links.pop(link._impl, None)
        self._names.pop(link._impl, None)
        if served is not None and not conversation.is_over:
            served.close()
            link.condition = condition_of(AmqpFault(STOLEN, "a link with this name was attached"))
            link.close()
            conversation.flush()

    def forget(self, link: Any) -> None:
        """Free the name of a link that has ended."""
        self._wanted.discard(link._impl)
        name = self._names.pop(link._impl, None)
        names = self._conversation.door.names
        if name is not None and names.get(name, (None,))[0] is self._conversation:
            del names[name]

    def gone(self, served: Any) -> None:
        """Delete the dynamic queue of a link that was closed."""
        queue = self._dynamic.pop(served.link._impl, None)
        if queue is not None:
            self._conversation.spawn(self._delete(queue))

    async def _delete(self, queue: str) -> None:
        try:
            await self._conversation.control.request(operator_frames.DeleteQueue, queue)
        except ClientError:
            return  # it has gone

    def close(self) -> None:
        """Free all names, and delete the dynamic queues: the client has left."""
        names = self._conversation.door.names
        for name in self._names.values():
            if names.get(name, (None,))[0] is self._conversation:
                del names[name]
        self._names.clear()
        self._wanted.clear()
        if self._dynamic:
            self._conversation.door.delete_queues(
                self._conversation.principals, list(self._dynamic.values())
            )
            self._dynamic.clear()


def _selector(source: Any) -> str:
    """Return the selector of a source, or "".  Raises AmqpFault for another filter."""
    filters = source.filter
    filters.rewind()
    if filters.next() is None:
        return ""
    try:
        found = filters.get_object()
    except TypeError:  # a key that is a list, a map or a described value
        raise AmqpFault(INVALID, "the filters of the source are not a map of symbols") from None
    if not isinstance(found, dict):
        return ""
    selectors = []
    for name, each in found.items():
        if each is None:
            continue
        if not isinstance(each, proton.Described):  # clause 3.5.8
            raise AmqpFault(INVALID, f"the filter {name} is not a described value")
        if each.descriptor not in SELECTOR_CODES or not isinstance(each.value, str):
            raise AmqpFault(NOT_IMPLEMENTED, f"the filter {each.descriptor} is not known")
        selectors.append(str(each.value))
    if len(selectors) > 1:
        raise AmqpFault(NOT_IMPLEMENTED, "a link has one selector; join them with AND")
    return selectors[0] if selectors else ""
