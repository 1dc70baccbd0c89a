"""Derived from the layout of UserMessage by `python -m protocol.codec.write`."""

# fmt: off
# mypy: ignore-errors
# ruff: noqa
from protocol.codec.support import misfit, missing, missing_bytes, scan
from protocol.errors import MalformedPacket
from protocol.flags import BaseFlags, DebugFlags, PropertyFlags, SecurityFlags, TransactionFlags, UserFlags
from protocol.headers import BaseHeader, DebugHeader, DirectQueueName, MessagePropertiesHeader, PrivateQueueName, SecurityHeader, SessionHeader, SoapHeader, TransactionHeader, UserHeader
from protocol.names.multi_queue import MqfAddressHeader, MqfElement, MqfSignatureHeader, MultiQueueFormatHeader
from protocol.records import UserMessage
from protocol.text import ends_with_its_only_null
from struct import Struct, error

new = tuple.__new__
well_ended = ends_with_its_only_null
flags_6 = BaseFlags
flags_8 = UserFlags
fields_9 = ((0, 1, 'base.version'), (1, 1, 'base.reserved'), (2, 2, 'base.flags'), (4, 4, 'base.signature'), (8, 4, 'base.packet_size'), (12, 4, 'base.time_to_reach_queue'), (16, 16, 'user.source_queue_manager'), (32, 16, 'user.queue_manager_address'), (48, 4, 'user.time_to_be_received'), (52, 4, 'user.sent_time'), (56, 4, 'user.message_number'), (60, 4, 'user.flags'))
unpack_10 = Struct('<BBHLIL16s16sLLLL').unpack_from
fields_11 = ((0, 1, 'base.version'), (1, 1, 'base.reserved'), (2, 2, 'base.flags'), (4, 4, 'base.signature'), (8, 4, 'base.packet_size'), (12, 4, 'base.time_to_reach_queue'), (16, 16, 'user.source_queue_manager'), (32, 16, 'user.queue_manager_address'), (48, 4, 'user.time_to_be_received'), (52, 4, 'user.sent_time'), (56, 4, 'user.message_number'), (60, 4, 'user.flags'))
fields_12 = ((0, 2, 'user.destination_queue.count'),)
fields_14 = ((0, 4, 'user.destination_queue'),)
unpack_15 = Struct('<L').unpack_from
fields_16 = ((0, 16, 'user.destination_queue'),)
unpack_17 = Struct('<16s').unpack_from
fields_18 = ((0, 2, 'user.admin_queue.count'),)
fields_19 = ((0, 4, 'user.admin_queue'),)
unpack_20 = Struct('<L').unpack_from
fields_21 = ((0, 16, 'user.admin_queue'),)
unpack_22 = Struct('<16s').unpack_from
fields_24 = ((0, 16, 'user.admin_queue.queue_manager'), (16, 4, 'user.admin_queue.number'))
unpack_25 = Struct('<16sL').unpack_from
fields_26 = ((0, 2, 'user.response_queue.count'),)
fields_27 = ((0, 4, 'user.response_queue'),)
unpack_28 = Struct('<L').unpack_from
fields_29 = ((0, 16, 'user.response_queue'),)
unpack_30 = Struct('<16s').unpack_from
fields_31 = ((0, 16, 'user.response_queue.queue_manager'), (16, 4, 'user.response_queue.number'))
unpack_32 = Struct('<16sL').unpack_from
fields_33 = ((0, 16, 'user.connector_type'),)
unpack_34 = Struct('<16s').unpack_from
flags_36 = TransactionFlags
fields_37 = ((0, 4, 'transaction.flags'), (4, 8, 'transaction.sequence_id'), (12, 4, 'transaction.sequence_number'), (16, 4, 'transaction.previous_number'))
unpack_38 = Struct('<LQLL').unpack_from
fields_39 = ((0, 16, 'transaction.connector'),)
unpack_40 = Struct('<16s').unpack_from
flags_42 = SecurityFlags
fields_43 = ((0, 2, 'security.flags'), (2, 2, 'security.sender_id_size'), (4, 2, 'security.encryption_key_size'), (6, 2, 'security.signature_size'), (8, 4, 'security.certificate_size'), (12, 4, 'security.provider_size'))
unpack_44 = Struct('<HHHHLL').unpack_from
flags_46 = PropertyFlags
fields_47 = ((0, 1, 'properties.flags'), (1, 1, 'properties.label_length'), (2, 2, 'properties.message_class'), (4, 20, 'properties.correlation_id'), (24, 4, 'properties.body_type'), (28, 4, 'properties.application_tag'), (32, 4, 'properties.message_size'), (36, 4, 'properties.allocation_body_size'), (40, 4, 'properties.privacy_level'), (44, 4, 'properties.hash_algorithm'), (48, 4, 'properties.encryption_algorithm'), (52, 4, 'properties.extension_size'))
unpack_48 = Struct('<BBH20sLLLLLLLL').unpack_from
flags_50 = DebugFlags
fields_51 = ((0, 2, 'debug.flags'), (2, 2, 'debug.reserved'))
unpack_52 = Struct('<HH').unpack_from
fields_53 = ((0, 16, 'debug.queue'),)
unpack_54 = Struct('<16s').unpack_from
fields_56 = ((0, 2, 'soap.header_section'), (2, 2, 'soap.header_reserved'), (4, 4, 'soap.header_length'))
unpack_57 = Struct('<HHL').unpack_from
fields_58 = ((0, 2, 'soap.body_section'), (2, 2, 'soap.body_reserved'), (4, 4, 'soap.body_length'))
unpack_59 = Struct('<HHL').unpack_from
fields_61 = ((0, 4, 'multi_queue.destination.header_size'), (4, 2, 'multi_queue.destination.header_id'), (6, 2, 'multi_queue.destination.reserved'), (8, 4, 'multi_queue.destination.element_count'))
unpack_62 = Struct('<IHHL').unpack_from
fields_63 = ((0, 2, 'multi_queue.destination.elements.format_type'),)
fields_64 = ((0, 16, 'multi_queue.destination.elements.name'),)
unpack_65 = Struct('<16s').unpack_from
fields_66 = ((0, 16, 'multi_queue.destination.elements.name.queue_manager'), (16, 4, 'multi_queue.destination.elements.name.number'))
unpack_67 = Struct('<16sL').unpack_from
fields_68 = ((0, 16, 'multi_queue.destination.elements.name'),)
unpack_69 = Struct('<16s').unpack_from
fields_72 = ((0, 4, 'multi_queue.admin.header_size'), (4, 2, 'multi_queue.admin.header_id'), (6, 2, 'multi_queue.admin.reserved'), (8, 4, 'multi_queue.admin.element_count'))
unpack_73 = Struct('<IHHL').unpack_from
fields_74 = ((0, 2, 'multi_queue.admin.elements.format_type'),)
fields_75 = ((0, 16, 'multi_queue.admin.elements.name'),)
unpack_76 = Struct('<16s').unpack_from
fields_77 = ((0, 16, 'multi_queue.admin.elements.name.queue_manager'), (16, 4, 'multi_queue.admin.elements.name.number'))
unpack_78 = Struct('<16sL').unpack_from
fields_79 = ((0, 16, 'multi_queue.admin.elements.name'),)
unpack_80 = Struct('<16s').unpack_from
fields_81 = ((0, 4, 'multi_queue.response.header_size'), (4, 2, 'multi_queue.response.header_id'), (6, 2, 'multi_queue.response.reserved'), (8, 4, 'multi_queue.response.element_count'))
unpack_82 = Struct('<IHHL').unpack_from
fields_83 = ((0, 2, 'multi_queue.response.elements.format_type'),)
fields_84 = ((0, 16, 'multi_queue.response.elements.name'),)
unpack_85 = Struct('<16s').unpack_from
fields_86 = ((0, 16, 'multi_queue.response.elements.name.queue_manager'), (16, 4, 'multi_queue.response.elements.name.number'))
unpack_87 = Struct('<16sL').unpack_from
fields_88 = ((0, 16, 'multi_queue.response.elements.name'),)
unpack_89 = Struct('<16s').unpack_from
fields_90 = ((0, 2, 'multi_queue.signature.header_id'), (2, 2, 'multi_queue.signature.reserved'), (4, 4, 'multi_queue.signature.size'))
unpack_91 = Struct('<HHL').unpack_from
fields_95 = ((0, 2, 'session.ack_number'), (2, 2, 'session.recoverable_ack_number'), (4, 4, 'session.recoverable_ack_flags'), (8, 2, 'session.sent_number'), (10, 2, 'session.recoverable_sent_number'), (12, 2, 'session.window_size'), (14, 2, 'session.reserved'))
unpack_96 = Struct('<HHLHHHH').unpack_from
pack_4 = Struct('<BBHLIL16s16sLLLL').pack
values_5 = (('B', 0, 1, 'base.version'), ('B', 1, 1, 'base.reserved'), ('H', 2, 2, 'base.flags'), ('L', 4, 4, 'base.signature'), ('I', 8, 4, 'base.packet_size'), ('L', 12, 4, 'base.time_to_reach_queue'), ('16s', 16, 16, 'user.source_queue_manager'), ('16s', 32, 16, 'user.queue_manager_address'), ('L', 48, 4, 'user.time_to_be_received'), ('L', 52, 4, 'user.sent_time'), ('L', 56, 4, 'user.message_number'), ('L', 60, 4, 'user.flags'))
pack_7 = Struct('<H').pack
values_8 = (('H', 0, 2, 'user.destination_queue.count'),)
zeros_9 = [b'', b'\x00', b'\x00\x00', b'\x00\x00\x00']
pack_10 = Struct('<L').pack
values_11 = (('L', 0, 4, 'user.destination_queue'),)
pack_12 = Struct('<16s').pack
values_13 = (('16s', 0, 16, 'user.destination_queue'),)
pack_14 = Struct('<H').pack
values_15 = (('H', 0, 2, 'user.admin_queue.count'),)
zeros_16 = [b'', b'\x00', b'\x00\x00', b'\x00\x00\x00']
pack_17 = Struct('<L').pack
values_18 = (('L', 0, 4, 'user.admin_queue'),)
pack_19 = Struct('<16s').pack
values_20 = (('16s', 0, 16, 'user.admin_queue'),)
pack_22 = Struct('<16sL').pack
values_23 = (('16s', 0, 16, 'user.admin_queue.queue_manager'), ('L', 16, 4, 'user.admin_queue.number'))
pack_24 = Struct('<H').pack
values_25 = (('H', 0, 2, 'user.response_queue.count'),)
zeros_26 = [b'', b'\x00', b'\x00\x00', b'\x00\x00\x00']
pack_27 = Struct('<L').pack
values_28 = (('L', 0, 4, 'user.response_queue'),)
pack_29 = Struct('<16s').pack
values_30 = (('16s', 0, 16, 'user.response_queue'),)
pack_31 = Struct('<16sL').pack
values_32 = (('16s', 0, 16, 'user.response_queue.queue_manager'), ('L', 16, 4, 'user.response_queue.number'))
pack_33 = Struct('<16s').pack
values_34 = (('16s', 0, 16, 'user.connector_type'),)
pack_36 = Struct('<LQLL').pack
values_37 = (('L', 0, 4, 'transaction.flags'), ('Q', 4, 8, 'transaction.sequence_id'), ('L', 12, 4, 'transaction.sequence_number'), ('L', 16, 4, 'transaction.previous_number'))
pack_38 = Struct('<16s').pack
values_39 = (('16s', 0, 16, 'transaction.connector'),)
pack_41 = Struct('<HHHHLL').pack
values_42 = (('H', 0, 2, 'security.flags'), ('H', 2, 2, 'security.sender_id_size'), ('H', 4, 2, 'security.encryption_key_size'), ('H', 6, 2, 'security.signature_size'), ('L', 8, 4, 'security.certificate_size'), ('L', 12, 4, 'security.provider_size'))
zeros_43 = [b'', b'\x00', b'\x00\x00', b'\x00\x00\x00']
zeros_44 = [b'', b'\x00', b'\x00\x00', b'\x00\x00\x00']
zeros_45 = [b'', b'\x00', b'\x00\x00', b'\x00\x00\x00']
zeros_46 = [b'', b'\x00', b'\x00\x00', b'\x00\x00\x00']
zeros_47 = [b'', b'\x00', b'\x00\x00', b'\x00\x00\x00']
pack_48 = Struct('<BBH20sLLLLLLLL').pack
values_49 = (('B', 0, 1, 'properties.flags'), ('B', 1, 1, 'properties.label_length'), ('H', 2, 2, 'properties.message_class'), ('20s', 4, 20, 'properties.correlation_id'), ('L', 24, 4, 'properties.body_type'), ('L', 28, 4, 'properties.application_tag'), ('L', 32, 4, 'properties.message_size'), ('L', 36, 4, 'properties.allocation_body_size'), ('L', 40, 4, 'properties.privacy_level'), ('L', 44, 4, 'properties.hash_algorithm'), ('L', 48, 4, 'properties.encryption_algorithm'), ('L', 52, 4, 'properties.extension_size'))
zeros_50 = [b'', b'\x00', b'\x00\x00', b'\x00\x00\x00']
pack_52 = Struct('<HH').pack
values_53 = (('H', 0, 2, 'debug.flags'), ('H', 2, 2, 'debug.reserved'))
pack_54 = Struct('<16s').pack
values_55 = (('16s', 0, 16, 'debug.queue'),)
pack_57 = Struct('<HHL').pack
values_58 = (('H', 0, 2, 'soap.header_section'), ('H', 2, 2, 'soap.header_reserved'), ('L', 4, 4, 'soap.header_length'))
zeros_59 = [b'', b'\x00', b'\x00\x00', b'\x00\x00\x00']
pack_60 = Struct('<HHL').pack
values_61 = (('H', 0, 2, 'soap.body_section'), ('H', 2, 2, 'soap.body_reserved'), ('L', 4, 4, 'soap.body_length'))
zeros_62 = [b'', b'\x00', b'\x00\x00', b'\x00\x00\x00']
pack_64 = Struct('<IHHL').pack
values_65 = (('I', 0, 4, 'multi_queue.destination.header_size'), ('H', 4, 2, 'multi_queue.destination.header_id'), ('H', 6, 2, 'multi_queue.destination.reserved'), ('L', 8, 4, 'multi_queue.destination.element_count'))
pack_67 = Struct('<H').pack
values_68 = (('H', 0, 2, 'multi_queue.destination.elements.format_type'),)
zeros_69 = [b'', b'\x00', b'\x00\x00', b'\x00\x00\x00']
pack_70 = Struct('<16s').pack
values_71 = (('16s', 0, 16, 'multi_queue.destination.elements.name'),)
zeros_72 = [b'', b'\x00', b'\x00\x00', b'\x00\x00\x00']
pack_73 = Struct('<16sL').pack
values_74 = (('16s', 0, 16, 'multi_queue.destination.elements.name.queue_manager'), ('L', 16, 4, 'multi_queue.destination.elements.name.number'))
zeros_75 = [b'', b'\x00', b'\x00\x00', b'\x00\x00\x00']
pack_76 = Struct('<16s').pack
values_77 = (('16s', 0, 16, 'multi_queue.destination.elements.name'),)
zeros_78 = [b'', b'\x00', b'\x00\x00', b'\x00\x00\x00']
pack_79 = Struct('<IHHL').pack
values_80 = (('I', 0, 4, 'multi_queue.admin.header_size'), ('H', 4, 2, 'multi_queue.admin.header_id'), ('H', 6, 2, 'multi_queue.admin.reserved'), ('L', 8, 4, 'multi_queue.admin.element_count'))
pack_81 = Struct('<H').pack
values_82 = (('H', 0, 2, 'multi_queue.admin.elements.format_type'),)
zeros_83 = [b'', b'\x00', b'\x00\x00', b'\x00\x00\x00']
pack_84 = Struct('<16s').pack
values_85 = (('16s', 0, 16, 'multi_queue.admin.elements.name'),)
zeros_86 = [b'', b'\x00', b'\x00\x00', b'\x00\x00\x00']
pack_87 = Struct('<16sL').pack
values_88 = (('16s', 0, 16, 'multi_queue.admin.elements.name.queue_manager'), ('L', 16, 4, 'multi_queue.admin.elements.name.number'))
zeros_89 = [b'', b'\x00', b'\x00\x00', b'\x00\x00\x00']
pack_90 = Struct('<16s').pack
values_91 = (('16s', 0, 16, 'multi_queue.admin.elements.name'),)
zeros_92 = [b'', b'\x00', b'\x00\x00', b'\x00\x00\x00']
pack_93 = Struct('<IHHL').pack
values_94 = (('I', 0, 4, 'multi_queue.response.header_size'), ('H', 4, 2, 'multi_queue.response.header_id'), ('H', 6, 2, 'multi_queue.response.reserved'), ('L', 8, 4, 'multi_queue.response.element_count'))
pack_95 = Struct('<H').pack
values_96 = (('H', 0, 2, 'multi_queue.response.elements.format_type'),)
zeros_97 = [b'', b'\x00', b'\x00\x00', b'\x00\x00\x00']
pack_98 = Struct('<16s').pack
values_99 = (('16s', 0, 16, 'multi_queue.response.elements.name'),)
zeros_100 = [b'', b'\x00', b'\x00\x00', b'\x00\x00\x00']
pack_101 = Struct('<16sL').pack
values_102 = (('16s', 0, 16, 'multi_queue.response.elements.name.queue_manager'), ('L', 16, 4, 'multi_queue.response.elements.name.number'))
zeros_103 = [b'', b'\x00', b'\x00\x00', b'\x00\x00\x00']
pack_104 = Struct('<16s').pack
values_105 = (('16s', 0, 16, 'multi_queue.response.elements.name'),)
zeros_106 = [b'', b'\x00', b'\x00\x00', b'\x00\x00\x00']
pack_107 = Struct('<HHL').pack
values_108 = (('H', 0, 2, 'multi_queue.signature.header_id'), ('H', 2, 2, 'multi_queue.signature.reserved'), ('L', 4, 4, 'multi_queue.signature.size'))
zeros_109 = [b'', b'\x00', b'\x00\x00', b'\x00\x00\x00']
pack_111 = Struct('<HHLHHHH').pack
values_112 = (('H', 0, 2, 'session.ack_number'), ('H', 2, 2, 'session.recoverable_ack_number'), ('L', 4, 4, 'session.recoverable_ack_flags'), ('H', 8, 2, 'session.sent_number'), ('H', 10, 2, 'session.recoverable_sent_number'), ('H', 12, 2, 'session.window_size'), ('H', 14, 2, 'session.reserved'))


def parse(b: bytes, o: int = 0) -> UserMessage:
    total = end = len(b)
    if o + 64 > end: raise missing(fields_9, o, end)
    m_base_version, m_base_reserved, m_base_flags, m_base_signature, m_base_packet_size, m_base_time_to_reach_queue, m_user_source_queue_manager, m_user_queue_manager_address, m_user_time_to_be_received, m_user_sent_time, m_user_message_number, m_user_flags, = unpack_10(b, o); o += 64
    if not (m_base_version == 16): raise MalformedPacket('base.version', o - 64 + 0, 'MUST be 0x10')
    m_base_flags = flags_6(m_base_flags)
    if not (m_base_signature == 1380927820): raise MalformedPacket('base.signature', o - 64 + 4, 'MUST be 0x524F494C')
    if not 20 <= m_base_packet_size <= 67108864: raise MalformedPacket('base.packet_size', o - 64 + 8, 'MUST be 20..0x00400000 bytes')
    m_base = new(BaseHeader, (m_base_version, m_base_reserved, m_base_flags, m_base_signature, m_base_packet_size, m_base_time_to_reach_queue,))
    if not ((m_base_flags >> 3 & 1) == 0): raise MalformedPacket('base.flags.internal', 2, 'MUST be clear in a user message')
    if not ((m_base_flags >> 5 & 1) >= (m_base_flags >> 8 & 1)): raise MalformedPacket('base.flags.debug_header', 2, 'MUST be set for tracing')
    end = m_base_packet_size
    if end > total: raise MalformedPacket('base.packet_size', 8, 'MUST NOT exceed the bytes of the packet')
    if end < o: raise missing(fields_11, o - 64, end)
    m_user_flags = flags_8(m_user_flags)
    if not ((m_user_flags >> 0 & 31) <= 29): raise MalformedPacket('user.flags.hops', o - 64 + 60, 'MUST be 0..0x1D')
    if not ((m_user_flags >> 5 & 3) <= 1): raise MalformedPacket('user.flags.delivery', o - 64 + 60, 'MUST be 0 or 1')
    if not ((m_user_flags >> 5 & 3) >= (m_user_flags >> 20 & 1)): raise MalformedPacket('user.flags.delivery', o - 64 + 60, 'MUST NOT be 0 in a transactional message')
    if not ((m_user_flags >> 21 & 1) == 1): raise MalformedPacket('user.flags.properties_header', o - 64 + 60, 'MUST be set')
    if not ((m_user_flags >> 25 & 1) == 0): raise MalformedPacket('user.flags.http_header', o - 64 + 60, 'MUST NOT be set')
    k_m_user_destination_queue = (m_user_flags >> 10 & 7)
    if k_m_user_destination_queue == 7:
        if o + 2 > end: raise missing(fields_12, o, end)
        m_user_destination_queue_count = b[o] | b[o + 1] << 8; o += 2
        e = o + m_user_destination_queue_count
        if e > end: raise missing_bytes('user.destination_queue.name', o, e, end)
        m_user_destination_queue_name = b[o:e]
        if (b.find(b'\0\0', o, e) < e - 3 or b[e - 1] or e - o & 1) and not well_ended(m_user_destination_queue_name):
            raise MalformedPacket('user.destination_queue.name', o, 'MUST be UTF-16 that ends with its only null character')
        o = e
        o = o + 3 & -4
        m_user_destination_queue = new(DirectQueueName, (m_user_destination_queue_count, m_user_destination_queue_name,))
    elif k_m_user_destination_queue == 0:
        m_user_destination_queue = None
    elif k_m_user_destination_queue == 3:
        if o + 4 > end: raise missing(fields_14, o, end)
        m_user_destination_queue, = unpack_15(b, o); o += 4
    elif k_m_user_destination_queue == 5:
        if o + 16 > end: raise missing(fields_16, o, end)
        m_user_destination_queue, = unpack_17(b, o); o += 16
    else:
        raise MalformedPacket('user.flags.destination_type', 60, 'MUST be one of 0, 3, 5, 7')
    k_m_user_admin_queue = (m_user_flags >> 13 & 7)
    if k_m_user_admin_queue == 7:
        if o + 2 > end: raise missing(fields_18, o, end)
        m_user_admin_queue_count = b[o] | b[o + 1] << 8; o += 2
        e = o + m_user_admin_queue_count
        if e > end: raise missing_bytes('user.admin_queue.name', o, e, end)
        m_user_admin_queue_name = b[o:e]
        if (b.find(b'\0\0', o, e) < e - 3 or b[e - 1] or e - o & 1) and not well_ended(m_user_admin_queue_name):
            raise MalformedPacket('user.admin_queue.name', o, 'MUST be UTF-16 that ends with its only null character')
        o = e
        o = o + 3 & -4
        m_user_admin_queue = new(DirectQueueName, (m_user_admin_queue_count, m_user_admin_queue_name,))
    elif k_m_user_admin_queue == 0:
        m_user_admin_queue = None
    elif k_m_user_admin_queue in (2, 3):
        if o + 4 > end: raise missing(fields_19, o, end)
        m_user_admin_queue, = unpack_20(b, o); o += 4
    elif k_m_user_admin_queue == 5:
        if o + 16 > end: raise missing(fields_21, o, end)
        m_user_admin_queue, = unpack_22(b, o); o += 16
    elif k_m_user_admin_queue == 6:
        if o + 20 > end: raise missing(fields_24, o, end)
        m_user_admin_queue_queue_manager, m_user_admin_queue_number, = unpack_25(b, o); o += 20
        m_user_admin_queue = new(PrivateQueueName, (m_user_admin_queue_queue_manager, m_user_admin_queue_number,))
    else:
        raise MalformedPacket('user.flags.admin_type', 60, 'MUST be one of 0, 2, 3, 5, 6, 7')
    k_m_user_response_queue = (m_user_flags >> 16 & 7)
    if k_m_user_response_queue == 7:
        if o + 2 > end: raise missing(fields_26, o, end)
        m_user_response_queue_count = b[o] | b[o + 1] << 8; o += 2
        e = o + m_user_response_queue_count
        if e > end: raise missing_bytes('user.response_queue.name', o, e, end)
        m_user_response_queue_name = b[o:e]
        if (b.find(b'\0\0', o, e) < e - 3 or b[e - 1] or e - o & 1) and not well_ended(m_user_response_queue_name):
            raise MalformedPacket('user.response_queue.name', o, 'MUST be UTF-16 that ends with its only null character')
        o = e
        o = o + 3 & -4
        m_user_response_queue = new(DirectQueueName, (m_user_response_queue_count, m_user_response_queue_name,))
    elif k_m_user_response_queue in (0, 1):
        m_user_response_queue = None
    elif k_m_user_response_queue in (2, 3, 4):
        if o + 4 > end: raise missing(fields_27, o, end)
        m_user_response_queue, = unpack_28(b, o); o += 4
    elif k_m_user_response_queue == 5:
        if o + 16 > end: raise missing(fields_29, o, end)
        m_user_response_queue, = unpack_30(b, o); o += 16
    elif k_m_user_response_queue == 6:
        if o + 20 > end: raise missing(fields_31, o, end)
        m_user_response_queue_queue_manager, m_user_response_queue_number, = unpack_32(b, o); o += 20
        m_user_response_queue = new(PrivateQueueName, (m_user_response_queue_queue_manager, m_user_response_queue_number,))
    else:
        raise MalformedPacket('user.flags.response_type', 60, 'MUST be one of 0, 1, 2, 3, 4, 5, 6, 7')
    if (m_user_flags >> 22 & 1):
        if o + 16 > end: raise missing(fields_33, o, end)
        m_user_connector_type, = unpack_34(b, o); o += 16
    else: m_user_connector_type = None
    m_user = new(UserHeader, (m_user_source_queue_manager, m_user_queue_manager_address, m_user_time_to_be_received, m_user_sent_time, m_user_message_number, m_user_flags, m_user_destination_queue, m_user_admin_queue, m_user_response_queue, m_user_connector_type,))
    if (m_user_flags >> 20 & 1):
        if o + 20 > end: raise missing(fields_37, o, end)
        m_transaction_flags, m_transaction_sequence_id, m_transaction_sequence_number, m_transaction_previous_number, = unpack_38(b, o); o += 20
        m_transaction_flags = flags_36(m_transaction_flags)
        if (m_transaction_flags >> 0 & 1):
            if o + 16 > end: raise missing(fields_39, o, end)
            m_transaction_connector, = unpack_40(b, o); o += 16
        else: m_transaction_connector = None
        m_transaction = new(TransactionHeader, (m_transaction_flags, m_transaction_sequence_id, m_transaction_sequence_number, m_transaction_previous_number, m_transaction_connector,))
    else: m_transaction = None
    if (m_user_flags >> 19 & 1):
        if o + 16 > end: raise missing(fields_43, o, end)
        m_security_flags, m_security_sender_id_size, m_security_encryption_key_size, m_security_signature_size, m_security_certificate_size, m_security_provider_size, = unpack_44(b, o); o += 16
        m_security_flags = flags_42(m_security_flags)
        if not ((m_security_flags >> 0 & 15) <= 2): raise MalformedPacket('security.flags.sender_type', o - 16 + 0, 'MUST be 0, 1 or 2')
        if not (((m_security_flags >> 0 & 15) != 0) | (m_security_sender_id_size == 0)): raise MalformedPacket('security.sender_id_size', o - 16 + 2, 'MUST be 0 for sender type 0')
        if not (m_security_certificate_size <= 65535): raise MalformedPacket('security.certificate_size', o - 16 + 8, 'MUST be 0..0xFFFF bytes')
        if not (((((m_security_sender_id_size + m_security_encryption_key_size) + m_security_signature_size) + m_security_certificate_size) + m_security_provider_size) > 0): raise MalformedPacket('security.provider_size', o - 16 + 12, 'MUST NOT be 0 with the four other sizes')
        e = o + m_security_sender_id_size
        if e > end: raise missing_bytes('security.sender_id', o, e, end)
        m_security_sender_id = b[o:e]
        o = e
        o = o + 3 & -4
        e = o + m_security_encryption_key_size
        if e > end: raise missing_bytes('security.encryption_key', o, e, end)
        m_security_encryption_key = b[o:e]
        o = e
        o = o + 3 & -4
        e = o + m_security_signature_size
        if e > end: raise missing_bytes('security.signature', o, e, end)
        m_security_signature = b[o:e]
        o = e
        o = o + 3 & -4
        e = o + m_security_certificate_size
        if e > end: raise missing_bytes('security.certificate', o, e, end)
        m_security_certificate = b[o:e]
        o = e
        o = o + 3 & -4
        e = o + m_security_provider_size
        if e > end: raise missing_bytes('security.provider', o, e, end)
        m_security_provider = b[o:e]
        o = e
        o = o + 3 & -4
        m_security = new(SecurityHeader, (m_security_flags, m_security_sender_id_size, m_security_encryption_key_size, m_security_signature_size, m_security_certificate_size, m_security_provider_size, m_security_sender_id, m_security_encryption_key, m_security_signature, m_security_certificate, m_security_provider,))
    else: m_security = None
    if o + 56 > end: raise missing(fields_47, o, end)
    m_properties_flags, m_properties_label_length, m_properties_message_class, m_properties_correlation_id, m_properties_body_type, m_properties_application_tag, m_properties_message_size, m_properties_allocation_body_size, m_properties_privacy_level, m_properties_hash_algorithm, m_properties_encryption_algorithm, m_properties_extension_size, = unpack_48(b, o); o += 56
    m_properties_flags = flags_46(m_properties_flags)
    if not (m_properties_label_length <= 250): raise MalformedPacket('properties.label_length', o - 56 + 1, 'MUST be 0..0xFA')
    e = o + (m_properties_label_length * 2)
    if e > end: raise missing_bytes('properties.label', o, e, end)
    m_properties_label = b[o:e]
    if e > o and (b.find(b'\0\0', o, e) < e - 3 or b[e - 1] or e - o & 1) and not well_ended(m_properties_label):
        raise MalformedPacket('properties.label', o, 'MUST be UTF-16 that ends with its only null character')
    o = e
    e = o + m_properties_extension_size
    if e > end: raise missing_bytes('properties.extension', o, e, end)
    m_properties_extension = b[o:e]
    o = e
    e = o + m_properties_message_size
    if e > end: raise missing_bytes('properties.body', o, e, end)
    m_properties_body = b[o:e]
    o = e
    o = o + 3 & -4
    m_properties = new(MessagePropertiesHeader, (m_properties_flags, m_properties_label_length, m_properties_message_class, m_properties_correlation_id, m_properties_body_type, m_properties_application_tag, m_properties_message_size, m_properties_allocation_body_size, m_properties_privacy_level, m_properties_hash_algorithm, m_properties_encryption_algorithm, m_properties_extension_size, m_properties_label, m_properties_extension, m_properties_body,))
    if (m_base_flags >> 5 & 1):
        if o + 4 > end: raise missing(fields_51, o, end)
        m_debug_flags, m_debug_reserved, = unpack_52(b, o); o += 4
        m_debug_flags = flags_50(m_debug_flags)
        if not ((m_debug_flags >> 0 & 3) <= 1): raise MalformedPacket('debug.flags.queue_type', o - 4 + 0, 'MUST be 0 or 1')
        if (m_debug_flags >> 0 & 3):
            if o + 16 > end: raise missing(fields_53, o, end)
            m_debug_queue, = unpack_54(b, o); o += 16
        else: m_debug_queue = None
        m_debug = new(DebugHeader, (m_debug_flags, m_debug_reserved, m_debug_queue,))
    else: m_debug = None
    if (m_user_flags >> 28 & 1):
        if o + 8 > end: raise missing(fields_56, o, end)
        m_soap_header_section, m_soap_header_reserved, m_soap_header_length, = unpack_57(b, o); o += 8
        if not (m_soap_header_section == 800): raise MalformedPacket('soap.header_section', o - 8 + 0, 'MUST be 0x0320')
        e = o + (m_soap_header_length * 2)
        if e > end: raise missing_bytes('soap.header', o, e, end)
        m_soap_header = b[o:e]
        if e > o and (b.find(b'\0\0', o, e) < e - 3 or b[e - 1] or e - o & 1) and not well_ended(m_soap_header):
            raise MalformedPacket('soap.header', o, 'MUST be UTF-16 that ends with its only null character')
        o = e
        if (o + 3 & -4) + 2 <= end and b[(o + 3 & -4):(o + 3 & -4) + 2] == b'\x84\x03': o = (o + 3 & -4)
        if o + 8 > end: raise missing(fields_58, o, end)
        m_soap_body_section, m_soap_body_reserved, m_soap_body_length, = unpack_59(b, o); o += 8
        if not (m_soap_body_section == 900): raise MalformedPacket('soap.body_section', o - 8 + 0, 'MUST be 0x0384')
        e = o + (m_soap_body_length * 2)
        if e > end: raise missing_bytes('soap.body', o, e, end)
        m_soap_body = b[o:e]
        if e > o and (b.find(b'\0\0', o, e) < e - 3 or b[e - 1] or e - o & 1) and not well_ended(m_soap_body):
            raise MalformedPacket('soap.body', o, 'MUST be UTF-16 that ends with its only null character')
        o = e
        o = o + 3 & -4
        m_soap = new(SoapHeader, (m_soap_header_section, m_soap_header_reserved, m_soap_header_length, m_soap_header, m_soap_body_section, m_soap_body_reserved, m_soap_body_length, m_soap_body,))
    else: m_soap = None
    if (m_user_flags >> 23 & 1):
        at_m_multi_queue_destination = o
        if o + 12 > end: raise missing(fields_61, o, end)
        m_multi_queue_destination_header_size, m_multi_queue_destination_header_id, m_multi_queue_destination_reserved, m_multi_queue_destination_element_count, = unpack_62(b, o); o += 12
        if not 12 <= m_multi_queue_destination_header_size <= 67108864: raise MalformedPacket('multi_queue.destination.header_size', o - 12 + 0, 'MUST be 0x0C bytes to the size of the packet')
        if not (m_multi_queue_destination_element_count <= 10000): raise MalformedPacket('multi_queue.destination.element_count', o - 12 + 8, 'MUST NOT be over 10000 (our limit)')
        outer_m_multi_queue_destination_elements = end; end = o + (m_multi_queue_destination_header_size - 12)
        if end > outer_m_multi_queue_destination_elements: raise MalformedPacket('multi_queue.destination.elements', o, 'MUST fill the size that its header states')
        m_multi_queue_destination_elements = []
        for _ in range(m_multi_queue_destination_element_count):
            if o + 2 > end: raise missing(fields_63, o, end)
            m_multi_queue_destination_elements_element_format_type = b[o] | b[o + 1] << 8; o += 2
            k_m_multi_queue_destination_elements_element_name = m_multi_queue_destination_elements_element_format_type
            if k_m_multi_queue_destination_elements_element_name == 3:
                e = scan(b, o, end, 'multi_queue.destination.elements.name'); m_multi_queue_destination_elements_element_name = b[o:e]; o = e
            elif k_m_multi_queue_destination_elements_element_name == 1:
                o = o + 3 & -4
                if o + 16 > end: raise missing(fields_64, o, end)
                m_multi_queue_destination_elements_element_name, = unpack_65(b, o); o += 16
            elif k_m_multi_queue_destination_elements_element_name == 2:
                o = o + 3 & -4
                if o + 20 > end: raise missing(fields_66, o, end)
                m_multi_queue_destination_elements_element_name_queue_manager, m_multi_queue_destination_elements_element_name_number, = unpack_67(b, o); o += 20
                m_multi_queue_destination_elements_element_name = new(PrivateQueueName, (m_multi_queue_destination_elements_element_name_queue_manager, m_multi_queue_destination_elements_element_name_number,))
            elif k_m_multi_queue_destination_elements_element_name == 6:
                o = o + 3 & -4
                if o + 16 > end: raise missing(fields_68, o, end)
                m_multi_queue_destination_elements_element_name, = unpack_69(b, o); o += 16
            else:
                raise MalformedPacket('multi_queue.destination.elements.format_type', o - 2, 'MUST be 1, 2, 3 or 6')
            m_multi_queue_destination_elements_element = new(MqfElement, (m_multi_queue_destination_elements_element_format_type, m_multi_queue_destination_elements_element_name,))
            m_multi_queue_destination_elements.append(m_multi_queue_destination_elements_element)
        m_multi_queue_destination_elements = tuple(m_multi_queue_destination_elements)
        if end != o and end != o + 3 & -4: raise MalformedPacket('multi_queue.destination.elements', o, 'MUST fill the size that its header states')
        end = outer_m_multi_queue_destination_elements
        o = o + 3 & -4
        m_multi_queue_destination = new(MqfAddressHeader, (m_multi_queue_destination_header_size, m_multi_queue_destination_header_id, m_multi_queue_destination_reserved, m_multi_queue_destination_element_count, m_multi_queue_destination_elements,))
        if not (m_multi_queue_destination_header_id == 100): raise MalformedPacket('multi_queue.destination.header_id', at_m_multi_queue_destination + 4, 'MUST be 0x0064')
        at_m_multi_queue_admin = o
        if o + 12 > end: raise missing(fields_72, o, end)
        m_multi_queue_admin_header_size, m_multi_queue_admin_header_id, m_multi_queue_admin_reserved, m_multi_queue_admin_element_count, = unpack_73(b, o); o += 12
        if not 12 <= m_multi_queue_admin_header_size <= 67108864: raise MalformedPacket('multi_queue.admin.header_size', o - 12 + 0, 'MUST be 0x0C bytes to the size of the packet')
        if not (m_multi_queue_admin_element_count <= 10000): raise MalformedPacket('multi_queue.admin.element_count', o - 12 + 8, 'MUST NOT be over 10000 (our limit)')
        outer_m_multi_queue_admin_elements = end; end = o + (m_multi_queue_admin_header_size - 12)
        if end > outer_m_multi_queue_admin_elements: raise MalformedPacket('multi_queue.admin.elements', o, 'MUST fill the size that its header states')
        m_multi_queue_admin_elements = []
        for _ in range(m_multi_queue_admin_element_count):
            if o + 2 > end: raise missing(fields_74, o, end)
            m_multi_queue_admin_elements_element_format_type = b[o] | b[o + 1] << 8; o += 2
            k_m_multi_queue_admin_elements_element_name = m_multi_queue_admin_elements_element_format_type
            if k_m_multi_queue_admin_elements_element_name == 3:
                e = scan(b, o, end, 'multi_queue.admin.elements.name'); m_multi_queue_admin_elements_element_name = b[o:e]; o = e
            elif k_m_multi_queue_admin_elements_element_name == 1:
                o = o + 3 & -4
                if o + 16 > end: raise missing(fields_75, o, end)
                m_multi_queue_admin_elements_element_name, = unpack_76(b, o); o += 16
            elif k_m_multi_queue_admin_elements_element_name == 2:
                o = o + 3 & -4
                if o + 20 > end: raise missing(fields_77, o, end)
                m_multi_queue_admin_elements_element_name_queue_manager, m_multi_queue_admin_elements_element_name_number, = unpack_78(b, o); o += 20
                m_multi_queue_admin_elements_element_name = new(PrivateQueueName, (m_multi_queue_admin_elements_element_name_queue_manager, m_multi_queue_admin_elements_element_name_number,))
            elif k_m_multi_queue_admin_elements_element_name == 6:
                o = o + 3 & -4
                if o + 16 > end: raise missing(fields_79, o, end)
                m_multi_queue_admin_elements_element_name, = unpack_80(b, o); o += 16
            else:
                raise MalformedPacket('multi_queue.admin.elements.format_type', o - 2, 'MUST be 1, 2, 3 or 6')
            m_multi_queue_admin_elements_element = new(MqfElement, (m_multi_queue_admin_elements_element_format_type, m_multi_queue_admin_elements_element_name,))
            m_multi_queue_admin_elements.append(m_multi_queue_admin_elements_element)
        m_multi_queue_admin_elements = tuple(m_multi_queue_admin_elements)
        if end != o and end != o + 3 & -4: raise MalformedPacket('multi_queue.admin.elements', o, 'MUST fill the size that its header states')
        end = outer_m_multi_queue_admin_elements
        o = o + 3 & -4
        m_multi_queue_admin = new(MqfAddressHeader, (m_multi_queue_admin_header_size, m_multi_queue_admin_header_id, m_multi_queue_admin_reserved, m_multi_queue_admin_element_count, m_multi_queue_admin_elements,))
        if not (m_multi_queue_admin_header_id == 200): raise MalformedPacket('multi_queue.admin.header_id', at_m_multi_queue_admin + 4, 'MUST be 0x00C8')
        at_m_multi_queue_response = o
        if o + 12 > end: raise missing(fields_81, o, end)
        m_multi_queue_response_header_size, m_multi_queue_response_header_id, m_multi_queue_response_reserved, m_multi_queue_response_element_count, = unpack_82(b, o); o += 12
        if not 12 <= m_multi_queue_response_header_size <= 67108864: raise MalformedPacket('multi_queue.response.header_size', o - 12 + 0, 'MUST be 0x0C bytes to the size of the packet')
        if not (m_multi_queue_response_element_count <= 10000): raise MalformedPacket('multi_queue.response.element_count', o - 12 + 8, 'MUST NOT be over 10000 (our limit)')
        outer_m_multi_queue_response_elements = end; end = o + (m_multi_queue_response_header_size - 12)
        if end > outer_m_multi_queue_response_elements: raise MalformedPacket('multi_queue.response.elements', o, 'MUST fill the size that its header states')
        m_multi_queue_response_elements = []
        for _ in range(m_multi_queue_response_element_count):
            if o + 2 > end: raise missing(fields_83, o, end)
            m_multi_queue_response_elements_element_format_type = b[o] | b[o + 1] << 8; o += 2
            k_m_multi_queue_response_elements_element_name = m_multi_queue_response_elements_element_format_type
            if k_m_multi_queue_response_elements_element_name == 3:
                e = scan(b, o, end, 'multi_queue.response.elements.name'); m_multi_queue_response_elements_element_name = b[o:e]; o = e
            elif k_m_multi_queue_response_elements_element_name == 1:
                o = o + 3 & -4
                if o + 16 > end: raise missing(fields_84, o, end)
                m_multi_queue_response_elements_element_name, = unpack_85(b, o); o += 16
            elif k_m_multi_queue_response_elements_element_name == 2:
                o = o + 3 & -4
                if o + 20 > end: raise missing(fields_86, o, end)
                m_multi_queue_response_elements_element_name_queue_manager, m_multi_queue_response_elements_element_name_number, = unpack_87(b, o); o += 20
                m_multi_queue_response_elements_element_name = new(PrivateQueueName, (m_multi_queue_response_elements_element_name_queue_manager, m_multi_queue_response_elements_element_name_number,))
            elif k_m_multi_queue_response_elements_element_name == 6:
                o = o + 3 & -4
                if o + 16 > end: raise missing(fields_88, o, end)
                m_multi_queue_response_elements_element_name, = unpack_89(b, o); o += 16
            else:
                raise MalformedPacket('multi_queue.response.elements.format_type', o - 2, 'MUST be 1, 2, 3 or 6')
            m_multi_queue_response_elements_element = new(MqfElement, (m_multi_queue_response_elements_element_format_type, m_multi_queue_response_elements_element_name,))
            m_multi_queue_response_elements.append(m_multi_queue_response_elements_element)
        m_multi_queue_response_elements = tuple(m_multi_queue_response_elements)
        if end != o and end != o + 3 & -4: raise MalformedPacket('multi_queue.response.elements', o, 'MUST fill the size that its header states')
        end = outer_m_multi_queue_response_elements
        o = o + 3 & -4
        m_multi_queue_response = new(MqfAddressHeader, (m_multi_queue_response_header_size, m_multi_queue_response_header_id, m_multi_queue_response_reserved, m_multi_queue_response_element_count, m_multi_queue_response_elements,))
        if not (m_multi_queue_response_header_id == 300): raise MalformedPacket('multi_queue.response.header_id', at_m_multi_queue_response + 4, 'MUST be 0x012C')
        if o + 8 > end: raise missing(fields_90, o, end)
        m_multi_queue_signature_header_id, m_multi_queue_signature_reserved, m_multi_queue_signature_size, = unpack_91(b, o); o += 8
        if not (m_multi_queue_signature_header_id == 350): raise MalformedPacket('multi_queue.signature.header_id', o - 8 + 0, 'MUST be 0x015E')
        e = o + m_multi_queue_signature_size
        if e > end: raise missing_bytes('multi_queue.signature.signature', o, e, end)
        m_multi_queue_signature_signature = b[o:e]
        o = e
        o = o + 3 & -4
        m_multi_queue_signature = new(MqfSignatureHeader, (m_multi_queue_signature_header_id, m_multi_queue_signature_reserved, m_multi_queue_signature_size, m_multi_queue_signature_signature,))
        m_multi_queue = new(MultiQueueFormatHeader, (m_multi_queue_destination, m_multi_queue_admin, m_multi_queue_response, m_multi_queue_signature,))
    else: m_multi_queue = None
    o = end; end = total
    if (m_base_flags >> 4 & 1):
        if o + 16 > end: raise missing(fields_95, o, end)
        m_session_ack_number, m_session_recoverable_ack_number, m_session_recoverable_ack_flags, m_session_sent_number, m_session_recoverable_sent_number, m_session_window_size, m_session_reserved, = unpack_96(b, o); o += 16
        m_session = new(SessionHeader, (m_session_ack_number, m_session_recoverable_ack_number, m_session_recoverable_ack_flags, m_session_sent_number, m_session_recoverable_sent_number, m_session_window_size, m_session_reserved,))
    else: m_session = None
    if o < end: raise MalformedPacket('base.packet_size', 8, 'MUST be the size of the packet without a piggybacked SessionHeader')
    m = new(UserMessage, (m_base, m_user, m_transaction, m_security, m_properties, m_debug, m_soap, m_multi_queue, m_session,))
    return m


def build(m: UserMessage) -> bytes:
    parts = []; add = parts.append; o = 0
    m_base, m_user, m_transaction, m_security, m_properties, m_debug, m_soap, m_multi_queue, m_session, = m
    m_base_version, m_base_reserved, m_base_flags, m_base_signature, m_base_packet_size, m_base_time_to_reach_queue, = m_base
    if not (m_base_version == 16):
        raise MalformedPacket('base.version', o + 0, 'MUST be 0x10')
    if not (m_base_signature == 1380927820):
        raise MalformedPacket('base.signature', o + 4, 'MUST be 0x524F494C')
    if not ((m_base_flags >> 3 & 1) == 0):
        raise MalformedPacket('base.flags.internal', 2, 'MUST be clear in a user message')
    if not ((m_base_flags >> 5 & 1) >= (m_base_flags >> 8 & 1)):
        raise MalformedPacket('base.flags.debug_header', 2, 'MUST be set for tracing')
    m_user_source_queue_manager, m_user_queue_manager_address, m_user_time_to_be_received, m_user_sent_time, m_user_message_number, m_user_flags, m_user_destination_queue, m_user_admin_queue, m_user_response_queue, m_user_connector_type, = m_user
    if len(m_user_source_queue_manager) != 16:
        raise MalformedPacket('user.source_queue_manager', o + 16, 'MUST have the size that is stated')
    if len(m_user_queue_manager_address) != 16:
        raise MalformedPacket('user.queue_manager_address', o + 32, 'MUST have the size that is stated')
    if not ((m_user_flags >> 0 & 31) <= 29):
        raise MalformedPacket('user.flags.hops', o + 60, 'MUST be 0..0x1D')
    if not ((m_user_flags >> 5 & 3) <= 1):
        raise MalformedPacket('user.flags.delivery', o + 60, 'MUST be 0 or 1')
    if not ((m_user_flags >> 5 & 3) >= (m_user_flags >> 20 & 1)):
        raise MalformedPacket('user.flags.delivery', o + 60, 'MUST NOT be 0 in a transactional message')
    if not ((m_user_flags >> 21 & 1) == 1):
        raise MalformedPacket('user.flags.properties_header', o + 60, 'MUST be set')
    if not ((m_user_flags >> 25 & 1) == 0):
        raise MalformedPacket('user.flags.http_header', o + 60, 'MUST NOT be set')
    slot_6 = len(parts); add(b''); at_6 = o; o += 64
    k_m_user_destination_queue = (m_user_flags >> 10 & 7)
    if k_m_user_destination_queue == 7:
        if type(m_user_destination_queue) is not DirectQueueName:
            raise MalformedPacket('user.destination_queue', o, 'MUST be what the flags announce')
        m_user_destination_queue_count, m_user_destination_queue_name, = m_user_destination_queue
        m_user_destination_queue_count = len(m_user_destination_queue_name)
        try: add(pack_7(m_user_destination_queue_count))
        except error: raise misfit(values_8, (m_user_destination_queue_count,), o)
        o += 2
        if (m_user_destination_queue_name.find(b'\0\0') < len(m_user_destination_queue_name) - 3 or m_user_destination_queue_name[-2:] != b'\0\0' or len(m_user_destination_queue_name) & 1) and not well_ended(m_user_destination_queue_name):
            raise MalformedPacket('user.destination_queue.name', o, 'MUST be UTF-16 that ends with its only null character')
        add(m_user_destination_queue_name); o += len(m_user_destination_queue_name)
        if o & 3:
            add(zeros_9[-o & 3])
            o = o + 3 & -4
    elif k_m_user_destination_queue == 0:
        if m_user_destination_queue is not None: raise MalformedPacket('user.destination_queue', o, 'MUST NOT be present: the flags do not announce it')
    elif k_m_user_destination_queue == 3:
        try: add(pack_10(m_user_destination_queue))
        except error: raise misfit(values_11, (m_user_destination_queue,), o)
        o += 4
    elif k_m_user_destination_queue == 5:
        if type(m_user_destination_queue) is not bytes:
            raise MalformedPacket('user.destination_queue', o, 'MUST be what the flags announce')
        if len(m_user_destination_queue) != 16:
            raise MalformedPacket('user.destination_queue', o + 0, 'MUST have the size that is stated')
        try: add(pack_12(m_user_destination_queue))
        except error: raise misfit(values_13, (m_user_destination_queue,), o)
        o += 16
    else:
        raise MalformedPacket('user.flags.destination_type', 60, 'MUST be one of 0, 3, 5, 7')
    k_m_user_admin_queue = (m_user_flags >> 13 & 7)
    if k_m_user_admin_queue == 7:
        if type(m_user_admin_queue) is not DirectQueueName:
            raise MalformedPacket('user.admin_queue', o, 'MUST be what the flags announce')
        m_user_admin_queue_count, m_user_admin_queue_name, = m_user_admin_queue
        m_user_admin_queue_count = len(m_user_admin_queue_name)
        try: add(pack_14(m_user_admin_queue_count))
        except error: raise misfit(values_15, (m_user_admin_queue_count,), o)
        o += 2
        if (m_user_admin_queue_name.find(b'\0\0') < len(m_user_admin_queue_name) - 3 or m_user_admin_queue_name[-2:] != b'\0\0' or len(m_user_admin_queue_name) & 1) and not well_ended(m_user_admin_queue_name):
            raise MalformedPacket('user.admin_queue.name', o, 'MUST be UTF-16 that ends with its only null character')
        add(m_user_admin_queue_name); o += len(m_user_admin_queue_name)
        if o & 3:
            add(zeros_16[-o & 3])
            o = o + 3 & -4
    elif k_m_user_admin_queue == 0:
        if m_user_admin_queue is not None: raise MalformedPacket('user.admin_queue', o, 'MUST NOT be present: the flags do not announce it')
    elif k_m_user_admin_queue in (2, 3):
        try: add(pack_17(m_user_admin_queue))
        except error: raise misfit(values_18, (m_user_admin_queue,), o)
        o += 4
    elif k_m_user_admin_queue == 5:
        if type(m_user_admin_queue) is not bytes:
            raise MalformedPacket('user.admin_queue', o, 'MUST be what the flags announce')
        if len(m_user_admin_queue) != 16:
            raise MalformedPacket('user.admin_queue', o + 0, 'MUST have the size that is stated')
        try: add(pack_19(m_user_admin_queue))
        except error: raise misfit(values_20, (m_user_admin_queue,), o)
        o += 16
    elif k_m_user_admin_queue == 6:
        if type(m_user_admin_queue) is not PrivateQueueName:
            raise MalformedPacket('user.admin_queue', o, 'MUST be what the flags announce')
        m_user_admin_queue_queue_manager, m_user_admin_queue_number, = m_user_admin_queue
        if len(m_user_admin_queue_queue_manager) != 16:
            raise MalformedPacket('user.admin_queue.queue_manager', o + 0, 'MUST have the size that is stated')
        try: add(pack_22(m_user_admin_queue_queue_manager, m_user_admin_queue_number))
        except error: raise misfit(values_23, (m_user_admin_queue_queue_manager, m_user_admin_queue_number,), o)
        o += 20
    else:
        raise MalformedPacket('user.flags.admin_type', 60, 'MUST be one of 0, 2, 3, 5, 6, 7')
    k_m_user_response_queue = (m_user_flags >> 16 & 7)
    if k_m_user_response_queue == 7:
        if type(m_user_response_queue) is not DirectQueueName:
            raise MalformedPacket('user.response_queue', o, 'MUST be what the flags announce')
        m_user_response_queue_count, m_user_response_queue_name, = m_user_response_queue
        m_user_response_queue_count = len(m_user_response_queue_name)
        try: add(pack_24(m_user_response_queue_count))
        except error: raise misfit(values_25, (m_user_response_queue_count,), o)
        o += 2
        if (m_user_response_queue_name.find(b'\0\0') < len(m_user_response_queue_name) - 3 or m_user_response_queue_name[-2:] != b'\0\0' or len(m_user_response_queue_name) & 1) and not well_ended(m_user_response_queue_name):
            raise MalformedPacket('user.response_queue.name', o, 'MUST be UTF-16 that ends with its only null character')
        add(m_user_response_queue_name); o += len(m_user_response_queue_name)
        if o & 3:
            add(zeros_26[-o & 3])
            o = o + 3 & -4
    elif k_m_user_response_queue in (0, 1):
        if m_user_response_queue is not None: raise MalformedPacket('user.response_queue', o, 'MUST NOT be present: the flags do not announce it')
    elif k_m_user_response_queue in (2, 3, 4):
        try: add(pack_27(m_user_response_queue))
        except error: raise misfit(values_28, (m_user_response_queue,), o)
        o += 4
    elif k_m_user_response_queue == 5:
        if type(m_user_response_queue) is not bytes:
            raise MalformedPacket('user.response_queue', o, 'MUST be what the flags announce')
        if len(m_user_response_queue) != 16:
            raise MalformedPacket('user.response_queue', o + 0, 'MUST have the size that is stated')
        try: add(pack_29(m_user_response_queue))
        except error: raise misfit(values_30, (m_user_response_queue,), o)
        o += 16
    elif k_m_user_response_queue == 6:
        if type(m_user_response_queue) is not PrivateQueueName:
            raise MalformedPacket('user.response_queue', o, 'MUST be what the flags announce')
        m_user_response_queue_queue_manager, m_user_response_queue_number, = m_user_response_queue
        if len(m_user_response_queue_queue_manager) != 16:
            raise MalformedPacket('user.response_queue.queue_manager', o + 0, 'MUST have the size that is stated')
        try: add(pack_31(m_user_response_queue_queue_manager, m_user_response_queue_number))
        except error: raise misfit(values_32, (m_user_response_queue_queue_manager, m_user_response_queue_number,), o)
        o += 20
    else:
        raise MalformedPacket('user.flags.response_type', 60, 'MUST be one of 0, 1, 2, 3, 4, 5, 6, 7')
    if (m_user_flags >> 22 & 1):
        if m_user_connector_type is None: raise MalformedPacket('user.connector_type', o, 'MUST be present: the flags announce it')
        if type(m_user_connector_type) is not bytes:
            raise MalformedPacket('user.connector_type', o, 'MUST be what the flags announce')
        if len(m_user_connector_type) != 16:
            raise MalformedPacket('user.connector_type', o + 0, 'MUST have the size that is stated')
        try: add(pack_33(m_user_connector_type))
        except error: raise misfit(values_34, (m_user_connector_type,), o)
        o += 16
    elif m_user_connector_type is not None: raise MalformedPacket('user.connector_type', o, 'MUST NOT be present: the flags do not announce it')
    if (m_user_flags >> 20 & 1):
        if m_transaction is None: raise MalformedPacket('transaction', o, 'MUST be present: the flags announce it')
        if type(m_transaction) is not TransactionHeader:
            raise MalformedPacket('transaction', o, 'MUST be what the flags announce')
        m_transaction_flags, m_transaction_sequence_id, m_transaction_sequence_number, m_transaction_previous_number, m_transaction_connector, = m_transaction
        try: add(pack_36(m_transaction_flags, m_transaction_sequence_id, m_transaction_sequence_number, m_transaction_previous_number))
        except error: raise misfit(values_37, (m_transaction_flags, m_transaction_sequence_id, m_transaction_sequence_number, m_transaction_previous_number,), o)
        o += 20
        if (m_transaction_flags >> 0 & 1):
            if m_transaction_connector is None: raise MalformedPacket('transaction.connector', o, 'MUST be present: the flags announce it')
            if type(m_transaction_connector) is not bytes:
                raise MalformedPacket('transaction.connector', o, 'MUST be what the flags announce')
            if len(m_transaction_connector) != 16:
                raise MalformedPacket('transaction.connector', o + 0, 'MUST have the size that is stated')
            try: add(pack_38(m_transaction_connector))
            except error: raise misfit(values_39, (m_transaction_connector,), o)
            o += 16
        elif m_transaction_connector is not None: raise MalformedPacket('transaction.connector', o, 'MUST NOT be present: the flags do not announce it')
    elif m_transaction is not None: raise MalformedPacket('transaction', o, 'MUST NOT be present: the flags do not announce it')
    if (m_user_flags >> 19 & 1):
        if m_security is None: raise MalformedPacket('security', o, 'MUST be present: the flags announce it')
        if type(m_security) is not SecurityHeader:
            raise MalformedPacket('security', o, 'MUST be what the flags announce')
        m_security_flags, m_security_sender_id_size, m_security_encryption_key_size, m_security_signature_size, m_security_certificate_size, m_security_provider_size, m_security_sender_id, m_security_encryption_key, m_security_signature, m_security_certificate, m_security_provider, = m_security
        m_security_sender_id_size = len(m_security_sender_id)
        m_security_encryption_key_size = len(m_security_encryption_key)
        m_security_signature_size = len(m_security_signature)
        m_security_certificate_size = len(m_security_certificate)
        m_security_provider_size = len(m_security_provider)
        if not ((m_security_flags >> 0 & 15) <= 2):
            raise MalformedPacket('security.flags.sender_type', o + 0, 'MUST be 0, 1 or 2')
        if not (((m_security_flags >> 0 & 15) != 0) | (m_security_sender_id_size == 0)):
            raise MalformedPacket('security.sender_id_size', o + 2, 'MUST be 0 for sender type 0')
        if not (m_security_certificate_size <= 65535):
            raise MalformedPacket('security.certificate_size', o + 8, 'MUST be 0..0xFFFF bytes')
        if not (((((m_security_sender_id_size + m_security_encryption_key_size) + m_security_signature_size) + m_security_certificate_size) + m_security_provider_size) > 0):
            raise MalformedPacket('security.provider_size', o + 12, 'MUST NOT be 0 with the four other sizes')
        try: add(pack_41(m_security_flags, m_security_sender_id_size, m_security_encryption_key_size, m_security_signature_size, m_security_certificate_size, m_security_provider_size))
        except error: raise misfit(values_42, (m_security_flags, m_security_sender_id_size, m_security_encryption_key_size, m_security_signature_size, m_security_certificate_size, m_security_provider_size,), o)
        o += 16
        add(m_security_sender_id); o += len(m_security_sender_id)
        if o & 3:
            add(zeros_43[-o & 3])
            o = o + 3 & -4
        add(m_security_encryption_key); o += len(m_security_encryption_key)
        if o & 3:
            add(zeros_44[-o & 3])
            o = o + 3 & -4
        add(m_security_signature); o += len(m_security_signature)
        if o & 3:
            add(zeros_45[-o & 3])
            o = o + 3 & -4
        add(m_security_certificate); o += len(m_security_certificate)
        if o & 3:
            add(zeros_46[-o & 3])
            o = o + 3 & -4
        add(m_security_provider); o += len(m_security_provider)
        if o & 3:
            add(zeros_47[-o & 3])
            o = o + 3 & -4
    elif m_security is not None: raise MalformedPacket('security', o, 'MUST NOT be present: the flags do not announce it')
    m_properties_flags, m_properties_label_length, m_properties_message_class, m_properties_correlation_id, m_properties_body_type, m_properties_application_tag, m_properties_message_size, m_properties_allocation_body_size, m_properties_privacy_level, m_properties_hash_algorithm, m_properties_encryption_algorithm, m_properties_extension_size, m_properties_label, m_properties_extension, m_properties_body, = m_properties
    m_properties_label_length = (len(m_properties_label) // 2)
    m_properties_message_size = len(m_properties_body)
    m_properties_extension_size = len(m_properties_extension)
    if not (m_properties_label_length <= 250):
        raise MalformedPacket('properties.label_length', o + 1, 'MUST be 0..0xFA')
    if len(m_properties_correlation_id) != 20:
        raise MalformedPacket('properties.correlation_id', o + 4, 'MUST have the size that is stated')
    try: add(pack_48(m_properties_flags, m_properties_label_length, m_properties_message_class, m_properties_correlation_id, m_properties_body_type, m_properties_application_tag, m_properties_message_size, m_properties_allocation_body_size, m_properties_privacy_level, m_properties_hash_algorithm, m_properties_encryption_algorithm, m_properties_extension_size))
    except error: raise misfit(values_49, (m_properties_flags, m_properties_label_length, m_properties_message_class, m_properties_correlation_id, m_properties_body_type, m_properties_application_tag, m_properties_message_size, m_properties_allocation_body_size, m_properties_privacy_level, m_properties_hash_algorithm, m_properties_encryption_algorithm, m_properties_extension_size,), o)
    o += 56
    if m_properties_label and (len(m_properties_label) != (m_properties_label_length * 2) or (m_properties_label.find(b'\0\0') < len(m_properties_label) - 3 or m_properties_label[-2:] != b'\0\0' or len(m_properties_label) & 1) and not well_ended(m_properties_label)):
        raise MalformedPacket('properties.label', o, 'MUST be UTF-16 that ends with its only null character')
    add(m_properties_label); o += len(m_properties_label)
    add(m_properties_extension); o += len(m_properties_extension)
    add(m_properties_body); o += len(m_properties_body)
    if o & 3:
        add(zeros_50[-o & 3])
        o = o + 3 & -4
    if (m_base_flags >> 5 & 1):
        if m_debug is None: raise MalformedPacket('debug', o, 'MUST be present: the flags announce it')
        if type(m_debug) is not DebugHeader:
            raise MalformedPacket('debug', o, 'MUST be what the flags announce')
        m_debug_flags, m_debug_reserved, m_debug_queue, = m_debug
        if not ((m_debug_flags >> 0 & 3) <= 1):
            raise MalformedPacket('debug.flags.queue_type', o + 0, 'MUST be 0 or 1')
        try: add(pack_52(m_debug_flags, m_debug_reserved))
        except error: raise misfit(values_53, (m_debug_flags, m_debug_reserved,), o)
        o += 4
        if (m_debug_flags >> 0 & 3):
            if m_debug_queue is None: raise MalformedPacket('debug.queue', o, 'MUST be present: the flags announce it')
            if type(m_debug_queue) is not bytes:
                raise MalformedPacket('debug.queue', o, 'MUST be what the flags announce')
            if len(m_debug_queue) != 16:
                raise MalformedPacket('debug.queue', o + 0, 'MUST have the size that is stated')
            try: add(pack_54(m_debug_queue))
            except error: raise misfit(values_55, (m_debug_queue,), o)
            o += 16
        elif m_debug_queue is not None: raise MalformedPacket('debug.queue', o, 'MUST NOT be present: the flags do not announce it')
    elif m_debug is not None: raise MalformedPacket('debug', o, 'MUST NOT be present: the flags do not announce it')
    if (m_user_flags >> 28 & 1):
        if m_soap is None: raise MalformedPacket('soap', o, 'MUST be present: the flags announce it')
        if type(m_soap) is not SoapHeader:
            raise MalformedPacket('soap', o, 'MUST be what the flags announce')
        m_soap_header_section, m_soap_header_reserved, m_soap_header_length, m_soap_header, m_soap_body_section, m_soap_body_reserved, m_soap_body_length, m_soap_body, = m_soap
        m_soap_header_length = (len(m_soap_header) // 2)
        m_soap_body_length = (len(m_soap_body) // 2)
        if not (m_soap_header_section == 800):
            raise MalformedPacket('soap.header_section', o + 0, 'MUST be 0x0320')
        try: add(pack_57(m_soap_header_section, m_soap_header_reserved, m_soap_header_length))
        except error: raise misfit(values_58, (m_soap_header_section, m_soap_header_reserved, m_soap_header_length,), o)
        o += 8
        if m_soap_header and (len(m_soap_header) != (m_soap_header_length * 2) or (m_soap_header.find(b'\0\0') < len(m_soap_header) - 3 or m_soap_header[-2:] != b'\0\0' or len(m_soap_header) & 1) and not well_ended(m_soap_header)):
            raise MalformedPacket('soap.header', o, 'MUST be UTF-16 that ends with its only null character')
        add(m_soap_header); o += len(m_soap_header)
        if o & 3:
            add(zeros_59[-o & 3])
            o = o + 3 & -4
        if not (m_soap_body_section == 900):
            raise MalformedPacket('soap.body_section', o + 0, 'MUST be 0x0384')
        try: add(pack_60(m_soap_body_section, m_soap_body_reserved, m_soap_body_length))
        except error: raise misfit(values_61, (m_soap_body_section, m_soap_body_reserved, m_soap_body_length,), o)
        o += 8
        if m_soap_body and (len(m_soap_body) != (m_soap_body_length * 2) or (m_soap_body.find(b'\0\0') < len(m_soap_body) - 3 or m_soap_body[-2:] != b'\0\0' or len(m_soap_body) & 1) and not well_ended(m_soap_body)):
            raise MalformedPacket('soap.body', o, 'MUST be UTF-16 that ends with its only null character')
        add(m_soap_body); o += len(m_soap_body)
        if o & 3:
            add(zeros_62[-o & 3])
            o = o + 3 & -4
    elif m_soap is not None: raise MalformedPacket('soap', o, 'MUST NOT be present: the flags do not announce it')
    if (m_user_flags >> 23 & 1):
        if m_multi_queue is None: raise MalformedPacket('multi_queue', o, 'MUST be present: the flags announce it')
        if type(m_multi_queue) is not MultiQueueFormatHeader:
            raise MalformedPacket('multi_queue', o, 'MUST be what the flags announce')
        m_multi_queue_destination, m_multi_queue_admin, m_multi_queue_response, m_multi_queue_signature, = m_multi_queue
        at_m_multi_queue_destination = o
        m_multi_queue_destination_header_size, m_multi_queue_destination_header_id, m_multi_queue_destination_reserved, m_multi_queue_destination_element_count, m_multi_queue_destination_elements, = m_multi_queue_destination
        m_multi_queue_destination_element_count = len(m_multi_queue_destination_elements)
        if not (m_multi_queue_destination_element_count <= 10000):
            raise MalformedPacket('multi_queue.destination.element_count', o + 8, 'MUST NOT be over 10000 (our limit)')
        slot_66 = len(parts); add(b''); at_66 = o; o += 12
        for m_multi_queue_destination_elements_element in m_multi_queue_destination_elements:
            if type(m_multi_queue_destination_elements_element) is not MqfElement:
                raise MalformedPacket('multi_queue.destination.elements', o, 'MUST be what the flags announce')
            m_multi_queue_destination_elements_element_format_type, m_multi_queue_destination_elements_element_name, = m_multi_queue_destination_elements_element
            try: add(pack_67(m_multi_queue_destination_elements_element_format_type))
            except error: raise misfit(values_68, (m_multi_queue_destination_elements_element_format_type,), o)
            o += 2
            k_m_multi_queue_destination_elements_element_name = m_multi_queue_destination_elements_element_format_type
            if k_m_multi_queue_destination_elements_element_name == 3:
                if type(m_multi_queue_destination_elements_element_name) is not bytes:
                    raise MalformedPacket('multi_queue.destination.elements.name', o, 'MUST be what the flags announce')
                if (m_multi_queue_destination_elements_element_name.find(b'\0\0') < len(m_multi_queue_destination_elements_element_name) - 3 or m_multi_queue_destination_elements_element_name[-2:] != b'\0\0' or len(m_multi_queue_destination_elements_element_name) & 1) and not well_ended(m_multi_queue_destination_elements_element_name):
                    raise MalformedPacket('multi_queue.destination.elements.name', o, 'MUST be UTF-16 that ends with its only null character')
                add(m_multi_queue_destination_elements_element_name); o += len(m_multi_queue_destination_elements_element_name)
            elif k_m_multi_queue_destination_elements_element_name == 1:
                if o & 3:
                    add(zeros_69[-o & 3])
                    o = o + 3 & -4
                if type(m_multi_queue_destination_elements_element_name) is not bytes:
                    raise MalformedPacket('multi_queue.destination.elements.name', o, 'MUST be what the flags announce')
                if len(m_multi_queue_destination_elements_element_name) != 16:
                    raise MalformedPacket('multi_queue.destination.elements.name', o + 0, 'MUST have the size that is stated')
                try: add(pack_70(m_multi_queue_destination_elements_element_name))
                except error: raise misfit(values_71, (m_multi_queue_destination_elements_element_name,), o)
                o += 16
            elif k_m_multi_queue_destination_elements_element_name == 2:
                if o & 3:
                    add(zeros_72[-o & 3])
                    o = o + 3 & -4
                if type(m_multi_queue_destination_elements_element_name) is not PrivateQueueName:
                    raise MalformedPacket('multi_queue.destination.elements.name', o, 'MUST be what the flags announce')
                m_multi_queue_destination_elements_element_name_queue_manager, m_multi_queue_destination_elements_element_name_number, = m_multi_queue_destination_elements_element_name
                if len(m_multi_queue_destination_elements_element_name_queue_manager) != 16:
                    raise MalformedPacket('multi_queue.destination.elements.name.queue_manager', o + 0, 'MUST have the size that is stated')
                try: add(pack_73(m_multi_queue_destination_elements_element_name_queue_manager, m_multi_queue_destination_elements_element_name_number))
                except error: raise misfit(values_74, (m_multi_queue_destination_elements_element_name_queue_manager, m_multi_queue_destination_elements_element_name_number,), o)
                o += 20
            elif k_m_multi_queue_destination_elements_element_name == 6:
                if o & 3:
                    add(zeros_75[-o & 3])
                    o = o + 3 & -4
                if type(m_multi_queue_destination_elements_element_name) is not bytes:
                    raise MalformedPacket('multi_queue.destination.elements.name', o, 'MUST be what the flags announce')
                if len(m_multi_queue_destination_elements_element_name) != 16:
                    raise MalformedPacket('multi_queue.destination.elements.name', o + 0, 'MUST have the size that is stated')
                try: add(pack_76(m_multi_queue_destination_elements_element_name))
                except error: raise misfit(values_77, (m_multi_queue_destination_elements_element_name,), o)
                o += 16
            else:
                raise MalformedPacket('multi_queue.destination.elements.format_type', o - 2, 'MUST be 1, 2, 3 or 6')
        m_multi_queue_destination_header_size = o - (at_66)
        if m_multi_queue_destination_header_size > 67108864: raise MalformedPacket('multi_queue.destination.header_size', at_66 + 0, 'MUST be 0x0C bytes to the size of the packet')
        try: parts[slot_66] = pack_64(m_multi_queue_destination_header_size, m_multi_queue_destination_header_id, m_multi_queue_destination_reserved, m_multi_queue_destination_element_count)
        except error: raise misfit(values_65, (m_multi_queue_destination_header_size, m_multi_queue_destination_header_id, m_multi_queue_destination_reserved, m_multi_queue_destination_element_count,), at_66)
        if o & 3:
            add(zeros_78[-o & 3])
            o = o + 3 & -4
        if not (m_multi_queue_destination_header_id == 100):
            raise MalformedPacket('multi_queue.destination.header_id', at_m_multi_queue_destination + 4, 'MUST be 0x0064')
        at_m_multi_queue_admin = o
        m_multi_queue_admin_header_size, m_multi_queue_admin_header_id, m_multi_queue_admin_reserved, m_multi_queue_admin_element_count, m_multi_queue_admin_elements, = m_multi_queue_admin
        m_multi_queue_admin_element_count = len(m_multi_queue_admin_elements)
        if not (m_multi_queue_admin_element_count <= 10000):
            raise MalformedPacket('multi_queue.admin.element_count', o + 8, 'MUST NOT be over 10000 (our limit)')
        slot_81 = len(parts); add(b''); at_81 = o; o += 12
        for m_multi_queue_admin_elements_element in m_multi_queue_admin_elements:
            if type(m_multi_queue_admin_elements_element) is not MqfElement:
                raise MalformedPacket('multi_queue.admin.elements', o, 'MUST be what the flags announce')
            m_multi_queue_admin_elements_element_format_type, m_multi_queue_admin_elements_element_name, = m_multi_queue_admin_elements_element
            try: add(pack_81(m_multi_queue_admin_elements_element_format_type))
            except error: raise misfit(values_82, (m_multi_queue_admin_elements_element_format_type,), o)
            o += 2
            k_m_multi_queue_admin_elements_element_name = m_multi_queue_admin_elements_element_format_type
            if k_m_multi_queue_admin_elements_element_name == 3:
                if type(m_multi_queue_admin_elements_element_name) is not bytes:
                    raise MalformedPacket('multi_queue.admin.elements.name', o, 'MUST be what the flags announce')
                if (m_multi_queue_admin_elements_element_name.find(b'\0\0') < len(m_multi_queue_admin_elements_element_name) - 3 or m_multi_queue_admin_elements_element_name[-2:] != b'\0\0' or len(m_multi_queue_admin_elements_element_name) & 1) and not well_ended(m_multi_queue_admin_elements_element_name):
                    raise MalformedPacket('multi_queue.admin.elements.name', o, 'MUST be UTF-16 that ends with its only null character')
                add(m_multi_queue_admin_elements_element_name); o += len(m_multi_queue_admin_elements_element_name)
            elif k_m_multi_queue_admin_elements_element_name == 1:
                if o & 3:
                    add(zeros_83[-o & 3])
                    o = o + 3 & -4
                if type(m_multi_queue_admin_elements_element_name) is not bytes:
                    raise MalformedPacket('multi_queue.admin.elements.name', o, 'MUST be what the flags announce')
                if len(m_multi_queue_admin_elements_element_name) != 16:
                    raise MalformedPacket('multi_queue.admin.elements.name', o + 0, 'MUST have the size that is stated')
                try: add(pack_84(m_multi_queue_admin_elements_element_name))
                except error: raise misfit(values_85, (m_multi_queue_admin_elements_element_name,), o)
                o += 16
            elif k_m_multi_queue_admin_elements_element_name == 2:
                if o & 3:
                    add(zeros_86[-o & 3])
                    o = o + 3 & -4
                if type(m_multi_queue_admin_elements_element_name) is not PrivateQueueName:
                    raise MalformedPacket('multi_queue.admin.elements.name', o, 'MUST be what the flags announce')
                m_multi_queue_admin_elements_element_name_queue_manager, m_multi_queue_admin_elements_element_name_number, = m_multi_queue_admin_elements_element_name
                if len(m_multi_queue_admin_elements_element_name_queue_manager) != 16:
                    raise MalformedPacket('multi_queue.admin.elements.name.queue_manager', o + 0, 'MUST have the size that is stated')
                try: add(pack_87(m_multi_queue_admin_elements_element_name_queue_manager, m_multi_queue_admin_elements_element_name_number))
                except error: raise misfit(values_88, (m_multi_queue_admin_elements_element_name_queue_manager, m_multi_queue_admin_elements_element_name_number,), o)
                o += 20
            elif k_m_multi_queue_admin_elements_element_name == 6:
                if o & 3:
                    add(zeros_89[-o & 3])
                    o = o + 3 & -4
                if type(m_multi_queue_admin_elements_element_name) is not bytes:
                    raise MalformedPacket('multi_queue.admin.elements.name', o, 'MUST be what the flags announce')
                if len(m_multi_queue_admin_elements_element_name) != 16:
                    raise MalformedPacket('multi_queue.admin.elements.name', o + 0, 'MUST have the size that is stated')
                try: add(pack_90(m_multi_queue_admin_elements_element_name))
                except error: raise misfit(values_91, (m_multi_queue_admin_elements_element_name,), o)
                o += 16
            else:
                raise MalformedPacket('multi_queue.admin.elements.format_type', o - 2, 'MUST be 1, 2, 3 or 6')
        m_multi_queue_admin_header_size = o - (at_81)
        if m_multi_queue_admin_header_size > 67108864: raise MalformedPacket('multi_queue.admin.header_size', at_81 + 0, 'MUST be 0x0C bytes to the size of the packet')
        try: parts[slot_81] = pack_79(m_multi_queue_admin_header_size, m_multi_queue_admin_header_id, m_multi_queue_admin_reserved, m_multi_queue_admin_element_count)
        except error: raise misfit(values_80, (m_multi_queue_admin_header_size, m_multi_queue_admin_header_id, m_multi_queue_admin_reserved, m_multi_queue_admin_element_count,), at_81)
        if o & 3:
            add(zeros_92[-o & 3])
            o = o + 3 & -4
        if not (m_multi_queue_admin_header_id == 200):
            raise MalformedPacket('multi_queue.admin.header_id', at_m_multi_queue_admin + 4, 'MUST be 0x00C8')
        at_m_multi_queue_response = o
        m_multi_queue_response_header_size, m_multi_queue_response_header_id, m_multi_queue_response_reserved, m_multi_queue_response_element_count, m_multi_queue_response_elements, = m_multi_queue_response
        m_multi_queue_response_element_count = len(m_multi_queue_response_elements)
        if not (m_multi_queue_response_element_count <= 10000):
            raise MalformedPacket('multi_queue.response.element_count', o + 8, 'MUST NOT be over 10000 (our limit)')
        slot_95 = len(parts); add(b''); at_95 = o; o += 12
        for m_multi_queue_response_elements_element in m_multi_queue_response_elements:
            if type(m_multi_queue_response_elements_element) is not MqfElement:
                raise MalformedPacket('multi_queue.response.elements', o, 'MUST be what the flags announce')
            m_multi_queue_response_elements_element_format_type, m_multi_queue_response_elements_element_name, = m_multi_queue_response_elements_element
            try: add(pack_95(m_multi_queue_response_elements_element_format_type))
            except error: raise misfit(values_96, (m_multi_queue_response_elements_element_format_type,), o)
            o += 2
            k_m_multi_queue_response_elements_element_name = m_multi_queue_response_elements_element_format_type
            if k_m_multi_queue_response_elements_element_name == 3:
                if type(m_multi_queue_response_elements_element_name) is not bytes:
                    raise MalformedPacket('multi_queue.response.elements.name', o, 'MUST be what the flags announce')
                if (m_multi_queue_response_elements_element_name.find(b'\0\0') < len(m_multi_queue_response_elements_element_name) - 3 or m_multi_queue_response_elements_element_name[-2:] != b'\0\0' or len(m_multi_queue_response_elements_element_name) & 1) and not well_ended(m_multi_queue_response_elements_element_name):
                    raise MalformedPacket('multi_queue.response.elements.name', o, 'MUST be UTF-16 that ends with its only null character')
                add(m_multi_queue_response_elements_element_name); o += len(m_multi_queue_response_elements_element_name)
            elif k_m_multi_queue_response_elements_element_name == 1:
                if o & 3:
                    add(zeros_97[-o & 3])
                    o = o + 3 & -4
                if type(m_multi_queue_response_elements_element_name) is not bytes:
                    raise MalformedPacket('multi_queue.response.elements.name', o, 'MUST be what the flags announce')
                if len(m_multi_queue_response_elements_element_name) != 16:
                    raise MalformedPacket('multi_queue.response.elements.name', o + 0, 'MUST have the size that is stated')
                try: add(pack_98(m_multi_queue_response_elements_element_name))
                except error: raise misfit(values_99, (m_multi_queue_response_elements_element_name,), o)
                o += 16
            elif k_m_multi_queue_response_elements_element_name == 2:
                if o & 3:
                    add(zeros_100[-o & 3])
                    o = o + 3 & -4
                if type(m_multi_queue_response_elements_element_name) is not PrivateQueueName:
                    raise MalformedPacket('multi_queue.response.elements.name', o, 'MUST be what the flags announce')
                m_multi_queue_response_elements_element_name_queue_manager, m_multi_queue_response_elements_element_name_number, = m_multi_queue_response_elements_element_name
                if len(m_multi_queue_response_elements_element_name_queue_manager) != 16:
                    raise MalformedPacket('multi_queue.response.elements.name.queue_manager', o + 0, 'MUST have the size that is stated')
                try: add(pack_101(m_multi_queue_response_elements_element_name_queue_manager, m_multi_queue_response_elements_element_name_number))
                except error: raise misfit(values_102, (m_multi_queue_response_elements_element_name_queue_manager, m_multi_queue_response_elements_element_name_number,), o)
                o += 20
            elif k_m_multi_queue_response_elements_element_name == 6:
                if o & 3:
                    add(zeros_103[-o & 3])
                    o = o + 3 & -4
                if type(m_multi_queue_response_elements_element_name) is not bytes:
                    raise MalformedPacket('multi_queue.response.elements.name', o, 'MUST be what the flags announce')
                if len(m_multi_queue_response_elements_element_name) != 16:
                    raise MalformedPacket('multi_queue.response.elements.name', o + 0, 'MUST have the size that is stated')
                try: add(pack_104(m_multi_queue_response_elements_element_name))
                except error: raise misfit(values_105, (m_multi_queue_response_elements_element_name,), o)
                o += 16
            else:
                raise MalformedPacket('multi_queue.response.elements.format_type', o - 2, 'MUST be 1, 2, 3 or 6')
        m_multi_queue_response_header_size = o - (at_95)
        if m_multi_queue_response_header_size > 67108864: raise MalformedPacket('multi_queue.response.header_size', at_95 + 0, 'MUST be 0x0C bytes to the size of the packet')
        try: parts[slot_95] = pack_93(m_multi_queue_response_header_size, m_multi_queue_response_header_id, m_multi_queue_response_reserved, m_multi_queue_response_element_count)
        except error: raise misfit(values_94, (m_multi_queue_response_header_size, m_multi_queue_response_header_id, m_multi_queue_response_reserved, m_multi_queue_response_element_count,), at_95)
        if o & 3:
            add(zeros_106[-o & 3])
            o = o + 3 & -4
        if not (m_multi_queue_response_header_id == 300):
            raise MalformedPacket('multi_queue.response.header_id', at_m_multi_queue_response + 4, 'MUST be 0x012C')
        m_multi_queue_signature_header_id, m_multi_queue_signature_reserved, m_multi_queue_signature_size, m_multi_queue_signature_signature, = m_multi_queue_signature
        m_multi_queue_signature_size = len(m_multi_queue_signature_signature)
        if not (m_multi_queue_signature_header_id == 350):
            raise MalformedPacket('multi_queue.signature.header_id', o + 0, 'MUST be 0x015E')
        try: add(pack_107(m_multi_queue_signature_header_id, m_multi_queue_signature_reserved, m_multi_queue_signature_size))
        except error: raise misfit(values_108, (m_multi_queue_signature_header_id, m_multi_queue_signature_reserved, m_multi_queue_signature_size,), o)
        o += 8
        add(m_multi_queue_signature_signature); o += len(m_multi_queue_signature_signature)
        if o & 3:
            add(zeros_109[-o & 3])
            o = o + 3 & -4
    elif m_multi_queue is not None: raise MalformedPacket('multi_queue', o, 'MUST NOT be present: the flags do not announce it')
    m_base_packet_size = o - (at_6)
    if m_base_packet_size > 67108864: raise MalformedPacket('base.packet_size', at_6 + 8, 'MUST be 20..0x00400000 bytes')
    try: parts[slot_6] = pack_4(m_base_version, m_base_reserved, m_base_flags, m_base_signature, m_base_packet_size, m_base_time_to_reach_queue, m_user_source_queue_manager, m_user_queue_manager_address, m_user_time_to_be_received, m_user_sent_time, m_user_message_number, m_user_flags)
    except error: raise misfit(values_5, (m_base_version, m_base_reserved, m_base_flags, m_base_signature, m_base_packet_size, m_base_time_to_reach_queue, m_user_source_queue_manager, m_user_queue_manager_address, m_user_time_to_be_received, m_user_sent_time, m_user_message_number, m_user_flags,), at_6)
    if (m_base_flags >> 4 & 1):
        if m_session is None: raise MalformedPacket('session', o, 'MUST be present: the flags announce it')
        if type(m_session) is not SessionHeader:
            raise MalformedPacket('session', o, 'MUST be what the flags announce')
        m_session_ack_number, m_session_recoverable_ack_number, m_session_recoverable_ack_flags, m_session_sent_number, m_session_recoverable_sent_number, m_session_window_size, m_session_reserved, = m_session
        try: add(pack_111(m_session_ack_number, m_session_recoverable_ack_number, m_session_recoverable_ack_flags, m_session_sent_number, m_session_recoverable_sent_number, m_session_window_size, m_session_reserved))
        except error: raise misfit(values_112, (m_session_ack_number, m_session_recoverable_ack_number, m_session_recoverable_ack_flags, m_session_sent_number, m_session_recoverable_sent_number, m_session_window_size, m_session_reserved,), o)
        o += 16
    elif m_session is not None: raise MalformedPacket('session', o, 'MUST NOT be present: the flags do not announce it')
    return b''.join(parts)
