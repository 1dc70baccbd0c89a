r"""Resolver of names: which queues receive a message, and how each is reached.

    resolver.resolve_cached(name)    without waiting; None: `resolve` has to be awaited
    await resolver.resolve(name)     queries the directory

Distribution lists are expanded, including lists within lists. A list that contains itself is
expanded once, and a queue that a top-level element contains several times is one target of that
element. Elements that are given twice stay two targets. [MS-MQMQ] 2.1.7, [MS-MQDMPR] 3.1.1

Guarantees:
- all targets or none: a name that cannot be resolved raises, and the error names the element;
- answers of the directory are used until they expire, also while the directory is unavailable;
  after that, `DirectoryAway` is raised. Negative answers are kept for a shorter time;
- a caller never waits longer than `[directory] timeout`, and does not wait at all if the directory
  was found unavailable just before;
- direct names, and private names of any queue manager, never wait.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from protocol.errors import InvalidName, ReadOnlyElement
from protocol.names.direct_name import DirectName, Transport
from protocol.names.format_name import (
    ConnectorName,
    DistributionListName,
    FormatName,
    PublicName,
    SingleName,
)
from qmd.directory.cache import KeptAnswers
from qmd.directory.element_errors import TARGETS_MAX, AtElement, at, no_directory, too_many
from qmd.directory.interface import (
    KIND_NONE,
    Directory,
    MachineEntry,
    NotInDirectory,
    QueueEntry,
)
from qmd.directory.spelling import (
    ALIAS_PREFIX,
    LIST_PREFIX,
    AliasPath,
    ListPath,
    QueuePath,
    Spelled,
    elements_of,
    name_of,
    parse_spelling,
)
from qmd.directory.targets import Target, check_sendable, public_name, way_to
from qmd.errors import Refusal, placed

if TYPE_CHECKING:
    from qmd.config.settings import DirectorySettings

T = TypeVar("T")

RESOLUTIONS_MAX = 10_000  # cached resolutions


@dataclass(frozen=True, slots=True)
class Resolution:
    """The targets of a name.

    `name` is the format name, with path names and aliases replaced by their meaning; `expires_at`
    is by the resolver's clock, and infinite if no directory was queried.
    """

    name: FormatName
    targets: tuple[Target, ...]
    expires_at: float = math.inf


class MustAsk(Refusal):
    """A synchronous request needs an answer of the directory about `text` first.

    A caller that may wait awaits `answered`, and tries again; nothing was done.
    """

    def __init__(self, text: str, fetch: Callable[[], Awaitable[None]] | None = None) -> None:
        super().__init__(
            "directory_not_asked",
            f"the directory was not asked about {text} yet",
            "It is being asked now: try again.",
        )
        self.name = text
        self._fetch = fetch  # for an answer that is not about a name of queues

    async def answered(self, resolver: Resolver) -> Resolution | None:
        """Ask the directory; return the meaning of a name of queues.  Raises Refusal."""
        if self._fetch is None:
            return await resolver.resolve_text(self.name)
        await self._fetch()
        return None


class Own(NamedTuple):
    """Information that the queue manager itself provides."""

    id: bytes
    is_local: Callable[[DirectName], bool]
    queue_of_guid: Callable[[bytes], str | None]
    r"""The path of our queue that PUBLIC=guid stands for, `orders` or `private$\orders`."""


class Resolver:
    """Resolver of names by `directory`, with a cache."""

    def __init__(
        self,
        directory: Directory,
        own: Own,
        settings: DirectorySettings,
        *,
        now: Callable[[], float],
    ) -> None:
        self.directory = directory
        self._now = now  # seconds, of a clock that only moves forward
        self._own = own
        self._settings = settings
        self.entries = KeptAnswers(directory, settings, now=now)
        self._resolutions: dict[FormatName | str, Resolution] = {}
        self.forgotten_count = 0  # how often all answers were dropped

    # Format names.

    def resolve_cached(self, name: FormatName) -> Resolution | None:
        """Return the targets if no wait is needed; None: await `resolve`.

        Raises Refusal as `resolve` does.
        """
        kept = self._resolutions.get(name)
        if kept is not None and kept.expires_at > self._now():
            return kept
        elements = elements_of(name)
        targets: list[Target] = []
        for index, element in enumerate(elements):
            with at(name, index, element):
                if isinstance(element, DistributionListName) or self._is_elsewhere(element):
                    if self.directory.kind == KIND_NONE:
                        raise no_directory(element)
                    return None
                targets.append(self._target_at_once(element, index))
        return self._keep(name, Resolution(name, tuple(targets)))

    async def resolve(self, name: FormatName) -> Resolution:
        """Return the targets of a name; query the directory if that is needed.

        Raises Refusal, including NotInDirectory, DirectoryAway, EntryUnusable, NoDirectory; its
        text names the element.
        """
        at_once = self.resolve_cached(name)
        if at_once is not None:
            return at_once
        return await self._in_time(self._resolve(name))

    async def _resolve(self, name: FormatName) -> Resolution:
        # A TaskGroup would hide the failed element behind a group of errors.
        asked = [
            asyncio.ensure_future(self._resolve_element(name, index, element))
            for index, element in enumerate(elements_of(name))
        ]
        try:
            found = [await each for each in asked]
        finally:
            for each in asked:
                each.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        targets = tuple(target for targets, _ in found for target in targets)
        if len(targets) > TARGETS_MAX:
            raise too_many(name)
        if not targets:
            raise Refusal(
                "list_is_empty",
                f"{name} stands for no queue: a message to it would not reach a queue",
                "Add a member: qmd dl add NAME QUEUE",
            )
        return self._keep(name, Resolution(name, targets, min(expiry for _, expiry in found)))

    # Spellings.

    def resolve_text_cached(self, text: str) -> Resolution | None:
        """Return the same for any spelling, including path names and aliases."""
        kept = self._resolutions.get(text)
        if kept is not None and kept.expires_at > self._now():
            return kept
        spelled = self.parse(text)
        for each in spelled:
            if not isinstance(each, SingleName):
                if self.directory.kind == KIND_NONE:
                    raise no_directory(each)
                return None
        found = self.resolve_cached(name_of(spelled))  # type: ignore[arg-type]  # all are names
        return None if found is None else self._keep(text, found)

    def kept(self, name: FormatName | str) -> Resolution | None:
        """Return the cached resolution of a name or spelling, if it has not expired."""
        found = self._resolutions.get(name)
        return found if found is not None and found.expires_at > self._now() else None

    async def resolve_text(self, text: str) -> Resolution:
        """Resolve any spelling; query the directory if that is needed. Raises Refusal."""
        at_once = self.resolve_text_cached(text)
        if at_once is not None:
            return at_once
        return await self._in_time(self._resolve_text(text))

    async def _resolve_text(self, text: str) -> Resolution:
        name, expires_at = await self.understand(text)
        found = self.resolve_cached(name) or await self._resolve(name)
        expires_at = min(expires_at, found.expires_at)
        return self._keep(text, Resolution(name, found.targets, expires_at))

    def names_entries(self, text: str) -> bool:
        """Return whether the text contains lists or aliases, which need a directory."""
        lowered = text.lower()
        if not any(mark in lowered for mark in (LIST_PREFIX, ALIAS_PREFIX, "dl=")):
            return False  # the usual case, without parsing
        kinds = (ListPath, AliasPath, DistributionListName)
        return any(isinstance(each, kinds) for each in self.parse(text))

    def parse(self, text: str) -> tuple[Spelled, ...]:
        """Return the elements of a spelling. Raises Refusal.

        In workgroup mode the path of a public queue is a direct name.
        """
        try:
            spelled = parse_spelling(text, local_host=".", is_local=self._own.is_local)
        except ReadOnlyElement as error:
            raise Refusal(
                "queue_read_only",
                str(error),
                "Journals and dead-letter queues can be read, but not sent to.",
            ) from error
        except InvalidName as error:
            raise Refusal(
                "name_not_understood", f"'{text}' is not the name of a queue: {error}"
            ) from error
        if self.directory.kind != KIND_NONE:
            return spelled
        return tuple(each.direct if isinstance(each, QueuePath) else each for each in spelled)

    async def understand(self, text: str) -> tuple[FormatName, float]:
        """Return the format name of a spelling, and its expiry. Raises Refusal."""
        found, expires_at = [], math.inf
        spelled = self.parse(text)
        for index, each in enumerate(spelled):
            with AtElement(len(spelled), index, each):
                element, until = await self._understand(each)
            found.append(element)
            expires_at = min(expires_at, until)
        try:
            return name_of(tuple(found)), expires_at
        except InvalidName as error:
            raise Refusal(
                "name_not_understood", f"'{text}' is not the name of a queue: {error}"
            ) from error

    async def understand_one(self, spelled: Spelled) -> tuple[SingleName, float]:
        """Return the same for one element, within the time-out."""
        return await self._in_time(self._understand(spelled))

    async def _understand(self, spelled: Spelled) -> tuple[SingleName, float]:
        match spelled:
            case QueuePath():
                remedy = f"If it exists nevertheless, use its direct name: {spelled.direct}."
                entry, until = await self.entries.queue_by_path(spelled.path, remedy)
                return PublicName(entry.guid), until
            case ListPath():
                found, until = await self.entries.list_by_name(spelled.name)
                return DistributionListName(found.guid), until
            case AliasPath():
                alias, until = await self.entries.alias(spelled.name)
                return alias.target, until
        return spelled, math.inf

    def forget(self) -> None:
        """Clear all caches, because the directory has changed."""
        self.entries.forget()
        self._resolutions.clear()
        self.forgotten_count += 1

    def own_queues_changed(self) -> None:
        """Clear the resolutions, because names may now stand for other queues of ours."""
        self._resolutions.clear()

    # Internal methods.

    async def _in_time(self, work: Coroutine[Any, Any, T]) -> T:
        """Limit the work to the time-out, for any number of queries."""
        timeout_s = self._settings.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                return await work
        except TimeoutError:
            raise self.entries.late() from None

    async def _resolve_element(
        self, name: FormatName, index: int, element: SingleName
    ) -> tuple[list[Target], float]:
        with at(name, index, element):
            if not isinstance(element, DistributionListName):
                target, expires_at = await self._target(element, index)
                return [target], expires_at
            members, expires_at = await self._expand(element)
            found = await self._members(members, index)
        return [target for target, _ in found], min([expires_at, *(until for _, until in found)])

    async def _members(self, members: list[SingleName], index: int) -> list[tuple[Target, float]]:
        """Resolve members; cached ones need no task, because lists may have a thousand members."""
        found: list[tuple[Target, float] | None] = []
        for member in members:
            try:
                found.append(self._target_if_known(member, index))
            except Refusal as error:
                raise placed(error, f"its member {member}") from error
        unknown = [place for place, each in enumerate(found) if each is None]
        asked = await _all([self._member(members[place], index) for place in unknown])
        for place, each in zip(unknown, asked, strict=True):
            found[place] = each
        return [each for each in found if each is not None]

    async def _member(self, member: SingleName, index: int) -> tuple[Target, float]:
        try:
            return await self._target(member, index)
        except Refusal as error:
            raise placed(error, f"its member {member}") from error

    def _target_if_known(self, element: SingleName, index: int) -> tuple[Target, float] | None:
        if not self._is_elsewhere(element):
            return self._target_at_once(element, index), math.inf
        name = public_name(element)
        known = self.entries.queue_if_known(name.queue)
        if known is None:
            return None
        entry, until = known
        return self._target_of(element, entry, index), until

    async def _expand(self, name: DistributionListName) -> tuple[list[SingleName], float]:
        """Return the queues of a list and of the lists within it, with the expiry.

        Each queue is returned once, in depth-first order, the members of a list in their order.
        """
        seen: set[str] = {name.key}
        queues: dict[str, SingleName] = {}
        entry, expires_at = await self.entries.distribution_list(name)
        ahead: list[SingleName] = [*reversed(entry.members)]
        lists = {entry.guid}
        while ahead:
            member = ahead.pop()
            key = member.key
            if not isinstance(member, DistributionListName):
                if len(queues) >= TARGETS_MAX and key not in queues:
                    raise too_many(name)
                queues.setdefault(key, member)
                continue
            if key in seen:
                continue
            seen.add(key)
            try:
                inner, until = await self.entries.distribution_list(member)
            except Refusal as error:
                raise placed(error, f"its member {member}") from error
            expires_at = min(expires_at, until)
            # A list with and without its domain is the same list.
            if inner.guid not in lists:
                lists.add(inner.guid)
                ahead += reversed(inner.members)
        return list(queues.values()), expires_at

    async def _target(self, element: SingleName, index: int) -> tuple[Target, float]:
        if not self._is_elsewhere(element):
            return self._target_at_once(element, index), math.inf
        name = public_name(element)
        try:
            entry, until = await self.entries.queue(name.queue)
        except NotInDirectory as error:
            if isinstance(element, ConnectorName):
                raise NotInDirectory(
                    f"queue {element}",
                    "A connector's queue has an object of its own there, as a public one has: its"
                    " GUID is needed, and not that of a site or computer.",
                ) from error
            raise
        return self._target_of(element, entry, index), until

    def _target_of(self, element: SingleName, entry: QueueEntry, index: int) -> Target:
        target = self._public_target(public_name(element), entry, index)
        if isinstance(element, ConnectorName):  # it has two queues, one for each kind of message
            return replace(target, transactional=None)
        return target

    def _target_at_once(self, element: SingleName, index: int) -> Target:
        """Return the target for a name that needs no directory.

        Raises Refusal for a name that cannot be sent to.
        """
        check_sendable(element)
        if isinstance(element, ConnectorName):  # one of ours: others need the directory
            element = public_name(element)
        direct = element if isinstance(element, DirectName) else None
        return Target(element, index, direct)

    def _public_target(self, name: PublicName, entry: QueueEntry, index: int) -> Target:
        if entry.machine.guid == self._own.id:
            # The directory has a queue of ours with a GUID unknown here: use its path.
            own = DirectName(Transport.OS, ".", 1801, entry.queue)
            return Target(own, index, own, *_properties(entry))
        if entry.machine.foreign:
            if not (entry.machine.sites or entry.machine.in_routers):
                raise Refusal(
                    "name_not_reachable",
                    f"{name} is {entry.path}, a queue of a foreign computer, and the directory"
                    " names neither its site nor a routing server that would be its connector",
                    "Put the computer into its foreign site in the directory, or give it in-routing"
                    " servers.",
                )
            # Through its connector server, never directly: `qmd/peers/next_hop.py`.
            return Target(name, index, None, *_properties(entry))
        way = way_to(entry.machine, entry.queue)
        return Target(name, index, way, *_properties(entry))

    def _is_elsewhere(self, element: SingleName) -> bool:
        """Return whether the element is a queue of the directory that is not ours.

        Raises Refusal for a name that cannot be sent to.
        """
        if not isinstance(element, PublicName | ConnectorName):
            return False
        check_sendable(element)
        return self._own.queue_of_guid(public_name(element).queue) is None

    def _keep(self, name: FormatName | str, resolution: Resolution) -> Resolution:
        if len(self._resolutions) >= RESOLUTIONS_MAX:
            self._resolutions.clear()
        self._resolutions[name] = resolution
        return resolution


def _properties(entry: QueueEntry) -> tuple[MachineEntry, bool | None, bool, str]:
    """Return the properties of a queue that its `Target` has."""
    return entry.machine, entry.transactional, entry.authenticate, entry.privacy


async def _all(tasks: list[Any]) -> list[Any]:
    """Return the results in order; on the first error in order, cancel the rest and raise it."""
    running = [asyncio.ensure_future(each) for each in tasks]
    try:
        return [await each for each in running]
    finally:
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)
