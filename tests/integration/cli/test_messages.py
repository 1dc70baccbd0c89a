"""The commands send, receive and peek, against the in-memory queue manager of `peer`."""

import base64
import json

import pytest

from qmd.control_protocol import messages as frames
from tests.unit.client.packets import packet

PLAIN = r"DIRECT=OS:.\private$\orders"


def fill(peer, *bodies, label="", queue="orders"):
    for body in bodies:
        peer.put(queue, packet(frames.NewMessage(PLAIN, body, label=label)))


def sent(peer):
    return [message for request in peer.requests_of(frames.Send) for message in request.messages]


def test_the_id_is_printed_and_nothing_else(qmd, peer):
    result = qmd("send", "orders", "hello", "--label", "one")

    assert result.exit_code == 0
    assert result.output == f"{peer.id}\\1\n"
    (message,) = sent(peer)
    assert (message.destination, message.body, message.label) == ("orders", b"hello", "one")
    assert message.delivery == frames.AUTOMATIC


def test_a_body_of_windows_characters_is_shown_as_text(qmd, peer):
    body = "größer".encode("utf-16-le")
    for body_type in (8, 31):
        peer.put("orders", packet(frames.NewMessage(PLAIN, body, body_type=body_type)))

    assert qmd("peek", "orders", "--all").output.count("  größer\n") == 2


def test_json_gives_the_canonical_destination(qmd, peer):
    result = qmd("send", "orders@10.0.0.5:1802", "--json")

    assert json.loads(result.output) == {
        "id": f"{peer.id}\\1",
        "destination": r"DIRECT=TCP:10.0.0.5:1802\private$\orders",
    }


def test_a_name_without_a_computer_means_the_local_one(qmd, peer):
    result = qmd("send", "orders", "--json")

    assert json.loads(result.output)["destination"] == r"DIRECT=OS:hosta\private$\orders"


def test_every_property_has_its_option(qmd, peer):
    correlation = "01020304-0506-0708-090a-0b0c0d0e0f10\\7"

    result = qmd(
        *("send", "orders", "--body-base64", base64.b64encode(b"\0\xff").decode()),
        *("--transactional", "--priority", "6", "--no-dead-letter", "--journal"),
        *("--time-to-reach-queue", "5m", "--time-to-be-received", "never"),
        *("--body-type", "0x8", "--application-tag", "17", "--correlation-id", correlation),
        *("--response-queue", "answers", "--admin-queue", "acks"),
        *("--acknowledge", "full-reach-queue"),
    )

    assert result.exit_code == 0
    assert sent(peer) == [
        frames.NewMessage(
            "orders",
            b"\0\xff",
            delivery=frames.TRANSACTIONAL,
            priority=6,
            time_to_reach_queue_s=300,
            time_to_be_received_s=frames.INFINITE_S,
            dead_letter=False,
            journal=True,
            body_type=8,
            correlation_id=bytes.fromhex("0403020106050807090a0b0c0d0e0f1007000000"),
            application_tag=17,
            response_queue="answers",
            admin_queue="acks",
            acknowledge=5,
        )
    ]


def test_count_sends_numbered_messages(qmd, peer):
    result = qmd("send", "orders", "no {n}", "--count", "300", "--label", "{n} of 300")

    assert len(result.output.splitlines()) == 300
    assert [message.body for message in sent(peer)] == [b"no %d" % n for n in range(1, 301)]
    assert sent(peer)[299].label == "300 of 300"


def test_each_line_of_standard_input_is_a_message(qmd, peer):
    result = qmd("send", "orders", "--each-line", input=b"one\n\nthree\r\nfour")

    assert len(result.output.splitlines()) == 4
    assert [message.body for message in sent(peer)] == [b"one", b"", b"three\r", b"four"]


def test_each_line_of_a_file_is_a_message(qmd, peer, tmp_path):
    lines = [b"%d" % number * 1000 for number in range(200)]
    (tmp_path / "lines").write_bytes(b"\n".join(lines) + b"\n")

    qmd("send", "orders", "--each-line", "--file", str(tmp_path / "lines"))

    assert [message.body for message in sent(peer)] == lines


def test_a_file_that_is_too_large_is_refused_before_it_is_read(qmd, peer, tmp_path):
    (tmp_path / "body").write_bytes(b"\n\0 body")
    with (tmp_path / "large").open("wb") as sparse:
        sparse.truncate(peer.message_bytes_max + 1)

    qmd("send", "orders", "--file", str(tmp_path / "body"))
    refused = qmd("send", "orders", "--file", str(tmp_path / "large"))
    piped = qmd("send", "orders", "--file", "-", input=bytes(peer.message_bytes_max + 1))

    assert [len(message.body) for message in sent(peer)] == [7]
    assert refused.exit_code == piped.exit_code == 4
    assert f"has {peer.message_bytes_max + 1} bytes" in refused.stderr
    assert f"{peer.message_bytes_max} are allowed" in piped.stderr


def test_ids_from_before_a_refusal_are_printed(qmd, peer):
    lines = b"x\n" * 1024  # a full window: the first batches are confirmed before the next
    peer.refuse_at = 1000

    result = qmd("send", "orders", "--each-line", input=lines * 2)

    assert result.exit_code == 4
    assert 0 < len(result.stdout.splitlines()) < 2048
    assert result.stderr == "qmd: The queue is full; make room\n"


def test_receive_takes_one_message(qmd, peer):
    fill(peer, b"1", b"2")

    result = qmd("receive", "orders", "--json")

    message = json.loads(result.output)
    assert base64.b64decode(message["body_base64"]) == b"1"
    assert len(peer.queues["orders"]) == 1


def test_receive_all_empties_the_queue(qmd, peer):
    fill(peer, *(b"%d" % number for number in range(300)))

    result = qmd("receive", "orders", "--all", "--body-only")

    assert result.exit_code == 0
    assert result.output.splitlines() == [str(number) for number in range(300)]
    assert peer.queues["orders"] == []
    assert qmd("receive", "orders", "--all").exit_code == 0


@pytest.mark.parametrize("command", ["receive", "peek"])
def test_fewer_messages_than_requested_have_their_own_exit_code(qmd, peer, command):
    fill(peer, b"1", b"2")

    result = qmd(command, "orders", "--count", "3", "--json")

    assert result.exit_code == 6
    assert len(result.stdout.splitlines()) == 2
    assert result.stderr == ""


def test_a_single_body_is_printed_unchanged(qmd, peer):
    fill(peer, b"\0\r\n\xff")

    assert qmd("receive", "orders", "--body-only").stdout_bytes == b"\0\r\n\xff"


def test_peek_leaves_everything_in_its_place(qmd, peer):
    fill(peer, b"1", b"2", b"3")

    bodies = qmd("peek", "orders", "--all", "--body-only", "--start", "2").output.splitlines()

    assert bodies == ["2", "3"]
    assert len(peer.queues["orders"]) == 3
    assert not peer.requests_of(frames.Take)


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("dead-letter", r"DIRECT=OS:.\SYSTEM$;DEADLETTER"),
        ("transactional-dead-letter", r"DIRECT=OS:.\SYSTEM$;DEADXACT"),
        ("journal", r"DIRECT=OS:.\SYSTEM$;JOURNAL"),
        (r"DIRECT=OS:.\SYSTEM$;DEADXACT", r"DIRECT=OS:.\SYSTEM$;DEADXACT"),
    ],
)
def test_system_queues_have_short_names(qmd, peer, word, name):
    fill(peer, b"1", queue=name)

    assert qmd("receive", word, "--body-only").output == "1"


def test_a_table_shows_messages_without_control_characters(qmd, peer):
    fill(peer, b"\x1b[2Jbody", label="\x07label")

    heading, row = qmd("peek", "orders", "--all").output.splitlines()

    assert heading.split() == ["LOOKUP", "ID", "SENT", "DELIVERY", "PRIORITY", "BYTES", "LABEL",
                               "BODY"]  # fmt: skip
    assert "2023-11-14 22:13:20Z" in row
    assert r"\x07label" in row
    assert r"\x1b[2Jbody" in row


def test_a_dead_letter_is_shown_with_its_reason(qmd, peer):
    fill(peer, b"1")
    (stored,) = peer.queues["orders"]
    peer.queues["orders"] = [
        frames.StoredMessage(1, 0, stored.packet, "no\x1b such queue at hostb")
    ]

    assert r"here because: no\x1b such queue at hostb" in qmd("peek", "orders").output
