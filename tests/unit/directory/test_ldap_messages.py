"""LDAP messages as bytes, compared with another library that reads and writes them."""

from __future__ import annotations

import pytest
from sansldap import (
    BindRequest,
    FilterEquality,
    PagedResultControl,
    SaslCredential,
    SearchRequest,
    SearchScope,
    SimpleCredential,
)
from sansldap._messages import PackingOptions, unpack_ldap_message
from sansldap.asn1 import ASN1Reader

from qmd.directory.ldap import messages as ldap_messages
from qmd.directory.ldap.messages import Change, Entry, Frames, LdapFault, Result, Scope
from tests.fuzz.directory import packed


def theirs(data: bytes) -> object:
    """Decode `data` with the other library."""
    return unpack_ldap_message(ASN1Reader(data), PackingOptions())


def test_answers_are_read_as_another_library_writes_them():
    entry, reference, page, refused, bound, notice = map(ldap_messages.read, packed())

    assert entry.answer == Entry(
        "CN=orders,DC=x",
        {
            "objectguid": (bytes(range(16)),),
            "member;range=0-1": (b"CN=a", b"CN=b"),
            "empty": (),
        },
    )
    assert reference.answer == ldap_messages.Reference()
    assert (page.id, page.cookie) == (3, b"\x01\x02")
    assert refused.id == 300_000
    assert refused.answer == ldap_messages.Done(Result(32, "DC=msmq", "0000208D: ü"))
    assert bound.answer == ldap_messages.Bound(Result(0, "", ""), b"token")
    assert notice.answer.name == ldap_messages.NOTICE_OF_DISCONNECTION


def test_requests_are_read_by_another_library():
    search = theirs(
        ldap_messages.search(
            *(7, "DC=x", Scope.SUBTREE, FilterEquality("cn", b"a*b"), ("cn", "member;range=0-9")),
            page_size=500,
            cookie=b"c",
            time_limit_s=5,
        )
    )
    simple = theirs(ldap_messages.bind_simple(1, "me@x", b"secret"))
    sasl = theirs(ldap_messages.bind_sasl(2, "GSS-SPNEGO", b"token"))

    assert isinstance(search, SearchRequest)
    assert (search.message_id, search.base_object, search.scope) == (7, "DC=x", SearchScope.SUBTREE)
    assert search.filter == FilterEquality("cn", b"a*b")
    assert search.attributes == ["cn", "member;range=0-9"]
    assert search.time_limit == 5
    (control,) = search.controls
    assert isinstance(control, PagedResultControl)
    assert (control.size, control.cookie, control.critical) == (500, b"c", True)
    assert isinstance(simple, BindRequest)
    assert simple.authentication == SimpleCredential("secret")
    assert sasl.authentication == SaslCredential("GSS-SPNEGO", b"token")


def test_changes_have_the_bytes_of_the_standard():
    """Handmade bytes after RFC 4511 4.6 to 4.11, since the other library has none of them."""
    assert ldap_messages.delete(5, "DC=x") == bytes.fromhex("3009 020105 4a04 44433d78")
    assert ldap_messages.unbind(6) == bytes.fromhex("3005 020106 4200")
    assert ldap_messages.abandon(300, 299) == bytes.fromhex("3008 0202012c 5002012b")
    assert ldap_messages.add(1, "DC=x", {"cn": [b"a", b"b"]}) == bytes.fromhex(
        "301b 020101 6816 0404 44433d78 300e 300c 0402 636e 3106 040161 040162"
    )
    assert ldap_messages.modify(1, "DC=x", [(Change.DELETE, "cn", [b"a"])]) == bytes.fromhex(
        "301d 020101 6618 0404 44433d78 3010 300e 0a0101 3009 0402 636e 3103 040161"
    )


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"GET / HTTP/1.1\r\n", "no LDAP"),
        (b"\x30\x84\x7f\xff\xff\xff", "bytes; at most"),
        (b"\x30\x80", "cannot be read"),
        (b"\x30\x85\0\0\0\0\1", "cannot be read"),
    ],
)
def test_bytes_that_are_not_ldap_are_refused_before_they_are_buffered(data, word):
    with pytest.raises(LdapFault, match=word):
        list(Frames().feed(data))


@pytest.mark.parametrize(
    ("data", "word"),
    [
        ("3003 0201ff", "below 0"),
        ("3006 0205 01000000", "than the element that contains it"),
        ("3007 0205 0100000000", "number of 5 bytes"),
        ("3002 0200", "number of 0 bytes"),
        ("3005 020101 7f00", "more than one byte"),
        ("3005 020101 4000", "unknown kind"),
        ("3005 020101 6400", "middle"),
        ("300b 020101 6406 0402fffe 3000", "UTF-8"),
        ("3003 020101 00", "after the end"),
    ],
)
def test_an_invalid_message_is_refused_with_a_reason(data, word):
    with pytest.raises(LdapFault, match=word):
        ldap_messages.read(bytes.fromhex(data))


def test_an_entry_with_too_many_values_is_refused():
    values = b"\x04\x00" * (ldap_messages.VALUES_MAX + 1)

    def element(tag: int, body: bytes) -> bytes:
        return bytes((tag, 0x84)) + len(body).to_bytes(4, "big") + body

    attribute = element(0x30, b"\x04\x01a" + element(0x31, values))
    entry = element(0x64, b"\x04\x00" + element(0x30, attribute))

    with pytest.raises(LdapFault, match="values"):
        ldap_messages.read(element(0x30, b"\x02\x01\x01" + entry))
