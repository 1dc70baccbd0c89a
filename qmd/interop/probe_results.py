"""Results of a probe: the verdicts of its steps, and the conversations with their packets."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from qmd.interop.conversation import Conversation, Seen


class Verdict(Enum):
    """The result of a step."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_SEEN = "not seen"  # optional, or it may have gone another way


class Outcome(NamedTuple):
    """A step with its result."""

    step: str
    clause: str
    verdict: Verdict
    detail: str


class Talk(NamedTuple):
    """A conversation with its packets; `is_accepted`: the peer has begun it."""

    name: str
    conversation: Conversation
    packets: list[Seen]
    is_accepted: bool = False

    @property
    def peer_packets(self) -> list[Seen]:
        """Those of the peer."""
        return [seen for seen in self.packets if seen.by_initiator is self.is_accepted]

    @property
    def peer_guid(self) -> str:
        """The GUID that the peer has stated, or ""."""
        return self.conversation.guids[0 if self.is_accepted else 1]
