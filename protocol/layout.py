"""The words in which headers are declared: construct, and the few shapes it lacks.

A header is a NamedTuple whose annotations carry its layout:

    class DirectQueueName(NamedTuple):
        count: Annotated[int, Rebuild(Int16ul, len_(this.name))]
        name: Annotated[bytes, WideText(this.count), Align(4)]

The first mark after the type is the field's construct; further marks (rules, padding, bounds)
stand in the packet between this field and the next.  `layout(DirectQueueName)` turns that into
an ordinary construct Struct.  It is the only definition: `derive.py` makes the fast parser and
builder from it, and the tests run it plainly, as the reference.

Offsets are counted from the start of the packet.  Every header starts at a multiple of four, so
that is the same as counting from the start of the header (MS-MQMQ 2.2.19.1, PacketSize).
"""

# construct has no types, so what is made of it cannot be checked either.
# mypy: disallow-subclassing-any=False

from __future__ import annotations

import io
from functools import cache
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import construct as C

from protocol.flags import FlagWord
from protocol.text import NULL, ends_with_its_only_null


def layout(record: type) -> C.Struct:
    """The construct Struct that `record`, a NamedTuple class, declares."""
    return _layout(record)


@cache
def _layout(record: type) -> C.Struct:
    subcons: list[C.Construct] = []
    for name, hint in get_type_hints(record, include_extras=True).items():
        declared, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
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


class PacketStream(io.BytesIO):
    """The bytes of one packet; nothing can be read beyond `limit`, an offset."""

    def __init__(self, packet: bytes = b"") -> None:
        super().__init__(packet)
        self.limit = len(packet)
        self.measured: list[tuple[int, Measured]] = []

    def read(self, size: int | None = -1, /) -> bytes:
        left = max(0, self.limit - self.tell())
        return super().read(left if size is None or size < 0 else min(size, left))


class RuleBroken(C.ConstructError):
    """A rule of the specification is broken; `rule` says which."""

    def __init__(self, rule: str, path: str) -> None:
        super().__init__(rule, path)
        self.rule = rule


class Flags(C.Adapter):
    """An unsigned integer read as a flag word."""

    def __init__(self, word: type[FlagWord], subcon: C.Construct) -> None:
        super().__init__(subcon)
        self.word = word

    def _decode(self, obj: int, context: Any, path: str) -> FlagWord:
        return self.word(obj)

    def _encode(self, obj: int, context: Any, path: str) -> int:
        return int(obj)


class _Mark(C.Construct):
    """Something that stands between two fields and holds no value."""

    def __init__(self) -> None:
        super().__init__()
        self.flagbuildnone = True

    def _build(self, obj: Any, stream: PacketStream, context: Any, path: str) -> None:
        return None


class Rule(_Mark):
    """What must be true here, both of what is read and of what is built.

    `field` is the field that is named when the rule is broken: the one that the rule is attached
    to, or another of the same record given by name.  `offset` is given where the field's place in
    the packet is fixed and the rule is not attached to it.
    """

    def __init__(self, condition: Any, rule: str, field: str = "", offset: int | None = None):
        super().__init__()
        self.condition = condition
        self.rule = rule
        self.field = field
        self.offset = offset

    def _parse(self, stream: PacketStream, context: Any, path: str) -> None:
        self._check(context, path)

    def _build(self, obj: Any, stream: PacketStream, context: Any, path: str) -> None:
        self._check(context, path)

    def _check(self, context: Any, path: str) -> None:
        if not C.evaluate(self.condition, context):
            raise RuleBroken(self.rule, f"{path} -> {self.field}")


class Refuse(C.Construct):
    """Stands where a Switch has no case: refuses always, and blames `field`.

    That lies at `offset` in the packet, or `back` bytes before this place.
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


class Absent(C.Construct):
    """No bytes and no value."""

    rule = "MUST NOT be present: the flags do not announce it"

    def _parse(self, stream: PacketStream, context: Any, path: str) -> None:
        return None

    def _build(self, obj: Any, stream: PacketStream, context: Any, path: str) -> None:
        if obj is not None:
            raise RuleBroken(self.rule, path)


class Present(C.Construct):
    """A field that is there exactly when `condition`, which reads a flag, is true."""

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


class Octets(C.Bytes):
    """`length` bytes as they are; plain Bytes would also build from an integer."""

    def _build(self, obj: bytes, stream: PacketStream, context: Any, path: str) -> Any:
        if isinstance(obj, int):
            raise RuleBroken("MUST be bytes", path)
        return super()._build(obj, stream, context, path)


class WideText(C.Construct):
    """`size` bytes of UTF-16LE that end with their only null character; kept as bytes.

    An optional text may have no bytes at all, which is not the same as an empty one.
    """

    rule = "MUST be UTF-16 that ends with its only null character"

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
    """UTF-16LE up to and including the first null character; kept as bytes."""

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


class Align(_Mark):
    """Padding up to a multiple of `modulus`: zeros when built, anything when read.

    The padding of the last header may be missing: real senders have packet sizes that are no
    multiple of four.
    """

    def __init__(self, modulus: int) -> None:
        super().__init__()
        self.modulus = modulus

    def _parse(self, stream: PacketStream, context: Any, path: str) -> None:
        stream.seek(stream.tell() + -stream.tell() % self.modulus)

    def _build(self, obj: Any, stream: PacketStream, context: Any, path: str) -> None:
        stream.write(bytes(-stream.tell() % self.modulus))


class Aligned(C.Construct):
    """Padding, and then the subcon; built and read as with Align."""

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


class AlignTo(Align):
    """Padding to a multiple of four, where some senders put none: the marker decides."""

    def __init__(self, marker: bytes) -> None:
        super().__init__(4)
        self.marker = marker

    def _parse(self, stream: PacketStream, context: Any, path: str) -> None:
        here = stream.tell()
        stream.seek(here + -here % 4)
        found = stream.read(len(self.marker)) == self.marker
        stream.seek(here + -here % 4 if found else here)


class Reserved(_Mark):
    """`size` bytes that mean nothing: zeros when built, anything when read."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def _parse(self, stream: PacketStream, context: Any, path: str) -> None:
        C.stream_read(stream, self.size, path)

    def _build(self, obj: Any, stream: PacketStream, context: Any, path: str) -> None:
        stream.write(bytes(self.size))


class Bound(_Mark):
    """Nothing up to the next Unbound may lie beyond the offset `end` of the packet."""

    rule = "MUST NOT exceed the bytes of the packet"

    def __init__(self, end: Any, field: str, offset: int) -> None:
        super().__init__()
        self.end = end
        self.field = field
        self.offset = offset

    def _parse(self, stream: PacketStream, context: Any, path: str) -> None:
        end = C.evaluate(self.end, context)
        if end > stream.limit:
            raise RuleBroken(self.rule, f"{path} -> {self.field}")
        stream.limit = end


class Unbound(_Mark):
    """Go on at the bound, over whatever is left before it; built: the measured size is known."""

    def _parse(self, stream: PacketStream, context: Any, path: str) -> None:
        stream.seek(stream.limit)
        stream.limit = len(stream.getbuffer())

    def _build(self, obj: Any, stream: PacketStream, context: Any, path: str) -> None:
        Measured.settle(stream, path)


class NothingLeft(_Mark):
    """The bytes end here, or the bound is here."""

    def __init__(self, field: str, offset: int, rule: str) -> None:
        super().__init__()
        self.field = field
        self.offset = offset
        self.rule = rule

    def _parse(self, stream: PacketStream, context: Any, path: str) -> None:
        if stream.tell() < stream.limit:
            raise RuleBroken(self.rule, f"{path} -> {self.field}")


class Measured(C.Construct):
    """A 32-bit size that is worked out when the packet is built; the value given is not used.

    `start` is where this field lies in what it measures; what it measures ends at the next
    Unbound or at the end of the Within that it rules.
    """

    size = 4

    def __init__(self, *, start: int, minimum: int, maximum: int, rule: str) -> None:
        super().__init__()
        self.start = start
        self.minimum = minimum
        self.maximum = maximum
        self.rule = rule
        self.flagbuildnone = True

    def _parse(self, stream: PacketStream, context: Any, path: str) -> int:
        size: int = C.Int32ul._parse(stream, context, path)
        if not self.minimum <= size <= self.maximum:
            raise RuleBroken(self.rule, path)
        return size

    def _build(self, obj: Any, stream: PacketStream, context: Any, path: str) -> None:
        stream.measured.append((stream.tell(), self))
        stream.write(bytes(self.size))

    @staticmethod
    def settle(stream: PacketStream, path: str) -> None:
        """Write the size of what ends here into the size field that was begun last."""
        at, field = stream.measured.pop()
        size = stream.tell() - at + field.start
        if size > field.maximum:
            raise RuleBroken(field.rule, path)
        stream.seek(at)
        stream.write(size.to_bytes(field.size, "little"))
        stream.seek(0, io.SEEK_END)


class Within(C.Construct):
    """`subcon` in exactly `length` bytes, of which the last three may be padding."""

    rule = "MUST fill the size that its header states"
    padding_bytes_max = 3

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
        if end - stream.tell() > self.padding_bytes_max:
            raise RuleBroken(self.rule, path)
        stream.limit = outer
        stream.seek(end)
        return value

    def _build(self, obj: Any, stream: PacketStream, context: Any, path: str) -> Any:
        value = self.subcon._build(obj, stream, context, path)
        Measured.settle(stream, path)
        return value


class Repeat(C.Construct):
    """`count` times the record, as a tuple."""

    rule = "MUST hold as many elements as are counted"

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
