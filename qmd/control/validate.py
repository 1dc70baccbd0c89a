"""Checks of values in requests: an impossible value raises Refusal."""

from __future__ import annotations

import ipaddress

from qmd.errors import Refusal
from storage.tables.keys import LOOKUP_MASK

LIMIT_MAX = 4096  # messages in one answer
WAIT_S_MAX = 1e9
REASON_CHARACTERS_MAX = 1000  # the reason is stored with each message


def limit(limit: int) -> int:
    if limit < 1:
        raise Refusal("bad_limit", f"{limit} messages cannot be requested", "Request 1 or more.")
    return min(limit, LIMIT_MAX)


def reason(reason: str) -> str:
    if len(reason) > REASON_CHARACTERS_MAX:
        raise Refusal(
            "reason_too_long",
            f"the reason has {len(reason)} characters; {REASON_CHARACTERS_MAX} are allowed",
            "Put the rest into a log.",
        )
    return reason


def address(text: str) -> str:
    """Return an IP address.  Raises Refusal."""
    try:
        return str(ipaddress.ip_address(text.removeprefix("::ffff:")))
    except ValueError:
        raise Refusal(
            "bad_address", f"{text[:80]!r} is no IP address", "Give an address, not a name."
        ) from None


def wait_s(wait_s: float) -> float:
    if not wait_s <= WAIT_S_MAX:  # this form refuses NaN too
        raise Refusal("bad_wait", f"{wait_s} s is not a valid waiting time", "Use -1 for no limit.")
    return wait_s


def place(lookup_id: int) -> int:
    if not 0 <= lookup_id <= LOOKUP_MASK:
        raise Refusal("bad_lookup_id", f"no message can have the lookup id {lookup_id}")
    return lookup_id
