"""Small parts of the protocol: message classes, flag words, texts, errors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import flags as flag_words
from protocol.errors import InvalidName, MalformedPacket, ProtocolError
from protocol.flags import BaseFlags, FlagWord, TransactionFlags, UserFlags
from protocol.message_class import Delivery, MessageClass
from protocol.text import end_of_text, ends_with_its_only_null, plain_text, wide_text

WORDS = [
    it for it in vars(flag_words).values() if isinstance(it, type) and issubclass(it, FlagWord)
]


def test_an_error_names_the_field_the_place_and_the_rule() -> None:
    error = MalformedPacket("user.flags.hops", 60, "MUST be 0..0x1D")

    assert str(error) == "user.flags.hops at offset 60: MUST be 0..0x1D"
    assert (error.field, error.offset, error.rule) == ("user.flags.hops", 60, "MUST be 0..0x1D")
    assert isinstance(error, ProtocolError)
    assert not isinstance(error, InvalidName)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (0, "normal"),
        (2, "ack_reach_queue"),
        (0xFF, "order_ack"),
        (0x8000, "nack_bad_destination_queue"),
        (0x8009, "nack_not_transactional_queue"),
        (0xC004, "nack_receive_rejected"),
        (0x8008, "0x8008"),
        (0x1234, "0x1234"),
    ],
)
def test_a_class_has_a_name_or_is_its_number(value: int, name: str) -> None:
    assert MessageClass.name_of(value) == name


def test_every_class_has_a_sentence() -> None:
    sentences = {MessageClass.describe(it) for it in MessageClass}

    assert len(sentences) == len(MessageClass)
    assert all(it.endswith(".") for it in sentences)
    assert "0x1234" in MessageClass.describe(0x1234)


def test_classes_have_the_numbers_of_the_specification() -> None:
    """MS-MQMQ 2.2.18.1.6, in its order."""
    arrival = [0x8000, 0x8001, 0x8002, 0x8003, 0x8004, 0x8005, 0x8006, 0x8007]
    arrival += [0x8009, 0x800A, 0x800B]
    reception = [0xC000, 0xC001, 0xC002, 0xC004]

    assert [int(it) for it in MessageClass] == [0, 1, 2, 0xFF, 0x4000, *arrival, *reception]
    for name in MessageClass.__members__:
        assert name.startswith("NACK_") == bool(MessageClass[name] & 0x8000)


def test_the_spelling_of_the_specification_names_the_same_classes() -> None:
    assert MessageClass.NACK_BAD_DST_Q is MessageClass.NACK_BAD_DESTINATION_QUEUE
    assert MessageClass.NACK_NOT_TRANSACTIONAL_MSG == 0x800A
    assert Delivery.RECOVERABLE == 1


def test_flags_are_read_and_set_by_name() -> None:
    flags = UserFlags(0x00281C00)  # the value in the example of the specification

    assert (flags.destination_type, flags.security_header, flags.properties_header) == (7, 1, 1)
    assert (flags.admin_type, flags.transaction_header, flags.delivery) == (0, 0, 0)
    assert UserFlags.of(destination_type=7, security_header=1, properties_header=1) == flags
    assert flags.replace(destination_type=3) == 0x00280C00
    assert TransactionFlags.of(first=1, last=1, index=0x10) == 0x10C


def test_reserved_bits_survive_a_change() -> None:
    assert BaseFlags(0xFEC0).replace(priority=7) == 0xFEC7


@pytest.mark.parametrize("value", [8, -1])
def test_a_value_too_large_for_its_bits_is_an_error(value: int) -> None:
    with pytest.raises(ValueError, match=r"priority is 0\.\.7"):
        BaseFlags.of(priority=value)


@pytest.mark.parametrize("word", WORDS)
def test_no_two_ranges_of_a_word_overlap(word: type[FlagWord]) -> None:
    masks = [place.mask << place.low for place in word.ranges.values()]

    assert sum(masks) == sum(set(masks))
    for at, mask in enumerate(masks):
        assert all(not mask & other for other in masks[at + 1 :])


def test_a_flag_word_prints_its_set_flags() -> None:
    assert repr(BaseFlags(0x1B)) == "BaseFlags(0x1b: priority=3, internal=1, session_header=1)"


@given(st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"])))
def test_a_text_is_read_back(text: str) -> None:
    raw = wide_text(text)

    assert plain_text(raw) == text
    assert ends_with_its_only_null(raw)
    assert end_of_text(b"??" + raw + b"\0\0more", 2, len(raw) + 2 + 6) == 2 + len(raw)


def test_a_missing_label_is_an_empty_text() -> None:
    assert plain_text(b"") == ""


@given(st.lists(st.sampled_from([0, 0, 1, 0x61]), max_size=12).map(bytes), st.integers(0, 3))
def test_a_null_character_is_where_the_decoder_finds_it(text: bytes, start: int) -> None:
    even = text[start : len(text) - (len(text) - start) % 2] if start <= len(text) else b""
    at = even.decode("utf-16-le", "surrogatepass").find("\0")

    found = start + 2 * at + 2 if at >= 0 else -1
    assert end_of_text(text, start, len(text)) == found
    assert end_of_text(text + b"\0\0", start, len(text)) == found, "not beyond the bound"
    if start == 0 and len(text) % 2 == 0:
        assert ends_with_its_only_null(text) == (at >= 0 and 2 * at + 2 == len(text))


def test_a_packet_full_of_unaligned_zero_pairs_is_searched_quickly() -> None:
    """Many pairs of zero bytes that do not begin at a character must not make the search slow."""
    text = b"\x01\0\0\x01" * 1_000_000

    assert end_of_text(text, 0, len(text)) == -1
    assert end_of_text(text + b"\0\0", 0, len(text) + 2) == len(text) + 2
    assert not ends_with_its_only_null(text)
