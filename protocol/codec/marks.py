"""Marks between the fields of a layout: rules, padding, bounds, measured sizes.

A packet is read and built over a PacketStream, which keeps the two values that plain construct
cannot hold: the bound that no read may cross, and the sizes that are not yet known.
"""

# construct has no type annotations, so its subclasses cannot be checked either.
# mypy: disallow-subclassing-any=False

from __future__ import annotations

import io
from typing import Any

import construct as C


class PacketStream(io.BytesIO):
    """The bytes of one packet; reads stop at `limit`, an offset."""

    def __init__(self, packet: bytes = b"") -> None:
        super().__init__(packet)
        self.limit = len(packet)
        self.measured: list[tuple[int, Measured]] = []

    def read(self, size: int | None = -1, /) -> bytes:
        left = max(0, self.limit - self.tell())
        return super().read(left if size is None or size < 0 else min(size, left))


class RuleBroken(C.ConstructError):
    """The violation of a rule of the specification; `rule` is its text."""

    def __init__(self, rule: str, path: str) -> None:
        super().__init__(rule, path)
        self.rule = rule


class _Mark(C.Construct):
    """A layout element between two fields that holds no value."""

    def __init__(self) -> None:
        super().__init__()
        self.flagbuildnone = True

    def _build(self, obj: Any, stream: PacketStream, context: Any, path: str) -> None:
        return None


class Rule(_Mark):
    """A condition that must be true here, both when reading and when building.

    `field` names the field in the error: by default the one that the rule is attached to, or
    another field of the same record.  `offset` is given if that field has a fixed place in the
    packet and the rule is not attached to it.
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


class Align(_Mark):
    """Padding up to a multiple of `modulus`: zeros when built, ignored when read.

    The padding of the last header may be missing: real senders have packet sizes that are not a
    multiple of four.
    """

    def __init__(self, modulus: int) -> None:
        super().__init__()
        self.modulus = modulus

    def _parse(self, stream: PacketStream, context: Any, path: str) -> None:
        stream.seek(stream.tell() + -stream.tell() % self.modulus)

    def _build(self, obj: Any, stream: PacketStream, context: Any, path: str) -> None:
        stream.write(bytes(-stream.tell() % self.modulus))


class AlignTo(Align):
    """Padding to a multiple of four that some senders omit: the position of `marker` decides."""

    def __init__(self, marker: bytes) -> None:
        super().__init__(4)
        self.marker = marker

    def _parse(self, stream: PacketStream, context: Any, path: str) -> None:
        here = stream.tell()
        stream.seek(here + -here % 4)
        found = stream.read(len(self.marker)) == self.marker
        stream.seek(here + -here % 4 if found else here)


class Reserved(_Mark):
    """`size` reserved bytes: zeros when built, ignored when read."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def _parse(self, stream: PacketStream, context: Any, path: str) -> None:
        C.stream_read(stream, self.size, path)

    def _build(self, obj: Any, stream: PacketStream, context: Any, path: str) -> None:
        stream.write(bytes(self.size))


class Bound(_Mark):
    """The start of a range that ends at the offset `end`; no field up to the next Unbound may
    exceed it.
    """

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
    """The end of a Bound: a parser skips to the bound, a builder settles the measured size."""

    def _parse(self, stream: PacketStream, context: Any, path: str) -> None:
        stream.seek(stream.limit)
        stream.limit = len(stream.getbuffer())

    def _build(self, obj: Any, stream: PacketStream, context: Any, path: str) -> None:
        Measured.settle(stream, path)


class NothingLeft(_Mark):
    """A check that the packet, or the range of the Bound, ends here."""

    def __init__(self, field: str, offset: int, rule: str) -> None:
        super().__init__()
        self.field = field
        self.offset = offset
        self.rule = rule

    def _parse(self, stream: PacketStream, context: Any, path: str) -> None:
        if stream.tell() < stream.limit:
            raise RuleBroken(self.rule, f"{path} -> {self.field}")


class Measured(C.Construct):
    """A 32-bit size that is computed when the packet is built; the given value is not used.

    `start` is the offset of this field in the range that it measures.  The range ends at the next
    Unbound, or at the end of the Within that uses this size.
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
        """Write the size of the range that ends here into the most recently opened size field."""
        at, field = stream.measured.pop()
        size = stream.tell() - at + field.start
        if size > field.maximum:
            raise RuleBroken(field.rule, path)
        stream.seek(at)
        stream.write(size.to_bytes(field.size, "little"))
        stream.seek(0, io.SEEK_END)
