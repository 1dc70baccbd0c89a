"""Destinations: the local queue or the outgoing queue that a name stands for, in any spelling."""

from __future__ import annotations

import contextlib
import ipaddress
import math
from collections.abc import Sequence
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
from qmd.core.internal_names import HEARTBEAT_QUEUE, HISTORY_QUEUE
from qmd.directory.interface import KIND_NONE
from qmd.directory.resolver import MustAsk, Resolution
from qmd.directory.spelling import ALIAS_PREFIX, LIST_PREFIX
from qmd.directory.targets import Target
from qmd.errors import Refusal
from qmd.naming.fan_out import Several, several_of
from qmd.naming.reply_addresses import ReplyAddresses
from qmd.naming.topics import PREFIX as TOPIC_PREFIX
from qmd.queues.local_queue import OWN_PREFIX, LocalQueue
from qmd.queues.outgoing_queue import OutgoingQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from qmd.directory.interface import Directory
    from qmd.directory.resolver import Resolver
    from qmd.queues.answer_limits import AskedFor
    from qmd.queues.outgoing_queues import OutgoingQueues
    from qmd.queues.registry import LocalQueues
    from qmd.runtime.services import Services


ROUTES_MAX = 10_000  # spellings of destinations that are kept with their queues
SEVERAL_MAX = 100  # the same for lists of destinations, which may be long
PREFIXES = (LIST_PREFIX, ALIAS_PREFIX, TOPIC_PREFIX)  # of names that stand for other queues

Route = LocalQueue | OutgoingQueue


class Destinations:
    """Queues by their names; `forget` must be called when queues are created or deleted."""

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
        self._generation = 0  # incremented when queues are created or deleted
        self._by_guid: dict[bytes, LocalQueue] = {}
        #: Answers of the directory for the request that begins again because it needs them.
        self.answers: dict[str, Resolution | Refusal] = {}
        #: Called after queues were created or deleted.
        self.on_change: Callable[[], None] = lambda: None

    def connect(self, resolver: Resolver) -> None:
        """Connect the resolver, which is created later."""
        self._resolver = resolver
        #: The queues that receive acknowledgments, answers and reports.
        self.replies = ReplyAddresses(self._services, resolver, self.resolved, self.find_here)

    def find_queue(self, text: str) -> LocalQueue:
        """Return the local queue with this name.  Raises Refusal, MustAsk."""
        route = self.route(text)
        if isinstance(route, LocalQueue):
            return route
        raise Refusal(
            "queue_elsewhere",
            f"{route.destination} is a queue of another computer",
            "Read it there: this queue manager only reads its own queues.",
        )

    def find_outgoing(self, text: str) -> OutgoingQueue:
        """Return the outgoing queue to this destination.  Raises Refusal, MustAsk."""
        try:
            name = parse_destination(text, local_host=".")
        except InvalidName as error:
            if not self._resolver.names_entries(text):
                raise Refusal(
                    "name_not_understood", f"'{text}' is not the name of a queue: {error}"
                ) from error
            name = self.resolved(text).name  # of a list or an alias
        queue = self._outgoing.find(name.key) or self._find_by_entry(text)
        if queue is None:
            raise Refusal(
                "no_such_outgoing_queue",
                f"there is no outgoing queue to {name}",
                "See `qmd outgoing list`; a queue appears with its first message.",
            )
        return queue

    def _find_by_entry(self, text: str) -> OutgoingQueue | None:
        """Find an outgoing queue by a name in the directory.  Raises Refusal, MustAsk."""
        resolver = self._resolver
        if all(isinstance(each, SingleName) for each in resolver.parse(text)):
            return None
        found = self.resolved(text)
        targets = found.targets
        return self._outgoing.find(targets[0].name.key) if len(targets) == 1 else None

    def queue_by_wire_name(self, wire_name: bytes) -> LocalQueue | None:
        """Return the local queue with this name in a packet; its host part is not compared."""
        try:
            key = queue_key(parse_wire_name(wire_name))
        except ProtocolError:
            return None
        return None if key is None else self._queues.by_key.get(key)

    def queue_by_guid(self, guid: bytes) -> LocalQueue | None:
        """Return the local queue with this GUID as its public name; None: there is none."""
        if not self._by_guid:
            self._by_guid = {queue.guid: queue for queue in self._queues.by_key.values()}
        return self._by_guid.get(guid)

    def path_of_guid(self, guid: bytes) -> str | None:
        """Return the path of the local queue with this GUID; None: there is none."""
        queue = self.queue_by_guid(guid)
        return None if queue is None else queue.name

    def describe(self, message: UserMessage) -> str:
        """Return the destination of a packet as text for operators."""
        user = message.user
        destination = user.destination_queue
        if isinstance(destination, DirectQueueName):
            with contextlib.suppress(ProtocolError):
                return str(parse_wire_name(destination.name))
        if isinstance(destination, int):
            return str(PrivateName(user.queue_manager_address, destination))
        return "of its name"

    def aims(self, text: str) -> Route | Several:
        """Return the queue that a message with this destination goes to, or several queues.

        Raises Refusal, and MustAsk if the directory must be asked first.
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
        """Return the local queue that this name stands for; None: it stands for a queue elsewhere
        or for several queues, or only the directory knows it.  No outgoing queue is created.

        Raises Refusal if it is known that there is no such local queue or no such name.
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
        """Return the current queue of each target.  Raises Refusal, which names the element."""
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
        """Return the queue that a name of one queue stands for.

        Raises Refusal, and MustAsk if the directory must be asked first.
        """
        route = self._routes.get(text)
        if route is not None:
            return route
        found = self.resolved(text)
        if isinstance(found.name, MultipleName | DistributionListName):
            return self.route_name(found.name)
        route = self.route_target(found.targets[0])
        if found.expires_at == math.inf:  # answers of the directory may change
            if len(self._routes) >= ROUTES_MAX:
                self._routes.clear()
            self._routes[text] = route
        return route

    def known_target(self, name: FormatName | str) -> Target | None:
        """Return the queue of this name with its properties, as the directory has described it.

        None: it was not asked.  It is asked only about names that need it, and this method does
        not ask it.
        """
        if name in self._routes:
            return None
        answer = self.answers.get(name) if isinstance(name, str) else None
        found = answer or self._resolver.kept(name)
        return found.targets[0] if isinstance(found, Resolution) else None

    def resolved(self, text: str) -> Resolution:
        """Return the targets of a destination that are known now.  Raises Refusal, MustAsk."""
        answer = self.answers.get(text) or self._resolver.resolve_text_cached(text)
        if isinstance(answer, Refusal):
            raise answer
        if answer is None:
            raise MustAsk(text)
        return answer

    def route_target(
        self, target: Target, *, for_acknowledgments: bool = False, asked: AskedFor | None = None
    ) -> Route:
        """Return the queue of one target of a name.  Raises Refusal, MustAsk."""
        if isinstance(target.name, PublicName) and target.machine is not None:
            return self._outgoing.queue_for(
                target.name,
                for_acknowledgments=for_acknowledgments,
                machine=target.machine.guid,
                asked=asked,
            )
        return self.route_name(target.name, for_acknowledgments=for_acknowledgments, asked=asked)

    def route_name(
        self,
        name: FormatName,
        *,
        for_acknowledgments: bool = False,
        via: bytes | None = None,
        asked: AskedFor | None = None,
    ) -> Route:
        """Return the queue of a parsed name, and create an outgoing queue if it is missing.

        With `via`, packets go over a session with the queue manager of that GUID, if there is one.
        `asked` is set for an acknowledgment that a message of another host asks for. Raises
        Refusal, MustAsk.
        """
        if asked is not None and asked.via is not None:
            via = asked.via
        # With `via`, the queue is not local, even if its address is one of this computer.
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
                return self.route_target(
                    found.targets[0], for_acknowledgments=for_acknowledgments, asked=asked
                )
        if isinstance(name, DirectName | PrivateName) or (
            isinstance(name, PublicName) and via is not None
        ):
            if isinstance(name, DirectName) and (name.suffix or name.system):
                raise Refusal(
                    "system_queue_elsewhere",
                    f"{name} is a journal or dead-letter queue of another computer",
                    "Such queues can be read on their own computer, but not sent to.",
                )
            return self._outgoing.queue_for(
                name, for_acknowledgments=for_acknowledgments, via=via, asked=asked
            )
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

    def find_here(self, name: FormatName) -> LocalQueue | None:
        """Return the local queue of a name; None: it is elsewhere or does not exist."""
        if isinstance(name, DirectName) and self.is_local(name):
            key = queue_key(name)
            return None if key is None else self._queues.by_key.get(key)
        if isinstance(name, PrivateName) and name.queue_manager == self._services.id:
            return self._queues.by_id.get(name.number)
        return None

    def is_local(self, name: DirectName) -> bool:
        """Return whether a direct name stands for this queue manager."""
        host, port = name.host.casefold(), name.port
        if host == ".":
            return True
        if name.transport == "OS":
            own = self._services.name.casefold()
            aliases = map(str.casefold, self._services.settings.queue_manager.aliases)
            if host not in (own, "localhost", *aliases) and host.partition(".")[0] != own:
                return False
            # A name without a port means this computer, at whichever port it listens.
            return port == PORT or self._listens_at_port(port)
        return any(
            port == own_port and _is_own_address(host, own_host)
            for own_host, own_port in self._services.listening
        )

    def _listens_at_port(self, port: int) -> bool:
        return any(port == own for _, own in self._services.listening)

    def own_path(self, name: str, *, public: bool = False) -> str:
        r"""Return the path of a local queue to create; `.\orders` for a public queue.

        Raises Refusal if the name is not one of a queue that can be created here.
        """
        try:
            parsed = parse_destination(name, local_host=".")
        except InvalidName as error:
            raise Refusal(
                "name_not_understood", f"'{name}' is not the name of a queue: {error}"
            ) from error
        if not isinstance(parsed, DirectName) or not self.is_local(parsed):
            raise Refusal(
                "name_elsewhere",
                f"{parsed} is not on this computer",
                "Create a queue on its own computer; a name here is, for example,"
                " private$\\orders.",
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
        if path.key in (HEARTBEAT_QUEUE, HISTORY_QUEUE):
            raise Refusal(
                "name_not_creatable",
                f"{path} is the queue for questions between queue managers about messages",
                "Choose another name.",
            )
        if path.queue.lower().startswith(PREFIXES):
            raise Refusal(
                "name_not_creatable",
                f"{path} would be taken for the name of a list, an alias or a topic",
                f"Choose a name that does not begin with {', '.join(PREFIXES)}.",
            )
        return f"{OWN_PREFIX}{path}" if public else str(path)

    def forget_elsewhere(self) -> None:
        """Drop all references to outgoing queues, so that idle ones can be removed."""
        self._routes.clear()
        self._generation += 1
        for several in self._several.values():
            several.routes = []

    def forget(self) -> None:
        """Drop all results, because queues or the directory have changed."""
        self._routes.clear()
        self._generation += 1
        self._by_guid.clear()
        self.replies.forget()
        self._resolver.own_queues_changed()
        self.on_change()


def _is_own_address(host: str, listening: str) -> bool:
    """Return whether `host` is the address `listening` of this computer."""
    if host == listening:
        return True
    try:
        address, own = ipaddress.ip_address(host), ipaddress.ip_address(listening)
    except ValueError:
        return False
    return address == own or (own.is_unspecified and address.is_loopback)
