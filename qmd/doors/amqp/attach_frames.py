"""The field `unsettled` of attach frames, which proton neither shows nor writes.

A client that resumes a link sends the states of its deliveries in it, and the door answers with its
own (AMQP 1.0, clause 2.6.13).  The bytes of the client are read here before proton processes them,
and the door's attach frames are written again after proton has.  Values are decoded and encoded by
proton; only the head of a frame is read here.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import proton

from qmd.doors.amqp import sections as parts
from qmd.doors.amqp.conditions import UNREADABLE
from qmd.doors.amqp.sections import BadMessage

ATTACH = 0x12
PROTOCOL_HEADER_BYTES = 8
ENTRY_BYTES = 16  # of a delivery in a map, beside its tag, at most
MARGIN_BYTES = 64  # of a frame, for longer lengths in it
_HEAD = struct.Struct(">IBBH")
_CODE_BYTES = 10  # of a descriptor: 00 53 12, or 00 80 and eight bytes
_NAME, _ROLE, _UNSETTLED, _INCOMPLETE = 0, 2, 7, 8
_ACCEPTED = proton.Described(proton.ulong(0x24), [])


class Resumed(NamedTuple):
    """An attach of a client that resumes a link: the states of its deliveries by their tags."""

    unsettled: dict[bytes, Any]


#: A link of a client: its name, and whether the client is the receiver.
Key = tuple[str, bool]


class AttachReader:
    """A reader of the frames of one client, which keeps what its attach frames resume."""

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._to_skip = PROTOCOL_HEADER_BYTES
        self._rest = b""  # the beginning of a frame
        self._is_broken = False  # proton will end the connection
        self._resumed: dict[Key, Resumed] = {}

    def take(self, name: str, *, is_receiver: bool) -> Resumed | None:
        """Return what the last attach of a link resumes, once; None: it begins anew."""
        return self._resumed.pop((name, is_receiver), None)

    def feed(self, data: bytes) -> None:
        """Read bytes of the client, which may end anywhere in a frame."""
        if self._rest:
            data, self._rest = self._rest + data, b""
        at, end = self._to_skip, len(data)
        while at + _HEAD.size <= end and not self._is_broken:
            size, offset, _, _ = _HEAD.unpack_from(data, at)
            body = at + 4 * offset
            if size < _HEAD.size or size > self._frame_bytes_max:
                self._is_broken = True
            elif min(body + _CODE_BYTES, at + size) > end:
                break
            elif _is_attach(data, body):
                if at + size > end:
                    break
                self._read(data[body : at + size])
            at += size
        self._to_skip = max(0, at - end)
        self._rest = b"" if at >= end or self._is_broken else data[at:]

    def _read(self, performative: bytes) -> None:
        try:
            key, states = _attach(performative)
        except BadMessage:
            return  # proton refuses it as well
        self._resumed.pop(key, None)
        if states is not None:
            self._resumed[key] = Resumed(states)


def with_unsettled(frames: bytes, key: Key, accepted: list[bytes], frame_bytes_max: int) -> bytes:
    """Return frames of the door with a map in the attach of a link.

    `key` is the link as its client names it, and `accepted` are the tags of the deliveries that the
    door has accepted.  If not all fit into a frame (`frame_bytes_max`, 0: no limit), the map is
    marked as incomplete.
    """
    at = 0
    while at + _HEAD.size <= len(frames):
        size, offset, kind, channel = _HEAD.unpack_from(frames, at)
        body = frames[at + 4 * offset : at + size]
        if _is_attach(body, 0):
            fields = _fields(body)
            if (fields[_NAME], not fields[_ROLE]) == key:
                changed = _changed(fields, accepted, (frame_bytes_max or 1 << 31) - size)
                head = _HEAD.pack(_HEAD.size + len(changed), 2, kind, channel)
                return frames[:at] + head + changed + frames[at + size :]
        at += size
    return frames


def _is_attach(data: bytes, at: int) -> bool:
    code = data[at : at + 3]
    if code == b"\x00\x53\x12":
        return True
    return code == b"\x00\x80\x00" and data[at + 3 : at + _CODE_BYTES] == b"\0\0\0\0\0\0\x12"


def _attach(performative: bytes) -> tuple[Key, dict[bytes, Any] | None]:
    """Return the link of an attach, and its map if it has one.  Raises BadMessage."""
    data = proton.Data()
    try:
        data.decode(performative)
        data.next()
        data.enter()  # the described value: its descriptor, and the list of the fields
        data.next()
        data.next()
        count = data.get_list()
        data.enter()
        name, is_receiver, states = "", False, None
        for field in range(min(count, _UNSETTLED + 1)):
            kind = data.next()
            if field == _NAME and kind == proton.Data.STRING:
                name = data.get_string()
            elif field == _ROLE and kind == proton.Data.BOOL:
                is_receiver = data.get_bool()
            elif field == _UNSETTLED and kind == proton.Data.MAP:
                states = _states(data)
    except (*UNREADABLE, ValueError, TypeError) as error:
        raise BadMessage(f"an attach frame cannot be decoded: {error}") from None
    return (name, is_receiver), states


def _states(data: proton.Data) -> dict[bytes, Any]:
    """Return the map at which `data` stands; `get_object` would not hash its binary keys."""
    states: dict[bytes, Any] = {}
    pairs = data.get_map() // 2
    data.enter()
    for _ in range(pairs):
        tag = bytes(data.get_binary()) if data.next() == proton.Data.BINARY else None
        data.next()
        if tag is not None:
            states[tag] = data.get_object()
    data.exit()
    return states


def _fields(performative: bytes) -> list[Any]:
    """Return the fields of a performative.  Raises BadMessage."""
    found = parts.decode(performative)
    return found if isinstance(found, list) else []


def _changed(fields: list[Any], accepted: list[bytes], room: int) -> bytes:
    shown: dict[bytes, Any] = {}
    room -= MARGIN_BYTES
    for tag in accepted:
        room -= len(tag) + ENTRY_BYTES
        if room < 0:
            break
        shown[tag] = _ACCEPTED
    fields = fields + [None] * (_INCOMPLETE + 1 - len(fields))
    fields[_UNSETTLED] = shown
    fields[_INCOMPLETE] = True if len(shown) < len(accepted) else None
    data = proton.Data()
    data.put_object(proton.Described(proton.ulong(ATTACH), fields))
    return bytes(data.encode())
