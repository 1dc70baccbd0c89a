"""Things that a request names: the queues that it needs rights on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from protocol.errors import InvalidName
from protocol.identifiers import guid_bytes
from protocol.names.direct_name import DirectName, queue_key
from protocol.names.format_name import FormatName, MultipleName, PublicName, parse_destination
from qmd.access.demands import EVERYTHING, NOT_A_NAME, TO_PEEK, Thing
from qmd.access.rights import Rights
from qmd.directory.spelling import AliasPath, ListPath, QueuePath, may_be_entry
from qmd.errors import Refusal
from qmd.naming.topics import PREFIX, is_topic, topic_key

if TYPE_CHECKING:
    from qmd.control_protocol.messages import NewMessage
    from qmd.directory.resolver import Resolver
    from qmd.naming.destinations import Destinations
    from qmd.queues.local_queue import LocalQueue
    from qmd.queues.registry import LocalQueues


KEPT_CHARACTERS, KEPT_NAMES = 256, 4096  # of parsed names: clients repeat few


def _parse(text: str) -> tuple[FormatName, bool]:
    """Return the name that a text is by itself, and whether the directory may read it otherwise."""
    name = parse_destination(text, local_host=".")
    return name, may_be_entry(text, name)


_parsed = lru_cache(KEPT_NAMES)(_parse)


def thing_of(queue: LocalQueue) -> Thing:
    """Return the thing of a local queue."""
    return Thing(queue.key, queue.name)


class ThingFinder:
    """The things that the names in a request stand for."""

    def __init__(self, queues: LocalQueues, destinations: Destinations, resolver: Resolver) -> None:
        self._queues = queues
        self._destinations = destinations
        self._resolver = resolver

    def named(self, text: str) -> Iterator[Thing]:
        """Yield the queues that a name stands for; lists, aliases and topics by their own names."""
        if is_topic(text):
            yield Thing(f"{PREFIX}{topic_key(text)}", text)
            return
        try:
            kept = len(text) <= KEPT_CHARACTERS
            name, is_ambiguous = _parsed(text) if kept else _parse(text)
        except InvalidName:
            yield from self._elements_of(text)
            return
        # A message goes where the directory says: `list:all` is not the queue with that name.
        yield from self._elements_of(text) if is_ambiguous else self._of_name(name, text)

    def _elements_of(self, text: str) -> Iterator[Thing]:
        """Yield the elements of a name in the directory."""
        try:
            elements = self._resolver.parse(text)
        except Refusal:
            elements = ()
        if not elements:
            yield NOT_A_NAME
        for element in elements:
            if isinstance(element, ListPath | AliasPath):
                yield Thing(str(element).casefold(), str(element))
            else:
                name = element.direct if isinstance(element, QueuePath) else element
                for thing in self._of_name(name, str(element)):
                    is_here = thing.key in self._queues.by_key
                    yield thing._replace(by_entry=isinstance(element, QueuePath) and not is_here)

    def is_local(self, name: DirectName) -> bool:
        """Return whether a name is one of this computer."""
        return self._destinations.is_local(name)

    def by_id(self, text: str) -> Iterator[Thing]:
        """Yield the queue with this id, which pipelines store; for other texts as `named`."""
        try:
            guid = guid_bytes(text)
        except InvalidName:
            yield from self.named(text)
            return
        queue = self._destinations.queue_by_guid(guid)
        # Its name is not that of the request: a refusal must not name it.
        yield Thing(text.casefold() if queue is None else queue.key, text)

    def of_message(self, new: NewMessage) -> Iterator[Thing]:
        """Yield the queues that get a sent message, its dead letter, acknowledgments and reports.

        The response queue is not among them: this queue manager puts no message there.
        """
        for text in (new.destination, new.dead_letter_queue, new.admin_queue, new.report_queue):
            if text:
                yield from self.named(text)

    def require_story(self, rights: Rights, message_id: str, names: Iterable[str]) -> None:
        """Raise Refusal if the client may not read one of the queues that a message was in.

        Queues of the system, where messages of all clients end, do not count; at least one other
        queue must be known.  An unknown message is refused with the same text, so the answer does
        not disclose whether the message exists.
        """
        if rights.are_all:
            return
        queues = self._queues.by_key
        things = [
            thing
            for name in sorted(names)
            for thing in self.named(name)
            if not (thing.key in queues and queues[thing.key].is_system)
        ]
        try:
            rights.require(TO_PEEK, things or (EVERYTHING,), "why")
        except Refusal as refusal:
            if refusal.code == "queue_not_granted":
                raise Refusal(
                    refusal.code,
                    f"message {message_id} is not known here, or was in queues that this token"
                    " does not permit",
                    "Use a token for all queues.",
                ) from refusal
            if refusal.code in ("right_missing", "no_such_queue"):
                raise Refusal(
                    "right_missing",
                    f"message {message_id} is not known here, or was in queues that this user may"
                    " not peek at",
                    "Name a queue that you may peek at (--queue), or ask an administrator.",
                ) from refusal
            raise

    def _of_name(self, name: FormatName, text: str) -> Iterator[Thing]:
        if isinstance(name, MultipleName):
            for element in name.elements:
                yield from self._of_name(element, str(element))
            return
        destinations = self._destinations
        queue = destinations.find_here(name)
        if queue is None and isinstance(name, PublicName):
            queue = destinations.queue_by_guid(name.queue)
        if queue is not None:
            yield Thing(queue.key, text)
        elif isinstance(name, DirectName) and destinations.is_local(name):
            yield Thing(queue_key(name) or str(name).casefold(), text)
        else:
            yield Thing(str(name).casefold(), text)
