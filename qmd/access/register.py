"""The register of rights: the entries of all objects, and the owners of queues.

The table `access_entry` has the same on disk.  Memory changes after the commit,
so that an answer about a right is never taken back by a crash.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import structlog

from protocol.names.direct_name import DirectName
from protocol.names.format_name import PublicName
from qmd.access.demands import Thing
from qmd.access.elsewhere import ANYWHERE, computer_of, is_of_computers, shown
from qmd.access.owners import Owners
from qmd.core.access import (
    DEFAULTS,
    SEND,
    Entry,
    Kind,
    Level,
    Subject,
    granted,
    rights_text,
    stored_rights,
    without,
)
from qmd.core.principals import ALL, CERT, TOKEN, Principal, parse_principal
from qmd.directory.targets import no_multicast
from qmd.errors import Refusal
from qmd.naming.topics import PREFIX, is_topic, topic_key
from storage.errors import NoSuchQueue
from storage.tables import access as rows
from storage.tables.access import ALL_QUEUES, ALLOW, DENY, HOST, OWN, EntryRow
from storage.tables.queues import ORDER_QUEUE_ID

if TYPE_CHECKING:
    import sqlite3

    from qmd.directory.targets import Target
    from qmd.naming.destinations import Destinations
    from qmd.queues.local_queue import LocalQueue
    from qmd.queues.registry import LocalQueues
    from qmd.runtime.services import Services

log = structlog.get_logger()


class Holder(NamedTuple):
    """An object that has entries: their key, its kind, and its queue if it is one."""

    key: str
    kind: Kind
    queue: LocalQueue | None = None


ENTRIES_MAX = 1000  # of one object: each decision reads those of its object

_BY_ENTRY = ("list:", "alias:", "dl=")


class AccessRegister:
    """The entries and the owners, and the objects with rights."""

    def __init__(self, services: Services, queues: LocalQueues, destinations: Destinations) -> None:
        self._services = services
        self._queues = queues
        self._destinations = destinations
        self._entries: dict[str, tuple[Entry, ...]] = {}
        self.owners = Owners()
        self._turn = asyncio.Lock()
        #: Incremented with each change of an entry or an owner.
        self.generation = 0
        #: Objects of which the entries say who may send; messages of peers need a decision there.
        self.restricted: frozenset[str] = frozenset()
        self.has_denials = False
        #: Whether an entry names a token or a certificate.
        self.names_tokens = False
        self._has_computers = False  # whether an entry is one of all queues of other computers

    def restore(self, entries: Iterable[EntryRow]) -> None:
        """Load the table, after the queues."""
        owned = {key_of(queue): queue.id for queue in self._queues.by_id.values()}
        for row in entries:
            if row.effect != OWN:
                self._put(row.object, _entry(row))
            elif row.object in owned:
                self.owners.set(owned[row.object], _principal(row))
        self._changed()

    # Objects.

    @property
    def host(self) -> Subject:
        """The host as an object with rights."""
        return Subject(Kind.HOST, HOST, None, (self._level(HOST, "the host"),))

    @property
    def all_queues(self) -> Subject:
        """All queues as one object: its entries count for each of them."""
        return Subject(Kind.ALL_QUEUES, ALL_QUEUES, None, (self._level(ALL_QUEUES, "all queues"),))

    def of_queue(self, queue: LocalQueue) -> Subject:
        """Return a local queue as an object with rights.

        A subqueue and a journal have the entries and the owner of their queue.
        """
        kind, main = kind_of(queue), queue if queue.parent is None else queue.parent
        levels = [self._level(key_of(main), main.name)]
        if not main.is_system:
            levels.append(self._level(ALL_QUEUES, "all queues"))
        return Subject(kind, queue.name, self.owners.get(main.id), tuple(levels))

    def elsewhere(self, key: str) -> Subject:
        """Return a destination on another computer, by the key of its format name.

        It inherits the entries of all queues of its computer, and of all other computers.
        """
        levels = [self._level(key, key)]
        if self._has_computers:
            computer = computer_of(key)
            wider = (ANYWHERE,) if computer is None else (computer, ANYWHERE)
            levels += [self._level(each, shown(each)) for each in wider]
        return Subject(Kind.OUTGOING, key, None, tuple(levels))

    def of_computer(self, key: str) -> Subject:
        """Return all queues of another computer, or of all, as one object."""
        keys = (key,) if key == ANYWHERE else (key, ANYWHERE)
        levels = tuple(self._level(each, shown(each)) for each in keys)
        return Subject(Kind.ELSEWHERE, key, None, levels)

    def subjects(self, thing: Thing) -> Iterator[Subject]:
        """Yield the objects that a thing of a request stands for.

        Raises Refusal for a queue that does not exist, and MustAsk if the directory must be asked.
        """
        if not thing.key:
            yield self.all_queues
            return
        queue = self._queues.by_key.get(thing.key)
        if queue is not None:
            yield self.of_queue(queue)
        elif thing.by_entry or thing.key.startswith(_BY_ENTRY):
            for target in self._destinations.resolved(thing.shown).targets:
                yield self._of_target(target)
        elif is_topic(thing.key):
            yield Subject(Kind.TOPIC, thing.key, None, (self._level(thing.key, thing.key),))
        elif thing.key.startswith("multicast="):
            raise no_multicast(thing.shown)
        elif "=" in thing.key:
            yield self.elsewhere(thing.key)
        else:
            yield self._of_missing(thing)

    def _of_target(self, target: Target) -> Subject:
        name = target.name
        queue = self._destinations.find_here(name)
        if queue is None and isinstance(name, PublicName):
            queue = self._destinations.queue_by_guid(name.queue)
        if queue is not None:
            return self.of_queue(queue)
        if isinstance(name, DirectName) and self._destinations.is_local(name):
            raise _no_such_queue(str(name))
        return self.elsewhere(str(name).casefold())

    def _of_missing(self, thing: Thing) -> Subject:
        """Return the object of a subqueue that a move is about to create.  Raises Refusal."""
        parent = self._queues.by_key.get(thing.key.partition(";")[0])
        if parent is None or ";" not in thing.key:
            raise _no_such_queue(thing.shown)
        return self.of_queue(parent)._replace(kind=Kind.SUBQUEUE, name=thing.shown)

    def _level(self, key: str, name: str) -> Level:
        return Level(name, self._entries.get(key, ()))

    def entries_of(self, key: str) -> tuple[Entry, ...]:
        """Return the entries of one object."""
        return self._entries.get(key, ())

    def all_entries(self) -> Iterator[tuple[str, Entry]]:
        """Yield each entry with its object."""
        for key, entries in sorted(self._entries.items()):
            for entry in entries:
                yield key, entry

    def owner_of(self, queue: LocalQueue) -> Principal | None:
        main = queue if queue.parent is None else queue.parent
        return self.owners.get(main.id)

    # Changes.

    def created(self, queue: LocalQueue, owner: Principal | None) -> None:
        """Note the owner of a new queue, after the commit that created it."""
        if owner is not None:
            self.owners.set(queue.id, owner)
            self.generation += 1

    def queue_removed(self, queue: LocalQueue) -> None:
        """Forget the owner and the entries of a queue that is being deleted."""
        if queue.parent is None:
            self.owners.forget(queue.id)
            self._entries.pop(key_of(queue), None)
            self._changed()

    def topic_removed(self, name: str) -> None:
        """Forget the entries of a topic that was deleted."""
        self._entries.pop(f"{PREFIX}{topic_key(name)}", None)
        self._changed()

    async def set_owner(self, queue: LocalQueue, owner: Principal) -> None:
        """Give a queue another owner.  Raises Refusal if it is deleted."""
        row = owner_row(queue.name, owner)
        async with self._turn:
            await self._write(queue, partial(rows.set_owner, row=row))
            self.owners.set(queue.id, owner)
            self.generation += 1
        log.info("queue_owner_changed", queue=queue.name, owner=str(owner))

    async def grant(self, holder: Holder, principal: Principal, rights: frozenset[str]) -> None:
        """Add an entry that allows rights.  Raises Refusal."""
        async with self._turn:
            before = self._rights(holder, principal, allows=True)
            await self._store(holder, Entry(principal, True, before | granted(rights)))

    async def deny(self, holder: Holder, principal: Principal, rights: frozenset[str]) -> None:
        """Add an entry that denies rights.  Raises Refusal."""
        async with self._turn:
            before = self._rights(holder, principal, allows=False)
            await self._store(holder, Entry(principal, False, before | rights))

    async def revoke(self, holder: Holder, principal: Principal, rights: frozenset[str]) -> bool:
        """Remove rights from the entries of a principal, of both effects; return whether any were
        there.  Raises Refusal.

        What is revoked from everyone is removed from the default of the object too.
        """
        async with self._turn:
            found = False
            for allows in (False, True):
                before = self._rights(holder, principal, allows=allows)
                left = without(before, rights) if allows else before - rights
                if left != before:
                    found = True
                    await self._store(holder, Entry(principal, allows, left))
            return found

    async def take_in(
        self,
        entries: Sequence[tuple[Holder, Entry]],
        gifts: Sequence[tuple[LocalQueue, Principal]] = (),
        *,
        replace: bool,
    ) -> None:
        """Add entries and give queues to owners, in one commit; `replace`: remove all others.

        Raises Refusal if an object has too many entries, or a queue is deleted.
        """
        async with self._turn:
            before = {} if replace else self._entries
            after: dict[str, dict[str, Entry]] = {}
            for holder, entry in entries:
                same = after.get(holder.key)
                if same is None:
                    there = before.get(holder.key, ())
                    same = after[holder.key] = {_name(each): each for each in there}
                same.pop(_name(entry), None)
                same[_name(entry)] = entry
                if len(same) > ENTRIES_MAX:
                    raise _too_many_entries(holder.key, len(same))
            queues = {holder.queue for holder, _ in entries if holder.queue is not None}
            queues |= {queue for queue, _ in gifts}
            try:
                await self._services.storage.batch.run(
                    partial(
                        rows.take_in,
                        entries=[_row(holder.key, entry) for holder, entry in entries],
                        owners=[owner_row(queue.name, owner) for queue, owner in gifts],
                        queues=[(queue.id, queue.name) for queue in queues],
                        replace=replace,
                    )
                )
            except NoSuchQueue as error:
                raise _deleted_meanwhile() from error
            # The rows of a queue of which the deletion has begun are deleted with it.
            gone = {key_of(queue) for queue in queues if queue.deleted}
            if replace:
                self._entries = {}
            self._entries |= {
                key: tuple(same.values()) for key, same in after.items() if key not in gone
            }
            for queue, owner in gifts:
                if not queue.deleted:
                    self.owners.set(queue.id, owner)
            self._changed()
        log.info("access_imported", entries=len(entries), owners=len(gifts))

    def _rights(self, holder: Holder, principal: Principal, *, allows: bool) -> frozenset[str]:
        """Return the rights of a principal by its entry; those of everyone may be the default."""
        for entry in self._entries.get(holder.key, ()):
            if entry.allows == allows and _is_same(entry.principal, principal):
                return entry.rights
        return DEFAULTS[holder.kind] if allows and principal == ALL else frozenset()

    async def _store(self, holder: Holder, entry: Entry) -> None:
        """Store an entry; one without rights is removed, unless it replaces the default."""
        key = holder.key
        there = self._entries.get(key, ())
        if len(there) >= ENTRIES_MAX and not any(_is_same_entry(each, entry) for each in there):
            raise _too_many_entries(key, len(there) + 1)
        keeps = bool(entry.rights) or (entry.allows and entry.principal == ALL)
        await self._write(holder.queue, partial(_save, row=_row(key, entry), keeps=keeps))
        self._put(key, entry, keeps=keeps)
        self._changed()
        log.info("access_changed", object=key, entry=str(entry), removed=not keeps)

    async def _write(
        self, queue: LocalQueue | None, change: Callable[[sqlite3.Connection], None]
    ) -> None:
        """Commit a change of the entries or the owner of a queue, if it exists until then.

        Otherwise the change would be one of the next queue with its name, and of another owner.
        Raises Refusal.
        """
        if queue is None:
            await self._services.storage.batch.run(change)
            return
        try:
            await self._services.storage.batch.run(
                partial(rows.if_there, queue_id=queue.id, name=queue.name, change=change)
            )
        except NoSuchQueue as error:
            raise _no_such_queue(queue.name) from error
        if queue.deleted:
            raise _no_such_queue(queue.name)

    def _put(self, key: str, entry: Entry, *, keeps: bool = True) -> None:
        others = [each for each in self._entries.get(key, ()) if not _is_same_entry(each, entry)]
        if keeps:
            others.append(entry)
        if others:
            self._entries[key] = tuple(others)
        else:
            self._entries.pop(key, None)

    def _changed(self) -> None:
        self.generation += 1
        everywhere = [entry for entries in self._entries.values() for entry in entries]
        self.has_denials = any(not entry.allows for entry in everywhere)
        self._has_computers = any(is_of_computers(key) for key in self._entries)
        self.names_tokens = any(entry.principal.kind in (TOKEN, CERT) for entry in everywhere)
        self.restricted = frozenset(
            key
            for key, entries in self._entries.items()
            if any(
                (SEND in entry.rights) != entry.allows
                for entry in entries
                if not entry.allows or entry.principal == ALL
            )
        )


def kind_of(queue: LocalQueue) -> Kind:
    """Return the kind of a local queue."""
    if queue.id == ORDER_QUEUE_ID:
        return Kind.INTERNAL
    if queue.is_system:
        return Kind.DEAD_LETTER
    if queue.is_journal:
        return Kind.JOURNAL
    if queue.parent is not None:
        return Kind.SUBQUEUE
    return Kind.TRANSACTIONAL if queue.transactional else Kind.ORDINARY


def holder_of(queue: LocalQueue) -> Holder:
    """Return a queue as an object that has entries."""
    return Holder(key_of(queue), kind_of(queue), queue)


def key_of(queue: LocalQueue) -> str:
    """Return the object of a queue's entries: its key in the table `queue`."""
    return queue.name.casefold()


def _too_many_entries(key: str, count: int) -> Refusal:
    return Refusal(
        "too_many_entries",
        f"{key} would have {count} entries, and an object has at most {ENTRIES_MAX}",
        "Grant the right to a group.",
    )


def _deleted_meanwhile() -> Refusal:
    return Refusal(
        "no_such_queue", "a queue of the file was deleted meanwhile", "Nothing was imported."
    )


def _name(entry: Entry) -> str:
    """Return the name of an entry among those of its object; an equal one replaces it."""
    return f"{entry.allows} {entry.principal}"


def _no_such_queue(name: str) -> Refusal:
    return Refusal(
        "no_such_queue",
        f"this queue manager has no queue {name}",
        "See `qmd queue list`; `qmd queue create` makes one.",
    )


def _is_same(one: Principal, other: Principal) -> bool:
    """Return whether two principals have one entry; the number of a named one may differ."""
    return str(one) == str(other)


def _is_same_entry(one: Entry, other: Entry) -> bool:
    return one.allows == other.allows and _is_same(one.principal, other.principal)


def _principal(row: EntryRow) -> Principal:
    principal = parse_principal(row.principal)
    return principal if row.number is None else principal._replace(number=row.number)


def _entry(row: EntryRow) -> Entry:
    rights = stored_rights(row.rights.split(","))
    return Entry(_principal(row), row.effect == ALLOW, rights)


def _row(key: str, entry: Entry) -> EntryRow:
    # Each right by its name: an entry does not change when the rights of "full" do.
    rights = ",".join(sorted(entry.rights))
    effect = ALLOW if entry.allows else DENY
    return EntryRow(key, effect, str(entry.principal), entry.principal.number, rights)


def owner_row(name: str, owner: Principal) -> EntryRow:
    """Return the row of the owner of the queue with this name."""
    return EntryRow(name.casefold(), OWN, str(owner), owner.number, "")


def _save(db: sqlite3.Connection, *, row: EntryRow, keeps: bool) -> None:
    if keeps:
        rows.put(db, row)
    else:
        rows.remove(db, row)


def described(entry: Entry) -> dict[str, object]:
    """Return an entry as a value for JSON."""
    return {
        "principal": str(entry.principal),
        "number": entry.principal.number,
        "effect": ALLOW if entry.allows else DENY,
        "rights": rights_text(entry.rights),
    }
