"""Distinguished names, and the names of the objects of queues."""

from __future__ import annotations

import pytest

from qmd.directory.ldap import names as ldap_names


@pytest.mark.parametrize(
    ("name", "spelled"),
    [
        ("orders", "orders"),
        ("a,b+c", "a\\,b\\+c"),
        ("#1 <x>", "\\#1 \\<x\\>"),
        (" both ", "\\ both\\ "),
        ("line\nend", "line\\0aend"),
        ("grün", "grün"),
    ],
)
def test_a_name_is_escaped_in_a_distinguished_name_and_read_back(name, spelled):
    dn = ldap_names.child(name, "CN=msmq,DC=x")

    assert dn == f"CN={spelled},CN=msmq,DC=x"
    assert ldap_names.first_value(dn) == name
    assert ldap_names.split(dn) == (f"CN={spelled}", "CN=msmq,DC=x")


def test_bytes_and_quotes_in_distinguished_names_are_read():
    assert ldap_names.first_value("CN=gr\\c3\\bcn,DC=x") == "grün"
    assert ldap_names.split('CN="a,b",DC=x') == ('CN="a,b"', "DC=x")
    assert ldap_names.first_value('CN="a,b",DC=x') == "a,b"


def test_a_queue_name_of_63_characters_is_the_name_of_its_object():
    assert ldap_names.queue_object_name("q" * 63) == ("q" * 63, "")


def test_a_longer_name_is_split_and_replaced_by_a_hash():
    """The first steps of the algorithm in [MS-MQDSSM] 2.2.5, with two values of its table."""
    assert ldap_names.name_hash("") == "00000000"
    # 'A' becomes 0x0061: table[0x00] is 0, so the result is table[0x61].
    assert ldap_names._TABLE[:3] == (0, 0x82E0FE45, 0x3302DCCD)
    assert ldap_names._TABLE[255] == 0x93E14A01
    assert ldap_names.name_hash("A") == f"{ldap_names._TABLE[0x61]:08x}"

    name, extension = ldap_names.queue_object_name("Q" * 100)

    assert name == "Q" * 55 + "-" + ldap_names.name_hash("q" * 100)
    assert extension == "Q" * 45
    assert ldap_names.queue_name(name, extension) == "Q" * 100


def test_special_characters_are_counted_with_their_backslash_and_stored_without():
    """[MS-MQDSSM] 3.1.6.1.2.5: the characters are escaped for the distinguished name."""
    name, extension = ldap_names.queue_object_name("#" * 40)

    assert "\\" not in name + extension
    assert ldap_names.queue_name(name, extension) == "#" * 40
