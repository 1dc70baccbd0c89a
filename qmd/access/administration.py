"""Administration of rights: shows, changes and tests the entries of objects."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from qmd.access.demands import ADMIN, EVERYTHING, Demand, Thing
from qmd.access.elsewhere import computer_key, is_of_computers
from qmd.access.local_users import LocalUsers, numbered, user_caller
from qmd.access.register import Holder, described, holder_of, key_of
from qmd.access.rights import PrincipalRights, Rights
from qmd.control_protocol.access import DENY, GRANT, REVOKE, ImportedEntry, ImportedOwner
from qmd.core.access import (
    ADMINISTER_ACCESS,
    CHANGE_PERMISSIONS,
    DEFAULTS,
    BadRight,
    Caller,
    Entry,
    Kind,
    Subject,
    decide,
    parse_rights,
    rights_text,
)
from qmd.core.principals import (
    ALL,
    CERT,
    EVERYONE,
    LOCAL,
    NUMBERED,
    SASL,
    SERVICE,
    TOKEN,
    UNPROVEN,
    USER,
    BadPrincipal,
    Principal,
    parse_principal,
)
from qmd.errors import Refusal
from storage.tables.access import ALL_QUEUES, HOST

if TYPE_CHECKING:
    from qmd.access.register import AccessRegister
    from qmd.access.things import ThingFinder
    from qmd.queues.local_queue import LocalQueue
    from qmd.queues.registry import LocalQueues

Value = dict[str, Any]

TO_GIVE_AWAY = Demand(ADMIN, (ADMINISTER_ACCESS,), of_host=True)
TO_CHANGE = Demand(ADMIN, (CHANGE_PERMISSIONS,))
OWNERS = (USER, TOKEN, SERVICE, SASL, CERT)
IMPORTED_AT_ONCE = 64  # entries: some milliseconds


class Object(NamedTuple):
    """An object with entries, and what they decide about."""

    holder: Holder
    subject: Subject

    @property
    def queue(self) -> LocalQueue | None:
        return self.holder.queue


class AccessAdministration:
    """The requests of `qmd acl`."""

    def __init__(
        self,
        register: AccessRegister,
        users: LocalUsers,
        finder: ThingFinder,
        queues: LocalQueues,
    ) -> None:
        self._register = register
        self._users = users
        self._finder = finder
        self._queues = queues

    def show(self, text: str) -> Value:
        """Return the answer that the class of the request describes.  Raises Refusal, MustAsk."""
        return self._shown(self._find(text))

    async def change(self, action: str, principal_text: str, rights: str, text: str) -> Value:
        """Grant, deny or revoke rights.  Raises Refusal, MustAsk."""
        found = self._find(text)
        holder, chosen = found.holder, _rights(rights, found)
        principal = _principal(principal_text)
        if action == REVOKE:
            done = await self._register.revoke(holder, principal, chosen)
            if not done:
                raise Refusal(
                    "no_such_entry",
                    f"no entry of {found.subject.name} gives or denies {principal} any of these"
                    " rights",
                    f"See `qmd acl show '{text}'`.",
                )
        elif action in (GRANT, DENY):
            principal = await self._numbered(principal)
            if action == GRANT:
                await self._register.grant(holder, principal, chosen)
            else:
                await self._register.deny(holder, principal, chosen)
        else:
            raise Refusal(
                "bad_right",
                f"'{action}' is not a change of rights",
                f"It is one of {GRANT}, {DENY} and {REVOKE}.",
            )
        return self._shown(found)

    async def set_owner(self, text: str, principal_text: str, rights: Rights) -> Value:
        """Give a queue to an owner.  Raises Refusal, MustAsk.

        A client may take a queue for itself; to give one away it must administer access.
        """
        found = self._find(text)
        if found.queue is None:
            raise _not_a_queue(text)
        owner = rights.principal
        if principal_text:
            owner = await self._numbered(_principal(principal_text))
        if owner != rights.principal:
            rights.require(TO_GIVE_AWAY, (EVERYTHING,), "set_owner")
        if owner.kind not in OWNERS:
            raise Refusal(
                "owner_not_allowed",
                f"{owner} cannot own a queue",
                "Grant it rights instead: qmd acl grant",
            )
        await self._register.set_owner(found.queue, owner)
        return self._shown(found)

    async def test(self, principal_text: str, right: str, text: str, rights: Rights) -> Value:
        """Return whether a principal has a right, and what decides.  Raises Refusal, MustAsk."""
        found = self._find(text)
        asked = _rights(right, found)
        if not asked:
            raise Refusal("bad_right", "no right is named", "Name one, such as send or receive.")
        caller = await self._caller(principal_text, rights)
        verdicts = [(each, decide(caller, each, found.subject)) for each in sorted(asked)]
        denied = [each for each in verdicts if not each[1].allowed]
        word, verdict = (denied or verdicts)[0]
        return {
            "principal": caller.name,
            "right": word if denied else rights_text(asked),
            "object": found.subject.name,
            "allowed": not denied,
            "reason": verdict.reason,
            "entry": None if verdict.entry is None else str(verdict.entry),
            "entry_of": verdict.object or None,
        }

    def export(self) -> Value:
        """Return all entries and owners."""
        queues = sorted(self._queues.by_key.values(), key=key_of)
        return {
            "entries": [
                {"object": key} | described(entry) for key, entry in self._register.all_entries()
            ],
            "owners": [
                {"queue": queue.name, "principal": str(owner), "number": owner.number}
                for queue in queues
                if queue.parent is None and (owner := self._register.owner_of(queue)) is not None
            ],
        }

    async def take_in(
        self, entries: list[ImportedEntry], owners: list[ImportedOwner], *, replace: bool
    ) -> Value:
        """Add exported entries and owners, after all of them were checked.  Raises Refusal."""
        new: list[tuple[Holder, Entry]] = []
        for at, each in enumerate(entries):
            if at % IMPORTED_AT_ONCE == 0:
                await asyncio.sleep(0)  # other work has its turn
            if each.effect not in ("allow", "deny"):
                raise Refusal(
                    "bad_right", f"'{each.effect}' is not an effect", 'It is "allow" or "deny".'
                )
            found = self._find(each.object)
            rights = _rights(each.rights, found)
            principal = await self._imported(each.principal, each.number)
            new.append((found.holder, Entry(principal, each.effect == "allow", rights)))
        gifts: list[tuple[LocalQueue, Principal]] = []
        for at, each_owner in enumerate(owners):
            if at % IMPORTED_AT_ONCE == 0:
                await asyncio.sleep(0)
            queue = self._find(each_owner.queue).queue
            if queue is None:
                raise _not_a_queue(each_owner.queue)
            owner = await self._imported(each_owner.principal, each_owner.number)
            gifts.append((queue, owner))
        await self._register.take_in(new, gifts, replace=replace)
        return {"entries": len(new), "owners": len(gifts)}

    # Objects.

    def things(self, text: str) -> tuple[Thing, ...]:
        """Return the things on which a request about an object needs rights."""
        if text in (HOST, ALL_QUEUES) or is_of_computers(text):
            return (EVERYTHING,)
        return tuple(self._finder.named(text))

    def _find(self, text: str) -> Object:
        """Return the object of this name.  Raises Refusal, MustAsk."""
        register = self._register
        if text == HOST:
            return Object(Holder(HOST, Kind.HOST), register.host)
        if text == ALL_QUEUES:
            return Object(Holder(ALL_QUEUES, Kind.ALL_QUEUES), register.all_queues)
        if is_of_computers(text):
            key, name = computer_key(text)
            if name is not None and self._finder.is_local(name):
                raise Refusal(
                    "name_not_understood",
                    f"'{text}' is this computer",
                    f"All queues of this computer are '{ALL_QUEUES}'.",
                )
            return Object(Holder(key, Kind.ELSEWHERE), register.of_computer(key))
        subjects = [
            (thing, subject)
            for thing in self._finder.named(text)
            if thing.key
            for subject in register.subjects(thing)
        ]
        if len(subjects) != 1:
            raise _not_a_queue(text)
        thing, subject = subjects[0]
        if subject.kind in (Kind.OUTGOING, Kind.TOPIC):
            return Object(Holder(subject.name, subject.kind), subject)
        queue = self._queues.by_key.get(thing.key)
        if queue is None:  # an alias, which has no entries of its own
            raise _not_a_queue(text)
        if queue.parent is not None:
            raise Refusal(
                "entries_of_another_queue",
                f"{queue.name} has the entries of its queue",
                f"Name {queue.parent.name}.",
            )
        return Object(holder_of(queue), subject)

    def _shown(self, found: Object) -> Value:
        register, subject = self._register, found.subject
        entries = register.entries_of(found.holder.key)
        replaces = any(each.allows and each.principal == ALL for each in entries)
        owner = None if found.queue is None else register.owner_of(found.queue)
        return {
            "object": subject.name,
            "kind": subject.kind.value,
            "owner": None if owner is None else str(owner),
            "entries": [described(entry) for entry in entries],
            "default": None if replaces else rights_text(DEFAULTS[subject.kind]),
        }

    # Principals.

    async def _numbered(self, principal: Principal) -> Principal:
        """Return a principal with its number.  Raises Refusal for an unknown name."""
        if principal.kind not in NUMBERED:
            return principal
        found = await self._users.look_up(partial(numbered, principal))
        if found is None:
            raise Refusal(
                "unknown_principal",
                f"there is no {principal.kind} {principal.name} on this computer",
                f"Check the name, or give an id: {principal.kind}:1000.",
            )
        return found

    async def _imported(self, text: str, number: int | None) -> Principal:
        principal = await self._numbered(_principal(text))
        if number is not None and principal.number is not None and principal.number != number:
            raise Refusal(
                "unknown_principal",
                f"{principal} has the id {principal.number} here, and {number} in the file",
                "Remove the number from the file if it is the same account.",
            )
        return principal

    async def _caller(self, text: str, rights: Rights) -> Caller:
        """Return the caller that a principal would be.  Raises Refusal."""
        if not text and isinstance(rights, PrincipalRights):
            return rights.caller
        principal = rights.principal if not text else _principal(text)
        if principal.kind == USER:
            name = principal.name or str(principal.number)
            found = await self._users.look_up(partial(user_caller, name))
            if found is None:
                await self._numbered(principal)  # raises
                raise AssertionError(principal)
            number = next(each.number for each in found if each.kind == USER)
            assert number is not None
            caller, _ = self._users.caller(number, found)
            return caller
        name = str(principal)
        if principal.kind == EVERYONE:
            return Caller(name, frozenset())
        if principal.kind in (TOKEN, CERT):
            is_all = not text and rights.are_all
            return Caller(name, frozenset({principal}), frozenset(), is_all, is_limited=True)
        principal = await self._numbered(principal)
        proven = {principal, Principal(principal.kind, "", principal.number)}
        if principal.kind not in (LOCAL, *OWNERS, "group"):
            proven.add(UNPROVEN)
        return Caller(name, frozenset(proven))


def _principal(text: str) -> Principal:
    try:
        return parse_principal(text)
    except BadPrincipal as error:
        raise Refusal("bad_principal", str(error), "See docs/access.md.") from error


def _rights(text: str, found: Object) -> frozenset[str]:
    if not text.strip():
        return frozenset()
    try:
        return parse_rights(text, of_host=found.subject.kind is Kind.HOST)
    except BadRight as error:
        raise Refusal("bad_right", str(error), "Separate several by commas.") from error


def _not_a_queue(text: str) -> Refusal:
    return Refusal(
        "name_not_understood",
        f"'{text}' is not one queue, '*' or host",
        "Rights are those of a queue, of all queues, or of the host.",
    )
