"""Derived from the layout of Ping by `python -m protocol.codec.write`."""

# fmt: off
# mypy: ignore-errors
# ruff: noqa
from protocol.codec.support import misfit, missing, missing_bytes, scan
from protocol.errors import MalformedPacket
from protocol.flags import PingFlags
from protocol.records import Ping
from protocol.text import ends_with_its_only_null
from struct import Struct, error

new = tuple.__new__
well_ended = ends_with_its_only_null
flags_6 = PingFlags
fields_7 = ((0, 2, 'flags'), (2, 2, 'signature'), (4, 4, 'cookie'), (8, 16, 'queue_manager'))
unpack_8 = Struct('<HHL16s').unpack_from
pack_4 = Struct('<HHL16s').pack
values_5 = (('H', 0, 2, 'flags'), ('H', 2, 2, 'signature'), ('L', 4, 4, 'cookie'), ('16s', 8, 16, 'queue_manager'))


def parse(b: bytes, o: int = 0) -> Ping:
    total = end = len(b)
    if o + 24 > end: raise missing(fields_7, o, end)
    m_flags, m_signature, m_cookie, m_queue_manager, = unpack_8(b, o); o += 24
    m_flags = flags_6(m_flags)
    if not (m_signature == 21832): raise MalformedPacket('signature', o - 24 + 2, 'MUST be 0x5548')
    if o < end: raise MalformedPacket('queue_manager', 8, 'MUST end the datagram, which has 24 bytes')
    m = new(Ping, (m_flags, m_signature, m_cookie, m_queue_manager,))
    return m


def build(m: Ping) -> bytes:
    parts = []; add = parts.append; o = 0
    m_flags, m_signature, m_cookie, m_queue_manager, = m
    if not (m_signature == 21832):
        raise MalformedPacket('signature', o + 2, 'MUST be 0x5548')
    if len(m_queue_manager) != 16:
        raise MalformedPacket('queue_manager', o + 8, 'MUST have the size that is stated')
    try: add(pack_4(m_flags, m_signature, m_cookie, m_queue_manager))
    except error: raise misfit(values_5, (m_flags, m_signature, m_cookie, m_queue_manager,), o)
    o += 24
    return b''.join(parts)
