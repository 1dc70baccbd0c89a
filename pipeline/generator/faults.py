"""Faults that the generator can inject, and the findings that the audit must make: `FAULTS`.

Some are no faults at all (`expired`, `refused`, `resent`, ...): they are everyday events, and the
audit must not report them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

#: Faults of one message each, with their kind in the truth; "" if nothing must be found.
FAULTS: dict[str, str] = {
    "lost": "lost",  # sent and never accepted, although later messages of its stream were
    "acked_not_stored": "acked_not_stored",  # its order ack came, and it was never accepted
    "duplicated": "duplicated",  # accepted twice
    "reordered": "reordered",  # accepted after its successor
    "delayed": "reordered",  # accepted after several of its successors
    "gap": "gap",  # its number was never used
    "delivered_dead": "delivered_and_dead",  # dead-lettered by its sender, and delivered
    "ended_twice": "ended_twice",  # received twice at one place of a queue
    "received_dead": "ended_twice",  # received after it had expired in its queue
    "never_sent": "never_sent",  # accepted, but not sent by its source
    "number_reused": "number_reused",  # two messages under one number
    "wrong_number": "wrong_number",  # accepted under another number than it was sent with
    "plain_duplicated": "duplicated",  # the same without a sequence
    "plain_not_stored": "acked_not_stored",
    # Everyday events.
    "expired": "",  # at its sender, before it arrived
    "discarded": "",  # likewise, and the sender asked for no dead letter
    "refused": "",  # by its destination
    "expired_there": "",  # in the queue of its destination
    "resent": "",  # a session broke: sent again, and recognised as a duplicate
    "restart": "",  # the sender begins with new sequence ids
    "express_lost": "",  # express messages may be lost
    "pending": "",  # the last messages are still on their way
}

#: Faults of one host each.
HOST_FAULTS: dict[str, str] = {
    "clock": "clock",  # its clock is wrong, by seconds to minutes
    "no_log": "no_log",  # its log is missing
    "late_log": "late_log",  # the last day of its log is missing
    "log_hole": "log_hole",  # a stretch in the middle of its log is missing
    "twice": "",  # a file of it was exported twice
}

_DEFAULT = {name: 12 for name in FAULTS} | {name: 1 for name in HOST_FAULTS}
_EVERYDAY = {name: count for name, count in _DEFAULT.items() if not (FAULTS | HOST_FAULTS)[name]}


def parse_faults(text: str) -> dict[str, int]:
    """Parse `all`, `none`, `everyday`, or lost=3,clock=1; later words override earlier ones.

    Raises ValueError with the wrong word and the known ones.
    """
    found: dict[str, int] = {}
    for word in filter(None, re.split(r"[,\s]+", text)):
        name, equals, count = word.partition("=")
        presets: Mapping[str, dict[str, int]] = {
            "all": _DEFAULT,
            "none": {},
            "everyday": _EVERYDAY,
        }
        if not equals and name in presets:
            found |= presets[name]
            continue
        if name not in FAULTS and name not in HOST_FAULTS:
            known = ", ".join([*presets, *FAULTS, *HOST_FAULTS])
            raise ValueError(f"there is no fault {name!r}; there are: {known}")
        if equals and not count.isdigit():
            raise ValueError(f"{word!r}: a number is expected after `=`")
        found[name] = int(count) if equals else _DEFAULT[name]
    return found
