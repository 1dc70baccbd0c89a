"""The security descriptor of a queue manager's object, byte by byte."""

from __future__ import annotations

from qmd.directory.ldap.security_descriptor import descriptor, queue_manager_descriptor, sid

COMPUTER = sid("S-1-5-21-1-2-3-1104")


def test_a_sid_has_the_bytes_of_the_specification():
    """[MS-DTYP] 2.4.2.2: the authority is the only big-endian number."""
    assert sid("S-1-5-32-544") == bytes.fromhex("01 02 000000000005 20000000 20020000")


def test_a_descriptor_is_self_relative_and_has_only_a_list_of_rights():
    """[MS-DTYP] 2.4.6, 2.4.5 and 2.4.4.2."""
    everybody = bytes.fromhex("01 01 000000000001 00000000")

    assert descriptor([(0x20094, sid("S-1-1-0"))]) == (
        bytes.fromhex("01 00 0480 00000000 00000000 00000000 14000000")
        + bytes.fromhex("04 00 1c00 0100 0000")
        + bytes.fromhex("00 02 1400 94000200")
        + everybody
    )


def test_the_computer_and_administrators_have_all_rights_and_others_can_read():
    made = queue_manager_descriptor(COMPUTER)

    assert made.count(bytes.fromhex("ff010f00")) == 3
    assert bytes.fromhex("ff010f00") + COMPUTER in made
    assert bytes.fromhex("ff010f00") + sid("S-1-5-21-1-2-3-512") in made
    assert bytes.fromhex("94000200") + sid("S-1-1-0") in made
