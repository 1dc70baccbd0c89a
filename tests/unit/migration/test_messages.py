"""Copies of messages from Windows: as packets, imported once, and compared."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from protocol import parse_user_message
from protocol.identifiers import message_id_text
from qmd.migration.compare import Side, compare, digest_of
from qmd.migration.errors import BadSource
from qmd.migration.import_copies import messages_of
from qmd.migration.windows_message import local_name, read_line
from tests.windows_files import ANN, message

DATA = Path(__file__).parents[2] / "data" / "windows"
REFERENCE = "6b7d7cf2-64a5-4f1b-9e5d-3f0f5d3f2a11\\77"


def test_all_properties_reach_the_packet():
    line = message(
        5,
        b"10 screws",
        body_type=8,
        extension_base64="AAEC",
        correlation_id=REFERENCE,
        admin_queue="DIRECT=OS:web\\private$\\acks",
        acknowledge=5,
        dead_letter=True,
        journal=True,
        time_to_be_received_s=60,
    )
    found = read_line(line)
    packet = parse_user_message(found.imported.packet)
    user, properties = packet.user, packet.properties

    assert message_id_text(user.source_queue_manager, user.message_number) == found.id
    assert found.id == "6b7d7cf2-64a5-4f1b-9e5d-3f0f5d3f2a11\\5"
    assert properties.body == b"10 screws"
    assert properties.label.decode("utf-16-le") == "order 5\0"
    assert (properties.body_type, properties.application_tag) == (8, 7)
    assert properties.extension == b"\0\1\2"
    assert properties.correlation_id[16:] == (77).to_bytes(4, "little")
    assert user.sent_time == 1_760_000_000
    assert found.imported.arrived_at_ms == 1_760_000_000_505
    assert found.imported.expires_in_s == 60
    assert packet.transaction is not None
    assert (packet.transaction.flags.first, int(properties.flags)) == (1, 5)
    assert direct_name(user.destination_queue) == "OS:HOSTA\\private$\\orders"
    assert user.flags.negative_journal
    assert user.flags.positive_journal


def test_queues_for_answers_that_no_program_here_can_name_stay_as_they_are():
    spx = "DIRECT=SPX:00000012:ce3a51e90f2b\\answers"
    for text, expected in (
        (spx, ["SPX:00000012:ce3a51e90f2b\\answers"]),
        ("direct=os:two words\\answers", ["os:two words\\answers"]),
        (f"DIRECT=OS:web\\answers,{spx}", ["OS:web\\answers", spx.removeprefix("DIRECT=")]),
    ):
        packet = parse_user_message(
            read_line(message(5, b"x", response_queue=text)).imported.packet
        )
        assert direct_name(packet.user.response_queue) == expected[0]
        several = packet.multi_queue
        elements = () if several is None else several.response.elements
        found = [bytes(each.name).decode("utf-16-le").rstrip("\0") for each in elements]
        assert found == (expected if len(expected) > 1 else [])


def test_a_message_without_a_transaction_keeps_its_priority_and_delivery():
    none = "00000000-0000-0000-0000-000000000000\\0"
    found = read_line(message(1, b"x", transaction_id=none, recoverable=False, priority=7))
    packet = parse_user_message(found.imported.packet)

    assert packet.transaction is None
    assert packet.base.flags.priority == 7
    assert not packet.user.flags.delivery


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"qmd_windows_message": 2}, "version 2"),
        ({"id": "5"}, "id of a message"),
        ({"id": "6b7d7cf2-64a5-4f1b-9e5d-3f0f5d3f2a11\\x"}, "id of a message"),
        ({"body_base64": "?"}, "base64"),
        ({"label": "x" * 300}, "label"),
        ({"priority": 8}, "priority"),
        ({"response_queue": "MULTICAST=x"}, "name"),
        ({"novelty": 1}, "novelty"),
    ],
)
def test_other_lines_are_refused(changes, reason):
    with pytest.raises(BadSource, match=reason):
        read_line(message(1, b"x", **changes))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (".\\private$\\Orders", "private$\\orders"),
        ("hosta\\Private$\\orders\\Journal$", "private$\\orders;journal"),
        (".\\prices", ".\\prices"),
        (".\\DeadLetter$", "DIRECT=OS:.\\SYSTEM$;DEADLETTER"),
        (".\\XactDeadLetter$", "DIRECT=OS:.\\SYSTEM$;DEADXACT"),
        (".\\Journal$", "DIRECT=OS:.\\SYSTEM$;JOURNAL"),
    ],
)
def test_names_of_queues(path, name):
    assert local_name(path) == name


def direct_name(name) -> str:
    return name.name.decode("utf-16-le").rstrip("\0")


@pytest.mark.parametrize("path", ["orders", "", "a\\b\\c", ".\\private$\\", "DIRECT=OS:a\\b\\c\\d"])
def test_other_paths_are_refused(path):
    with pytest.raises(BadSource, match="path"):
        local_name(path)


def test_the_example_file_is_read():
    with (DATA / "hosta.messages.jsonl").open("rb") as lines:
        found = list(messages_of(lines))

    assert [local_name(each.queue) for each in found][-2:] == [
        "private$\\orders",
        "private$\\orders;journal",
    ]


def test_a_broken_line_is_named_by_its_number():
    with pytest.raises(BadSource, match="line 3"):
        list(messages_of(io.BytesIO(message(1, b"x") + b"\n" + b"{}\n")))


def sides(*texts: bytes) -> list[Side]:
    return [Side(f"a\\{at}", text) for at, text in enumerate(texts)]


def test_a_comparison_counts_each_message():
    result = compare(sides(b"a", b"b", b"b", b"c"), sides(b"a", b"b", b"d"))

    assert (result.missing, result.extra, result.same_order) == (2, 1, True)
    assert (result.only_first, result.only_second) == (["a\\1", "a\\3"], ["a\\2"])
    assert not result.is_same


def test_a_comparison_sees_another_order():
    result = compare(sides(b"a", b"b"), sides(b"b", b"a"))

    assert (result.missing, result.extra, result.same_order) == (0, 0, False)
    assert compare(sides(b"a", b"b"), sides(b"a", b"b")).is_same


def test_the_order_counts_for_each_sender():
    first = [Side("a\\1", b"a"), Side("b\\1", b"b")]

    assert compare(first, first[::-1]).is_same


def test_copies_for_two_queues_have_the_same_digest():
    first = read_line(message(1, b"x", "orders"))
    second = read_line(message(2, b"x", "others", label="order 1"))
    other = read_line(message(3, b"x", label="order 2"))

    assert digest_of(first.imported.packet) == digest_of(second.imported.packet)
    assert digest_of(first.imported.packet) != digest_of(other.imported.packet)


def test_a_sender_id_is_kept():
    sid = "AQUAAAAAAAUVAAAAHJjcOyNfKkaCi6YoUAQAAA=="
    packet = parse_user_message(read_line(message(1, b"x", sender_id_base64=sid)).imported.packet)

    assert packet.security is not None
    assert ANN.startswith("S-1-5-21")
    assert len(packet.security.sender_id) == 28
