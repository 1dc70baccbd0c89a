"""Derived from the layout of SessionAck by `python -m protocol.codec.write`."""

# fmt: off
# mypy: ignore-errors
# ruff: noqa
from protocol.codec.support import misfit, missing, missing_bytes, scan
from protocol.errors import MalformedPacket
from protocol.flags import BaseFlags, InternalFlags
from protocol.headers import BaseHeader, SessionHeader
from protocol.records import InternalHeader, SessionAck
from protocol.text import ends_with_its_only_null
from struct import Struct, error

new = tuple.__new__
well_ended = ends_with_its_only_null
flags_6 = BaseFlags
flags_8 = InternalFlags
fields_11 = ((0, 1, 'base.version'), (1, 1, 'base.reserved'), (2, 2, 'base.flags'), (4, 4, 'base.signature'), (8, 4, 'base.packet_size'), (12, 4, 'base.time_to_reach_queue'), (16, 2, 'internal.reserved'), (18, 2, 'internal.flags'), (20, 2, 'session.ack_number'), (22, 2, 'session.recoverable_ack_number'), (24, 4, 'session.recoverable_ack_flags'), (28, 2, 'session.sent_number'), (30, 2, 'session.recoverable_sent_number'), (32, 2, 'session.window_size'), (34, 2, 'session.reserved'))
unpack_12 = Struct('<BBHLILHHHHLHHHH').unpack_from
fields_13 = ((0, 1, 'base.version'), (1, 1, 'base.reserved'), (2, 2, 'base.flags'), (4, 4, 'base.signature'), (8, 4, 'base.packet_size'), (12, 4, 'base.time_to_reach_queue'), (16, 2, 'internal.reserved'), (18, 2, 'internal.flags'), (20, 2, 'session.ack_number'), (22, 2, 'session.recoverable_ack_number'), (24, 4, 'session.recoverable_ack_flags'), (28, 2, 'session.sent_number'), (30, 2, 'session.recoverable_sent_number'), (32, 2, 'session.window_size'), (34, 2, 'session.reserved'))
pack_4 = Struct('<BBHLILHHHHLHHHH').pack
values_5 = (('B', 0, 1, 'base.version'), ('B', 1, 1, 'base.reserved'), ('H', 2, 2, 'base.flags'), ('L', 4, 4, 'base.signature'), ('I', 8, 4, 'base.packet_size'), ('L', 12, 4, 'base.time_to_reach_queue'), ('H', 16, 2, 'internal.reserved'), ('H', 18, 2, 'internal.flags'), ('H', 20, 2, 'session.ack_number'), ('H', 22, 2, 'session.recoverable_ack_number'), ('L', 24, 4, 'session.recoverable_ack_flags'), ('H', 28, 2, 'session.sent_number'), ('H', 30, 2, 'session.recoverable_sent_number'), ('H', 32, 2, 'session.window_size'), ('H', 34, 2, 'session.reserved'))


def parse(b: bytes, o: int = 0) -> SessionAck:
    total = end = len(b)
    if o + 36 > end: raise missing(fields_11, o, end)
    m_base_version, m_base_reserved, m_base_flags, m_base_signature, m_base_packet_size, m_base_time_to_reach_queue, m_internal_reserved, m_internal_flags, m_session_ack_number, m_session_recoverable_ack_number, m_session_recoverable_ack_flags, m_session_sent_number, m_session_recoverable_sent_number, m_session_window_size, m_session_reserved, = unpack_12(b, o); o += 36
    if not (m_base_version == 16): raise MalformedPacket('base.version', o - 36 + 0, 'MUST be 0x10')
    m_base_flags = flags_6(m_base_flags)
    if not (m_base_signature == 1380927820): raise MalformedPacket('base.signature', o - 36 + 4, 'MUST be 0x524F494C')
    if not 20 <= m_base_packet_size <= 67108864: raise MalformedPacket('base.packet_size', o - 36 + 8, 'MUST be 20..0x00400000 bytes')
    m_base = new(BaseHeader, (m_base_version, m_base_reserved, m_base_flags, m_base_signature, m_base_packet_size, m_base_time_to_reach_queue,))
    if not ((m_base_flags >> 3 & 1) == 1): raise MalformedPacket('base.flags.internal', 2, 'MUST be set in an internal packet')
    if not ((m_base_flags >> 4 & 1) == 1): raise MalformedPacket('base.flags.session_header', 2, 'MUST be set in a SessionAck')
    if not ((m_base_flags >> 5 & 1) == 0): raise MalformedPacket('base.flags.debug_header', 2, 'MUST be clear in an internal packet')
    end = m_base_packet_size
    if end > total: raise MalformedPacket('base.packet_size', 8, 'MUST NOT exceed the bytes of the packet')
    if end < o: raise missing(fields_13, o - 36, end)
    m_internal_flags = flags_8(m_internal_flags)
    m_internal = new(InternalHeader, (m_internal_reserved, m_internal_flags,))
    if not ((m_internal_flags >> 0 & 15) == 1): raise MalformedPacket('internal.flags.packet_type', 18, 'MUST be 1')
    if not ((m_internal_flags >> 4 & 1) == 0): raise MalformedPacket('internal.flags.connection_refused', 18, 'MUST be clear in a SessionAck')
    m_session = new(SessionHeader, (m_session_ack_number, m_session_recoverable_ack_number, m_session_recoverable_ack_flags, m_session_sent_number, m_session_recoverable_sent_number, m_session_window_size, m_session_reserved,))
    if o < end: raise MalformedPacket('base.packet_size', 8, 'MUST be the size that this kind of packet has')
    o = end; end = total
    if o < end: raise MalformedPacket('base.packet_size', 8, 'MUST be the size of the packet without a piggybacked SessionHeader')
    m = new(SessionAck, (m_base, m_internal, m_session,))
    return m


def build(m: SessionAck) -> bytes:
    parts = []; add = parts.append; o = 0
    m_base, m_internal, m_session, = m
    m_base_version, m_base_reserved, m_base_flags, m_base_signature, m_base_packet_size, m_base_time_to_reach_queue, = m_base
    if not (m_base_version == 16):
        raise MalformedPacket('base.version', o + 0, 'MUST be 0x10')
    if not (m_base_signature == 1380927820):
        raise MalformedPacket('base.signature', o + 4, 'MUST be 0x524F494C')
    if not ((m_base_flags >> 3 & 1) == 1):
        raise MalformedPacket('base.flags.internal', 2, 'MUST be set in an internal packet')
    if not ((m_base_flags >> 4 & 1) == 1):
        raise MalformedPacket('base.flags.session_header', 2, 'MUST be set in a SessionAck')
    if not ((m_base_flags >> 5 & 1) == 0):
        raise MalformedPacket('base.flags.debug_header', 2, 'MUST be clear in an internal packet')
    m_internal_reserved, m_internal_flags, = m_internal
    if not ((m_internal_flags >> 0 & 15) == 1):
        raise MalformedPacket('internal.flags.packet_type', 18, 'MUST be 1')
    if not ((m_internal_flags >> 4 & 1) == 0):
        raise MalformedPacket('internal.flags.connection_refused', 18, 'MUST be clear in a SessionAck')
    m_session_ack_number, m_session_recoverable_ack_number, m_session_recoverable_ack_flags, m_session_sent_number, m_session_recoverable_sent_number, m_session_window_size, m_session_reserved, = m_session
    slot_6 = len(parts); add(b''); at_6 = o; o += 36
    m_base_packet_size = o - (at_6)
    if m_base_packet_size > 67108864: raise MalformedPacket('base.packet_size', at_6 + 8, 'MUST be 20..0x00400000 bytes')
    try: parts[slot_6] = pack_4(m_base_version, m_base_reserved, m_base_flags, m_base_signature, m_base_packet_size, m_base_time_to_reach_queue, m_internal_reserved, m_internal_flags, m_session_ack_number, m_session_recoverable_ack_number, m_session_recoverable_ack_flags, m_session_sent_number, m_session_recoverable_sent_number, m_session_window_size, m_session_reserved)
    except error: raise misfit(values_5, (m_base_version, m_base_reserved, m_base_flags, m_base_signature, m_base_packet_size, m_base_time_to_reach_queue, m_internal_reserved, m_internal_flags, m_session_ack_number, m_session_recoverable_ack_number, m_session_recoverable_ack_flags, m_session_sent_number, m_session_recoverable_sent_number, m_session_window_size, m_session_reserved,), at_6)
    return b''.join(parts)
