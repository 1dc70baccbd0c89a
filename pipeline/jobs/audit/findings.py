"""Settings and results of the audit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

Frame = Any

#: Kinds of findings, most severe first, and the sentence for each.
KINDS = {
    "acked_not_stored": "The destination acknowledged it, and never stored it: it is lost.",
    "lost": "The destination went on to later messages without it: it is lost.",
    "vanished": "It is in no queue of its host any more, and nothing has ended it: it is lost.",
    "rolled_back": "A backup from before it was stored was restored at its host: it is lost.",
    "duplicated": "The destination stored it more than once.",
    "ended_twice": "It left its place in a queue twice: it was received, or ended, a second time.",
    "delivered_and_dead": "It was delivered, and its sender keeps it as not delivered.",
    "received_unstored": "It was received, or ended, at a place to which it never came.",
    "imported_twice": "It was imported from a file twice, and was not removed in between.",
    "other_size": "It was stored with another size than it was sent with.",
    "other_queue": "It was stored in another queue than it was sent to.",
    "reordered": "It was stored after a later message of its stream.",
    "wrong_number": "It was stored under another number than it was sent with.",
    "number_reused": "Two messages were sent under one number.",
    "never_sent": "The destination stored a message that its source did not send.",
    "gap": "Its number was never given to a message: one is missing, and no expiry explains it.",
    "clock": "The clock of this computer is wrong.",
    "restored": "A backup of this computer was restored: its log has another history since.",
    "log_hole": "A stretch in the middle of the log of this computer is missing.",
    "late_log": "The log of this computer ends before events that other logs report about it.",
    "no_log": "There is no log of this computer.",
    "broken_file": "This file cannot be read; it is read again when it has changed.",
}
#: The sentence for a message that vanished from a journal or a dead-letter queue.
COPY_VANISHED = "Its copy in this queue is gone, and nothing has removed it there."
#: Findings about logs and clocks: messages that these leave undecided are not lost.
ABOUT_HOSTS = ("clock", "restored", "log_hole", "late_log", "no_log", "broken_file")
#: Those about logs that are not there as a whole: nothing is proved about what they may hold.
INCOMPLETE = ("no_log", "late_log", "log_hole", "broken_file")

FINDING_SCHEMA = pa.schema(
    [
        ("kind", pa.string()),
        ("host", pa.string()),  # the subject of a clock or log finding; else the receiver
        ("from_host", pa.string()),
        ("to_host", pa.string()),
        ("queue", pa.string()),
        ("message_id", pa.string()),
        ("sequence_id", pa.decimal128(20, 0)),
        ("sequence_number", pa.int64()),
        ("until_number", pa.int64()),  # of a gap
        ("at_ms", pa.int64()),
        ("detail", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    full: bool = False
    clock_tolerance_ms: int = 1000
    findings_max: int = 100_000  # listed by one run; all are counted
    timelines: int = 0  # how many findings get their neighbours
    tasks: int = 0  # 0: by the size of the input and the session


@dataclass
class FindingTimeline:
    """A finding and its neighbours; `messages` has the times of sending and acceptance of each."""

    kind: str
    source: int
    host: int
    key: int
    messages: Frame
    from_host: str = ""
    to_host: str = ""


@dataclass
class AuditResult:
    findings: Frame  # of FINDING_SCHEMA
    open: Frame  # undecided messages by reason: reason, host, messages
    streams: Frame  # for each: from, to, queue, sent, accepted, open, findings
    offsets_ms: dict[str, float]  # of hosts' clocks, as far as known
    events: int
    messages: int
    suspects: int
    files: int
    seconds: float
    segments: Frame = None  # for `State`: the segments that are settled now
    kept: Frame = None  # the events of all other messages
    counts: dict[str, int] | None = None
    timelines: list[FindingTimeline] = field(default_factory=list)
