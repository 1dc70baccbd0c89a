"""Properties of all queue names.

Printed names are read back, and garbage is refused with an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hypothesis import example, given
from hypothesis import strategies as st

from protocol.errors import InvalidName
from protocol.names.format_name import (
    ConnectorName,
    DirectName,
    DistributionListName,
    FormatName,
    LocalPath,
    MachineName,
    MulticastName,
    MultipleName,
    PathName,
    PrivateName,
    PublicName,
    SingleName,
    Suffix,
    Transport,
    parse_destination,
    parse_format_name,
    parse_path_name,
    parse_wire_name,
)
from protocol.names.path_name import is_plain

T = TypeVar("T")
N = TypeVar("N")

QUEUE_CHARACTERS = [chr(code) for code in range(0x20, 0x80) if chr(code) not in '\\;+,"']
HOST_CHARACTERS = [chr(code) for code in range(0x21, 0x7F) if chr(code) not in "\\/,;:[]"]
KEYWORDS = {"journal", "deadletter", "deadxact", "xactonly"}

BEYOND_ASCII = st.characters(min_codepoint=0x80, max_codepoint=0xFFFF).filter(is_plain)
QUEUE_TEXT = st.one_of(st.sampled_from(QUEUE_CHARACTERS), BEYOND_ASCII)
HOST_TEXT = st.one_of(st.sampled_from(HOST_CHARACTERS), BEYOND_ASCII)

queues = st.text(QUEUE_TEXT, min_size=1, max_size=124).filter(
    lambda queue: queue.strip(" ") == queue and queue.lower() not in ("private$", "system$")
)
subqueues = st.text(QUEUE_TEXT, min_size=1, max_size=32).filter(
    lambda subqueue: subqueue.strip(" ") == subqueue and subqueue.lower() not in KEYWORDS
)
hosts = st.text(HOST_TEXT, min_size=1, max_size=256)
guids = st.binary(min_size=16, max_size=16)
ports = st.integers(1, 65535)
system_queues = st.sampled_from([Suffix.JOURNAL, Suffix.DEADLETTER, Suffix.DEADXACT])

nothing = st.none()
paths = st.one_of(
    st.tuples(queues, st.booleans(), nothing, st.just(False), nothing),
    st.tuples(queues, st.booleans(), subqueues, st.just(False), nothing),
    st.tuples(queues, st.booleans(), nothing, st.just(False), st.just(Suffix.JOURNAL)),
    st.tuples(st.just(""), st.just(False), nothing, st.just(True), system_queues),
).map(lambda parts: LocalPath(*parts))
addresses = st.one_of(
    st.tuples(st.just(Transport.TCP), st.ip_addresses().map(str), ports),
    st.tuples(st.just(Transport.OS), hosts, ports),
    st.tuples(
        st.sampled_from([Transport.HTTP, Transport.HTTPS]),
        st.one_of(hosts, st.ip_addresses().map(str)),
        ports,
    ),
)
direct_names = st.builds(lambda address, path: DirectName(*address, *path), addresses, paths)
domains = st.text([chr(code) for code in range(0x21, 0x7F) if code != 0x2C], min_size=1)
single_names: st.SearchStrategy[SingleName] = st.one_of(
    direct_names,
    st.builds(PublicName, guids, st.sampled_from([None, Suffix.JOURNAL])),
    st.builds(
        PrivateName, guids, st.integers(0, 2**32 - 1), st.sampled_from([None, Suffix.JOURNAL])
    ),
    st.builds(DistributionListName, guids, st.one_of(st.none(), domains)),
    st.builds(MachineName, guids, st.one_of(st.none(), system_queues)),
    st.builds(ConnectorName, guids, st.sampled_from([None, Suffix.XACTONLY])),
    st.builds(
        MulticastName,
        st.ip_addresses(network="224.0.0.0/4").map(str),
        st.integers(0, 65535),
    ),
)
names: st.SearchStrategy[FormatName] = st.one_of(
    single_names,
    st.lists(single_names.filter(lambda name: not name.read_only), min_size=2, max_size=5).map(
        lambda elements: MultipleName(tuple(elements))
    ),
)

FRAGMENTS = [
    *("DIRECT=", "PUBLIC=", "PRIVATE=", "DL=", "MACHINE=", "CONNECTOR=", "MULTICAST="),
    *("TCP:", "OS:", "HTTP:", "HTTPS:", "SPX:", "//", "/MSMQ", "/", "\\", ":", "1801", "99999"),
    *("10.0.0.5", "224.0.0.1", "[", "::1", "]", "%", "hostb", ".", "private$", "SYSTEM$", ";"),
    *("JOURNAL", "DEADXACT", "XACTONLY", "orders", "@", ",", "FormatName:", "Journal$", "+", " "),
    *("4d57dc9d-6f0d-11d0-aa0f-00a0c9039c4f", "{", "}", "0f", "\0", "\u017f", "\U0001f4ef"),
]
garbage = st.one_of(
    st.text(), st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join), st.text("[]:.%0")
)


def flip_case(text: str, flips: list[bool]) -> str:
    return "".join(
        character.swapcase() if flip else character
        for character, flip in zip(text, flips * (len(text) // len(flips) + 1), strict=False)
    )


@given(names)
def test_a_printed_format_name_is_read_as_the_same_name(name: FormatName) -> None:
    assert parse_format_name(str(name)) == name


@given(names, st.lists(st.booleans(), min_size=1, max_size=40))
def test_a_name_in_any_case_is_the_same_destination(name: FormatName, flips: list[bool]) -> None:
    assert parse_format_name(flip_case(str(name), flips)).key == name.key


@given(names)
def test_a_format_name_is_a_destination(name: FormatName) -> None:
    assert parse_destination(str(name), local_host=".") == name


@given(direct_names)
def test_a_wire_name_differs_from_the_name_in_its_port_only(name: DirectName) -> None:
    read = parse_wire_name(name.wire_bytes())

    assert (read.transport, read.host, read.local_path) == (
        name.transport,
        name.host,
        name.local_path,
    )
    assert read.port == name.port or name.transport in (Transport.TCP, Transport.OS)


@given(hosts, paths)
def test_a_printed_path_name_is_read_as_the_same_name(computer: str, path: LocalPath) -> None:
    name = PathName(computer, *path)

    assert parse_path_name(str(name)) == name


def read(parse: Callable[[T], N], given: T) -> N | InvalidName:
    try:
        return parse(given)
    except InvalidName as refusal:
        return refusal


@given(garbage)
@example("DIRECT=HTTP://h/MSMQq\\q")
def test_garbage_is_read_or_refused_as_an_invalid_name(text: str) -> None:
    for parse in (
        parse_format_name,
        parse_path_name,
        lambda text: parse_destination(text, local_host="hosta"),
    ):
        name = read(parse, text)

        if isinstance(name, InvalidName):
            assert 0 <= name.offset <= len(text)
            assert name.rule.isascii()
            assert len(name.rule) < 2000
        else:
            assert parse(str(name)) == name


@given(st.binary(max_size=40) | garbage.map(lambda text: text.encode("utf-16-le", "surrogatepass")))
def test_garbage_on_the_wire_is_read_or_refused_as_an_invalid_name(raw: bytes) -> None:
    for candidate in (raw, raw + b"\0\0"):
        name = read(parse_wire_name, candidate)

        if isinstance(name, InvalidName):
            assert 0 <= name.offset <= len(candidate) // 2
        else:
            assert parse_wire_name(name.wire_bytes()).local_path == name.local_path
