"""Bodies as XmlMessageFormatter writes them: XML of System.Xml.Serialization, in UTF-8.

    <?xml version="1.0"?>
    <string>ten screws</string>

The root of a plain value names its type.  Any other root is an object: a dictionary of its
elements, with texts as leaves, because XML does not say their types.  Document types are refused:
entities could expand (CWE-776).
"""

from __future__ import annotations

import base64
import binascii
import re
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any
from xml.etree import ElementTree  # nosec B405: parsed by `expat` below, without a DTD
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr  # nosec B406: writes only

from qmd.bodies.errors import UnreadableBody

FORMAT = "XML of XmlMessageFormatter"
DEPTH_MAX = 200  # of elements within elements
NAMESPACE_CHARACTERS_MAX = 1000
NAMES_CHARACTERS_MAX = 1024 * 1024  # of all different names together, with their namespaces

_SCHEMA = "http://www.w3.org/2001/XMLSchema"
_INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"
_NIL, _TYPE = f"{{{_INSTANCE}}}nil", f"{{{_INSTANCE}}}type"
_ARRAY = "ArrayOf"
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_QUOTED = {"\t": "&#x9;", "\n": "&#xA;", "\r": "&#xD;"}  # readers turn others into spaces
_NAME = re.compile(r"[^\W\d][\w.-]*")
_DURATION = re.compile(
    r"(-?)P(?:([0-9]{1,9})D)?"
    r"(?:T(?:([0-9]{1,12})H)?(?:([0-9]{1,12})M)?(?:([0-9]{1,14}(?:\.[0-9]{1,30})?)S)?)?"
)
_DECIMAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)")


def read_xml(body: bytes) -> Any:
    """Return the value of a body.

    A plain value becomes None, bool, int, float, Decimal, str, bytes, datetime, timedelta or UUID;
    an array a list; an object a dictionary, with attributes under "@name", a text beside elements
    under "#text", and a list for elements of one name.  Raises UnreadableBody.
    """
    return _typed(parse_xml(body))


def root_of(body: bytes) -> str:
    """Return the name of the root element without its namespace.  Raises UnreadableBody."""
    return local_name(parse_xml(body).tag)


def write_xml(value: Any, root: str = "") -> bytes:
    """Return a value as XmlMessageFormatter writes it.

    A dictionary is an object of the class `root`.  Raises UnreadableBody for a value without a
    counterpart.
    """
    if isinstance(value, dict):
        if not root:
            raise UnreadableBody(FORMAT, -1, "an object needs the name of its class (root)")
        text = _object(root, value, _ROOT_ATTRIBUTES, 0)
    elif isinstance(value, list | tuple):
        names = {_type_of(each)[0] for each in value}
        name = names.pop() if len(names) == 1 else "anyType"
        inner = "".join(_item(each, name) for each in value)
        tag = f"{_ARRAY}{name[0].upper()}{name[1:]}"
        text = f"<{tag}{_ROOT_ATTRIBUTES}>{inner}</{tag}>"
    else:
        name, written = _type_of(value)
        text = f"<{name}>{escaped(written)}</{name}>"
    return f'<?xml version="1.0"?>\r\n{text}'.encode()


_ROOT_ATTRIBUTES = f" xmlns:xsd={quoteattr(_SCHEMA)} xmlns:xsi={quoteattr(_INSTANCE)}"


def parse_xml(body: bytes, elements_max: int | None = None) -> ElementTree.Element:
    """Return the root element.  Raises UnreadableBody.

    Each name has its namespace in front: a long one would be written out for every element.
    """
    builder = ElementTree.TreeBuilder()
    parser = expat.ParserCreate(namespace_separator="}")
    depth = elements = characters = 0
    names: dict[str, str] = {}

    def clark(name: str) -> str:
        """Return the one text of a name, in the notation of ElementTree."""
        nonlocal characters
        known = names.get(name)
        if known is None:
            known = names[name] = _clark(name)
            characters += len(known)
            if characters > NAMES_CHARACTERS_MAX:
                raise _fault(
                    parser, f"its names have more than {NAMES_CHARACTERS_MAX} characters together"
                )
        return known

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal depth, elements
        depth += 1
        elements += 1
        if depth > DEPTH_MAX:
            raise _fault(
                parser, f"its elements contain each other more than {DEPTH_MAX} levels deep"
            )
        if elements_max is not None and elements > elements_max:
            raise _fault(parser, f"it has more than {elements_max} elements")
        builder.start(clark(tag), {clark(name): text for name, text in attributes.items()})

    def namespace(prefix: str | None, uri: str | None) -> None:
        if uri is not None and len(uri) > NAMESPACE_CHARACTERS_MAX:
            raise _fault(parser, f"a namespace has more than {NAMESPACE_CHARACTERS_MAX} characters")

    def end(tag: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(clark(tag))

    def document_type(*_: object) -> None:
        raise _fault(parser, "it has a document type, which could refer to other files")

    parser.buffer_text = True
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = builder.data
    parser.StartDoctypeDeclHandler = document_type
    parser.StartNamespaceDeclHandler = namespace
    try:
        parser.Parse(body, True)
    except expat.ExpatError as error:
        raise UnreadableBody(FORMAT, parser.ErrorByteIndex, expat.ErrorString(error.code)) from None
    except (LookupError, ValueError) as error:
        if isinstance(error, UnreadableBody):
            raise
        raise UnreadableBody(FORMAT, -1, f"its encoding is unknown: {error}") from None
    return builder.close()


def _fault(parser: expat.XMLParserType, rule: str) -> UnreadableBody:
    return UnreadableBody(FORMAT, parser.CurrentByteIndex, rule)


def _clark(name: str) -> str:
    return f"{{{name}" if "}" in name else name


def local_name(tag: str) -> str:
    return tag.rpartition("}")[2]


def _typed(element: ElementTree.Element) -> Any:
    """Return the value of an element whose name or xsi:type is a type, maybe that of an array."""
    if element.get(_NIL) in ("true", "1"):
        return None
    name = element.get(_TYPE, "").rpartition(":")[2] or local_name(element.tag)
    if name.startswith(_ARRAY):
        return [_typed(each) for each in element]
    read = _READERS.get(name)
    if read is None or len(element):
        return _members(element) or {}
    try:
        return read(element.text or "")
    except (ValueError, InvalidOperation, binascii.Error, OverflowError):
        raise UnreadableBody(FORMAT, -1, f"{element.text!r:.60} is no {name}") from None


def _members(element: ElementTree.Element) -> Any:
    """Return an object as a dictionary, and a leaf as its text."""
    if element.get(_NIL) in ("true", "1"):
        return None
    if not len(element) and element.get(_TYPE, "").rpartition(":")[2] in _READERS:
        return _typed(element)
    found: dict[str, Any] = {
        f"@{local_name(name)}": text
        for name, text in element.items()
        if not name.startswith(f"{{{_INSTANCE}}}")
    }
    if not len(element) and not found:
        return element.text or ""
    for child in element:
        name, value = local_name(child.tag), _members(child)
        if name not in found:
            found[name] = value
        elif isinstance(found[name], _Several):
            found[name].append(value)
        else:
            found[name] = _Several((found[name], value))
    text = (element.text or "").strip()
    if text:
        found["#text"] = text
    return {
        name: list(value) if isinstance(value, _Several) else value for name, value in found.items()
    }


class _Several(list[Any]):
    """Elements of one name."""


def _boolean(text: str) -> bool:
    return {"true": True, "1": True, "false": False, "0": False}[text.strip()]


def _number(text: str) -> float:
    return float(text.strip().replace("INF", "inf"))


def _decimal(text: str) -> Decimal:
    """Return a number of digits and a point: an exponent could stand for gigabytes of zeros."""
    if _DECIMAL.fullmatch(text) is None:
        raise ValueError(text)
    return Decimal(text)


def _moment(text: str) -> datetime:
    """Return a time; digits of seconds beyond the sixth are dropped."""
    text = text.strip()
    head, point, tail = text.partition(".")
    if point:
        digits = len(tail) - len(tail.lstrip("0123456789"))
        text = f"{head}.{tail[:digits][:6]:0<6}{tail[digits:]}"
    return datetime.fromisoformat(text)


def _duration(text: str) -> timedelta:
    """Return a duration of days and smaller units, such as PT1H30M.

    It has digits alone: an exponent could stand for a number that takes all memory.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ValueError(text)
    sign, days, hours, minutes, seconds = found.groups(default="")
    total = Decimal(seconds or 0) + 60 * int(minutes or 0) + 3600 * int(hours or 0)
    span = timedelta(days=int(days or 0), microseconds=int(total * 1_000_000))
    return -span if sign else span


_READERS: dict[str, Callable[[str], Any]] = {
    "string": str,
    "boolean": lambda text: _checked(_boolean, text),
    **dict.fromkeys(
        ("byte", "short", "int", "long", "unsignedByte", "unsignedShort", "unsignedInt"), int
    ),
    "unsignedLong": int,
    "char": lambda text: chr(int(text)),
    "decimal": lambda text: _decimal(text.strip()),
    "double": _number,
    "float": _number,
    "dateTime": _moment,
    "guid": lambda text: uuid.UUID(text.strip()),
    "base64Binary": lambda text: base64.b64decode("".join(text.split()), validate=True),
    "duration": _duration,
    "TimeSpan": _duration,
}


def _checked(read: Callable[[str], Any], text: str) -> Any:
    try:
        return read(text)
    except KeyError:
        raise ValueError(text) from None


def _type_of(value: Any) -> tuple[str, str]:
    """Return the name of the XML type of a plain value, and its text."""
    match value:
        case bool():
            return "boolean", "true" if value else "false"
        case int():
            for name, bits in (("int", 31), ("long", 63)):
                if -(1 << bits) <= value < 1 << bits:
                    return name, str(value)
            raise UnreadableBody(FORMAT, -1, f"a number of {value.bit_length()} bits has no type")
        case float():
            text = {"inf": "INF", "-inf": "-INF", "nan": "NaN"}.get(str(value), repr(value))
            return "double", text
        case str():
            return "string", value
        case Decimal() if value.is_finite():
            return "decimal", f"{value:f}"
        case datetime():
            return "dateTime", value.isoformat()
        case uuid.UUID():
            return "guid", str(value)
        case bytes() | bytearray() | memoryview():
            return "base64Binary", base64.b64encode(value).decode()
    raise UnreadableBody(FORMAT, -1, f"a value of type {type(value).__name__} has no counterpart")


def _item(value: Any, name: str) -> str:
    """Return an element of an array; with the type of each if they differ."""
    own, text = _type_of(value)
    if own == name:
        return f"<{name}>{escaped(text)}</{name}>"
    prefix = ' xmlns:q1="http://microsoft.com/wsdl/types/"' if own == "guid" else ""
    space = "q1" if own == "guid" else "xsd"
    return f'<anyType{prefix} xsi:type="{space}:{own}">{escaped(text)}</anyType>'


def _object(name: str, value: Any, attributes: str, depth: int) -> str:
    """Return an element with the members of a dictionary."""
    _check_name(name, "an element")
    if depth > DEPTH_MAX:
        raise UnreadableBody(FORMAT, -1, f"it has more than {DEPTH_MAX} levels")
    if value is None:
        return f'<{name}{attributes} xsi:nil="true" />'
    if isinstance(value, list | tuple):
        return "".join(_object(name, each, attributes, depth + 1) for each in value)
    if isinstance(value, dict):
        inner = ""
        for key, each in value.items():
            if key.startswith("@"):
                _check_name(key[1:], "an attribute")
                attributes += f" {key[1:]}={quoteattr(_checked_text(str(each)), _QUOTED)}"
            elif key == "#text":
                inner += escaped(str(each))
            else:
                inner += _object(key, each, "", depth + 1)
        return f"<{name}{attributes}>{inner}</{name}>"
    return f"<{name}{attributes}>{escaped(_type_of(value)[1])}</{name}>"


def escaped(text: str) -> str:
    """Return a text for XML.  Raises UnreadableBody for a character that XML cannot hold."""
    return escape(_checked_text(text), {"\r": "&#xD;"})


def _checked_text(text: str) -> str:
    if _FORBIDDEN.search(text) is not None:
        raise UnreadableBody(FORMAT, -1, f"{text!r:.60} has a character that XML cannot hold")
    return text


def _check_name(name: str, part: str) -> None:
    """Check the name of a part; the parser knows which letters beyond ASCII a name can have."""
    rule = f"{name!r:.60} is no name of {part}"
    if _NAME.fullmatch(name) is None:
        raise UnreadableBody(FORMAT, -1, rule)
    if not name.isascii():
        try:
            parse_xml(f"<{name}/>".encode())
        except UnreadableBody:
            raise UnreadableBody(FORMAT, -1, rule) from None
