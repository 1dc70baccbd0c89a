"""The derivation of records from layouts: supported layouts, rejected layouts, import cost."""

from __future__ import annotations

import subprocess
import sys
from typing import Annotated, NamedTuple

import construct
import pytest

from protocol import MalformedPacket
from protocol.codec.derive import Codec
from protocol.codec.marks import Rule
from protocol.codec.reference import build_plainly, parse_plainly


class Small(NamedTuple):
    kind: Annotated[int, construct.Int8ul]
    count: Annotated[int, construct.Int16ul, Rule(construct.this.count < 10, "MUST be below 10")]  # type: ignore[assignment]
    last: Annotated[int, construct.Int32ul]


class BigEndian(NamedTuple):
    number: Annotated[int, construct.Int16ub]


class Unknown(NamedTuple):
    rest: Annotated[bytes, construct.GreedyBytes]


class Clever(NamedTuple):
    size: Annotated[int, construct.Int8ul]
    rest: Annotated[int, construct.If(lambda context: context.size > 3, construct.Int8ul)]


class Summed(NamedTuple):
    total: Annotated[int, construct.Rebuild(construct.Int8ul, construct.sum_(construct.this.rest))]
    rest: Annotated[int, construct.Int8ul]


SMALL = Codec(Small)


def test_fields_that_follow_each_other_are_read_at_once() -> None:
    assert SMALL.parse(b"\x01\x02\x00\x03\x00\x00\x00") == Small(1, 2, 3)
    assert SMALL.build(Small(1, 2, 3)) == b"\x01\x02\x00\x03\x00\x00\x00"
    assert SMALL.parse_source.count("unpack") == 1


def test_a_record_may_start_inside_the_bytes() -> None:
    assert SMALL.parse(b"????\x01\x02\x00\x03\x00\x00\x00", 4) == Small(1, 2, 3)
    with pytest.raises(MalformedPacket, match=r"^count at offset 5: MUST be below 10"):
        SMALL.parse(b"????\x01\x0b\x00\x03\x00\x00\x00", 4)


def test_the_first_missing_field_is_named() -> None:
    with pytest.raises(MalformedPacket, match=r"^last at offset 3: takes 4 bytes, 2 are left"):
        SMALL.parse(b"\x01\x02\x00\x03\x00")


def test_a_rule_holds_for_built_records_as_well() -> None:
    with pytest.raises(MalformedPacket, match=r"^count at offset 1: MUST be below 10"):
        SMALL.build(Small(1, 10, 3))
    with pytest.raises(MalformedPacket, match=r"^last at offset 3: MUST fit into 32 bits"):
        SMALL.build(Small(1, 2, 2**32))


def test_the_reference_names_the_same_field_and_rule() -> None:
    with pytest.raises(MalformedPacket) as refused:
        parse_plainly(Small, b"\x01\x0b\x00\x03\x00\x00\x00")
    assert (refused.value.field, refused.value.rule) == ("count", "MUST be below 10")
    with pytest.raises(MalformedPacket) as refused:
        build_plainly(Small(1, 10, 3))
    assert (refused.value.field, refused.value.rule) == ("count", "MUST be below 10")


@pytest.mark.parametrize("record", [BigEndian, Unknown, Clever, Summed])
def test_an_unsupported_layout_is_an_error_at_its_declaration(record: type) -> None:
    with pytest.raises(TypeError):
        Codec(record)


def test_tracebacks_show_the_derived_line() -> None:
    with pytest.raises(MalformedPacket) as refused:
        SMALL.parse(b"\x01\x0b\x00\x03\x00\x00\x00")

    assert "MUST be below 10" in str(refused.traceback[-1].statement)


@pytest.mark.parametrize(
    "statement",
    [
        "import protocol",
        "import protocol.names.format_name",
        "from protocol.names import format_name",
        "from protocol import InvalidName, MessageClass, guid_text",
        "from protocol.errors import MalformedPacket",
    ],
)
def test_names_are_imported_without_construct(statement: str) -> None:
    program = f"import sys; {statement}; sys.exit('construct' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_packets_are_imported_on_use() -> None:
    program = (
        "from protocol import PacketBuffer, Ping, UserMessage, parse_user_message, framing;"
        "import protocol\n"
        "try: protocol.no_such_name\n"
        "except AttributeError as error: assert 'no_such_name' in str(error)"
    )

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
