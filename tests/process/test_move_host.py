"""`qmd move-host`: the plan names what this queue manager has, and its commands exist."""

from __future__ import annotations

import shlex

from qmd.cli import COMMANDS
from tests.process.harness import Hosts


def test_the_plan_has_the_values_of_this_queue_manager(hosts: Hosts) -> None:
    daemon, peer = hosts.daemon(), hosts.daemon()
    daemon.create("orders", transactional=True)
    peer.send(f"DIRECT=TCP:127.0.0.1:{daemon.port}\\private$\\orders", b"1", "--transactional")
    daemon.wait_for("orders", 1)

    steps = daemon.json("move-host", "10.0.0.9")

    assert [step["step"] for step in steps] == list(range(1, len(steps) + 1))
    text = str(steps)
    assert "1 messages are in queues" in text
    assert (
        f"qmd outgoing redirect {daemon.json('status')[0]['name']}:{daemon.port} 10.0.0.9" in text
    )
    for step in steps:
        for command in step["commands"]:
            words = shlex.split(command)
            if "qmd" in words[:-1] and words[words.index("qmd") - 1] != "--now":
                rest = words[words.index("qmd") + 1 :]
                rest = rest[2:] if rest[0] == "--config" else rest
                assert rest[0] in COMMANDS
