"""Objects as BinaryMessageFormatter writes them: the .NET remoting binary format, read strictly.

[MS-NRBF].  The reader executes nothing and looks up no class.  It believes no length: the size of
the body bounds the memory, and `ELEMENTS_MAX` that of runs of nulls.  Calls of remote methods
(2.2.3) are no message bodies, and are refused.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from datetime import timedelta
from decimal import Context, Decimal, InvalidOperation
from typing import Any, NamedTuple

from qmd.bodies.errors import UnreadableBody
from qmd.bodies.nrbf_values import DEPTH_MAX, NrbfObject, moment, natural

FORMAT = "object of BinaryMessageFormatter"
#: Elements of arrays of objects: runs of nulls take five bytes, however long they are.
ELEMENTS_MAX = 1_000_000

HEADER = struct.Struct("<Biiii")
_DECIMAL = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_DECIMAL_DIGITS = 29
_DECIMAL_MAX = (1 << 96) - 1

# RecordTypeEnumeration, 2.1.2.1.
(CLASS_WITH_ID, SYSTEM_CLASS, CLASS, SYSTEM_CLASS_AND_TYPES, CLASS_AND_TYPES) = range(1, 6)
(STRING, ARRAY, TYPED_PRIMITIVE, REFERENCE, NULL, END, LIBRARY) = range(6, 13)
(NULLS_256, NULLS, PRIMITIVE_ARRAY, OBJECT_ARRAY, STRING_ARRAY) = range(13, 18)
_ARRAYS = frozenset({ARRAY, PRIMITIVE_ARRAY, OBJECT_ARRAY, STRING_ARRAY})
_CALLS = {21: "a call of a remote method", 22: "the return of a remote method"}

# BinaryTypeEnumeration, 2.1.2.2.
(OF_PRIMITIVE, OF_STRING, OF_OBJECT, OF_SYSTEM_CLASS) = range(4)
(OF_CLASS, OF_OBJECT_ARRAY, OF_STRING_ARRAY, OF_PRIMITIVE_ARRAY) = range(4, 8)


class Primitive(NamedTuple):
    """One primitive type: its format for `struct`, "" if it has none; 2.1.2.3."""

    name: str
    layout: str = ""


BYTE, CHAR, DECIMAL, DATE_TIME, TIME_SPAN = 2, 3, 5, 13, 12
BOOLEAN, DOUBLE, INT32, INT64 = 1, 6, 8, 9
PRIMITIVES = {
    BOOLEAN: Primitive("Boolean", "?"),
    BYTE: Primitive("Byte", "B"),
    CHAR: Primitive("Char"),
    DECIMAL: Primitive("Decimal"),
    DOUBLE: Primitive("Double", "d"),
    7: Primitive("Int16", "h"),
    INT32: Primitive("Int32", "i"),
    INT64: Primitive("Int64", "q"),
    10: Primitive("SByte", "b"),
    11: Primitive("Single", "f"),
    TIME_SPAN: Primitive("TimeSpan", "q"),
    DATE_TIME: Primitive("DateTime", "Q"),
    14: Primitive("UInt16", "H"),
    15: Primitive("UInt32", "I"),
    16: Primitive("UInt64", "Q"),
}


class _Reference(NamedTuple):
    """A reference to an object that may come later."""

    id: int
    offset: int


class _Nulls(NamedTuple):
    """A run of nulls in an array."""

    length: int


class _Shape(NamedTuple):
    """The class of objects: `types` holds a BinaryTypeEnumeration and its detail for each member.

    None: the stream gives no types, and each member is a record.
    """

    name: str
    library: str
    members: tuple[str, ...]
    types: tuple[tuple[int, int], ...] | None


def has_nrbf_header(body: bytes) -> bool:
    """Return whether a body begins like a stream of [MS-NRBF], 2.6.1."""
    if len(body) <= HEADER.size:
        return False
    kind, root, _, major, minor = HEADER.unpack_from(body)
    return bool((kind, major, minor) == (0, 1, 0) and root)


def read_nrbf(body: bytes) -> Any:
    """Return the object of a body; see `NrbfObject` for the types.  Raises UnreadableBody."""
    reader = _Reader(body)
    root = reader.read()
    try:
        return natural(root)
    except ValueError as error:
        raise UnreadableBody(FORMAT, -1, str(error)) from None


class _Reader:
    """Reads one stream."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0
        self._objects: dict[int, Any] = {}
        self._libraries: dict[int, str] = {}
        self._shapes: dict[int, _Shape] = {}
        self._elements = 0
        # Containers with references, and the key of each: the objects may come later.
        self._unresolved: list[tuple[Any, Any, _Reference]] = []

    def read(self) -> Any:
        """Return the root object, with all references resolved."""
        if not has_nrbf_header(self._body):
            raise self._fault("it does not begin with the header of version 1.0")
        _, root, _, _, _ = HEADER.unpack_from(self._body)
        self._at = HEADER.size
        while True:
            kind = self._byte()
            if kind == END:
                break
            if kind == LIBRARY:
                self._library()
            else:
                found = self._record(kind, 0)
                if isinstance(found, _Reference | _Nulls) or found is None:
                    raise self._fault("a null or a reference stands outside of an object")
        if self._at != len(self._body):
            raise self._fault("bytes follow its end")
        for container, key, reference in self._unresolved:
            if reference.id not in self._objects:
                rule = f"a reference leads to object {reference.id}, which is missing"
                raise UnreadableBody(FORMAT, reference.offset, rule)
            container[key] = self._objects[reference.id]
        if root not in self._objects:
            raise self._fault(f"its root, object {root}, is missing")
        return self._objects[root]

    # Records.

    def _member(self, depth: int) -> Any:
        """Read one record within an object, with the libraries before it."""
        kind = self._byte()
        while kind == LIBRARY:
            self._library()
            kind = self._byte()
        if kind in _ARRAYS:  # 2.7; .NET would read a null
            raise self._fault("an array stands within an object instead of behind it", -1)
        return self._record(kind, depth)

    def _record(self, kind: int, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise self._fault(f"its objects contain each other more than {DEPTH_MAX} levels deep")
        read = _RECORDS.get(kind)
        if read is None:
            known = _CALLS.get(kind)
            rule = f"it is {known}" if known else f"record type {kind} does not exist here"
            raise self._fault(rule, -1)
        return read(self, kind, depth)

    def _library(self) -> None:
        id = self._int()
        if id in self._libraries:
            raise self._fault(f"library {id} is defined twice")
        self._libraries[id] = self._string()

    def _class(self, kind: int, depth: int) -> NrbfObject:
        """Read a class with its members.  2.3.2.1 to 2.3.2.4"""
        id = self._int()
        name = self._string()
        count = self._length(1)
        members = tuple(self._string() for _ in range(count))
        if len(set(members)) != count:
            raise self._fault(f"{name} has two members of one name")
        types = None
        if kind in (SYSTEM_CLASS_AND_TYPES, CLASS_AND_TYPES):
            kinds = [self._byte() for _ in range(count)]
            types = tuple((each, self._type_detail(each)) for each in kinds)
        library = ""
        if kind in (CLASS, CLASS_AND_TYPES):
            library = self._library_name()
        shape = self._shapes[id] = _Shape(name, library, members, types)
        return self._object(id, shape, depth)

    def _class_again(self, kind: int, depth: int) -> NrbfObject:
        """Read an object of a class that an earlier object has described.  2.3.2.5"""
        id, described = self._int(), self._int()
        shape = self._shapes.get(described)
        if shape is None:
            raise self._fault(f"object {described} describes no class")
        self._shapes[id] = shape
        return self._object(id, shape, depth)

    def _object(self, id: int, shape: _Shape, depth: int) -> NrbfObject:
        found = NrbfObject(shape.name, library=shape.library)
        self._define(id, found)
        types = shape.types or ((OF_OBJECT, 0),) * len(shape.members)
        for name, (type, detail) in zip(shape.members, types, strict=True):
            if type == OF_PRIMITIVE:
                found.members[name] = self._primitive(detail)
            else:
                value = self._member(depth + 1)
                if isinstance(value, _Nulls):
                    raise self._fault("a run of nulls stands for a member")
                self._put(found.members, name, value)
        return found

    def _text(self, kind: int, depth: int) -> str:
        id = self._int()
        found = self._string()
        self._define(id, found)
        return found

    def _typed_primitive(self, kind: int, depth: int) -> Any:
        return self._primitive(self._byte())

    def _reference(self, kind: int, depth: int) -> _Reference:
        at = self._at
        return _Reference(self._int(), at)

    def _null(self, kind: int, depth: int) -> None:
        return None

    def _nulls(self, kind: int, depth: int) -> _Nulls:
        count = self._byte() if kind == NULLS_256 else self._int()
        if count < 0:
            raise self._fault("a number of nulls is negative")
        return _Nulls(count)

    def _primitive_array(self, kind: int, depth: int) -> Any:
        id = self._int()
        length = self._int()
        found = self._primitives(self._byte(), length)
        self._define(id, found)
        return found

    def _single_array(self, kind: int, depth: int) -> list[Any]:
        id = self._int()
        length = self._int()
        found: list[Any] = []
        self._define(id, found)
        self._fill(found, length, depth)
        return found

    def _array(self, kind: int, depth: int) -> Any:
        """Read an array of any rank.  2.4.3.1"""
        id = self._int()
        array_type, rank = self._byte(), self._int()
        if array_type > 5 or not 1 <= rank <= 32:
            raise self._fault("the type or the rank of an array does not exist")
        if rank != 1 and array_type not in (2, 5):
            raise self._fault("only a rectangular array has several dimensions")
        lengths = [self._int() for _ in range(rank)]
        if array_type >= 3:  # the lower bounds, which Python has no use for
            for _ in range(rank):
                self._int()
        element_type = self._byte()
        detail = self._type_detail(element_type)
        total, first = 1, len(self._unresolved)
        for length in lengths:
            if length < 0:
                raise self._fault("the length of an array is negative")
            total *= length
        if element_type == OF_PRIMITIVE:
            found = self._primitives(detail, total)
            if rank > 1:
                found = list(found)
        else:
            found = []
            if rank == 1:
                self._define(id, found)
            self._fill(found, total, depth)
        if rank > 1:
            flat = found
            # The rows replace the flat list; its references stand among the latest ones.
            latest = self._unresolved[first:]
            self._unresolved[first:] = [each for each in latest if each[0] is not flat]
            found = _nested(flat, lengths) if total else []
            self._put_nested(found, rank if total else 1)
            self._define(id, found)
        elif element_type == OF_PRIMITIVE:
            self._define(id, found)
        return found

    # Parts of records.

    def _fill(self, found: list[Any], length: int, depth: int) -> None:
        """Read the elements of an array of objects."""
        if length < 0:
            raise self._fault("the length of an array is negative")
        self._elements += length
        if self._elements > ELEMENTS_MAX:
            raise self._fault(f"its arrays have more than {ELEMENTS_MAX} elements")
        while len(found) < length:
            value = self._member(depth + 1)
            if isinstance(value, _Nulls):
                if len(found) + value.length > length:
                    raise self._fault("a run of nulls is longer than its array")
                found += [None] * value.length
            else:
                found.append(None)
                self._put(found, len(found) - 1, value)

    def _put(self, container: Any, key: Any, value: Any) -> None:
        if isinstance(value, _Reference):
            self._unresolved.append((container, key, value))
        container[key] = value

    def _put_nested(self, found: list[Any], rank: int) -> None:
        """Remember the references in the rows of a rectangular array."""
        if rank > 1:
            for each in found:
                self._put_nested(each, rank - 1)
        else:
            for place, value in enumerate(found):
                self._put(found, place, value)

    def _define(self, id: int, value: Any) -> None:
        if id in self._objects:
            raise self._fault(f"object {id} is defined twice")
        self._objects[id] = value

    def _library_name(self) -> str:
        id = self._int()
        if id not in self._libraries:
            raise self._fault(f"library {id} is missing")
        return self._libraries[id]

    def _type_detail(self, type: int) -> int:
        """Read what follows the type of a member: the primitive type, or names to be ignored."""
        if type in (OF_PRIMITIVE, OF_PRIMITIVE_ARRAY):
            return self._byte()
        if type in (OF_SYSTEM_CLASS, OF_CLASS):
            self._string()
            if type == OF_CLASS:
                self._library_name()
        elif type > OF_PRIMITIVE_ARRAY:
            raise self._fault(f"member type {type} does not exist")
        return 0

    def _primitives(self, type: int, length: int) -> Any:
        """Return an array of a primitive type: bytes for the type Byte, otherwise a list."""
        if length < 0:
            raise self._fault("the length of an array is negative")
        if type == BYTE:
            return self._bytes(length)
        if type == CHAR:
            return self._chars(length)
        if length > len(self._body) - self._at:  # each takes a byte at least
            raise self._fault("the length of an array exceeds the body")
        return [self._primitive(type) for _ in range(length)]

    def _chars(self, length: int) -> list[str]:
        """Return an array of characters: a pair of surrogates is one sequence of four bytes."""
        if length > len(self._body) - self._at:  # a pair takes four bytes
            raise self._fault("the length of an array exceeds the body")
        found: list[str] = []
        units = 0
        while units < length:
            found.append(self._primitive(CHAR))
            units += 1 + (found[-1] > "\uffff")
        if units > length:
            raise self._fault("a pair of surrogates is longer than its array", -4)
        return found

    def _primitive(self, type: int) -> Any:
        primitive = PRIMITIVES.get(type)
        if primitive is None:
            raise self._fault(f"primitive type {type} does not exist")
        at = self._at
        try:
            if type == CHAR:
                return self._char()
            if type == DECIMAL:
                return _decimal(self._string())
            layout = "<" + primitive.layout
            value = struct.unpack(layout, self._bytes(struct.calcsize(layout)))[0]
            if type == DATE_TIME:
                return moment(value)
            if type == TIME_SPAN:
                return timedelta(microseconds=value // 10)
        except (InvalidOperation, OverflowError, UnicodeDecodeError):
            raise UnreadableBody(FORMAT, at, f"{primitive.name} has an invalid value") from None
        return value

    def _char(self) -> str:
        """Return a character, which is in UTF-8."""
        first = self._body[self._at : self._at + 1]
        size = 1
        if first and first[0] >= 0xC0:
            size = 2 + (first[0] >= 0xE0) + (first[0] >= 0xF0)
        return self._bytes(size).decode()

    def _string(self) -> str:
        """Return a text: its length in bytes in groups of 7 bits, then UTF-8.  2.1.1.6"""
        length = shift = 0
        while True:
            byte = self._byte()
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if shift > 28:
                raise self._fault("the length of a text has more than five bytes")
        at = self._at
        try:
            return self._bytes(length).decode()
        except UnicodeDecodeError:
            raise UnreadableBody(FORMAT, at, "a text is not UTF-8") from None

    def _length(self, bytes_min: int) -> int:
        length = self._int()
        if not 0 <= length * bytes_min <= len(self._body) - self._at:
            raise self._fault(f"the number {length} exceeds the body")
        return length

    def _int(self) -> int:
        return int.from_bytes(self._bytes(4), "little", signed=True)

    def _byte(self) -> int:
        return self._bytes(1)[0]

    def _bytes(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._body):
            raise self._fault("it ends in the middle of a record")
        found = self._body[self._at : end]
        self._at = end
        return found

    def _fault(self, rule: str, back: int = 0) -> UnreadableBody:
        return UnreadableBody(FORMAT, self._at + back, rule)


_RECORDS: dict[int, Callable[[_Reader, int, int], Any]] = {
    CLASS_WITH_ID: _Reader._class_again,
    SYSTEM_CLASS: _Reader._class,
    CLASS: _Reader._class,
    SYSTEM_CLASS_AND_TYPES: _Reader._class,
    CLASS_AND_TYPES: _Reader._class,
    STRING: _Reader._text,
    ARRAY: _Reader._array,
    TYPED_PRIMITIVE: _Reader._typed_primitive,
    REFERENCE: _Reader._reference,
    NULL: _Reader._null,
    NULLS_256: _Reader._nulls,
    NULLS: _Reader._nulls,
    PRIMITIVE_ARRAY: _Reader._primitive_array,
    OBJECT_ARRAY: _Reader._single_array,
    STRING_ARRAY: _Reader._single_array,
}


def _decimal(text: str) -> Decimal:
    """Return a number of digits and a point, rounded to 29 digits.  2.1.1.7

    Raises InvalidOperation for other texts, and for numbers of more than 96 bits.
    """
    if _DECIMAL.fullmatch(text) is None:
        raise InvalidOperation(text)
    value = Decimal(text)
    if len(value.as_tuple().digits) > _DECIMAL_DIGITS:
        value = Context(_DECIMAL_DIGITS).plus(value)
    if value.copy_abs() > _DECIMAL_MAX:  # abs() would round to 28 digits
        raise InvalidOperation(text)
    return value


def _nested(flat: list[Any], lengths: list[int]) -> list[Any]:
    """Return the elements of a rectangular array without an empty dimension, row by row."""
    for length in reversed(lengths[1:]):
        flat = [flat[start : start + length] for start in range(0, len(flat), length)]
    return flat
