"""Derived from the layout of FinalAckBody by `python -m protocol.codec.write`."""

# fmt: off
# mypy: ignore-errors
# ruff: noqa
from protocol.codec.support import misfit, missing, missing_bytes, scan
from protocol.errors import MalformedPacket
from protocol.records import FinalAckBody
from protocol.text import ends_with_its_only_null
from struct import Struct, error

new = tuple.__new__
well_ended = ends_with_its_only_null
fields_7 = ((0, 8, 'sequence_id'), (8, 4, 'sequence_number'), (12, 4, 'previous_number'), (16, 16, 'source_queue_manager'), (32, 4, 'message_number'))
unpack_8 = Struct('<QLL16sL').unpack_from
pack_4 = Struct('<QLL16sL').pack
values_5 = (('Q', 0, 8, 'sequence_id'), ('L', 8, 4, 'sequence_number'), ('L', 12, 4, 'previous_number'), ('16s', 16, 16, 'source_queue_manager'), ('L', 32, 4, 'message_number'))


def parse(b: bytes, o: int = 0) -> FinalAckBody:
    total = end = len(b)
    if o + 36 > end: raise missing(fields_7, o, end)
    m_sequence_id, m_sequence_number, m_previous_number, m_source_queue_manager, m_message_number, = unpack_8(b, o); o += 36
    m = new(FinalAckBody, (m_sequence_id, m_sequence_number, m_previous_number, m_source_queue_manager, m_message_number,))
    return m


def build(m: FinalAckBody) -> bytes:
    parts = []; add = parts.append; o = 0
    m_sequence_id, m_sequence_number, m_previous_number, m_source_queue_manager, m_message_number, = m
    if len(m_source_queue_manager) != 16:
        raise MalformedPacket('source_queue_manager', o + 16, 'MUST have the size that is stated')
    try: add(pack_4(m_sequence_id, m_sequence_number, m_previous_number, m_source_queue_manager, m_message_number))
    except error: raise misfit(values_5, (m_sequence_id, m_sequence_number, m_previous_number, m_source_queue_manager, m_message_number,), o)
    o += 36
    return b''.join(parts)
