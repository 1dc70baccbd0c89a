"""The packets of a composer that remembers the last message equal those of one that does not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.names.format_name import DirectName, PrivateName, Transport
from qmd.config.file import parse_settings
from qmd.control_protocol.messages import EXPRESS, RECOVERABLE, TRANSACTIONAL, NewMessage
from qmd.message.addresses import NO_ADDRESS, queue_address, reply_address
from qmd.message.limits import check
from qmd.message.template import Template
from qmd.operations.packet_composer import PacketComposer

REPLY = PrivateName(bytes(range(16)), 7)
ADDRESSES = [
    queue_address(name)
    for name in (
        DirectName(Transport.OS, "hosta", 1801, "orders", private=True),
        PrivateName(bytes(16), 9),
    )
]
SETTINGS = parse_settings("", file=Path("/etc/qmd/qmd.toml"), environment={})
SERVICES = SimpleNamespace(id=bytes(range(16)), settings=SETTINGS)
REPLIES = SimpleNamespace(
    address=lambda text: reply_address(REPLY) if text else NO_ADDRESS,
    report_queue=lambda _: bytes(range(1, 17)),
)


def few(*values: Any) -> st.SearchStrategy[Any]:
    """Draw the first value most of the time: most messages are alike."""
    return st.sampled_from([values[0]] * 6 + list(values))


PROPERTIES = {
    "body": st.binary(max_size=20),
    "label": st.text("äb😀", max_size=9),
    "priority": few(3, 0, 7),
    "time_to_reach_queue_s": few(None, 5),
    "time_to_be_received_s": few(None, 0xFFFFFFFF, 9),
    "dead_letter": few(None, True, False),
    "journal": few(False, True),
    "body_type": st.integers(0, 0xFFFFFFFF),
    "correlation_id": few(b"", bytes(range(20))),
    "application_tag": st.integers(0, 0xFFFFFFFF),
    "extension": st.binary(max_size=9),
    "response_queue": few("", "answers"),
    "admin_queue": few("", "admin"),
    "acknowledge": few(0, 15),
    "sender_id": few(b"", bytes(12)),
    "connector_type": few(b"", bytes(range(16))),
    "message_class": few(0, 1),
    "report_queue": few("", "reports"),
    "signature": few(b"", bytes(8)),
    "certificate": few(b"", bytes(5)),
    "hash_algorithm": few(0, 0x800C),
    "privacy_level": few(0, 5),
    "encryption_algorithm": few(0, 0x660E),
    "encryption_key": few(b"", bytes(16)),
}
MESSAGES = st.builds(NewMessage, st.just("orders"), **PROPERTIES).map(lambda new: accepted(new))
#: What `compose` is called with.
CALLS = st.tuples(
    MESSAGES,
    few(1_700_000_000, 1_700_000_001),
    few(*ADDRESSES),
    st.integers(0, 0xFFFFFFFF),
    few(TRANSACTIONAL, RECOVERABLE, EXPRESS),
    st.tuples(few(5, (1 << 64) - 1, 0), st.integers(0, 0xFFFFFFFF)),
    st.tuples(st.integers(0, 0x1FFFFF), few(True, False), few(True, False)),
    few((), tuple(ADDRESSES)),
    few(0, 1),
)


def accepted(new: NewMessage) -> NewMessage:
    """Return the message with the properties that others of it require, and without the rest."""
    found = msgspec.structs.replace(
        new,
        acknowledge=new.acknowledge or 15 if new.admin_queue else 0,
        certificate=new.certificate or bytes(5) if new.signature else b"",
        message_class=new.message_class if new.connector_type else 0,
    )
    check(found)
    return found


def composer() -> PacketComposer:
    return PacketComposer(cast(Any, SERVICES), cast(Any, REPLIES))


def packet_of(made_by: PacketComposer, call: Any) -> bytes:
    new, sent_s, address, number, delivery, position, bounds, destinations, style = call
    position = position if delivery == TRANSACTIONAL else None
    return made_by.compose(
        new, sent_s, address, number, delivery, position, bounds, destinations, style
    )


@settings(max_examples=60)
@given(st.lists(CALLS, min_size=2, max_size=4))
def test_a_composer_with_a_memory_makes_the_same_packets(calls: list[Any]) -> None:
    one = composer()

    for call in calls:
        assert packet_of(one, call) == packet_of(composer(), call)


BASE = (
    NewMessage("orders", b"body"),
    *(1_700_000_000, ADDRESSES[0], 7, TRANSACTIONAL, (5, 9), (3, True, True), (), 0),
)
#: Other properties of a message, and other values of the arguments after it, by their index.
OTHERS: list[tuple[str | int, Any]] = [
    ("body", b"another one"),
    ("label", "label"),
    ("priority", 7),
    ("time_to_reach_queue_s", 5),
    ("time_to_be_received_s", 9),
    ("dead_letter", True),
    ("dead_letter", False),
    ("journal", True),
    ("body_type", 8),
    ("correlation_id", bytes(range(20))),
    ("application_tag", 6),
    ("extension", b"extension"),
    ("response_queue", "answers"),
    ("admin_queue", "admin"),
    ("sender_id", bytes(12)),
    ("sender_id", bytes(range(12))),
    ("connector_type", bytes(range(16))),
    ("report_queue", "reports"),
    ("signature", bytes(8)),
    ("hash_algorithm", 0x800C),
    ("privacy_level", 5),
    ("encryption_algorithm", 0x660E),
    ("encryption_key", bytes(16)),
    (1, 1_700_000_001),
    (2, ADDRESSES[1]),
    (3, 8),
    (5, (6, 9)),
    (5, (5, 10)),
    (6, (4, True, True)),
    (6, (3, False, True)),
    (6, (3, True, False)),
    (7, tuple(ADDRESSES)),
]


@pytest.mark.parametrize("delivery", [TRANSACTIONAL, RECOVERABLE, EXPRESS])
@pytest.mark.parametrize(("what", "value"), OTHERS)
def test_each_property_has_its_part_in_the_packet(
    what: str | int, value: object, delivery: int
) -> None:
    """In messages before like ones and after them: each is the last message before the others."""
    base = (*BASE[:4], delivery, *BASE[5:])
    if isinstance(what, str):
        other = (accepted(msgspec.structs.replace(BASE[0], **{what: value})), *base[1:])
    else:
        other = (*base[:what], value, *base[what + 1 :])
    one = composer()

    for call in (base, base, base, other, other, other, base, other, base):
        assert packet_of(one, call) == packet_of(composer(), call)


def test_another_delivery_has_another_form() -> None:
    one = composer()
    for delivery in 3 * [TRANSACTIONAL, TRANSACTIONAL, RECOVERABLE, RECOVERABLE, EXPRESS, EXPRESS]:
        call = (*BASE[:4], delivery, *BASE[5:])
        assert packet_of(one, call) == packet_of(composer(), call)


def test_like_messages_are_made_from_one_template(monkeypatch: Any) -> None:
    made: list[bytes] = []
    before = Template.__init__

    def counted(self: Template, model: bytes) -> None:
        made.append(model)
        before(self, model)

    monkeypatch.setattr(Template, "__init__", counted)
    one = composer()
    for number in range(10):
        new = NewMessage("orders", b"%d" % number, "label")
        way = 1_700_000_000, ADDRESSES[0], number, TRANSACTIONAL
        call = (new, *way, (5, number), (number, True, True), (), 0)
        assert packet_of(one, call) == packet_of(composer(), call)

    assert len(made) == 1


def test_a_large_packet_is_not_kept() -> None:
    one = composer()
    large = NewMessage("orders", bytes(1_000_000))
    call = (large, 1_700_000_000, ADDRESSES[0], 1, RECOVERABLE, (0, 0), (0, True, True), (), 0)

    packet_of(one, call)

    assert one._model == b""
