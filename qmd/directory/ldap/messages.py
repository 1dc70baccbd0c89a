"""Messages of LDAP version 3 (RFC 4511) as bytes: builder of requests, parser of answers.

Requests are written with sansldap's writer, filters and controls. Answers are parsed here because
they are untrusted: every length is checked before use, the nesting depth is fixed by this file, a
number has at most four bytes, and a message has a limit in bytes and one in values. Any data from a
server yields a message or an LdapFault, in time that grows with its size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from sansldap import (
    ControlOptions,
    FilterOptions,
    LDAPControl,
    LDAPFilter,
    PagedResultControl,
)
from sansldap.asn1 import ASN1Tag, ASN1Writer, TagClass

MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024  # 1,500 members of a list are some 200 KB
VALUES_MAX: Final = 20_000  # of all attributes in one message
MESSAGE_ID_MAX: Final = 2**31 - 1

START_TLS: Final = "1.3.6.1.4.1.1466.20037"
NOTICE_OF_DISCONNECTION: Final = "1.3.6.1.4.1.1466.20036"
PAGED_RESULTS: Final = "1.2.840.113556.1.4.319"  # RFC 2696


class LdapFault(Exception):
    """The server's data is not LDAP, or exceeds a limit: the connection cannot be used further."""


class ResultCode(IntEnum):
    """The result codes that are handled here. RFC 4511 4.1.9"""

    SUCCESS = 0
    SIZE_LIMIT_EXCEEDED = 4
    REFERRAL = 10
    SASL_BIND_IN_PROGRESS = 14
    NO_SUCH_ATTRIBUTE = 16
    CONSTRAINT_VIOLATION = 19
    ATTRIBUTE_OR_VALUE_EXISTS = 20
    NO_SUCH_OBJECT = 32
    INVALID_DN_SYNTAX = 34
    INVALID_CREDENTIALS = 49
    INSUFFICIENT_ACCESS = 50
    BUSY = 51
    UNAVAILABLE = 52
    UNWILLING_TO_PERFORM = 53
    ENTRY_ALREADY_EXISTS = 68


class Scope(IntEnum):
    BASE = 0
    ONE_LEVEL = 1
    SUBTREE = 2


class Change(IntEnum):
    """Action of a modification on the values. RFC 4511 4.6"""

    ADD = 0
    DELETE = 1
    REPLACE = 2


@dataclass(frozen=True, slots=True)
class Result:
    """Result of an operation."""

    code: int
    matched_dn: str
    text: str  # the server's own text, for people


@dataclass(frozen=True, slots=True)
class Bound:
    """The answer to a bind; `credentials` is the mechanism's token."""

    result: Result
    credentials: bytes | None


@dataclass(frozen=True, slots=True)
class Entry:
    """One object. `attributes`: by name in lower case, with its options (`member;range=0-499`)."""

    dn: str
    attributes: Mapping[str, tuple[bytes, ...]]


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference to another server with possible further results. It is not followed."""


@dataclass(frozen=True, slots=True)
class Done:
    """The end of a search, an addition, a modification or a deletion."""

    result: Result


@dataclass(frozen=True, slots=True)
class Extended:
    """The answer to an extended request, or the server's notice of disconnection."""

    result: Result
    name: str


Answer = Bound | Entry | Reference | Done | Extended


@dataclass(frozen=True, slots=True)
class Message:
    """One answer; `cookie` is that of the paged results, None without them."""

    id: int
    answer: Answer
    cookie: bytes | None
    size_bytes: int


class Frames:
    """Splits the byte stream of a server into messages."""

    def __init__(self) -> None:
        self._data = bytearray()

    def __bool__(self) -> bool:
        """Return whether there is an incomplete message."""
        return bool(self._data)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Add `data`, and yield the complete messages. Raises LdapFault."""
        self._data += data
        start = 0
        while (end := self._end(start)) is not None:
            yield bytes(self._data[start:end])
            start = end
        del self._data[:start]

    def _end(self, start: int) -> int | None:
        """Return the end of the message that begins at `start`; None if it is incomplete."""
        data = self._data
        if len(data) < start + 2:
            if len(data) > start and data[start] != _SEQUENCE:
                raise LdapFault("no LDAP message begins like this")
            return None
        if data[start] != _SEQUENCE:
            raise LdapFault("no LDAP message begins like this")
        head, length = 2, data[start + 1]
        if length & 0x80:
            count = length & 0x7F
            if not 1 <= count <= 4:
                raise LdapFault("the length of a message cannot be read")
            head += count
            if len(data) < start + head:
                return None
            length = int.from_bytes(data[start + 2 : start + head], "big")
        if length > MESSAGE_BYTES_MAX:
            raise LdapFault(
                f"a message of {length} bytes; at most {MESSAGE_BYTES_MAX} are accepted"
            )
        end = start + head + length
        return end if len(data) >= end else None


# Tags of one byte; longer ones do not occur in LDAP.
_BOOLEAN, _INTEGER, _OCTETS, _ENUMERATED, _SEQUENCE, _SET = 0x01, 0x02, 0x04, 0x0A, 0x30, 0x31
_CONTROLS, _REFERRAL, _SASL_CREDENTIALS, _RESPONSE_NAME = 0xA0, 0xA3, 0x87, 0x8A
_BIND, _ENTRY, _SEARCH_DONE, _MODIFIED, _ADDED, _DELETED = 0x61, 0x64, 0x65, 0x67, 0x69, 0x6B
_REFERENCE, _EXTENDED, _INTERMEDIATE = 0x73, 0x78, 0x79


class _Reader:
    """Reader of successive elements between two offsets of a message."""

    __slots__ = ("_at", "_data", "_end")

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self._data, self._at, self._end = data, at, end

    def __bool__(self) -> bool:
        return self._at < self._end

    def next(self) -> tuple[int, int, int]:
        """Return the tag of the next element, and the start and end of its contents."""
        data, at = self._data, self._at
        if at + 2 > self._end:
            raise LdapFault("a message ends in the middle of an element")
        tag, length = data[at], data[at + 1]
        at += 2
        if tag & 0x1F == 0x1F:
            raise LdapFault("an element has a tag of more than one byte")
        if length & 0x80:
            count = length & 0x7F
            if not 1 <= count <= 4 or at + count > self._end:
                raise LdapFault("the length of an element cannot be read")
            length = int.from_bytes(data[at : at + count], "big")
            at += count
        if length > self._end - at:
            raise LdapFault("an element is longer than the element that contains it")
        self._at = at + length
        return tag, at, at + length

    @property
    def tag(self) -> int:
        """The tag of the next element; 0 at the end."""
        return self._data[self._at] if self._at < self._end else 0

    def octets(self, tag: int = _OCTETS) -> bytes:
        _, start, end = self._expect(tag)
        return self._data[start:end]

    def text(self, tag: int = _OCTETS) -> str:
        try:
            return self.octets(tag).decode()
        except UnicodeDecodeError as error:
            raise LdapFault("a text is not UTF-8") from error

    def integer(self, tag: int = _INTEGER) -> int:
        _, start, end = self._expect(tag)
        if not 1 <= end - start <= 4:
            raise LdapFault(f"a number of {end - start} bytes")
        return int.from_bytes(self._data[start:end], "big", signed=True)

    def inside(self, tag: int) -> _Reader:
        _, start, end = self._expect(tag)
        return _Reader(self._data, start, end)

    def _expect(self, expected: int) -> tuple[int, int, int]:
        found = self.next()
        if found[0] != expected:
            raise LdapFault(f"an element 0x{found[0]:02x} where 0x{expected:02x} is required")
        return found


def read(data: bytes) -> Message:
    """Parse one complete message of a server. Raises LdapFault.

    Elements after the known ones are skipped: the protocol may be extended there (RFC 4511 4).
    """
    outer = _Reader(data, 0, len(data))
    message = outer.inside(_SEQUENCE)
    if outer:
        raise LdapFault("there are bytes after the end of a message")
    number = message.integer()
    if number < 0:
        raise LdapFault("a message has a number below 0")
    tag, start, end = message.next()
    answer = _answer(tag, _Reader(data, start, end))
    name, cookie = "", None
    while message:
        if message.tag == _CONTROLS:
            cookie = _cookie(message.inside(_CONTROLS))
        elif message.tag == _RESPONSE_NAME:  # [MS-ADTS] 3.1.1.3.1.3.2 puts it here
            name = message.text(_RESPONSE_NAME)
        else:
            message.next()
    if isinstance(answer, Extended) and not answer.name:
        answer = Extended(answer.result, name)
    return Message(number, answer, cookie, len(data))


def _answer(tag: int, body: _Reader) -> Answer:
    if tag == _ENTRY:
        return _entry(body)
    if tag == _REFERENCE:
        return Reference()
    if tag in (_SEARCH_DONE, _MODIFIED, _ADDED, _DELETED):
        return Done(_result(body))
    if tag == _BIND:
        result, credentials = _result(body), None
        while body:
            if body.tag == _SASL_CREDENTIALS:
                credentials = body.octets(_SASL_CREDENTIALS)
            else:
                body.next()
        return Bound(result, credentials)
    if tag == _EXTENDED:
        result, name = _result(body), ""
        while body:
            if body.tag == _RESPONSE_NAME:
                name = body.text(_RESPONSE_NAME)
            else:
                body.next()
        return Extended(result, name)
    raise LdapFault(f"a message of an unknown kind, 0x{tag:02x}")


def _result(body: _Reader) -> Result:
    code, matched, text = body.integer(_ENUMERATED), body.text(), body.octets()
    if body.tag == _REFERRAL:
        body.next()
    # The text is for people, and some servers end it with a null.
    words = text.decode(errors="replace").rstrip("\0\r\n ")
    return Result(code, matched, "".join(c if c.isprintable() else " " for c in words))


def _entry(body: _Reader) -> Entry:
    dn = body.text()
    attributes: dict[str, tuple[bytes, ...]] = {}
    room = VALUES_MAX
    listed = body.inside(_SEQUENCE)
    while listed:
        attribute = listed.inside(_SEQUENCE)
        name = attribute.text().lower()
        values = []
        given = attribute.inside(_SET)
        while given:
            values.append(given.octets())
            if len(values) > room:
                raise LdapFault(f"an entry of more than {VALUES_MAX} values")
        room -= len(values) + 1
        attributes[name] = tuple(values)
    return Entry(dn, attributes)


def _cookie(controls: _Reader) -> bytes | None:
    """Return the cookie of the paged results from the controls of an answer."""
    cookie = None
    count = 0
    while controls:
        count += 1
        if count > VALUES_MAX:
            raise LdapFault("a message with too many controls")
        control = controls.inside(_SEQUENCE)
        kind = control.text()
        if control.tag == _BOOLEAN:
            control.next()
        if kind == PAGED_RESULTS and control.tag == _OCTETS:
            value = control.octets()
            page = _Reader(value, 0, len(value)).inside(_SEQUENCE)
            page.integer()  # the server's estimate of the total
            cookie = page.octets()
    return cookie


# Requests. Each takes the number that its answers will have.


def bind_simple(number: int, name: str, password: bytes) -> bytes:
    """Build a bind with name and password. RFC 4511 4.2

    An empty password would be an anonymous bind, which succeeds; it is never sent.
    """
    assert name
    assert password
    writer, body = _request(0)
    body.write_integer(3)
    body.write_octet_string(name.encode())
    body.write_octet_string(password, _context(0))
    return _message(number, writer, body)


def bind_sasl(number: int, mechanism: str, credentials: bytes | None) -> bytes:
    """Build a bind request for one step of a SASL mechanism. RFC 4511 4.2"""
    writer, body = _request(0)
    body.write_integer(3)
    body.write_octet_string(b"")
    with body.push_sequence(_context(3, constructed=True)) as sasl:
        sasl.write_octet_string(mechanism.encode())
        if credentials is not None:
            sasl.write_octet_string(credentials)
    return _message(number, writer, body)


def search(
    number: int,
    base: str,
    scope: Scope,
    wanted: LDAPFilter,
    attributes: Sequence[str],
    *,
    page_size: int = 0,
    cookie: bytes = b"",
    time_limit_s: int = 0,
) -> bytes:
    """Build a search. RFC 4511 4.5.1

    Aliases are not dereferenced. With a `page_size`, one page is requested (RFC 2696).
    """
    writer, body = _request(3)
    body.write_octet_string(base.encode())
    body.write_enumerated(scope)
    body.write_enumerated(0)
    body.write_integer(0)
    body.write_integer(time_limit_s)
    body.write_boolean(False)
    wanted.pack(body, FilterOptions())
    with body.push_sequence() as names:
        for name in attributes:
            names.write_octet_string(name.encode())
    controls: list[LDAPControl] = []
    if page_size:
        controls.append(PagedResultControl(critical=True, size=page_size, cookie=cookie))
    return _message(number, writer, body, controls)


def add(number: int, dn: str, attributes: Mapping[str, Sequence[bytes]]) -> bytes:
    """Build an addition. RFC 4511 4.7"""
    writer, body = _request(8)
    body.write_octet_string(dn.encode())
    with body.push_sequence() as listed:
        for name, values in attributes.items():
            _attribute(listed, name, values)
    return _message(number, writer, body)


def modify(number: int, dn: str, changes: Sequence[tuple[Change, str, Sequence[bytes]]]) -> bytes:
    """Build a modification with all changes or none. RFC 4511 4.6"""
    writer, body = _request(6)
    body.write_octet_string(dn.encode())
    with body.push_sequence() as listed:
        for kind, name, values in changes:
            with listed.push_sequence() as change:
                change.write_enumerated(kind)
                _attribute(change, name, values)
    return _message(number, writer, body)


def delete(number: int, dn: str) -> bytes:
    """Build a deletion; the request consists of the name. RFC 4511 4.8"""
    return _enclose(number, dn.encode(), ASN1Tag(TagClass.APPLICATION, 10, False))


def abandon(number: int, abandoned: int) -> bytes:
    """Build an abandon request; it has no answer. RFC 4511 4.11"""
    value = ASN1Writer()
    value.write_integer(abandoned)
    return _enclose(number, bytes(value.get_data()[2:]), ASN1Tag(TagClass.APPLICATION, 16, False))


def start_tls(number: int) -> bytes:
    """Build a StartTLS request. RFC 4511 4.14.1"""
    writer, body = _request(23)
    body.write_octet_string(START_TLS.encode(), _context(0))
    return _message(number, writer, body)


def unbind(number: int) -> bytes:
    """Build an unbind request. RFC 4511 4.3"""
    return _enclose(number, b"", ASN1Tag(TagClass.APPLICATION, 2, False))


def _context(number: int, *, constructed: bool = False) -> ASN1Tag:
    return ASN1Tag(TagClass.CONTEXT_SPECIFIC, number, constructed)


def _request(operation: int) -> tuple[ASN1Tag, ASN1Writer]:
    """Return the tag of an operation, and a writer for its contents."""
    return ASN1Tag(TagClass.APPLICATION, operation, True), ASN1Writer()


def _message(
    number: int, tag: ASN1Tag, body: ASN1Writer, controls: Sequence[LDAPControl] = ()
) -> bytes:
    return _enclose(number, bytes(body.get_data()), tag, controls)


def _enclose(number: int, body: bytes, tag: ASN1Tag, controls: Sequence[LDAPControl] = ()) -> bytes:
    assert 0 < number <= MESSAGE_ID_MAX
    writer = ASN1Writer()
    with writer.push_sequence() as message:
        message.write_integer(number)
        message.write_octet_string(body, tag)
        if controls:
            with message.push_sequence(_context(0, constructed=True)) as listed:
                for control in controls:
                    control.pack(listed, ControlOptions())
    return bytes(writer.get_data())


def _attribute(writer: ASN1Writer, name: str, values: Sequence[bytes]) -> None:
    with writer.push_sequence() as attribute:
        attribute.write_octet_string(name.encode())
        with attribute.push_set() as listed:
            for value in values:
                listed.write_octet_string(value)
