"""Derived from the layout of SessionKeyBlob by `python -m protocol.codec.write`."""

# fmt: off
# mypy: ignore-errors
# ruff: noqa
from protocol.codec.support import misfit, missing, missing_bytes, scan
from protocol.errors import MalformedPacket
from protocol.security_records import SessionKeyBlob
from protocol.text import ends_with_its_only_null
from struct import Struct, error

new = tuple.__new__
well_ended = ends_with_its_only_null
fields_7 = ((0, 1, 'blob_type'), (1, 1, 'version'), (2, 2, 'reserved'), (4, 4, 'algorithm'), (8, 4, 'key_algorithm'))
unpack_8 = Struct('<BBHLL').unpack_from
pack_4 = Struct('<BBHLL').pack
values_5 = (('B', 0, 1, 'blob_type'), ('B', 1, 1, 'version'), ('H', 2, 2, 'reserved'), ('L', 4, 4, 'algorithm'), ('L', 8, 4, 'key_algorithm'))


def parse(b: bytes, o: int = 0) -> SessionKeyBlob:
    total = end = len(b)
    if o + 12 > end: raise missing(fields_7, o, end)
    m_blob_type, m_version, m_reserved, m_algorithm, m_key_algorithm, = unpack_8(b, o); o += 12
    if not (m_blob_type == 1): raise MalformedPacket('blob_type', o - 12 + 0, 'MUST be 0x01')
    if not (m_version == 2): raise MalformedPacket('version', o - 12 + 1, 'MUST be 0x02')
    if not (m_key_algorithm == 41984): raise MalformedPacket('key_algorithm', o - 12 + 8, 'MUST be 0x0000A400')
    m = new(SessionKeyBlob, (m_blob_type, m_version, m_reserved, m_algorithm, m_key_algorithm,))
    return m


def build(m: SessionKeyBlob) -> bytes:
    parts = []; add = parts.append; o = 0
    m_blob_type, m_version, m_reserved, m_algorithm, m_key_algorithm, = m
    if not (m_blob_type == 1):
        raise MalformedPacket('blob_type', o + 0, 'MUST be 0x01')
    if not (m_version == 2):
        raise MalformedPacket('version', o + 1, 'MUST be 0x02')
    if not (m_key_algorithm == 41984):
        raise MalformedPacket('key_algorithm', o + 8, 'MUST be 0x0000A400')
    try: add(pack_4(m_blob_type, m_version, m_reserved, m_algorithm, m_key_algorithm))
    except error: raise misfit(values_5, (m_blob_type, m_version, m_reserved, m_algorithm, m_key_algorithm,), o)
    o += 12
    return b''.join(parts)
