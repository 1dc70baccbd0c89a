"""Requests about rights: the entries of objects, owners, and decisions.

An object is `host`, `*` (all queues), a queue in any spelling, a queue of another computer, or all
queues of another computer (`*@hostb`) or of all others (`*@*`).  A principal is written as in
docs/access.md: `user:ann`, `group:staff`, `token:archive`, `everyone`.
Rights are a list such as `send,peek`, or `full`, `read` or `write`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from qmd.control_protocol.messages import Request, add_verbs

ENTRIES_MAX = 100_000  # in one request

Object = Annotated[str, msgspec.Meta(min_length=1, max_length=2000)]
Principal = Annotated[str, msgspec.Meta(max_length=300)]
RightNames = Annotated[str, msgspec.Meta(max_length=1000)]

GRANT, DENY, REVOKE = "grant", "deny", "revoke"


class ShowAccess(Request, tag="show_access", frozen=True):
    """Show the entries of an object.

    -> {object, kind, owner, entries: [{principal, number, effect, rights}, ...], default}

    `default`: the rights of everyone, or None if an entry for everyone replaces it.
    """

    object: Object


class ChangeAccess(Request, tag="change_access", frozen=True):
    """Grant or deny rights, or revoke what was granted and denied. -> as `ShowAccess`

    `action` is "grant", "deny" or "revoke".
    """

    action: Annotated[str, msgspec.Meta(max_length=10)]
    principal: Principal
    rights: RightNames
    object: Object


class SetOwner(Request, tag="set_owner", frozen=True):
    """Give a queue to an owner; an empty principal is the client itself. -> as `ShowAccess`"""

    object: Object
    principal: Principal = ""


class TestAccess(Request, tag="test_access", frozen=True):
    """Decide whether a principal has a right, as for a request; nothing is done.

    -> {principal, right, object, allowed, reason, entry, entry_of}

    An empty principal is the client itself.
    """

    __test__ = False  # pytest takes classes of this name for tests

    principal: Principal
    right: RightNames
    object: Object


class ExportAccess(Request, tag="export_access", frozen=True):
    """Return all entries and owners.

    -> {entries: [{object, principal, number, effect, rights}, ...], owners: [{queue, principal,
    number}, ...]}
    """


class ImportedEntry(msgspec.Struct, array_like=True, frozen=True):
    """An entry as `ExportAccess` returns it; `effect` is "allow" or "deny"."""

    object: Object
    principal: Principal
    number: int | None
    effect: str
    rights: RightNames


class ImportedOwner(msgspec.Struct, array_like=True, frozen=True):
    """An owner as `ExportAccess` returns it."""

    queue: Object
    principal: Principal
    number: int | None


class ImportAccess(Request, tag="import_access", frozen=True):
    """Add entries and owners, all of them or none; with `replace` all other entries are removed.

    -> {entries, owners}: how many
    """

    entries: Annotated[list[ImportedEntry], msgspec.Meta(max_length=ENTRIES_MAX)]
    owners: Annotated[list[ImportedOwner], msgspec.Meta(max_length=ENTRIES_MAX)] = msgspec.field(
        default_factory=list
    )
    replace: bool = False


class ActFor(Request, tag="act_for", frozen=True):
    """Act for a user of a door until the connection ends. -> {principal}

    A door is a process that receives requests of other computers, and has proven the principals of
    their user: of the kinds `sasl`, `cert`, `host` and `anonymous`, the main one first.  Afterwards
    the connection has the rights of these principals only.  Messages that it took before return to
    their queues, and its transactions are aborted.  Only on the control socket, and only once.
    """

    principals: Annotated[list[Principal], msgspec.Meta(min_length=1, max_length=16)]


AccessRequest = (
    ShowAccess | ChangeAccess | SetOwner | TestAccess | ExportAccess | ImportAccess | ActFor
)

add_verbs(AccessRequest)
