"""Names to queues: any spelling to the queue of ours, or the outgoing queue, it stands for."""

from __future__ import annotations

import contextlib
import ipaddress
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from protocol import DirectQueueName, UserMessage
from protocol.errors import InvalidName, ProtocolError
from protocol.names.direct_name import PORT, DirectName, parse_wire_name, queue_key
from protocol.names.format_name import (
    DistributionListName,
    FormatName,
    MultipleName,
    PrivateName,
    PublicName,
    SingleName,
    parse_destination,
)
from qmd.core.internal_names import HISTORY_QUEUE
from qmd.directory.interface import KIND_NONE
from qmd.directory.resolver import MustAsk, Resolution
from qmd.directory.spelling import name_of
from qmd.directory.targets import Target
from qmd.errors import Refusal
from qmd.message.build import NO_ADDRESS, QueueAddress, reply_address
from qmd.naming.fan_out import Several, several_of
from qmd.queues.local_queue import OWN_PREFIX, LocalQueue
from qmd.queues.outgoing_queue import OutgoingQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from qmd.directory.interface import Directory
    from qmd.directory.resolver import Resolver
    from qmd.queues.outgoing_queues import OutgoingQueues
    from qmd.queues.registry import LocalQueues
    from qmd.runtime.services import Services


ROUTES_MAX = 10_000  # spellings of destinations, remembered with what they lead to
SEVERAL_MAX = 100  # likewise of lists of destinations, which may be long

Route = LocalQueue | OutgoingQueue


class Destinations:
    """What names stand for; `forget` when queues come or go."""

    def __init__(
        self,
        services: Services,
        directory: Directory,
        outgoing: OutgoingQueues,
        queues: LocalQueues,
    ) -> None:
        self._services = services
        self._directory = directory
        self._outgoing = outgoing
        self._queues = queues
        self._routes: dict[str, Route] = {}
        self._several: dict[str, Several] = {}
        self._generation = 0  # goes up when queues come or go
        self._by_guid: dict[bytes, LocalQueue] = {}
        self._reply_addresses: dict[str, QueueAddress] = {"": NO_ADDRESS}
        self._reply_lists: dict[str, QueueAddress] = {}  # what the directory said, until it is old
        #: What the directory has just said, while the request that had to ask begins again.
        self.answers: dict[str, Resolution | Refusal] = {}
        #: Called when queues have come or gone.
        self.on_change: Callable[[], None] = lambda: None

    def connect(self, resolver: Resolver) -> None:
        """Name the resolver, which is made after it."""
        self._resolver = resolver

    def find_queue(self, text: str) -> LocalQueue:
        """Our queue by any spelling.  Raises Refusal."""
        route = self.route(text)
        if isinstance(route, LocalQueue):
            return route
        raise Refusal(
            "queue_elsewhere",
            f"{route.destination} is a queue of another computer",
            "Read it there: this queue manager only reads its own queues.",
        )

    def find_outgoing(self, text: str) -> OutgoingQueue:
        """The outgoing queue to a destination by any spelling.  Raises Refusal, MustAsk."""
        try:
            name = parse_destination(text, local_host=".")
        except InvalidName as error:
            if not self._resolver.names_entries(text):
                raise Refusal(
                    "name_not_understood", f"'{text}' is no queue's name: {error}"
                ) from error
            name = self.resolved(text).name  # that of a list or an alias
        queue = self._outgoing.find(name.key) or self._find_by_entry(text)
        if queue is None:
            raise Refusal(
                "no_such_outgoing_queue",
                f"there is no outgoing queue to {name}",
                "See `qmd outgoing list`; a queue appears with its first message.",
            )
        return queue

    def _find_by_entry(self, text: str) -> OutgoingQueue | None:
        """By a name that only a directory understands.  Raises Refusal, MustAsk."""
        resolver = self._resolver
        if all(isinstance(each, SingleName) for each in resolver.parse(text)):
            return None
        found = self.resolved(text)
        targets = found.targets
        return self._outgoing.find(targets[0].name.key) if len(targets) == 1 else None

    def queue_by_wire_name(self, wire_name: bytes) -> LocalQueue | None:
        """Our queue by its name in a packet; whatever way to us the name's host part says."""
        try:
            key = queue_key(parse_wire_name(wire_name))
        except ProtocolError:
            return None
        return None if key is None else self._queues.by_key.get(key)

    def queue_by_guid(self, guid: bytes) -> LocalQueue | None:
        """Our queue of that public name."""
        if not self._by_guid:
            self._by_guid = {queue.guid: queue for queue in self._queues.by_key.values()}
        return self._by_guid.get(guid)

    def path_of_guid(self, guid: bytes) -> str | None:
        """The path of our queue of that public name."""
        queue = self.queue_by_guid(guid)
        return None if queue is None else queue.name

    def describe(self, message: UserMessage) -> str:
        """The destination of a packet, for people."""
        user = message.user
        destination = user.destination_queue
        if isinstance(destination, DirectQueueName):
            with contextlib.suppress(ProtocolError):
                return str(parse_wire_name(destination.name))
        if isinstance(destination, int):
            return str(PrivateName(user.queue_manager_address, destination))
        return "of the name that it bears"

    def aims(self, text: str) -> Route | Several:
        """What a message that is sent to this name is for.

        Raises Refusal; MustAsk where the directory has to be asked first.
        """
        route = self._routes.get(text)
        if route is not None:
            return route
        found = self.resolved(text)
        if not isinstance(found.name, MultipleName | DistributionListName):
            return self.route(text)
        several = self._several.get(text)
        if several is None or several.resolution is not found:
            if len(self._several) >= SEVERAL_MAX:
                self._several.clear()
            several = self._several[text] = several_of(found, own_name=self._services.name)
        return several

    def known_here(self, text: str) -> LocalQueue | None:
        """The queue of ours that this name leads to; None: it leads elsewhere, to several queues,
        or that is not known before the directory is asked.  Nothing is made for it.

        Raises Refusal where it is known that there is no such queue here, or no such name.
        """
        route = self._routes.get(text)
        if route is not None:
            return route if isinstance(route, LocalQueue) else None
        found = self._resolver.resolve_text_cached(text)
        names = [] if found is None else [target.name for target in found.targets]
        ours = [
            self.route_name(name)
            for name in names
            if (isinstance(name, DirectName) and self.is_local(name))
            or (isinstance(name, PrivateName) and name.queue_manager == self._services.id)
        ]
        only = ours[0] if len(ours) == len(names) == 1 else None
        return only if isinstance(only, LocalQueue) else None

    def routes(self, several: Several) -> Sequence[Route]:
        """Where each of the targets leads now.  Raises Refusal, which names the element."""
        if several.generation != self._generation:
            routes: list[Route] = []
            for target in several.targets:
                try:
                    routes.append(self.route_target(target))
                except Refusal as refusal:
                    raise several.refused(target, refusal) from refusal
            several.routes, several.generation = routes, self._generation
        return several.routes

    def route(self, text: str) -> Route:
        """Where a name of one queue leads.

        Raises Refusal; MustAsk where the directory has to be asked first.
        """
        route = self._routes.get(text)
        if route is not None:
            return route
        found = self.resolved(text)
        if isinstance(found.name, MultipleName | DistributionListName):
            return self.route_name(found.name)
        route = self.route_target(found.targets[0])
        if found.expires_at == math.inf:  # what the directory said may change
            if len(self._routes) >= ROUTES_MAX:
                self._routes.clear()
            self._routes[text] = route
        return route

    def told_kind(self, name: FormatName | str) -> bool | None:
        """Whether the directory says that the one queue of this name is transactional.

        None: it does not say, or was not asked, as of all names that it is not needed for.  It is
        not asked now.
        """
        if name in self._routes:
            return None
        answer = self.answers.get(name) if isinstance(name, str) else None
        found = answer or self._resolver.kept(name)
        return found.targets[0].transactional if isinstance(found, Resolution) else None

    def resolved(self, text: str) -> Resolution:
        """What a destination stands for, said at once.  Raises Refusal, MustAsk."""
        answer = self.answers.get(text) or self._resolver.resolve_text_cached(text)
        if isinstance(answer, Refusal):
            raise answer
        if answer is None:
            raise MustAsk(text)
        return answer

    def route_target(self, target: Target) -> Route:
        """Where one of the targets of a name leads."""
        if isinstance(target.name, PublicName) and target.machine is not None:
            return self._outgoing.queue_for(target.name, machine=target.machine.guid)
        return self.route_name(target.name)

    def route_name(
        self, name: FormatName, *, for_acknowledgments: bool = False, via: bytes | None = None
    ) -> Route:
        # What leads over a session is not here, even where the address is ours as well.
        if isinstance(name, DirectName) and via is None and self.is_local(name):
            key = queue_key(name)
            queue = None if key is None else self._queues.by_key.get(key)
            if queue is None:
                raise self._no_such_queue(name)
            return queue
        if isinstance(name, PrivateName) and name.queue_manager == self._services.id:
            queue = self._queues.by_id.get(name.number)
            if queue is None:
                raise Refusal("no_such_queue", f"this queue manager has no queue {name}")
            return queue
        if isinstance(name, PublicName) and via is None:
            queue = self.queue_by_guid(name.queue)
            if queue is not None:
                return queue
            known = self._outgoing.find(name.key)
            if known is not None:
                return known
            if self._directory.kind != KIND_NONE:
                found = self._resolver.resolve_cached(name)
                if found is None:
                    raise MustAsk(str(name))
                return self.route_target(found.targets[0])
        if isinstance(name, DirectName | PrivateName) or (
            isinstance(name, PublicName) and via is not None
        ):
            if isinstance(name, DirectName) and (name.suffix or name.system):
                raise Refusal(
                    "system_queue_elsewhere",
                    f"{name} is a journal or dead-letter queue of another computer",
                    "Such queues can be read on their own computer, and not be sent to.",
                )
            return self._outgoing.queue_for(name, for_acknowledgments=for_acknowledgments, via=via)
        raise Refusal(
            "name_needs_directory",
            f"{name} needs a directory, and this queue manager has none",
            "Use a direct name, for example DIRECT=OS:host\\private$\\orders.",
        )

    def _no_such_queue(self, name: DirectName) -> Refusal:
        key = queue_key(name) or str(name)
        text, remedy = f"this queue manager has no queue {key}", f"qmd queue create '{key}'"
        parent = self._queues.by_key.get(name.local_path._replace(subqueue=None, suffix=None).key)
        if parent is None or name.system:
            return Refusal("no_such_queue", text, f"Create it: {remedy}")
        if name.subqueue is not None:
            remedy = f"The first move to it creates it: qmd move '{parent.name}' '{key}'"
            return Refusal("no_such_queue", f"{parent.name} has no subqueue {key}", remedy)
        return Refusal(
            "no_such_queue",
            f"{parent.name} has no journal, because journaling is off",
            "A queue gets one when it is created with --journal.",
        )

    def reply_address(self, text: str) -> QueueAddress:
        """An administration or response queue as a packet names it; ours get our name.

        Of distribution lists and aliases the packet names the queues that they stand for: whoever
        answers need not have the directory.  Raises Refusal, and MustAsk when it is asked for the
        first time in a request; what was given in a turn of the loop is given again in the same.
        """
        address = self._reply_addresses.get(text) or self._reply_lists.get(text)
        if address is not None:
            return address
        if self._resolver.names_entries(text):
            return self._reply_list(text)
        try:
            name = parse_destination(text, local_host=self._services.name)
        except InvalidName as error:
            raise Refusal("name_not_understood", f"'{text}' is no queue's name: {error}") from error
        address = reply_address(name)
        if len(self._reply_addresses) >= ROUTES_MAX:
            self._reply_addresses = {"": NO_ADDRESS}
        self._reply_addresses[text] = address
        return address

    def _reply_list(self, text: str) -> QueueAddress:
        if len(self._reply_lists) >= ROUTES_MAX:
            raise Refusal(
                "too_many_reply_queues",
                f"{ROUTES_MAX} lists and aliases are known as queues for answers",
                "Name the queues themselves, or wait.",
            )
        found = self.resolved(text)
        names: dict[str, SingleName] = {}
        for target in found.targets:
            name = target.name
            if isinstance(name, DirectName) and name.host == ".":
                name = replace(name, host=self._services.name)
            names.setdefault(name.key, name)
        address = self._reply_lists[text] = reply_address(name_of(tuple(names.values())))
        if found.expires_at != math.inf:
            loop = self._services.loop
            loop.call_at(found.expires_at, self._reply_lists.pop, text, None)
        return address

    def report_queue(self, text: str) -> bytes:
        """The GUID by which a traced message names the queue for reports.  Raises Refusal."""
        try:
            name = parse_destination(text, local_host=".")
        except InvalidName as error:
            raise Refusal("name_not_understood", f"'{text}' is no queue's name: {error}") from error
        if isinstance(name, PublicName):
            return name.queue
        route = self.find_here(name)
        if route is None or route.is_read_only or route.transactional:
            raise Refusal(
                "bad_report_queue",
                f"{name} cannot get reports: only a queue of this computer that is not"
                " transactional can, or one that is named PUBLIC=guid",
                "Create one: qmd queue create reports",
            )
        return route.guid

    def find_here(self, name: FormatName) -> LocalQueue | None:
        """The queue of ours that a name stands for; None for one that is elsewhere, or nowhere."""
        if isinstance(name, DirectName) and self.is_local(name):
            key = queue_key(name)
            return None if key is None else self._queues.by_key.get(key)
        if isinstance(name, PrivateName) and name.queue_manager == self._services.id:
            return self._queues.by_id.get(name.number)
        return None

    def is_local(self, name: DirectName) -> bool:
        """Whether a direct name stands for this queue manager."""
        host, port = name.host.casefold(), name.port
        if host == ".":
            return True
        if name.transport == "OS":
            own = self._services.name.casefold()
            aliases = map(str.casefold, self._services.settings.queue_manager.aliases)
            if host not in (own, "localhost", *aliases) and host.partition(".")[0] != own:
                return False
            # A name without a port means this computer, wherever on it we listen.
            return port == PORT or self._listens_at_port(port)
        return any(
            port == own_port and _is_own_address(host, own_host)
            for own_host, own_port in self._services.listening
        )

    def _listens_at_port(self, port: int) -> bool:
        return any(port == own for _, own in self._services.listening)

    def own_path(self, name: str, *, public: bool = False) -> str:
        r"""The path of a queue of ours, as it is to be created; `.\orders` for a public one.

        Raises Refusal.
        """
        try:
            parsed = parse_destination(name, local_host=".")
        except InvalidName as error:
            raise Refusal("name_not_understood", f"'{name}' is no queue's name: {error}") from error
        if not isinstance(parsed, DirectName) or not self.is_local(parsed):
            raise Refusal(
                "name_elsewhere",
                f"{parsed} is not on this computer",
                "Create a queue where it shall be, for example private$\\orders.",
            )
        path = parsed.local_path
        if public and "\\" not in name:  # `orders` alone would be private
            path = path._replace(private=False)
        if path.suffix or path.system or path.subqueue or path.private == public:
            which = (
                "a public queue has no private$ in its name"
                if public
                else ("only private queues can, and public ones with --public")
            )
            raise Refusal(
                "name_not_creatable",
                f"{path} cannot be created: {which}",
                "Use a name such as private$\\orders; the first move to a subqueue creates it.",
            )
        if path.key == HISTORY_QUEUE:
            raise Refusal(
                "name_not_creatable",
                f"{path} is where queue managers ask each other about messages",
                "Choose another name.",
            )
        return f"{OWN_PREFIX}{path}" if public else str(path)

    def forget_elsewhere(self) -> None:
        """OutgoingQueues queues are found anew, so that nothing here keeps idle ones."""
        self._routes.clear()
        self._generation += 1
        for several in self._several.values():
            several.routes = []

    def forget(self) -> None:
        """What names stand for has to be found out anew."""
        self._routes.clear()
        self._generation += 1
        self._by_guid.clear()
        self._reply_lists.clear()
        self._resolver.own_queues_changed()
        self.on_change()


def _is_own_address(host: str, listening: str) -> bool:
    """Whether `host` leads to the address we listen at."""
    if host == listening:
        return True
    try:
        address, own = ipaddress.ip_address(host), ipaddress.ip_address(listening)
    except ValueError:
        return False
    return address == own or (own.is_unspecified and address.is_loopback)
