"""The layout language: construct, extended by the few field types that it lacks.

A header is a NamedTuple with annotations that carry its layout, in the words of `vocabulary.py`:

    class DirectQueueName(NamedTuple):
        count: Annotated[int, Rebuild(Int16ul, len_(this.name))]
        name: Annotated[bytes, WideText(this.count), Align(4)]

The first mark after the type is the field's construct; further marks (rules, padding, bounds) apply
to the packet between this field and the next.  `layout(DirectQueueName)` turns that into an
ordinary construct Struct.  It is the only definition: `derive.py` makes the fast parser and builder
from it, and the tests run it in plain construct, as the reference.

Offsets are counted from the start of the packet.  Every header starts at a multiple of four, so
alignment is the same as when counted from the start of the header (MS-MQMQ 2.2.19.1, PacketSize).
"""

# construct has no type annotations, so its subclasses cannot be checked either.
# mypy: disallow-subclassing-any=False

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import construct as C

import protocol.codec.marks as marks_of
from protocol.codec.marks import Align, Measured, PacketStream, Rule, RuleBroken
from protocol.codec.support import TEXT_RULE
from protocol.codec.vocabulary import Expression, Term, parts_of
from protocol.flags import FlagWord
from protocol.text import NULL, ends_with_its_only_null


def layout(record: type) -> C.Struct:
    """Return the construct Struct that `record`, a NamedTuple class, declares."""
    return _layout(record)


@cache
def _layout(record: type) -> C.Struct:
    subcons: list[C.Construct] = []
    for name, hint in get_type_hints(record, include_extras=True).items():
        declared, *terms = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        marks = [made(each) for each in terms]
        if hasattr(declared, "_fields"):
            con = layout(declared)
        else:
            con, *marks = marks
            if isinstance(declared, type) and issubclass(declared, FlagWord):
                con = Flags(declared, con)
        subcons.append(C.Renamed(con, newname=name))
        for mark in marks:
            if isinstance(mark, Rule) and not mark.field:
                mark.field = name
            subcons.append(mark)
    struct = C.Struct(*subcons)
    struct.record = record
    return struct


_made: dict[int, tuple[Any, Any]] = {}  # by the id of a description, which is kept with it


def made(described: Any) -> Any:
    """Return the construct or the expression that a word of `vocabulary.py` describes.

    One description is one construct, wherever it is used.  Other values are returned as they are.
    """
    if isinstance(described, dict):
        return {key: made(each) for key, each in described.items()}
    if not isinstance(described, Term | Expression):
        return described
    if id(described) not in _made:
        _made[id(described)] = described, _make(described)
    return _made[id(described)][1]


def _make(described: Term | Expression) -> Any:
    if isinstance(described, Expression):
        operation, operands = parts_of(described)
        if operation is None:
            return C.this
        values = [made(each) for each in operands]
        return C.len_(*values) if operation is len else operation(*values)
    found = globals().get(described.name) or getattr(marks_of, described.name, None)
    found = found or getattr(C, described.name)
    if described.named is None:
        return found
    named = {key: made(each) for key, each in described.named.items()}
    return found(*map(made, described.arguments), **named)


class Flags(C.Adapter):
    """An unsigned integer read as a flag word."""

    def __init__(self, word: type[FlagWord], subcon: C.Construct) -> None:
        super().__init__(subcon)
        self.word = word

    def _decode(self, obj: int, context: Any, path: str) -> FlagWord:
        return self.word(obj)

    def _encode(self, obj: int, context: Any, path: str) -> int:
        return int(obj)


class Octets(C.Bytes):
    """`length` raw bytes; unlike plain Bytes, it does not build from an integer."""

    def _build(self, obj: bytes, stream: PacketStream, context: Any, path: str) -> Any:
        if isinstance(obj, int):
            raise RuleBroken("MUST be bytes", path)
        return super()._build(obj, stream, context, path)


class WideText(C.Construct):
    """`size` bytes of UTF-16LE that end with their only null character; kept as bytes.

    An optional text may have no bytes at all, which is not the same as an empty one.
    """

    rule = TEXT_RULE

    def __init__(self, size: Any, *, optional: bool = False) -> None:
        super().__init__()
        self.size = size
        self.optional = optional

    def _parse(self, stream: PacketStream, context: Any, path: str) -> bytes:
        text: bytes = C.stream_read(stream, C.evaluate(self.size, context), path)
        self._check(text, path)
        return text

    def _build(self, obj: bytes, stream: PacketStream, context: Any, path: str) -> bytes:
        if len(obj) != C.evaluate(self.size, context):
            raise RuleBroken(self.rule, path)
        self._check(obj, path)
        C.stream_write(stream, obj, len(obj), path)
        return obj

    def _check(self, text: bytes, path: str) -> None:
        if not (ends_with_its_only_null(text) or (self.optional and not text)):
            raise RuleBroken(self.rule, path)


class ScannedText(C.Construct):
    """UTF-16LE text up to and including the first null character; kept as bytes."""

    rule = WideText.rule

    def _parse(self, stream: PacketStream, context: Any, path: str) -> bytes:
        text = bytearray()
        while (unit := C.stream_read(stream, 2, path)) != NULL:
            text += unit
        return bytes(text + NULL)

    def _build(self, obj: bytes, stream: PacketStream, context: Any, path: str) -> bytes:
        if not ends_with_its_only_null(obj):
            raise RuleBroken(self.rule, path)
        C.stream_write(stream, obj, len(obj), path)
        return obj


class Absent(C.Construct):
    """A field without bytes and without a value."""

    rule = "MUST NOT be present: the flags do not announce it"

    def _parse(self, stream: PacketStream, context: Any, path: str) -> None:
        return None

    def _build(self, obj: Any, stream: PacketStream, context: Any, path: str) -> None:
        if obj is not None:
            raise RuleBroken(self.rule, path)


class Present(C.Construct):
    """A field that is present exactly when `condition`, which reads a flag, is true."""

    rule = "MUST be present: the flags announce it"

    def __init__(self, condition: Any, subcon: C.Construct | type) -> None:
        super().__init__()
        self.condition = condition
        self.subcon = layout(subcon) if isinstance(subcon, type) else subcon

    def _parse(self, stream: PacketStream, context: Any, path: str) -> Any:
        if not C.evaluate(self.condition, context):
            return None
        return self.subcon._parsereport(stream, context, path)

    def _build(self, obj: Any, stream: PacketStream, context: Any, path: str) -> Any:
        if not C.evaluate(self.condition, context):
            return ABSENT._build(obj, stream, context, path)
        if obj is None:
            raise RuleBroken(self.rule, path)
        return self.subcon._build(obj, stream, context, path)


class Refuse(C.Construct):
    """The default case of a Switch: always rejects the packet, and names `field` in the error.

    That field lies at `offset` in the packet, or `back` bytes before this place.
    """

    def __init__(self, rule: str, field: str, *, offset: int | None = None, back: int = 0) -> None:
        super().__init__()
        self.rule = rule
        self.field = field
        self.offset = offset
        self.back = back

    def _parse(self, stream: PacketStream, context: Any, path: str) -> None:
        self._refuse(path)

    def _build(self, obj: Any, stream: PacketStream, context: Any, path: str) -> None:
        self._refuse(path)

    def _refuse(self, path: str) -> None:
        raise RuleBroken(self.rule, f"{path.rpartition(' -> ')[0]} -> {self.field}")


class Aligned(C.Construct):
    """A field that is preceded by padding; built and read as with Align."""

    def __init__(self, modulus: int, subcon: C.Construct) -> None:
        super().__init__()
        self.padding = Align(modulus)
        self.subcon = subcon

    def _parse(self, stream: PacketStream, context: Any, path: str) -> Any:
        self.padding._parse(stream, context, path)
        return self.subcon._parsereport(stream, context, path)

    def _build(self, obj: Any, stream: PacketStream, context: Any, path: str) -> Any:
        self.padding._build(None, stream, context, path)
        return self.subcon._build(obj, stream, context, path)


class Within(C.Construct):
    """`subcon` in exactly `length` bytes, with or without its padding to a multiple of four."""

    rule = "MUST fill the size that its header states"

    def __init__(self, length: Any, subcon: C.Construct) -> None:
        super().__init__()
        self.length = length
        self.subcon = subcon

    def _parse(self, stream: PacketStream, context: Any, path: str) -> Any:
        outer, end = stream.limit, stream.tell() + C.evaluate(self.length, context)
        if end > outer:
            raise RuleBroken(self.rule, path)
        stream.limit = end
        value = self.subcon._parsereport(stream, context, path)
        if end not in (stream.tell(), stream.tell() + 3 & -4):
            raise RuleBroken(self.rule, path)
        stream.limit = outer
        return value

    def _build(self, obj: Any, stream: PacketStream, context: Any, path: str) -> Any:
        value = self.subcon._build(obj, stream, context, path)
        Measured.settle(stream, path)
        return value


class Repeat(C.Construct):
    """A field of `count` consecutive records, as a tuple."""

    def __init__(self, count: Any, record: type) -> None:
        super().__init__()
        self.count = count
        self.subcon = layout(record)

    def _parse(self, stream: PacketStream, context: Any, path: str) -> tuple[Any, ...]:
        count = C.evaluate(self.count, context)
        return tuple(self.subcon._parsereport(stream, context, path) for _ in range(count))

    def _build(self, obj: Any, stream: PacketStream, context: Any, path: str) -> Any:
        for element in obj:
            self.subcon._build(element, stream, context, path)
        return obj


ABSENT = Absent()
