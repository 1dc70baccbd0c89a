"""Derived from the layout of OrderAckBody by `python -m protocol.codec.write`."""

# fmt: off
# mypy: ignore-errors
# ruff: noqa
from protocol.codec.support import misfit, missing, missing_bytes, scan
from protocol.errors import MalformedPacket
from protocol.records import OrderAckBody
from protocol.text import ends_with_its_only_null
from struct import Struct, error

new = tuple.__new__
well_ended = ends_with_its_only_null
fields_7 = ((0, 8, 'sequence_id'), (8, 4, 'sequence_number'), (12, 4, 'previous_number'))
unpack_8 = Struct('<QLL20x').unpack_from
pack_4 = Struct('<QLL20x').pack
values_5 = (('Q', 0, 8, 'sequence_id'), ('L', 8, 4, 'sequence_number'), ('L', 12, 4, 'previous_number'))


def parse(b: bytes, o: int = 0) -> OrderAckBody:
    total = end = len(b)
    if o + 36 > end: raise missing(fields_7, o, end)
    m_sequence_id, m_sequence_number, m_previous_number, = unpack_8(b, o); o += 36
    m = new(OrderAckBody, (m_sequence_id, m_sequence_number, m_previous_number,))
    return m


def build(m: OrderAckBody) -> bytes:
    parts = []; add = parts.append; o = 0
    m_sequence_id, m_sequence_number, m_previous_number, = m
    try: add(pack_4(m_sequence_id, m_sequence_number, m_previous_number))
    except error: raise misfit(values_5, (m_sequence_id, m_sequence_number, m_previous_number,), o)
    o += 36
    return b''.join(parts)
