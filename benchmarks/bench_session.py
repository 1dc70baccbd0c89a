"""Cost of a session per message: `python -m benchmarks.bench_session [--json]`.

Receiving is measured beside the parsing that it contains, in the batches that a socket delivers;
the difference is the cost of counting, acknowledging and reporting.  Times are CPU microseconds per
message, the best of several rounds; once without Python's garbage collector and once with its
default thresholds, with which it traverses every batch.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable

from benchmarks.bench_codec import sample_message
from protocol import build_user_message, parse_user_message, without_session_header
from protocol.framing import PacketBuffer
from qmd.core.session import Event, MessageReceived, Session, SessionSettings

BATCH_MESSAGES = 64
BATCHES = 400
ROUNDS = 5
OWN_ID = bytes(range(16))


def open_pair() -> tuple[Session, Session]:
    """Return two sessions after their handshake, with a window that never closes."""
    settings = SessionSettings(window_size=0x7FFF)
    sender = Session(initiator=True, own_id=OWN_ID, settings=settings, now=0.0)
    receiver = Session(initiator=False, own_id=OWN_ID[::-1], settings=settings, now=0.0)
    sender.start(0.0)
    for _ in range(2):
        receiver.receive(packets(sender), 0.0)
        sender.receive(packets(receiver), 0.0)
    return sender, receiver


def packets(session: Session) -> list[bytes]:
    """Return the packets that the session has to send."""
    return PacketBuffer().feed(session.data_to_send())


def recoverable_numbers(events: list[Event]) -> list[int]:
    return [event.recoverable_number for event in events if isinstance(event, MessageReceived)]


def best_us(measure: Callable[[], float]) -> float:
    return min(measure() for _ in range(ROUNDS)) / (BATCHES * BATCH_MESSAGES) * 1e6


def parse_only(batch: list[bytes]) -> float:
    started = time.process_time()
    for _ in range(BATCHES):
        kept = [parse_user_message(packet) for packet in batch]
    assert len(kept) == len(batch)
    return time.process_time() - started


def receive(batch: list[bytes]) -> float:
    _, receiver = open_pair()
    started = time.process_time()
    for _ in range(BATCHES):
        receiver.receive(batch, 1.0)
        receiver.data_to_send()
    return time.process_time() - started


def receive_and_store(batch: list[bytes]) -> float:
    _, receiver = open_pair()
    spent = 0.0
    for _ in range(BATCHES):
        events = receiver.receive(batch, 1.0)
        numbers = recoverable_numbers(events)
        started = time.process_time()
        receiver.mark_stored(numbers, 1.0)
        receiver.data_to_send()
        spent += time.process_time() - started
    return spent


def send(batch: list[bytes]) -> float:
    """Measure sending; processing the acknowledgments is not counted."""
    sender, receiver = open_pair()
    spent = 0.0
    for _ in range(BATCHES):
        started = time.process_time()
        for packet in batch:
            sender.send(packet, recoverable=True, token=packet, now=1.0)
        data = sender.data_to_send()
        spent += time.process_time() - started
        events = receiver.receive(PacketBuffer().feed(data), 1.0)
        receiver.mark_stored(recoverable_numbers(events), 1.0)
        sender.receive(packets(receiver), 1.0)
    return spent


def take_acknowledgments(batch: list[bytes]) -> float:
    sender, receiver = open_pair()
    spent = 0.0
    for _ in range(BATCHES):
        for packet in batch:
            sender.send(packet, recoverable=True, token=packet, now=1.0)
        events = receiver.receive(PacketBuffer().feed(sender.data_to_send()), 1.0)
        receiver.mark_stored(recoverable_numbers(events), 1.0)
        acknowledgments = packets(receiver)
        started = time.process_time()
        sender.receive(acknowledgments, 1.0)
        spent += time.process_time() - started
    return spent


def measure(batch: list[bytes]) -> dict[str, float]:
    """Return figure by name, in microseconds."""
    parsing = best_us(lambda: parse_only(batch))
    return {
        "parse alone": parsing,
        "receive, above that": best_us(lambda: receive(batch)) - parsing,
        "mark_stored": best_us(lambda: receive_and_store(batch)),
        "send": best_us(lambda: send(batch)),
        "take acknowledgments": best_us(lambda: take_acknowledgments(batch)),
    }


def main() -> None:
    packet = without_session_header(build_user_message(sample_message()))
    batch = [packet] * BATCH_MESSAGES
    collecting = measure(batch)
    if "--json" in sys.argv[1:]:
        print(json.dumps({name: round(value, 3) for name, value in collecting.items()}))
        return
    gc.disable()
    plain = measure(batch)
    print(f"{len(packet)} bytes a packet, {BATCH_MESSAGES} packets a batch: CPU us a message")
    print(f"{'':40}{'gc off':>8}{'gc on':>8}")
    for name, value in plain.items():
        print(f"{name:40}{value:8.2f}{collecting[name]:8.2f}")


if __name__ == "__main__":
    main()
