r"""Rights of clients on things.

A right is a scope (`read`, `write`, `admin`) on a thing: a queue, or all queues.  The table in
`qmd.control.verb_rights` has the rights that each verb needs, and its function `admit` requires
them before the verb begins.  Some things are known only while a verb runs (the queues of staged
messages, the history of a message): the verb requires these rights itself, with `Rights.require`.

A transaction and the outcome of a request belong to the client that began them.  For a client
without all rights, a mark is appended to their ids before any other use; it is derived from the
name of the token.  Such a client therefore cannot name the id of another client.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from qmd.errors import Refusal

if TYPE_CHECKING:
    from qmd.access.tokens import Grant
    from qmd.control_protocol.messages import Request

READ, WRITE, ADMIN = "read", "write", "admin"
ANY = ""  # no scope is required

TRANSACTION_ID_BYTES = 16
MARK_BYTES = 8  # appended to the ids of a client without all rights


class Thing(NamedTuple):
    """The object of a right: a queue, by its key in grants, and as the client wrote it."""

    key: str
    shown: str


EVERYTHING = Thing("", "all queues")


class Rights:
    """All rights: of a client of the control socket, and of a token for all queues and scopes."""

    are_all = True
    owner = ""  # the name of the token that owns what is begun with these rights

    def require(self, scope: str, things: Iterable[Thing], verb: str) -> None:
        """Raise Refusal if the right is missing on one of the things."""

    def claim(self, request: Request) -> Request:
        """Return the request with the ids that its transactions and outcomes have here."""
        return request

    def shown_id(self, transaction_id: bytes) -> bytes | None:
        """Return the id of a transaction as this client knows it; None: another client owns it."""
        return transaction_id


ALL_RIGHTS = Rights()


class GrantedRights(Rights):
    """The rights of one token that does not have all rights."""

    are_all = False

    def __init__(self, grant: Grant) -> None:
        self._grant = grant
        self.owner = grant.name
        self._mark = hashlib.sha256(grant.name.encode()).digest()[:MARK_BYTES]

    def require(self, scope: str, things: Iterable[Thing], verb: str) -> None:
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
            if thing is EVERYTHING:
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

    def claim(self, request: Request) -> Request:
        marked = {}
        for field in ("transaction", "token"):
            value = getattr(request, field, b"")
            if not isinstance(value, bytes) or not value:
                continue
            if field == "transaction" and len(value) != TRANSACTION_ID_BYTES:
                raise bad_transaction_id(value)
            marked[field] = value + self._mark
        return msgspec.structs.replace(request, **marked) if marked else request

    def shown_id(self, transaction_id: bytes) -> bytes | None:
        is_own = len(transaction_id) > MARK_BYTES and transaction_id.endswith(self._mark)
        return transaction_id[:-MARK_BYTES] if is_own else None


def rights_of(grant: Grant) -> Rights:
    """Return the rights of a client that logs in with a token."""
    is_for_everything = grant.everywhere and grant.may(ADMIN)
    return ALL_RIGHTS if is_for_everything else GrantedRights(grant)


def bad_transaction_id(transaction_id: bytes) -> Refusal:
    """Return the refusal of a transaction id with another length."""
    return Refusal(
        "bad_transaction_id",
        f"the id of a transaction has {TRANSACTION_ID_BYTES} bytes; {len(transaction_id)} were"
        " given",
        "Use 16 random bytes for each transaction.",
    )
