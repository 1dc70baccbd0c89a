"""Attacks on the door for SRMP: lengths that are not those of the body, and floods of log lines."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import time
from collections.abc import Iterator

import pytest

from qmd.runtime.log import LIMITED_LINES_MAX
from tests.patience import END_S
from tests.process.harness import Hosts
from tests.process.srmp_pair import Pair, arrived, make_pair, request, until
from tests.process.web_receiver import Receiver

MEDIA = 'multipart/related; boundary="MSMQ - SOAP boundary, 53287"; type=text/xml'
STREAMS = 4 * LIMITED_LINES_MAX


@pytest.fixture(scope="module")
def doors(shared_hosts: Hosts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    pair = make_pair(shared_hosts, tmp_path_factory.mktemp("srmp"))
    yield pair
    pair.kill()


@pytest.fixture
def pair(doors: Pair) -> Pair:
    """Return both hosts with empty queues."""
    return doors.empty()


def statuses_of(pair: Pair, headers: str, data: bytes) -> list[int]:
    """Send a request and the end of the connection; return the statuses of all answers."""
    head = f"POST /msmq/private$/loose HTTP/1.1\r\nhost: 127.0.0.1:{pair.b.port}\r\n"
    head += f"content-type: {MEDIA}\r\n{headers}\r\n"
    found = b""
    with socket.create_connection(("127.0.0.1", pair.b.port), timeout=END_S) as connection:
        with contextlib.suppress(ConnectionError):  # it has seen enough
            connection.sendall(head.encode() + data)
            connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            while more := connection.recv(65536):
                found += more
    return [int(each) for each in re.findall(rb"HTTP/1\.1 (\d{3}) ", found)]


def length(size: int | str) -> str:
    return f"content-length: {size}\r\n"


def test_a_length_that_is_not_that_of_the_body_delivers_nothing(pair: Pair) -> None:
    data = request(pair.b, "loose")
    size = len(data)
    assert statuses_of(pair, length(size), data) == [200]
    assert len(arrived(pair, "loose", 1)) == 1

    # The rest of the body does not come: no answer states that the message was taken.
    for more in (1, 100, 1_000_000):
        assert 200 not in statuses_of(pair, length(size + more), data), more
    # The body is cut; the bytes behind it are no request.
    for less in (1, 13, 60, size // 2, size):
        assert 200 not in statuses_of(pair, length(size - less), data), less
    # A proxy and the door could read two lengths differently.
    assert statuses_of(pair, length(size) + length(size - 20), data) == [400]
    assert statuses_of(pair, length(size - 20) + "transfer-encoding: chunked\r\n", data) == [400]
    for wrong in (-1, f"+{size}", f"{size}, {size}", f"{size:x}h", 10**30):
        assert 200 not in statuses_of(pair, length(wrong), data), wrong

    assert pair.b.daemon.count("loose") == 0
    assert statuses_of(pair, length(size), data) == [200]


@pytest.mark.parametrize("change", [-9, -1, 1, 9, 10**9])
def test_a_length_of_a_part_that_is_not_true_delivers_nothing(pair: Pair, change: int) -> None:
    data = request(pair.b, "loose")
    for part in re.findall(rb"Content-Length: (\d+)", data):
        wrong = data.replace(
            b"Content-Length: " + part, b"Content-Length: %d" % (int(part) + change)
        )
        assert statuses_of(pair, length(len(wrong)), wrong) == [400], part

    assert pair.b.daemon.count("loose") == 0


def test_a_flood_of_receipts_that_are_not_accepted_is_logged_in_part(pair: Pair) -> None:
    """Each stream of a host has a receipt of its own, and the host may refuse them all."""
    with contextlib.closing(Receiver()) as inner, contextlib.closing(Receiver()) as there:
        inner.statuses = [500] * 4 * STREAMS
        to = f"DIRECT=HTTP://127.0.0.1:{there.url.rpartition(':')[2]}/msmq\\private$\\orders"
        pair.a.daemon.send(to, b"the 1st.", "--transactional")
        (call, *_) = there.wait_for(1)
        pair.a.daemon.cli("outgoing", "purge", to, "--yes")
        (url,) = re.findall(rb"<sendReceiptsTo>(.*?)</sendReceiptsTo>", call.body)
        place = f"{inner.url}/msmq/private$/".ljust(len(url), "x")[: len(url)].encode()
        media = {"Content-Type": call.headers["content-type"]}
        connection = http.client.HTTPConnection("127.0.0.1", pair.b.port, timeout=END_S)
        for number in range(STREAMS):
            stream = int(time.time()) << 32 | number
            data = re.sub(rb"(<streamId>uid:[^<]*\\)\d+", rb"\g<1>%d" % stream, call.body)
            connection.request("POST", "/msmq/private$/orders", data.replace(url, place), media)
            response = connection.getresponse()
            response.read()
            assert response.status == 200
        connection.close()
        inner.wait_for(STREAMS)
        until(pair, lambda: "srmp_receipt_not_accepted" in pair.b.log.read_text())

        lines = pair.b.log.read_text().splitlines()
        assert sum("srmp_receipt_not_accepted" in line for line in lines) <= LIMITED_LINES_MAX + 1
