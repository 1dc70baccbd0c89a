"""Messages between two queue managers over HTTP: doors for SRMP in processes of their own."""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from qmd.runtime.log import LIMITED_LINES_MAX
from tests.patience import END_S
from tests.process.harness import DEADLETTER, DEADXACT, Daemon, Hosts, body
from tests.process.srmp_door import SrmpDoor
from tests.process.srmp_pair import HAS_OPENSSL, Pair, arrived, make_pair, request, until, waiting
from tests.process.web_receiver import Call, Receiver


@pytest.fixture(scope="module")
def doors(shared_hosts: Hosts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Yield two hosts."""
    pair = make_pair(shared_hosts, tmp_path_factory.mktemp("srmp"))
    yield pair
    pair.kill()


@pytest.fixture
def pair(doors: Pair) -> Pair:
    """Return both hosts with empty queues."""
    return doors.empty()


def lines_about(door: SrmpDoor, message_id: str) -> list[str]:
    """Return the lines of a door's log about a message."""
    shown = json.dumps(message_id).strip('"')
    return [line for line in door.log.read_text().splitlines() if shown in line]


def test_messages_arrive_with_their_properties(pair: Pair) -> None:
    to = pair.b.format_name("loose")
    options = ("--express", "--label", "Größe <&>", "--priority", "6", "--application-tag", "17")
    sent = pair.a.daemon.send(to, bytes(range(256)), *options)
    pair.a.daemon.send(to, b"")

    found, empty = arrived(pair, "loose", 2)
    assert (found["id"], found["label"], body(found)) == (sent, "Größe <&>", bytes(range(256)))
    assert (found["priority"], found["application_tag"], found["delivery"]) == (6, 17, "express")
    assert (body(empty), empty["delivery"]) == (b"", "recoverable")
    until(pair, lambda: waiting(pair) == 0)


@pytest.mark.skipif(not HAS_OPENSSL, reason="openssl is needed to make certificates")
def test_https_checks_the_certificate_of_the_host(pair: Pair) -> None:
    def name(host: str) -> str:
        return f"DIRECT=HTTPS://{host}:{pair.b.tls_port}/msmq\\private$\\orders"

    pair.a.daemon.send(name("localhost"), b"secret", "--transactional")
    assert [body(each) for each in arrived(pair, "orders", 1)] == [b"secret"]
    until(pair, lambda: waiting(pair) == 0)

    # The other host does not know the authority of this certificate.
    pair.b.daemon.send(name("127.0.0.1"), b"not sent", "--transactional")
    until(pair, lambda: "CERTIFICATE_VERIFY_FAILED" in pair.b.tail())
    assert pair.b.daemon.count("orders") == 0
    pair.b.daemon.cli("outgoing", "purge", name("127.0.0.1"), "--yes")


def test_a_stream_arrives_in_order_and_is_released_by_its_receipts(pair: Pair) -> None:
    bodies = [b"%d" % each for each in range(100)]
    pair.a.daemon.send_all(pair.b.format_name("orders"), bodies, "--transactional")

    assert [body(each) for each in arrived(pair, "orders", 100)] == bodies
    until(pair, lambda: waiting(pair) == 0)


def test_kills_of_every_process_lose_double_and_reorder_nothing(pair: Pair) -> None:
    """Each round kills a door or a daemon while a stream and other messages are under way."""
    to, loose = pair.b.format_name("orders"), pair.b.format_name("loose")
    expected: list[bytes] = []
    victims = [pair.a.kill, pair.b.kill, pair.b.daemon.kill, pair.a.daemon.kill]
    for number, kill in enumerate(victims):
        bodies = [b"%d.%d" % (number, each) for each in range(40)]
        pair.a.daemon.send_all(to, bodies, "--transactional")
        pair.a.daemon.send_all(loose, bodies)
        expected += bodies
        until(pair, lambda: waiting(pair) < 80)
        kill()
        for daemon in (pair.a.daemon, pair.b.daemon):
            if not daemon.alive:
                daemon.start()
        for door in (pair.a, pair.b):
            if door.process is None:
                door.start()
    until(pair, lambda: waiting(pair) == 0)

    assert [body(each) for each in pair.b.daemon.receive("orders")] == expected
    assert sorted(body(each) for each in pair.b.daemon.receive("loose")) == sorted(expected)


def test_receipts_reach_the_administration_queue(pair: Pair) -> None:
    wanted = "positive-arrival,positive-receive"
    acks = ("--admin-queue", pair.a.format_name("acks"), "--acknowledge", wanted)
    sent = pair.a.daemon.send(pair.b.format_name("loose"), b"x", "--label", "asked", *acks)
    arrived(pair, "loose", 1)

    until(pair, lambda: pair.a.daemon.count("acks") >= 2)
    found = pair.a.daemon.receive("acks")
    assert [each["class"] for each in found] == ["ack_reach_queue", "ack_receive"]
    assert {each["correlation_id"] for each in found} == {sent}
    assert {each["label"] for each in found} == {"asked"}


def test_a_purged_message_of_a_stream_becomes_a_dead_letter_of_its_sender(pair: Pair) -> None:
    to = pair.b.format_name("orders")
    pair.a.daemon.send(to, b"x", "--transactional", "--dead-letter")
    until(pair, lambda: pair.b.daemon.count("orders") == 1)
    pair.b.daemon.cli("queue", "purge", "private$\\orders", "--yes")

    letter = until(pair, lambda: pair.a.daemon.peek(DEADXACT))[0]
    assert (body(letter), letter["class"]) == (b"x", "nack_queue_purged")


def test_a_message_for_no_queue_holds_up_no_other(pair: Pair) -> None:
    refused = pair.a.daemon.send(pair.b.format_name("nowhere"), b"1")
    pair.a.daemon.send(pair.b.format_name("loose"), b"2")

    assert [body(each) for each in arrived(pair, "loose", 1)] == [b"2"]
    (line,) = lines_about(pair.a, refused)
    assert "srmp_dead_letter" in line


@pytest.mark.parametrize("delivery", ["express", "recoverable", "transactional"])
def test_a_refused_message_becomes_a_dead_letter_with_the_reason(pair: Pair, delivery: str) -> None:
    """No dead letter was requested: but no other computer has the message."""
    queue = DEADXACT if delivery == "transactional" else DEADLETTER
    acks = ("--admin-queue", pair.a.format_name("acks"), "--acknowledge", "negative-arrival")
    options = (f"--{delivery}", "--no-dead-letter", *acks)
    if delivery == "transactional":  # which is kept unless its sender wants it discarded
        options = options[:1] + acks
    sent = pair.a.daemon.send(pair.b.format_name("nowhere"), b"1", *options)

    (letter,) = until(pair, lambda: pair.a.daemon.peek(queue))
    assert (letter["id"], body(letter)) == (sent, b"1")
    assert letter["class"] == "nack_bad_destination_queue"
    assert "has answered 400: there is no queue" in letter["reason"]
    (nack,) = until(pair, lambda: pair.a.daemon.receive("acks"))
    assert (nack["class"], nack["correlation_id"]) == ("nack_bad_destination_queue", sent)
    until(pair, lambda: waiting(pair) == 0)
    events = pair.a.daemon.json("events", "tail", "--lines", "100")
    kinds = [each["kind"] for each in events if each["message_id"] == sent]
    assert kinds.count("dead_lettered") == 1
    assert "session_acknowledged" not in kinds
    pair.a.daemon.receive(queue)


def test_the_log_of_the_door_has_few_lines_about_many_refused_messages(pair: Pair) -> None:
    there = Receiver()
    count = LIMITED_LINES_MAX + 5
    there.statuses = [400] * count
    to = f"DIRECT=HTTP://127.0.0.1:{there.url.rpartition(':')[2]}/msmq\\private$\\orders"
    pair.a.daemon.send_all(to, [b"%d" % each for each in range(count)], "--recoverable")

    until(pair, lambda: pair.a.daemon.count(DEADLETTER) == count)
    lines = [json.loads(line) for line in lines_about(pair.a, there.url.rpartition("/")[2])]
    assert [each["event"] for each in lines] == ["srmp_dead_letter"] * LIMITED_LINES_MAX
    pair.a.daemon.receive(DEADLETTER)
    there.close()


def test_a_refused_message_of_a_stream_is_left_out_of_it(pair: Pair) -> None:
    """The host refuses the second message; the others arrive in order, around its place."""
    there = Receiver()
    there.statuses = [200, 400, 200]
    to = f"DIRECT=HTTP://127.0.0.1:{there.url.rpartition(':')[2]}/msmq\\private$\\orders"
    pair.a.daemon.send_all(to, [b"1", b"2", b"3"], "--transactional")

    (letter,) = until(pair, lambda: pair.a.daemon.peek(DEADXACT))
    assert body(letter) == b"2"

    def around() -> bool:
        return any(
            b"<current>3</current><previous>1</previous>" in each.body for each in there.calls
        )

    until(pair, around)
    there.close()
    pair.a.daemon.cli("outgoing", "purge", to, "--yes")
    pair.a.daemon.receive(DEADXACT)


@pytest.mark.parametrize(
    ("status", "name"),
    [
        (401, "nack_access_denied"),
        (403, "nack_access_denied"),
        (404, "nack_bad_destination_queue"),
        (413, "nack_deleted"),
        (415, "nack_deleted"),
    ],
)
def test_each_final_answer_makes_a_dead_letter(pair: Pair, status: int, name: str) -> None:
    there = Receiver()
    there.statuses = [status]
    to = f"DIRECT=HTTP://127.0.0.1:{there.url.rpartition(':')[2]}/msmq\\private$\\orders"
    pair.a.daemon.send(to, b"refused")
    pair.a.daemon.send(to, b"taken")

    (letter,) = until(pair, lambda: pair.a.daemon.receive(DEADLETTER))
    assert (body(letter), letter["class"]) == (b"refused", name)
    assert f"has answered {status}" in letter["reason"]
    there.wait_for(2)
    there.close()
    until(pair, lambda: waiting(pair) == 0)


@pytest.mark.parametrize("status", [302, 429, 503])
def test_a_message_is_sent_again_after_an_answer_of_the_moment(pair: Pair, status: int) -> None:
    there = Receiver()
    there.statuses = [status]
    to = f"DIRECT=HTTP://127.0.0.1:{there.url.rpartition(':')[2]}/msmq\\private$\\orders"
    pair.a.daemon.send(to, b"x")

    first, again = there.wait_for(2)
    ids = [re.findall(rb"<id>.*?</id>", each.body) for each in (first, again)]
    assert ids[0] == ids[1]
    there.close()
    until(pair, lambda: waiting(pair) == 0)
    assert pair.a.daemon.count(DEADLETTER) == 0


def test_a_host_that_fails_until_the_time_is_over_is_named_in_the_dead_letter(pair: Pair) -> None:
    there = Receiver()
    there.statuses = [500] * 1000
    to = f"DIRECT=HTTP://127.0.0.1:{there.url.rpartition(':')[2]}/msmq\\private$\\orders"
    pair.a.daemon.send(to, b"x", "--time-to-reach-queue", "10s", "--dead-letter")

    def reason() -> bool:
        rows = pair.a.daemon.json("outgoing", "list")
        return any("has answered 500" in str(row) for row in rows)

    until(pair, reason)
    (letter,) = until(pair, lambda: pair.a.daemon.receive(DEADLETTER))
    assert letter["class"] == "nack_reach_queue_timeout"
    assert "has answered 500" in letter["reason"]
    there.close()


def test_rights_and_limits_count_for_the_host_that_sends(pair: Pair) -> None:
    """Two addresses of this computer are two hosts with the same door."""
    door, queue = pair.b, "private$\\guarded"
    door.daemon.create("guarded")
    door.daemon.cli("acl", "deny", "host:127.0.0.2", "send", queue)
    sent = request(door, "guarded")
    for source in ("127.0.0.2", "127.0.0.3"):
        at = ("127.0.0.1", door.port)
        connection = http.client.HTTPConnection(*at, timeout=END_S, source_address=(source, 0))
        media = 'multipart/related; boundary="MSMQ - SOAP boundary, 53287"; type=text/xml'
        connection.request("POST", "/msmq/private$/guarded", sent, {"Content-Type": media})
        assert connection.getresponse().status == 200
        connection.close()

    assert len(arrived(pair, "guarded", 1)) == 1
    refused = [each for each in door.daemon.json("events", "tail", "--kind", "refused")]
    assert any("127.0.0.2" in each["reason"] for each in refused)
    rows = door.daemon.json("session", "list")
    assert {"127.0.0.2", "127.0.0.3"} <= {row["address"].rpartition(":")[0] for row in rows}


def test_a_message_to_several_queues_names_them_all(pair: Pair) -> None:
    here = "DIRECT=OS:.\\private$\\acks"
    pair.a.daemon.send(f"{pair.b.format_name('loose')},{here}", b"x")

    (found,) = arrived(pair, "loose", 1)
    assert [each.rpartition("\\")[2] for each in found["destinations"]] == ["loose", "acks"]


def test_a_response_queue_is_a_url_there(pair: Pair) -> None:
    pair.a.daemon.send(
        pair.b.format_name("loose"), b"ask", "--response-queue", pair.a.format_name("acks")
    )
    (found,) = arrived(pair, "loose", 1)
    pair.b.daemon.send(found["response_queue"], b"answer")

    until(pair, lambda: pair.a.daemon.count("acks") == 1)
    assert pair.a.daemon.bodies("acks") == [b"answer"]


def post(door: SrmpDoor, data: bytes, queue: str = "loose") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", door.port, timeout=END_S)
    media = 'multipart/related; boundary="MSMQ - SOAP boundary, 53287"; type=text/xml'
    connection.request("POST", f"/msmq/private$/{queue}", data, {"Content-Type": media})
    status = connection.getresponse().status
    connection.close()
    return status


def test_the_example_of_the_specification_is_accepted_and_others_are_refused(pair: Pair) -> None:
    door = pair.b
    assert post(door, request(door, "loose")) == 200
    assert post(door, request(door, "loose")) == 200, "without an id there are no duplicates"
    assert [each["label"] for each in arrived(pair, "loose", 2)] == ["mqsender label"] * 2

    assert post(door, request(door, "orders")) == 400, "it is transactional"
    assert post(door, request(door, "nowhere")) == 400
    assert post(door, request(door, "loose", host="elsewhere")) == 400
    assert post(door, request(door, "loose", "tomorrow")) == 400
    assert post(door, request(door, "loose").replace(b"se:mustUnderstand", b"nothing")) == 400
    assert post(door, request(door, "loose")[:-200]) == 400
    entity = b'<!DOCTYPE x [<!ENTITY a "aaaa">]><se:Envelope'
    assert post(door, request(door, "loose").replace(b"<se:Envelope", entity)) == 400
    assert post(door, b"") == 400
    assert pair.b.daemon.count("loose") == 0


def receipt(stream: str, number: int) -> bytes:
    """Return the receipt of a stream, as the specification shows it."""
    return (
        '<se:Envelope xmlns:se="http://schemas.xmlsoap.org/soap/envelope/"'
        ' xmlns="http://schemas.xmlsoap.org/srmp/"><se:Header>'
        '<path xmlns="http://schemas.xmlsoap.org/rp/" se:mustUnderstand="1">'
        "<action>MSMQ:QM Ordering Ack</action><to>http://127.0.0.1/msmq/private$/order_queue$</to>"
        "<id>uuid:1@32221eda-9376-46df-b6ed-783091123831</id></path>"
        '<properties se:mustUnderstand="1"><expiresAt>20380119T031407</expiresAt>'
        "<sentAt>20070619T165958</sentAt></properties><streamReceipt>"
        f"<streamId>uid:{stream}</streamId><lastOrdinal>{number}</lastOrdinal></streamReceipt>"
        '<Msmq xmlns="msmq.namespace.xml"><Class>255</Class><Priority>0</Priority>'
        "<BodyType>0</BodyType><SourceQmGuid>32221eda-9376-46df-b6ed-783091123831</SourceQmGuid>"
        "</Msmq></se:Header><se:Body></se:Body></se:Envelope>"
    ).encode()


def stream_of(call: Call) -> str:
    return call.body.partition(b"<streamId>uid:")[2].partition(b"</streamId>")[0].decode()


def send_receipt(door: SrmpDoor, stream: str, number: int, source: str = "127.0.0.1") -> None:
    at = ("127.0.0.1", door.port)
    connection = http.client.HTTPConnection(*at, timeout=END_S, source_address=(source, 0))
    media = {"Content-Type": "text/xml"}
    connection.request("POST", "/msmq/private$/order_queue$", receipt(stream, number), media)
    assert connection.getresponse().status == 200
    connection.close()


def kept(pair: Pair, there: Receiver) -> int:
    """Return the number of messages that the first host keeps for a receiver."""
    rows = pair.a.daemon.json("outgoing", "list")
    port = there.url.rpartition(":")[2]
    return sum(row["messages"] for row in rows if port in row["destination"])


def test_a_receipt_from_another_address_releases_nothing(pair: Pair) -> None:
    """The other end answers every request, sends no receipt, and an outsider sends one."""
    there = Receiver()
    port = int(there.url.rpartition(":")[2])
    to = f"DIRECT=HTTP://127.0.0.1:{port}/msmq\\private$\\orders"
    pair.a.daemon.send(to, b"precious", "--transactional")
    (call, *_) = there.wait_for(1)
    stream = stream_of(call)

    send_receipt(pair.a, stream, 1, "127.0.0.2")
    until(pair, lambda: "srmp_receipt_refused" in pair.a.tail())
    assert kept(pair, there) == 1
    send_receipt(pair.a, stream, 1)
    until(pair, lambda: kept(pair, there) == 0)
    there.close()


def test_another_stream_begins_when_all_messages_are_acknowledged(pair: Pair) -> None:
    there = Receiver()
    to = f"DIRECT=HTTP://127.0.0.1:{there.url.rpartition(':')[2]}/msmq\\private$\\orders"
    pair.a.daemon.send_all(to, [b"1", b"2"], "--transactional")
    first, second = there.wait_for(2)[:2]
    guid, _, ordinal = stream_of(first).partition("\\")
    assert stream_of(second) == stream_of(first)
    send_receipt(pair.a, stream_of(first), 2)
    until(pair, lambda: kept(pair, there) == 0)

    count = len(there.calls)
    pair.a.daemon.send(to, b"3", "--transactional")
    third = there.wait_for(count + 1)[-1]

    assert stream_of(third) == f"{guid}\\{int(ordinal) + 1}"
    assert b"<current>1</current><previous>0</previous><start>" in third.body
    send_receipt(pair.a, stream_of(third), 1)
    until(pair, lambda: kept(pair, there) == 0)
    there.close()


def changed(call: Call, number: int, content: bytes) -> tuple[bytes, str]:
    """Return a message of a stream with another place and body of the same length."""
    data = call.body.replace(
        b"<current>1</current><previous>0</previous>",
        b"<current>%d</current><previous>%d</previous>" % (number, number - 1),
    )
    data = re.sub(rb"<id>uuid:\d@", b"<id>uuid:%d@" % number, data)
    return data.replace(b"the 1st.", content), call.headers["content-type"]


def test_receipts_go_to_the_address_of_the_sender_only(pair: Pair) -> None:
    """A URL for receipts could otherwise lead to any service behind the firewall."""
    inner, there = Receiver(), Receiver()
    to = f"DIRECT=HTTP://127.0.0.1:{there.url.rpartition(':')[2]}/msmq\\private$\\orders"
    pair.a.daemon.send(to, b"the 1st.", "--transactional")
    (call, *_) = there.wait_for(1)
    pair.a.daemon.cli("outgoing", "purge", to, "--yes")
    (url,) = re.findall(rb"<sendReceiptsTo>(.*?)</sendReceiptsTo>", call.body)
    media = {"Content-Type": call.headers["content-type"]}

    def send(stream: int, source: str) -> None:
        data = re.sub(rb"(<streamId>uid:[^<]*\\)\d+", rb"\g<1>%d" % stream, call.body)
        place = f"{inner.url}/msmq/private$/"
        changed_url = place.ljust(len(url), "x")[: len(url)].encode()
        data = data.replace(url, changed_url)
        at = ("127.0.0.1", pair.b.port)
        connection = http.client.HTTPConnection(*at, timeout=END_S, source_address=(source, 0))
        connection.request("POST", "/msmq/private$/orders", data, media)
        assert connection.getresponse().status == 200
        connection.close()

    now = int(time.time())
    send(now << 32 | 1, "127.0.0.2")
    until(pair, lambda: "is not the address of the sender" in pair.b.tail())
    assert not inner.calls
    send(now << 32 | 2, "127.0.0.1")
    inner.wait_for(1)
    inner.close()
    there.close()


def test_a_stranger_cannot_take_a_place_in_the_stream_of_another_host(pair: Pair) -> None:
    """Two addresses state one source: each has its own stream and its own history."""
    there = Receiver()
    to = f"DIRECT=HTTP://127.0.0.1:{there.url.rpartition(':')[2]}/msmq\\private$\\orders"
    pair.a.daemon.send(to, b"the 1st.", "--transactional")
    (call, *_) = there.wait_for(1)
    there.close()
    pair.a.daemon.cli("outgoing", "purge", to, "--yes")

    def send(number: int, content: bytes, source: str) -> int:
        data, media = changed(call, number, content)
        at = ("127.0.0.1", pair.b.port)
        connection = http.client.HTTPConnection(*at, timeout=END_S, source_address=(source, 0))
        connection.request("POST", "/msmq/private$/orders", data, {"Content-Type": media})
        status = connection.getresponse().status
        connection.close()
        return status

    assert send(1, b"the 1st.", "127.0.0.1") == 200
    send(2, b"a forged", "127.0.0.2")
    assert send(2, b"the 2nd.", "127.0.0.1") == 200
    send(1, b"in vain.", "127.0.0.2")
    assert send(3, b"the 3rd.", "127.0.0.1") == 200

    found = [(each["id"], body(each)) for each in arrived(pair, "orders", 4)]
    ids = {content: id.partition("\\")[0] for id, content in found}
    genuine = [content for _, content in found if content.startswith(b"the")]
    assert genuine == [b"the 1st.", b"the 2nd.", b"the 3rd."]
    assert b"a forged" not in ids
    assert ids[b"in vain."] != ids[b"the 1st."], "an application can tell them apart"


@pytest.mark.parametrize("url", ["http://hosta/msmq/", "http://hosta/receipts", "hosta"])
def test_the_door_needs_a_url_to_which_receipts_can_be_sent(tmp_path: Path, url: str) -> None:
    """Other hosts refuse streams with another one, and all their messages are dead letters."""
    daemon = Daemon(tmp_path / "qmd")
    daemon.configure({"srmp": {"enabled": True, "receipts_url": url}})

    result = daemon.cli("door", "srmp", check=False)

    assert result.returncode == 78
    assert b"srmp_receipts_url" in result.stderr


def test_a_flood_of_refused_requests_is_logged_in_part(pair: Pair) -> None:
    connection = http.client.HTTPConnection(
        "127.0.0.1", pair.b.port, timeout=END_S, source_address=("127.0.0.77", 0)
    )
    for _ in range(4 * LIMITED_LINES_MAX):
        connection.request("POST", "/msmq/private$/loose", b"<a/>", {"Content-Type": "text/xml"})
        response = connection.getresponse()
        response.read()
        assert response.status == 400
    connection.close()
    lines = pair.b.log.read_text().splitlines()
    assert 1 <= sum("127.0.0.77" in line for line in lines) <= LIMITED_LINES_MAX
