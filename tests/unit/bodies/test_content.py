"""The content of bodies: formats of .NET and COM, recognition, and their JSON."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.body_type import BodyType
from qmd.bodies.content import FORMATS, VT_BINARY_OBJECT, Content, read_content, write_content
from qmd.bodies.errors import UnreadableBody
from qmd.bodies.nrbf_values import NrbfObject

GUID = uuid.UUID("a3b1c2d4-0102-8304-9506-0708090a0bff")
SPACES = (
    ' xmlns:xsd="http://www.w3.org/2001/XMLSchema"'
    ' xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"'
)


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ("<string>ten &lt;screws&gt;</string>", "ten <screws>"),
        ("<string />", ""),
        ("<int>-5</int>", -5),
        ("<unsignedByte>255</unsignedByte>", 255),
        ("<boolean>true</boolean>", True),
        ("<double>INF</double>", float("inf")),
        ("<decimal>1.10</decimal>", Decimal("1.10")),
        ("<char>228</char>", "ä"),
        ("<guid>a3b1c2d4-0102-8304-9506-0708090a0bff</guid>", GUID),
        ("<base64Binary>AP8=</base64Binary>", b"\0\xff"),
        (
            "<dateTime>2026-01-02T03:04:05.1234567Z</dateTime>",
            datetime(2026, 1, 2, 3, 4, 5, 123456, UTC),
        ),
        ("<dateTime>2026-01-02T03:04:05</dateTime>", datetime(2026, 1, 2, 3, 4, 5)),
        ("<duration>P1DT2H3M4.5S</duration>", timedelta(days=1, hours=2, minutes=3, seconds=4.5)),
        (f"<ArrayOfInt{SPACES}><int>1</int><int>2</int></ArrayOfInt>", [1, 2]),
        (f'<string{SPACES} xsi:nil="true" />', None),
        (f'<ArrayOfInt{SPACES} xsi:nil="true" />', None),
        (
            "<ArrayOfArrayOfInt><ArrayOfInt><int>1</int></ArrayOfInt><ArrayOfInt />"
            "</ArrayOfArrayOfInt>",
            [[1], []],
        ),
        (
            f'<ArrayOfAnyType{SPACES}><anyType xsi:type="ArrayOfInt"><int>2</int></anyType>'
            '<anyType xsi:type="xsd:string">a</anyType></ArrayOfAnyType>',
            [[2], "a"],
        ),
        (
            f'<Order{SPACES} id="7"><Article>screw</Article><Line>1</Line><Line>2</Line>'
            '<Note xsi:nil="true" /><Any xsi:type="xsd:int">3</Any><Sub><A>x</A></Sub></Order>',
            {
                "@id": "7",
                "Article": "screw",
                "Line": ["1", "2"],
                "Note": None,
                "Any": 3,
                "Sub": {"A": "x"},
            },
        ),
    ],
)
def test_xml_as_dotnet_writes_it(body: str, value: Any):
    raw = f'<?xml version="1.0"?>\r\n{body}'.encode()
    assert read_content(raw) == Content("xml", value)
    assert read_content(body.encode("utf-16")) == Content("xml", value)


@pytest.mark.parametrize(
    "body",
    [
        '<!DOCTYPE a [<!ENTITY b "cc">]><string>&b;</string>',
        '<!DOCTYPE a SYSTEM "file:///etc/passwd"><string>x</string>',
        "<int>five</int>",
        "<string>",
        "<a>" * 300 + "</a>" * 300,
        '<?xml version="1.0" encoding="no-such"?><string/>',
        # The namespace would be written out for each element.
        f'<a xmlns="{"n" * 1001}"/>',
        '<a xmlns="{}">{}</a>'.format("n" * 1000, "".join(f"<b{n}/>" for n in range(1100))),
        # Numbers that take all memory as whole ones.
        "<duration>PT1e300000S</duration>",
        "<duration>P1e9999999999D</duration>",
        "<duration>PT1e2S</duration>",
        "<duration>PT1H-1M</duration>",
    ],
)
def test_xml_that_is_refused(body: str):
    with pytest.raises(UnreadableBody):
        read_content(body.encode(), format="xml")
    assert read_content(body.encode()) == Content("text", body)  # and is shown as it is


@pytest.mark.parametrize(
    "value",
    [
        *("x\r\n<&", 5, 2**40, True, 1.5, float("inf"), Decimal("-1.10"), b"ab", GUID),
        *(datetime(2026, 1, 2, 3), ["a", "b"], [1, 2], [1, "a", GUID], []),
    ],
    ids=repr,
)
def test_xml_comes_back(value: Any):
    body, body_type = write_content(value, "xml")
    assert read_content(body, body_type) == Content("xml", value)


def test_an_object_is_written_as_xml():
    value = {"Article": "screw", "Lines": {"Line": ["1", "2"]}, "Note": None, "@id": "7"}
    body, _ = write_content(value, "xml", root="Order")
    assert read_content(body).value == value
    with pytest.raises(UnreadableBody, match="root"):
        write_content(value, "xml")


@pytest.mark.parametrize("value", [2**63, "\0", object, {"a b": 1}, {"": 1}, {"x": "\ud800"}])
def test_xml_that_cannot_be_written(value: Any):
    with pytest.raises(UnreadableBody):
        write_content(value, "xml", root="A")


@pytest.mark.parametrize(
    ("body", "body_type", "value"),
    [
        ("h\0i\0", BodyType.VT_BSTR, "hi"),
        ("h\0i\0\0\0", BodyType.VT_LPWSTR, "hi"),
        ("hi\0", BodyType.VT_LPSTR, "hi"),
        ("\5\0\0\0", BodyType.VT_I4, 5),
        ("\xff\xff", BodyType.VT_BOOL, True),
        ("\0", BodyType.VT_BOOL, False),
        ("\x10\x27" + "\0" * 6, BodyType.VT_CY, Decimal("1.0000")),
        ("\0" * 8, BodyType.VT_DATE, datetime(1899, 12, 30)),
        (GUID.bytes_le, BodyType.VT_CLSID, GUID),
        ("", BodyType.VT_NULL, None),
        ("ab", 0x1011, b"ab"),
        ("ab", BodyType.VT_STREAMED_OBJECT, b"ab"),
    ],
)
def test_values_of_com(body: str | bytes, body_type: int, value: Any):
    raw = body if isinstance(body, bytes) else body.encode("latin-1")
    assert read_content(raw, body_type) == Content("activex", value)


def test_an_ole_date_before_its_beginning():
    value = datetime(1899, 12, 28, 6)
    body, body_type = write_content(value, "activex")
    assert body_type == BodyType.VT_DATE
    assert read_content(body, body_type).value == value


@pytest.mark.parametrize("value", [None, "ä", b"x", True, 5, 2**40, 1.5, Decimal("1.25"), GUID])
def test_values_of_com_come_back(value: Any):
    assert read_content(*write_content(value, "activex")).value == value


@pytest.mark.parametrize(("value", "body"), [(True, b"\xff\xff"), (False, b"\0\0")])
def test_a_truth_has_the_two_bytes_that_com_expects(value: bool, body: bytes) -> None:
    assert write_content(value, "activex") == (body, BodyType.VT_BOOL)
    assert read_content(body, BodyType.VT_BOOL).value is value


@pytest.mark.parametrize("value", ["", "grün", "Жалоба", "注文 \U0001f4e8"])
def test_a_text_in_utf_16_comes_back_with_and_without_a_mark(value: str) -> None:
    written = write_content(value, "utf-16")
    assert written == (value.encode("utf-16-le"), 0)
    for body in (*written[:1], value.encode("utf-16"), value.encode("utf-16-le") + b"\0\0"):
        assert read_content(body, 0, "utf-16") == Content("utf-16", value)


@pytest.mark.parametrize("body", [b"abc", b"a\0b", b"\0\xd8a\0"])
def test_a_text_in_utf_16_that_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(UnreadableBody, match="text in UTF-16"):
        read_content(body, 0, "utf-16")


@pytest.mark.parametrize("body_type", [BodyType.VT_I4, BodyType.VT_BSTR, BodyType.VT_CLSID])
def test_a_body_that_contradicts_its_type(body_type: int):
    with pytest.raises(UnreadableBody):
        read_content(b"abc", body_type)


@pytest.mark.parametrize(
    ("body", "content"),
    [
        (b"", Content("text", "")),
        (b'{"a": 1}', Content("json", {"a": 1})),
        (b"{a}", Content("text", "{a}")),
        ("grün".encode(), Content("text", "grün")),
        ("grün".encode("utf-16"), Content("text", "grün")),
        ("grün".encode("utf-16-le"), Content("text", "grün")),
        (b"\0\1\xff", Content("bytes", b"\0\1\xff")),
    ],
)
def test_other_bodies_are_recognized(body: bytes, content: Content):
    assert read_content(body) == content


def test_an_object_in_json():
    value = NrbfObject("A", {"x": [b"\0", Decimal("1.5"), GUID, datetime(2026, 1, 2)], "y": None})
    value.members["y"] = value
    body, body_type = write_content(NrbfObject("A", {"x": value.members["x"]}), "binary")
    assert body_type == VT_BINARY_OBJECT
    assert read_content(body, body_type).to_json() == {
        "$type": "A",
        "x": ["AA==", "1.5", str(GUID), "2026-01-02T00:00:00"],
    }
    assert Content("binary", value).to_json()["y"] == {"$cycle": "A"}
    assert json.loads(Content("binary", {1: float("nan")}).text) == {"1": "nan"}


@given(st.binary(max_size=60), st.sampled_from([0, *BodyType, 0x300, 0x1011, 99]))
@settings(max_examples=500, deadline=None)
def test_every_body_has_a_content_or_a_reason(body: bytes, body_type: int):
    try:
        content = read_content(body, body_type)
    except UnreadableBody:
        assert body_type
    else:
        assert content.format in FORMATS
        json.dumps(content.to_json())


def test_an_unknown_format():
    for call in (lambda: read_content(b"", format="yaml"), lambda: write_content("", "yaml")):
        with pytest.raises(ValueError, match="xml, binary"):
            call()


ANY_TEXT = st.text(
    st.characters(exclude_categories=("Cs",)) | st.sampled_from("\r\n\t<&>\"'\ufffe]")
)
NAMES = st.text("abÄßЯ名_", min_size=1, max_size=5)
XML_VALUES = (
    ANY_TEXT
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.binary()
    | st.decimals(allow_nan=False, allow_infinity=False, places=4)
    | st.datetimes()
    | st.datetimes(timezones=st.just(UTC))
    | st.uuids()
)


@given(XML_VALUES | st.lists(XML_VALUES, max_size=4))
@settings(max_examples=300, deadline=None)
def test_any_plain_value_comes_back_from_xml_or_is_refused(value: Any):
    try:
        body, body_type = write_content(value, "xml")
    except UnreadableBody as error:
        assert "cannot hold" in error.rule  # noqa: PT017
    else:
        assert read_content(body, body_type) == Content("xml", value)


@given(
    st.recursive(
        st.dictionaries(NAMES, ANY_TEXT, min_size=1, max_size=3),
        lambda inner: st.dictionaries(NAMES, inner, min_size=1, max_size=3),
        max_leaves=6,
    ),
    st.dictionaries(NAMES.map("@{}".format), ANY_TEXT, max_size=2),
)
@settings(max_examples=300, deadline=None)
def test_any_object_comes_back_from_xml_or_is_refused(value: dict[str, Any], attributes: Any):
    value = {**value, **attributes}
    try:
        body, _ = write_content(value, "xml", root="Order")
    except UnreadableBody as error:
        assert "cannot hold" in error.rule  # noqa: PT017
    else:
        assert read_content(body, format="xml").value == value


@pytest.mark.parametrize(
    "value", [{"a b": "1"}, {'@x="1" y': "1"}, {"a>": "1"}, {"1": "1"}, {"@a": "\1"}, {"a²": "1"}]
)
def test_an_object_with_names_that_are_none_is_refused(value: dict[str, str]):
    with pytest.raises(UnreadableBody):
        write_content(value, "xml", root="A")


@given(
    ANY_TEXT.filter(lambda text: not text.endswith("\0"))
    | st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.binary()
    | st.uuids()
    | st.decimals(Decimal(-(2**63)).scaleb(-4), Decimal(2**63 - 1).scaleb(-4), places=4)
)
@settings(max_examples=300, deadline=None)
def test_any_value_of_com_comes_back(value: Any):
    assert read_content(*write_content(value, "activex")) == Content("activex", value)


@pytest.mark.parametrize(
    "value",
    [
        "NaN",
        "Infinity",
        "1.00001",
        "1.00000000000000000000000000001",
        "1E30",
        "922337203685477.5808",
    ],
)
def test_a_number_that_currency_cannot_hold_is_refused(value: str):
    with pytest.raises(UnreadableBody):
        write_content(Decimal(value), "activex")


@given(st.datetimes())
@settings(max_examples=300, deadline=None)
def test_any_ole_date_comes_back_to_the_hundredth_of_a_millisecond(value: datetime):
    # An OLE date is a number of days in 64 bits: the year 9999 has steps of 40 microseconds.
    found = read_content(*write_content(value, "activex")).value
    assert abs(found - value) <= timedelta(microseconds=50)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_xml_in_utf_16_is_recognized_with_and_without_its_mark(encoding: str, mark: str) -> None:
    text = f'{mark}<?xml version="1.0" encoding="utf-16"?><string>ä€</string>'

    assert read_content(text.encode(encoding)) == Content("xml", "ä€")


def test_half_of_a_pair_of_surrogates_is_a_value_with_a_text() -> None:
    """A Char of .NET may be one half; XmlMessageFormatter writes its number."""
    content = read_content(b"<ArrayOfChar><char>55357</char><char>65</char></ArrayOfChar>")

    assert content.value == ["\ud83d", "A"]
    assert content.to_json() == ["\ufffd", "A"]
    assert read_content(b"<char>55357</char>").text.encode() == "\ufffd".encode()
