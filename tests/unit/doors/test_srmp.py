"""Envelopes and attachments of SRMP, and their packets."""

from __future__ import annotations

import re
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import parse_user_message
from protocol.names.format_name import parse_format_name
from qmd.doors.srmp.envelope import (
    NO_LIMIT,
    Envelope,
    MessageId,
    NotSrmp,
    Stream,
    StreamReceipt,
    read_envelope,
    write_envelope,
)
from qmd.doors.srmp.messages import (
    Posted,
    envelope_of,
    name_of,
    packet_of,
    read_request,
    url_of,
    write_request,
)
from qmd.doors.srmp.mime import NotMime, Part, parameters, read_parts, write_parts
from qmd.doors.srmp.redirection import Redirection, redirected
from tests.unit.searches import never_going_back

GUID = uuid.UUID("32221eda-9376-46df-b6ed-783091123831")
ID = MessageId(GUID, 26626)
SENT = datetime(2026, 6, 18, 21, 6, 54, tzinfo=UTC)
URL = "http://hostb/msmq/private$/orders"
TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=40)


def envelope(**changes: Any) -> Envelope:
    return Envelope(**{"to": URL, "id": ID, "sent_at": SENT, **changes})


@given(
    label=TEXTS,
    number=st.integers(0, 2**32 - 1),
    tag=st.integers(0, 2**32 - 1),
    flags=st.tuples(*[st.booleans()] * 8),
    correlation=st.binary(min_size=20, max_size=20),
    stream=st.none() | st.tuples(st.integers(0, 2**64 - 1), st.integers(1, 2**32 - 1)),
)
def test_an_envelope_is_read_as_it_was_written(
    label: str,
    number: int,
    tag: int,
    flags: tuple[bool, ...],
    correlation: bytes,
    stream: tuple[int, int] | None,
) -> None:
    durable, journal, dead_letter, trace, positive, negative, is_first, is_last = flags
    it = envelope(
        label=label,
        id=MessageId(GUID, number),
        application_tag=tag,
        durable=durable or stream is not None,
        journal=journal,
        dead_letter=dead_letter,
        trace=trace,
        is_first=is_first,
        is_last=is_last,
        commitment_receipt_to=URL if positive or negative else "",
        positive=positive,
        negative=negative,
        correlation=correlation if any(correlation) else b"",
        stream=None if stream is None else Stream(GUID, *stream, stream[1] - 1, URL),
        reach_by=SENT,
    )

    assert read_envelope(write_envelope(it)) == it


def test_lists_of_queues_are_read_and_written() -> None:
    """A packet has them in its last header, except names that it cannot state."""
    read = read_envelope(write_envelope(FULL))
    assert (read.destinations, read.admins, read.responses) == (
        FULL.destinations, FULL.admins, FULL.responses,
    )  # fmt: skip

    again = envelope_of(packet_of(Posted(FULL), name_of(URL), GUID.bytes_le, 1), URL).envelope
    assert [each.casefold() for each in again.destinations] == [
        each.casefold() for each in FULL.destinations[:1]
    ]
    assert [each.casefold() for each in again.admins] == list(FULL.admins)
    assert again.responses == (again.response_to,) == FULL.responses

    plain = envelope_of(packet_of(Posted(WITHOUT), name_of(URL), GUID.bytes_le, 1), URL).envelope
    assert (plain.destinations, plain.admins, plain.responses) == ((), (), ())
    text = write_envelope(FULL).decode().replace("</AdminMqf>", "x" * 140_000 + "</AdminMqf>")
    with pytest.raises(NotSrmp, match="characters"):
        read_envelope(text.encode())


@pytest.mark.parametrize(
    "changes",
    [
        {"admins": ("http://hosta/msmq/private$/a", "ftp://hosta/a")},
        {"admins": ("MSMQ:DIRECT=OS:a\\private$\\q,DIRECT=OS:b\\private$\\q",)},
        {"responses": tuple(f"http://host{n}/msmq/private$/q" for n in range(1000))},
        {"admins": ("MSMQ:DL=32221eda-9376-46df-b6ed-783091123831",)},
    ],
)
def test_a_list_with_names_that_fit_no_packet_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(NotSrmp):
        packet_of(Posted(replace(FULL, **changes)), name_of(URL), GUID.bytes_le, 1)


def test_receipts_are_read_as_they_were_written() -> None:
    stream = StreamReceipt(GUID, 4839986701558349830, 2)
    for it in (
        envelope(stream_receipt=stream, message_class=255, reach_by=NO_LIMIT),
        envelope(delivered_at=SENT, about=ID, message_class=2, reach_by=NO_LIMIT),
        envelope(
            stream_receipt=stream, decided_at=SENT, decision="negative", about=ID,
            message_class=0xC001, reach_by=NO_LIMIT,
        ),
    ):  # fmt: skip
        assert read_envelope(write_envelope(it)) == it


WHOLE = write_envelope(
    envelope(stream=Stream(GUID, 7, 1, 0, URL), durable=True, commitment_receipt_to=URL)
).decode()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("<se:Envelope", '<!DOCTYPE a [<!ENTITY b "c">]><se:Envelope'),
        ("<se:Body></se:Body>", ""),
        ("</se:Header>", '<other xmlns="urn:x" se:mustUnderstand="1"/></se:Header>'),
        ("</se:Header>", '<path xmlns="http://schemas.xmlsoap.org/rp/"/></se:Header>'),
        ("http://schemas.xmlsoap.org/rp/", "http://schemas.xmlsoap.org/rp"),
        ("uuid:26626@", "uuid:4294967296@"),
        ("uuid:26626@", "uuid:-1@"),
        ("<Priority>3", "<Priority>8"),
        ("<Priority>3", "<Priority>٣"),
        ("<current>1", "<current>0"),
        ("<current>1", "<current>4294967296"),
        ("<previous>0", "<previous>1"),
        (f"uid:{GUID}\\7", f"uid:{GUID}\\18446744073709551616"),
        (f"uid:{GUID}\\7", f"{GUID}/7"),
        ("20380119T031407", "20381319T031407"),
        ("<sendTo>", "<sendto>"),
        ("<sendReceiptsTo>", "<x>"),
        ("AAAAAAAAAAAAAAAAAAAAAAAAAAA=", "AAAA"),
        ("AAAAAAAAAAAAAAAAAAAAAAAAAAA=", "?"),
        (URL, "x" * 5000),
        ("<se:Header>", "<se:Header>" + "<a>" * 300),
        ("</se:Header>", '<a xmlns="{}"/></se:Header>'.format("n" * 1001)),
        ("</se:Header>", "<a/>" * 2000 + "</se:Header>"),
        ("</Msmq>", f"<AdminMqf>{f'{URL} ' * 1001}</AdminMqf></Msmq>"),
    ],
)
def test_a_wrong_envelope_is_refused(before: str, after: str) -> None:
    read_envelope(WHOLE.encode())
    assert before in WHOLE

    with pytest.raises(NotSrmp):
        read_envelope(WHOLE.replace(before, after).encode())


def test_an_envelope_is_limited_before_it_is_parsed() -> None:
    with pytest.raises(NotSrmp, match="more than"):
        read_envelope(b" " * (256 * 1024 + 1))


def test_a_list_of_names_takes_time_by_its_length() -> None:
    spaces = " " * (127 * 1024)
    listed = f"<DestinationMqf>{URL}{spaces}x {URL}</DestinationMqf></Msmq>"
    with never_going_back():
        found = read_envelope(WHOLE.replace("</Msmq>", listed).encode())

    assert found.destinations == (f"{URL}{spaces}x", URL)


def test_a_long_content_type_is_not_parsed() -> None:
    with pytest.raises(NotMime, match="more than"):
        parameters('multipart/related; boundary="' + ";" * 1000)


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=3))
def test_parts_are_read_as_they_were_written(contents: list[bytes]) -> None:
    body, content_type = write_parts([Part({"content-id": "x"}, each) for each in contents])
    media, given_parameters = parameters(content_type)

    assert media == "multipart/related"
    assert [part.content for part in read_parts(body, given_parameters["boundary"])] == contents


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--b",
        b"--b\r\n\r\nx",
        b"--b\r\nContent-Length: 9\r\n\r\nx--b--",
        b"--b\r\nContent-Length: 1\r\n\r\nxyz--b--",
        b"--b\r\nContent-Length: 0\r\n\r\nx--b\r\nContent-Length: 1\r\n\r\nx--b--",
        b"--b\r\nContent-Length: -1\r\n\r\n--b--",
        b"--b\r\nContent-Length: +1\r\n\r\nx--b--",
        b"--b\r\nContent-Length: 1_0\r\n\r\n0123456789--b--",
        b"--b\r\nContent-Length: \xb2\r\n\r\nxx--b--",
        b"--b\r\nContent-Length: 99999999999999\r\n\r\nx--b--",
        b"--b\r\na: b\r\n\r\n--b\r\n" * 20,
    ],
)
def test_wrong_parts_are_refused(body: bytes) -> None:
    with pytest.raises(NotMime):
        read_parts(body, "b")


def test_a_packet_keeps_its_content_on_its_way_over_http() -> None:
    it = Posted(
        envelope(
            label="Größe", priority=5, application_tag=9, body_type=8, durable=True,
            stream=Stream(GUID, 7 << 32, 12, 9), dead_letter=True, message_class=0,
            reach_by=datetime(2026, 6, 18, 21, 7, 54, tzinfo=UTC),
            response_to="http://hosta/msmq/private$/answers",
            commitment_receipt_to="http://hosta/msmq/private$/acks", positive=True,
        ),
        b"body",
        b"extension",
    )  # fmt: skip
    destination = name_of(URL)
    packet = packet_of(read_request(*write_request(it)), destination, GUID.bytes_le, 26626)
    parsed = parse_user_message(packet)
    again = envelope_of(packet, "http://hosta/msmq/receipts")

    assert parsed.transaction is not None
    assert parsed.transaction[1:4] == (7 << 32, 12, 9)
    assert (parsed.base.time_to_reach_queue, parsed.user.message_number) == (60, 26626)
    assert again.body == b"body"
    assert again.extension == b"extension"
    # A transactional message has no priority; the first one alone names the queue for receipts.
    assert again.envelope == _changed(
        it.envelope, priority=0, to="http://hostb/MSMQ/private$/orders"
    )


def test_the_connector_of_a_message_is_kept() -> None:
    packet = packet_of(read_request(*write_request(Posted(FULL))), name_of(URL), GUID.bytes_le, 1)
    parsed = parse_user_message(packet)
    again = envelope_of(packet, URL).envelope

    assert FULL.connector_type is not None
    assert parsed.user.connector_type == FULL.connector_type.bytes_le
    assert parsed.transaction is not None
    assert FULL.connector is not None
    assert parsed.transaction.connector == FULL.connector.bytes_le
    assert (again.connector_type, again.connector) == (FULL.connector_type, FULL.connector)
    with pytest.raises(NotSrmp, match="GUID"):
        read_envelope(write_envelope(FULL).replace(b"fd74b8eb", b"fd74b8ex"))


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("is_last", [True, False])
def test_the_ends_of_a_transaction_are_kept(is_first: bool, is_last: bool) -> None:
    stream = Stream(GUID, 7 << 32, 2, 1)
    it = Posted(envelope(durable=True, stream=stream, is_first=is_first, is_last=is_last))
    packet = packet_of(read_request(*write_request(it)), name_of(URL), GUID.bytes_le, 1)
    parsed = parse_user_message(packet)

    assert parsed.transaction is not None
    flags = parsed.transaction.flags
    assert (bool(flags.first), bool(flags.last)) == (is_first, is_last)
    again = envelope_of(packet, URL).envelope
    assert (again.is_first, again.is_last) == (is_first, is_last)


def test_a_receipt_has_no_attachment() -> None:
    """An acknowledgment of the binary protocol may bring the body of its message."""
    it = Posted(envelope(message_class=0xC001, correlation=GUID.bytes_le + b"\1\0\0\0"), b"body")
    packet = packet_of(it, name_of(URL), GUID.bytes_le, 1)
    again = envelope_of(packet, URL)

    assert (again.envelope.decision, again.envelope.about) == ("negative", MessageId(GUID, 1))
    assert (again.body, again.extension) == (b"", b"")
    assert write_request(again)[1] == "text/xml"


LOOSE = write_envelope(
    envelope(delivery_receipt_to=URL, commitment_receipt_to=URL, response_to=URL)
).decode()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("<rev>", "<fwd><via>x</via></fwd><from>a</from><rev>"),
        ("<sentAt>", "<inReplyTo>uuid:1@x</inReplyTo><sentAt>"),
        ("<se:Body></se:Body>", "<se:Body><any>thing</any></se:Body>"),
        ("</se:Header>", '<other xmlns="urn:x" se:mustUnderstand="0"/></se:Header>'),
        ("<App>0</App>", ""),
        ("<rev><via>http://hostb/msmq/private$/orders</via></rev>", "<rev><via/></rev>"),
    ],
)
def test_optional_and_unknown_elements_change_nothing(before: str, after: str) -> None:
    assert before in LOOSE

    found = read_envelope(LOOSE.replace(before, after).encode())

    expected = read_envelope(LOOSE.encode())
    assert replace(found, response_to="") == replace(expected, response_to="")


@pytest.mark.parametrize(
    "element",
    [
        *("action", "to", "id", "expiresAt", "Class", "Priority", "BodyType", "sendTo"),
        *("streamId", "current", "sendReceiptsTo"),
    ],
)
def test_an_envelope_without_an_element_that_is_needed_is_refused(element: str) -> None:
    text = re.sub(f"<{element}>.*?</{element}>", "", WHOLE, count=1)
    assert text != WHOLE

    with pytest.raises(NotSrmp):
        read_envelope(text.encode())


@pytest.mark.parametrize(
    ("needs", "lacks"),
    [("<services.*?</services>", "durable"), ("<Msmq.*?</Msmq>", "Msmq")],
)
def test_a_stream_needs_what_makes_it_one(needs: str, lacks: str) -> None:
    data = re.sub(needs, "", WHOLE).encode()

    with pytest.raises(NotSrmp, match=lacks):
        packet_of(Posted(read_envelope(data)), name_of(URL), GUID.bytes_le, 1)


def test_a_written_envelope_has_the_elements_in_their_order() -> None:
    names = re.findall(r"<([A-Za-z]+)[ >/]", write_envelope(FULL).decode().replace("se:", ""))

    assert names == [
        *("Envelope", "Header", "path", "action", "to", "rev", "via", "id", "properties"),
        *("expiresAt", "sentAt", "services", "durable", "deliveryReceiptRequest", "sendTo"),
        *("commitmentReceiptRequest", "sendTo", "positiveOnly", "negativeOnly", "stream"),
        *("streamId", "current", "previous", "start", "sendReceiptsTo", "Msmq", "Class"),
        *("Priority", "Journal", "DeadLetter", "Correlation", "Trace", "ConnectorType", "App"),
        *("BodyType", "HashAlgorithm", "Eod", "First", "Last", "ConnectorId", "SourceQmGuid"),
        "DestinationMqf",
        *("AdminMqf", "ResponseMqf", "TTrq", "Body"),
    ]
    written = write_envelope(FULL).decode()
    for text in (
        '<path xmlns="http://schemas.xmlsoap.org/rp/" se:mustUnderstand="1"><action>MSMQ:a',
        f"<id>uuid:26626@{GUID}</id>",
        f"<streamId>uid:{GUID}\\7</streamId><current>1</current>",
        "<sentAt>20260618T210654</sentAt>",
        '<Msmq xmlns="msmq.namespace.xml"><Class>0</Class>',
    ):
        assert text in written


FULL = envelope(
    label="a",
    response_to=URL,
    durable=True,
    delivery_receipt_to=URL,
    commitment_receipt_to=URL,
    positive=True,
    negative=True,
    stream=Stream(GUID, 7, 1, 0, URL),
    journal=True,
    dead_letter=True,
    trace=True,
    is_first=True,
    is_last=True,
    connector_type=uuid.UUID("fd74b8eb-2af7-4ac5-9405-074e315df392"),
    connector=uuid.UUID("caf195ea-615c-4264-ae08-11a4e60194c0"),
    destinations=(URL, "MSMQ:DIRECT=OS:hostc\\private$\\two+words"),
    admins=("http://hosta/msmq/private$/acks", "https://hostb/msmq/private$/acks"),
    responses=("MSMQ:PUBLIC=32221eda-9376-46df-b6ed-783091123831",),
)


WITHOUT = replace(FULL, destinations=(), admins=(), responses=())


def _changed(it: Envelope, **changes: Any) -> Envelope:
    response = "http://hosta/MSMQ/private$/answers"
    acks = "http://hosta/MSMQ/private$/acks"
    return replace(it, response_to=response, commitment_receipt_to=acks, **changes)


def test_names_that_are_no_urls_stand_behind_a_prefix() -> None:
    assert url_of("DIRECT=OS:hosta\\private$\\q") == "MSMQ:DIRECT=OS:hosta\\private$\\q"
    assert url_of("DIRECT=HTTPS://h:8443/msmq\\private$\\q") == "https://h:8443/MSMQ/private$/q"
    assert url_of(None) == ""
    for url in ("http://hostb/other/q", "ftp://hostb/msmq/q", "http:///msmq/q", ""):
        with pytest.raises(NotSrmp):
            name_of(url)
    assert str(parse_format_name(f"DIRECT={URL}")) == str(name_of(URL))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://old/msmq/private$/a", "https://gate/x/msmq/private$/a"),
        ("HTTP://OLD/msmq/q", "https://gate/x/msmq/q"),
        ("http://one/msmq/q", "http://two/msmq/q"),
        ("http://one/msmq/q2", "http://one/msmq/q2"),
        ("http://all/1/2", "http://fixed/q"),
    ],
)
def test_the_first_rule_that_matches_changes_a_url(url: str, expected: str) -> None:
    rules = [
        Redirection("http://old/*", "https://gate/x/*"),
        Redirection("http://one/msmq/q", "http://two/msmq/q"),
        Redirection("http://all/*", "http://fixed/q"),
    ]

    assert redirected(url, rules) == expected
