"""The freedom of a host: timers, and each choice that the text leaves to it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from tests.strict_host.encoding import NOISE

DAY_S = 86_400.0


@dataclass(frozen=True)
class Times:
    """The timers of QB 3.1.2 with the values that the notes of the text give for Windows."""

    initialization_s: float = 60.0  # <43>
    cleanup_s: float = 300.0  # <44>
    retry_s: float = 5.0  # <45>
    ack_ms: int = 20_000  # <51>
    ack_wait_factor: int = 2  # of a session with direct names: <46>
    order_ack_s: float = 0.5  # 3.1.3.2
    order_ack_delay_max_s: float = 10.0
    resend_s: tuple[float, ...] = (30, 30, 30, 300, 300, 300, 1800, 1800, 1800, 21_600)


@dataclass(frozen=True)
class Manner:
    """The behaviour of a host towards others; every value is legal."""

    times: Times = field(default_factory=Times)
    window: int = 64
    ack_after: int = 32  # messages; QB 3.1.1.6.1: "based on message count and window size"
    ack_pace: float = (
        1.0  # the part of a Session Ack Send Timer that passes: 0 acknowledges at once
    )
    bits_left: float = 0.0  # the probability that a stored message waits for a later ack
    order_ack_delay_s: float = 0.0  # of the way, on top of the timer
    order_ack_copies: int = 1
    order_acks_withheld: bool = False
    stale_order_acks: bool = False  # an acknowledgment from before is sent once more
    final_ack_delay_s: float = 0.0
    piggyback: float = 0.0  # the probability of a SessionHeader in a user message
    untidy: bool = False  # noise in paddings and in reserved bits
    cut: str = "whole"  # segments: "whole", "joined", "random", "bytes"
    names_by_guid: bool = False  # order acks to PRIVATE=guid\4 instead of a direct name
    keeps_previous: bool = False  # a resent first message: 0 or the number before it, notes 19
    system: int = 0x0310  # OperatingSystem: server-class, no ping
    answers: int = 2  # of the handshake's two: 0 or 1 leaves the other side waiting
    breaks_off: bool = False  # closes each session instead of taking a message
    sleeps: bool = False  # sends no packet at all, and reads

    @property
    def filler(self) -> int:
        return NOISE if self.untidy else 0


POLITE = Manner(ack_pace=0.0, times=Times(order_ack_s=0.02, retry_s=0.05))


def drawn(source: random.Random, base: Manner = POLITE) -> Manner:
    """Draw a legal behaviour."""
    return replace(
        base,
        window=source.choice([1, 2, 16, 64, 64, 64]),
        ack_after=source.choice([1, 2, 31, 32]),
        ack_pace=source.choice([0.0, 0.0, 0.05]),
        bits_left=source.choice([0.0, 0.0, 0.3]),
        order_ack_delay_s=source.choice([0.0, 0.0, 0.2]),
        order_ack_copies=source.choice([1, 1, 2]),
        order_acks_withheld=source.random() < 0.1,
        stale_order_acks=source.random() < 0.3,
        piggyback=source.choice([0.0, 0.3, 1.0]),
        untidy=source.random() < 0.5,
        cut=source.choice(["whole", "joined", "random", "bytes"]),
        keeps_previous=source.random() < 0.3,
        system=source.choice([0x0310, 0x0110, 0x0710]),
    )
