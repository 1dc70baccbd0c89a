"""Selectors, locks, groups and topics at the command line, across kills of real daemons."""

from __future__ import annotations

import pytest

from tests.process.harness import Daemon, Hosts, body


@pytest.fixture
def daemon(hosts: Hosts) -> Daemon:
    return hosts.daemon()


def fill(daemon: Daemon) -> None:
    daemon.create("orders", transactional=True)
    for number, region in enumerate(("west", "east", "east")):
        daemon.send(
            "orders",
            b"%d" % number,
            *("--property", f"region={region}", "--property", f"n:={number}"),
            *("--group", region),
        )


def test_a_selector_chooses_messages_of_every_command(daemon: Daemon) -> None:
    fill(daemon)
    east = "region = 'east'"
    assert [body(each) for each in daemon.json("peek", "orders", "--all", "--where", east)] == [
        *(b"1", b"2"),
    ]
    purged = daemon.cli("queue", "purge", "orders", "--where", "n = 0", "--dry-run")
    assert b"would be purged: 1 message" in purged.stdout
    assert len(daemon.json("receive", "orders", "--where", "n = 2")) == 1
    daemon.cli("move", "orders", "orders;later", "--all", "--where", east)
    assert daemon.bodies("orders;later") == [b"1"]
    assert daemon.bodies("orders") == [b"0"]
    failed = daemon.cli("receive", "orders", "--where", "region =", check=False)
    assert failed.returncode != 0
    assert b"QM-1526" in failed.stderr
    assert b"at character 9" in failed.stderr
    for option in ("region", "n:=x", "=x"):
        failed = daemon.cli("send", "orders", "x", "--property", option, check=False)
        assert b"QM-5031" in failed.stderr


def test_a_lock_is_settled_by_other_processes_and_ends_with_the_daemon(daemon: Daemon) -> None:
    fill(daemon)
    taken = daemon.json("lock", "take", "orders", "--count", "3", "--time", "10m")
    assert [body(each) for each in taken] == [b"0", b"1", b"2"]
    (lock,) = {each["lock"] for each in taken}
    assert daemon.cli("lock", "take", "orders", check=False).returncode == 6
    (shown,) = daemon.json("lock", "list")
    assert (shown["lock"], shown["messages"]) == (lock, 3)
    daemon.cli("lock", "renew", lock, "--time", "20m")
    one = ("--lookup-id", str(taken[1]["lookup_id"]))
    assert daemon.cli("lock", "remove", lock, "orders", *one).stdout == b"removed 1 message\n"
    daemon.cli("lock", "give-back", lock, "orders", "--failed", "--reason", "no paper", *one[:1],
               str(taken[2]["lookup_id"]))  # fmt: skip
    (message,) = daemon.peek("orders")
    assert (body(message), message["abort_count"]) == (b"2", 1)
    assert "no paper" in str(daemon.json("why", message["id"]))

    daemon.kill()
    daemon.start()
    failed = daemon.cli("lock", "remove", lock, "orders", check=False)
    assert b"QM-1527" in failed.stderr
    assert [(body(each), each["abort_count"]) for each in daemon.peek("orders")] == [
        *((b"0", 0), (b"2", 1)),
    ]
    bad = daemon.cli("lock", "remove", "x", "orders", check=False)
    assert b"QM-1528" in bad.stderr


def test_a_queue_with_groups_gives_each_group_to_one_receiver(daemon: Daemon) -> None:
    fill(daemon)
    daemon.cli("queue", "set", "orders", "--groups")
    daemon.kill()
    daemon.start()
    assert b"lock " in daemon.cli("lock", "take", "orders", "--time", "1ms").stdout
    daemon.wait_for("orders", 3)
    (show,) = daemon.json("queue", "show", "orders")
    assert show["groups"] is True
    (west,) = daemon.json("lock", "take", "orders")
    (east,) = daemon.json("lock", "take", "orders")
    assert (body(west), body(east)) == (b"0", b"1")
    assert daemon.cli("lock", "take", "orders", check=False).returncode == 6
    daemon.cli("lock", "remove", east["lock"], "orders")
    assert [body(each) for each in daemon.receive("orders")] == [b"2"]


def test_topics_at_the_command_line_and_across_a_kill(hosts: Hosts) -> None:
    a, b = hosts.daemon(), hosts.daemon()
    a.create("all", "others")
    b.create("east")
    a.cli("topic", "create", "news", "--unmatched", "others")
    elsewhere = f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\east"
    where = ("--where", "region = 'east'")
    a.cli("topic", "subscribe", "news", elsewhere, "--name", "east", *where)
    a.kill()
    a.start()
    a.send("topic:news", b"1", "--property", "region=east", "--recoverable")
    a.send("topic:news", b"2")
    (message,) = b.wait_for("east", 1)
    assert (body(message), message["properties"]) == (b"1", {"region": "east"})
    assert message["standard_properties"] == {"to": "topic:news"}
    assert a.bodies("others") == [b"2"]
    (shown,) = a.json("topic", "show", "news")
    assert [each["name"] for each in shown["subscriptions"]] == ["east"]
    assert b"east" in a.cli("topic", "show", "news").stdout
    a.cli("topic", "subscribe", "news", "all")
    a.cli("topic", "unsubscribe", "news", "east")
    assert b"all" in a.cli("topic", "list").stdout + a.cli("topic", "show", "news").stdout
    a.cli("topic", "delete", "news", "--yes")
    failed = a.cli("send", "topic:news", "3", check=False)
    assert b"QM-1107" in failed.stderr
