"""Derived from the layout of UserCertificates by `python -m protocol.codec.write`."""

# fmt: off
# mypy: ignore-errors
# ruff: noqa
from protocol.codec.support import misfit, missing, missing_bytes, scan
from protocol.errors import MalformedPacket
from protocol.security_records import UserCertificate, UserCertificates
from protocol.text import ends_with_its_only_null
from struct import Struct, error

new = tuple.__new__
well_ended = ends_with_its_only_null
fields_6 = ((0, 4, 'count'),)
unpack_7 = Struct('<L').unpack_from
fields_8 = ((0, 16, 'certificates.digest'), (16, 16, 'certificates.identifier'), (32, 4, 'certificates.size'))
unpack_9 = Struct('<16s16sL').unpack_from
pack_4 = Struct('<L').pack
values_5 = (('L', 0, 4, 'count'),)
pack_7 = Struct('<16s16sL').pack
values_8 = (('16s', 0, 16, 'certificates.digest'), ('16s', 16, 16, 'certificates.identifier'), ('L', 32, 4, 'certificates.size'))


def parse(b: bytes, o: int = 0) -> UserCertificates:
    total = end = len(b)
    if o + 4 > end: raise missing(fields_6, o, end)
    m_count, = unpack_7(b, o); o += 4
    if not (m_count <= 64): raise MalformedPacket('count', o - 4 + 0, 'MUST NOT be over 64 (our limit)')
    m_certificates = []
    for _ in range(m_count):
        if o + 36 > end: raise missing(fields_8, o, end)
        m_certificates_element_digest, m_certificates_element_identifier, m_certificates_element_size, = unpack_9(b, o); o += 36
        if not (m_certificates_element_size <= 65535): raise MalformedPacket('certificates.size', o - 36 + 32, 'MUST NOT be over 0xFFFF bytes')
        e = o + m_certificates_element_size
        if e > end: raise missing_bytes('certificates.certificate', o, e, end)
        m_certificates_element_certificate = b[o:e]
        o = e
        m_certificates_element = new(UserCertificate, (m_certificates_element_digest, m_certificates_element_identifier, m_certificates_element_size, m_certificates_element_certificate,))
        m_certificates.append(m_certificates_element)
    m_certificates = tuple(m_certificates)
    if o < end: raise MalformedPacket('certificates', 4, 'MUST end the structure')
    m = new(UserCertificates, (m_count, m_certificates,))
    return m


def build(m: UserCertificates) -> bytes:
    parts = []; add = parts.append; o = 0
    m_count, m_certificates, = m
    m_count = len(m_certificates)
    if not (m_count <= 64):
        raise MalformedPacket('count', o + 0, 'MUST NOT be over 64 (our limit)')
    try: add(pack_4(m_count))
    except error: raise misfit(values_5, (m_count,), o)
    o += 4
    for m_certificates_element in m_certificates:
        if type(m_certificates_element) is not UserCertificate:
            raise MalformedPacket('certificates', o, 'MUST be what the flags announce')
        m_certificates_element_digest, m_certificates_element_identifier, m_certificates_element_size, m_certificates_element_certificate, = m_certificates_element
        m_certificates_element_size = len(m_certificates_element_certificate)
        if len(m_certificates_element_digest) != 16:
            raise MalformedPacket('certificates.digest', o + 0, 'MUST have the size that is stated')
        if len(m_certificates_element_identifier) != 16:
            raise MalformedPacket('certificates.identifier', o + 16, 'MUST have the size that is stated')
        if not (m_certificates_element_size <= 65535):
            raise MalformedPacket('certificates.size', o + 32, 'MUST NOT be over 0xFFFF bytes')
        try: add(pack_7(m_certificates_element_digest, m_certificates_element_identifier, m_certificates_element_size))
        except error: raise misfit(values_8, (m_certificates_element_digest, m_certificates_element_identifier, m_certificates_element_size,), o)
        o += 36
        add(m_certificates_element_certificate); o += len(m_certificates_element_certificate)
    return b''.join(parts)
