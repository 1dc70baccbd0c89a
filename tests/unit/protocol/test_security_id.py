"""Security identifiers (SIDs) as text and bytes."""

import pytest

from protocol.errors import InvalidName
from protocol.security_id import parse_security_id, security_id_text

EVERYONE = bytes.fromhex("010100000000000100000000")
ADMINISTRATORS = bytes.fromhex("01020000000000052000000020020000")


@pytest.mark.parametrize(
    ("text", "raw"),
    [("S-1-1-0", EVERYONE), ("S-1-5-32-544", ADMINISTRATORS)],
)
def test_well_known_identifiers_are_read_and_written(text, raw):
    assert parse_security_id(text) == raw
    assert security_id_text(raw) == text


def test_a_large_authority_is_hexadecimal():
    raw = bytes((1, 1)) + (1 << 32).to_bytes(6, "big") + bytes(4)

    assert security_id_text(raw) == "S-1-0x000100000000-0"
    assert parse_security_id("S-1-0x000100000000-0") == raw


@pytest.mark.parametrize(
    "text",
    [
        "",
        "me",
        "S-1-5",
        "S-2-5-1",
        "S-1-5-4294967296",
        "S-1-5" + "-1" * 16,
        "S-1-999999999999999-1",
    ],
)
def test_an_invalid_identifier_is_refused(text):
    with pytest.raises(InvalidName, match="security identifier"):
        parse_security_id(text)


@pytest.mark.parametrize("raw", [b"", b"\1", EVERYONE[:-1], EVERYONE + b"\0", b"\2" + EVERYONE[1:]])
def test_invalid_bytes_have_no_text(raw):
    assert security_id_text(raw) is None
