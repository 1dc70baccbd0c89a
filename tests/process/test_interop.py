"""`qmd interop`: a probe of a real daemon, and captures of real conversations."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from tests import captures
from tests.dialogue import usual
from tests.process import wire
from tests.process.command_line import run
from tests.process.harness import Daemon, Hosts, free_port


def probe(daemon: Daemon, *more: str) -> tuple[int, dict[str, Any]]:
    """Probe a daemon; return the exit code and the report."""
    done = run(
        [
            *("interop", "probe", f"127.0.0.1:{daemon.port}", "--yes", "--json", "--timeout", "60"),
            *("--queue", "private$\\plain", "--transactional-queue", "private$\\tx", *more),
        ],
        check=False,
    )
    return done.returncode, json.loads(done.stdout)


def test_a_probe_of_our_own_daemon_finds_nothing_wrong(hosts: Hosts, tmp_path: Path) -> None:
    daemon = hosts.daemon()
    daemon.create("plain")
    daemon.create("tx", transactional=True)
    file = tmp_path / "report.txt"

    code, found = probe(daemon, "--report", str(file))

    assert [each for each in found["steps"] if each["verdict"] != "passed"] == []
    assert len(found["steps"]) == 22
    assert found["failures"] == 0
    assert code == 0
    # The report for people, and the one for programs, with every byte.
    text, details = file.read_text(), json.loads((tmp_path / "report.txt.json").read_text())
    assert "Violations in packets of the peer\n  none" in text
    assert "  passed  transactional messages out of order (MS-MQQB 3.1.5.8.6)" in text
    assert details["steps"] == found["steps"]
    assert details["sessions"][0]["packets"][0]["kind"] == "connection request"
    assert details["sessions"][0]["packets"][0]["hex"].startswith("10")
    # Only the test queues have messages, and all of them have the label of the probe.
    for queue in ("plain", "tx"):
        labels = {row["label"] for row in daemon.json("peek", queue)}
        assert labels == {"qmd interop probe"}


def test_connections_of_the_peer_are_accepted_and_judged(hosts: Hosts) -> None:
    """The acknowledgments go to an address: the daemon opens a connection for them."""
    daemon = hosts.daemon()
    daemon.create("plain")
    daemon.create("tx", transactional=True)

    code, found = probe(daemon, "--well-formed", "--listen", f"127.0.0.1:{free_port()}")

    assert [each for each in found["steps"] if each["verdict"] != "passed"] == []
    assert found["steps"][-1]["step"] == "a connection of the peer's own"
    own = [each for each in found["sessions"] if each["begun_by_peer"]]
    kinds = [packet["kind"] for session in own for packet in session["packets"]]
    assert kinds[:2] == ["connection request", "connection response"]
    assert "acknowledgment" in kinds
    assert found["failures"] == 0
    assert code == 0


def test_a_peer_that_breaks_rules_is_found(hosts: Hosts) -> None:
    remote = hosts.remote()
    listener = remote.listen()

    def lie() -> None:
        """Answer with another time stamp, and acknowledge messages that were not sent."""
        with contextlib.suppress(OSError, Exception):
            connection = listener.accept_raw()
            request = listener.read_request(connection)
            connection.send(
                wire.establish(
                    client=request.client, server=remote.guid, timestamp=request.timestamp + 1
                )
            )
            connection.frame()
            connection.send(wire.parameters())
            connection.frame()
            connection.send(wire.session_ack(wire.Session(9, 0, 0, 0, 0, 64)))
            connection.frame()
            connection.close()

    liar = threading.Thread(target=lie, daemon=True)
    liar.start()
    done = run(
        [
            *("interop", "probe", f"127.0.0.1:{listener.port}", "--yes", "--json"),
            *("--well-formed", "--timeout", "1"),
        ],
        check=False,
    )
    listener.sock.close()

    found = json.loads(done.stdout)
    clauses = {
        violation["clause"]
        for session in found["sessions"]
        for packet in session["packets"]
        for violation in packet["violations"]
    }
    assert {"MS-MQQB 3.1.5.3.1", "MS-MQMQ 2.2.20.4"} <= clauses
    assert found["failures"] > 0
    assert done.returncode == 1
    assert b"QM-9303" in done.stderr


def test_a_host_that_does_not_listen_is_unreachable() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]

        done = run(["interop", "probe", f"127.0.0.1:{port}", "--yes"], check=False)

    assert done.returncode == 5
    assert b"QM-9302" in done.stderr


def test_without_a_yes_nothing_is_sent(hosts: Hosts) -> None:
    listener = hosts.remote().listen()

    done = run(["interop", "probe", f"127.0.0.1:{listener.port}"], check=False, input=b"")

    assert done.returncode == 2
    assert b"which must not exist" in done.stderr, "the plan is printed first"
    with pytest.raises(TimeoutError):
        listener.accept_raw(0.2)


# Captures.


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("captures") / "usual.pcapng"
    packets = [captures.ethernet(packet) for packet in captures.connection(usual())]
    file.write_bytes(captures.pcapng(packets))
    return file


def rows(*arguments: str) -> list[dict[str, Any]]:
    done = run(["interop", "read", *arguments, "--json"])
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_capture_is_read_as_sessions_and_packets(capture: Path) -> None:
    found = rows(str(capture), "--check")

    *packets, session, summary = found
    assert [each["type"] for each in packets] == ["packet"] * 23
    assert packets[0]["fields"]["EstablishConnectionHeader.OperatingSystem.SE"] == "1"
    assert session["messages"] == [9, 2]
    assert session["unacknowledged"] == [0, 0]
    assert session["violations"] == summary["violations"] == 0
    assert summary["frames"] == 51


def test_one_message_is_followed(capture: Path) -> None:
    name = next(row["about"][0] for row in rows(str(capture)) if "position 2" in row["summary"])

    kinds = [row["kind"] for row in rows(str(capture), "--message", name) if "kind" in row]

    assert kinds == ["message", "session ack", "order ack"]


def test_packets_are_chosen(capture: Path) -> None:
    acks = rows(str(capture), "--kind", "order ack", "--kind", "session ack", "--hex")[:-2]
    assert {row["kind"] for row in acks} == {"order ack", "session ack"}
    assert all(len(row["hex"]) == 2 * row["bytes"] for row in acks)
    assert len(rows(str(capture), "--session", "2")) == 2
    assert len(rows(str(capture), "--host", "10.0.0.9")) == 2
    assert len(rows(str(capture), "--violations")) == 2
    assert len(rows(str(capture), "--summary")) == 2


def test_a_capture_is_printed_for_people(capture: Path, tmp_path: Path) -> None:
    text = run(["interop", "read", str(capture), "--fields"]).stdout.decode()
    assert "->  connection request: of 75657571-2065-616d-6e61-67657220412e" in text
    assert "      SessionHeader.RecoverableMsgAckSeqNumber = 1" in text
    assert "10.0.0.1:40000  10.0.0.2:1801" in text

    broken = tmp_path / "broken.pcap"
    parts = usual()
    parts[1] = parts[1]._replace(data=parts[1].data[:-1] + b"?")
    broken.write_bytes(
        captures.pcap([captures.ethernet(packet) for packet in captures.connection(parts)])
    )
    done = run(["interop", "read", str(broken), "--check"], check=False)
    assert b"MUST of MS-MQQB 2.2.3.1: the padding of a response" in done.stdout
    assert done.returncode == 1


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.pcap").write_bytes(b"no capture at all")

    done = run(["interop", "read", str(tmp_path / "x.pcap")], check=False)

    assert done.returncode == 1
    assert b"QM-9301" in done.stderr
