"""Access control: decides whether a principal has a right, and names the entry that decided.

The rights are those of MSMQ ([MS-MQMQ] 2.2.24 to 2.2.26), as words.  The entries of an object are
evaluated as those of a list of access control in canonical order ([MS-DTYP] 2.5.3.2):

    administrator? ──► owner, and its permissions? ──► own denials ──► own grants
        ──► inherited denials ──► inherited grants ──► owner ──► defaults of the kind ──► denied

The defaults apply as long as the object has no grant to everyone, which replaces them.  A denial
counts if any part of its principal fits, a grant only if all of it is proven.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from qmd.core.principals import (
    ALL,
    ANONYMOUS,
    EVERYONE,
    HOST,
    NUMBERED,
    Principal,
    is_within,
)

# Rights on a queue.
SEND, RECEIVE, PEEK, RECEIVE_JOURNAL = "send", "receive", "peek", "receive-journal"
PURGE, DELETE = "purge", "delete"
GET_PROPERTIES, SET_PROPERTIES = "get-properties", "set-properties"
GET_PERMISSIONS, CHANGE_PERMISSIONS = "get-permissions", "change-permissions"
TAKE_OWNERSHIP = "take-ownership"
# Rights on the host.
CREATE_QUEUE, SEE_STATUS, READ_EVENTS = "create-queue", "see-status", "read-events"
MANAGE_OUTGOING, MANAGE_DIRECTORY = "manage-outgoing", "manage-directory"
MANAGE_PEERS, ADMINISTER_ACCESS = "manage-peers", "administer-access"
#: Rights of doors, one for each class of principals that they state.
ACT_FOR_USERS, ACT_FOR_CERTIFICATES = "act-for-users", "act-for-certificates"
ACT_FOR_ANONYMOUS, ACT_FOR_HOSTS = "act-for-anonymous", "act-for-hosts"
ACT_FOR = "act-for"  # all of them

QUEUE_RIGHTS = (
    *(SEND, RECEIVE, PEEK, RECEIVE_JOURNAL, PURGE, DELETE, GET_PROPERTIES, SET_PROPERTIES),
    *(GET_PERMISSIONS, CHANGE_PERMISSIONS, TAKE_OWNERSHIP),
)
HOST_RIGHTS = (
    *(CREATE_QUEUE, SEE_STATUS, READ_EVENTS, MANAGE_OUTGOING, MANAGE_DIRECTORY, MANAGE_PEERS),
    *(ADMINISTER_ACCESS, ACT_FOR_USERS, ACT_FOR_CERTIFICATES, ACT_FOR_ANONYMOUS, ACT_FOR_HOSTS),
)
RIGHTS = (*QUEUE_RIGHTS, *HOST_RIGHTS)

#: Short names of several rights, for entries.
SETS: dict[str, frozenset[str]] = {
    "full": frozenset(QUEUE_RIGHTS),
    "read": frozenset({RECEIVE, PEEK, RECEIVE_JOURNAL, GET_PROPERTIES}),
    "write": frozenset({SEND, GET_PROPERTIES}),
}
HOST_SETS: dict[str, frozenset[str]] = {
    "full": frozenset(HOST_RIGHTS),
    ACT_FOR: frozenset(
        {ACT_FOR_USERS, ACT_FOR_CERTIFICATES, ACT_FOR_ANONYMOUS, ACT_FOR_HOSTS},
    ),
}

_OWNER_ALWAYS = frozenset({GET_PERMISSIONS, CHANGE_PERMISSIONS})
_MSMQ_DEFAULT = frozenset({SEND, GET_PROPERTIES, GET_PERMISSIONS})


class BadRight(ValueError):
    """A text that is not the name of a right; the message names those that are."""


class Kind(enum.Enum):
    """The kinds of objects with rights."""

    ORDINARY = "queue"
    TRANSACTIONAL = "transactional queue"
    SUBQUEUE = "subqueue"
    JOURNAL = "journal"
    DEAD_LETTER = "dead-letter queue"  # and the journal of the computer
    INTERNAL = "internal queue"
    OUTGOING = "outgoing queue"
    ELSEWHERE = "queues of other computers"
    TOPIC = "topic"
    ALL_QUEUES = "all queues"
    HOST = "host"


#: The rights of all others than the owner and the administrators, without any entry.
DEFAULTS: dict[Kind, frozenset[str]] = {
    Kind.ORDINARY: _MSMQ_DEFAULT,
    Kind.TRANSACTIONAL: _MSMQ_DEFAULT,
    Kind.SUBQUEUE: frozenset({GET_PROPERTIES, GET_PERMISSIONS}),
    Kind.JOURNAL: frozenset({GET_PERMISSIONS}),
    Kind.DEAD_LETTER: frozenset({GET_PERMISSIONS}),
    Kind.INTERNAL: frozenset(),
    Kind.OUTGOING: frozenset({SEND, GET_PERMISSIONS}),
    Kind.ELSEWHERE: frozenset({SEND, GET_PERMISSIONS}),
    # Its queues may be closed to others, so that each sender needs an entry.
    Kind.TOPIC: frozenset({GET_PERMISSIONS}),
    Kind.ALL_QUEUES: frozenset({GET_PERMISSIONS}),
    Kind.HOST: frozenset({CREATE_QUEUE, GET_PERMISSIONS}),
}


class Entry(NamedTuple):
    """One entry: it allows or denies rights to a principal."""

    principal: Principal
    allows: bool
    rights: frozenset[str]

    def __str__(self) -> str:
        return f"{'allow' if self.allows else 'deny'} {self.principal} {rights_text(self.rights)}"


class Level(NamedTuple):
    """The entries of one object; `name` is its name for people."""

    name: str
    entries: tuple[Entry, ...]


class Subject(NamedTuple):
    """An object with rights: its own entries first, then those that it inherits."""

    kind: Kind
    name: str
    owner: Principal | None
    levels: tuple[Level, ...]


class Caller(NamedTuple):
    """The origin of a request or a message.

    `proven` are the principals that are proven for it; `claimed` are others that it states.  A
    caller that is `limited` has only rights that are granted to it by name.  One that is `remote`
    has no right on the host by default, and one that is `distant` none on queues elsewhere either:
    this queue manager would be its relay.
    """

    name: str
    proven: frozenset[Principal]
    claimed: frozenset[Principal] = frozenset()
    is_administrator: bool = False
    is_limited: bool = False
    is_remote: bool = False
    is_distant: bool = False


class Verdict(NamedTuple):
    """A decision, with its reason as a sentence and the entry that decided, if one did."""

    allowed: bool
    reason: str
    entry: Entry | None = None
    object: str = ""  # that has the entry


def parse_rights(text: str, *, of_host: bool) -> frozenset[str]:
    """Return the rights of a list such as "send,peek" or "full".  Raises BadRight."""
    known = HOST_RIGHTS if of_host else QUEUE_RIGHTS
    sets = HOST_SETS if of_host else SETS
    found: set[str] = set()
    for each in text.split(","):
        word = each.strip().casefold().replace("_", "-").replace(" ", "-")
        if word not in known and word not in sets:
            of = "the host" if of_host else "a queue"
            raise BadRight(
                f"'{each.strip()}' is not a right on {of}: the rights are"
                f" {', '.join((*known, *sets))}"
            )
        found |= sets.get(word, {word})
    return frozenset(found)


def rights_text(rights: Iterable[str]) -> str:
    """Return rights as text, in their usual order; all of them are "full"."""
    chosen = frozenset(rights)
    for whole in (SETS["full"], HOST_SETS["full"]):
        if chosen == whole:
            return "full"
    return ",".join(each for each in RIGHTS if each in chosen)


def stored_rights(words: Iterable[str]) -> frozenset[str]:
    """Return the rights of a stored entry.

    `act-for` was one right before it was divided, and an entry of that time means all of its parts.
    """
    found = frozenset(filter(None, words))
    return found - {ACT_FOR} | HOST_SETS[ACT_FOR] if ACT_FOR in found else found


def granted(rights: frozenset[str]) -> frozenset[str]:
    """Return the rights that a grant of `rights` gives: a receiver may also peek, as in MSMQ."""
    return rights | {PEEK} if rights & {RECEIVE, RECEIVE_JOURNAL} else rights


def without(rights: frozenset[str], revoked: frozenset[str]) -> frozenset[str]:
    """Return what a grant of `rights` still gives: one that can no longer receive loses `peek` too,
    because that came with the right to receive.
    """
    left = rights - revoked
    receiving = {RECEIVE, RECEIVE_JOURNAL}
    return left - {PEEK} if rights & receiving and not left & receiving else left


def needed(right: str, kind: Kind) -> str:
    """Return the right of which the entries decide about `right` on an object of this kind.

    Only a move puts messages into a subqueue, so that needs the right to receive from its queue.
    A journal has a right of its own.
    """
    if kind is Kind.SUBQUEUE and right == SEND:
        return RECEIVE
    if kind is Kind.JOURNAL and right in (RECEIVE, PURGE):
        return RECEIVE_JOURNAL
    return right


def decide(caller: Caller, right: str, subject: Subject) -> Verdict:
    """Decide whether the caller has the right on the object."""
    if caller.is_administrator:
        return Verdict(True, f"{caller.name} is an administrator")
    right = needed(right, subject.kind)
    owns = subject.owner is not None and subject.owner in caller.proven
    if owns and right in _OWNER_ALWAYS:
        return Verdict(True, f"{caller.name} owns {subject.name}")
    for level in subject.levels:
        for allows in (False, True):
            entry = _fitting(caller, right, level.entries, allows=allows)
            if entry is not None:
                reason = f"the entry '{entry}' of {level.name} decides"
                return Verdict(allows, reason, entry, level.name)
    if owns:
        return Verdict(True, f"{caller.name} owns {subject.name}")
    without_default = (
        caller.is_limited
        or (caller.is_remote and subject.kind is Kind.HOST)
        or (caller.is_distant and subject.kind in (Kind.OUTGOING, Kind.ELSEWHERE))
    )
    if without_default or _replaces_default(subject):
        return Verdict(False, f"no entry of {subject.name} allows it")
    if right in DEFAULTS[subject.kind]:
        return Verdict(True, f"the default of a {subject.kind.value} allows it to {ALL}")
    return Verdict(False, f"no entry of {subject.name} allows it, and it is not a default")


def _replaces_default(subject: Subject) -> bool:
    """Return whether the object has a grant to everyone, which then replaces the default."""
    return any(
        entry.allows and entry.principal == ALL
        for level in subject.levels
        for entry in level.entries
    )


def _fitting(caller: Caller, right: str, entries: Sequence[Entry], *, allows: bool) -> Entry | None:
    fits = _is_granted_to if allows else _is_denied_to
    for entry in entries:
        if entry.allows == allows and right in entry.rights and fits(entry.principal, caller):
            return entry
    return None


def _is_granted_to(principal: Principal, caller: Caller) -> bool:
    """Return whether a grant to the principal is one to the caller: everything must be proven."""
    if principal.kind in (EVERYONE, ANONYMOUS):
        return not caller.is_limited and (principal.kind == EVERYONE or principal in caller.proven)
    if principal in caller.proven:
        return True
    return principal.kind == HOST and any(
        each.kind == HOST and is_within(each, principal) for each in caller.proven
    )


def _is_denied_to(principal: Principal, caller: Caller) -> bool:
    """Return whether a denial to the principal is one to the caller: any resemblance counts."""
    if principal.kind == EVERYONE:
        return True
    for each in (*caller.proven, *caller.claimed):
        if each.kind != principal.kind:
            continue
        if each.kind == HOST:
            if is_within(each, principal):
                return True
        elif each.kind in NUMBERED:
            if (principal.name and each.name == principal.name) or (
                principal.number is not None and each.number == principal.number
            ):
                return True
        elif each.name == principal.name:
            return True
    return False
