"""Cost of a packet: parsing it, building it, framing it.

    python -m benchmarks.bench_codec [--json]

The packet is a transactional user message of 1 KiB with three direct names, a label, an extension
of 22 bytes and a SessionHeader.  Microseconds of process CPU time, best of five rounds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from protocol import (
    INFINITE,
    SIGNATURE,
    VERSION,
    BaseFlags,
    BaseHeader,
    DirectQueueName,
    MessagePropertiesHeader,
    PacketBuffer,
    PropertyFlags,
    SessionHeader,
    TransactionFlags,
    TransactionHeader,
    UserFlags,
    UserHeader,
    UserMessage,
    append_session_header,
    build_session_ack,
    build_user_message,
    parse_user_message,
    patch_sequence,
    sequence_id,
    transaction_offset,
    wide_text,
    without_session_header,
)
from protocol.codec.reference import build_plainly, parse_plainly

ROUNDS = 5
ROUND_S = 0.1
FRAMES_PER_READ = 32


def sample_message() -> UserMessage:
    """Return the message on which all figures are based."""

    def name(text: str) -> DirectQueueName:
        return DirectQueueName(0, wide_text(text))

    user_flags = UserFlags.of(
        delivery=1,
        negative_journal=1,
        destination_type=7,
        admin_type=7,
        response_type=7,
        transaction_header=1,
        properties_header=1,
    )
    return UserMessage(
        BaseHeader(VERSION, 0, BaseFlags.of(session_header=1), SIGNATURE, 0, 345_600),
        UserHeader(
            bytes(range(16)),
            bytes(16),
            INFINITE,
            1_700_000_000,
            4711,
            user_flags,
            name("TCP:10.0.0.5\\private$\\orders"),
            name("OS:shop.example.com\\private$\\acknowledgments"),
            name("OS:shop.example.com\\private$\\answers"),
            None,
        ),
        TransactionHeader(
            TransactionFlags.of(first=1, last=1, index=99),
            sequence_id(1_700_000_000, 1),
            77,
            76,
            None,
        ),
        None,
        MessagePropertiesHeader(
            flags=PropertyFlags.of(positive_arrival=1, negative_arrival=1),
            label_length=0,
            message_class=0,
            correlation_id=bytes(20),
            body_type=0,
            application_tag=5,
            message_size=0,
            allocation_body_size=1024,
            privacy_level=0,
            hash_algorithm=0x800E,
            encryption_algorithm=0x6610,
            extension_size=0,
            label=wide_text("order 4711"),
            extension=bytes(22),
            body=bytes(range(256)) * 4,
        ),
        None,
        None,
        None,
        SessionHeader(12, 6, 0b111, 3, 1, 64, 0),
    )


def microseconds(act: Callable[[], Any], units: int = 1) -> float:
    """Return the CPU time of one unit; a call of `act` does `units` of them."""
    calls, spent = 1, 0.0
    best = float("inf")
    while spent < ROUND_S / 2:  # find how many calls fill a round
        calls *= 2
        spent = _cpu_s(act, calls)
    for _ in range(ROUNDS):
        best = min(best, _cpu_s(act, calls) / calls)
    return best * 1e6 / units


def _cpu_s(act: Callable[[], Any], calls: int) -> float:
    start = time.process_time()
    for _ in range(calls):
        act()
    return time.process_time() - start


def measure() -> dict[str, float]:
    """Return figure by name, in microseconds."""
    message = sample_message()
    packet = build_user_message(message)
    stored = bytearray(without_session_header(packet))
    bare = bytes(stored)
    session = message.session
    assert session is not None
    at = transaction_offset(stored)
    assert at is not None
    buffer, stream = PacketBuffer(), packet * FRAMES_PER_READ

    def cut_frames() -> None:
        buffer.get_buffer()[: len(stream)] = stream
        assert len(buffer.buffer_updated(len(stream))) == FRAMES_PER_READ

    return {
        "parse": microseconds(lambda: parse_user_message(packet)),
        "build": microseconds(lambda: build_user_message(message)),
        "parse, plain construct": microseconds(lambda: parse_plainly(UserMessage, packet)),
        "build, plain construct": microseconds(lambda: build_plainly(message)),
        "cut one frame off the stream": microseconds(cut_frames, FRAMES_PER_READ),
        "build a session ack": microseconds(lambda: build_session_ack(session)),
        "append a session header": microseconds(lambda: append_session_header(bare, session)),
        "find the transaction header": microseconds(lambda: transaction_offset(stored)),
        "patch the sequence": microseconds(lambda: patch_sequence(stored, at, 1, 2, 1)),
    }


def main() -> None:
    figures = measure()
    if "--json" in sys.argv[1:]:
        print(json.dumps({name: round(value, 3) for name, value in figures.items()}))
        return
    for name, value in figures.items():
        print(f"{name:32} {value:8.2f} us")


if __name__ == "__main__":
    main()
