"""Derived from the layout of EstablishConnection by `python -m protocol.codec.write`."""

# fmt: off
# mypy: ignore-errors
# ruff: noqa
from protocol.codec.support import misfit, missing, missing_bytes, scan
from protocol.errors import MalformedPacket
from protocol.flags import BaseFlags, InternalFlags, OperatingSystem
from protocol.headers import BaseHeader
from protocol.records import EstablishConnection, InternalHeader
from protocol.text import ends_with_its_only_null
from struct import Struct, error

new = tuple.__new__
well_ended = ends_with_its_only_null
flags_6 = BaseFlags
flags_8 = InternalFlags
flags_10 = OperatingSystem
fields_11 = ((0, 1, 'base.version'), (1, 1, 'base.reserved'), (2, 2, 'base.flags'), (4, 4, 'base.signature'), (8, 4, 'base.packet_size'), (12, 4, 'base.time_to_reach_queue'), (16, 2, 'internal.reserved'), (18, 2, 'internal.flags'), (20, 16, 'client'), (36, 16, 'server'), (52, 4, 'timestamp'), (56, 2, 'operating_system'), (58, 2, 'reserved'), (60, 512, 'padding'))
unpack_12 = Struct('<BBHLILHH16s16sLHH512s').unpack_from
fields_13 = ((0, 1, 'base.version'), (1, 1, 'base.reserved'), (2, 2, 'base.flags'), (4, 4, 'base.signature'), (8, 4, 'base.packet_size'), (12, 4, 'base.time_to_reach_queue'), (16, 2, 'internal.reserved'), (18, 2, 'internal.flags'), (20, 16, 'client'), (36, 16, 'server'), (52, 4, 'timestamp'), (56, 2, 'operating_system'), (58, 2, 'reserved'), (60, 512, 'padding'))
pack_4 = Struct('<BBHLILHH16s16sLHH512s').pack
values_5 = (('B', 0, 1, 'base.version'), ('B', 1, 1, 'base.reserved'), ('H', 2, 2, 'base.flags'), ('L', 4, 4, 'base.signature'), ('I', 8, 4, 'base.packet_size'), ('L', 12, 4, 'base.time_to_reach_queue'), ('H', 16, 2, 'internal.reserved'), ('H', 18, 2, 'internal.flags'), ('16s', 20, 16, 'client'), ('16s', 36, 16, 'server'), ('L', 52, 4, 'timestamp'), ('H', 56, 2, 'operating_system'), ('H', 58, 2, 'reserved'), ('512s', 60, 512, 'padding'))


def parse(b: bytes, o: int = 0) -> EstablishConnection:
    total = end = len(b)
    if o + 572 > end: raise missing(fields_11, o, end)
    m_base_version, m_base_reserved, m_base_flags, m_base_signature, m_base_packet_size, m_base_time_to_reach_queue, m_internal_reserved, m_internal_flags, m_client, m_server, m_timestamp, m_operating_system, m_reserved, m_padding, = unpack_12(b, o); o += 572
    if not (m_base_version == 16): raise MalformedPacket('base.version', o - 572 + 0, 'MUST be 0x10')
    m_base_flags = flags_6(m_base_flags)
    if not (m_base_signature == 1380927820): raise MalformedPacket('base.signature', o - 572 + 4, 'MUST be 0x524F494C')
    if not 20 <= m_base_packet_size <= 67108864: raise MalformedPacket('base.packet_size', o - 572 + 8, 'MUST be 20..0x00400000 bytes')
    m_base = new(BaseHeader, (m_base_version, m_base_reserved, m_base_flags, m_base_signature, m_base_packet_size, m_base_time_to_reach_queue,))
    if not ((m_base_flags >> 3 & 1) == 1): raise MalformedPacket('base.flags.internal', 2, 'MUST be set in an internal packet')
    if not ((m_base_flags >> 4 & 1) == 0): raise MalformedPacket('base.flags.session_header', 2, 'MUST be clear in this packet')
    if not ((m_base_flags >> 5 & 1) == 0): raise MalformedPacket('base.flags.debug_header', 2, 'MUST be clear in an internal packet')
    end = m_base_packet_size
    if end > total: raise MalformedPacket('base.packet_size', 8, 'MUST NOT exceed the bytes of the packet')
    if end < o: raise missing(fields_13, o - 572, end)
    m_internal_flags = flags_8(m_internal_flags)
    m_internal = new(InternalHeader, (m_internal_reserved, m_internal_flags,))
    if not ((m_internal_flags >> 0 & 15) == 2): raise MalformedPacket('internal.flags.packet_type', 18, 'MUST be 2')
    m_operating_system = flags_10(m_operating_system)
    if o < end: raise MalformedPacket('base.packet_size', 8, 'MUST be the size that this kind of packet has')
    o = end; end = total
    if o < end: raise MalformedPacket('base.packet_size', 8, 'MUST be the size of the packet without a piggybacked SessionHeader')
    m = new(EstablishConnection, (m_base, m_internal, m_client, m_server, m_timestamp, m_operating_system, m_reserved, m_padding,))
    return m


def build(m: EstablishConnection) -> bytes:
    parts = []; add = parts.append; o = 0
    m_base, m_internal, m_client, m_server, m_timestamp, m_operating_system, m_reserved, m_padding, = m
    m_base_version, m_base_reserved, m_base_flags, m_base_signature, m_base_packet_size, m_base_time_to_reach_queue, = m_base
    if not (m_base_version == 16):
        raise MalformedPacket('base.version', o + 0, 'MUST be 0x10')
    if not (m_base_signature == 1380927820):
        raise MalformedPacket('base.signature', o + 4, 'MUST be 0x524F494C')
    if not ((m_base_flags >> 3 & 1) == 1):
        raise MalformedPacket('base.flags.internal', 2, 'MUST be set in an internal packet')
    if not ((m_base_flags >> 4 & 1) == 0):
        raise MalformedPacket('base.flags.session_header', 2, 'MUST be clear in this packet')
    if not ((m_base_flags >> 5 & 1) == 0):
        raise MalformedPacket('base.flags.debug_header', 2, 'MUST be clear in an internal packet')
    m_internal_reserved, m_internal_flags, = m_internal
    if not ((m_internal_flags >> 0 & 15) == 2):
        raise MalformedPacket('internal.flags.packet_type', 18, 'MUST be 2')
    if len(m_client) != 16:
        raise MalformedPacket('client', o + 20, 'MUST have the size that is stated')
    if len(m_server) != 16:
        raise MalformedPacket('server', o + 36, 'MUST have the size that is stated')
    if len(m_padding) != 512:
        raise MalformedPacket('padding', o + 60, 'MUST have the size that is stated')
    slot_6 = len(parts); add(b''); at_6 = o; o += 572
    m_base_packet_size = o - (at_6)
    if m_base_packet_size > 67108864: raise MalformedPacket('base.packet_size', at_6 + 8, 'MUST be 20..0x00400000 bytes')
    try: parts[slot_6] = pack_4(m_base_version, m_base_reserved, m_base_flags, m_base_signature, m_base_packet_size, m_base_time_to_reach_queue, m_internal_reserved, m_internal_flags, m_client, m_server, m_timestamp, m_operating_system, m_reserved, m_padding)
    except error: raise misfit(values_5, (m_base_version, m_base_reserved, m_base_flags, m_base_signature, m_base_packet_size, m_base_time_to_reach_queue, m_internal_reserved, m_internal_flags, m_client, m_server, m_timestamp, m_operating_system, m_reserved, m_padding,), at_6)
    return b''.join(parts)
