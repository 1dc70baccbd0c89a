"""Derived from the layout of MqfAddressHeader by `python -m protocol.codec.write`."""

# fmt: off
# mypy: ignore-errors
# ruff: noqa
from protocol.codec.support import misfit, missing, missing_bytes, scan
from protocol.errors import MalformedPacket
from protocol.headers import PrivateQueueName
from protocol.names.multi_queue import MqfAddressHeader, MqfElement
from protocol.text import ends_with_its_only_null
from struct import Struct, error

new = tuple.__new__
well_ended = ends_with_its_only_null
fields_6 = ((0, 4, 'header_size'), (4, 2, 'header_id'), (6, 2, 'reserved'), (8, 4, 'element_count'))
unpack_7 = Struct('<IHHL').unpack_from
fields_8 = ((0, 2, 'elements.format_type'),)
fields_9 = ((0, 16, 'elements.name'),)
unpack_10 = Struct('<16s').unpack_from
fields_12 = ((0, 16, 'elements.name.queue_manager'), (16, 4, 'elements.name.number'))
unpack_13 = Struct('<16sL').unpack_from
fields_14 = ((0, 16, 'elements.name'),)
unpack_15 = Struct('<16s').unpack_from
pack_4 = Struct('<IHHL').pack
values_5 = (('I', 0, 4, 'header_size'), ('H', 4, 2, 'header_id'), ('H', 6, 2, 'reserved'), ('L', 8, 4, 'element_count'))
pack_7 = Struct('<H').pack
values_8 = (('H', 0, 2, 'elements.format_type'),)
zeros_9 = [b'', b'\x00', b'\x00\x00', b'\x00\x00\x00']
pack_10 = Struct('<16s').pack
values_11 = (('16s', 0, 16, 'elements.name'),)
zeros_12 = [b'', b'\x00', b'\x00\x00', b'\x00\x00\x00']
pack_14 = Struct('<16sL').pack
values_15 = (('16s', 0, 16, 'elements.name.queue_manager'), ('L', 16, 4, 'elements.name.number'))
zeros_16 = [b'', b'\x00', b'\x00\x00', b'\x00\x00\x00']
pack_17 = Struct('<16s').pack
values_18 = (('16s', 0, 16, 'elements.name'),)
zeros_19 = [b'', b'\x00', b'\x00\x00', b'\x00\x00\x00']


def parse(b: bytes, o: int = 0) -> MqfAddressHeader:
    total = end = len(b)
    if o + 12 > end: raise missing(fields_6, o, end)
    m_header_size, m_header_id, m_reserved, m_element_count, = unpack_7(b, o); o += 12
    if not 12 <= m_header_size <= 67108864: raise MalformedPacket('header_size', o - 12 + 0, 'MUST be 0x0C bytes to the size of the packet')
    if not (m_element_count <= 10000): raise MalformedPacket('element_count', o - 12 + 8, 'MUST NOT be over 10000 (our limit)')
    outer_m_elements = end; end = o + (m_header_size - 12)
    if end > outer_m_elements: raise MalformedPacket('elements', o, 'MUST fill the size that its header states')
    m_elements = []
    for _ in range(m_element_count):
        if o + 2 > end: raise missing(fields_8, o, end)
        m_elements_element_format_type = b[o] | b[o + 1] << 8; o += 2
        k_m_elements_element_name = m_elements_element_format_type
        if k_m_elements_element_name == 3:
            e = scan(b, o, end, 'elements.name'); m_elements_element_name = b[o:e]; o = e
        elif k_m_elements_element_name == 1:
            o = o + 3 & -4
            if o + 16 > end: raise missing(fields_9, o, end)
            m_elements_element_name, = unpack_10(b, o); o += 16
        elif k_m_elements_element_name == 2:
            o = o + 3 & -4
            if o + 20 > end: raise missing(fields_12, o, end)
            m_elements_element_name_queue_manager, m_elements_element_name_number, = unpack_13(b, o); o += 20
            m_elements_element_name = new(PrivateQueueName, (m_elements_element_name_queue_manager, m_elements_element_name_number,))
        elif k_m_elements_element_name == 6:
            o = o + 3 & -4
            if o + 16 > end: raise missing(fields_14, o, end)
            m_elements_element_name, = unpack_15(b, o); o += 16
        else:
            raise MalformedPacket('elements.format_type', o - 2, 'MUST be 1, 2, 3 or 6')
        m_elements_element = new(MqfElement, (m_elements_element_format_type, m_elements_element_name,))
        m_elements.append(m_elements_element)
    m_elements = tuple(m_elements)
    if end != o and end != o + 3 & -4: raise MalformedPacket('elements', o, 'MUST fill the size that its header states')
    end = outer_m_elements
    o = o + 3 & -4
    m = new(MqfAddressHeader, (m_header_size, m_header_id, m_reserved, m_element_count, m_elements,))
    return m


def build(m: MqfAddressHeader) -> bytes:
    parts = []; add = parts.append; o = 0
    m_header_size, m_header_id, m_reserved, m_element_count, m_elements, = m
    m_element_count = len(m_elements)
    if not (m_element_count <= 10000):
        raise MalformedPacket('element_count', o + 8, 'MUST NOT be over 10000 (our limit)')
    slot_6 = len(parts); add(b''); at_6 = o; o += 12
    for m_elements_element in m_elements:
        if type(m_elements_element) is not MqfElement:
            raise MalformedPacket('elements', o, 'MUST be what the flags announce')
        m_elements_element_format_type, m_elements_element_name, = m_elements_element
        try: add(pack_7(m_elements_element_format_type))
        except error: raise misfit(values_8, (m_elements_element_format_type,), o)
        o += 2
        k_m_elements_element_name = m_elements_element_format_type
        if k_m_elements_element_name == 3:
            if type(m_elements_element_name) is not bytes:
                raise MalformedPacket('elements.name', o, 'MUST be what the flags announce')
            if (m_elements_element_name.find(b'\0\0') < len(m_elements_element_name) - 3 or m_elements_element_name[-2:] != b'\0\0' or len(m_elements_element_name) & 1) and not well_ended(m_elements_element_name):
                raise MalformedPacket('elements.name', o, 'MUST be UTF-16 that ends with its only null character')
            add(m_elements_element_name); o += len(m_elements_element_name)
        elif k_m_elements_element_name == 1:
            if o & 3:
                add(zeros_9[-o & 3])
                o = o + 3 & -4
            if type(m_elements_element_name) is not bytes:
                raise MalformedPacket('elements.name', o, 'MUST be what the flags announce')
            if len(m_elements_element_name) != 16:
                raise MalformedPacket('elements.name', o + 0, 'MUST have the size that is stated')
            try: add(pack_10(m_elements_element_name))
            except error: raise misfit(values_11, (m_elements_element_name,), o)
            o += 16
        elif k_m_elements_element_name == 2:
            if o & 3:
                add(zeros_12[-o & 3])
                o = o + 3 & -4
            if type(m_elements_element_name) is not PrivateQueueName:
                raise MalformedPacket('elements.name', o, 'MUST be what the flags announce')
            m_elements_element_name_queue_manager, m_elements_element_name_number, = m_elements_element_name
            if len(m_elements_element_name_queue_manager) != 16:
                raise MalformedPacket('elements.name.queue_manager', o + 0, 'MUST have the size that is stated')
            try: add(pack_14(m_elements_element_name_queue_manager, m_elements_element_name_number))
            except error: raise misfit(values_15, (m_elements_element_name_queue_manager, m_elements_element_name_number,), o)
            o += 20
        elif k_m_elements_element_name == 6:
            if o & 3:
                add(zeros_16[-o & 3])
                o = o + 3 & -4
            if type(m_elements_element_name) is not bytes:
                raise MalformedPacket('elements.name', o, 'MUST be what the flags announce')
            if len(m_elements_element_name) != 16:
                raise MalformedPacket('elements.name', o + 0, 'MUST have the size that is stated')
            try: add(pack_17(m_elements_element_name))
            except error: raise misfit(values_18, (m_elements_element_name,), o)
            o += 16
        else:
            raise MalformedPacket('elements.format_type', o - 2, 'MUST be 1, 2, 3 or 6')
    m_header_size = o - (at_6)
    if m_header_size > 67108864: raise MalformedPacket('header_size', at_6 + 0, 'MUST be 0x0C bytes to the size of the packet')
    try: parts[slot_6] = pack_4(m_header_size, m_header_id, m_reserved, m_element_count)
    except error: raise misfit(values_5, (m_header_size, m_header_id, m_reserved, m_element_count,), at_6)
    if o & 3:
        add(zeros_19[-o & 3])
        o = o + 3 & -4
    return b''.join(parts)
