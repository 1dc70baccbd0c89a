"""Every property of a message, end to end: given to the command line or the client, checked on the
wire in its header by an independent peer, returned by the peer, and shown again.

MQ 2.2.19.1 to 2.2.20.8; QB 3.1.5.8.9 and 3.1.7.1.7 for reports.

"""

from __future__ import annotations

import base64
import re
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec
import pytest

from qmd.client import blocking
from tests.process import wire
from tests.process.harness import Daemon, Hosts
from tests.process.peer import Peer
from tests.process.remote import Listener, RemoteQueueManager

QUICK = {"retry_first": "20ms", "retry_max": "100ms"}
GUID = bytes(range(0x10, 0x20))
GUID_TEXT = "13121110-1514-1716-1819-1a1b1c1d1e1f"
SID_BYTES = bytes((1, 5)) + (5).to_bytes(6, "big") + struct.pack("<5I", 21, 1, 2, 1001, 0)
SID = "S-1-5-21-1-2-1001-0"
ANSWERS = r"DIRECT=TCP:127.0.0.8\private$\answers"
OTHER = r"DIRECT=TCP:127.0.0.9\private$\other"
ON_WIRE = {text: wire.direct(text.removeprefix("DIRECT=")) for text in (ANSWERS, OTHER)}
LONG_LABEL = "Öl 🛢 " + "x" * (249 - 6)  # characters of UTF-16; the barrel has two
_BLOCK = msgspec.msgpack.encode(
    {"a": {"region": "east", "weight": 3}, "s": {"group-id": "g 1"}},
)
WITH_PROPERTIES = b"qmd-properties 1\n" + struct.pack("<I", len(_BLOCK)) + _BLOCK + b"own"


@dataclass(frozen=True)
class Property:
    """One row: the given value, its place in the packet, and its presentation."""

    options: list[str]
    properties: dict[str, Any]
    on_wire: Callable[[wire.Message], object]
    value: object
    shown: dict[str, object]  # of `peek --json`
    packet: dict[str, Any] = field(default_factory=dict)  # as keywords of `wire.message`


def ack(options: str, acknowledge: int, shown: list[str]) -> Property:
    return Property(
        ["--admin-queue", ANSWERS, "--acknowledge", options],
        {"admin_queue": ANSWERS, "acknowledge": acknowledge},
        lambda message: (message.ack_bits, message.admin),
        (acknowledge, ON_WIRE[ANSWERS]),
        {"acknowledge": shown, "admin_queue": ANSWERS, "admin_queues": [ANSWERS]},
        {"ack_bits": acknowledge, "admin": ON_WIRE[ANSWERS]},
    )


def lists(message: wire.Message) -> object:
    assert message.queues is not None
    return message.queues.admins, message.queues.responses


PROPERTIES: dict[str, Property] = {
    "label of 249 characters": Property(
        ["--label", LONG_LABEL],
        {"label": LONG_LABEL},
        lambda message: message.label,
        LONG_LABEL,
        {"label": LONG_LABEL},
        {"label": LONG_LABEL},
    ),
    "body type by name": Property(
        ["--body-type", "VT_LPWSTR"],
        {"body_type": "lpwstr"},
        lambda message: message.body_type,
        31,
        {"body_type": 31, "body_type_name": "VT_LPWSTR"},
        {"body_type": 31},
    ),
    "body type of a vector": Property(
        ["--body-type", "vector|ui1"],
        {"body_type": 0x1011},
        lambda message: message.body_type,
        0x1011,
        {"body_type": 0x1011, "body_type_name": "VT_VECTOR|VT_UI1"},
        {"body_type": 0x1011},
    ),
    "body type without a name": Property(
        ["--body-type", "0x63"],
        {"body_type": 99},
        lambda message: message.body_type,
        99,
        {"body_type": 99, "body_type_name": "0x00000063"},
        {"body_type": 99},
    ),
    "priority": Property(
        ["--priority", "6"],
        {"priority": 6},
        lambda message: message.base.priority,
        6,
        {"priority": 6},
        {"priority": 6},
    ),
    "delivery express": Property(
        ["--express"],
        {"delivery": "express"},
        lambda message: (message.recoverable, message.transaction),
        (False, None),
        {"delivery": "express", "transactional": False},
        {"recoverable": False},
    ),
    "delivery recoverable": Property(
        ["--recoverable"],
        {"delivery": "recoverable"},
        lambda message: (message.recoverable, message.transaction),
        (True, None),
        {"delivery": "recoverable", "transactional": False},
        {"recoverable": True},
    ),
    "correlation id": Property(
        ["--correlation-id", f"{GUID_TEXT}\\7"],
        {"correlation_id": GUID + struct.pack("<I", 7)},
        lambda message: message.correlation,
        GUID + struct.pack("<I", 7),
        {"correlation_id": f"{GUID_TEXT}\\7"},
        {"correlation": GUID + struct.pack("<I", 7)},
    ),
    "application tag": Property(
        ["--application-tag", "0xfffffffe"],
        {"application_tag": 0xFFFFFFFE},
        lambda message: message.application_tag,
        0xFFFFFFFE,
        {"application_tag": 0xFFFFFFFE},
        {"application_tag": 0xFFFFFFFE},
    ),
    "extension": Property(
        ["--extension-base64", base64.b64encode(b"\0ext\xff").decode()],
        {"extension": b"\0ext\xff"},
        lambda message: message.extension,
        b"\0ext\xff",
        {"extension_base64": base64.b64encode(b"\0ext\xff").decode()},
        {"extension": b"\0ext\xff"},
    ),
    "properties, group and extension": Property(
        [
            *("--property", "region=east", "--property", "weight:=3", "--group", "g 1"),
            *("--extension-base64", base64.b64encode(b"own").decode()),
        ],
        {"properties": {"region": "east", "weight": 3}, "group": "g 1", "extension": b"own"},
        lambda message: message.extension,
        WITH_PROPERTIES,
        {
            "properties": {"region": "east", "weight": 3},
            "standard_properties": {"group-id": "g 1"},
            "group": "g 1",
            "extension_base64": base64.b64encode(b"own").decode(),
        },
        {"extension": WITH_PROPERTIES},
    ),
    "response queue": Property(
        ["--response-queue", ANSWERS],
        {"response_queue": ANSWERS},
        lambda message: message.response,
        ON_WIRE[ANSWERS],
        {"response_queue": ANSWERS, "response_queues": [ANSWERS]},
        {"response": ON_WIRE[ANSWERS]},
    ),
    "several administration and response queues": Property(
        [
            *("--admin-queue", f"{ANSWERS},{OTHER}", "--acknowledge", "positive-arrival"),
            *("--response-queue", f"{OTHER},{ANSWERS}"),
        ],
        {
            "admin_queue": f"{ANSWERS},{OTHER}",
            "acknowledge": 1,
            "response_queue": f"{OTHER},{ANSWERS}",
        },
        lambda message: (message.admin, message.response, lists(message)),
        (
            ON_WIRE[ANSWERS],
            ON_WIRE[OTHER],
            ((ON_WIRE[ANSWERS], ON_WIRE[OTHER]), (ON_WIRE[OTHER], ON_WIRE[ANSWERS])),
        ),
        {
            "admin_queue": ANSWERS,
            "admin_queues": [ANSWERS, OTHER],
            "response_queue": OTHER,
            "response_queues": [OTHER, ANSWERS],
            "destinations": [r"DIRECT=TCP:127.0.0.1\private$\back"],
        },
        {
            "admin": ON_WIRE[ANSWERS],
            "response": ON_WIRE[OTHER],
            "ack_bits": 1,
            "multi_queue": wire.multi_queue_header(
                ["TCP:127.0.0.1\\private$\\back"],
                [ON_WIRE[ANSWERS].text, ON_WIRE[OTHER].text],
                [ON_WIRE[OTHER].text, ON_WIRE[ANSWERS].text],
            ),
        },
    ),
    "acknowledge positive arrival": ack("positive-arrival", 1, ["positive_arrival"]),
    "acknowledge positive receive": ack("positive-receive", 2, ["positive_receive"]),
    "acknowledge negative arrival": ack("negative-arrival", 4, ["negative_arrival"]),
    "acknowledge negative receive": ack("negative-receive", 8, ["negative_receive"]),
    "acknowledge full reach queue": ack(
        "full-reach-queue", 5, ["positive_arrival", "negative_arrival"]
    ),
    "acknowledge nack reach queue": ack("nack-reach-queue", 4, ["negative_arrival"]),
    "acknowledge nack receive": ack("nack-receive", 12, ["negative_arrival", "negative_receive"]),
    "acknowledge full receive": ack(
        "full-receive", 14, ["positive_receive", "negative_arrival", "negative_receive"]
    ),
    "acknowledge everything": ack(
        "positive-arrival,full-receive",
        15,
        ["positive_arrival", "positive_receive", "negative_arrival", "negative_receive"],
    ),
    "positive journaling": Property(
        ["--journal"],
        {"journal": True},
        lambda message: bool(message.flags & wire.JP),
        True,
        {"journal": True},
        {"journal": True},
    ),
    "negative journaling": Property(
        ["--dead-letter"],
        {"dead_letter": True},
        lambda message: bool(message.flags & wire.JN),
        True,
        {"dead_letter": True},
        {"dead_letter": True},
    ),
    "no negative journaling": Property(
        ["--no-dead-letter"],
        {"dead_letter": False},
        lambda message: bool(message.flags & wire.JN),
        False,
        {"dead_letter": False},
        {},
    ),
    "time to reach queue": Property(
        ["--time-to-reach-queue", "90m"],
        {"time_to_reach_queue_s": 5400},
        lambda message: message.base.time_to_reach_queue,
        5400,
        {"time_to_reach_queue": 5400},
        {"time_to_reach_queue": 5400},
    ),
    "time to be received": Property(
        ["--time-to-be-received", "5m"],
        {"time_to_be_received_s": 300},
        lambda message: message.time_to_be_received,
        300,
        {"time_to_be_received": 300},
        {"time_to_be_received": 300},
    ),
    "sender id": Property(
        ["--sender-id", SID],
        {"sender_id": SID},
        lambda message: message.sender_id,
        SID_BYTES,
        {"sender_id": SID, "sender_id_base64": base64.b64encode(SID_BYTES).decode()},
        {"security": wire.security_header(SID_BYTES)},
    ),
    "connector type and class": Property(
        ["--connector-type", GUID_TEXT, "--class", "0x2011"],
        {"connector_type": GUID, "message_class": 0x2011},
        lambda message: (message.connector, message.message_class),
        (GUID, 0x2011),
        {"connector_type": GUID_TEXT, "class": "0x2011", "class_number": 0x2011},
        {"connector": GUID, "message_class": 0x2011},
    ),
    "tracing": Property(
        ["--report-queue", f"PUBLIC={GUID_TEXT}"],
        {"report_queue": f"PUBLIC={GUID_TEXT}"},
        lambda message: (bool(message.base.flags & wire.TR), message.report_queue),
        (True, GUID),
        {"traced": True, "report_queue": f"PUBLIC={GUID_TEXT}"},
        {"debug": wire.debug_header(GUID), "extra_base_flags": wire.TR},
    ),
    "hops": Property(
        [],
        {},
        lambda message: message.flags & 0x1F,
        0,
        {"hops": 3},
        {"hops": 3},
    ),
}


@pytest.fixture(scope="module")
def shared(shared_hosts: Hosts) -> Daemon:
    daemon = shared_hosts.daemon(delivery=QUICK)
    daemon.create("back", "reports")
    return daemon


@pytest.fixture
def listener(remote: RemoteQueueManager) -> Listener:
    return remote.listen()


@pytest.fixture
def client(shared: Daemon) -> Iterator[Any]:
    with blocking.connect(shared.folder / "qmd.sock") as client:
        yield client


@pytest.mark.parametrize("row", PROPERTIES.values(), ids=PROPERTIES.keys())
def test_a_property_is_sent_in_its_header_and_returned(
    daemon: Daemon, client: Any, listener: Listener, remote: RemoteQueueManager, row: Property
):
    destination = listener.destination("q")
    daemon.send(destination, b"by command", *row.options)
    client.send(destination, b"by client", **row.properties)
    peer = listener.accept()
    for content, message in zip((b"by command", b"by client"), peer.receive_many(2), strict=True):
        assert message.body == content
        assert row.on_wire(message) == row.value

    back = remote.message("back", b"back", **row.packet)
    peer.send_now(back)
    peer.wait_acknowledged()
    (shown,) = daemon.wait_for("back", 1)

    assert {key: shown[key] for key in row.shown} == row.shown
    got = client.receive("back", timeout_s=5)
    assert got.body == b"back"
    assert {key: got.to_json()[key] for key in row.shown} == row.shown


def test_a_transactional_message_has_priority_0_and_its_position(
    daemon: Daemon, listener: Listener
):
    daemon.send(listener.destination("q"), b"x", "--transactional", "--priority", "7")

    message = listener.accept().receive()

    assert message.base.priority == 0
    assert message.transaction is not None
    assert (message.transaction.number, message.transaction.previous) == (1, 0)


def test_times_and_counts_are_those_of_the_queue_that_it_is_in(
    daemon: Daemon, remote: RemoteQueueManager
):
    peer = remote.connect(daemon.port)
    sent = wire.now_s() - 100
    peer.send_many([remote.message("back", b"1", sent_time=sent), remote.message("back", b"2")])
    first, second = daemon.wait_for("back", 2)

    assert datetime.fromisoformat(first["sent_at"]).timestamp() == sent
    arrived = datetime.fromisoformat(first["arrived_at"]).timestamp()
    assert abs(arrived - time.time()) < 60
    assert first["lookup_id"] < second["lookup_id"]
    assert (first["abort_count"], first["move_count"], first["last_move_at"]) == (0, 0, None)
    daemon.receive("back")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--class", "0x2011"], "connector"),
        (["--class", "0xff", "--connector-type", GUID_TEXT], "queue managers"),
        (["--class", "0x0200", "--connector-type", GUID_TEXT], "bits outside"),
        (["--label", "x" * 250], "249 are allowed"),
        (["--report-queue", OTHER], "cannot get reports"),
        (["--admin-queue", ANSWERS], "require each other"),
        (["--body-type", "VT_NONSENSE"], "no type of a body"),
        (["--sender-id", "me"], "security identifier"),
    ],
)
def test_a_property_that_no_packet_can_carry_is_refused_with_a_reason(
    daemon: Daemon, options: list[str], words: str
):
    refused = daemon.cli("send", "back", "x", *options, check=False)

    assert refused.returncode != 0
    assert words in refused.stderr.decode()
    assert daemon.count("back") == 0


# --- reports ------------------------------------------------------------------------------


LABEL = re.compile(
    r"[0-9a-f]{4}:[0-9A-F]{8}:00 received by [0-9a-f-]{36} at [0-9]{2}:[0-9]{2}:[0-9]{2} [AP]M"
    r" (Mon|Tue|Wed|Thu|Fri|Sat|Sun),[A-Z][a-z]{2} [0-9]{2} [0-9]{2}"
)


def test_a_traced_message_is_reported_when_it_leaves_and_when_it_arrives(hosts: Hosts):
    sender, receiver = hosts.daemon(delivery=QUICK), hosts.daemon(delivery=QUICK)
    sender.create("reports")
    receiver.create("orders")
    destination = f"DIRECT=TCP:127.0.0.1:{receiver.port}\\private$\\orders"

    sent = sender.send(destination, b"x", "--recoverable", "--report-queue", "reports")

    reports = sender.wait_for("reports", 2)
    number = int(sent.split("\\")[1])
    for report in reports:
        assert report["class"] == "report"
        assert report["delivery"] == "express"
        assert report["correlation_id"] == sent
        assert LABEL.fullmatch(report["label"]), report["label"]
        assert report["label"].startswith(f"{sent[:4]}:{number:08X}:00 ")
    texts = sorted(
        (base64.b64decode(report["body_base64"]).decode("utf-16-le") for report in reports),
        key=len,
    )
    head = (
        f"<MESSAGE ID>{number:08X}</MESSAGE ID>\r\n"
        "<TARGET QUEUE>DIRECT=TCP:127.0.0.1\\private$\\orders</TARGET QUEUE>\r\n"
    )
    assert texts == [
        head,
        f"{head}<NEXT HOP>127.0.0.1</NEXT HOP>\r\n<HOP COUNT>00 </HOP COUNT>\r\n",
    ]


def test_a_report_about_a_peers_message_goes_over_its_session_to_the_public_queue(
    daemon: Daemon, remote: RemoteQueueManager
):
    peer: Peer = remote.connect(daemon.port)
    packet = remote.message("back", b"x", debug=wire.debug_header(GUID), extra_base_flags=wire.TR)

    peer.send(packet)

    report = peer.receive()
    assert report.message_class == 1
    assert report.destination == wire.Name(5, guid=GUID)
    assert report.address == remote.guid
    assert not report.recoverable
    assert report.base.flags & (wire.TR | wire.DH) == 0
    daemon.receive("back")


def test_without_the_tracing_bit_nothing_is_reported(daemon: Daemon, remote: RemoteQueueManager):
    peer: Peer = remote.connect(daemon.port)

    peer.send(remote.message("back", b"x", debug=wire.debug_header(GUID)))
    peer.send(remote.message("back", b"y", debug=wire.debug_header(), extra_base_flags=wire.TR))

    marker = remote.message(
        "back", b"z", debug=wire.debug_header(GUID), extra_base_flags=wire.TR, message_id=4711
    )
    peer.send(marker)

    report = peer.receive()
    assert report.correlation == remote.guid + struct.pack("<I", 4711)
    assert peer.inbox == []
    daemon.receive("back")
