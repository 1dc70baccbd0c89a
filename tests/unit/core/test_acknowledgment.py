"""Acknowledgments for senders: the destination, and every field of the packet."""

import pytest

from protocol import (
    INFINITE,
    PACKET_BYTES_MAX,
    SIGNATURE,
    VERSION,
    BaseFlags,
    BaseHeader,
    DirectQueueName,
    FinalAckBody,
    MessageClass,
    MessageKind,
    MessagePropertiesHeader,
    MqfAddressHeader,
    MqfElement,
    MqfSignatureHeader,
    MultiQueueFormatHeader,
    OrderAckBody,
    PrivateQueueName,
    PropertyFlags,
    SecurityFlags,
    SecurityHeader,
    TransactionFlags,
    TransactionHeader,
    UserFlags,
    UserHeader,
    UserMessage,
    build_user_message,
    classify,
    final_ack_body,
    order_ack_body,
    parse_user_message,
    plain_text,
    wide_text,
)
from protocol.names.multi_queue import MQF_DIRECT, MQF_DISTRIBUTION_LIST, MQF_PRIVATE, MQF_PUBLIC
from qmd.core.acknowledgment import (
    ADMINISTRATION_QUEUES_MAX,
    FinalAcks,
    administration_queues,
    build_acknowledgment,
    final_ack_packet,
    order_ack_packet,
    order_queue_of,
)
from qmd.core.sequence import Position

OWN, SENDER, THIRD, PUBLIC = b"o" * 16, b"s" * 16, b"t" * 16, b"p" * 16
NULL = bytes(16)


def direct(text):
    name = wide_text(text)
    return DirectQueueName(len(name), name)


ORDERS = direct("OS:hostb\\private$\\orders")
ADMIN = direct("OS:hosta\\private$\\admin")
ANSWERS = direct("OS:hosta\\private$\\answers")


def original(
    *,
    destination=(7, ORDERS),
    admin=(7, ADMIN),
    address=NULL,
    delivery=1,
    transactional=False,
    encrypted=False,
    response=(7, ANSWERS),
    extension=b"extension",
    body=b"the body",
):
    user = UserHeader(
        SENDER,
        address,
        60,
        1_700_000_000,
        0x01020304,
        UserFlags.of(
            delivery=delivery,
            negative_journal=1,
            positive_journal=1,
            destination_type=destination[0],
            admin_type=admin[0],
            response_type=response[0],
            security_header=encrypted,
            transaction_header=transactional,
            properties_header=1,
        ),
        destination[1],
        admin[1],
        response[1],
        None,
    )
    transaction = security = None
    if transactional:
        transaction = TransactionHeader(
            TransactionFlags.of(final_ack=1), 0x65 << 32 | 1, 9, 7, None
        )
    if encrypted:
        flags = SecurityFlags.of(body_encrypted=1)
        security = SecurityHeader(flags, 0, 4, 0, 0, 0, b"", b"key!", b"", b"", b"")
    properties = MessagePropertiesHeader(
        PropertyFlags(0xF),
        0,
        MessageClass.NORMAL,
        b"c" * 20,
        31,
        77,
        0,
        len(body),
        0,
        0x8004,
        0x6801,
        0,
        wide_text("Bestellung"),
        extension,
        body,
    )
    base = BaseHeader(VERSION, 0, BaseFlags(0 if transactional else 6), SIGNATURE, 0, 30)
    return parse_user_message(
        build_user_message(
            UserMessage(base, user, transaction, security, properties, None, None, None, None)
        )
    )


def with_list(message, elements):
    """Return the message with a list of administration queues."""
    lists = [
        MqfAddressHeader(0, header_id, 0, 0, listed)
        for header_id, listed in ((0x64, ()), (0xC8, elements), (0x12C, ()))
    ]
    header = MultiQueueFormatHeader(*lists, MqfSignatureHeader(0x15E, 0, 0, b""))
    flags = message.user.flags.replace(multi_queue_header=1)
    changed = message._replace(user=message.user._replace(flags=flags), multi_queue=header)
    return parse_user_message(build_user_message(changed))


def acknowledge(message, message_class=MessageClass.NACK_ACCESS_DENIED):
    (destination,) = administration_queues(message, OWN)
    packet = build_acknowledgment(
        message,
        message_class,
        destination=destination,
        own_id=OWN,
        message_number=42,
        sent_time=1_700_000_100,
    )
    return destination, parse_user_message(packet)


class TestAdministrationAcknowledgments:
    def test_without_an_administration_queue_no_acknowledgment_is_made(self):
        silent = original(admin=(0, None))

        assert administration_queues(silent, OWN) == []

    def test_an_acknowledgment_goes_to_each_queue_of_a_list_once(self):
        elements = (
            MqfElement(MQF_DIRECT, ADMIN.name),
            MqfElement(MQF_PRIVATE, PrivateQueueName(THIRD, 7)),
            MqfElement(MQF_DISTRIBUTION_LIST, PUBLIC),
            MqfElement(MQF_PUBLIC, PUBLIC),
            MqfElement(MQF_PRIVATE, PrivateQueueName(THIRD, 7)),
        )

        found = administration_queues(with_list(original(), elements), OWN)

        assert found == [ADMIN, PrivateQueueName(THIRD, 7), PUBLIC]

    def test_a_list_without_a_single_administration_queue_is_enough(self):
        elements = (MqfElement(MQF_DIRECT, ANSWERS.name),)
        message = with_list(original(admin=(0, None)), elements)

        assert administration_queues(message, OWN) == [ANSWERS]

    def test_the_number_of_acknowledgments_for_a_list_is_limited(self):
        elements = tuple(
            MqfElement(MQF_PRIVATE, PrivateQueueName(THIRD, number)) for number in range(1000)
        )

        found = administration_queues(with_list(original(), elements), OWN)

        assert len(found) == ADMINISTRATION_QUEUES_MAX

    @pytest.mark.parametrize(
        ("admin", "destination", "kind", "address", "queue"),
        [
            ((2, 5), PrivateQueueName(SENDER, 5), 3, SENDER, 5),
            ((3, 6), PrivateQueueName(THIRD, 6), 3, THIRD, 6),
            ((5, PUBLIC), PUBLIC, 5, NULL, PUBLIC),
            ((6, PrivateQueueName(PUBLIC, 7)), PrivateQueueName(PUBLIC, 7), 3, PUBLIC, 7),
            ((7, ADMIN), ADMIN, 7, NULL, ADMIN),
        ],
    )
    def test_the_administration_queue_is_reached_by_each_of_its_spellings(
        self, admin, destination, kind, address, queue
    ):
        where, packet = acknowledge(original(admin=admin, address=THIRD))

        assert where == destination
        assert packet.user.flags.destination_type == kind
        assert packet.user.queue_manager_address == address
        assert packet.user.destination_queue == queue

    def test_an_administration_queue_at_the_destination_is_local_without_a_host(self):
        where, _ = acknowledge(original(admin=(3, 6)))

        assert where == PrivateQueueName(OWN, 6)

    @pytest.mark.parametrize(
        ("destination", "address", "kind", "queue"),
        [
            ((7, ORDERS), NULL, 7, ORDERS),
            ((5, PUBLIC), OWN, 5, PUBLIC),
            ((3, 8), THIRD, 6, PrivateQueueName(THIRD, 8)),
            ((3, 8), NULL, 2, 8),
            ((3, 8), OWN, 2, 8),
            ((0, None), NULL, 0, None),
        ],
    )
    def test_the_response_queue_is_the_destination_of_the_message(
        self, destination, address, kind, queue
    ):
        _, packet = acknowledge(original(destination=destination, address=address))

        assert (packet.user.flags.response_type, packet.user.response_queue) == (kind, queue)

    def test_a_response_queue_beside_the_administration_queue_has_no_guid(self):
        admin = 6, PrivateQueueName(THIRD, 9)
        _, packet = acknowledge(original(destination=(3, 8), address=THIRD, admin=admin))

        assert packet.user.queue_manager_address == THIRD
        assert (packet.user.flags.response_type, packet.user.response_queue) == (3, 8)

    def test_the_correlation_id_is_the_id_of_the_message(self):
        _, packet = acknowledge(original())

        assert packet.properties.correlation_id == SENDER + bytes([4, 3, 2, 1])
        assert packet.properties.message_class == MessageClass.NACK_ACCESS_DENIED
        assert packet.properties.label == wide_text("Bestellung")
        assert packet.properties.body_type == 31

    def test_an_acknowledgment_is_a_new_message_that_never_expires(self):
        _, packet = acknowledge(original())

        assert packet.user.source_queue_manager == OWN
        assert packet.user.message_number == 42
        assert packet.user.sent_time == 1_700_000_100
        assert packet.user.time_to_be_received == packet.base.time_to_reach_queue == INFINITE

    def test_an_acknowledgment_requests_no_acknowledgments(self):
        _, packet = acknowledge(original(transactional=True, encrypted=True))

        assert packet.properties.flags == 0
        assert packet.user.flags.admin_type == 0
        assert not packet.user.flags.negative_journal
        assert not packet.user.flags.positive_journal
        assert packet.transaction is packet.security is None
        assert packet.properties.privacy_level == 0
        assert packet.base.flags == 3, "the priority by default, and nothing else"

    @pytest.mark.parametrize(
        ("delivery", "transactional", "expected"), [(0, False, 0), (1, False, 1), (1, True, 1)]
    )
    def test_an_acknowledgment_is_recoverable_if_the_original_was(
        self, delivery, transactional, expected
    ):
        _, packet = acknowledge(original(delivery=delivery, transactional=transactional))

        assert packet.user.flags.delivery == expected

    def test_a_negative_acknowledgment_returns_the_body(self):
        _, packet = acknowledge(original())

        assert packet.properties.body == b"the body"
        assert packet.properties.extension == b""

    @pytest.mark.parametrize(
        "message_class", [MessageClass.ACK_REACH_QUEUE, MessageClass.ACK_RECEIVE]
    )
    def test_a_positive_acknowledgment_has_no_body(self, message_class):
        _, packet = acknowledge(original(), message_class)

        assert packet.properties.body == b""

    def test_an_encrypted_body_is_not_returned(self):
        _, packet = acknowledge(original(encrypted=True))

        assert packet.properties.body == b""

    def test_a_body_that_would_make_the_packet_too_large_is_omitted(self):
        """The queue names of the original take 8 bytes, those of its acknowledgment 24."""
        plain = {
            "destination": (3, 8),
            "admin": (2, 5),
            "response": (0, None),
            "address": THIRD,
            "extension": b"",
        }
        room = PACKET_BYTES_MAX - original(body=b"", **plain).base.packet_size

        _, whole = acknowledge(original(body=bytes(room - 16), **plain))
        _, cut = acknowledge(original(body=bytes(room), **plain))

        assert whole.base.packet_size == PACKET_BYTES_MAX
        assert len(whole.properties.body) == room - 16
        assert cut.properties.body == b""
        assert cut.user.response_queue == PrivateQueueName(THIRD, 8)


class TestAcknowledgmentsForTheSender:
    def test_a_source_with_a_known_address_is_answered_there(self):
        queue = order_queue_of(SENDER, "10.0.0.5", by_direct_name=True)

        assert plain_text(queue.name) == "TCP:10.0.0.5\\PRIVATE$\\order_queue$"

    def test_a_source_with_a_known_guid_has_the_order_queue_number_4(self):
        queue = order_queue_of(SENDER, "10.0.0.5", by_direct_name=False)

        assert queue == PrivateQueueName(SENDER, 4)

    @pytest.mark.parametrize("by_direct_name", [True, False])
    def test_an_order_ack_names_the_last_message_on_disk(self, by_direct_name):
        packet = parse_user_message(
            order_ack_packet(
                Position(0x65 << 32 | 3, 9),
                destination=order_queue_of(SENDER, "::1", by_direct_name=by_direct_name),
                own_id=OWN,
                message_number=42,
                sent_time=1_700_000_100,
            )
        )

        assert classify(packet, own_id=SENDER) is MessageKind.ORDER_ACK
        assert order_ack_body(packet) == OrderAckBody(0x65 << 32 | 3, 9, 8)
        assert (packet.user.source_queue_manager, packet.user.message_number) == (OWN, 42)
        assert packet.user.sent_time == 1_700_000_100

    def test_number_0_cannot_be_acknowledged(self):
        with pytest.raises(AssertionError):
            order_ack_packet(
                Position(1, 0),
                destination=order_queue_of(SENDER, "::1", by_direct_name=True),
                own_id=OWN,
                message_number=42,
                sent_time=0,
            )

    @pytest.mark.parametrize("by_direct_name", [True, False])
    def test_patched_acknowledgments_equal_built_ones_to_the_byte(self, by_direct_name):
        destination = order_queue_of(SENDER, "10.0.0.5", by_direct_name=by_direct_name)
        patched = FinalAcks(destination, OWN)

        for number, message_class in enumerate((0x4000, 0xC002, 0x4000, 0xC004), 42):
            message = original(transactional=True, body=b"x" * number)
            facts = {"message_number": number, "sent_time": 1_700_000_000 + number}
            built = final_ack_packet(
                message, message_class, destination=destination, own_id=OWN, **facts
            )
            assert patched.packet(build_user_message(message), message_class, **facts) == built

    def test_a_final_ack_names_the_message_and_its_place(self):
        packet = parse_user_message(
            final_ack_packet(
                original(transactional=True),
                MessageClass.NACK_NOT_TRANSACTIONAL_QUEUE,
                destination=order_queue_of(SENDER, "10.0.0.5", by_direct_name=False),
                own_id=OWN,
                message_number=42,
                sent_time=1_700_000_100,
            )
        )

        assert classify(packet, own_id=SENDER) is MessageKind.FINAL_ACK
        assert packet.properties.message_class == MessageClass.NACK_NOT_TRANSACTIONAL_QUEUE
        assert final_ack_body(packet) == FinalAckBody(0x65 << 32 | 1, 9, 7, SENDER, 0x01020304)
        assert packet.user.flags.delivery == 1
