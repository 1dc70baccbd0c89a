"""Targets: the answers of an LDAP server, and the names of objects.

Any bytes, in any pieces, are messages or raise an LdapFault; and a name that was inserted into a
distinguished name is read from it again.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from sansldap import (
    BindResponse,
    ExtendedResponse,
    LDAPMessage,
    LDAPResult,
    LDAPResultCode,
    PagedResultControl,
    PartialAttribute,
    SearchResultDone,
    SearchResultEntry,
    SearchResultReference,
)
from sansldap._messages import PackingOptions

from qmd.directory.ldap import messages as ldap_messages
from qmd.directory.ldap import names as ldap_names
from qmd.directory.ldap.messages import (
    MESSAGE_ID_MAX,
    VALUES_MAX,
    Bound,
    Entry,
    Frames,
    LdapFault,
    Message,
)
from tests.fuzz.limits import outcome, within_limits
from tests.fuzz.target import Target, numbers, pieces, steered

SIZES_MAX = 8
PARENT = "CN=msmq,CN=PC1,DC=msmq,DC=test"
NAMES = (
    *("orders", "a,b", 'q"x', " space ", "#=<>;", "back\\slash", "\\,", "x" * 147, "", "ü€"),
    *("\n", "\0", "\U0001f600" * 70, "#" * 80, "\\" * 64, "K\u0130"),
)


def answers() -> Iterable[LDAPMessage]:
    """Return one answer of each kind, as another library encodes them."""
    success = LDAPResult(LDAPResultCode.SUCCESS, "", "", None)
    refused = LDAPResult(LDAPResultCode.NO_SUCH_OBJECT, "DC=msmq", "0000208D: ü", ["ldap://x/"])
    page = PagedResultControl(critical=False, size=0, cookie=b"\x01\x02")
    attributes = [
        PartialAttribute("objectGUID", [bytes(range(16))]),
        PartialAttribute("member;range=0-1", [b"CN=a", b"CN=b"]),
        PartialAttribute("empty", []),
    ]
    yield SearchResultEntry(3, [], "CN=orders,DC=x", attributes)
    yield SearchResultReference(3, [], ["ldap://x/DC=y"])
    yield SearchResultDone(3, [page], success)
    yield SearchResultDone(300_000, [], refused)
    yield BindResponse(1, [], success, b"token")
    yield ExtendedResponse(0, [], refused, "1.3.6.1.4.1.1466.20036", None)


def packed() -> list[bytes]:
    return [message.pack(PackingOptions()) for message in answers()]


def streams() -> Iterable[bytes]:
    every = packed()
    for data in (*every, b"".join(every)):
        yield b"\0" + data
        yield bytes((2, 1, 7)) + data


def take(data: bytes, sizes: list[int]) -> tuple[list[Message], bool]:
    """Return all messages of a stream in pieces, and whether it ended in a fault."""
    frames, messages = Frames(), []
    try:
        for piece in pieces(data, sizes):
            messages.extend(map(ldap_messages.read, frames.feed(piece)))
    except LdapFault:
        return messages, True
    return messages, False


def check_answers(data: bytes) -> None:
    sizes, stream = numbers(data, SIZES_MAX)
    messages, faulty = within_limits(take, stream, sizes)
    assert (messages, faulty) == take(stream, [])
    for message in messages:
        assert 0 <= message.id <= MESSAGE_ID_MAX
        answer = message.answer
        if isinstance(answer, Entry):
            assert sum(map(len, answer.attributes.values())) <= VALUES_MAX
            assert all(name == name.lower() for name in answer.attributes)
        elif isinstance(answer, Bound):
            assert answer.result.text.isprintable()


def mutate_stream(data: bytes, size_max: int, random: Random) -> bytes:
    """Change a byte or a length, or insert a piece of another message."""
    out = bytearray(data or random.choice(packed()))
    for _ in range(random.randrange(1, 4)):
        at = random.randrange(len(out) + 1)
        choice = random.random()
        if choice < 0.4 and at < len(out):
            out[at] = random.choice((0, 1, 0x7F, 0x80, 0x84, 0xFF, random.randrange(256)))
        elif choice < 0.6:
            out[at:at] = random.choice((b"\x30\x80", b"\x04\x84\xff\xff\xff\xff", b"\x02\x00"))
        elif choice < 0.8:
            out[at:at] = random.choice(packed())
        else:
            del out[at : at + random.randrange(1, 20)]
    return bytes(out[:size_max])


def check_names(data: bytes) -> None:
    text = data.decode(errors="replace")
    dn, fault = outcome(ValueError, ldap_names.child, text, PARENT)
    assert fault is None
    assert dn is not None
    part, parent = within_limits(ldap_names.split, dn)
    assert (parent, ldap_names.first_value(dn)) == (PARENT, text)
    assert part == f"CN={ldap_names.escape_value(text)}"
    within_limits(ldap_names.split, text)
    within_limits(ldap_names.first_value, text)
    name, extension = within_limits(ldap_names.queue_object_name, text)
    assert len(name) <= max(len(text), ldap_names.OBJECT_NAME_CHARACTERS_MAX)
    if "\\" not in text:  # queue names have no backslash
        assert ldap_names.queue_name(name, extension) == text


TARGETS = (
    Target("ldap-answers", check_answers, streams, steered(mutate_stream, SIZES_MAX)),
    Target("ldap-names", check_names, lambda: [name.encode() for name in NAMES]),
)
