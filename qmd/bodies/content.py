"""Content: the value of a body, in the format that the body itself shows.

The body type decides first.  A body without one (System.Messaging with XmlMessageFormatter, qmd) is
recognized by its beginning.
"""

from __future__ import annotations

import base64
import json
import uuid
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

from protocol.body_type import BodyType
from qmd.bodies.errors import UnreadableBody
from qmd.bodies.nrbf_values import NrbfObject

#: The body type of BinaryMessageFormatter, which [MS-MQMQ] does not list.
VT_BINARY_OBJECT = 0x300

BINARY, XML, ACTIVE_X, JSON, TEXT, BYTES = "binary", "xml", "activex", "json", "text", "bytes"
#: Never recognized, because not every such text shows it: a body in UTF-16 that does is TEXT.
UTF_16 = "utf-16"
FORMATS = (XML, BINARY, ACTIVE_X, JSON, TEXT, UTF_16, BYTES)

#: Characters that `plain` writes again for objects that several others refer to.
REPEATED_MAX = 32_000_000
VALUE_COST = 128  # characters that stand for the time which one value takes


_MARKS = (b"\xff\xfe", b"\xfe\xff")


class Content(NamedTuple):
    """The value of a body, and its format: one of FORMATS."""

    format: str
    value: Any

    def to_json(self) -> Any:
        """Return the value for `json.dumps`; see `plain`.  Raises UnreadableBody."""
        return plain(self.value)

    @property
    def text(self) -> str:
        """The value as text for people: a text itself, everything else in JSON.

        Raises UnreadableBody for a value that is too large; see `plain`.
        """
        if isinstance(self.value, str):
            return _unicode(self.value)
        return json.dumps(self.to_json(), ensure_ascii=False)


def read_content(body: bytes, body_type: int = 0, format: str = "") -> Content:
    """Return the content of a body, by default in the format that it shows.

    A body that only resembles a format is text or bytes.  With `format`, one of FORMATS, it is read
    as that.  Raises UnreadableBody if it does not have the format that is given or that its type
    states, and ValueError for an unknown format.
    """
    if format:
        return Content(format, _read_as(body, body_type, format))
    from qmd.bodies.active_x import is_active_x, read_active_x

    if body_type == VT_BINARY_OBJECT:
        return Content(BINARY, _read_as(body, body_type, BINARY))
    if is_active_x(body_type):
        return Content(ACTIVE_X, read_active_x(body, body_type))
    for possible in _possible(body):
        try:
            return Content(possible, _read_as(body, body_type, possible))
        except UnreadableBody:
            continue
    return Content(BYTES, body)


def write_content(value: Any, format: str, *, root: str = "") -> tuple[bytes, int]:
    """Return body and body type of a value in a format of FORMATS.

    root: for "xml", the name of the class of a dictionary.  Raises UnreadableBody for a value that
    the format cannot express, and ValueError for an unknown format.
    """
    match format:
        case "xml":
            from qmd.bodies.xml_formatter import write_xml

            return write_xml(value, root), 0
        case "binary":
            from qmd.bodies.nrbf_writer import write_nrbf

            return write_nrbf(value), VT_BINARY_OBJECT
        case "activex":
            from qmd.bodies.active_x import write_active_x

            return write_active_x(value)
        case "json":
            try:
                return json.dumps(value, ensure_ascii=False, allow_nan=False).encode(), 0
            except (TypeError, ValueError) as error:
                raise UnreadableBody("JSON", -1, str(error)) from None
        case "text" if isinstance(value, str):
            return value.encode(), 0
        case "utf-16" if isinstance(value, str):
            # Without a mark: a program on Windows that expects UTF-16 takes the mark for a letter.
            return value.encode("utf-16-le", "surrogatepass"), 0
        case "bytes" if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value), 0
        case "text" | "utf-16" | "bytes":
            raise UnreadableBody(format, -1, f"a value of type {type(value).__name__} is none")
    raise _unknown(format)


def plain(value: Any) -> Any:
    """Return a value for `json.dumps`.

    Bytes become base64, times ISO 8601, durations seconds, decimal numbers and GUIDs texts; half of
    a surrogate pair, which a Char of .NET can be, becomes the replacement character; an
    object becomes its members and "$type", an object within itself {"$cycle": its type}.  An object
    that several others refer to is written for each of them: raises UnreadableBody if that makes
    the value too large (`REPEATED_MAX`).
    """
    return _Plain().convert(value, (), False)


class _Plain:
    """One conversion, which counts everything that is written more than once.

    A stream of a few hundred bytes can refer to one object along billions of ways (CWE-409).
    """

    def __init__(self) -> None:
        self._seen: set[int] = set()  # ids are unique: the value holds all its parts
        self._repeated = 0

    def convert(self, value: Any, within: tuple[int, ...], is_again: bool) -> Any:
        match value:
            case str():
                self._count(value)
                return _unicode(value)
            case bytes():
                self._count(value)
                return base64.b64encode(value).decode()
            case datetime():
                return value.isoformat()
            case timedelta():
                return value.total_seconds()
            case Decimal() | uuid.UUID():
                return str(value)
            case float() if value != value or value in (float("inf"), float("-inf")):
                return str(value)  # JSON has no such numbers
            case list() | dict() | NrbfObject():
                return self._container(value, within, is_again)
        return value

    def _container(self, value: Any, within: tuple[int, ...], is_again: bool) -> Any:
        if id(value) in within:
            name = value.type_name if isinstance(value, NrbfObject) else type(value).__name__
            return {"$cycle": name}
        is_again = is_again or id(value) in self._seen
        self._seen.add(id(value))
        if is_again:
            size = len(value.members if isinstance(value, NrbfObject) else value)
            self._add(VALUE_COST * (1 + size))
        inner = (*within, id(value))
        if isinstance(value, list):
            return [self.convert(each, inner, is_again) for each in value]
        if isinstance(value, dict):
            return {
                str(self.convert(key, inner, is_again)): self.convert(each, inner, is_again)
                for key, each in value.items()
            }
        self._count(value.type_name)
        found: dict[str, Any] = {"$type": value.type_name}
        for name, each in value.members.items():
            self._count(name)
            found[name] = self.convert(each, inner, is_again)
        return found

    def _count(self, text: str | bytes) -> None:
        if id(text) in self._seen:
            self._add(len(text))
        self._seen.add(id(text))

    def _add(self, cost: int) -> None:
        self._repeated += cost
        if self._repeated > REPEATED_MAX:
            rule = "its parts refer to each other so often that it is too large to be written out"
            raise UnreadableBody("value for JSON", -1, rule)


def _unicode(text: str) -> str:
    """Return a text that can be encoded: without halves of surrogate pairs."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _possible(body: bytes) -> list[str]:
    """Return the formats that the beginning of a body allows, the most particular first."""
    from qmd.bodies.nrbf import has_nrbf_header

    found = []
    if has_nrbf_header(body):
        found.append(BINARY)
    start = body.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if start == b"<" or body[:2] in (b"\xff\xfe", b"\xfe\xff", b"\0<"):
        found.append(XML)
    if start in (b"{", b"["):
        found.append(JSON)
    return [*found, TEXT]


def _read_as(body: bytes, body_type: int, format: str) -> Any:
    match format:
        case "binary":
            from qmd.bodies.nrbf import read_nrbf

            return read_nrbf(body)
        case "xml":
            from qmd.bodies.xml_formatter import read_xml

            return read_xml(body)
        case "activex":
            from qmd.bodies.active_x import is_active_x, read_active_x

            if not is_active_x(body_type):
                raise UnreadableBody("value of ActiveXMessageFormatter", -1, "it has no such type")
            return read_active_x(body, body_type)
        case "json":
            try:
                return json.loads(body)
            except (ValueError, RecursionError) as error:
                raise UnreadableBody("JSON", -1, str(error)) from None
        case "text":
            return _text(body, body_type)
        case "utf-16":
            return _utf_16(body)
        case "bytes":
            return body
    raise _unknown(format)


def _text(body: bytes, body_type: int) -> str:
    """Return a text in UTF-8, or in UTF-16 if it shows that."""
    if b"\0" not in body:
        try:
            return body.decode("utf-8-sig")
        except UnicodeDecodeError:
            pass
    has_mark = body[:2] in _MARKS
    is_wide = has_mark or body_type in (BodyType.VT_LPWSTR, BodyType.VT_BSTR)
    if not is_wide and not _resembles_utf_16(body):
        raise UnreadableBody("text", -1, "it is neither UTF-8 nor UTF-16")
    try:
        return _utf_16(body)
    except UnreadableBody as error:
        raise UnreadableBody("text", error.offset, "it is neither UTF-8 nor UTF-16") from None


def _utf_16(body: bytes) -> str:
    """Return a text in UTF-16, in the byte order of its mark, else in that of Windows."""
    encoding = "utf-16" if body[:2] in _MARKS else "utf-16-le"
    try:
        return body.decode(encoding).removesuffix("\0")
    except UnicodeDecodeError as error:
        raise UnreadableBody("text in UTF-16", error.start, error.reason) from None


def _resembles_utf_16(body: bytes) -> bool:
    """Return whether most high bytes are zero and no low one is, as in texts of Latin scripts."""
    low, high = body[::2], body[1::2]
    return len(body) % 2 == 0 and 0 not in low.removesuffix(b"\0") and high.count(0) * 2 > len(high)


def _unknown(format: str) -> ValueError:
    return ValueError(f"{format!r} is no format of bodies; it must be one of {', '.join(FORMATS)}")
