"""Requests with many messages, which are recognized by their first bytes."""

from __future__ import annotations

import pytest

from qmd.control_protocol.messages import NewMessage, Peek, Send, frame
from qmd.control_protocol.once import SendOnce
from qmd.control_protocol.parts import MANY, request_in_parts

NUMBERS = (0, 127, 128, 255, 256, 70_000, 1 << 33)
MESSAGE = NewMessage("orders", bytes(4096))


@pytest.mark.parametrize("messages", [1, 15, 16, MANY - 1, MANY, MANY + 500])
def test_a_request_is_in_parts_from_the_limit_on(messages: int) -> None:
    sent = [MESSAGE, *[NewMessage("orders", b"")] * (messages - 1)]
    for number in NUMBERS:
        for request in (Send(number, sent), SendOnce(number, sent, b"token")):
            found = request_in_parts(memoryview(frame(request))[4:])
            assert (found is not None) is (messages >= MANY)
            assert found is None or (found.number, len(found.messages)) == (number, messages)


def test_other_requests_and_bytes_of_no_request_are_not_in_parts() -> None:
    assert request_in_parts(frame(Peek(1, "q" * 5000))[4:]) is None
    for first in range(256):
        for second in (0, 1, 0x90, 0xDC, 0xFF):
            data = bytes([0x96, 0xA4]) + b"send" + bytes([first, second]) + bytes(4096)
            assert request_in_parts(data) is None
