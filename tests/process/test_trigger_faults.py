"""Programs of triggers that misbehave, large messages, and URLs that point elsewhere."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.harness import Hosts
from tests.process.test_triggers import Triggers, dead_letters
from tests.process.web_receiver import Receiver


@pytest.fixture
def triggers(tmp_path: Path) -> Iterator[Triggers]:
    hosts = Hosts()
    daemon = hosts.daemon(triggers={"targets": ["127.0.0.0/8"]})
    made = Triggers(daemon, tmp_path)
    try:
        daemon.create("orders", "answers", transactional=True)
        yield made
    finally:
        made.close()
        hosts.close()


@pytest.mark.parametrize("kind", ["receive", "transactional"])
def test_a_child_that_leaves_its_session_holds_nothing_up(triggers: Triggers, kind: str) -> None:
    """It keeps the output of the program open; the program has ended with success."""
    program = triggers.program("setsid sleep 600 & echo $! >> $SEEN; echo out; exit 0")
    triggers.create("bill", "--kind", kind, "--serialized", "--run", program,
                    "--answer-to", "answers")  # fmt: skip
    triggers.daemon.send_all("orders", [b"1", b"2"], "--transactional")
    triggers.start()
    try:
        triggers.emptied()
        pids = triggers.lines()
        assert len(pids) == 2  # no message was tried again
        assert [len(each) for each in (triggers.daemon.wait_for("answers", 2), pids)] == [2, 2]
    finally:
        for pid in triggers.lines():
            if Path(f"/proc/{pid}").exists():
                os.kill(int(pid), signal.SIGKILL)


def test_an_argument_that_no_program_can_get_is_a_dead_letter_at_once(triggers: Triggers) -> None:
    """Linux allows 128 KiB for one argument; the input of the program has no limit."""
    program = triggers.program('echo "$QMD_ATTEMPT" >> $SEEN; wc -c >> $SEEN')
    triggers.create("body", "--run", program, "--argument", "$MSG_BODY_AS_STRING",
                    "--when", "$MSG_LABEL_CONTAINS=argument")  # fmt: skip
    triggers.daemon.cli("trigger", "add-rule", "body", "input", "--run", program,
                        "--when", "$MSG_LABEL_CONTAINS=input")  # fmt: skip
    large = triggers.folder / "large"
    large.write_bytes(b"x" * 4_000_000)
    for label in ("argument", "input"):
        triggers.daemon.cli("send", "orders", "--file", str(large), "--transactional",
                            "--label", label)  # fmt: skip
    triggers.start()
    triggers.emptied()

    (letter,) = dead_letters(triggers.daemon)
    assert letter["label"] == "argument"
    assert "4000000 bytes" in letter["reason"]
    assert triggers.lines() == ["1", "4000000"]


def test_a_redirection_is_not_followed(triggers: Triggers) -> None:
    """The target of a redirection would get the message without being among the targets."""
    other, receiver = Receiver(), Receiver()
    receiver.statuses = [302, 307, 308]
    receiver.location = f"{other.url}/stolen"
    triggers.create("hook", "--kind", "transactional", "--call", receiver.url)
    message = triggers.daemon.send("orders", b"body", "--transactional")
    triggers.start()
    receiver.wait_for(4)
    triggers.emptied()
    other.close()
    receiver.close()

    assert other.calls == []
    for status in (302, 307, 308):
        assert f"the answer was {status}" in triggers.why(message)


@pytest.mark.parametrize("kind", ["receive", "transactional"])
def test_a_daemon_that_is_killed_in_the_middle_of_programs(triggers: Triggers, kind: str) -> None:
    """Programs under way are ended and run again, and never beside their repetition."""
    program = triggers.program(
        # The first run of one body does not end by itself.
        'read body; test "$body" != 3 -o -e "$SEEN.3" && pause=0.3 || pause=600\n'
        # A lock ends with its process, whenever and however that is ended.
        'exec 9>"$SEEN.$body"; flock --nonblock 9 || echo "twice $body" >> $SEEN\n'
        'sleep $pause 9>&-; echo "did $body" >> $SEEN; echo "$body"'
    )
    triggers.create("bill", "--kind", kind, "--concurrency", "4", "--run", program,
                    "--timeout", "1h", "--answer-to", "answers")  # fmt: skip
    bodies = [b"%d" % number for number in range(16)]
    triggers.daemon.send_all("orders", bodies, "--transactional")
    triggers.start()
    for count in (2, 6):
        triggers.wait(count)
        triggers.daemon.kill()
        triggers.daemon.start()
    triggers.emptied()

    done = [line for line in triggers.lines() if line.startswith("did ")]
    assert {f"did {body.decode()}" for body in bodies} == set(done)
    assert not [line for line in triggers.lines() if line.startswith("twice")]
    answers = [each["correlation_id"] for each in triggers.daemon.receive("answers")]
    assert len(set(answers)) == len(bodies)
    if kind == "transactional":
        assert len(answers) == len(bodies)
