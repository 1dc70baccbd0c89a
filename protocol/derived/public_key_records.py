"""Derived from the layout of PublicKeyRecords by `python -m protocol.codec.write`."""

# fmt: off
# mypy: ignore-errors
# ruff: noqa
from protocol.codec.support import misfit, missing, missing_bytes, scan
from protocol.errors import MalformedPacket
from protocol.security_records import PublicKeyRecord, PublicKeyRecords
from protocol.text import ends_with_its_only_null
from struct import Struct, error

new = tuple.__new__
well_ended = ends_with_its_only_null
fields_6 = ((0, 4, 'size'), (4, 4, 'count'))
unpack_7 = Struct('<LL').unpack_from
fields_8 = ((0, 4, 'keys.key_size'), (4, 4, 'keys.provider_size'), (8, 4, 'keys.provider_type'))
unpack_9 = Struct('<LLL').unpack_from
pack_4 = Struct('<LL').pack
values_5 = (('L', 0, 4, 'size'), ('L', 4, 4, 'count'))
pack_7 = Struct('<LLL').pack
values_8 = (('L', 0, 4, 'keys.key_size'), ('L', 4, 4, 'keys.provider_size'), ('L', 8, 4, 'keys.provider_type'))


def parse(b: bytes, o: int = 0) -> PublicKeyRecords:
    total = end = len(b)
    if o + 8 > end: raise missing(fields_6, o, end)
    m_size, m_count, = unpack_7(b, o); o += 8
    if not (m_count <= 64): raise MalformedPacket('count', o - 8 + 4, 'MUST NOT be over 64 (our limit)')
    m_keys = []
    for _ in range(m_count):
        if o + 12 > end: raise missing(fields_8, o, end)
        m_keys_element_key_size, m_keys_element_provider_size, m_keys_element_provider_type, = unpack_9(b, o); o += 12
        if not (m_keys_element_key_size <= 4096): raise MalformedPacket('keys.key_size', o - 12 + 0, 'MUST NOT be over 4096 bytes (our limit)')
        if not (m_keys_element_provider_size <= 1024): raise MalformedPacket('keys.provider_size', o - 12 + 4, 'MUST NOT be over 1024 bytes (our limit)')
        e = o + m_keys_element_provider_size
        if e > end: raise missing_bytes('keys.provider', o, e, end)
        m_keys_element_provider = b[o:e]
        if (b.find(b'\0\0', o, e) < e - 3 or b[e - 1] or e - o & 1) and not well_ended(m_keys_element_provider):
            raise MalformedPacket('keys.provider', o, 'MUST be UTF-16 that ends with its only null character')
        o = e
        e = o + m_keys_element_key_size
        if e > end: raise missing_bytes('keys.key', o, e, end)
        m_keys_element_key = b[o:e]
        o = e
        m_keys_element = new(PublicKeyRecord, (m_keys_element_key_size, m_keys_element_provider_size, m_keys_element_provider_type, m_keys_element_provider, m_keys_element_key,))
        m_keys.append(m_keys_element)
    m_keys = tuple(m_keys)
    if o < end: raise MalformedPacket('keys', 8, 'MUST end the structure')
    m = new(PublicKeyRecords, (m_size, m_count, m_keys,))
    return m


def build(m: PublicKeyRecords) -> bytes:
    parts = []; add = parts.append; o = 0
    m_size, m_count, m_keys, = m
    m_count = len(m_keys)
    if not (m_count <= 64):
        raise MalformedPacket('count', o + 4, 'MUST NOT be over 64 (our limit)')
    try: add(pack_4(m_size, m_count))
    except error: raise misfit(values_5, (m_size, m_count,), o)
    o += 8
    for m_keys_element in m_keys:
        if type(m_keys_element) is not PublicKeyRecord:
            raise MalformedPacket('keys', o, 'MUST be what the flags announce')
        m_keys_element_key_size, m_keys_element_provider_size, m_keys_element_provider_type, m_keys_element_provider, m_keys_element_key, = m_keys_element
        m_keys_element_key_size = len(m_keys_element_key)
        m_keys_element_provider_size = len(m_keys_element_provider)
        if not (m_keys_element_key_size <= 4096):
            raise MalformedPacket('keys.key_size', o + 0, 'MUST NOT be over 4096 bytes (our limit)')
        if not (m_keys_element_provider_size <= 1024):
            raise MalformedPacket('keys.provider_size', o + 4, 'MUST NOT be over 1024 bytes (our limit)')
        try: add(pack_7(m_keys_element_key_size, m_keys_element_provider_size, m_keys_element_provider_type))
        except error: raise misfit(values_8, (m_keys_element_key_size, m_keys_element_provider_size, m_keys_element_provider_type,), o)
        o += 12
        if (m_keys_element_provider.find(b'\0\0') < len(m_keys_element_provider) - 3 or m_keys_element_provider[-2:] != b'\0\0' or len(m_keys_element_provider) & 1) and not well_ended(m_keys_element_provider):
            raise MalformedPacket('keys.provider', o, 'MUST be UTF-16 that ends with its only null character')
        add(m_keys_element_provider); o += len(m_keys_element_provider)
        add(m_keys_element_key); o += len(m_keys_element_key)
    return b''.join(parts)
