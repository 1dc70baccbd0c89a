r"""Rights of clients on things.

A verb has demands: on some things (queues, all queues, the host) it needs rights.  The table in
`qmd.control.verb_rights` has the demands of each verb, and its function `admit` requires them
before the verb begins.  Some things are known only while a verb runs (the queues of staged
messages, the history of a message): the verb requires these rights itself, with `Rights.require`.

A token has scopes (`read`, `write`, `admin`) for the queues of its patterns, and every other client
what the entries of access control allow (`qmd.access.checks`); entries may give a token more.

A transaction, a lock and the outcome of a request belong to the client that began them.  For a
client without all rights, a mark is appended to their ids before any other use; it is derived from
the name of the token or the user.  Such a client therefore cannot name the id of another client.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from qmd.access.demands import ADMIN, Demand, Thing
from qmd.core.principals import ALL_LOCAL, TOKEN, UNPROVEN, Principal
from qmd.errors import Refusal

if TYPE_CHECKING:
    from qmd.access.checks import AccessChecks
    from qmd.access.tokens import Grant
    from qmd.control_protocol.messages import Request
    from qmd.core.access import Caller

TRANSACTION_ID_BYTES = 16
LOCK_ID_BYTES = 16
MARK_BYTES = 8  # appended to the ids of a client without all rights
NAMING = ("queue_not_granted", "right_missing", "no_such_queue")  # refusals that name a queue


class Rights:
    """All rights: of an administrator, and of a token for all queues and scopes."""

    are_all = True
    owner = ""  # the name of the client that owns what is begun with these rights

    def __init__(self, principal: Principal = ALL_LOCAL) -> None:
        #: The owner of queues that are created with these rights.
        self.principal = principal

    def require(self, demand: Demand, things: Iterable[Thing], verb: str) -> None:
        """Raise Refusal if a right is missing on one of the things, and MustAsk."""

    def require_unnamed(
        self, demand: Demand, things: Iterable[Thing], verb: str, what: str
    ) -> None:
        """Require rights on things that the request does not name, such as the queues of a reader.

        `what` they are.  The refusal does not name them either: the client may not know them.
        """
        try:
            self.require(demand, things, verb)
        except Refusal as refusal:
            if refusal.code not in NAMING:
                raise
            raise Refusal(
                refusal.code,
                f"{verb} concerns {what}, and this client does not have the rights on all of them",
                "Ask an administrator: the log of the queue manager names the queue.",
            ) from refusal

    def may(self, demand: Demand, things: Iterable[Thing]) -> bool:
        """Return whether the client has the rights on all of the things."""
        return True

    def claim(self, request: Request) -> Request:
        """Return the request with the ids that its transactions and outcomes have here."""
        return request

    def shown_id(self, transaction_id: bytes) -> bytes | None:
        """Return the id of a transaction as this client knows it; None: another client owns it."""
        return transaction_id

    def shared_token(self, token: bytes) -> bytes:
        """Return the token that a request had before rights existed; b"": it was not shared."""
        return b""


ALL_RIGHTS = Rights()


class LimitedRights(Rights):
    """Rights of a client that does not have all rights; its ids are marked."""

    are_all = False

    def __init__(self, principal: Principal, owner: str) -> None:
        super().__init__(principal)
        self.owner = owner
        self._mark = hashlib.sha256(owner.encode()).digest()[:MARK_BYTES]

    def may(self, demand: Demand, things: Iterable[Thing]) -> bool:
        try:
            self.require(demand, things, "")
        except Refusal:
            return False
        return True

    def claim(self, request: Request) -> Request:
        marked = {}
        for field in ("transaction", "token", "lock"):
            value = getattr(request, field, b"")
            if not isinstance(value, bytes) or not value:
                continue
            if field == "transaction" and len(value) != TRANSACTION_ID_BYTES:
                raise bad_transaction_id(value)
            if field == "lock" and len(value) != LOCK_ID_BYTES:
                raise bad_lock_id(value)
            marked[field] = value + self._mark
        return msgspec.structs.replace(request, **marked) if marked else request

    def shown_id(self, transaction_id: bytes) -> bytes | None:
        is_own = len(transaction_id) > MARK_BYTES and transaction_id.endswith(self._mark)
        return transaction_id[:-MARK_BYTES] if is_own else None


class NoRights(LimitedRights):
    """The rights of a client that is not identified."""

    def __init__(self) -> None:
        super().__init__(UNPROVEN, "#unknown")

    def require(self, demand: Demand, things: Iterable[Thing], verb: str) -> None:
        raise Refusal(
            "right_missing",
            f"the user at the other end of the connection is not known, and {verb} needs rights",
            "Connect over the control socket itself.",
        )


NO_RIGHTS = NoRights()


class PrincipalRights(LimitedRights):
    """The rights of a local user that is no administrator, by the entries of access control."""

    def __init__(
        self, checks: AccessChecks, caller: Caller, principal: Principal, owner: str = ""
    ) -> None:
        # The name of the owner is not that of any token.
        super().__init__(principal, owner or f"#uid:{principal.number}")
        self._checks = checks
        self.caller = caller

    def require(self, demand: Demand, things: Iterable[Thing], verb: str) -> None:
        self._checks.require(self.caller, demand, things, verb)

    def may(self, demand: Demand, things: Iterable[Thing]) -> bool:
        return self._checks.may(self.caller, demand, things)

    def shared_token(self, token: bytes) -> bytes:
        return token[:-MARK_BYTES]


class DoorRights(PrincipalRights):
    """The rights of a user of a door, for which the door acts."""

    def __init__(self, checks: AccessChecks, caller: Caller, principal: Principal) -> None:
        super().__init__(checks, caller, principal, f"#door:{principal}")

    def shared_token(self, token: bytes) -> bytes:
        return b""  # there was no door before rights existed


class GrantedRights(LimitedRights):
    """The rights of one token that does not have all rights."""

    def __init__(
        self, grant: Grant, checks: AccessChecks | None = None, caller: Caller | None = None
    ) -> None:
        super().__init__(Principal(TOKEN, grant.name), grant.name)
        self._grant = grant
        self._checks = checks
        self._caller = caller

    def require(self, demand: Demand, things: Iterable[Thing], verb: str) -> None:
        things = tuple(things)
        checks, caller = self._checks, self._caller
        if checks is not None and caller is not None:
            checks.require_no_denial(caller, demand, things, verb)
        try:
            self._require_scope(demand.scope, things, verb)
        except Refusal as refusal:
            if checks is None or caller is None:
                raise
            if not checks.may_by_entries(caller, demand, things):
                checks.scope_refused(caller, verb, refusal.text)
                raise

    def _require_scope(self, scope: str, things: Iterable[Thing], verb: str) -> None:
        grant = self._grant
        if scope and not grant.may(scope):
            raise Refusal(
                "scope_missing",
                f"token {grant.name} is for {', '.join(sorted(grant.scopes))}, and {verb} needs"
                f" {scope}",
                "Use another token, or create one: qmd remote token create",
            )
        if grant.everywhere:
            return
        for thing in things:
            if not thing.key:
                raise Refusal(
                    "queue_not_granted",
                    f"token {grant.name} is for {', '.join(grant.queues)}, and {verb} concerns"
                    " all queues",
                    "Use a token for all queues.",
                )
            if not grant.reaches(thing.key):
                raise Refusal(
                    "queue_not_granted",
                    f"token {grant.name} does not permit queue {thing.shown}, which {verb}"
                    " concerns",
                    f"It permits {', '.join(grant.queues)}. Use another token, or create one.",
                )


def rights_of(
    grant: Grant, checks: AccessChecks | None = None, caller: Caller | None = None
) -> Rights:
    """Return the rights of a client that logs in with a token."""
    if grant.everywhere and grant.may(ADMIN):
        return Rights(Principal(TOKEN, grant.name))
    return GrantedRights(grant, checks, caller)


def bad_transaction_id(transaction_id: bytes) -> Refusal:
    """Return the refusal of a transaction id with another length."""
    return Refusal(
        "bad_transaction_id",
        f"the id of a transaction has {TRANSACTION_ID_BYTES} bytes; {len(transaction_id)} were"
        " given",
        "Use 16 random bytes for each transaction.",
    )


def bad_lock_id(lock_id: bytes) -> Refusal:
    """Return the refusal of a lock id with another length."""
    return Refusal(
        "bad_lock_id",
        f"the id of a lock has {LOCK_ID_BYTES} bytes; {len(lock_id)} were given",
        "Use 16 random bytes for each lock.",
    )
