"""The label that is read at its offset, against the parser."""

from __future__ import annotations

from hypothesis import given

from protocol import build_user_message, parse_user_message
from protocol.user_message import UserMessage
from qmd.core.packet_fields import label_of
from tests.properties.packet_strategies import user_messages


@given(user_messages())
def test_the_label_of_a_packet_is_that_of_its_message(message: UserMessage) -> None:
    packet = build_user_message(message)

    label = parse_user_message(packet).properties.label
    assert label_of(packet) == label.decode("utf-16-le", "replace").rstrip("\0")
