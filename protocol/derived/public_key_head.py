"""Derived from the layout of PublicKeyHead by `python -m protocol.codec.write`."""

# fmt: off
# mypy: ignore-errors
# ruff: noqa
from protocol.codec.support import misfit, missing, missing_bytes, scan
from protocol.errors import MalformedPacket
from protocol.security_records import PublicKeyHead
from protocol.text import ends_with_its_only_null
from struct import Struct, error

new = tuple.__new__
well_ended = ends_with_its_only_null
fields_6 = ((0, 1, 'blob_type'), (1, 1, 'version'), (2, 2, 'reserved'), (4, 4, 'key_algorithm'), (8, 4, 'magic'), (12, 4, 'bit_length'), (16, 4, 'exponent'))
unpack_7 = Struct('<BBHLLLL').unpack_from
pack_4 = Struct('<BBHLLLL').pack
values_5 = (('B', 0, 1, 'blob_type'), ('B', 1, 1, 'version'), ('H', 2, 2, 'reserved'), ('L', 4, 4, 'key_algorithm'), ('L', 8, 4, 'magic'), ('L', 12, 4, 'bit_length'), ('L', 16, 4, 'exponent'))


def parse(b: bytes, o: int = 0) -> PublicKeyHead:
    total = end = len(b)
    if o + 20 > end: raise missing(fields_6, o, end)
    m_blob_type, m_version, m_reserved, m_key_algorithm, m_magic, m_bit_length, m_exponent, = unpack_7(b, o); o += 20
    if not (m_blob_type == 6): raise MalformedPacket('blob_type', o - 20 + 0, 'MUST be 0x06')
    if not (m_version == 2): raise MalformedPacket('version', o - 20 + 1, 'MUST be 0x02')
    if not ((m_key_algorithm == 41984) | (m_key_algorithm == 9216)): raise MalformedPacket('key_algorithm', o - 20 + 4, 'MUST be 0x0000A400 or 0x00002400')
    if not (m_magic == 826364754): raise MalformedPacket('magic', o - 20 + 8, 'MUST be 0x31415352')
    if not ((((m_bit_length // 8) * 8) == m_bit_length) & (m_bit_length <= 16384)): raise MalformedPacket('bit_length', o - 20 + 12, 'MUST be a multiple of 8, not over 16384 (our limit)')
    e = o + (m_bit_length // 8)
    if e > end: raise missing_bytes('modulus', o, e, end)
    m_modulus = b[o:e]
    o = e
    if o < end: raise MalformedPacket('modulus', 20, 'MUST end the key')
    m = new(PublicKeyHead, (m_blob_type, m_version, m_reserved, m_key_algorithm, m_magic, m_bit_length, m_exponent, m_modulus,))
    return m


def build(m: PublicKeyHead) -> bytes:
    parts = []; add = parts.append; o = 0
    m_blob_type, m_version, m_reserved, m_key_algorithm, m_magic, m_bit_length, m_exponent, m_modulus, = m
    if not (m_blob_type == 6):
        raise MalformedPacket('blob_type', o + 0, 'MUST be 0x06')
    if not (m_version == 2):
        raise MalformedPacket('version', o + 1, 'MUST be 0x02')
    if not ((m_key_algorithm == 41984) | (m_key_algorithm == 9216)):
        raise MalformedPacket('key_algorithm', o + 4, 'MUST be 0x0000A400 or 0x00002400')
    if not (m_magic == 826364754):
        raise MalformedPacket('magic', o + 8, 'MUST be 0x31415352')
    if not ((((m_bit_length // 8) * 8) == m_bit_length) & (m_bit_length <= 16384)):
        raise MalformedPacket('bit_length', o + 12, 'MUST be a multiple of 8, not over 16384 (our limit)')
    try: add(pack_4(m_blob_type, m_version, m_reserved, m_key_algorithm, m_magic, m_bit_length, m_exponent))
    except error: raise misfit(values_5, (m_blob_type, m_version, m_reserved, m_key_algorithm, m_magic, m_bit_length, m_exponent,), o)
    o += 20
    if len(m_modulus) != (m_bit_length // 8):
        raise MalformedPacket('modulus', o, 'MUST have the size that is stated')
    add(m_modulus); o += len(m_modulus)
    return b''.join(parts)
