"""Dialogue: a correct conversation of two sessions of our own, as parts of a capture."""

from __future__ import annotations

from typing import Any

from protocol import build_user_message, transaction_offset
from protocol.acknowledgments import build_order_ack, order_queue_name
from protocol.identifiers import sequence_id
from protocol.patching import MESSAGE_NUMBER_OFFSET, patch_sequence
from protocol.records import OrderAckBody
from qmd.core.session import Session, SessionSettings
from qmd.core.session_events import MessageReceived
from tests.captures import Part
from tests.unit.core.session_wire import numbered_packet
from tests.unit.protocol.samples import transactional_message

A, B = b"queue manager A.", b"queue manager B."
SEQUENCE = sequence_id(7, 1)


class Dialogue:
    """Two sessions that exchange messages; `parts` is their traffic."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.now = 0.0
        settings = SessionSettings(window_size=64)
        self.a = Session(initiator=True, own_id=A, settings=settings, now=0.0)
        self.b = Session(initiator=False, own_id=B, settings=settings, now=0.0)
        self.a.start(self.now)
        self.exchange()

    def exchange(self) -> None:
        """Pass on bytes until both ends are silent; store all recoverable messages."""
        from protocol import PacketBuffer

        while True:
            moved = False
            for by_client, one, other in ((True, self.a, self.b), (False, self.b, self.a)):
                data = one.data_to_send()
                if data:
                    moved = True
                    self.parts.append(Part(by_client, data))
                    events: list[Any] = other.receive(PacketBuffer().feed(data), self.now)
                    numbers = [
                        event.recoverable_number
                        for event in events
                        if type(event) is MessageReceived and event.recoverable_number
                    ]
                    other.mark_stored(numbers, self.now)
            if not moved:
                return

    def send(self, packet: bytes, *, recoverable: bool, by_client: bool = True) -> None:
        """Send a message, and let the other end acknowledge it."""
        one = self.a if by_client else self.b
        one.send(packet, recoverable=recoverable, token=None, now=self.now)
        self.exchange()

    def wait(self, seconds: float) -> None:
        """Let time pass: timers run."""
        self.now += seconds
        for session in (self.a, self.b):
            session.handle_timer(self.now)
        self.exchange()


def usual() -> list[Part]:
    """Return a session with messages of every kind, both ways, and their acknowledgments."""
    dialogue = Dialogue()
    for number in range(1, 4):
        dialogue.send(numbered_packet(number, "express"), recoverable=False)
        dialogue.send(numbered_packet(number + 10, "recoverable"), recoverable=True)
    template = build_user_message(transactional_message())
    at = transaction_offset(template)
    assert at is not None
    for number in range(1, 4):
        packet = bytearray(template)
        patch_sequence(packet, at, SEQUENCE, number, number - 1)
        packet[MESSAGE_NUMBER_OFFSET : MESSAGE_NUMBER_OFFSET + 4] = (number + 30).to_bytes(
            4, "little"
        )
        dialogue.send(bytes(packet), recoverable=True)
    ack = build_order_ack(
        source_queue_manager=B,
        destination=order_queue_name("10.0.0.1"),
        message_number=1,
        sent_time=1_700_000_000,
        body=OrderAckBody(SEQUENCE, 3, 2),
    )
    dialogue.send(ack, recoverable=True, by_client=False)
    dialogue.send(numbered_packet(20, "recoverable"), recoverable=True, by_client=False)
    dialogue.wait(30.0)
    return dialogue.parts
