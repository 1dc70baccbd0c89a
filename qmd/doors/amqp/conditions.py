"""Error conditions of AMQP (clause 2.8.14 to 2.8.17), made of the errors of the queue manager."""

from __future__ import annotations

from typing import Any

import proton

from qmd.catalogue import find_by_code
from qmd.client.errors import ClientError, NotConnected, OutcomeUnknown, Stopping

INTERNAL, NOT_FOUND = "amqp:internal-error", "amqp:not-found"
UNAUTHORIZED, DECODE = "amqp:unauthorized-access", "amqp:decode-error"
LIMIT, NOT_ALLOWED = "amqp:resource-limit-exceeded", "amqp:not-allowed"
INVALID, NOT_IMPLEMENTED = "amqp:invalid-field", "amqp:not-implemented"
LOCKED, PRECONDITION = "amqp:resource-locked", "amqp:precondition-failed"
DELETED, ILLEGAL_STATE = "amqp:resource-deleted", "amqp:illegal-state"
FORCED, FRAMING = "amqp:connection:forced", "amqp:connection:framing-error"
STOLEN, TOO_LARGE = "amqp:link:stolen", "amqp:link:message-size-exceeded"
OVER_CREDIT = "amqp:link:transfer-limit-exceeded"
UNKNOWN_TRANSACTION, ROLLED_BACK = "amqp:transaction:unknown-id", "amqp:transaction:rollback"

_OF_CODES = {
    "right_missing": UNAUTHORIZED,
    "queue_locked": LOCKED,
    "no_such_transaction": UNKNOWN_TRANSACTION,
    "transaction_aborted": ROLLED_BACK,
    "transaction_doomed": ROLLED_BACK,
}
_OF_FAMILIES = {
    "access_denied": UNAUTHORIZED,
    "no_such_queue": NOT_FOUND,
    "not_found": NOT_FOUND,
    "over_quota": LIMIT,
    "disk_full": LIMIT,
    "too_large": TOO_LARGE,
    "bad_name": INVALID,
    "bad_request": INVALID,
    "wrong_delivery": PRECONDITION,
    "queue_exists": PRECONDITION,
    "read_only": NOT_ALLOWED,
    "transaction_aborted": ROLLED_BACK,
    "stopping": FORCED,
    "not_connected": FORCED,
}


#: Errors of proton that the values of a client cause: text that is not UTF-8, types out of place.
UNREADABLE = (UnicodeDecodeError, OverflowError, RecursionError, proton.ProtonException)


class AmqpFault(Exception):
    """An error of this door, with its condition."""

    def __init__(self, condition: str, text: str) -> None:
        super().__init__(text)
        self.condition = condition


def is_no_outcome(error: Exception | None) -> bool:
    """Return whether an error leaves the outcome open, or ends with the daemon.

    A client must not be told of a rejection then: it learns that its connection has ended, and
    sends or settles again.
    """
    if isinstance(error, NotConnected | OutcomeUnknown | Stopping):
        return True
    return isinstance(error, ClientError) and error.code == "storage_failed"


def condition_of(error: Exception) -> proton.Condition:
    """Return the condition of an error: its name, its text, and its id, cause and remedy."""
    if isinstance(error, AmqpFault):
        return proton.Condition(error.condition, str(error))
    if not isinstance(error, ClientError):
        return proton.Condition(INTERNAL, f"the door failed: {type(error).__name__}")
    entry = find_by_code(error.code)
    name = _OF_CODES.get(error.code)
    if name is None and isinstance(error, NotConnected | OutcomeUnknown):
        name = FORCED
    if name is None:
        family = (entry.family or entry.code) if entry is not None else ""
        name = _OF_FAMILIES.get(family, _OF_FAMILIES.get(type(error).code, INTERNAL))
    info: dict[Any, Any] = {proton.symbol("code"): error.code}
    if error.id:
        info[proton.symbol("id")] = error.id
    if entry is not None:
        info[proton.symbol("cause")] = entry.cause
    if remedy := error.remedy or (entry.remedy if entry is not None else ""):
        info[proton.symbol("remedy")] = remedy
    prefix = f"{error.id}: " if error.id else ""
    return proton.Condition(name, f"{prefix}{error}", info)
