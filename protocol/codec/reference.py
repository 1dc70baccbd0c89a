"""The reference implementation in plain construct: slow, used to test the derived functions."""

from __future__ import annotations

from typing import Any, TypeVar

import construct as C

from protocol.codec.layout import Present, Repeat, Within, layout
from protocol.codec.marks import PacketStream, RuleBroken
from protocol.errors import MalformedPacket

Record = TypeVar("Record")


def parse_plainly(record: type[Record], packet: bytes) -> Record:
    """Parse as `Codec(record).parse` does, with plain construct.

    The MalformedPacket has the same field and rule; its offset is the position that was reached.
    """
    stream = PacketStream(packet)
    struct = layout(record)
    try:
        value: Record = _record(struct, struct.parse_stream(stream))
    except C.ConstructError as refused:
        raise _malformed(refused, stream) from refused
    return value


def build_plainly(message: Any) -> bytes:
    """Build as `Codec(type(message)).build` does, with plain construct."""
    stream = PacketStream()
    try:
        layout(type(message)).build_stream(_container(message), stream)
    except C.ConstructError as refused:
        raise _malformed(refused, stream) from refused
    except (AttributeError, KeyError, TypeError) as refused:
        # The value does not have the type that its flags announce; construct has no error for that.
        raise MalformedPacket("", stream.tell(), str(refused)) from refused
    return stream.getvalue()


def _malformed(refused: C.ConstructError, stream: PacketStream) -> MalformedPacket:
    field = ".".join((refused.path or "").split(" -> ")[1:])
    rule = refused.rule if isinstance(refused, RuleBroken) else str(refused)
    return MalformedPacket(field, stream.tell(), rule)


def _record(con: C.Construct, value: Any) -> Any:
    """Convert construct's Containers into the records that the layout declares."""
    while isinstance(con, C.Renamed | Present | Within):
        con = con.subcon
    if isinstance(con, Repeat):
        return tuple(_record(con.subcon, element) for element in value)
    if not isinstance(value, C.Container):
        return value
    if isinstance(con, C.Switch):
        candidates = [getattr(case, "subcon", case) for case in con.cases.values()]
        con = next(
            case
            for case in candidates
            if isinstance(case, C.Struct) and set(case.record._fields) == set(value) - {"_io"}
        )
    return con.record(*(_record(sub, value[sub.name]) for sub in con.subcons if sub.name))


def _container(value: Any) -> Any:
    """Convert records into the Containers that construct builds from."""
    if hasattr(value, "_asdict"):
        return C.Container({name: _container(it) for name, it in value._asdict().items()})
    if isinstance(value, tuple):
        return [_container(it) for it in value]
    return value
