"""Packets that qmd composes have no bit without a meaning.  [MS-MQMQ] 2.2.19, 2.2.20"""

from __future__ import annotations

import pytest

from protocol import parse_user_message
from protocol.flags import FlagWord
from protocol.names.format_name import parse_format_name
from qmd.control_protocol.messages import EXPRESS, RECOVERABLE, TRANSACTIONAL, NewMessage
from qmd.message.addresses import queue_address, reply_address
from qmd.message.build import compose

SOURCE, QUEUE = b"queue manager A.", b"another queue b."
NAME = "DIRECT=OS:hostb\\private$\\orders"


def compose_with_all(delivery: int) -> bytes:
    """Return a packet with every header that qmd composes."""
    destination = queue_address(parse_format_name(NAME))
    reply = reply_address(parse_format_name("DIRECT=OS:hosta\\private$\\answers"))
    return compose(
        NewMessage(
            NAME,
            b"body",
            label="label",
            priority=7,
            journal=True,
            acknowledge=15,
            extension=b"more",
            sender_id=bytes.fromhex("010100000000000512000000"),
        ),
        source=SOURCE,
        destination=destination,
        admin=reply,
        response=reply,
        message_number=0xFFFFFFFF,
        sent_time_s=0xFFFFFFFF,
        delivery=delivery,
        position=(2**64 - 1, 2**32 - 1, 0xFFFFF) if delivery == TRANSACTIONAL else None,
        dead_letter=True,
        report_queue=QUEUE,
        destinations=(destination, destination),
    )


@pytest.mark.parametrize("delivery", [EXPRESS, RECOVERABLE, TRANSACTIONAL])
def test_composed_packets_leave_all_unused_bits_clear(delivery: int) -> None:
    message = parse_user_message(compose_with_all(delivery))

    assert message.base.reserved == 0
    for header in (message.base, message.user, message.properties):
        assert known(header.flags) == header.flags
    assert (message.transaction is not None) == (delivery == TRANSACTIONAL)
    for optional in (message.transaction, message.security, message.debug):
        if optional is not None:
            assert known(optional.flags) == optional.flags
    assert message.security is not None
    assert message.security.flags.authenticated == message.security.flags.signature_type == 0
    assert message.debug is not None
    assert message.debug.reserved == 0
    assert message.soap is None
    lists = message.multi_queue
    assert lists is not None
    for each in (lists.destination, lists.admin, lists.response, lists.signature):
        assert each.reserved == 0


def known(flags: FlagWord) -> int:
    """Return the flags without the bits that no property of their class names."""
    names = [name for name, value in vars(type(flags)).items() if isinstance(value, property)]
    return int(type(flags).of(**{name: getattr(flags, name) for name in names}))
