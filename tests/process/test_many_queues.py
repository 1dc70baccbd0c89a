"""One command for many queues."""

from __future__ import annotations

from tests.process.harness import Hosts


def test_one_command_creates_several_queues_also_if_one_is_refused(hosts: Hosts):
    daemon = hosts.daemon()
    daemon.cli("queue", "create", "two", "--label", "there already")

    result = daemon.cli("queue", "create", "one", "two", "three", check=False)

    assert result.returncode == 4
    assert b"private$\\two" in result.stderr
    assert [line.rpartition(b"\\")[2] for line in result.stdout.splitlines()] == [b"one", b"three"]
    assert len(daemon.json("queue", "create", "four", "five")) == 2
    names = {row["name"].rpartition("\\")[2] for row in daemon.json("queue", "list")}
    assert {"one", "two", "three", "four", "five"} <= names
