"""Derived from the layout of SessionHeader by `python -m protocol.codec.write`."""

# fmt: off
# mypy: ignore-errors
# ruff: noqa
from protocol.codec.support import misfit, missing, missing_bytes, scan
from protocol.errors import MalformedPacket
from protocol.headers import SessionHeader
from protocol.text import ends_with_its_only_null
from struct import Struct, error

new = tuple.__new__
well_ended = ends_with_its_only_null
fields_7 = ((0, 2, 'ack_number'), (2, 2, 'recoverable_ack_number'), (4, 4, 'recoverable_ack_flags'), (8, 2, 'sent_number'), (10, 2, 'recoverable_sent_number'), (12, 2, 'window_size'), (14, 2, 'reserved'))
unpack_8 = Struct('<HHLHHHH').unpack_from
pack_4 = Struct('<HHLHHHH').pack
values_5 = (('H', 0, 2, 'ack_number'), ('H', 2, 2, 'recoverable_ack_number'), ('L', 4, 4, 'recoverable_ack_flags'), ('H', 8, 2, 'sent_number'), ('H', 10, 2, 'recoverable_sent_number'), ('H', 12, 2, 'window_size'), ('H', 14, 2, 'reserved'))


def parse(b: bytes, o: int = 0) -> SessionHeader:
    total = end = len(b)
    if o + 16 > end: raise missing(fields_7, o, end)
    m_ack_number, m_recoverable_ack_number, m_recoverable_ack_flags, m_sent_number, m_recoverable_sent_number, m_window_size, m_reserved, = unpack_8(b, o); o += 16
    m = new(SessionHeader, (m_ack_number, m_recoverable_ack_number, m_recoverable_ack_flags, m_sent_number, m_recoverable_sent_number, m_window_size, m_reserved,))
    return m


def build(m: SessionHeader) -> bytes:
    parts = []; add = parts.append; o = 0
    m_ack_number, m_recoverable_ack_number, m_recoverable_ack_flags, m_sent_number, m_recoverable_sent_number, m_window_size, m_reserved, = m
    try: add(pack_4(m_ack_number, m_recoverable_ack_number, m_recoverable_ack_flags, m_sent_number, m_recoverable_sent_number, m_window_size, m_reserved))
    except error: raise misfit(values_5, (m_ack_number, m_recoverable_ack_number, m_recoverable_ack_flags, m_sent_number, m_recoverable_sent_number, m_window_size, m_reserved,), o)
    o += 16
    return b''.join(parts)
