"""Real daemons with a directory file: changes in operation, faulty files, and `qmd name`."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.patience import END_S, LOOK_S
from tests.process.harness import Daemon, Hosts

EXIT_FAILED, EXIT_USAGE, EXIT_NOT_FOUND, EXIT_REFUSED, EXIT_CONFIGURATION = 1, 2, 3, 4, 78


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "directory.toml"
    path.write_text("# Kept by people.\n")
    return path


@pytest.fixture
def start(hosts: Hosts, file: Path) -> Callable[[str], Daemon]:
    def start(name: str) -> Daemon:
        daemon = hosts.daemon(
            queue_manager={"name": name},
            directory={"kind": "file", "file": str(file), "reload": "20ms"},
        )
        with file.open("a") as stream:
            (status,) = daemon.json("status")
            stream.write(
                f'[[machine]]\nname = "{name}"\nguid = "{status["queue_manager"]}"\n'
                f'addresses = ["127.0.0.1:{daemon.port}"]\n'
            )
        until(lambda: daemon.json("directory", "status")[0]["machines"] > 0)
        return daemon

    return start


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + END_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(LOOK_S)


def write(daemon: Daemon, file: Path, text: str) -> None:
    """Write another file, and wait until the daemon has read it."""
    put(file, text)
    daemon.cli("directory", "reload", check=False)


def put(file: Path, text: str) -> None:
    """Replace the file atomically, as editors do: the daemon never reads an empty file."""
    new = file.with_name(f"{file.name}.new")
    new.write_text(text)
    new.replace(file)


def test_a_changed_list_applies_from_the_next_look_up_on(start, file):
    a = start("hosta")
    a.create("one", "two")
    a.cli("dl", "create", "all", "one")

    before = [row["name"] for row in a.json("dl", "expand", "all")]
    changed = file.read_text().replace("\\one", "\\two")
    put(file, changed)
    until(lambda: [row["name"] for row in a.json("dl", "expand", "all")] != before)

    assert before == [f"DIRECT=OS:hosta:{a.port}\\private$\\one"]
    assert [row["name"] for row in a.json("dl", "expand", "all")] == [
        f"DIRECT=OS:hosta:{a.port}\\private$\\two"
    ]


def test_a_public_queue_of_another_daemon_is_sent_to_by_its_path(start):
    a, b = start("hosta"), start("hostb")
    b.cli("queue", "create", "orders", "--public", "--transactional")
    until(lambda: a.json("directory", "status")[0]["queues"] == 1)

    a.send("hostb\\orders", b"10 screws", "--transactional")
    b.wait_for(".\\orders", 1)
    b.restart()
    a.send("hostb\\orders", b"20 screws", "--transactional")
    b.wait_for(".\\orders", 2)
    assert b.bodies(".\\orders") == [b"10 screws", b"20 screws"]


def test_a_message_goes_as_the_kind_of_its_public_queue_or_is_refused(start):
    a, b = start("hosta"), start("hostb")
    b.cli("queue", "create", "orders", "--public", "--transactional")
    b.cli("queue", "create", "notes", "--public")
    until(lambda: a.json("directory", "status")[0]["queues"] == 2)

    a.send("hostb\\orders", b"10 screws")
    a.send("hostb\\notes", b"a note")
    refused = a.cli("send", "hostb\\orders", "x", "--recoverable", check=False)
    other = a.cli("send", "hostb\\notes", "x", "--transactional", check=False)

    b.wait_for(".\\orders", 1)
    b.wait_for(".\\notes", 1)
    assert b.peek(".\\orders")[0]["delivery"] == "transactional"
    assert b.peek(".\\notes")[0]["delivery"] == "recoverable"
    assert (refused.returncode, other.returncode) == (EXIT_REFUSED, EXIT_REFUSED)
    assert b"directory" in refused.stderr
    assert b"QM-1311" in refused.stderr
    assert b"directory" in other.stderr
    assert b"QM-1312" in other.stderr


def test_every_packet_names_the_members_of_a_list(start):
    a, b = start("hosta"), start("hostb")
    for name in ("orders", "notes"):
        b.cli("queue", "create", name, "--public")
    until(lambda: a.json("directory", "status")[0]["queues"] == 2)
    a.cli("dl", "create", "all", "hostb\\orders", "hostb\\notes")
    (made,) = a.json("dl", "show", "all")
    members = [row["name"] for row in a.json("dl", "expand", "all")]

    a.send("list:all", b"to all")

    for queue in (".\\orders", ".\\notes"):
        b.wait_for(queue, 1)
        (message,) = b.peek(queue)
        assert message["destinations"] == [made["format_name"], *members]


def test_a_list_that_changes_between_two_sends_and_a_kill(start, file):
    a, b = start("hosta"), start("hostb")
    a.create("one", "two", transactional=True)
    b.cli("queue", "create", "orders", "--public", "--transactional")
    until(lambda: a.json("directory", "status")[0]["queues"] == 1)
    a.cli("dl", "create", "inner", "one", "hostb\\orders")
    a.cli("dl", "create", "all", "list:inner")

    b.kill()
    a.cli("send", "list:all", "first", "--transactional")
    a.restart()
    a.cli("dl", "add", "inner", "two", "list:all")
    a.cli("dl", "remove", "inner", "one")
    a.cli("send", "list:all", "second", "--transactional")
    b.start()

    b.wait_for(".\\orders", 2)
    assert b.bodies(".\\orders") == [b"first", b"second"]
    assert a.bodies("one") == [b"first"]
    assert a.bodies("two") == [b"second"]


def test_lists_that_name_one_queue_in_two_ways_promise_no_order_between_them(start):
    """Check the manual's statement about D1 and D2: two names are two streams, each in order."""
    a, b = start("hosta"), start("hostb")
    b.cli("queue", "create", "q1", "--public", "--transactional")
    b.create("q2", transactional=True)
    until(lambda: a.json("directory", "status")[0]["queues"] == 1)
    q2 = f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\q2"
    a.cli("dl", "create", "d1", "hostb\\q1")
    a.cli("dl", "create", "d2", f"DIRECT=TCP:127.0.0.1:{b.port}\\q1")
    (public,) = (row["name"] for row in a.json("dl", "expand", "d1"))
    a.send(f"list:d1,{q2}", b"M1 0", "--transactional")
    b.wait_for(".\\q1", 1)

    a.cli("outgoing", "pause", public)
    for number in (1, 2, 3):
        a.send(f"list:d1,{q2}", f"M1 {number}".encode(), "--transactional")
        a.send(f"list:d2,{q2}", f"M2 {number}".encode(), "--transactional")
        (b if number == 2 else a).restart()
    b.wait_for(".\\q1", 4)
    a.cli("outgoing", "resume", public)

    b.wait_for("q2", 7)
    b.wait_for(".\\q1", 7)
    pairs = [f"M{kind} {number}".encode() for number in (1, 2, 3) for kind in (1, 2)]
    assert b.bodies("q2") == [b"M1 0", *pairs], "one name: one stream"
    first = [b"M1 1", b"M1 2", b"M1 3"]
    second = [b"M2 1", b"M2 2", b"M2 3"]
    assert b.bodies(".\\q1") == [b"M1 0", *second, *first], "two names: two streams, each in order"


def test_acknowledgments_that_wait_for_the_directory_survive_kills(hosts, start, file, tmp_path):
    a = start("hosta")
    (acks,) = a.json("queue", "create", "acks", "--public")
    late = tmp_path / "late.toml"
    b = hosts.daemon(
        queue_manager={"name": "hostb"},
        directory={"kind": "file", "file": str(late), "reload": "20ms"},
    )
    b.create("orders")
    orders = f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\orders"
    asked = (
        "--recoverable",
        "--admin-queue",
        acks["public_name"],
        "--acknowledge",
        "positive-arrival",
    )

    sent = []
    for number in range(3):
        sent.append(a.send(orders, b"%d" % number, *asked))
        b.wait_for("orders", number + 1)
        b.restart()
    put(late, file.read_text())
    acknowledged = a.wait_for(".\\acks", 3)
    b.restart()
    until(lambda: not any(each["messages"] for each in b.json("outgoing", "list")))

    assert [each["correlation_id"] for each in acknowledged] == sent
    assert a.peek(".\\acks") == acknowledged


def test_a_broken_file_replaces_nothing_and_is_reported(start, file):
    a = start("hosta")
    a.cli("queue", "create", "orders", "--public")
    whole = file.read_text()

    write(a, file, whole + "[[list]\n")

    looked_up = a.json("directory", "lookup", ".\\orders")
    status = a.cli("directory", "status", "--json", check=False)
    facts = json.loads(status.stdout)
    assert looked_up[0]["path"] == "hosta\\orders"
    assert (status.returncode, facts["state"]) == (EXIT_FAILED, "stale")
    assert f"{file}:{len(whole.splitlines()) + 1}: " in facts["problem"]
    assert a.json("status")[0]["directory"]["state"] == "stale"
    assert "directory_file_broken" in a.tail()
    refused = a.cli("dl", "create", "all", check=False)
    assert refused.returncode == EXIT_REFUSED
    assert b"QM-7005" in refused.stderr

    put(file, whole)

    until(lambda: a.json("status")[0]["directory"]["state"] == "available")


def test_a_daemon_without_its_file_serves_and_reports_that(hosts, tmp_path):
    a = hosts.daemon(directory={"kind": "file", "file": str(tmp_path / "none.toml")})
    a.create("orders")

    a.send("orders", b"1")
    refused = a.cli("send", "hostb\\orders", "2", check=False)

    assert a.bodies("orders") == [b"1"]
    assert refused.returncode == EXIT_REFUSED
    assert b"QM-7003" in refused.stderr
    assert b"No such file or directory" in refused.stderr


def test_a_signal_makes_the_daemon_read_the_file(hosts, file):
    a = hosts.daemon(directory={"kind": "file", "file": str(file), "reload": "1h"})
    file.write_text('[[list]]\nname = "all"\nmembers = ["orders@hostb"]\n')
    assert a.json("dl", "list") == []

    assert a.process is not None
    a.process.send_signal(signal.SIGHUP)

    until(lambda: a.json("dl", "list"))
    assert [each["name"] for each in a.json("dl", "list")] == ["all"]


def test_lists_are_made_changed_and_deleted_and_the_file_keeps_its_comments(start, file):
    a = start("hosta")
    a.cli("queue", "create", "orders", "--public")
    a.cli("dl", "create", "inner", "orders@hostc")

    a.cli("dl", "create", "all", ".\\orders", "list:inner", "orders@hostb")
    a.cli("dl", "add", "list:all", "billing@hostb", "orders@hostb")
    a.cli("dl", "remove", "all", "orders@hostb")

    (shown,) = a.json("dl", "show", "all")
    assert [each["path"] or each["name"] for each in shown["members"]] == [
        "hosta\\orders",
        "list:inner",
        "DIRECT=OS:hostb\\private$\\billing",
    ]
    assert [row["path"] or row["name"] for row in a.json("dl", "expand", "all")] == [
        ".\\orders",
        "DIRECT=OS:hostc\\private$\\orders",
        "DIRECT=OS:hostb\\private$\\billing",
    ]
    missing = a.cli("dl", "remove", "all", "orders@hostb", check=False)
    assert missing.returncode == EXIT_NOT_FOUND
    again = a.cli("dl", "create", "ALL", check=False)
    assert again.returncode == EXIT_REFUSED
    a.cli("queue", "delete", ".\\orders", "--yes")
    a.cli("dl", "delete", "inner", "--yes")
    (shown,) = a.json("dl", "show", "all")
    assert [each["name"] for each in shown["members"]] == ["DIRECT=OS:hostb\\private$\\billing"]
    assert file.read_text().startswith("# Kept by people.\n")
    assert b"is valid: 0 queues, 1 lists" in a.cli("directory", "check").stdout


def test_check_reports_each_fault_of_a_file_with_its_line(hosts, tmp_path):
    broken = tmp_path / "broken.toml"
    broken.write_text('[[list]]\nname = "all"\nmembrs = []\n')

    found = hosts.daemon().cli("directory", "check", str(broken), check=False)

    assert found.returncode == EXIT_CONFIGURATION
    assert f"{broken}:3: [[list]] membrs: unknown key".encode() in found.stderr


def test_workgroup_mode_refuses_what_needs_a_directory(hosts):
    a = hosts.daemon()
    guid = "00000000-0000-0000-0000-0000000000aa"

    for command in (
        ("send", f"PUBLIC={guid}", "1"),
        ("send", f"DL={guid}", "1"),
        ("queue", "create", "orders", "--public"),
        ("dl", "create", "all"),
        ("directory", "lookup", "list:all"),
    ):
        refused = a.cli(*command, check=False)
        assert (refused.returncode, b"QM-1102" in refused.stderr) == (EXIT_USAGE, True), command
    assert a.json("directory", "status")[0]["state"] == "none"


def test_explain_gives_the_destinations_and_refusals_of_a_message(start, file):
    a = start("hosta")
    a.create("mine")
    guid = "00000000-0000-0000-0000-0000000000bb"
    write(
        a,
        file,
        file.read_text()
        + f'[[machine]]\nname = "hostb"\nguid = "{guid}"\naddresses = ["10.0.0.5", "hostb.lan"]\n'
        + "[[queue]]\npath = 'hostb\\orders'\ntransactional = true\n"
        + '[[list]]\nname = "all"\nmembers = ["list:all", \'hostb\\orders\', "q@hostc"]\n',
    )

    (found,) = a.json("name", "explain", "mine,list:all,hostb\\nothing,nowhere")

    assert found["daemon"] == "asked"
    assert found["sendable"] is False
    mine, everybody, nothing, nowhere = found["resolved"]
    assert [target["queue"] for target in mine["targets"]] == ["private$\\mine"]
    assert [target["address"] for target in everybody["targets"]] == ["10.0.0.5:1801", "hostc:1801"]
    assert [target["next_hop"] for target in everybody["targets"]] == [
        ["hostb (10.0.0.5, hostb.lan)"],
        ["hostc:1801"],
    ]
    assert everybody["targets"][0]["addresses"] == ["10.0.0.5", "hostb.lan"]
    assert everybody["targets"][0]["transactional"] is True
    assert nothing["refusal"]["code"] == "not_in_directory"
    assert nowhere["targets"][0]["refusal"]["code"] == "no_such_queue"
    for_people = a.cli("name", "explain", "list:all").stdout.decode()
    assert "10.0.0.5:1801" in for_people
    assert a.json("outgoing", "list") == [], "to explain is not to send"


def test_explain_works_without_a_daemon(start):
    a = start("hosta")
    a.terminate()

    (found,) = a.json("name", "explain", "list:all,orders@hostb")

    assert found["daemon"] == "not asked: it does not run"
    assert [each["kind"] for each in found["elements"]] == ["distribution list", "direct"]
