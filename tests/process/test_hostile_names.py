"""Names of queues with control characters: no command and no log writes them to a terminal.

MS-MQMQ 2.1.1 allows DEL in the name of a queue, and no other control character.
"""

from __future__ import annotations

import pytest

from tests.process.harness import Daemon, Hosts, body

pytestmark = pytest.mark.process
QUEUE = "private$\\a\x7fb"
OTHER = "private$\\c\x7fd"


@pytest.fixture(scope="module")
def daemon(shared_hosts: Hosts) -> Daemon:
    return shared_hosts.daemon()


def test_a_name_with_del_is_escaped_in_each_output_and_the_queue_can_be_reached(
    daemon: Daemon,
) -> None:
    done = [
        daemon.cli(*words, check=check)
        for words, check in (
            (("queue", "create", QUEUE), True),
            (("queue", "create", OTHER, "--json"), True),
            (("send", QUEUE, "acknowledged", "--label", "a\x7fb"), True),
            (("peek", QUEUE), True),
            (("peek", QUEUE, "--json"), True),
            (("move", QUEUE, OTHER, "--all"), True),
            (("move", OTHER, QUEUE, "--all"), True),
            (("queue", "list"), True),
            (("queue", "show", QUEUE), True),
            (("queue", "show", QUEUE, "--json"), True),
            (("acl", "show", QUEUE), True),
            (("status",), True),
            (("explain", QUEUE), False),
            (("send", QUEUE + "z", "for no queue"), False),
            (("queue", "delete", QUEUE), False),
            (("queue", "delete", OTHER, "--yes"), True),
        )
    ]

    for each in done:
        assert b"\x7f" not in each.stdout + each.stderr, each
    assert b"\x7f" not in daemon.log.read_bytes()
    assert [body(each) for each in daemon.receive(QUEUE)] == [b"acknowledged"]


@pytest.mark.parametrize("character", ["\x01", "\x1b", "\x80", "\x9b"])
def test_other_control_characters_are_in_no_name(daemon: Daemon, character: str) -> None:
    refused = daemon.cli("queue", "create", f"private$\\a{character}b", check=False)

    assert refused.returncode != 0
    assert character.encode() not in refused.stdout + refused.stderr
