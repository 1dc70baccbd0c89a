r"""What a client may do: rights on things, which the table of all verbs asks for.

A right is a scope (`read`, `write`, `admin`) on a thing: a queue, or all of them.  The table in
`qmd.control.verb_rights` says for each verb which rights it needs on what, and `admit` asks for
them in one
place, before the verb begins.  Things that only show while a verb runs (the queues of what is
staged, the story of a message) are asked for by the verb itself, by the same `Rights.require`.

A transaction, and what became of a request, belong to the client that began it.  The ids of a
client without all rights get a mark of its token's name behind them before anything is done with
them, so no id that it can name is that of another.
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
ANY = ""  # no scope is asked for

TRANSACTION_ID_BYTES = 16
MARK_BYTES = 8  # behind the ids of a client without all rights


class Thing(NamedTuple):
    """What a right is for: a queue, by the key that grants name, and as the client wrote it."""

    key: str
    shown: str


EVERYTHING = Thing("", "all queues")


class Rights:
    """All rights: those of a client of the control socket, and of a token for everything."""

    are_all = True
    owner = ""  # whose what is begun with these rights is

    def require(self, scope: str, things: Iterable[Thing], verb: str) -> None:
        """Raises Refusal where the right is missing on one of the things."""

    def claim(self, request: Request) -> Request:
        """The request with the ids by which its transactions and outcomes are known here."""
        return request

    def shown_id(self, transaction_id: bytes) -> bytes | None:
        """The id of a transaction as this client knows it; None for another client's."""
        return transaction_id


ALL_RIGHTS = Rights()


class GrantedRights(Rights):
    """The rights of one token that is not for everything."""

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
                "Use another token, or have one made: qmd remote token create",
            )
        if grant.everywhere:
            return
        for thing in things:
            if thing is EVERYTHING:
                raise Refusal(
                    "queue_not_granted",
                    f"token {grant.name} is for {', '.join(grant.queues)}, and {verb} is about all"
                    " queues",
                    "Use a token for all queues.",
                )
            if not grant.reaches(thing.key):
                raise Refusal(
                    "queue_not_granted",
                    f"token {grant.name} is not for queue {thing.shown}, which {verb} is about",
                    f"It is for {', '.join(grant.queues)}. Use another one, or have one made.",
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
    """The rights of whoever logs in with a token."""
    is_for_everything = grant.everywhere and grant.may(ADMIN)
    return ALL_RIGHTS if is_for_everything else GrantedRights(grant)


def bad_transaction_id(transaction_id: bytes) -> Refusal:
    return Refusal(
        "bad_transaction_id",
        f"the id of a transaction has {TRANSACTION_ID_BYTES} bytes; {len(transaction_id)} were"
        " given",
        "Take 16 random bytes for each transaction.",
    )
