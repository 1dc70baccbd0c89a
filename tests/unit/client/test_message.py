"""Messages of the client: values from the packet, and values stored beside the packet."""

import json
from datetime import UTC, datetime

import pytest

from protocol import DirectQueueName
from protocol.identifiers import sequence_id
from protocol.names.format_name import parse_format_name
from qmd.client import Message, SequencePosition
from qmd.control_protocol import messages as frames
from qmd.message.addresses import NO_ADDRESS, QueueAddress, queue_address, reply_address
from qmd.message.build import compose

SOURCE = bytes(range(16))
SOURCE_TEXT = "03020100-0504-0706-0809-0a0b0c0d0e0f"


def address(text, make=queue_address):
    return make(parse_format_name(text))


def message(
    new, *, delivery=frames.RECOVERABLE, admin=NO_ADDRESS, response=NO_ADDRESS, **arguments
):
    position = (sequence_id(7, 1), 5, 0) if delivery == frames.TRANSACTIONAL else None
    packet = compose(
        new,
        source=SOURCE,
        destination=address(new.destination),
        admin=admin,
        response=response,
        message_number=42,
        sent_time_s=1_700_000_000,
        delivery=delivery,
        position=position,
    )
    stored = {"lookup_id": 9, "arrived_at_ms": 1_700_000_001_250, "packet": packet, **arguments}
    return Message(frames.StoredMessage(**stored))


UNSIGNED = {
    "authenticated": False,
    "principals": [],
    "hash_algorithm": None,
    "signer": None,
    "encryption_algorithm": None,
}


def test_the_json_has_all_properties_under_stable_names():
    new = frames.NewMessage(
        r"DIRECT=TCP:10.0.0.5\private$\orders",
        b"\x00\xff",
        label="Öl, 12 Fässer 🛢",
        priority=3,
        time_to_reach_queue_s=30,
        body_type=8,
        correlation_id=SOURCE + (41).to_bytes(4, "little"),
        application_tag=99,
        extension=b"ext",
        acknowledge=14,
    )

    found = message(
        new,
        delivery=frames.TRANSACTIONAL,
        admin=address(r"DIRECT=OS:hosta\private$\acks"),
        response=address(r"DIRECT=OS:hosta\private$\answers"),
        reason="it came too late",
        abort_count=2,
        move_count=1,
        last_move_at_ms=1_700_000_002_500,
    ).to_json()

    assert json.loads(json.dumps(found)) == {
        "id": f"{SOURCE_TEXT}\\42",
        "lookup_id": 9,
        "label": "Öl, 12 Fässer 🛢",
        "body_base64": "AP8=",
        "body_type": 8,
        "body_type_name": "VT_BSTR",
        "class": "normal",
        "class_number": 0,
        "priority": 0,
        "delivery": "transactional",
        "transactional": True,
        "sent_at": "2023-11-14T22:13:20Z",
        "arrived_at": "2023-11-14T22:13:21.250Z",
        "source": SOURCE_TEXT,
        "destination": r"DIRECT=TCP:10.0.0.5\private$\orders",
        "correlation_id": f"{SOURCE_TEXT}\\41",
        "sequence": {"id": 7 << 32 | 1, "number": 5, "previous": 4},
        "reason": "it came too late",
        "application_tag": 99,
        "extension_base64": "ZXh0",
        "response_queue": r"DIRECT=OS:hosta\private$\answers",
        "admin_queue": r"DIRECT=OS:hosta\private$\acks",
        "acknowledge": ["positive_receive", "negative_arrival", "negative_receive"],
        "time_to_reach_queue": 30,
        "time_to_be_received": None,
        "journal": False,
        "dead_letter": True,
        "abort_count": 2,
        "move_count": 1,
        "last_move_at": "2023-11-14T22:13:22.500Z",
        "hops": 0,
        "sender_id_base64": None,
        "class_id": None,
        "sender_id": None,
        **UNSIGNED,
        "connector_type": None,
        "traced": False,
        "report_queue": None,
        "destinations": [],
        "admin_queues": [r"DIRECT=OS:hosta\private$\acks"],
        **{"properties": {}, "standard_properties": {}, "group": None},
        "response_queues": [r"DIRECT=OS:hosta\private$\answers"],
    }


def test_a_property_that_was_not_given_is_none():
    found = message(frames.NewMessage(r"DIRECT=OS:.\private$\orders", b""))

    assert found.sequence is None
    assert found.correlation_id is None
    assert found.reason is None
    assert found.admin_queue is None
    assert found.response_queue is None
    assert found.label == ""
    assert found.acknowledge == []


@pytest.mark.parametrize(
    ("delivery", "name"),
    [
        (frames.EXPRESS, "express"),
        (frames.RECOVERABLE, "recoverable"),
        (frames.TRANSACTIONAL, "transactional"),
    ],
)
def test_the_delivery_has_one_of_three_names(delivery, name):
    found = message(frames.NewMessage(r"DIRECT=OS:.\private$\orders", b""), delivery=delivery)

    assert found.delivery == name
    assert found.transactional == (name == "transactional")


@pytest.mark.parametrize(
    "name",
    [
        f"PRIVATE={SOURCE_TEXT}\\0000000c",
        f"PUBLIC={SOURCE_TEXT}",
        r"DIRECT=OS:hostb\private$\orders",
    ],
)
def test_queues_are_named_by_their_format_names(name):
    canonical = str(parse_format_name(name))
    reply = address(name, reply_address)

    found = message(frames.NewMessage(name, b""), admin=reply, response=reply)

    assert found.destination == canonical
    assert found.admin_queue == canonical
    assert found.response_queue == canonical


def test_a_response_queue_beside_the_administration_queue_has_its_computer():
    """Type 4: only the number stands in the packet.  [MS-MQMQ] 2.2.19.2"""
    admin = address(f"PRIVATE={SOURCE_TEXT}\\0000000c", reply_address)
    beside = QueueAddress(4, 0x2D, admin.queue_manager, 4)

    found = message(
        frames.NewMessage(r"DIRECT=OS:.\private$\orders", b""), admin=admin, response=beside
    )

    assert found.response_queue == f"PRIVATE={SOURCE_TEXT}\\0000002d"
    assert found.response_queues == [found.response_queue]


def test_a_response_queue_beside_a_queue_of_unknown_computer_has_no_name():
    admin = address(f"PUBLIC={SOURCE_TEXT}", reply_address)
    beside = QueueAddress(4, 0x2D, admin.queue_manager, 4)

    found = message(
        frames.NewMessage(r"DIRECT=OS:.\private$\orders", b""), admin=admin, response=beside
    )

    assert found.response_queue is None


@pytest.mark.parametrize("odd", ["nonsense", "OS:a b\\q", "OS:\ud800\\q", "CARRIER:coop\\q"])
def test_an_invalid_queue_name_is_shown_unchanged(odd):
    raw = f"{odd}\0".encode("utf-16-le", "surrogatepass")
    response = QueueAddress(7, DirectQueueName(len(raw), raw), bytes(16), 0)

    found = message(frames.NewMessage("DIRECT=OS:a\\q", b""), response=response)

    assert found.response_queue == "DIRECT=" + odd.replace("\ud800", "\N{REPLACEMENT CHARACTER}")
    assert json.dumps(found.to_json())


def test_times_have_a_time_zone():
    found = message(frames.NewMessage(r"DIRECT=OS:.\private$\orders", b""))

    assert found.sent_at == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert found.arrived_at == datetime(2023, 11, 14, 22, 13, 21, 250_000, tzinfo=UTC)


def test_a_position_is_the_place_of_a_message_in_its_stream():
    found = message(
        frames.NewMessage(r"DIRECT=OS:.\private$\orders", b""), delivery=frames.TRANSACTIONAL
    )

    assert found.sequence == SequencePosition(id=7 << 32 | 1, number=5, previous=4)


def test_a_short_body_is_read_without_the_rest_and_a_long_one_is_kept_once():
    short = message(frames.NewMessage(r"DIRECT=OS:.\private$\a", b"x" * 100))
    assert short.body == b"x" * 100
    assert short._parsed is None
    assert short.body is short.body
    long = message(frames.NewMessage(r"DIRECT=OS:.\private$\a", b"x" * 100_000))
    assert long.body is long.packet.properties.body


def test_a_body_is_the_same_before_and_after_other_properties():
    new = frames.NewMessage(r"DIRECT=OS:.\private$\a", b"abc", label="label", extension=b"more")
    before, after = message(new), message(new)
    assert (after.label, before.body, after.body) == ("label", b"abc", b"abc")
    assert before.label == "label"
    assert before.extension == after.extension == b"more"
