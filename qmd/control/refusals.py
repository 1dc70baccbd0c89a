"""Refusals of requests that no verb has begun."""

from __future__ import annotations

import msgspec

from protocol.errors import InvalidName
from qmd.access.checks import not_answered
from qmd.control.accounts import REQUESTS_MAX as REQUESTS_OF_ACCOUNT_MAX
from qmd.control.client_memory import no_memory
from qmd.control_protocol.messages import Refused
from qmd.directory.resolver import MustAsk
from qmd.errors import Refusal
from storage.errors import StorageError


def not_understood(error: InvalidName) -> Refusal:
    """Return the refusal of an invalid name, GUID or id: an error of the client, not a bug."""
    return Refusal(
        "name_not_understood", f"the request has a name, GUID or id that is not valid: {error}"
    )


def as_refusal(error: Refusal | InvalidName) -> Refusal:
    """Return the refusal of a request, also of one with a name that is not valid."""
    return error if isinstance(error, Refusal) else not_understood(error)


def failure(error: Exception) -> Refusal | None:
    """Return the refusal of a request that an error has ended; None: the error is a bug."""
    match error:
        case Refusal() | InvalidName():
            return as_refusal(error)
        case MustAsk():  # a right depends on a name that the directory has to answer again
            return not_answered(error.name)
        case StorageError():
            return Refusal("storage_failed", f"the storage failed: {error}")
        case MemoryError():
            return no_memory()
    return None


def not_decoded(error: msgspec.DecodeError) -> Refusal:
    """Return the refusal of a frame that is not a request."""
    return Refusal("request_not_understood", f"the request is not understood: {error}")


def too_many_requests() -> Refusal:
    return Refusal(
        "too_many_waiting",
        f"{REQUESTS_OF_ACCOUNT_MAX} requests of this user or token are not answered yet",
        "Wait for answers before you send more requests, or end programs that wait for messages.",
    )


def refused(number: int, refusal: Refusal) -> Refused:
    """Return the answer that refuses the request of that number."""
    return Refused(number, refusal.code, refusal.text, refusal.remedy, refusal.id)
